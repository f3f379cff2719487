//! The memory of idle connections.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use petrel_tests::http2::Http2Client;
use petrel_tests::{Authority, Client, PATIENCE, Server, TlsStream, raise_descriptor_limit};

use crate::alone;

const CONNECTIONS: u64 = 10_000;
/// The program under test is not optimised: its futures hold what an optimised one has given up by then, which is about
/// 900 bytes.
const BYTES_MAX: u64 = 1280;

/// The number of TLS connections. A handshake takes the client a millisecond.
const TLS_CONNECTIONS: u64 = 1000;
const TLS_BYTES_MAX: u64 = 8 * 1024;
const HTTP2_OVER_TLS_BYTES_MAX: u64 = 12 * 1024;

fn server(config: &str) -> Server {
    let limit = raise_descriptor_limit();
    Server::start(&format!(
        "server.max-fds = {limit}\nserver.max-connections = {limit}\nserver.max-keep-alive-idle = 600\n{config}"
    ))
}

/// Opens `count` connections, each of which has received a response. Returns the server's memory per
/// connection.
fn idle_bytes<C>(server: &Server, count: u64, connect: impl Fn() -> C) -> (u64, Vec<C>) {
    let _first = connect();
    let sockets = || -> u64 {
        let holdings = server.processes().holdings();
        *holdings.descriptors.get("socket").expect("it listens") as u64
    };
    let (before, sockets_before) = (server.processes().private_dirty_bytes(), sockets());
    let clients: Vec<C> = (0..count).map(|_| connect()).collect();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(sockets() - sockets_before, count);
    let after = server.processes().private_dirty_bytes();
    let each = after.saturating_sub(before) / count;
    println!("{each} bytes of user memory an idle connection");
    (each, clients)
}

#[test]
fn ten_thousand_idle_connections_take_about_a_kibibyte_each() {
    let _alone = alone();
    // The server uses half of its descriptors for connections.
    let connections = CONNECTIONS.min(raise_descriptor_limit() / 2) - 1;
    let server = server("");
    let (each, mut clients) = idle_bytes(&server, connections, || {
        let mut client = server.client();
        assert_eq!(client.get("/").status, 200);
        client
    });
    assert!(each <= BYTES_MAX, "{each} bytes an idle connection");
    drop(clients.split_off(1000));
    let last: &mut Client = clients.last_mut().expect("a thousand are left");
    assert_eq!(last.get("/").text(), "hello");
}

fn over_tls(authority: &Authority) -> Server {
    server(&format!(
        "server.modules += (\"mod_openssl\")\nssl.engine = \"enable\"\n{}",
        authority.identity("petrel.test").directives()
    ))
}

fn connect(server: &Server, authority: &Authority, protocol: &str) -> TlsStream {
    let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    authority.connect("petrel.test", &[protocol], stream)
}

#[test]
fn an_idle_connection_over_tls_takes_eight_kibibytes() {
    let _alone = alone();
    let authority = Authority::new();
    let server = over_tls(&authority);
    let (each, _clients) = idle_bytes(&server, TLS_CONNECTIONS, || {
        let mut client = connect(&server, &authority, "http/1.1");
        let request = b"GET / HTTP/1.1\r\nHost: petrel.test\r\n\r\n";
        client.write_all(request).expect("it reads");
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nhello") {
            let mut buffer = [0; 4096];
            let count = client.read(&mut buffer).expect("an answer");
            assert!(count > 0, "the server has closed");
            answer.extend_from_slice(&buffer[..count]);
        }
        client
    });
    assert!(each <= TLS_BYTES_MAX, "{each} bytes an idle connection");
}

#[test]
fn an_idle_connection_of_http_2_over_tls_takes_twelve_kibibytes() {
    let _alone = alone();
    let authority = Authority::new();
    let server = over_tls(&authority);
    let (each, _clients) = idle_bytes(&server, TLS_CONNECTIONS, || {
        let tls = connect(&server, &authority, "h2");
        let mut client = Http2Client::begin(tls, "https").with_fields(&BROWSER);
        assert_eq!(client.get("/", 1).ok, 1);
        client
    });
    assert!(
        each <= HTTP2_OVER_TLS_BYTES_MAX,
        "{each} bytes an idle connection"
    );
}

/// The fields of a browser, which the connection's dynamic table stores.
const BROWSER: [(&str, &str); 9] = [
    (
        "user-agent",
        "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36",
    ),
    (
        "accept",
        "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8",
    ),
    ("accept-encoding", "gzip, deflate, br, zstd"),
    ("accept-language", "de-DE,de;q=0.9,en;q=0.8"),
    (
        "cookie",
        "session=0123456789abcdef0123456789abcdef; theme=dark; consent=yes",
    ),
    (
        "sec-ch-ua",
        "\"Chromium\";v=\"140\", \"Not=A?Brand\";v=\"24\", \"Google Chrome\";v=\"140\"",
    ),
    ("sec-fetch-mode", "navigate"),
    ("upgrade-insecure-requests", "1"),
    ("priority", "u=0, i"),
];
