//! A warm request for a static file allocates nothing: counted, with the server in this process.

mod in_process;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use in_process::start;
use petrel_tests::Tree;
use sys::counting_allocator::{CountingAllocator, allocations, by_others};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const REQUESTS: usize = 1000;

#[test]
fn a_warm_request_for_a_file_allocates_nothing() {
    let tree = Tree::new();
    tree.write("index.html", "hello")
        .write("small.txt", "x".repeat(100))
        .write("larger.bin", vec![b'x'; 100_000]);
    let (server, address) = start(&format!(
        "server.document-root = \"{}\"\nserver.max-worker = 1\nserver.max-keep-alive-requests = 65535\n\
         index-file.names = (\"index.html\")\n\
         $HTTP[\"host\"] == \"other.test\" {{ server.tag = \"other\" }}\n\
         $HTTP[\"url\"] =~ \"\\.php$\" {{ server.tag = \"php\" }}\n",
        tree.root().display()
    ));
    server.serve();
    let before = allocations();
    let mut stream = TcpStream::connect(address).expect("connect");
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("a timeout");
    let mut buffer = vec![0; 256 * 1024];
    for target in ["/", "/small.txt", "/larger.bin", "/missing"] {
        let request = format!("GET {target} HTTP/1.1\r\nHost: petrel.test\r\n\r\n");
        let length = ask_once(&mut stream, &request, &mut buffer);
        for _ in 0..3 {
            ask(&mut stream, &request, length, &mut buffer);
        }
        let warm = allocations();
        assert!(by_others(&before, &warm) > 0, "the counter does not count");
        for _ in 0..REQUESTS {
            ask(&mut stream, &request, length, &mut buffer);
        }
        let after = allocations();
        assert_eq!(
            by_others(&warm, &after),
            0,
            "allocations of {REQUESTS} requests for {target}"
        );
    }
    server.stop();
    assert!(server.join(), "a worker panicked");
}

/// Sends a request and reads what comes for a moment: the length of the answer.
fn ask_once(stream: &mut TcpStream, request: &str, buffer: &mut [u8]) -> usize {
    stream.write_all(request.as_bytes()).expect("send");
    let mut length = 0;
    let begin = Instant::now();
    stream
        .set_read_timeout(Some(Duration::from_millis(200)))
        .expect("a timeout");
    while let Ok(count @ 1..) = stream.read(&mut buffer[length..]) {
        length += count;
        assert!(
            begin.elapsed() < Duration::from_secs(5),
            "an answer without an end"
        );
    }
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("a timeout");
    assert!(buffer.starts_with(b"HTTP/1.1 "), "no answer");
    length
}

fn ask(stream: &mut TcpStream, request: &str, length: usize, buffer: &mut [u8]) {
    stream.write_all(request.as_bytes()).expect("send");
    stream
        .read_exact(&mut buffer[..length])
        .expect("the same answer");
}
