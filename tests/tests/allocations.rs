//! A warm request for a static file allocates nothing: counted, with the server in this process.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use config::LoadOptions;
use engine::log::LogRegistry;
use engine::server::{BoundListener, Server, ServerPlan};
use engine::settings::{ProcessSettings, SettingsTable, loaded_modules};
use petrel_tests::Tree;
use sys::counting_allocator::{CountingAllocator, allocations, this_thread};

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
        assert!(others(&before, &warm) > 0, "the counter does not count");
        for _ in 0..REQUESTS {
            ask(&mut stream, &request, length, &mut buffer);
        }
        let after = allocations();
        assert_eq!(
            others(&warm, &after),
            0,
            "allocations of {REQUESTS} requests for {target}"
        );
    }
    server.stop();
    assert!(server.join(), "a worker panicked");
}

/// Allocations between two counts by any thread but this one.
fn others(before: &[u64], after: &[u64]) -> u64 {
    let all = before
        .iter()
        .zip(after)
        .map(|(before, after)| after - before);
    all.enumerate()
        .filter(|(thread, _)| *thread != this_thread())
        .map(|(_, count)| count)
        .sum()
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

/// The server with all its modules, listening on a free port.
fn start(text: &str) -> (Server, SocketAddr) {
    let schema = modules::schema();
    let config = config::parse_str("test", text, &schema, &LoadOptions::from_process())
        .unwrap_or_else(|errors| panic!("{}", errors.render(config::Style::Line)));
    let modules = loaded_modules(&config, modules::MODULES);
    SettingsTable::check(&config, &schema, &modules).expect("settings");
    let process = ProcessSettings::new(&config).expect("settings of the process");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    listener.set_nonblocking(true).expect("non-blocking");
    let address = listener.local_addr().expect("an address");
    let plan = ServerPlan {
        config: Arc::new(config),
        schema: Arc::new(schema),
        modules,
        process: Arc::new(process),
        logs: Arc::new(LogRegistry::discarding()),
    };
    let listeners = vec![BoundListener {
        address: address.to_string(),
        port: address.port(),
        sockets: vec![listener.into()],
    }];
    (Server::start(plan, listeners).expect("it starts"), address)
}
