//! Connections that stop being HTTP: WebSocket through a proxy.

use std::time::Duration;

use petrel_tests::{Backend, Builder, Client, Server, Speaks, eventually};

use crate::{KEY, OPTIONS, in_front_of, name};

/// As a browser asks.
const HANDSHAKE: &str = "GET /app/TARGET HTTP/1.1\r\nHost: petrel.test\r\n\
    Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

const SWITCHING: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// Agrees to the upgrade, then does what the URL says.
fn websocket() -> Backend {
    Backend::start(Speaks::Http, |exchange| {
        if exchange.param("Upgrade") != "websocket" {
            return exchange.say("no upgrade");
        }
        match name(exchange) {
            "rejected" => return exchange.answer(403, &[], "not you"),
            "ignored" => return exchange.say("plain"),
            _ => exchange.raw(SWITCHING),
        }
        match name(exchange) {
            "greets" => exchange.raw("welcome"),
            "leaves" => {
                exchange.receive(5);
                exchange.raw("bye");
                return exchange.close();
            }
            "half" => {
                exchange.half_close();
                let came = exchange.receive(100);
                assert_eq!(came, b"still here");
                return exchange.close();
            }
            _ => {}
        }
        loop {
            let bytes = exchange.receive(1 << 16);
            if bytes.is_empty() {
                // The client's direction has ended; this one has not.
                exchange.raw("last words");
                return exchange.close();
            }
            exchange.raw(&bytes);
        }
    })
}

fn with_upgrade(backend: &Backend) -> Builder {
    in_front_of(backend).config("proxy.header = ( \"upgrade\" => \"enable\" )")
}

/// A tunnel.
#[track_caller]
fn open(server: &Server, target: &str) -> Client {
    let mut client = server.client();
    client.send(HANDSHAKE.replace("TARGET", target));
    let response = client.response();
    assert_eq!(response.status, 101, "{response}");
    assert_eq!(response.field("Upgrade"), Some("websocket"));
    assert!(
        response
            .field("Connection")
            .is_some_and(|value| value.eq_ignore_ascii_case("upgrade")),
        "{response}"
    );
    let accept = response.field("Sec-WebSocket-Accept");
    assert_eq!(accept, Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    client
}

#[test]
fn bytes_go_both_ways() {
    let backend = websocket();
    let server = with_upgrade(&backend).start();
    let mut client = open(&server, "echo");
    for size in [1, 2, 125, 70_000] {
        let bytes: Vec<u8> = (0..size).map(|at: usize| (at % 256) as u8).collect();
        client.send(&bytes);
        assert!(client.read_bytes(size) == bytes, "{size}");
    }
    let request = backend.last();
    assert_eq!(request.param("Sec-WebSocket-Version"), Some("13"));
    assert!(
        request
            .param("Connection")
            .is_some_and(|value| value.to_lowercase().contains("upgrade"))
    );
}

#[test]
fn what_either_side_says_first_is_not_lost() {
    let backend = websocket();
    let server = with_upgrade(&backend).start();
    // In one packet with the backend's head.
    let mut client = open(&server, "greets");
    assert_eq!(client.read_bytes(7), b"welcome");
    // In one packet with the client's head.
    let mut client = server.client();
    client.send(HANDSHAKE.replace("TARGET", "echo") + "eager");
    assert_eq!(client.response().status, 101);
    assert_eq!(client.read_bytes(5), b"eager");
}

#[test]
fn row_39_either_side_may_close_its_direction() {
    let backend = websocket();
    let server = with_upgrade(&backend).start();
    let mut client = open(&server, "echo");
    client.send("x");
    assert_eq!(client.read_bytes(1), b"x");
    client.half_close();
    assert_eq!(client.read_to_end(), b"last words");

    let mut client = open(&server, "half");
    client.expect_close();
    client.send("still here");
    backend.expect_open_connections(0);

    let mut client = open(&server, "leaves");
    client.send("hello");
    assert_eq!(client.read_to_end(), b"bye");
    backend.expect_open_connections(0);
}

#[test]
fn row_39_a_client_that_vanishes_ends_the_tunnel() {
    let backend = websocket();
    let server = with_upgrade(&backend).start();
    for _ in 0..20 {
        let mut client = open(&server, "echo");
        client.send("x");
        client.read_bytes(1);
        client.abort();
    }
    backend.expect_open_connections(0);
}

#[test]
fn row_39_a_rejected_upgrade_is_an_answer_and_no_tunnel() {
    let backend = websocket();
    let server = with_upgrade(&backend).start();
    for (target, status, text) in [("rejected", 403, "not you"), ("ignored", 200, "plain")] {
        let mut client = server.client();
        client.send(HANDSHAKE.replace("TARGET", target));
        let response = client.response();
        assert_eq!((response.status, response.text().as_str()), (status, text));
        // What follows is a request, not something for the backend.
        let before = backend.requests().len();
        if !response.closes() {
            assert_eq!(client.get("/").text(), "hello");
        }
        assert_eq!(backend.requests().len(), before);
    }
}

#[test]
fn row_39_tunnels_leave_nothing_behind() {
    let backend = websocket();
    let server = with_upgrade(&backend).start();
    let settle = || {
        backend.hang_up();
        backend.expect_open_connections(0);
        server.get("/app/");
        server.holdings()
    };
    let round = || {
        for target in ["echo", "leaves", "rejected", "half"] {
            let mut client = server.client();
            client.send(HANDSHAKE.replace("TARGET", target));
            let status = client.response().status;
            assert!(matches!(status, 101 | 403), "{status}");
        }
    };
    round();
    let before = settle();
    for _ in 0..30 {
        round();
    }
    settle();
    server.expect_holdings(&before);
}

#[test]
fn an_upgrade_that_is_not_allowed_is_not_asked_for() {
    let backend = websocket();
    let server = in_front_of(&backend).start();
    let mut client = server.client();
    client.send(HANDSHAKE.replace("TARGET", "echo"));
    let response = client.response();
    assert_eq!(
        (response.status, response.text().as_str()),
        (200, "no upgrade")
    );
    assert_eq!(backend.last().param("Upgrade"), None);
}

#[test]
fn a_backend_cannot_switch_protocols_unasked() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        exchange.raw(SWITCHING);
        exchange.hang();
    });
    let server = with_upgrade(&backend).start();
    assert_eq!(server.get("/app/").status, 502);
    backend.expect_open_connections(0);
}

#[test]
fn the_host_option_allows_an_upgrade_as_well() {
    let backend = websocket();
    let server = Server::build()
        .file("www/index.html", "hello")
        .config(&backend.directive(KEY, &format!("\"upgrade\" => \"enable\", {OPTIONS}")))
        .start();
    let mut client = open(&server, "echo");
    client.send("x");
    assert_eq!(client.read_bytes(1), b"x");
}

#[test]
fn a_tunnel_that_says_nothing_outlives_the_limits_of_requests() {
    let backend = websocket();
    let server = with_upgrade(&backend)
        .config("server.max-keep-alive-idle = 1")
        .config("server.max-read-idle = 60")
        .start();
    let mut client = open(&server, "echo");
    std::thread::sleep(Duration::from_millis(2500));
    client.send("x");
    assert_eq!(client.read_bytes(1), b"x");
    drop(client);
    assert!(eventually(|| backend.open_connections() == 0));
}
