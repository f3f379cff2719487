//! mod_limit: limits on the requests of one address or other key, across all workers.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use petrel_tests::http2::Http2Client;
use petrel_tests::{Builder, Client, SOON, Server, curl, eventually};
use rustix::process::Signal;

/// Larger than the buffers of a connection, so that its request stays open until the client reads.
const BIG: usize = 32 << 20;

fn with_rules(rules: &str) -> Builder {
    Server::build()
        .file("www/index.html", "hello")
        .file("www/big", vec![b'x'; BIG])
        .config(&format!(
            "server.modules += ( \"mod_limit\", \"mod_status\" )
server.h2c = \"enable\"
status.statistics-url = \"/counters\"
$HTTP[\"url\"] != \"/counters\" {{ limit.rules = ( {rules} ) }}"
        ))
}

/// Sends requests, each on a new connection and so to all workers. Returns how many got each status.
fn served(server: &Server, requests: usize) -> (usize, usize) {
    let statuses: Vec<u16> = (0..requests).map(|_| server.get("/").status).collect();
    let count = |wanted| statuses.iter().filter(|status| **status == wanted).count();
    (count(200), count(429))
}

fn counter(server: &Server, name: &str) -> u64 {
    let counters = server.get("/counters").text();
    let line = counters.lines().find_map(|line| line.strip_prefix(name));
    let count = line.and_then(|rest| rest.strip_prefix(": ")?.parse().ok());
    count.unwrap_or_else(|| panic!("no {name} in {counters}"))
}

#[test]
fn all_workers_count_the_requests_of_an_address() {
    let server = with_rules("\"few\" => ( \"rate\" => \"7/d\" )").start();
    assert_eq!(served(&server, 40), (7, 33));
    let refused = server.get("/");
    let retry_s: u64 = refused
        .field("Retry-After")
        .and_then(|text| text.parse().ok())
        .expect("seconds");
    assert!((12_000..=12_343).contains(&retry_s), "{retry_s}");
    assert!(
        refused.text().contains("429 Too Many Requests"),
        "{refused:?}"
    );
    let mut other = Client::connect_from([127, 0, 0, 2].into(), server.address());
    assert_eq!(other.get("/").status, 200);
    // A persistent connection stays usable.
    for _ in 0..6 {
        assert_eq!(other.get("/").status, 200);
    }
    assert_eq!(
        (other.get("/").status, other.get("/counters").status),
        (429, 200)
    );
    let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("it listens");
    assert_eq!(Http2Client::begin(stream, "http").get("/", 5).ok, 0);
    assert_eq!(counter(&server, "limit.few.refused-rate"), 33 + 1 + 1 + 5);
    assert_eq!(counter(&server, "limit.few.keys-forgotten"), 0);
    server.expect_log("(translate) answered 429: limit.rules: \"few\" allows 7/d with a burst of 7 for each key key=127.0.0.1/32 client=127.0.0.1");
    let lines = server.log().matches("key=127").count();
    assert!(
        (1..20).contains(&lines),
        "one line a second and not {lines}"
    );
}

#[test]
fn requests_that_are_refused_because_of_their_heads_count_for_the_client() {
    let rules = "\"all\" => ( \"rate\" => \"4/d\" ), \"host\" => ( \"key\" => \"header:Host\", \"rate\" => \"1/d\" )";
    let server = Server::build()
        .file("www/index.html", "hello")
        .config(&format!(
            "server.modules += ( \"mod_limit\" )
server.h2c = \"enable\"
limit.rules = ( {rules} )"
        ))
        .start();
    let heads = [
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n",
    ];
    let statuses = heads.map(|head| server.exchange(head).status);
    assert_eq!(statuses, [400, 400]);
    let over_http2 = |path: &str| {
        let url = format!("http://127.0.0.1:{}{path}", server.port());
        let options = ["--http2-prior-knowledge", "--path-as-is", "--write-out"];
        curl(
            &[
                &options[..],
                &["%{http_code} ", "--output", "/dev/null", &url],
            ]
            .concat(),
        )
        .text()
    };
    assert_eq!(over_http2("/%00"), "400 ");
    assert_eq!(over_http2("/"), "200 ");
    assert_eq!(over_http2("/%00"), "429 ");
    let statuses = heads.map(|head| server.exchange(head).status);
    assert_eq!(statuses, [429, 429]);
    assert_eq!(server.get("/").status, 429);
    let mut other = Client::connect_from([127, 0, 0, 2].into(), server.address());
    assert_eq!(other.get("/%00").status, 400);
}

#[test]
fn streams_of_http2_count_each() {
    let server = with_rules("\"few\" => ( \"rate\" => \"7/d\" )").start();
    let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("it listens");
    assert_eq!(Http2Client::begin(stream, "http").get("/", 20).ok, 7);
}

#[test]
fn all_connections_and_streams_of_a_client_share_its_bandwidth() {
    const BYTES: usize = 32 << 10;
    let server = Server::build()
        .file("www/part", vec![b'x'; BYTES])
        .config(
            "server.modules += ( \"mod_limit\", \"mod_accesslog\" )
server.max-worker = 2
server.h2c = \"enable\"
accesslog.format = \"%a %{stages}x\"
accesslog.filename = var.dir + \"/access.log\"
limit.rules = ( \"slow\" => ( \"kbytes-per-second\" => 400 ) )",
        )
        .start();
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(server.get("/part").body.len(), BYTES));
        }
        scope.spawn(|| {
            let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("it listens");
            assert_eq!(Http2Client::begin(stream, "http").get("/part", 4).ok, 4);
        });
    });
    // 384 KiB, of which the client gets a quarter of a second's worth, 100 KiB, at once.
    let took = begin.elapsed();
    assert!(took > Duration::from_millis(700), "{took:?}");
    assert!(took < SOON, "{took:?}");
    let mut other = Client::connect_from([127, 0, 0, 2].into(), server.address());
    assert_eq!(other.get("/part").body.len(), BYTES);
    let log = server.tree().path("access.log");
    let line_of_other = || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("127.0.0.2 "));
        line.map(str::to_owned)
    };
    assert!(eventually(|| line_of_other().is_some()));
    let stages = line_of_other().unwrap_or_default();
    assert!(!stages.contains("throttle="), "{stages}");
}

#[test]
fn a_refusal_does_not_wait_for_the_bandwidth_of_a_rule_that_was_asked_before() {
    let server = Server::build()
        .file("www/index.html", "hello")
        .config(
            "server.modules += ( \"mod_limit\", \"mod_accesslog\" )
accesslog.format = \"%s %{stages}x\"
accesslog.filename = var.dir + \"/access.log\"
limit.rules = ( \"slow\" => ( \"kbytes-per-second\" => 1 ), \"few\" => ( \"rate\" => \"1/d\" ) )",
        )
        .start();
    assert_eq!(served(&server, 2), (1, 1));
    let log = server.tree().path("access.log");
    let read = || std::fs::read_to_string(&log).unwrap_or_default();
    let is_refused = || read().lines().any(|line| line.starts_with("429 "));
    assert!(eventually(is_refused), "{}", read());
    let log = read();
    let refusal = log.lines().find(|line| line.starts_with("429 "));
    assert!(!refusal.unwrap_or_default().contains("throttle="), "{log}");
}

#[test]
fn requests_under_way_are_limited() {
    let server = with_rules("\"two\" => ( \"concurrent\" => 2 )").start();
    let busy = || {
        let mut client = server.client().with_receive_buffer(32 * 1024);
        client.send("GET /big HTTP/1.1\r\nHost: petrel.test\r\n\r\n");
        assert_eq!(client.read_bytes(12), b"HTTP/1.1 200");
        client
    };
    let clients = [busy(), busy()];
    for _ in 0..4 {
        let refused = server.get("/");
        assert_eq!(
            (refused.status, refused.field("Retry-After")),
            (429, Some("1"))
        );
    }
    let mut other = Client::connect_from([127, 0, 0, 2].into(), server.address());
    assert_eq!(other.get("/").status, 200);
    assert_eq!(counter(&server, "limit.two.refused-concurrent"), 4);
    drop(clients);
    // Requests whose clients have left have ended, too, and idle connections do not count.
    assert!(eventually(|| server.get("/").status == 200));
    let mut idle: Vec<Client> = (0..5).map(|_| server.client()).collect();
    for client in &mut idle {
        assert!(eventually(|| client.get("/").status == 200));
    }
}

#[test]
fn a_reload_begins_anew() {
    let server = with_rules("\"few\" => ( \"rate\" => \"7/d\" )").start();
    assert_eq!(served(&server, 9), (7, 2));
    server.signal(Signal::USR1);
    assert!(eventually(|| server.get("/").status == 200));
}

#[test]
fn a_wrong_rule_is_shown_where_it_stands() {
    let finished = with_rules("\"few\" => ( \"rate\" => \"7 a day\" )").check(&["-t"]);
    assert_ne!(finished.code(), 0);
    for told in ["\"7 a day\" is no rate", "petrel.conf:"] {
        assert!(finished.errors.contains(told), "{}", finished.errors);
    }
}
