//! The system calls of warm requests beyond those of the budget.

use std::io::{Read, Write};
use std::net::TcpStream;

use petrel_tests::http2::Http2Client;
use petrel_tests::{Authority, Backend, Calls, Client, PATIENCE, Server, Speaks, Tracer};

use crate::alone;

/// Files up to this size are sent from memory. It equals the engine's `limits::FILE_IN_MEMORY_BYTES_MAX` and
/// is repeated here, because this test documents it.
const FILE_IN_MEMORY_BYTES_MAX: usize = 32 * 1024;
pub const REQUESTS: u64 = 400;

/// The server's system calls, apart from waits, during `REQUESTS` requests for `target` on a persistent
/// connection.
fn count(server: &Server, target: &str, status: u16) -> Calls {
    let mut client = server.client();
    // From the second request on, everything is as warm as at the last.
    ask(&mut client, target, status, 2);
    let tracer = Tracer::attach(server);
    ask(&mut client, target, status, REQUESTS);
    tracer.stop().without_waits()
}

fn ask(client: &mut Client, target: &str, status: u16, times: u64) {
    for _ in 0..times {
        assert_eq!(client.get(target).status, status);
    }
}

/// Expects the calls in `expected`, each with how many a request may take, and no others but one fstat per
/// second for the file and what the server does once a second.
#[track_caller]
pub fn expect(calls: &Calls, expected: &[(&[&str], u64)]) {
    let mut rest = calls.clone();
    for (names, times) in expected {
        let count: u64 = names.iter().map(|name| calls.count(name)).sum();
        let least = times * REQUESTS;
        // Behind one of 64 requests to a FastCGI backend its process is asked when it is back, and the answer may come
        // by itself. On a slow machine the connection rests for so long between two requests that the worker looks at
        // the backend's queue.
        let is_of_backend =
            *times > 1 && (names.contains(&"recvfrom") || names.contains(&"sendto"));
        let most = least + if is_of_backend { REQUESTS / 10 } else { 0 };
        assert!(
            (least..=most).contains(&count),
            "{names:?}: if it is less now, lower the figure: {calls:?}"
        );
        for name in *names {
            rest.0.remove(*name);
        }
    }
    let looks: u64 = ["fstat", "newfstatat", "statx"]
        .iter()
        .map(|name| calls.count(name))
        .sum();
    assert!(looks <= 60, "{looks} looks at the file: {calls:?}");
    rest.0
        .retain(|name, _| !["fstat", "newfstatat", "statx"].contains(&name.as_str()));
    // Each worker reads its processor time, and for how long it had none, once a second.
    for name in ["clock_gettime", "preadv"] {
        if rest.count(name) <= 60 {
            rest.0.remove(name);
        }
    }
    // The C library lets the memory of a worker grow now and then, also by what the worker does once a second.
    if rest.count("mprotect") <= REQUESTS / 20 {
        rest.0.remove("mprotect");
    }
    // Threads that were idle for long enough end.
    if rest.count("futex") <= REQUESTS / 50 {
        rest.0.remove("futex");
    }
    assert!(rest.0.is_empty(), "nothing else should be called: {rest:?}");
}

const RECEIVE: &[&str] = &["recvfrom", "read", "recvmsg", "readv"];
const SEND: &[&str] = &["sendto", "write", "writev", "sendmsg"];
/// Calls that take a path.
const PATH: &[&str] = &[
    "open",
    "openat",
    "openat2",
    "stat",
    "lstat",
    "newfstatat",
    "statx",
    "access",
    "faccessat",
    "faccessat2",
    "readlink",
    "readlinkat",
    "getxattr",
    "inotify_add_watch",
];

fn server(config: &str) -> Server {
    Server::build()
        .file("www/index.html", "hello")
        .file("www/small.txt", "x".repeat(100))
        .file("www/largest.bin", vec![b'x'; FILE_IN_MEMORY_BYTES_MAX])
        .file("www/larger.bin", vec![b'x'; FILE_IN_MEMORY_BYTES_MAX + 1])
        .config(&format!(
            "server.max-keep-alive-requests = 65535\nserver.max-keep-alive-idle = 60\n{config}"
        ))
        .start()
}

#[test]
fn the_largest_file_that_is_kept_in_memory_takes_one_receive_and_one_send() {
    let _alone = alone();
    expect(
        &count(&server(""), "/largest.bin", 200),
        &[(RECEIVE, 1), (SEND, 1)],
    );
}

#[test]
fn above_the_limit_it_is_a_head_and_sendfile() {
    let _alone = alone();
    let server = server("");
    expect(
        &count(&server, "/larger.bin", 200),
        &[(RECEIVE, 1), (SEND, 1), (&["sendfile"], 1)],
    );
}

#[test]
fn conditions_and_hosts_take_no_system_call() {
    let _alone = alone();
    let mut config = String::new();
    for number in 0..500 {
        config.push_str(&format!(
            "$HTTP[\"host\"] == \"host{number}.test\" {{ server.tag = \"{number}\" }}\n\
             $HTTP[\"host\"] =~ \"^www{number}\\.\" {{ server.tag = \"{number}\" }}\n"
        ));
    }
    expect(
        &count(&server(&config), "/small.txt", 200),
        &[(RECEIVE, 1), (SEND, 1)],
    );
}

#[test]
fn pipelined_requests_take_less() {
    let _alone = alone();
    let server = server("");
    let mut client = server.client();
    ask(&mut client, "/small.txt", 200, 2);
    let tracer = Tracer::attach(&server);
    client.send("GET /small.txt HTTP/1.1\r\nHost: petrel.test\r\n\r\n".repeat(REQUESTS as usize));
    for _ in 0..REQUESTS {
        assert_eq!(client.response().status, 200);
    }
    let calls = tracer.stop().without_waits();
    let received: u64 = RECEIVE.iter().map(|name| calls.count(name)).sum();
    assert!(received < REQUESTS / 10, "{received} receives: {calls:?}");
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    stream.set_nodelay(true).expect("a TCP socket");
    stream
}

/// The server's system calls, apart from waits, during `REQUESTS` batches of as many requests.
fn count_http2(server: &Server, stream: impl Read + Write, scheme: &'static str) -> Calls {
    let mut client = Http2Client::begin(stream, scheme);
    // After this much traffic the server limits what the kernel may buffer for the connection.
    for _ in 0..100 {
        client.get("/small.txt", BATCH);
    }
    let tracer = Tracer::attach(server);
    for _ in 0..REQUESTS {
        assert_eq!(client.get("/small.txt", BATCH).ok, BATCH);
    }
    tracer.stop().without_waits()
}

/// HTTP/2 requests that arrive at once.
const BATCH: usize = 10;

#[test]
fn requests_of_http_2_that_come_at_once_take_one_receive_and_one_send() {
    let _alone = alone();
    let server = server("server.h2c = \"enable\"");
    let calls = count_http2(&server, connect(&server), "http");
    expect(&calls, &[(RECEIVE, 1), (SEND, 1)]);
}

#[test]
fn over_tls_it_is_one_receive_and_one_send_as_well() {
    let _alone = alone();
    let authority = Authority::new();
    let server = server(&format!(
        "server.modules += (\"mod_openssl\")\nssl.engine = \"enable\"\n{}",
        authority.identity("petrel.test").directives()
    ));
    let tls = |protocol: &str| authority.connect("petrel.test", &[protocol], connect(&server));
    let calls = count_http2(&server, tls("h2"), "https");
    expect(&calls, &[(RECEIVE, 1), (SEND, 1)]);
    let mut client = tls("http/1.1");
    let mut ask = || {
        let request = b"GET /small.txt HTTP/1.1\r\nHost: petrel.test\r\n\r\n";
        client.write_all(request).expect("it reads");
        let mut answer = Vec::new();
        while !answer.ends_with(&[b'x'; 100]) {
            let mut buffer = [0; 4096];
            let count = client.read(&mut buffer).expect("an answer");
            assert!(count > 0, "the server has closed");
            answer.extend_from_slice(&buffer[..count]);
        }
    };
    ask();
    ask();
    let tracer = Tracer::attach(&server);
    for _ in 0..REQUESTS {
        ask();
    }
    let calls = tracer.stop().without_waits();
    expect(&calls, &[(RECEIVE, 1), (SEND, 1)]);
}

/// Neither rules nor the mapping to a path may look up a file that no part of the response comes from.
/// It takes so long because strace stops the server at each system call, and the URLs are very long.
#[test]
fn a_route_of_a_backend_asks_the_file_system_nothing_however_long_the_url_is() {
    let _alone = alone();
    let backend = Backend::start(Speaks::FastCgi, |exchange| exchange.say("at once"));
    let route = backend.directive("/app", "\"check-local\" => \"disable\"");
    let rules = "server.modules += (\"mod_rewrite\")\n\
        url.rewrite-once = (\"^/short/(.*)\" => \"/app/$1\")\n\
        url.rewrite-if-not-file = (\"^/app\" => \"/missing\")";
    let server = server(&format!("server.max-worker = 1\n{rules}\n{route}"));
    let parts = "/part".repeat(700);
    for target in [format!("/app{parts}"), format!("/short{parts}?{parts}")] {
        let mut client = server.client();
        ask(&mut client, &target, 200, 2);
        let tracer = Tracer::attach(&server);
        // None of these URLs was requested before.
        for number in 0..REQUESTS {
            assert_eq!(client.get(&format!("{target}/{number}")).status, 200);
        }
        let calls = tracer.stop().without_waits();
        let mut rest = calls.clone();
        rest.0
            .retain(|name, _| RECEIVE.contains(&name.as_str()) || SEND.contains(&name.as_str()));
        expect(&rest, &[(RECEIVE, 2), (SEND, 2)]);
        let looks: u64 = PATH.iter().map(|name| calls.count(name)).sum();
        // On a slow machine connections to the backend rest, and the worker looks at the backend's socket.
        assert!(looks < REQUESTS / 10, "{calls:?}");
    }
}

#[test]
fn a_url_without_a_file_that_is_rewritten_takes_one_receive_and_one_send() {
    let _alone = alone();
    let server = server(
        "server.modules += (\"mod_rewrite\")\n\
         url.rewrite-if-not-file = (\"^/(.*)\" => \"/small.txt?$1\")",
    );
    for target in ["/small.txt", "/missing/page"] {
        expect(&count(&server, target, 200), &[(RECEIVE, 1), (SEND, 1)]);
    }
}
