//! What php-fpm says of itself (`status-path`), with pretend ones that answer nonsense.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use petrel_tests::{Backend, Exchange, Server, Speaks, eventually};
use serde_json::Value;

use crate::gateway::OPTIONS;

const PATH: &str = "/fpm-status";

const PAGE: &str = r#"{"pool":"www","process manager":"static","listen queue":0,"max listen queue":0,
    "max children reached":1,"processes":[
    {"pid":11,"state":"Running","request duration":1500000,"request uri":"\/slow.php?token=secret",
     "script":"\/srv\/slow.php","last request memory":2097152},
    {"pid":12,"state":"Idle","request duration":9,"request uri":"\/fpm-status?json&full",
     "script":"-","last request memory":4194304}]}"#;

/// How a pretend php-fpm answers the question for its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    Page,
    NotFound,
    Html,
    TenMegabytes,
    Nothing,
}

/// A pretend php-fpm.
struct Fpm {
    backend: Backend,
    /// How it answers from now on.
    answers: Arc<Mutex<Answers>>,
    /// How often it was asked.
    questions: Arc<AtomicUsize>,
    /// Whether `/app/slow` is answered.
    is_released: Arc<AtomicBool>,
}

impl Fpm {
    fn start() -> Fpm {
        let answers = Arc::new(Mutex::new(Answers::Page));
        let questions = Arc::<AtomicUsize>::default();
        let is_released = Arc::<AtomicBool>::default();
        let (rule, count) = (Arc::clone(&answers), Arc::clone(&questions));
        let released = Arc::clone(&is_released);
        let backend = Backend::start(Speaks::FastCgi, move |exchange| match exchange.target() {
            PATH => {
                count.fetch_add(1, Ordering::SeqCst);
                let rule = *rule.lock().expect("no test has failed");
                status(exchange, rule);
            }
            "/app/slow" => {
                while !released.load(Ordering::SeqCst) {
                    exchange.pause(Duration::from_millis(5));
                }
                exchange.say("slow");
            }
            _ => exchange.say("from a script"),
        });
        Fpm {
            backend,
            answers,
            questions,
            is_released,
        }
    }

    fn answer(&self, answers: Answers) {
        *self.answers.lock().expect("no test has failed") = answers;
    }

    fn questions(&self) -> usize {
        self.questions.load(Ordering::SeqCst)
    }
}

fn status(exchange: &mut Exchange<'_>, answers: Answers) {
    assert_eq!(exchange.param("SCRIPT_NAME"), PATH);
    assert_eq!(exchange.param("QUERY_STRING"), "json&full");
    let json = [("Content-Type", "application/json")];
    match answers {
        Answers::Page => exchange.answer(200, &json, PAGE),
        Answers::NotFound => exchange.answer(404, &[], "File not found.\n"),
        Answers::Html => exchange.say("<html><body>hello</body></html>"),
        Answers::TenMegabytes => exchange.answer(200, &json, vec![b' '; 10 << 20]),
        Answers::Nothing => {
            exchange.hang();
        }
    }
}

fn server(fpm: &Fpm, options: &str) -> Server {
    let options = format!("\"status-path\" => \"{PATH}\", {options}{OPTIONS}");
    let server = Server::build()
        .config("server.max-worker = 1\nserver.modules += ( \"mod_status\" )")
        .config("status.metrics-url = \"/metrics\"\nstatus.status-url = \"/status\"")
        .config(&fpm.backend.directive("/app", &options))
        .start();
    // A backend is known from its first request on.
    assert_eq!(server.get("/app/").text(), "from a script");
    server
}

/// `fpm` of the backend, as the JSON has it.
fn seen(server: &Server) -> Value {
    let json: Value = serde_json::from_slice(&server.get("/metrics?json").body).expect("JSON");
    json["backends"][0]["fpm"].clone()
}

fn expect(server: &Server, what: &str, is_so: impl Fn(&Value) -> bool) {
    assert!(
        eventually(|| is_so(&seen(server))),
        "{what}: {}",
        seen(server)
    );
}

#[test]
fn the_children_of_php_fpm_are_shown_in_every_form() {
    let fpm = Fpm::start();
    let server = server(&fpm, "");
    expect(&server, "a page", |fpm| fpm["pool"]["working"] == 1);
    let now = seen(&server);
    assert_eq!(now["path"], PATH);
    assert_eq!(now["error"], Value::Null);
    let pool = &now["pool"];
    assert_eq!((&pool["children"], &pool["idle"]), (&2.into(), &1.into()));
    assert_eq!(pool["memory_mean_bytes"], 2_097_152);
    let script = serde_json::json!(
        [{"pid": 11, "uri": "/slow.php", "script": "/srv/slow.php", "age_us": 1_500_000}]
    );
    assert_eq!(pool["scripts"], script);
    let page = server.get("/status").text();
    for text in [
        "php-fpm www (static): 1 of 2 children busy, listen queue 0, max children reached 1×",
        "<bdi>/slow.php</bdi>",
    ] {
        assert!(page.contains(text), "{text}\n{page}");
    }
    assert!(!page.contains("secret"), "{page}");
    let metrics = server.get("/metrics").text();
    let sample = |name: &str, state: &str| {
        let begin = format!(
            "{name}{{backend=\"{0}\",address=\"{0}\"{state}}} ",
            fpm.backend.name()
        );
        let line = metrics.lines().find_map(|line| line.strip_prefix(&begin));
        line.unwrap_or_else(|| panic!("{begin}\n{metrics}"))
            .to_owned()
    };
    assert_eq!(sample("petrel_fpm_children", ",state=\"working\""), "1");
    assert_eq!(sample("petrel_fpm_children", ",state=\"idle\""), "1");
    assert_eq!(sample("petrel_fpm_max_children_reached_total", ""), "1");
}

#[test]
fn nonsense_is_an_error_and_no_request_notices() {
    let fpm = Fpm::start();
    let server = server(&fpm, "");
    for (rule, why) in [
        (Answers::NotFound, "it answers 404"),
        (Answers::Html, "not the status of php-fpm as JSON"),
        (Answers::TenMegabytes, "more than 1048576 bytes"),
        (Answers::Nothing, "it did not answer within 2 s"),
    ] {
        fpm.answer(rule);
        expect(&server, why, |fpm| {
            fpm["error"]
                .as_str()
                .is_some_and(|error| error.contains(why))
        });
        assert_eq!(seen(&server)["pool"], Value::Null);
        // The second failure in a row is told.
        let is_told = || !seen(&server).is_null() && server.log().contains("it answers 404");
        assert!(eventually(is_told), "{}", server.log());
        assert_eq!(server.get("/app/").text(), "from a script");
    }
    fpm.answer(Answers::Page);
    expect(&server, "it is back", |fpm| fpm["pool"]["working"] == 1);
    server.expect_log("the status /fpm-status of backend unix:");
    server.expect_log("can be read again");
    let log = server.log();
    assert_eq!(
        log.matches("cannot be read: it answers 404").count(),
        1,
        "{log}"
    );
    assert!(log.contains("needs pm.status_path = /fpm-status"), "{log}");
    assert_eq!(log.matches("cannot be read").count(), 1, "{log}");
    assert_eq!(log.matches("can be read again").count(), 1, "{log}");
}

/// It takes so long because it waits twice until php-fpm has not been asked for more than two seconds.
#[test]
fn php_fpm_is_asked_only_while_a_reader_looks() {
    let fpm = Fpm::start();
    let server = server(&fpm, "");
    let is_left_alone = || {
        eventually(|| {
            let before = fpm.questions();
            thread::sleep(Duration::from_millis(2500));
            fpm.questions() == before
        })
    };
    // On a slow machine the first request may have waited for a process.
    assert!(is_left_alone());
    let before = fpm.questions();
    // The first page may show what was asked before.
    expect(&server, "a page", |shown| {
        shown["pool"]["working"] == 1 && fpm.questions() > before
    });
    assert!(is_left_alone());
}

#[test]
fn php_fpm_is_asked_while_requests_wait_and_the_advice_counts_them() {
    let fpm = Fpm::start();
    let server = server(&fpm, "\"max-connections\" => 1, ");
    let (mut slow, mut waits) = (server.client(), server.client());
    slow.send("GET /app/slow HTTP/1.1\r\nHost: a\r\n\r\n");
    fpm.backend.expect_requests(2);
    waits.send("GET /app/ HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(eventually(|| fpm.questions() > 0), "a request waits");
    fpm.is_released.store(true, Ordering::SeqCst);
    assert_eq!(slow.response().text(), "slow");
    assert_eq!(waits.response().text(), "from a script");
    expect(&server, "advice", |fpm| {
        let advice = fpm["advice"].as_str().unwrap_or_default();
        // On a slow machine the first request may have waited, too.
        advice.contains(" waited ")
            && advice.contains(" in the last minute for 2 children; memory ")
    });
}

/// php-fpm makes its slow log for root alone, and the server is another user.
#[test]
fn a_check_tells_slow_logs_that_the_server_cannot_read() {
    let check = |path: &str, mode: u32| {
        let server = Server::build().tree(|tree| {
            tree.write("slow.log", "").mode("slow.log", mode);
            tree.mode("", 0o755);
        });
        let user = match rustix::process::geteuid().is_root() {
            true => "server.username = \"nobody\"\nserver.groupname = \"nogroup\"\n",
            false => "",
        };
        let config = format!(
            "{user}server.modules += ( \"mod_fastcgi\" )\nfastcgi.server = ( \"/\" => (( \"host\" => \
             \"127.0.0.1\", \"port\" => 9, \"status-path\" => \"{PATH}\", \"slowlog\" => {path} )) )"
        );
        let checked = server.config(&config).check(&["-tt"]);
        assert!(checked.status.success(), "{checked:?}");
        checked.errors
    };
    let told = "the server cannot read php-fpm's slow log ";
    let own = "var.dir + \"/slow.log\"";
    assert!(!check(own, 0o644).contains(told));
    for (path, mode, why) in [
        (own, 0o000, "Permission denied"),
        ("\"/nonexistent/slow.log\"", 0o644, "No such file"),
        ("\"/dev/null\"", 0o644, "it is no regular file"),
    ] {
        let errors = check(path, mode);
        let line = errors.lines().find(|line| line.contains(told));
        assert!(line.is_some_and(|line| line.contains(why)), "{errors}");
    }
}
