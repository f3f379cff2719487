//! Traces: what backends are told, and what a collector gets.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use petrel_tests::{Backend, Builder, Server, Speaks, directive, eventually};

use super::{KEY, OPTIONS};

/// A collector that takes everything.
fn collector() -> Backend {
    Backend::start_on_tcp(Speaks::Http, |exchange| {
        exchange.read_body();
        exchange.answer(200, &[("Content-Type", "application/json")], "{}");
    })
}

fn traced(collector: &Backend, config: &str) -> Builder {
    Server::build().file("www/a.txt", "a").config(&format!(
        "server.max-worker = 1\nserver.modules += (\"mod_extforward\", \"mod_opentelemetry\")\n\
         otel.endpoint = \"http://{}\"\n{config}",
        collector.name()
    ))
}

/// The spans that the collector has, as soon as there are `count`.
#[track_caller]
fn spans(collector: &Backend, count: usize) -> String {
    let bodies = || -> String {
        let requests = collector.requests();
        let bodies = requests
            .iter()
            .map(|record| String::from_utf8_lossy(&record.body));
        bodies.collect()
    };
    let has_come = eventually(|| bodies().matches("\"spanId\"").count() >= count);
    assert!(has_come, "{}", bodies());
    bodies()
}

/// The ids of a `traceparent`.
#[track_caller]
fn ids(parent: &str) -> (String, String) {
    let parts: Vec<_> = parent.split('-').collect();
    assert_eq!(parts.len(), 4, "{parent:?}");
    (parts[1].to_owned(), parts[2].to_owned())
}

/// It takes so long because each of five servers collects spans for a second before it sends them.
#[test]
fn backends_of_every_protocol_are_told_the_span_of_their_try() {
    for speaks in [
        Speaks::Http,
        Speaks::FastCgi,
        Speaks::Scgi,
        Speaks::Uwsgi,
        Speaks::Ajp13,
    ] {
        let collector = collector();
        let backend = Backend::start(speaks, |exchange| exchange.answer(200, &[], "x"));
        let server = traced(&collector, &backend.directive(KEY, OPTIONS)).start();
        let response = server.client().request(
            "GET",
            "/app?secret",
            &[(
                "traceparent",
                "00-11111111111111111111111111111111-2222222222222222-01",
            )],
        );
        assert_eq!(response.text(), "x", "{speaks:?}");
        let record = backend.last();
        let name = match speaks {
            Speaks::Http | Speaks::Ajp13 => "traceparent",
            _ => "HTTP_TRACEPARENT",
        };
        assert_eq!(record.all(name).len(), 1, "{speaks:?}: {:?}", record.params);
        let (trace, span) = ids(record.param(name).expect("it is told"));
        assert_ne!(trace, "1".repeat(32), "this client is no trusted proxy");
        let text = spans(&collector, 2);
        let shown = format!("{{\"traceId\":\"{trace}\",\"spanId\":\"{span}\",\"parentSpanId\":\"");
        assert!(text.contains(&shown), "{speaks:?} {span}: {text}");
        assert!(
            text.contains("petrel.stage_ns.backend-first-byte"),
            "{text}"
        );
        assert!(!text.contains("secret"), "{text}");
        assert_eq!(
            collector.last().param("content-type"),
            Some("application/json")
        );
    }
}

#[test]
fn cgi_programs_are_told_their_span() {
    let collector = collector();
    let server = traced(
        &collector,
        "server.modules += (\"mod_cgi\")\ncgi.assign = (\".sh\" => \"/bin/sh\")\n",
    )
    .file(
        "www/p.sh",
        "printf 'Content-Type: text/plain\\r\\n\\r\\n%s' \"$HTTP_TRACEPARENT\"\n",
    )
    .start();
    let told = server.get("/p.sh").text().to_owned();
    let (trace, span) = ids(&told);
    let text = spans(&collector, 2);
    let shown = format!("{{\"traceId\":\"{trace}\",\"spanId\":\"{span}\",\"parentSpanId\":\"");
    assert!(text.contains(&shown), "{told}: {text}");
}

#[test]
fn a_trace_of_a_trusted_proxy_goes_on() {
    let collector = collector();
    let backend = Backend::start(Speaks::FastCgi, |exchange| exchange.answer(200, &[], "x"));
    let config = format!(
        "extforward.forwarder = (\"127.0.0.1\" => \"trust\")\notel.sample-rate = \"0\"\n{}",
        backend.directive(KEY, OPTIONS)
    );
    let server = traced(&collector, &config).start();
    let trace = "1".repeat(32);
    for (flags, is_sent) in [("00", false), ("01", true)] {
        let parent = format!("00-{trace}-2222222222222222-{flags}");
        let fields = [
            ("X-Forwarded-For", "192.0.2.7"),
            ("traceparent", parent.as_str()),
            ("tracestate", "a=1"),
        ];
        server.client().request("GET", "/app", &fields);
        let record = backend.last();
        let told = record.param("HTTP_TRACEPARENT").expect("it is told");
        assert!(
            told.starts_with(&format!("00-{trace}-")) && told.ends_with(flags),
            "{told}"
        );
        assert_eq!(record.param("HTTP_TRACESTATE"), Some("a=1"));
        if is_sent {
            let text = spans(&collector, 2);
            assert!(
                text.contains("\"parentSpanId\":\"2222222222222222\""),
                "{text}"
            );
            assert!(text.contains("\"stringValue\":\"192.0.2.7\""), "{text}");
            assert_eq!(
                text.matches("\"spanId\"").count(),
                2,
                "the first was not chosen: {text}"
            );
        }
    }
}

#[test]
fn each_try_has_a_span_and_those_that_failed_say_why() {
    let collector = collector();
    let works = Backend::start(Speaks::Http, |exchange| exchange.answer(200, &[], "x"));
    let mut gone = Backend::start(Speaks::Http, |exchange| exchange.answer(200, &[], "y"));
    let config = directive(Speaks::Http, KEY, &[&gone, &works], OPTIONS);
    let server = traced(&collector, &config).start();
    gone.stop();
    // The balancer chooses the one that is gone for one of the two.
    for _ in 0..2 {
        assert_eq!(server.get("/app").text(), "x");
    }
    let text = spans(&collector, 5);
    assert_eq!(text.matches("\"kind\":3").count(), 3, "{text}");
    assert!(
        text.contains("\"status\":{\"code\":2,\"message\":\""),
        "{text}"
    );
    assert!(
        text.contains("\"http.request.resend_count\",\"value\":{\"intValue\":\"1\"}"),
        "{text}"
    );
    let (_, span) = ids(works.last().param("traceparent").expect("it is told"));
    assert!(text.contains(&span), "{text}");
}

#[test]
fn spans_that_are_queued_at_the_end_are_sent() {
    let collector = collector();
    let server = traced(&collector, "").start();
    assert_eq!(server.get("/a.txt").text(), "a");
    server.signal(Signal::INT);
    assert_eq!(spans(&collector, 1).matches("\"spanId\"").count(), 1);
}

/// It takes so long because the server pauses one, two, and four seconds before it tries the collector again.
#[test]
fn a_collector_that_is_away_is_told_once_and_holds_up_no_request() {
    let mut collector = collector();
    collector.stop();
    let server = traced(
        &collector,
        "server.modules += (\"mod_status\")\nstatus.statistics-url = \"/counters\"\n\
         otel.headers = (\"Authorization\" => \"s3cret\")\n",
    )
    .start();
    for _ in 0..10 {
        assert_eq!(server.get("/a.txt").text(), "a");
    }
    server.expect_log("does not take spans");
    let told = Instant::now();
    // 2048 requests wait for the collector. The spans of others are dropped, and the requests answered.
    for _ in 0..2_200 {
        assert_eq!(server.get("/a.txt").text(), "a");
    }
    let counters = server.get("/counters").text();
    let mut lines = counters.lines();
    let dropped = lines.find_map(|line| line.strip_prefix("otel.spans-dropped: "));
    let dropped: u64 = dropped.expect("a counter").parse().expect("a number");
    assert!((1..2_200).contains(&dropped), "{dropped}");
    // The second try follows the first one after a second, and the third one after two more.
    thread::sleep(Duration::from_millis(3_500).saturating_sub(told.elapsed()));
    let log = server.log();
    assert_eq!(log.matches("does not take spans").count(), 1, "{log}");
    assert!(!log.contains("s3cret"), "{log}");
    collector.restart();
    spans(&collector, 10);
    server.expect_log("takes spans again");
    assert_eq!(collector.last().param("authorization"), Some("s3cret"));
}
