//! A warm request for a static file allocates nothing: counted, with the server in this process.

mod in_process;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex, PoisonError};

use in_process::start;
use petrel_tests::http2::{Batch, Http2Client};
use petrel_tests::{Authority, PATIENCE, Tree};
use sys::counting_allocator::{CountingAllocator, allocations, by_others};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const REQUESTS: usize = 1000;

/// How often a measurement is repeated at most.
const ROUNDS: usize = 3;

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

/// Allocations of all threads are counted, so only one test may run at a time.
static ALONE: Mutex<()> = Mutex::new(());

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
fn a_warm_request_for_a_file_allocates_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let tree = Tree::new();
    let (server, address) = site(&tree, "");
    server.serve();
    let before = allocations();
    let mut stream = connect(address);
    let mut buffer = vec![0; 256 * 1024];
    for target in ["/", "/small.txt", "/larger.bin", "/missing"] {
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
fn a_warm_request_of_http_2_allocates_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let tree = Tree::new();
    let (server, address) = site(&tree, "server.h2c = \"enable\"\n");
    server.serve();
    count_http2(&mut Http2Client::begin(connect(address), "http"), 0);
    server.cut_off(engine::worker::Cut::StopNow);
    assert!(server.join(), "a worker panicked");
}

#[test]
fn over_tls_it_allocates_what_rustls_does() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
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

/// Expects `expected` allocations in at least one of several rounds. A machine that stands still for a moment
/// splits the input differently, and now and then another thread allocates.
#[track_caller]
fn expect_in_a_round(expected: u64, what: &str, mut count: impl FnMut() -> u64) {
    let mut counts = vec![count()];
    while counts.len() < ROUNDS && !counts.contains(&expected) {
        counts.push(count());
    }
    assert!(
        counts.contains(&expected),
        "{REQUESTS} times {what}: {expected} allocations are expected, and there were {counts:?}"
    );
}

/// Sends a request and reads its response. Returns the response's length.
fn ask_once(stream: &mut TcpStream, request: &str, buffer: &mut [u8]) -> usize {
    stream.write_all(request.as_bytes()).expect("send");
    let mut length = 0;
    loop {
        let count = stream.read(&mut buffer[length..]).expect("an answer");
        assert!(count > 0, "it is cut short");
        length += count;
        if whole_length(&buffer[..length]).is_some_and(|whole| whole <= length) {
            return length;
        }
    }
}

/// The whole length of a response that begins with `begin`, once the head is complete.
fn whole_length(begin: &[u8]) -> Option<usize> {
    let head = begin.windows(4).position(|end| end == b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&begin[..head]);
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
