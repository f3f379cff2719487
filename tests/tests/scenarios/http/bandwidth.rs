//! Bandwidth limits: a transfer takes about as long as it should, and other clients do not wait for it.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use petrel_tests::http2::Http2Client;
use petrel_tests::{SOON, Server, eventually};

const BYTES: usize = 600_000;

fn server(config: &str) -> Server {
    Server::build()
        .file("www/data.bin", vec![b'x'; BYTES])
        .file("www/index.html", "hello")
        .config(config)
        .start()
}

fn transfer(server: &Server) -> Duration {
    let begin = Instant::now();
    assert_eq!(server.get("/data.bin").body.len(), BYTES);
    begin.elapsed()
}

#[test]
fn without_a_limit_it_takes_no_time() {
    assert!(transfer(&server("")) < SOON);
}

#[test]
fn each_connection_has_its_limit() {
    let server = server("$HTTP[\"url\"] == \"/data.bin\" { connection.kbytes-per-second = 200 }");
    let took = std::thread::scope(|scope| {
        let transfers: Vec<_> = (0..2).map(|_| scope.spawn(|| transfer(&server))).collect();
        assert_eq!(server.get("/").text(), "hello");
        transfers
            .into_iter()
            .map(|one| one.join().expect("a transfer"))
            .max()
            .expect("two")
    });
    assert!(
        took > Duration::from_millis(1500),
        "600 kB at 200 kB/s took {took:?}"
    );
    assert!(took < SOON, "600 kB at 200 kB/s took {took:?}");
}

#[test]
fn all_connections_share_the_limit_of_their_scope() {
    let server = server("$HTTP[\"url\"] == \"/data.bin\" { server.kbytes-per-second = 400 }");
    let took = std::thread::scope(|scope| {
        let transfers: Vec<_> = (0..2).map(|_| scope.spawn(|| transfer(&server))).collect();
        transfers
            .into_iter()
            .map(|one| one.join().expect("a transfer"))
            .max()
            .expect("two")
    });
    assert!(
        took > Duration::from_millis(1500),
        "1.2 MB at 400 kB/s took {took:?}"
    );
    assert!(took < SOON, "1.2 MB at 400 kB/s took {took:?}");
    assert!(server.get("/").text() == "hello");
}

#[test]
fn small_answers_within_the_limit_do_not_wait_for_each_other() {
    let server = server(&with_log("server.kbytes-per-second = 1024"));
    // The server waits until these clients close their connections.
    let _lingering: Vec<_> = (0..30)
        .map(|_| {
            let mut client = server.client();
            client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            assert_eq!(client.read_bytes(12), b"HTTP/1.1 200");
            client
        })
        .collect();
    assert_eq!(http2(&server).get("/", 100).ok, 100);
    let log = log_with(&server, |log| log.lines().count() == 130);
    assert!(!log.contains("throttle="), "{log}");
}

#[test]
fn a_client_that_leaves_is_noticed_while_its_answer_waits_for_the_limit() {
    let limit = "$HTTP[\"url\"] =^ \"/limited\" { server.kbytes-per-second = 1 }";
    let server = Server::build()
        .file("www/index.html", "hello")
        .file("www/limited/empty", "")
        .file("www/limited/left", "")
        .config(&with_log(limit))
        .start();
    // Their heads do not wait, and count: more than a minute's worth.
    let mut other = http2(&server);
    for _ in 0..20 {
        assert_eq!(other.get("/limited/empty", 50).ok, 50);
    }
    let mut client = server.client();
    assert_eq!(client.get("/").text(), "hello");
    client.send("GET /limited/left HTTP/1.1\r\nHost: a\r\n\r\n");
    // The only worker has the request when it answers a later one.
    assert_eq!(server.get("/").text(), "hello");
    client.abort();
    let log = log_with(&server, |log| log.contains("left "));
    let line = log.lines().find(|line| line.contains("left "));
    assert!(
        line.is_some_and(|line| line.contains("throttle=")),
        "{line:?}"
    );
}

fn with_log(limit: &str) -> String {
    format!(
        "server.max-worker = 1
server.h2c = \"enable\"
server.modules += ( \"mod_accesslog\" )
accesslog.format = \"%U %{{stages}}x\"
accesslog.filename = var.dir + \"/access.log\"
{limit}"
    )
}

fn http2(server: &Server) -> Http2Client<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("it listens");
    Http2Client::begin(stream, "http")
}

/// The access log, when it is as `wanted`.
fn log_with(server: &Server, wanted: impl Fn(&str) -> bool) -> String {
    let path = server.tree().path("access.log");
    let read = || std::fs::read_to_string(&path).unwrap_or_default();
    assert!(eventually(|| wanted(&read())), "{}", read());
    read()
}
