//! Connections that stop carrying HTTP: WebSocket through a proxy.

use std::time::Duration;

use petrel_tests::{Backend, Builder, Client, Server, Speaks, eventually};

use crate::gateway::{KEY, OPTIONS, in_front_of, name};

/// The request of a browser.
const HANDSHAKE: &str = "GET /app/TARGET HTTP/1.1\r\nHost: petrel.test\r\n\
    Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

const SWITCHING: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// A backend that accepts the upgrade, then does what the URL says.
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
                // The client has closed its direction, but this one is still open.
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

/// Opens a tunnel.
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
    // The data is in the same packet as the backend's head.
    let mut client = open(&server, "greets");
    assert_eq!(client.read_bytes(7), b"welcome");
    // The data is in the same packet as the client's head.
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
        // What follows is another request, not data for the backend.
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

/// A client's request to switch to HTTP/2, with these values for Upgrade and Connection.
fn h2c(upgrade: &str, connection: &str) -> String {
    format!(
        "GET /app/h2c HTTP/1.1\r\nHost: petrel.test\r\n{connection}{upgrade}\
         HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n"
    )
}

#[test]
fn h2c_does_not_reach_a_backend_that_speaks_it() {
    // Like hypercorn, the backend opens the tunnel for every client that asks.
    let backend = Backend::start(Speaks::Http, |exchange| {
        let upgrade = exchange.param("Upgrade").to_owned();
        if upgrade.is_empty() {
            return exchange.say("no upgrade");
        }
        exchange.raw(format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\n\r\n"
        ));
        exchange.hang();
    });
    let server = with_upgrade(&backend)
        .config("server.modules += ( \"mod_access\" )")
        .config("$HTTP[\"url\"] =^ \"/app/secret\" { url.access-deny = ( \"\" ) }")
        .start();
    let connection = "Connection: Upgrade, HTTP2-Settings\r\n";
    for request in [
        h2c("Upgrade: h2c\r\n", connection),
        h2c("Upgrade: H2C\r\n", connection),
        h2c("Upgrade: h2c\r\n", "Connection: keep-alive\r\n"),
        h2c("Upgrade: h2c\r\n", ""),
        h2c("Upgrade: HTTP/2.0\r\n", connection),
        h2c("Upgrade: websocket\r\n", ""),
        h2c("Upgrade: websocket\r\n", "Connection: keep-alive\r\n"),
        h2c("Upgrade: unknown\r\n", connection),
    ] {
        let mut client = server.client();
        client.send(&request);
        assert_eq!(client.response().text(), "no upgrade", "{request}");
        let asked = backend.last();
        assert_eq!(asked.param("Upgrade"), None, "{request}");
        assert_eq!(asked.param("HTTP2-Settings"), None, "{request}");
        // The connection still carries requests, to which the rules apply.
        assert_eq!(client.get("/app/secret").status, 403, "{request}");
    }
    let mut client = server.client();
    client.send(h2c("Upgrade: h2c, websocket\r\n", connection));
    assert_eq!(client.response().field("Upgrade"), Some("websocket"));
    assert_eq!(backend.last().param("Upgrade"), Some("websocket"));
    // A client that uses HTTP/2 from the beginning.
    let before = backend.requests().len();
    let mut client = server.client();
    client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    assert_eq!(client.response().status, 505);
    assert_eq!(backend.requests().len(), before);
}

#[test]
fn a_101_opens_the_tunnel_only_if_it_names_what_the_client_asked_for() {
    for speaks in [Speaks::Http, Speaks::FastCgi, Speaks::Scgi] {
        let backend = Backend::start(speaks, |exchange| {
            match name(exchange) {
                "same" => {
                    exchange.head(101, &[("Connection", "Upgrade"), ("Upgrade", "WebSocket")])
                }
                "other" => exchange.head(101, &[("Connection", "Upgrade"), ("Upgrade", "h2c")]),
                "both" => exchange.head(
                    101,
                    &[("Connection", "Upgrade"), ("Upgrade", "websocket, h2c")],
                ),
                "two" => exchange.head(
                    101,
                    &[
                        ("Connection", "Upgrade"),
                        ("Upgrade", "websocket"),
                        ("Upgrade", "h2c"),
                    ],
                ),
                _ => exchange.head(101, &[("Connection", "Upgrade")]),
            }
            exchange.hang();
        });
        let options = format!("\"upgrade\" => \"enable\", {OPTIONS}");
        let server = Server::build()
            .config(&backend.directive(KEY, &options))
            .start();
        for (target, status) in [
            ("same", 101),
            ("other", 502),
            ("both", 502),
            ("two", 502),
            ("none", 502),
        ] {
            let mut client = server.client();
            client.send(HANDSHAKE.replace("TARGET", target));
            assert_eq!(client.response().status, status, "{speaks:?} {target}");
        }
        server.expect_log("(backend-body) its 101 does not name the protocol");
        server.expect_log(backend.name().trim_start_matches("unix:"));
    }
}

#[test]
fn fastcgi_applications_are_told_of_the_upgrade_that_they_may_agree_to() {
    let backend = Backend::start(Speaks::FastCgi, |exchange| {
        let upgrade = exchange.param("HTTP_UPGRADE").to_owned();
        let settings = exchange.param("HTTP_HTTP2_SETTINGS").to_owned();
        exchange.say(&format!("[{upgrade}{settings}]"));
    });
    let options = format!("\"upgrade\" => \"enable\", {OPTIONS}");
    for (options, told) in [(OPTIONS, "[]"), (&options, "[websocket]")] {
        let server = Server::build()
            .config(&backend.directive(KEY, options))
            .start();
        let connection = "Connection: Upgrade, HTTP2-Settings\r\n";
        for (upgrade, told) in [
            ("Upgrade: websocket\r\n", told),
            ("Upgrade: h2c, websocket\r\n", told),
            ("Upgrade: h2c\r\n", "[]"),
        ] {
            let response = server.exchange(h2c(upgrade, connection));
            assert_eq!(response.text(), told, "{upgrade}");
        }
    }
}

#[test]
fn a_protocol_that_the_configuration_names_is_passed_on() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        let upgrade = exchange.param("Upgrade").to_owned();
        exchange.say(&format!("[{upgrade}]"));
    });
    let server = in_front_of(&backend)
        .config("proxy.header = ( \"upgrade\" => ( \"mine/1\", \"other\" ) )")
        .start();
    let connection = "Connection: Upgrade\r\n";
    for (upgrade, told) in [
        ("Upgrade: websocket\r\n", "[]"),
        ("Upgrade: websocket, Mine/1\r\n", "[Mine/1]"),
        ("Upgrade: mine/2\r\nUpgrade: other\r\n", "[other]"),
    ] {
        let response = server.exchange(h2c(upgrade, connection));
        assert_eq!(response.text(), told, "{upgrade}");
    }
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
