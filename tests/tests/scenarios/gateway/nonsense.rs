//! Rows 34 to 37: replies that backends must not send.

use std::time::Duration;

use petrel_tests::{Backend, ClientError, Speaks, fastcgi_record};

use crate::gateway::{in_front_of, name};

/// A backend that replies with `raw` to every request.
fn saying(speaks: Speaks, raw: Vec<u8>) -> Backend {
    Backend::start(speaks, move |exchange| {
        exchange.read_body();
        exchange.raw(&raw);
        exchange.hang();
    })
}

/// Expects 502, and that the connection is not used again.
#[track_caller]
fn expect_refused(speaks: Speaks, raw: Vec<u8>) {
    let shown = String::from_utf8_lossy(&raw[..raw.len().min(80)]).into_owned();
    let backend = saying(speaks, raw);
    let server = in_front_of(&backend).start();
    let mut client = server.client();
    let response = client.get("/app/");
    assert_eq!(response.status, 502, "{speaks:?} {shown:?}: {response}");
    assert!(!response.text().contains("secret"), "{shown:?}: {response}");
    backend.expect_open_connections(0);
    assert_eq!(
        client.get("/").text(),
        "hello",
        "the client is not to blame"
    );
    server.expect_log("backend.sock");
}

#[test]
fn row_34_heads_of_http_that_make_no_sense_are_502() {
    for head in [
        "HTTP/1.1 abc OK\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 099 OK\r\n\r\n",
        "SSH-2.0-OpenSSH_9.2\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nsecret",
        "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nsecret",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nsecret",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nsecret",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nsecret",
        "HTTP/1.1 200 OK\r\nBad Name: 1\r\n\r\nsecret",
        "HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\nsecret",
        "HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\nsecret",
        "HTTP/1.1 200 OK\r\n: nameless\r\n\r\nsecret",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\nsecret",
    ] {
        expect_refused(Speaks::Http, head.into());
    }
}

#[test]
fn row_34_heads_of_cgi_that_make_no_sense_are_502() {
    for head in [
        "Status: abc\r\n\r\nsecret",
        "Status: 99\r\n\r\nsecret",
        "Content-Length: 5\r\nContent-Length: 6\r\n\r\nsecret",
        "Content-Length: +5\r\n\r\nsecret",
        "X: a\0b\r\n\r\nsecret",
        "X: a\rSet-Cookie: b\r\n\r\nsecret",
        "Bad Name: 1\r\n\r\nsecret",
    ] {
        expect_refused(Speaks::FastCgi, fastcgi_record(6, 1, head.as_bytes()));
        expect_refused(Speaks::Scgi, head.into());
    }
}

#[test]
fn row_35_heads_without_an_end_are_502() {
    let field = "X-Field: ".to_owned() + &"y".repeat(1000) + "\r\n";
    let many = field.repeat(3000);
    let long = "X-Field: ".to_owned() + &"y".repeat(3_000_000);
    for head in [many, long] {
        let http = format!("HTTP/1.1 200 OK\r\n{head}");
        expect_refused(Speaks::Http, http.into());
        expect_refused(Speaks::Scgi, head.clone().into());
        let records = head.as_bytes().chunks(60_000);
        let records: Vec<Vec<u8>> = records
            .map(|content| fastcgi_record(6, 1, content))
            .collect();
        expect_refused(Speaks::FastCgi, records.concat());
    }
}

/// AJP13 has room for fewer in its one packet.
#[test]
fn as_many_fields_as_the_configuration_allows_are_passed_on() {
    for speaks in [Speaks::FastCgi, Speaks::Scgi, Speaks::Uwsgi, Speaks::Http] {
        let backend = Backend::start(speaks, |exchange| {
            let count = name(exchange).parse().expect("a number");
            exchange.answer(200, &vec![("X-A", "b"); count], "many");
        });
        let server = in_front_of(&backend)
            .config("$HTTP[\"querystring\"] == \"more\" { server.max-response-fields = 4000 }")
            .start();
        for (target, status) in [
            ("/app/1000", 200),
            ("/app/1100", 502),
            ("/app/3900?more", 200),
            ("/app/4100?more", 502),
        ] {
            let response = server.get(target);
            assert_eq!(response.status, status, "{speaks:?} {target}");
        }
        server.expect_log("1101 header fields, more than server.max-response-fields");
    }
}

#[test]
fn row_35_endless_interim_answers_are_502() {
    for interim in [
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
    ] {
        let backend = Backend::start(Speaks::Http, move |exchange| {
            exchange.read_body();
            let burst = interim.repeat(100);
            for _ in 0..1000 {
                exchange.raw(&burst);
                if exchange.is_alone() {
                    return;
                }
            }
        });
        let server = in_front_of(&backend).start();
        let response = server.get("/app/");
        assert_eq!(response.status, 502, "{interim:?}: {response}");
        assert!(response.interim.len() < 200, "{}", response.interim.len());
        backend.expect_open_connections(0);
    }
}

#[test]
fn row_36_what_is_beyond_content_length_is_not_sent() {
    for speaks in [Speaks::Http, Speaks::FastCgi, Speaks::Scgi, Speaks::Ajp13] {
        let backend = Backend::start(speaks, |exchange| {
            exchange.read_body();
            exchange.head(200, &[("Content-Length", "5")]);
            exchange.body("12345secret");
            exchange.end();
        });
        for mode in 0..3 {
            let server = in_front_of(&backend)
                .config(&format!("server.stream-response-body = {mode}"))
                .start();
            let mut client = server.client();
            let before = backend.requests().len();
            for _ in 0..2 {
                let response = client.get("/app/");
                let what = format!("{speaks:?}, {mode}: {response}");
                match response.status {
                    200 => assert_eq!(response.text(), "12345", "{what}"),
                    status => assert_eq!(status, 502, "{what}"),
                }
                assert!(!response.text().contains("secret"), "{what}");
            }
            assert_eq!(client.get("/").text(), "hello");
            // After a wrong length the connection gets no second request.
            let requests = backend.requests();
            let mut connections: Vec<usize> = requests[before..]
                .iter()
                .map(|request| request.connection)
                .collect();
            connections.dedup();
            let came = requests.len() - before;
            if speaks != Speaks::Ajp13 && speaks != Speaks::FastCgi {
                assert_eq!(connections.len(), came, "{speaks:?}");
            }
        }
    }
}

#[test]
fn row_36_a_body_behind_the_answer_to_head_answers_no_request() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        exchange.read_body();
        if exchange.param("REQUEST_METHOD") != "HEAD" {
            return exchange.say("mine");
        }
        let forged = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged";
        exchange.head(200, &[("Content-Length", &forged.len().to_string())]);
        exchange.pause(Duration::from_millis(5));
        exchange.raw(forged);
        exchange.pause(Duration::from_millis(5));
        exchange.end();
    });
    let server = in_front_of(&backend).start();
    let mut client = server.client();
    for _ in 0..20 {
        assert_eq!(client.request("HEAD", "/app/", &[]).status, 200);
        assert_eq!(client.get("/app/").text(), "mine");
    }
}

#[test]
fn row_36_what_falls_short_of_content_length_is_an_abort() {
    for speaks in [Speaks::FastCgi, Speaks::Ajp13, Speaks::Scgi] {
        let backend = Backend::start(speaks, |exchange| {
            exchange.read_body();
            exchange.head(200, &[("Content-Length", "50")]);
            exchange.body("12345");
            exchange.pause(Duration::from_millis(30));
            exchange.end();
        });
        for mode in 0..3 {
            let server = in_front_of(&backend)
                .config(&format!("server.stream-response-body = {mode}"))
                .start();
            let mut client = server.client();
            client.send("GET /app/ HTTP/1.1\r\nHost: a\r\n\r\n");
            match client.try_response() {
                Ok(response) => assert_eq!(response.status, 502, "{speaks:?}: {response}"),
                Err(ClientError::Truncated(_)) => {}
                Err(other) => panic!("{speaks:?}, {mode}: {other}"),
            }
        }
    }
}

#[test]
fn row_37_records_that_are_not_fastcgi_are_502() {
    let head = b"Status: 200\r\n\r\nsecret";
    let right = fastcgi_record(6, 1, head);
    let mut version = right.clone();
    version[0] = 2;
    for raw in [
        version,
        fastcgi_record(6, 2, head),
        fastcgi_record(6, 0, head),
        // An END_REQUEST that is too short.
        fastcgi_record(3, 1, &[0; 3]),
        b"HTTP/1.1 200 OK\r\n\r\n".to_vec(),
    ] {
        expect_refused(Speaks::FastCgi, raw);
    }
}

#[test]
fn row_37_a_refusal_to_multiplex_or_to_take_the_role_is_an_error() {
    for protocol_status in [1, 2, 3] {
        let end = [0, 0, 0, 0, protocol_status, 0, 0, 0];
        let raw = fastcgi_record(3, 1, &end);
        let backend = saying(Speaks::FastCgi, raw);
        let server = in_front_of(&backend).start();
        let response = server.get("/app/");
        assert!(matches!(response.status, 502 | 503), "{response}");
        assert!(backend.requests().len() < 10);
    }
}

#[test]
fn row_37_a_flood_of_stderr_does_not_fill_the_log() {
    let backend = Backend::start(Speaks::FastCgi, |exchange| {
        exchange.read_body();
        let line = "PHP Warning: something is wrong\n".repeat(1000);
        for _ in 0..3000 {
            exchange.log(&line);
            if exchange.is_alone() {
                return;
            }
        }
        exchange.say("after all");
    });
    let server = in_front_of(&backend).start();
    let before = server.processes().private_dirty_bytes();
    let response = server.get("/app/");
    assert!(matches!(response.status, 200 | 502), "{response}");
    let grown = server
        .processes()
        .private_dirty_bytes()
        .saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes of memory");
    let logged = server.log().len();
    assert!(logged < 200_000, "{logged} bytes are logged");
    assert!(server.log().contains("something is wrong"));
}

#[test]
fn a_word_on_stderr_is_logged_and_escaped() {
    let backend = Backend::start(Speaks::FastCgi, |exchange| {
        exchange.log("PHP Notice: \x1b[31mred\n");
        match name(exchange) {
            "fails" => exchange.answer(500, &[], "failed"),
            _ => exchange.say("fine"),
        }
    });
    let server = in_front_of(&backend).start();
    assert_eq!(server.get("/app/").text(), "fine");
    assert_eq!(server.get("/app/fails").status, 500);
    server.expect_log("PHP Notice: ");
    assert!(!server.log().contains('\x1b'), "{}", server.log());
}

#[test]
fn bytes_one_by_one_are_an_answer_like_any_other() {
    let http = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n\
                5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\nTrailer: x\r\n\r\n";
    let cgi = "Status: 200 Fine\r\nContent-Type: text/plain\r\n\r\nhello world";
    let fastcgi = [
        fastcgi_record(6, 1, cgi.as_bytes()),
        fastcgi_record(6, 1, b""),
        fastcgi_record(3, 1, &[0; 8]),
    ]
    .concat();
    for (speaks, raw) in [
        (Speaks::Http, http.as_bytes().to_vec()),
        (Speaks::Scgi, cgi.as_bytes().to_vec()),
        (Speaks::FastCgi, fastcgi),
    ] {
        let backend = Backend::start(speaks, move |exchange| {
            exchange.read_body();
            exchange.trickle(&raw);
            exchange.close();
        });
        for mode in 0..3 {
            let server = in_front_of(&backend)
                .config(&format!("server.stream-response-body = {mode}"))
                .start();
            let response = server.get("/app/");
            assert_eq!(response.status, 200, "{speaks:?}: {response}");
            assert_eq!(response.text(), "hello world", "{speaks:?}");
        }
    }
}
