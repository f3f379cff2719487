//! A hit in the page cache allocates nothing: counted, with the server in this process.

mod in_process;

use std::io::{Read, Write};
use std::net::TcpStream;

use in_process::start;
use petrel_tests::{Backend, PATIENCE, Speaks};
use sys::counting_allocator::{CountingAllocator, allocations, by_others};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const REQUESTS: usize = 1000;

/// Requests as browsers send them, for a page that varies by one of their fields.
const FIELDS: &str = "Host: petrel.test\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\n\
    Accept: text/html,application/xhtml+xml\r\nAccept-Language: de,en;q=0.5\r\n\
    Accept-Encoding: gzip, deflate, br\r\nCookie: a=1; theme=dark\r\nX-Forwarded-For: 192.0.2.1\r\n";

#[test]
fn a_hit_allocates_nothing() {
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
    let mut stream = TcpStream::connect(address).expect("connect");
    let patience = Some(PATIENCE);
    stream.set_read_timeout(patience).expect("a timeout");
    for (method, target, more, expected) in [
        ("GET", "/app/a?x=1&utm_source=y", "", "200"),
        ("GET", "/app/large", "", "200"),
        ("HEAD", "/app/a?x=1", "", "200"),
        ("GET", "/app/a?x=1", "If-None-Match: \"1\"\r\n", "304"),
    ] {
        let request = format!("{method} {target} HTTP/1.1\r\n{FIELDS}{more}\r\n");
        for _ in 0..5 {
            let head = ask(&mut stream, &request, method == "HEAD");
            assert_eq!(head.get(9..12), Some(expected), "{head}");
        }
        let mut count_in_a_round = || {
            let warm = allocations();
            for _ in 0..REQUESTS {
                let head = ask(&mut stream, &request, method == "HEAD");
                assert!(head.contains("Cache-Status: petrel; hit"), "{head}");
            }
            by_others(&warm, &allocations())
        };
        // Once a second the worker does maintenance, and may close a connection to the backend. So the count
        // is zero in at least one of several rounds.
        let counts: Vec<u64> = (0..3).map(|_| count_in_a_round()).collect();
        assert!(
            counts.contains(&0),
            "allocations of {REQUESTS} requests, round by round: {counts:?}: {request}"
        );
    }
    assert_eq!(backend.requests().len(), 2);
    server.cut_off(engine::worker::Cut::StopNow);
    assert!(server.join(), "a worker panicked");
}

/// Sends a request and reads the response. Returns its head.
fn ask(stream: &mut TcpStream, request: &str, is_head: bool) -> String {
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
