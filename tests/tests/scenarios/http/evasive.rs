//! mod_evasive: limits on the connections of one address, across all workers.

use std::net::TcpStream;

use petrel_tests::http2::Http2Client;
use petrel_tests::{Client, Server, eventually};

const CONFIG: &str = "server.modules += ( \"mod_evasive\" )
server.max-worker = 2
server.h2c = \"enable\"
evasive.max-conns-per-ip = 2";

/// Larger than the buffers of a connection, so that its request stays open until the client reads.
const BIG: usize = 32 << 20;

fn server(config: &str) -> Server {
    Server::build()
        .file("www/index.html", "hello")
        .file("www/big", vec![b'x'; BIG])
        .config(&format!("{CONFIG}\n{config}"))
        .start()
}

/// A client that has received the first bytes of a large file and reads no more. Another worker may still
/// count a request that was just answered.
fn busy(server: &Server) -> Client {
    let mut found = None;
    let is_served = eventually(|| {
        let mut client = server.client().with_receive_buffer(32 * 1024);
        client.send("GET /big HTTP/1.1\r\nHost: petrel.test\r\n\r\n");
        let begin = client.read_bytes(12);
        found = Some(client);
        begin == b"HTTP/1.1 200"
    });
    found.filter(|_| is_served).expect("it is served")
}

/// How many of twenty concurrent requests on one connection get 200.
fn served_by_http2(server: &Server) -> usize {
    let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("it listens");
    Http2Client::begin(stream, "http").get("/", 20).ok
}

#[test]
fn more_connections_of_an_address_are_turned_away() {
    let server = server("");
    let mut idle: Vec<Client> = (0..8).map(|_| server.client()).collect();
    let mut are_served = || {
        let mut idle = idle.iter_mut();
        idle.all(|client| eventually(|| client.get("/").status == 200))
    };
    assert!(are_served());
    let one = busy(&server);
    assert!(are_served());
    assert!(eventually(|| served_by_http2(&server) == 20));
    let two = busy(&server);
    for client in &mut idle {
        assert_eq!(client.get("/").status, 403);
    }
    assert_eq!(served_by_http2(&server), 0);
    server.expect_log("refused: evasive.max-conns-per-ip allows 2 connections client=127.0.0.1");
    let mut other = Client::connect_from([127, 0, 0, 2].into(), server.address());
    assert_eq!(other.get("/").status, 200);
    drop((one, two));
    assert!(eventually(|| server.get("/").status == 200));
}

#[test]
fn silent_and_elsewhere() {
    let server = server("evasive.silent = \"enable\"\nevasive.location = \"/busy\"");
    let _busy = [busy(&server), busy(&server)];
    let response = server.get("/");
    assert_eq!(
        (response.status, response.field("Location")),
        (302, Some("/busy"))
    );
    assert!(
        !server.log().contains("refused: evasive"),
        "{}",
        server.log()
    );
}
