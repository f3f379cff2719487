//! Warm requests allocate what the budget says, which mostly is nothing: counted, with the server in this process.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use petrel_tests::http2::{Batch, Http2Client};
use petrel_tests::{Authority, Backend, PATIENCE, Speaks, Tree};
use sys::counting_allocator::{allocations, by_others};

use crate::alone;
use crate::in_process::start;
use crate::routes::{BUDGETS, cases, write_files};

/// Requests of a round. They are few, so that most rounds fall between two seconds: once a second a worker does
/// maintenance, which allocates. So does the note of a request that had to wait because the machine was busy.
const REQUESTS: usize = 50;

/// How many rounds there are at most.
const ROUNDS: usize = 60;

/// HTTP/2 requests that are sent at once and answered at once.
const BATCH: usize = 10;

/// A file too large to be kept in memory is read for its frames. That allocates the reader, the buffer, and
/// the buffer's reference count.
const ALLOCATIONS_OF_READ_FILE: u64 = 3;

/// rustls allocates a buffer for each record that it decrypts or encrypts.
const ALLOCATIONS_OF_RECORD: u64 = 1;

/// The size of the file that is read. The server sends it in seven records.
const LARGER_BYTES: usize = 100_000;
const LARGER_RECORDS: u64 = LARGER_BYTES.div_ceil(16 * 1024) as u64;

/// Requests as browsers send them, for a page that varies by one of their fields.
const FIELDS: &str = "Host: petrel.test\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\n\
    Accept: text/html,application/xhtml+xml\r\nAccept-Language: de,en;q=0.5\r\n\
    Accept-Encoding: gzip, deflate, br\r\nCookie: a=1; theme=dark\r\nX-Forwarded-For: 192.0.2.1\r\n";

fn site(tree: &Tree, config: &str) -> (engine::server::Server, SocketAddr) {
    tree.write("index.html", "hello")
        .write("small.txt", "x".repeat(100))
        .write("larger.bin", vec![b'x'; LARGER_BYTES]);
    start(&format!(
        "server.document-root = \"{}\"\nserver.max-worker = 1\nserver.max-keep-alive-requests = 65535\n\
         index-file.names = (\"index.html\")\n\
         $HTTP[\"host\"] == \"other.test\" {{ server.tag = \"other\" }}\n\
         $HTTP[\"url\"] =~ \"\\.php$\" {{ server.tag = \"php\" }}\n{config}",
        tree.root().display()
    ))
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_nodelay(true).expect("a TCP socket");
    stream
}

#[test]
fn each_route_allocates_what_its_budget_says() {
    let _alone = alone();
    let tree = Tree::new();
    write_files(&tree);
    let mut buffer = vec![0; 256 * 1024];
    let mut wrong = Vec::new();
    for budget in BUDGETS {
        for case in cases(budget.route) {
            let (server, address) = start(&format!(
                "var.dir = \"{}\"\nserver.document-root = var.dir + \"/www\"\nserver.max-worker = 1\n\
                 server.max-keep-alive-requests = 65535\nindex-file.names = (\"index.html\")\n{}",
                tree.root().display(),
                case.config
            ));
            server.serve();
            let mut stream = connect(address);
            for target in case.targets {
                let (name, value) = case.field;
                let request = format!(
                    "GET {target} HTTP/1.1\r\nHost: petrel.test\r\n{name}: {value}\r\n\r\n"
                );
                // The first responses of a cache tell another age than later ones.
                for _ in 0..5 {
                    let status = ask_and_look(&mut stream, &request, &mut buffer).0;
                    assert_eq!(status, case.status, "{target}");
                }
                let counted = in_rounds(budget.allocations * REQUESTS as u64, || {
                    let warm = allocations();
                    for _ in 0..REQUESTS {
                        ask_and_look(&mut stream, &request, &mut buffer);
                    }
                    by_others(&warm, &allocations())
                });
                if let Err(counts) = counted {
                    wrong.push(format!(
                        "{} ({target}): {} a request are in the budget, {REQUESTS} made {counts:?}",
                        budget.name, budget.allocations
                    ));
                }
            }
            server.cut_off(engine::worker::Cut::StopNow);
            assert!(server.join(), "a worker panicked");
        }
    }
    assert!(
        wrong.is_empty(),
        "allocations (if there are less now, lower the figure in budget.rs):\n{}",
        wrong.join("\n")
    );
}

#[test]
fn a_warm_request_for_a_larger_file_allocates_nothing() {
    let _alone = alone();
    let tree = Tree::new();
    let (server, address) = site(&tree, "");
    server.serve();
    let before = allocations();
    let mut stream = connect(address);
    let mut buffer = vec![0; 256 * 1024];
    for target in ["/larger.bin"] {
        let request = format!("GET {target} HTTP/1.1\r\nHost: petrel.test\r\n\r\n");
        let length = ask_once(&mut stream, &request, &mut buffer);
        for _ in 0..3 {
            ask(&mut stream, &request, length, &mut buffer);
        }
        assert!(
            by_others(&before, &allocations()) > 0,
            "the counter does not count"
        );
        expect_in_a_round(0, target, || {
            let warm = allocations();
            for _ in 0..REQUESTS {
                ask(&mut stream, &request, length, &mut buffer);
            }
            by_others(&warm, &allocations())
        });
    }
    server.cut_off(engine::worker::Cut::StopNow);
    assert!(server.join(), "a worker panicked");
}

#[test]
fn a_hit_in_the_page_cache_allocates_nothing() {
    let _alone = alone();
    let backend = Backend::start(Speaks::FastCgi, |exchange| {
        let length = if exchange.target().ends_with("large") {
            100_000
        } else {
            500
        };
        let fields = [
            ("Cache-Control", "max-age=600, stale-while-revalidate=60"),
            ("Vary", "Accept-Encoding, Accept-Language"),
            ("ETag", "\"1\""),
        ];
        exchange.answer(200, &fields, vec![b'x'; length]);
    });
    let (server, address) = start(&format!(
        "server.document-root = \"/nonexistent\"\nserver.max-worker = 1\n\
         server.max-keep-alive-requests = 65535\n\
         server.modules = (\"mod_page_cache\", \"mod_fastcgi\")\n\
         page-cache.enable = \"enable\"\n\
         page-cache.key = (\"scheme\", \"host\", \"path\", \"query\", \"cookie:theme\")\n\
         page-cache.query-ignore = (\"utm_*\")\n\
         page-cache.bypass-cookies = (\"session\")\n{}",
        backend.directive("/app", "\"check-local\" => \"disable\"")
    ));
    server.serve();
    let mut stream = connect(address);
    for (method, target, more, expected) in [
        ("GET", "/app/a?x=1&utm_source=y", "", "200"),
        ("GET", "/app/large", "", "200"),
        ("HEAD", "/app/a?x=1", "", "200"),
        ("GET", "/app/a?x=1", "If-None-Match: \"1\"\r\n", "304"),
    ] {
        let request = format!("{method} {target} HTTP/1.1\r\n{FIELDS}{more}\r\n");
        for _ in 0..5 {
            let head = head_of(&mut stream, &request, method == "HEAD");
            assert_eq!(head.get(9..12), Some(expected), "{head}");
        }
        let count_in_a_round = || {
            let warm = allocations();
            for _ in 0..REQUESTS {
                let head = head_of(&mut stream, &request, method == "HEAD");
                assert!(head.contains("Cache-Status: petrel; hit"), "{head}");
            }
            by_others(&warm, &allocations())
        };
        expect_in_a_round(0, &request, count_in_a_round);
    }
    assert_eq!(backend.requests().len(), 2);
    server.cut_off(engine::worker::Cut::StopNow);
    assert!(server.join(), "a worker panicked");
}

#[test]
fn a_warm_request_of_http_2_allocates_nothing() {
    let _alone = alone();
    let tree = Tree::new();
    let (server, address) = site(&tree, "server.h2c = \"enable\"\n");
    server.serve();
    count_http2(&mut Http2Client::begin(connect(address), "http"), 0);
    server.cut_off(engine::worker::Cut::StopNow);
    assert!(server.join(), "a worker panicked");
}

#[test]
fn over_tls_it_allocates_what_rustls_does() {
    let _alone = alone();
    let tree = Tree::new();
    let authority = Authority::new();
    let identity = authority.identity("petrel.test");
    let tls = format!(
        "server.modules += (\"mod_openssl\")\nssl.engine = \"enable\"\n{}",
        identity.directives()
    );
    let (server, address) = site(&tree, &tls);
    server.serve();
    let stream = authority.connect("petrel.test", &["h2"], connect(address));
    count_http2(
        &mut Http2Client::begin(stream, "https"),
        ALLOCATIONS_OF_RECORD,
    );
    server.cut_off(engine::worker::Cut::StopNow);
    assert!(server.join(), "a worker panicked");
}

/// Requests files one by one and in batches, and counts the server's allocations. `of_record` is how many
/// each TLS record takes.
#[track_caller]
fn count_http2<S: Read + Write>(client: &mut Http2Client<S>, of_record: u64) {
    // The requests arrive in one record, and the responses leave in one.
    let in_memory = 2 * of_record;
    let read = (1 + LARGER_RECORDS) * of_record + ALLOCATIONS_OF_READ_FILE;
    for (target, times, body_bytes, expected) in [
        ("/", 1, 5, in_memory),
        ("/small.txt", 1, 100, in_memory),
        ("/larger.bin", 1, LARGER_BYTES, read),
        ("/missing", 1, 0, in_memory),
        ("/small.txt", BATCH, 100, in_memory),
    ] {
        for _ in 0..3 {
            client.get(target, times);
        }
        let what = format!("{times} at once of {target}");
        expect_in_a_round(expected * REQUESTS as u64, &what, || {
            let warm = allocations();
            let mut last = Batch::default();
            for _ in 0..REQUESTS {
                last = client.get(target, times);
            }
            if body_bytes > 0 {
                assert_eq!((last.ok, last.body_bytes), (times, times * body_bytes));
            }
            by_others(&warm, &allocations())
        });
    }
}

/// Expects `expected` allocations in at least one of several rounds.
#[track_caller]
fn expect_in_a_round(expected: u64, what: &str, count: impl FnMut() -> u64) {
    if let Err(counts) = in_rounds(expected, count) {
        panic!(
            "{REQUESTS} times {what}: {expected} allocations are expected, and there were {counts:?}"
        );
    }
}

/// Counts in several rounds until `expected` is counted. A machine that stands still for a moment splits the
/// input differently, and now and then another thread allocates.
fn in_rounds(expected: u64, mut count: impl FnMut() -> u64) -> Result<(), Vec<u64>> {
    let mut counts = vec![count()];
    while counts.len() < ROUNDS && !counts.contains(&expected) {
        counts.push(count());
    }
    match counts.contains(&expected) {
        true => Ok(()),
        false => Err(counts),
    }
}

/// Sends a request and reads its response. Returns the response's length.
fn ask_once(stream: &mut TcpStream, request: &str, buffer: &mut [u8]) -> usize {
    ask_and_look(stream, request, buffer).1
}

/// Sends a request and reads its response. Returns its status and length.
fn ask_and_look(stream: &mut TcpStream, request: &str, buffer: &mut [u8]) -> (u16, usize) {
    stream.write_all(request.as_bytes()).expect("send");
    let mut length = 0;
    loop {
        let count = stream.read(&mut buffer[length..]).expect("an answer");
        assert!(count > 0, "it is cut short");
        length += count;
        if whole_length(&buffer[..length]).is_some_and(|whole| whole <= length) {
            let status = std::str::from_utf8(&buffer[9..12]).expect("a status");
            return (status.parse().expect("a number"), length);
        }
    }
}

/// The whole length of a response that begins with `begin`, once the head is complete.
fn whole_length(begin: &[u8]) -> Option<usize> {
    let head = begin.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&begin[..head]);
    if text.starts_with("HTTP/1.1 304") {
        return Some(head);
    }
    let (_, behind) = text.split_once("Content-Length: ")?;
    let body: usize = behind.lines().next()?.parse().ok()?;
    Some(head + body)
}

fn ask(stream: &mut TcpStream, request: &str, length: usize, buffer: &mut [u8]) {
    stream.write_all(request.as_bytes()).expect("send");
    stream
        .read_exact(&mut buffer[..length])
        .expect("the same answer");
}

/// Sends a request and reads the response. Returns its head.
fn head_of(stream: &mut TcpStream, request: &str, is_head: bool) -> String {
    stream.write_all(request.as_bytes()).expect("send");
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        let count = stream.read(&mut buffer).expect("an answer");
        assert!(count > 0, "the connection is closed");
        bytes.extend_from_slice(&buffer[..count]);
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("Content-Length: "));
    let length: usize = length.map_or(0, |text| text.trim().parse().expect("a number"));
    let expected = match is_head || head.starts_with("HTTP/1.1 304") {
        true => 0,
        false => length,
    };
    let mut rest = vec![0; (end + expected).saturating_sub(bytes.len())];
    stream.read_exact(&mut rest).expect("the body");
    head
}
