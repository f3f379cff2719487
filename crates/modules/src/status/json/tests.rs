use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use petrel_engine::metrics::{LatencyCells, StatusClass};
use petrel_engine::module::{Hook, Loaded, ModuleSpec, Pending, Phase};
use petrel_engine::proto::status::Status;
use petrel_engine::recorder::SharedMemory;
use petrel_engine::testing::Site;
use petrel_engine::waits::HolderText;
use serde_json::Value;
use tokio::time::{Sleep, sleep};

use super::super::MODULE;
use super::*;
use crate::static_file;
use crate::testing::Tree;

const CONFIG: &str = "status.metrics-url = \"/metrics\"\nstatus.allow = ( \"127.0.0.1\" )";

async fn status(site: &Site) -> Value {
    let answer = site.get_async("/metrics?json").await;
    assert_eq!(answer.status(), 200);
    assert_eq!(
        answer.field("Content-Type").as_deref(),
        Some("application/json")
    );
    serde_json::from_slice(answer.body()).expect("it is JSON")
}

#[tokio::test(flavor = "local")]
async fn it_has_what_was_counted() {
    let tree = Tree::new(&[("a.txt", "a file")]);
    let site = tree.site(CONFIG, &[&static_file::MODULE, &MODULE]);
    for target in ["/a.txt", "/a.txt", "/none", "/%22%5c"] {
        site.get_async(target).await;
    }
    let status = status(&site).await;
    assert_eq!(status["format"], FORMAT);
    assert_eq!(status["totals"]["requests"], 4);
    assert_eq!(status["totals"]["status"]["2xx"], 2);
    let routes = status["routes"].as_array().expect("a list");
    let of_files = routes
        .iter()
        .find(|route| route["route"] == "mod_staticfile");
    let of_files = of_files.expect("it has answered");
    assert_eq!(of_files["requests"], 2);
    assert_eq!(of_files["detail"], Value::Null);
    assert!(of_files["stage_us"]["content"].is_u64(), "{of_files}");
    let latency = of_files["latency"].as_array().expect("a list");
    assert_eq!(latency.iter().filter_map(Value::as_u64).sum::<u64>(), 2);
    assert_ne!(latency.last(), Some(&Value::from(0)));
    let times = ["p50_us", "p99_us", "max_us"].map(|name| of_files["percentiles"][name].as_u64());
    assert!(times[0].is_some() && times[0] <= times[1], "{times:?}");
    assert_eq!(times[1], times[2], "the slower one of two");
    let paths = status["paths"].as_array().expect("a list");
    let names: Vec<&str> = paths
        .iter()
        .filter_map(|path| path["path"].as_str())
        .collect();
    assert_eq!(names[0], "/a.txt", "the most frequent one");
    assert!(names.contains(&"/none"), "{names:?}");
    assert_eq!(
        status["stages"].as_array().map(Vec::len),
        Some(Stage::ALL.len())
    );
    assert_eq!(status["counters"]["tls.handshakes-full"], 0);
    assert_eq!(status["workers"].as_array().map(Vec::len), Some(1));
}

/// A module that makes `/slow` wait for a disk, in words.
static SLOW: ModuleSpec = ModuleSpec {
    name: "mod_slow",
    doc: "",
    loaded: Loaded::Listed,
    directives: &[],
    configure: |configure| {
        configure.add_last(Phase::Authorize, SlowHook);
        Ok(())
    },
};

struct SlowHook;

impl Hook for SlowHook {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        match exchange.request.url.path() {
            b"/slow" => Outcome::Later(Box::new(SlowWait(Box::pin(sleep(SLOW_TIME))))),
            _ => Outcome::Next,
        }
    }
}

struct SlowWait(Pin<Box<Sleep>>);

impl Pending for SlowWait {
    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        ready!(self.0.as_mut().poll(context));
        exchange.response.answer(Status::NO_CONTENT);
        Poll::Ready(Outcome::Answer)
    }

    fn waits_in(&self) -> Option<Stage> {
        Some(Stage::Stat)
    }

    fn holder(&self, _: &Exchange, _: Nanos, text: &mut HolderText<'_>) {
        text.write_str("\"/mnt\" hangs");
    }
}

const SLOW_TIME: Duration = Duration::from_millis(300);

#[tokio::test(flavor = "local")]
async fn a_slow_request_is_shown_with_its_note_and_while_a_worker_works_for_it() {
    let (memory, _descriptor) = SharedMemory::create(1 << 20).expect("memfd");
    let memory = memory.beside(Vec::new());
    let config = format!("{CONFIG}\nstatus.status-url = \"/status\"");
    let site = Site::with_memory(&config, &[&SLOW, &MODULE], memory).expect("it is right");
    let slow = site.get_async("/slow?token=secret");
    let now = async {
        sleep(SLOW_TIME / 3).await;
        let now = page(site.worker().shared()).expect("it is made");
        serde_json::from_slice::<Value>(&now).expect("it is JSON")
    };
    let (answer, now) = tokio::join!(slow, now);
    assert_eq!(answer.status(), 204);
    let works_for = &now["workers"][0]["works_for"];
    assert_eq!(works_for["path"], "/slow");
    assert_eq!(now["slowest"], serde_json::json!([]));
    drop(answer);

    let status = status(&site).await;
    let slowest = status["slowest"].as_array().expect("a list");
    let request = slowest.first().expect("it was recorded");
    assert_eq!(request["id"], works_for["id"]);
    for (name, value) in [
        ("method", "GET"),
        ("host", "a.example"),
        ("path", "/slow"),
        ("client", "127.0.0.1"),
        ("route", "mod_slow"),
    ] {
        assert_eq!(request[name], value, "{request}");
    }
    assert_eq!(
        (&request["status"], &request["cause"]),
        (&Value::from(204), &Value::Null)
    );
    let wait = &request["waits"][0];
    assert_eq!(
        (&wait["stage"], &wait["holder"]),
        (&"stat".into(), &"\"/mnt\" hangs".into())
    );
    // Lag of the test itself is a stage of its own.
    let micros = SLOW_TIME.as_micros() as u64 / 2;
    for time in [
        &request["time_us"],
        &request["stage_us"]["stat"],
        &wait["time_us"],
    ] {
        assert!(time.as_u64() >= Some(micros), "{request}");
    }
    // The one who asks is the one who is worked for.
    assert_eq!(status["workers"][0]["works_for"]["path"], "/metrics");

    let page = site.get_async("/status").await;
    let page = String::from_utf8_lossy(page.body()).into_owned();
    assert!(page.contains("<bdi>&quot;/mnt&quot; hangs</bdi>"), "{page}");
}

/// A second in which requests took these times.
fn second(times: &[Nanos]) -> Second {
    let cells = LatencyCells::default();
    times.iter().for_each(|nanos| cells.count(*nanos));
    let mut second = Second::default();
    cells.add_to(&mut second.totals.latency);
    second
}

/// A minute ago a request took 9 s, four seconds ago one 2.3 s.
#[test]
fn a_figure_is_that_of_its_own_seconds() {
    let shared = Shared::new(1, 1);
    let mut report = Report::new(&shared, Metrics::snapshot);
    report.requests.seconds = (0..62).map(|_| second(&[10_000_000; 99])).collect();
    report.requests.seconds[1] = second(&[9_000_000_000]);
    report.requests.seconds[57] = second(&[2_300_000_000]);
    report.requests.seconds[61] = second(&[]);
    let status = of(&shared, report);
    let minute = status.latency.minute.expect("there are requests");
    assert_eq!(minute.max_us, 2_300_000);
    for time_us in [minute.p50_us, minute.p99_us] {
        assert!((10_000..=10_313).contains(&time_us), "{minute:?}");
    }
    let columns = &status.latency.columns;
    let longest: Vec<u64> = columns
        .iter()
        .map(|column| column.map_or(0, |times| times.max_us))
        .collect();
    assert_eq!(longest.len(), 13);
    assert_eq!((longest[0], longest[1]), (9_000_000, 10_000));
    assert_eq!(
        (longest[11], longest[12]),
        (10_000, 2_300_000),
        "{longest:?}"
    );
    let seconds = &status.seconds;
    assert_eq!(
        (seconds.p99_us[57], seconds.max_us[57]),
        (2_300_000, 2_300_000)
    );
    assert_eq!((seconds.p99_us[58], seconds.max_us[58]), (10_000, 10_000));
    assert_eq!((seconds.p99_us[61], seconds.max_us[61]), (0, 0));
    assert!(seconds.latency[61].is_empty());
}

#[test]
fn routes_beyond_a_number_are_added_up() {
    let shared = Shared::new(1, 1);
    let mut report = Report::new(&shared, Metrics::snapshot);
    for number in 0..ROUTES_SHOWN + 5 {
        let mut counts = RequestCounts::default();
        counts.latency.sum = 1_000_000 * (number as u64 + 1);
        counts.classes[StatusClass::Successful as usize] = 25;
        let name = format!("mod_\"hostile\\\r\n {number}");
        report.requests.routes.push((name, counts));
    }
    let text = text(&of(&shared, report)).expect("it is JSON");
    let status: Value = serde_json::from_slice(&text).expect("it is JSON");
    let routes = status["routes"].as_array().expect("a list");
    assert_eq!(routes.len(), ROUTES_SHOWN + 1);
    assert_eq!(routes[0]["detail"], (ROUTES_SHOWN + 4).to_string());
    assert_eq!(routes[0]["module"], "mod_\"hostile\\\r\n");
    let others = &routes[ROUTES_SHOWN];
    assert_eq!(others["route"], OTHERS);
    assert_eq!(others["requests"], 5 * 25);
    assert_eq!(others["time_us"], 15_000);
    let whole = (ROUTES_SHOWN + 5) as u64 * 25;
    assert_eq!(status["totals"]["requests"], whole);
}
