//! A warm request for a static file allocates nothing: counted, with the server in this process.

mod in_process;

use std::io::{Read, Write};
use std::net::TcpStream;

use in_process::start;
use petrel_tests::{PATIENCE, Tree};
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
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
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
    server.cut_off(engine::worker::Cut::StopNow);
    assert!(server.join(), "a worker panicked");
}

/// Sends a request and reads its answer: how long that is.
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

/// How long an answer is of which this is the beginning, if that has the whole head.
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
