//! Trailers of requests and of replies.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use petrel_tests::http2::{DATA, END_HEADERS, END_STREAM, HEADERS, block, frame};
use petrel_tests::{Backend, Exchange, Server, Speaks, curl};

use crate::gateway::http2::{H2C, connect_with, next};
use crate::gateway::{in_front_of, in_front_of_with, name};

/// A reply of whose trailers only some may be passed on.
const REPLY: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTrailer: X-Sum\r\n\
    Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n\
    5\r\nhello\r\n0\r\nX-Sum: 1\r\nSet-Cookie: a=b\r\nRepr-Digest: x\r\nContent-Length: 7\r\n\r\n";

/// What follows the last byte of the body on its way to a client in chunks.
const SENT_ON: &str = "o\r\n0\r\nX-Sum: 1\r\nRepr-Digest: x\r\n\r\n";

fn replies(exchange: &mut Exchange<'_>) {
    exchange.read_body();
    match name(exchange) {
        "bytes" => exchange.trickle(REPLY),
        _ => exchange.raw(REPLY),
    }
    exchange.close();
}

/// What a client receives for a request with these fields, in wire form.
fn asked(server: &Server, line: &str, fields: &str) -> String {
    let mut client = server.client();
    client.send(format!(
        "{line}\r\nHost: a\r\nConnection: close\r\n{fields}\r\n"
    ));
    String::from_utf8(client.read_to_end()).expect("it is text")
}

const TAKES: &str = "TE: trailers\r\n";

#[test]
fn those_of_a_reply_go_to_clients_that_take_them() {
    let backend = Backend::start(Speaks::Http, replies);
    for mode in 0..3 {
        let mode = format!("server.stream-response-body = {mode}");
        let server = in_front_of(&backend).config(H2C).config(&mode).start();
        for path in ["/app/at-once", "/app/bytes"] {
            let get = format!("GET {path} HTTP/1.1");
            let answer = asked(&server, &get, TAKES);
            assert!(answer.ends_with(SENT_ON), "{mode}: {answer}");
            assert!(answer.contains("\r\nTrailer: X-Sum\r\n"), "{answer}");
            let taken = backend.last();
            assert_eq!(taken.param("TE"), Some("trailers"));
            assert_eq!(taken.param("Connection"), Some("TE"));
            let answer = asked(&server, &get, "");
            assert!(!answer.contains("X-Sum"), "{mode}: {answer}");
            assert_eq!(backend.last().param("TE"), None);
            let old = format!("GET {path} HTTP/1.0");
            let answer = asked(&server, &old, TAKES);
            assert!(answer.ends_with("\r\n\r\nhello"), "{mode}: {answer}");
            assert_eq!(backend.last().param("TE"), None);
            let head = format!("HEAD {path} HTTP/1.1");
            let answer = asked(&server, &head, TAKES);
            assert!(answer.ends_with("\r\n\r\n"), "{mode}: {answer}");
            assert!(!answer.contains("X-Sum: 1"), "{mode}: {answer}");
            let url = server.url(path);
            let finished = curl(&["--http2-prior-knowledge", "--dump-header", "-", &url]);
            let text = finished.text().replace("\r\n", "\n");
            assert!(text.contains("trailer: X-Sum\n"), "{mode}: {text}");
            assert!(
                text.contains("hellox-sum: 1\nrepr-digest: x\n"),
                "{mode}: {text} {}",
                finished.errors
            );
            assert!(!text.contains("set-cookie"), "{mode}: {text}");
        }
    }
}

#[test]
fn a_program_that_makes_chunks_has_trailers_too() {
    let backend = Backend::start(Speaks::FastCgi, |exchange| {
        let chunks = "5\r\nhello\r\n0\r\nX-Sum: 1\r\nRepr-Digest: x\r\n\r\n";
        exchange.head(200, &[("Transfer-Encoding", "chunked")]);
        exchange.body(chunks);
        exchange.end();
    });
    for mode in 0..3 {
        let mode = format!("server.stream-response-body = {mode}");
        let server = in_front_of(&backend).config(&mode).start();
        let answer = asked(&server, "GET /app/ HTTP/1.1", TAKES);
        assert!(answer.ends_with(SENT_ON), "{mode}: {answer}");
        let answer = asked(&server, "GET /app/ HTTP/1.1", "");
        assert!(!answer.contains("X-Sum"), "{mode}: {answer}");
    }
}

#[test]
fn what_takes_the_place_of_a_body_has_none_of_its_trailers() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        let file = exchange.target().split_once("?file=");
        let field = file.map(|(_, file)| format!("X-Sendfile: {file}\r\n"));
        let line = "HTTP/1.1 200 OK\r\n";
        let reply = REPLY.replacen(line, &[line, &field.unwrap_or_default()].concat(), 1);
        exchange.raw(reply);
        exchange.close();
    });
    for mode in 0..3 {
        let script = "local body = lighty.r.resp_body body.set('length ' .. #body.get)";
        let options =
            "\"x-sendfile\" => \"enable\", \"x-sendfile-docroot\" => ( var.dir + \"/files\" ), ";
        let server = in_front_of_with(&backend, options)
            .file("files/a.txt", "the file")
            .file("measures.lua", script)
            .config("server.modules += ( \"mod_magnet\" )\nlua.max-run-time = 1000")
            .config(&format!("server.stream-response-body = {mode}"))
            .config(
                "$HTTP[\"url\"] =^ \"/app/measured\" {
                    magnet.attract-response-start-to = ( var.dir + \"/measures.lua\" )
                }",
            )
            .start();
        let answer = asked(&server, "GET /app/measured HTTP/1.1", TAKES);
        assert!(answer.ends_with("length 5"), "{mode}: {answer}");
        let file = server.tree().path("files/a.txt");
        let line = format!("GET /app/?file={} HTTP/1.1", file.display());
        let answer = asked(&server, &line, TAKES);
        assert!(answer.ends_with("\r\n\r\nthe file"), "{mode}: {answer}");
    }
}

#[test]
fn a_page_with_trailers_is_not_stored_and_one_that_is_compressed_keeps_what_is_true() {
    let count = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&count);
    let backend = Backend::start(Speaks::Http, move |exchange| {
        counting.fetch_add(1, Ordering::SeqCst);
        let mut fresh = REPLY.replacen("\r\n", "\r\nCache-Control: max-age=60\r\n", 1);
        if name(exchange) == "without" {
            fresh.truncate(fresh.find("X-Sum: 1").expect("it is there"));
            fresh.push_str("\r\n");
        }
        exchange.raw(fresh);
        exchange.close();
    });
    for mode in 0..3 {
        let server = in_front_of(&backend)
            .config("server.modules := ( \"mod_page_cache\", \"mod_proxy\", \"mod_deflate\" )")
            .config("page-cache.enable = \"enable\"")
            .config("deflate.mimetypes = ( \"text/\" )\ndeflate.min-compress-size = 1")
            .config(&format!("server.stream-response-body = {mode}"))
            .start();
        count.store(0, Ordering::SeqCst);
        for (number, fields) in ["", TAKES, TAKES].into_iter().enumerate() {
            let answer = asked(&server, "GET /app/ HTTP/1.1", fields);
            assert_eq!(answer.ends_with(SENT_ON), !fields.is_empty(), "{answer}");
            assert_eq!(count.load(Ordering::SeqCst), number + 1, "{mode}");
        }
        for _ in 0..2 {
            asked(&server, "GET /app/without HTTP/1.1", TAKES);
            assert_eq!(count.load(Ordering::SeqCst), 4, "{mode}");
        }
        let mut client = server.client();
        let wants = "GET /app/z HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\
                     Accept-Encoding: gzip\r\nTE: trailers\r\n\r\n";
        client.send(wants);
        let answer = client.read_to_end();
        let text = String::from_utf8_lossy(&answer);
        assert!(text.contains("Content-Encoding: gzip"), "{text}");
        assert!(answer.ends_with(b"\r\n0\r\nX-Sum: 1\r\n\r\n"), "{mode}");
    }
}

#[test]
fn those_of_a_request_go_to_a_backend_that_gets_chunks() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        let mut wire = format!("{}: ", exchange.param("Trailer"));
        let end = match exchange.param("Transfer-Encoding") {
            "chunked" => "\r\n\r\n",
            _ => "hello",
        };
        while !wire.ends_with(end) {
            let more = exchange.receive(1 << 16);
            assert!(!more.is_empty(), "it ends behind {wire:?}");
            wire += &String::from_utf8(more).expect("it is text");
        }
        let length = wire.len();
        exchange.raw(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{wire}"
        ));
    });
    for (mode, expected) in [
        (0, ": hello"),
        (1, "x-sum: 5\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n"),
        (2, "x-sum: 5\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n"),
    ] {
        let server = in_front_of(&backend)
            .config(H2C)
            .config(&format!("server.stream-request-body = {mode}"))
            .start();
        let mut client = server.client();
        let request = "POST /app/ HTTP/1.1\r\nHost: a\r\nTrailer: x-sum\r\n\
             Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 1\r\nhost: b\r\n\r\n";
        for cut in [request.len(), request.len() - 2, request.len() - 20] {
            client.send_in_pieces(request, &[cut]);
            assert_eq!(client.response().text(), expected, "{mode}, {cut}");
        }
        let fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "a"),
            (":path", "/app/"),
            ("trailer", "x-sum"),
        ];
        let mut client = connect_with(&server, &fields);
        client.send(frame(DATA, 0, 1, b"hello"));
        let trailers = block(&[("x-sum", "1"), ("authorization", "x")]);
        client.send(frame(HEADERS, END_STREAM | END_HEADERS, 1, &trailers));
        next(&mut client, HEADERS);
        let told = next(&mut client, DATA).1;
        assert_eq!(String::from_utf8_lossy(&told), expected, "{mode}");
    }
}
