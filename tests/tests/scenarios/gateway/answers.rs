//! Responses that pass through: interim ones, in pieces, to slow clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use petrel_tests::{Backend, Server, Speaks, eventually};

use crate::gateway::{in_front_of, name};

#[test]
fn early_hints_are_passed_on() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        exchange.raw("HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n");
        exchange.pause(Duration::from_millis(30));
        exchange.say("page");
    });
    let server = in_front_of(&backend).start();
    let mut client = server.client();
    for _ in 0..2 {
        let response = client.get("/app/");
        assert_eq!((response.status, response.text().as_str()), (200, "page"));
        assert_eq!(response.interim, [103]);
    }
    let old = server.exchange("GET /app/ HTTP/1.0\r\n\r\n");
    assert_eq!((old.status, old.interim.len()), (200, 0), "1.0 knows none");
}

#[test]
fn the_fields_of_early_hints_arrive() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        exchange.raw("HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n");
        exchange.hang();
    });
    let server = in_front_of(&backend).start();
    let mut client = server.client();
    client.send("GET /app/ HTTP/1.1\r\nHost: a\r\n\r\n");
    let expected = "HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n";
    let came = client.read_bytes(expected.len());
    assert_eq!(String::from_utf8_lossy(&came), expected);
}

/// A script may work on behind its reply. The connection is kept for the next
/// request all the same.
#[test]
fn a_reply_that_has_its_length_does_not_wait_for_the_end_of_the_script() {
    for mode in [0, 1, 2] {
        let goes_on = Arc::new(AtomicBool::new(false));
        let may_go_on = Arc::clone(&goes_on);
        let backend = Backend::start(Speaks::FastCgi, move |exchange| {
            exchange.read_body();
            exchange.head(200, &[("Content-Length", "5")]);
            exchange.body("whole");
            while !may_go_on.load(Ordering::SeqCst) {
                exchange.pause(Duration::from_millis(2));
            }
            exchange.log("said behind it");
            exchange.end();
        });
        let server = in_front_of(&backend)
            .config(&format!("server.stream-response-body = {mode}"))
            .start();
        assert_eq!(server.get("/app/").text(), "whole", "{mode}");
        let mut client = server.client();
        client.send("HEAD /app/ HTTP/1.1\r\nHost: a\r\n\r\n");
        let head = client.response_to_head();
        assert_eq!(head.field("Content-Length"), Some("5"), "{mode}");
        goes_on.store(true, Ordering::SeqCst);
        server.expect_log("said behind it");
        let kept = || {
            let before = backend.connections();
            server.get("/app/").text() == "whole" && backend.connections() == before
        };
        assert!(eventually(kept), "{mode}");
    }
}

#[test]
fn hop_by_hop_fields_stay_where_they_are() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        let fields = [
            ("Connection", "keep-alive, X-Internal"),
            ("Keep-Alive", "timeout=5"),
            ("X-Internal", "secret"),
            ("Proxy-Authenticate", "Basic"),
            ("X-Public", "yes"),
        ];
        exchange.answer(200, &fields, "ok");
    });
    let server = in_front_of(&backend).start();
    let fields = [
        ("Connection", "X-Hop"),
        ("X-Hop", "1"),
        ("TE", "trailers"),
        ("Proxy-Authorization", "Basic eDp5"),
        ("X-Far", "1"),
    ];
    let response = server.client().request("GET", "/app/", &fields);
    assert_eq!(response.status, 200, "{response}");
    assert_eq!(response.field("X-Internal"), None, "{response}");
    assert_eq!(response.field("Keep-Alive"), None, "{response}");
    assert_eq!(response.field("X-Public"), Some("yes"), "{response}");
    let request = backend.last();
    assert_eq!(request.param("X-Far"), Some("1"));
    assert_eq!(request.param("X-Hop"), None);
}

#[test]
fn fields_that_come_twice_stay_two() {
    for speaks in Speaks::ALL {
        let backend = Backend::start(speaks, |exchange| {
            let fields = [("Set-Cookie", "a=1"), ("Set-Cookie", "b=2; Path=/")];
            exchange.answer(200, &fields, "ok");
        });
        let server = in_front_of(&backend).start();
        let response = server.get("/app/");
        assert_eq!(
            response.all("Set-Cookie"),
            ["a=1", "b=2; Path=/"],
            "{speaks:?}"
        );
    }
}

/// A backend that sends the beginning of a response, and the rest when the test says so.
fn in_two_parts(speaks: Speaks) -> (Backend, Arc<AtomicBool>) {
    let go_on = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&go_on);
    let backend = Backend::start(speaks, move |exchange| {
        exchange.read_body();
        exchange.head(200, &[("Content-Type", "text/plain")]);
        exchange.body("first;");
        while !told.load(Ordering::SeqCst) {
            exchange.pause(Duration::from_millis(2));
        }
        exchange.body("second");
        exchange.end();
    });
    (backend, go_on)
}

/// Each value of `server.stream-response-body`, and none.
const MODES: [&str; 4] = [
    "",
    "server.stream-response-body = 0",
    "server.stream-response-body = 1",
    "server.stream-response-body = 2",
];

/// The answer waits for its end with `server.stream-response-body = 0` only.
const COLLECTS: &str = MODES[1];

#[test]
fn the_first_byte_is_held_back_only_on_request() {
    for speaks in Speaks::ALL {
        let (backend, go_on) = in_two_parts(speaks);
        for mode in MODES {
            go_on.store(false, Ordering::SeqCst);
            let server = in_front_of(&backend).config(mode).start();
            let mut client = server.client();
            // An HTTP/1.0 client gets the body without framing, and cannot see whether it is whole.
            let version = if mode.is_empty() { "1.1" } else { "1.0" };
            client.send(format!(
                "GET /app/ HTTP/{version}\r\nHost: a\r\nConnection: close\r\n\r\n"
            ));
            if mode == COLLECTS {
                client.expect_silence(Duration::from_millis(150));
            } else {
                let mut came = Vec::new();
                while !came.ends_with(b"first;") {
                    came.extend(client.read_bytes(1));
                }
            }
            go_on.store(true, Ordering::SeqCst);
            let rest = client.read_to_end();
            let rest = String::from_utf8_lossy(&rest).into_owned();
            assert!(rest.contains("second"), "{speaks:?}, {mode}");
        }
    }
}

/// Where `server.stream-response-body` is not set, the beginning of a long reply is sent, and a short one is sent
/// as a whole, with its length. What a client asks for a part of has to be complete.
#[test]
fn a_reply_is_sent_when_it_is_long_or_late() {
    for speaks in Speaks::ALL {
        let go_on = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&go_on);
        let backend = Backend::start(speaks, move |exchange| {
            exchange.read_body();
            if name(exchange) == "short" {
                return exchange.say("short");
            }
            exchange.head(200, &[("Content-Type", "text/plain")]);
            exchange.body("f".repeat(80_000));
            while !told.load(Ordering::SeqCst) {
                exchange.pause(Duration::from_millis(2));
            }
            exchange.body("s".repeat(80_000));
            exchange.end();
        });
        let server = in_front_of(&backend).start();
        let mut client = server.client();
        let short = client.get("/app/short");
        assert_eq!(short.field("Content-Length"), Some("5"), "{speaks:?}");
        assert_eq!(short.text(), "short", "{speaks:?}");
        client.send("GET /app/long HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut came = Vec::new();
        while came.iter().filter(|byte| **byte == b'f').count() < 65_536 {
            came.extend(client.read_bytes(64));
        }
        let mut other = server.client();
        other.send("GET /app/long HTTP/1.1\r\nHost: a\r\nRange: bytes=79998-80001\r\n\r\n");
        let mut old = server.client();
        old.send("GET /app/long HTTP/1.0\r\n\r\n");
        other.expect_silence(Duration::from_millis(150));
        old.expect_silence(Duration::from_millis(1));
        go_on.store(true, Ordering::SeqCst);
        let part = other.response();
        assert_eq!(
            (part.status, part.text().as_str()),
            (206, "ffss"),
            "{speaks:?}"
        );
    }
}

/// Too large for any socket buffer.
const LARGE: u64 = 24 << 20;

/// A backend that writes [`LARGE`] bytes. The counter says how many are written; the last one is counted when
/// the response is complete.
fn large(speaks: Speaks) -> (Backend, Arc<AtomicU64>) {
    let written = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&written);
    let backend = Backend::start(speaks, move |exchange| {
        exchange.read_body();
        count.store(0, Ordering::SeqCst);
        let length = LARGE.to_string();
        exchange.head(200, &[("Content-Length", &length)]);
        let piece: Vec<u8> = (0..1 << 16).map(|at| (at % 251) as u8).collect();
        for _ in 0..LARGE >> 16 {
            exchange.body(&piece);
            count.fetch_add(1 << 16, Ordering::SeqCst);
        }
        exchange.end();
        count.fetch_add(1, Ordering::SeqCst);
    });
    (backend, written)
}

fn has_pattern(body: &[u8]) -> bool {
    let piece: Vec<u8> = (0..1 << 16).map(|at| (at % 251) as u8).collect();
    body.chunks(1 << 16)
        .all(|chunk| *chunk == piece[..chunk.len()])
}

#[test]
fn a_slow_reader_does_not_hold_the_backend() {
    for speaks in [Speaks::FastCgi, Speaks::Http, Speaks::Scgi] {
        let (backend, written) = large(speaks);
        for mode in &MODES[..3] {
            let server = spooling(&backend, mode);
            let mut client = server.client().with_receive_buffer(1 << 16);
            client.send("GET /app/ HTTP/1.1\r\nHost: a\r\n\r\n");
            assert!(
                eventually(|| written.load(Ordering::SeqCst) > LARGE),
                "{speaks:?}, {mode}: the backend waits for the client"
            );
            if speaks == Speaks::Scgi {
                backend.expect_open_connections(0);
            }
            let response = client.response();
            assert_eq!(response.body.len() as u64, LARGE, "{speaks:?}, {mode}");
            assert!(has_pattern(&response.body), "{speaks:?}, {mode}");
            assert!(
                eventually(|| server.tree().names("upload").is_empty()),
                "a temporary file is left: {:?}",
                server.tree().names("upload")
            );
        }
    }
}

#[test]
fn a_slow_reader_slows_the_backend_with_stream_response_body_2() {
    for speaks in [Speaks::FastCgi, Speaks::Http, Speaks::Scgi, Speaks::Ajp13] {
        let (backend, written) = large(speaks);
        let server = spooling(&backend, MODES[3]);
        let mut client = server.client().with_receive_buffer(1 << 16);
        client.send("GET /app/ HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(eventually(|| written.load(Ordering::SeqCst) > 0));
        let mut last = u64::MAX;
        while last != written.load(Ordering::SeqCst) {
            last = written.load(Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(200));
        }
        assert!(last < LARGE / 2, "{speaks:?}: {last} bytes were taken");
        assert_eq!(server.tree().names("upload"), Vec::<String>::new());
        let response = client.response();
        assert_eq!(response.body.len() as u64, LARGE, "{speaks:?}");
        assert!(has_pattern(&response.body), "{speaks:?}");
    }
}

fn spooling(backend: &Backend, mode: &str) -> Server {
    in_front_of(backend)
        .tree(|tree| {
            tree.directory("upload");
        })
        .config("server.upload-dirs = ( var.dir + \"/upload\" )")
        .config(mode)
        .start()
}

#[test]
fn answers_without_a_length_are_chunked_or_end_with_the_connection() {
    for speaks in Speaks::ALL {
        let backend = Backend::start(speaks, |exchange| {
            exchange.read_body();
            exchange.head(200, &[("Content-Type", "text/plain")]);
            for word in ["one ", "two ", "three"] {
                exchange.body(word);
                exchange.pause(Duration::from_millis(5));
            }
            exchange.end();
        });
        for mode in MODES {
            let server = in_front_of(&backend).config(mode).start();
            let mut client = server.client();
            for _ in 0..2 {
                let response = client.get("/app/");
                assert_eq!(response.text(), "one two three", "{speaks:?}, {mode}");
                assert!(!response.closes(), "{speaks:?}, {mode}: {response}");
            }
            let old = server.exchange("GET /app/ HTTP/1.0\r\n\r\n");
            assert_eq!(old.text(), "one two three", "{speaks:?}, {mode}");
            assert_eq!(old.field("Transfer-Encoding"), None);
        }
    }
}

#[test]
fn a_backend_may_send_what_a_module_changes() {
    let text = "compress me ".repeat(1000);
    let body = text.clone();
    let backend = Backend::start(Speaks::FastCgi, move |exchange| match name(exchange) {
        "ready" => exchange.answer(
            200,
            &[("Content-Type", "text/plain"), ("Content-Encoding", "br")],
            "already",
        ),
        _ => exchange.say(&body),
    });
    let server = in_front_of(&backend)
        .config("server.modules += ( \"mod_deflate\" )")
        .config("deflate.mimetypes = ( \"text/\" )")
        .config("deflate.allowed-encodings = ( \"gzip\" )")
        .start();
    let url = server.url("/app/");
    let finished = petrel_tests::curl(&["--compressed", "-w", "%{size_download}", &url]);
    let (unpacked, size) = finished.output.split_at(text.len());
    assert!(unpacked == text.as_bytes());
    let size: usize = String::from_utf8_lossy(size).parse().expect("a number");
    assert!(size < text.len() / 5, "{size} bytes");
    let fields = [("Accept-Encoding", "gzip")];
    let ready = server.client().request("GET", "/app/ready", &fields);
    assert_eq!(ready.text(), "already", "{ready}");
    assert_eq!(ready.field("Content-Encoding"), Some("br"), "{ready}");
}
