use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use petrel_engine::exchange::Peer;
use petrel_engine::testing::Site;

use super::*;
use crate::extforward;

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A site whose only trusted proxy is 192.0.2.1. Its collector is not there.
fn site(config: &str) -> Site {
    let text = format!(
        "server.document-root = \"/nonexistent\"\notel.endpoint = \"http://127.0.0.1:1\"\n\
         extforward.forwarder = (\"192.0.2.1\" => \"trust\")\n{config}"
    );
    Site::new(&text, &[&extforward::MODULE, &MODULE])
}

fn from(site: &mut Site, address: [u8; 4]) {
    let mut connection = site.connection();
    connection.peer = Peer::Ip(SocketAddr::from((Ipv4Addr::from(address), 1)));
    site.set_connection(connection);
}

/// The trace of a request with these fields, and the `traceparent` and `tracestate` that a backend would get.
fn traced(site: &Site, fields: &str) -> (Rc<RequestTrace>, String, Option<String>) {
    let answer = site.request(&format!(
        "GET /a?secret HTTP/1.1\r\nHost: h\r\n{fields}\r\n"
    ));
    let exchange = answer.exchange();
    let head = &exchange.request.head;
    let field = |name| {
        let mut values = head
            .fields_named(name)
            .map(|value| String::from_utf8_lossy(value).into_owned());
        let first = values.next();
        assert!(values.next().is_none(), "{name} is there twice");
        first
    };
    let trace = RequestTrace::of(exchange).expect("it is traced");
    (
        trace,
        field(TRACEPARENT).expect("it is there"),
        field(TRACESTATE),
    )
}

#[test]
fn a_trusted_proxy_names_the_trace() {
    let mut site = site("");
    from(&mut site, [192, 0, 2, 1]);
    for named in ["", "X-Forwarded-For: 198.51.100.7\r\n"] {
        let fields =
            format!("{named}traceparent: {PARENT}\r\ntracestate: a=1\r\nTraceState: b=2\r\n");
        let (trace, parent, state) = traced(&site, &fields);
        assert_eq!(trace.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!(trace.parent_id, 0x00f0_67aa_0ba9_02b7);
        let expected = format!(
            "00-4bf92f3577b34da6a3ce929d0e0e4736-{:016x}-01",
            trace.span_id
        );
        assert_eq!(parent, expected);
        assert_eq!(state.as_deref(), Some("a=1,b=2"));
    }
}

#[test]
fn other_clients_name_none() {
    let mut site = site("");
    from(&mut site, [198, 51, 100, 7]);
    let fields = format!("traceparent: {PARENT}\r\ntracestate: a=1\r\n");
    let (trace, parent, state) = traced(&site, &fields);
    assert_eq!(trace.parent_id, 0);
    assert!(
        !parent.contains("4bf92f3577b34da6a3ce929d0e0e4736"),
        "{parent}"
    );
    assert_eq!(state, None);
}

#[test]
fn what_lies_is_replaced() {
    let mut site = site("");
    from(&mut site, [192, 0, 2, 1]);
    let zero = PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32));
    for fields in [
        format!("traceparent: {PARENT}\r\nTraceparent: {PARENT}\r\ntracestate: a=1\r\n"),
        format!("traceparent: {zero}\r\ntracestate: a=1\r\n"),
        format!("traceparent: {}\r\n", PARENT.to_uppercase()),
        format!("traceparent: ff{}\r\n", &PARENT[2..]),
        "traceparent:\r\n".to_owned(),
        "tracestate: a=1\r\n".to_owned(),
    ] {
        let (trace, parent, state) = traced(&site, &fields);
        assert_eq!((trace.parent_id, state), (0, None), "{fields}");
        let sent = TraceParent::parse(parent.as_bytes()).expect("sound");
        assert_eq!(
            (sent.trace_id, sent.span_id),
            (trace.trace_id, trace.span_id)
        );
    }
    let large = format!(
        "traceparent: {PARENT}\r\ntracestate: {}\r\n",
        "a=1,".repeat(40)
    );
    let (trace, _, state) = traced(&site, &large);
    assert_eq!((trace.parent_id != 0, state), (true, None));
}

#[test]
fn the_sender_or_chance_chooses() {
    let mut site = site("otel.sample-rate = \"0\"");
    from(&mut site, [192, 0, 2, 1]);
    assert!(!traced(&site, "").0.is_sampled);
    assert!(
        traced(&site, &format!("traceparent: {PARENT}\r\n"))
            .0
            .is_sampled
    );
    let mut site = self::site("");
    from(&mut site, [192, 0, 2, 1]);
    assert!(traced(&site, "").0.is_sampled);
    let unsampled = PARENT.replace("-01", "-00");
    let (trace, parent, _) = traced(&site, &format!("traceparent: {unsampled}\r\n"));
    assert!(!trace.is_sampled && parent.ends_with("-00"));
    let half = Sampling::of_rate("0.5");
    let ids = SpanIds::new();
    let chosen = (0..10_000).filter(|_| half.chooses(ids.next())).count();
    assert!((4_700..5_300).contains(&chosen), "{chosen}");
}

impl Sampling {
    fn of_rate(rate: &str) -> Sampling {
        let rate: f64 = rate.parse().expect("a number");
        Sampling {
            below: (rate * 2_f64.powi(64)) as u64,
            always_errors: false,
            always_slower_than: u64::MAX,
        }
    }
}

#[test]
fn without_an_endpoint_nothing_is_traced() {
    let site = Site::new("server.document-root = \"/nonexistent\"", &[&MODULE]);
    let answer = site.request(&format!(
        "GET / HTTP/1.1\r\nHost: h\r\ntraceparent: {PARENT}\r\n\r\n"
    ));
    let exchange = answer.exchange();
    assert!(RequestTrace::of(exchange).is_none());
    assert_eq!(
        exchange.request.head.value_of(TRACEPARENT),
        Some(PARENT.as_bytes())
    );
}

#[test]
fn wrong_values_are_refused_and_secrets_not_shown() {
    for (text, expected) in [
        ("otel.endpoint = \"localhost:4318\"", "URL"),
        ("otel.sample-rate = \"2\"", "0 to 1"),
        ("otel.sample-rate = \"NaN\"", "0 to 1"),
        ("otel.headers = (\"a b\" => \"s3cret\")", "no field"),
        ("otel.headers = (\"a\" => \"s3cret\\r\\nb: c\")", "no field"),
    ] {
        let text = text.replace("\\r\\n", "\r\n");
        let message = Site::try_new(&text, &[&MODULE]).err().expect("a refusal");
        assert!(message.contains(expected), "{message}");
    }
}

/// One request to a collector.
fn accept(collector: &TcpListener, answer: &str) -> String {
    let (mut stream, _) = collector.accept().expect("a connection");
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .expect("set");
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let shown = String::from_utf8_lossy(&text).into_owned();
        if let Some((head, body)) = shown.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("Content-Length: "));
            if body.len() >= length.expect("a length").parse().expect("a number") {
                break;
            }
        }
        let count = stream.read(&mut buffer).expect("more");
        assert!(count > 0, "{shown}");
        text.extend_from_slice(&buffer[..count]);
    }
    stream.write_all(answer.as_bytes()).expect("sent");
    String::from_utf8(text).expect("UTF-8")
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

#[test]
fn spans_are_sent_in_batches_and_again_if_the_collector_was_busy() {
    let collector = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = collector.local_addr().expect("bound");
    let text = format!(
        "server.document-root = \"/nonexistent\"\notel.endpoint = \"http://{address}\"\n\
         otel.service-name = \"shop\"\notel.headers = (\"X-Key\" => \"k\")\n"
    );
    let site = Site::new(&text, &[&MODULE]);
    for _ in 0..3 {
        assert_eq!(site.get("/a?secret").status(), 404);
    }
    let busy = "HTTP/1.1 503 Busy\r\nRetry-After: 0\r\n\r\n";
    let first = accept(&collector, busy);
    assert!(first.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{first}");
    assert!(
        first.contains("\r\nX-Key: k\r\n") && first.contains("\"stringValue\":\"shop\""),
        "{first}"
    );
    assert!(!first.contains("secret"), "{first}");
    assert_eq!(first.matches("\"spanId\"").count(), 3);
    assert_eq!(accept(&collector, OK), first);
    let exporter = exporter(site.worker().shared());
    exporter.finish(Duration::from_secs(30));
    assert_eq!((exporter.spans_sent(), exporter.spans_dropped()), (3, 0));
}

#[test]
fn a_full_queue_drops_spans_and_no_request_waits() {
    // It accepts connections and answers nothing.
    let collector = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = collector.local_addr().expect("bound");
    let text =
        format!("server.document-root = \"/nonexistent\"\notel.endpoint = \"http://{address}\"\n");
    let site = Site::new(&text, &[&MODULE]);
    for _ in 0..6_000 {
        site.get("/");
    }
    let dropped = exporter(site.worker().shared()).spans_dropped();
    assert!((1..6_000).contains(&dropped), "{dropped}");
}

#[test]
fn errors_and_slow_requests_are_sent_if_that_is_configured() {
    let site = site(
        "otel.sample-rate = \"0\"\notel.always-errors = \"enable\"\notel.always-slower-than = 100000\n",
    );
    let mut answer = site.get("/");
    let sampling = Sampling {
        always_errors: true,
        always_slower_than: 100_000_000_000,
        ..Sampling::of_rate("0")
    };
    let exchange = answer.exchange_mut();
    assert!(!sampling.wants(exchange));
    let start = exchange.ledger.started();
    exchange
        .ledger
        .stamp(petrel_engine::ledger::Stage::Lua, start + 110_000_000_000);
    assert!(sampling.wants(exchange));
    exchange.ledger.start(start);
    exchange.response.status = petrel_engine::proto::status::Status::BAD_GATEWAY;
    assert!(sampling.wants(exchange));
}
