//! The metrics and the status as JSON, with the programs that read them.

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use petrel_tests::http2::{
    END_HEADERS, END_STREAM, HEADERS, PREFACE, RST_STREAM, SETTINGS, block, frame,
};
use petrel_tests::{
    Backend, Builder, PATIENCE, Server, Speaks, curl, eventually, free_port, is_installed, package,
    petrel, run, skip,
};
use rustix::process::{Pid, Signal, kill_process};

const OPEN_METRICS: (&str, &str) = ("Accept", "application/openmetrics-text");

/// A server with a backend, a host with a name of its own, and metrics.
fn site(backend: &Backend) -> Builder {
    let route = backend.directive("/app", "\"check-local\" => \"disable\"");
    Server::build()
        .file("www/index.html", "hello")
        .config(&format!(
            "server.modules += ( \"mod_status\", \"mod_redirect\" )\n\
             status.metrics-url = \"/metrics\"\n{route}\n\
             url.redirect = ( \"^/old\" => \"/new\" )\n\
             $HTTP[\"host\"] == \"petrel.test\" {{ server.tag = \"petrel\" }}"
        ))
}

fn backend() -> Backend {
    Backend::start(Speaks::FastCgi, |exchange| exchange.say("from the backend"))
}

/// Requests of several kinds.
fn ask(server: &Server) {
    for (target, status) in [
        ("/", 200),
        ("/", 200),
        ("/app/x", 200),
        ("/old", 301),
        ("/none", 404),
    ] {
        assert_eq!(server.get(target).status, status, "{target}");
    }
}

/// The value of the sample that begins with `name`, labels included.
fn value(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line[name.len()..].split_whitespace().next()?.parse().ok()
}

fn metrics(server: &Server) -> String {
    let response = server.get("/metrics");
    assert_eq!(response.status, 200, "{}", response.text());
    response.text()
}

/// Two hosts with the same directive are two routes, and so are two groups of backends without a key.
#[test]
fn backends_are_told_apart_by_the_conditions_that_they_stand_in() {
    let backend = backend();
    let hosts = ["one.example", "two.example"].map(|name| {
        let host = backend.host();
        format!(
            "$HTTP[\"host\"] == \"{name}\" {{\n    fastcgi.server = (\n\
             \x20       \".php\" => (( {host}, \"check-local\" => \"disable\" )),\n\
             \x20       \"/a\" => (( {host}, \"check-local\" => \"disable\" )),\n    )\n}}\n"
        )
    });
    let config = format!(
        "server.modules += ( \"mod_fastcgi\", \"mod_status\" )\n\
         status.metrics-url = \"/metrics\"\n{}",
        hosts.concat()
    );
    let server = Server::build().config(&config).start();
    for (host, target) in [
        ("one.example", "/a"),
        ("two.example", "/a"),
        ("two.example", "/b.php"),
    ] {
        let head = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        assert_eq!(server.exchange(&head).status, 200);
    }
    let of = |key: &str, host: &str| {
        let condition = format!("$HTTP[\\\"host\\\"] == \\\"{host}\\\"");
        format!(
            "petrel_request_duration_seconds_count{{route=\"mod_fastcgi {key} {condition}\",code=\"2xx\"}}"
        )
    };
    let expected = [
        of("/a", "one.example"),
        of("/a", "two.example"),
        of(".php", "two.example"),
    ];
    let are_counted = || {
        let text = metrics(&server);
        expected.iter().all(|name| value(&text, name) == Some(1.0))
    };
    assert!(eventually(are_counted), "{}", metrics(&server));
}

const OF_FILES: &str =
    "petrel_request_duration_seconds_count{route=\"mod_staticfile\",code=\"2xx\"}";

#[test]
fn what_was_counted_survives_a_reload_and_a_crash() {
    let backend = backend();
    let server = site(&backend).start();
    ask(&server);
    let of_backend =
        "petrel_request_duration_seconds_count{route=\"mod_fastcgi /app\",code=\"2xx\"}";
    let of_host = "petrel_host_requests_total{host=\"petrel.test\",code=\"4xx\"}";
    // The page is up to a second old, and workers publish what they have counted once a second.
    let is_counted = || {
        let text = metrics(&server);
        value(&text, OF_FILES) == Some(2.0)
            && value(&text, of_backend) == Some(1.0)
            && value(&text, of_host) == Some(1.0)
            && value(&text, "petrel_config_generation") == Some(1.0)
    };
    assert!(eventually(is_counted), "{}", metrics(&server));
    server.signal(Signal::USR1);
    let generation = |text: &str| value(text, "petrel_config_generation");
    assert!(
        eventually(|| generation(&metrics(&server)) == Some(2.0)),
        "{}",
        server.log()
    );
    ask(&server);
    let count = || value(&metrics(&server), OF_FILES);
    // The old server process may have answered a request meanwhile.
    assert!(eventually(|| count() == Some(4.0)), "{:?}", count());
    let victim = Pid::from_raw(server.processes().busiest().cast_signed()).expect("a process");
    kill_process(victim, Signal::KILL).expect("it runs");
    assert!(
        eventually(|| {
            let mut client = server.client().with_patience(Duration::from_secs(5));
            client.send("GET /metrics HTTP/1.1\r\nHost: petrel.test\r\n\r\n");
            let response = client.try_response().map(|response| response.text());
            response.is_ok_and(|text| value(&text, OF_FILES) >= Some(4.0))
        }),
        "{}",
        server.log()
    );
}

#[test]
fn many_scrapers_get_one_page() {
    let backend = backend();
    let server = site(&backend).start();
    ask(&server);
    let pages: Vec<String> = thread::scope(|scope| {
        let scrapers = (0..100).map(|_| scope.spawn(|| metrics(&server)));
        let scrapers: Vec<_> = scrapers.collect();
        let join = |scraper: thread::ScopedJoinHandle<'_, String>| scraper.join();
        scrapers
            .into_iter()
            .map(|scraper| join(scraper).expect("it has a page"))
            .collect()
    });
    let different: HashSet<&String> = pages.iter().collect();
    assert!(different.len() < 20, "{} pages", different.len());
}

#[test]
fn a_proxy_on_this_machine_opens_nothing() {
    let backend = backend();
    let server = site(&backend).start();
    let front = Server::build()
        .config(&format!(
            "server.modules += ( \"mod_proxy\" )\n\
             proxy.server = ( \"\" => (( \"host\" => \"127.0.0.1\", \"port\" => {} )) )",
            server.port()
        ))
        .start();
    assert_eq!(server.get("/metrics").status, 200);
    assert_eq!(front.get("/").status, 200);
    assert_eq!(front.get("/metrics").status, 403);
    assert_eq!(front.get("/metrics?json").status, 403);
}

/// The log keeps the status that was sent, and everything tells that the rest was not.
#[test]
fn an_answer_that_its_client_breaks_off_is_aborted_everywhere() {
    let server = Server::build()
        .file("www/big.bin", vec![b'x'; 32 << 20])
        .config(
            "server.modules += ( \"mod_status\", \"mod_accesslog\" )\n\
             status.metrics-url = \"/metrics\"\n\
             accesslog.filename = var.dir + \"/access.log\"\naccesslog.format = \"%s %X %U?%q\"\n\
             server.feature-flags += ( \"server.h2c\" => \"enable\" )",
        )
        .start();
    let http1 = |name: &str| {
        let mut client = server.client();
        client.send(format!("GET /big.bin?{name} HTTP/1.1\r\nHost: a\r\n\r\n"));
        client.read_bytes(10_000);
        client
    };
    drop(http1("closed"));
    http1("reset").abort();
    let head = block(&[
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "a"),
        (":path", "/big.bin?stream"),
    ]);
    let mut client = server.client();
    client.send([PREFACE, &frame(SETTINGS, 0, 0, b"")].concat());
    client.send(frame(HEADERS, END_STREAM | END_HEADERS, 1, &head));
    client.read_bytes(10_000);
    client.send(frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]));

    let log = || server.tree().text("access.log");
    for name in ["closed", "reset", "stream"] {
        let line = format!("200 X /big.bin?{name}\n");
        assert!(eventually(|| log().contains(&line)), "{name}: {}", log());
    }
    let of_files = "petrel_request_duration_seconds_count{route=\"mod_staticfile\",code=";
    let text = metrics(&server);
    assert_eq!(
        value(&text, &format!("{of_files}\"aborted\"}}")),
        Some(3.0),
        "{text}"
    );
    assert_eq!(
        value(&text, &format!("{of_files}\"2xx\"}}")),
        None,
        "{text}"
    );
    let status = server.get("/metrics?json").text();
    assert!(status.contains("\"aborted\":3}"), "{status}");
    let mut why = Command::new(petrel());
    why.arg("why")
        .arg("-f")
        .arg(server.tree().path("petrel.conf"));
    let listed = run(&mut why, PATIENCE).text();
    let lines = listed.lines().filter(|line| line.contains("/big.bin "));
    let lines: Vec<&str> = lines.collect();
    assert_eq!(lines.len(), 3, "{listed}");
    assert!(
        lines.iter().all(|line| line.contains(" aborted client=")),
        "{listed}"
    );
}

/// It takes so long because the server gets three seconds to count, and Python makes a large example.
#[test]
fn the_example_of_the_json_has_the_shape_of_the_real_one() {
    let test = "the_example_of_the_json_has_the_shape_of_the_real_one";
    if !is_installed("python3") {
        return skip(test, "python3 is not installed");
    }
    let backend = backend();
    let server = site(&backend).start();
    ask(&server);
    thread::sleep(Duration::from_secs(3));
    let response = server.get("/metrics?json");
    assert_eq!(response.field("Content-Type"), Some("application/json"));
    server.tree().write("real.json", &response.body);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/status_json.py");
    let example = run(Command::new("python3").arg(script), 5 * PATIENCE);
    assert_eq!(example.code(), 0, "{}", example.errors);
    server.tree().write("example.json", &example.output);
    server.tree().write("compare.py", COMPARE);
    let mut compare = Command::new("python3");
    compare.current_dir(server.tree().root()).arg("compare.py");
    let compared = run(&mut compare, PATIENCE);
    assert_eq!(compared.code(), 0, "{}{}", compared.text(), compared.errors);
}

/// Compares names and types of fields. Objects whose names are data have values of one type.
const COMPARE: &str = r#"
import json

DATA = {"stage_us", "counters", "pages", "hog"}
wrong = []


def compare(example, real, path):
    if example is None or real is None:
        return
    if type(example) is not type(real):
        wrong.append(f"{path}: {type(example).__name__} and {type(real).__name__}")
    elif isinstance(example, dict) and path.split(".")[-1] in DATA:
        pass
    elif isinstance(example, dict):
        if list(example) != list(real):
            wrong.append(f"{path}: {sorted(set(example) ^ set(real))} or their order")
        for name in set(example) & set(real):
            compare(example[name], real[name], f"{path}.{name}")
    elif isinstance(example, list):
        for one in real[:50]:
            if example:
                compare(example[0], one, f"{path}[]")


example, real = json.load(open("example.json")), json.load(open("real.json"))
compare(example, real, "")
assert example["stages"] and len(example["stages"]) == len(real["stages"])
assert [one["name"] for one in example["stages"]] == [one["name"] for one in real["stages"]]
assert example["latency_bounds_us"] == real["latency_bounds_us"]
seconds = real["seconds"]
lengths = {len(values) for values in seconds.values() if isinstance(values, list)}
assert len(lengths) == 1 and lengths.pop() > 0, seconds
assert sum(seconds["requests"]) >= 5, seconds
assert abs(seconds["first_s"] - real["server"]["now_ms"] // 1000) < 60
assert [backend["label"] for backend in real["backends"]], real["backends"]
assert not wrong, "\n".join(wrong)
"#;

/// The directory with the programs of Prometheus.
fn programs() -> Result<PathBuf, String> {
    Ok(package("prometheus")?.join("usr/bin"))
}

/// What promtool says about `text`, in the older format.
fn check(promtool: &Path, text: &str) -> (i32, String) {
    let mut child = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool starts");
    let mut stdin = child.stdin.take().expect("it is a pipe");
    stdin.write_all(text.as_bytes()).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().unwrap_or(-1), said)
}

#[test]
fn promtool_finds_nothing_wrong() {
    let programs = match programs() {
        Ok(programs) => programs,
        Err(why) => return skip("promtool_finds_nothing_wrong", &why),
    };
    let backend = backend();
    let server = site(&backend).start();
    ask(&server);
    let text = metrics(&server);
    assert_eq!(
        check(&programs.join("promtool"), &text),
        (0, String::new()),
        "{text}"
    );
    let (code, _) = check(&programs.join("promtool"), "petrel_bytes 1\n");
    assert_ne!(code, 0, "it finds what is wrong");
}

/// A running Prometheus.
struct Prometheus(Child);

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// It takes so long because Prometheus starts, and asks the server once a second.
#[test]
fn prometheus_scrapes_both_formats_and_keeps_exemplars() {
    let test = "prometheus_scrapes_both_formats_and_keeps_exemplars";
    let programs = match programs() {
        Ok(programs) => programs,
        Err(why) => return skip(test, &why),
    };
    let backend = backend();
    let server = site(&backend).start();
    ask(&server);
    let mut client = server.client();
    let open = client.request("GET", "/metrics", &[OPEN_METRICS]).text();
    assert!(
        open.contains(" # {request_id=\"") && open.ends_with("\n# EOF\n"),
        "{open}"
    );
    server.tree().write(
        "prometheus.yml",
        format!(
            "global:\n  scrape_interval: 1s\nscrape_configs:\n  - job_name: petrel\n    \
             static_configs:\n      - targets: [\"127.0.0.1:{}\"]\n",
            server.port()
        ),
    );
    let port = free_port();
    let prometheus = Command::new(programs.join("prometheus"))
        .current_dir(server.tree().root())
        .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .args(["--enable-feature=exemplar-storage", "--log.level=warn"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("prometheus starts");
    let _prometheus = Prometheus(prometheus);
    let ask = |path: &str| {
        let url = format!("http://127.0.0.1:{port}/api/v1/{path}");
        curl(&["-s", "-g", "-m", "5", &url]).text()
    };
    let is_scraped = || ask("query?query=up").contains(",\"1\"]");
    assert!(
        eventually(is_scraped),
        "{}\n{}",
        ask("targets"),
        server.log()
    );
    let query =
        "query?query=petrel_request_duration_seconds_count{route=\"mod_staticfile\",code=\"2xx\"}";
    let query = query
        .replace('{', "%7B")
        .replace('}', "%7D")
        .replace('"', "%22");
    assert!(
        eventually(|| ask(&query).contains(",\"2\"]")),
        "{}",
        ask(&query)
    );
    let exemplars =
        "query_exemplars?query=petrel_request_duration_seconds_bucket&start=0&end=9999999999";
    assert!(
        eventually(|| ask(exemplars).contains("request_id")),
        "{}",
        ask(exemplars)
    );
    // All that is in the text is known as what it is.
    let metadata = ask("metadata");
    for (name, kind) in [
        ("petrel_stage_duration_seconds", "histogram"),
        ("petrel_sent_bytes", "counter"),
        ("petrel_pool_connections", "gauge"),
    ] {
        let known = format!("\"{name}\":[{{\"type\":\"{kind}\"");
        assert!(metadata.contains(&known), "{known} in {metadata}");
    }
}
