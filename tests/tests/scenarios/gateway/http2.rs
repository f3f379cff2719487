//! HTTP/2 clients with backends that do not speak HTTP/2.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use petrel_tests::http2::{
    DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, RST_STREAM, SETTINGS, block, frame,
};
use petrel_tests::{Backend, Client, Exchange, Server, Speaks, curl, eventually};

use crate::gateway::{COUNTERS, in_front_of, in_front_of_with, name};

pub(crate) const H2C: &str = "server.h2c = \"enable\"";

#[test]
fn uploads_and_answers_of_backends_come_through_whole() {
    for speaks in [Speaks::FastCgi, Speaks::Http] {
        let backend = Backend::start(speaks, |exchange| {
            let body = exchange.read_body();
            exchange.answer(200, &[("Connection", "keep-alive"), ("X-A", "b")], body);
        });
        for stream in 0..3 {
            let streams = format!(
                "server.stream-request-body = {stream}\nserver.stream-response-body = {stream}"
            );
            let server = in_front_of(&backend)
                .config(H2C)
                .config(&streams)
                .file("upload", vec![b'y'; 1_000_000])
                .start();
            let upload = server.tree().path("upload");
            let data = format!("@{}", upload.display());
            let url = server.url("/app/echo");
            let finished = curl(&[
                "--http2-prior-knowledge",
                "--data-binary",
                &data,
                "--output",
                "/dev/null",
                "--write-out",
                "%{http_version} %{http_code} %{size_download}",
                &url,
            ]);
            let errors = &finished.errors;
            assert_eq!(finished.text(), "2 200 1000000", "{stream}: {errors}");
        }
    }
}

/// The next frame of that type: its flags and its payload.
pub(crate) fn next(client: &mut Client, wanted: u8) -> (u8, Vec<u8>) {
    loop {
        let header = client.read_bytes(9);
        let length = usize::from(header[1]) << 8 | usize::from(header[2]);
        let payload = client.read_bytes(length);
        if header[3] == wanted {
            return (header[4], payload);
        }
    }
}

/// A client that has requested a tunnel.
fn connect(server: &Server, path: &str, protocol: &str) -> Client {
    let fields = [
        (":method", "CONNECT"),
        (":scheme", "http"),
        (":authority", "petrel.test"),
        (":path", path),
        (":protocol", protocol),
        ("sec-websocket-version", "13"),
    ];
    connect_with(server, &fields)
}

/// A client that has sent the head of its first request, which more data follows.
pub(crate) fn connect_with(server: &Server, fields: &[(&str, &str)]) -> Client {
    let mut client = server.client();
    client.send(PREFACE);
    client.send(frame(SETTINGS, 0, 0, b""));
    client.send(frame(HEADERS, 4, 1, &block(fields)));
    client
}

/// The index of `:status: 200` in the static table, as a field.
const OK: u8 = 0x88;

#[test]
fn a_websocket_is_opened_by_extended_connect() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        assert_eq!(exchange.param("Upgrade"), "websocket");
        assert_eq!(exchange.param("Sec-WebSocket-Key").len(), 24);
        assert_eq!(exchange.param("REQUEST_METHOD"), "GET");
        match name(exchange) {
            "rejected" => return exchange.answer(403, &[], "not you"),
            "ignored" => return exchange.say("plain"),
            _ => {}
        }
        exchange.raw(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Accept: x\r\n\r\n",
        );
        loop {
            let bytes = exchange.receive(1 << 16);
            if bytes.is_empty() {
                exchange.raw("last words");
                return exchange.close();
            }
            exchange.raw(&bytes);
        }
    });
    let server = in_front_of(&backend)
        .config(H2C)
        .config("proxy.header = ( \"upgrade\" => \"enable\" )")
        .config("server.modules += ( \"mod_accesslog\" )")
        .config("accesslog.filename = var.dir + \"/access.log\"")
        .config("accesslog.format = \"%U %s\"")
        .start();
    let mut client = connect(&server, "/app/socket", "websocket");
    let (flags, head) = next(&mut client, HEADERS);
    assert_eq!((flags & 1, head[0]), (0, OK));
    for text in ["one", "two", "three"] {
        client.send(frame(DATA, 0, 1, text.as_bytes()));
        assert_eq!(next(&mut client, DATA).1, text.as_bytes());
    }
    client.send(frame(DATA, 1, 1, b""));
    assert_eq!(next(&mut client, DATA).1, b"last words");
    // HTTP/2 has no 101 (RFC 8441 5).
    assert!(eventually(|| {
        let log = server.tree().path("access.log");
        std::fs::read_to_string(log).is_ok_and(|log| log.contains("/app/socket 200\n"))
    }));
    // The path of a file, an unlisted protocol, and a backend that declines or ignores the upgrade.
    for (path, protocol) in [
        ("/index.html", "websocket"),
        ("/app/socket", "webtransport"),
        ("/app/rejected", "websocket"),
        ("/app/ignored", "websocket"),
    ] {
        let mut client = connect(&server, path, protocol);
        let (_, head) = next(&mut client, HEADERS);
        assert_ne!(head[0], OK, "{path}");
    }
}

#[test]
fn a_websocket_is_a_get_for_rules_in_every_version() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        exchange.raw(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        );
        exchange.hang();
    });
    for (rule, is_open) in [("==", false), ("!=", true)] {
        let deny =
            format!("$HTTP[\"request-method\"] {rule} \"GET\" {{ url.access-deny = ( \"\" ) }}");
        let server = in_front_of(&backend)
            .config(H2C)
            .config("server.modules += ( \"mod_access\" )")
            .config("proxy.header = ( \"upgrade\" => \"enable\" )")
            .config(&deny)
            .start();
        let mut client = connect(&server, "/app/socket", "websocket");
        let (_, head) = next(&mut client, HEADERS);
        assert_eq!(head[0] == OK, is_open, "HTTP/2 {rule}");
        let mut client = server.client();
        client.send(
            "GET /app/socket HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        );
        let line = String::from_utf8_lossy(&client.read_bytes(12)).into_owned();
        let status = if is_open {
            "HTTP/1.1 101"
        } else {
            "HTTP/1.1 403"
        };
        assert_eq!(line, status, "HTTP/1 {rule}");
    }
}

/// How many requests the backend handles at the same time.
const AT_A_TIME: usize = 4;

/// Those that the backend handles, and more that wait for a connection to it.
const STREAMS: u32 = 40;

/// A client resets streams. The backend works on some of the requests, some wait for a connection to it, and
/// some responses have begun. Waiting requests are never sent, connections become free, and the next requests
/// are answered.
#[test]
fn streams_that_are_reset_free_the_backend() {
    for speaks in [Speaks::FastCgi, Speaks::Http] {
        // The backend works on a request until this changes.
        let round = Arc::new(AtomicUsize::new(0));
        let current = Arc::clone(&round);
        let backend = Backend::start(speaks, move |exchange| {
            let begun_in = current.load(Ordering::SeqCst);
            let work = |exchange: &Exchange<'_>| {
                while current.load(Ordering::SeqCst) == begun_in {
                    exchange.pause(Duration::from_millis(5));
                }
            };
            match name(exchange) {
                "begun" => {
                    exchange.head(200, &[]);
                    exchange.body("begun");
                    work(exchange);
                    exchange.end();
                }
                "works" => {
                    work(exchange);
                    exchange.say("too late");
                }
                _ => exchange.say("next"),
            }
        });
        let server = in_front_of_with(&backend, &format!("\"max-connections\" => {AT_A_TIME}, "))
            .config(H2C)
            .config("server.stream-response-body = 2")
            .config(COUNTERS)
            .start();
        let active = || {
            let counters = server.get("/counters").text();
            let line = counters
                .lines()
                .find(|line| line.starts_with("gw.active-requests: "));
            line.map(str::to_owned)
        };
        for path in ["/app/works", "/app/begun"] {
            let mut client = server.client();
            client.send(PREFACE);
            client.send(frame(SETTINGS, 0, 0, b""));
            let get = |path: &str, number: u32| {
                let fields = [
                    (":method", "GET"),
                    (":scheme", "http"),
                    (":authority", "petrel.test"),
                    (":path", path),
                ];
                let id = 2 * number + 1;
                frame(HEADERS, END_HEADERS | END_STREAM, id, &block(&fields))
            };
            let before = backend.requests().len();
            let asks = (0..STREAMS).flat_map(|number| get(path, number));
            client.send(asks.collect::<Vec<u8>>());
            backend.expect_requests(before + AT_A_TIME);
            if path == "/app/begun" {
                for _ in 0..AT_A_TIME {
                    assert_eq!(next(&mut client, DATA).1, b"begun");
                }
            }
            let cancel = [0, 0, 0, 8];
            let reset = |number| frame(RST_STREAM, 0, 2 * number + 1, &cancel);
            let resets = (0..STREAMS).flat_map(reset);
            client.send(resets.collect::<Vec<u8>>());
            // Waiting requests were never sent to the backend.
            assert!(eventually(
                || active().as_deref() == Some("gw.active-requests: 0")
            ));
            assert_eq!(backend.requests().len(), before + AT_A_TIME, "{speaks:?}");
            round.fetch_add(1, Ordering::SeqCst);
            // More requests on the same connection than there are permits: they wait until the backend has
            // finished earlier ones, or their connections were closed.
            for number in 0..2 * AT_A_TIME as u32 {
                client.send(get("/app/next", STREAMS + number));
            }
            for _ in 0..2 * AT_A_TIME {
                assert_eq!(next(&mut client, DATA).1, b"next");
            }
            let asked = before + AT_A_TIME + 2 * AT_A_TIME;
            assert_eq!(backend.requests().len(), asked, "{speaks:?}");
            assert!(eventually(|| backend.open_connections() <= AT_A_TIME));
        }
    }
}
