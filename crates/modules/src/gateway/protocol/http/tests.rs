use petrel_engine::testing::Answer;

use super::super::testing::{host, reply, request, various};
use super::*;
use crate::gateway::header_map::testing::extras;
use crate::gateway::options::{BackendHost, Protocol};
use crate::gateway::upgrade::Upgrades;

/// The request that the backend gets, with the options for header fields in `config`.
fn sent_with(config: &str, text: &str, body: BodyLength, upgrade: bool) -> String {
    let answer = request(text);
    let mut out = Vec::new();
    let outgoing = Outgoing {
        exchange: answer.exchange(),
        host: &BackendHost {
            label: "backend:81".to_owned(),
            upgrade: match upgrade {
                true => Upgrades::websocket(),
                false => Upgrades::default(),
            },
            ..host(Protocol::Http)
        },
        extras: &extras(config),
        body,
    };
    assert_eq!(
        HttpConversation::new(&Rc::default()).encode_head(&outgoing, &mut out),
        Ok(())
    );
    String::from_utf8(out).expect("the tests use text")
}

fn sent(text: &str) -> String {
    sent_with("", text, BodyLength::None, false)
}

/// The fields that every request in these tests gets.
const ADDED: &str = "X-Forwarded-For: 127.0.0.1\r\nX-Host: a.example\r\n\
                     X-Forwarded-Host: a.example\r\nX-Forwarded-Proto: http\r\n";

#[test]
fn a_request_goes_on_with_what_backends_are_told() {
    assert_eq!(
        sent(
            "GET /a%41/../c?x=%41 HTTP/1.1\r\nHost: A.example:80\r\nAccept: x\r\nCookie: a=b\r\n\r\n"
        ),
        format!(
            "GET /c?x=A HTTP/1.1\r\nHost: a.example\r\nAccept: x\r\nCookie: a=b\r\n{ADDED}\r\n"
        )
    );
    assert_eq!(
        sent("OPTIONS * HTTP/1.1\r\nHost: a.example\r\n\r\n"),
        format!("OPTIONS * HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0\r\n{ADDED}\r\n")
    );
}

#[test]
fn a_request_is_the_same_after_another_one() {
    let texts = [
        "GET / HTTP/1.1\r\nHost: a\r\nX-A: 1\r\n\r\n",
        "HEAD /b HTTP/1.1\r\nHost: a\r\nX-A: 1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX-A: 2\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX_A: 1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: X-A\r\nX-A: 1\r\n\r\n",
        "GET http://b/ HTTP/1.1\r\nHost: a\r\nX-A: 1\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: a\r\nX-A: 1\r\n\r\n",
        "OPTIONS / HTTP/1.1\r\nHost: a\r\nX-A: 1\r\n\r\n",
    ];
    let mut answers = various(&texts);
    let mut proxied = request(texts[0]);
    let environment = &mut proxied.exchange_mut().environment;
    environment.set(crate::extforward::ACTUAL_FOR, b"10.0.0.1");
    answers.push(proxied);
    let configs = [
        "",
        "proxy.replace-http-host = \"enable\"",
        "proxy.forwarded = ( \"for\" => 1 )",
        "proxy.header = ( \"map-host-request\" => ( \"a\" => \"c\" ) )",
    ];
    let mut all_extras: Vec<_> = configs.iter().map(|config| extras(config)).collect();
    all_extras.push(Extras {
        underscores: true,
        ..Extras::default()
    });
    let host = host(Protocol::Http);
    let encoded = |repeated: &Rc<Repeated>, answer: &Answer, extras: &Extras| {
        let mut out = Vec::new();
        let outgoing = Outgoing {
            exchange: answer.exchange(),
            host: &host,
            extras,
            body: BodyLength::None,
        };
        let encoded = HttpConversation::new(repeated).encode_head(&outgoing, &mut out);
        assert_eq!(encoded, Ok(()));
        String::from_utf8(out).expect("the tests use text")
    };
    let requests = || {
        let all = all_extras.iter();
        all.flat_map(|extras| answers.iter().map(move |answer| (answer, extras)))
    };
    for (before, extras_before) in requests() {
        for (answer, extras) in requests() {
            let repeated = Rc::default();
            encoded(&repeated, before, extras_before);
            let expected = encoded(&Rc::default(), answer, extras);
            assert_eq!(encoded(&repeated, answer, extras), expected);
        }
    }
}

#[test]
fn what_concerns_the_connection_stays_behind() {
    let text = "POST / HTTP/1.1\r\nHost: a.example\r\nConnection: keep-alive, X-Mine, close\r\n\
                x-mine: 1\r\nX-Other: 2\r\nKeep-Alive: 5\r\nTE: deflate\r\nTrailer: X\r\n\
                Transfer-Encoding: chunked\r\nUpgrade: websocket\r\nProxy-Connection: x\r\n\
                Proxy: evil\r\nHTTP2-Settings: x\r\nExpect: 100-continue\r\nX-Host: evil\r\n\
                X-Forwarded-Host: evil\r\nX-Forwarded-Proto: https\r\n\r\n";
    assert_eq!(
        sent_with("", text, BodyLength::Known(3), false),
        format!(
            "POST / HTTP/1.1\r\nHost: a.example\r\nX-Other: 2\r\nContent-Length: 3\r\n{ADDED}\r\n"
        )
    );
}

#[test]
fn a_client_cannot_take_away_what_modules_say() {
    let site = petrel_engine::testing::Site::new(
        "server.document-root = \"/nonexistent\"\n\
         setenv.set-request-header = ( \"X-User\" => \"joe\" )",
        &[&crate::setenv::MODULE],
    );
    for fields in ["", "X-User: evil\r\n"] {
        let answer = site.request(&format!(
            "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: X-User, X-Mine\r\n\
             {fields}X-Mine: 1\r\n\r\n"
        ));
        let mut out = Vec::new();
        let outgoing = Outgoing {
            exchange: answer.exchange(),
            host: &host(Protocol::Http),
            extras: &Extras::default(),
            body: BodyLength::None,
        };
        assert_eq!(
            HttpConversation::new(&Rc::default()).encode_head(&outgoing, &mut out),
            Ok(())
        );
        let text = String::from_utf8(out).expect("it is text");
        assert!(text.contains("X-User: joe\r\n"), "{text}");
        assert!(!text.contains("X-Mine"), "{text}");
    }
}

#[test]
fn addresses_are_appended_to_those_the_client_says() {
    let text = "GET / HTTP/1.1\r\nHost: a.example\r\nX-Forwarded-For: 192.0.2.1\r\n\
                X-Forwarded-For: ::1\r\n\r\n";
    let told = sent(text);
    assert!(
        told.contains("X-Forwarded-For: 192.0.2.1, ::1, 127.0.0.1\r\n"),
        "{told}"
    );
    assert_eq!(told.matches("X-Forwarded-For").count(), 1);
}

#[test]
fn a_client_without_a_host_asks_for_the_server() {
    let told = sent("GET / HTTP/1.0\r\n\r\n");
    assert_eq!(
        told,
        "GET / HTTP/1.1\r\nHost: 127.0.0.1:80\r\nX-Forwarded-For: 127.0.0.1\r\n\
         X-Forwarded-Proto: http\r\n\r\n"
    );
}

#[test]
fn an_upgrade_is_passed_on_where_it_may() {
    let text = "GET /ws HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\n\
                Upgrade: websocket\r\nSec-WebSocket-Key: x\r\nTE: trailers\r\n\r\n";
    let passed = sent_with("", text, BodyLength::None, true);
    assert!(passed.contains("Sec-WebSocket-Key: x\r\n"));
    assert!(
        passed.ends_with("Connection: upgrade, TE\r\nTE: trailers\r\nUpgrade: websocket\r\n\r\n")
    );
    let h2c = text.replace("Upgrade: websocket", "Upgrade: h2c, websocket, other");
    assert_eq!(sent_with("", &h2c, BodyLength::None, true), passed);
    let held = sent_with("", text, BodyLength::None, false);
    assert!(
        held.ends_with("Connection: TE\r\nTE: trailers\r\n\r\n"),
        "{held}"
    );
    let old = "proxy.header = ( \"force-http10\" => \"enable\" )";
    let old = sent_with(old, text, BodyLength::None, true);
    assert!(
        old.ends_with("\r\nConnection: close\r\n\r\n") && !old.contains("pgrade"),
        "{old}"
    );
}

#[test]
fn http10_is_spoken_where_it_can_be() {
    let config = "proxy.header = ( \"force-http10\" => \"enable\" )";
    let text = "PUT / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 3\r\n\r\nabc";
    let known = sent_with(config, text, BodyLength::Known(3), false);
    assert!(known.starts_with("PUT / HTTP/1.0\r\nHost: a.example\r\nContent-Length: 3\r\n"));
    assert!(known.ends_with("Connection: close\r\n\r\n"));
    let unknown = sent_with(config, text, BodyLength::Unknown, false);
    assert!(unknown.starts_with("PUT / HTTP/1.1\r\n"));
    assert!(unknown.contains("Transfer-Encoding: chunked\r\n") && !unknown.contains("close"));
}

#[test]
fn hosts_and_paths_are_mapped_as_in_lighttpd() {
    let config = "proxy.header = ( \"map-urlpath\" => ( \"/map/\" => \"/inner/\" ),\n\
                  \"map-host-request\" => ( \"h.example\" => \"in.example\", \"-\" => \"other.example\" ) )";
    let text = "PROPFIND /map/x?y HTTP/1.1\r\nHost: h.example\r\nContent-Length: 0\r\n\
                Destination: http://h.example/map/z\r\nContent-Location: /map/k\r\n\
                Referer: http://h.example/map/r\r\n\r\n";
    let told = sent_with(config, text, BodyLength::None, false);
    assert!(
        told.starts_with(
            "PROPFIND /inner/x?y HTTP/1.1\r\nHost: in.example\r\n\
             Destination: http://in.example/inner/z\r\nContent-Location: /inner/k\r\n\
             Referer: http://h.example/map/r\r\n"
        ),
        "{told}"
    );
    assert!(told.contains("X-Host: h.example\r\n"));
    let other = sent_with(
        config,
        "GET /map HTTP/1.1\r\nHost: h2.example\r\n\r\n",
        BodyLength::None,
        false,
    );
    assert!(other.starts_with("GET /map HTTP/1.1\r\nHost: other.example\r\n"));
    let label = "proxy.replace-http-host = \"enable\"\n".to_owned() + config;
    let label = sent_with(&label, text, BodyLength::None, false);
    assert!(label.contains("\r\nHost: backend:81\r\n"));
}

#[test]
fn requests_are_rewritten_as_in_lighttpd_15() {
    let config = "proxy-core.rewrite-request = (\n\
                  \"_uri\" => ( \"^/a/(.*)$\" => \"/b/$1\" ),\n\
                  \"Host\" => ( \".*\" => \"in.example\" ),\n\
                  \"X-Who\" => ( \"^(.)(.)\" => \"$2$1\" ) )";
    let text = "GET /a/c HTTP/1.1\r\nHost: h.example\r\nx-who: me\r\n\r\n";
    let told = sent_with(config, text, BodyLength::None, false);
    assert!(
        told.starts_with("GET /b/c HTTP/1.1\r\nHost: in.example\r\nx-who: em\r\n"),
        "{told}"
    );
    let unsound = "proxy-core.rewrite-request = ( \"_uri\" => ( \".*\" => \"x HTTP/1.1\" ) )";
    let told = sent_with(unsound, text, BodyLength::None, false);
    assert!(told.starts_with("GET /a/c HTTP/1.1\r\n"), "{told}");
}

#[test]
fn bodies_have_a_length_or_go_in_chunks() {
    for (length, expected) in [
        (BodyLength::Known(5), "hello"),
        (BodyLength::Unknown, "5\r\nhello\r\n0\r\n\r\n"),
    ] {
        let answer = request("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0\r\n\r\n");
        let outgoing = Outgoing {
            exchange: answer.exchange(),
            host: &host(Protocol::Http),
            extras: &Extras::default(),
            body: length,
        };
        let mut conversation = HttpConversation::new(&Rc::default());
        assert_eq!(conversation.encode_head(&outgoing, &mut Vec::new()), Ok(()));
        let mut out = Vec::new();
        conversation.encode_body(b"hello", &mut out);
        conversation.encode_end(&mut out);
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }
}

#[test]
fn trailers_go_behind_chunks_and_nowhere_else() {
    for (length, field, expected) in [
        (BodyLength::Known(5), "", "hello"),
        (
            BodyLength::Unknown,
            "Trailer: X-Sum\r\n",
            "5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n",
        ),
    ] {
        let answer = request(
            "POST / HTTP/1.1\r\nHost: a.example\r\nTrailer: X-Sum\r\nContent-Length: 0\r\n\r\n",
        );
        let outgoing = Outgoing {
            exchange: answer.exchange(),
            host: &host(Protocol::Http),
            extras: &Extras::default(),
            body: length,
        };
        let mut conversation = HttpConversation::new(&Rc::default());
        let mut head = Vec::new();
        assert_eq!(conversation.encode_head(&outgoing, &mut head), Ok(()));
        let head = String::from_utf8_lossy(&head).into_owned();
        assert_eq!(head.contains("Trailer"), !field.is_empty(), "{head}");
        assert!(head.contains(field), "{head}");
        let mut trailers = HeaderBlock::new();
        trailers.append("X-Sum", b"1");
        let mut out = Vec::new();
        conversation.encode_body(b"hello", &mut out);
        conversation.encode_trailers(&trailers, &mut out);
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }
}

#[test]
fn trailers_are_asked_for_if_the_client_does() {
    for (version, field, is_asked) in [
        ("1.1", "TE: trailers", true),
        ("1.1", "TE: deflate, Trailers", true),
        ("1.1", "TE: deflate", false),
        ("1.0", "TE: trailers", false),
    ] {
        let text = format!("GET / HTTP/{version}\r\nHost: a.example\r\n{field}\r\n\r\n");
        let told = sent_with("", &text, BodyLength::None, false);
        let has_asked = told.contains("Connection: TE\r\nTE: trailers\r\n");
        assert_eq!(has_asked, is_asked, "{told}");
    }
}

/// A conversation that has sent a whole request.
fn ready(text: &'static str) -> impl Fn() -> Box<dyn Conversation> {
    move || {
        let answer = request(text);
        let mut conversation = HttpConversation::new(&Rc::default());
        conversation.begin();
        let outgoing = Outgoing {
            exchange: answer.exchange(),
            host: &host(Protocol::Http),
            extras: &Extras::default(),
            body: BodyLength::None,
        };
        assert_eq!(conversation.encode_head(&outgoing, &mut Vec::new()), Ok(()));
        conversation.encode_end(&mut Vec::new());
        Box::new(conversation)
    }
}

const GET: &str = "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";

#[test]
fn replies_are_read_in_pieces_of_any_size() {
    let answered = reply(
        &ready(GET),
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n\
          HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: y\r\n\r\nhello",
    );
    assert_eq!((answered.interim, answered.status), (vec![103], 200));
    assert_eq!(
        (answered.body.as_str(), answered.reusable),
        ("hello", Some(true))
    );
    assert_eq!(answered.error, None);
    let chunked = reply(
        &ready(GET),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
          5\r\nhello\r\n0\r\nX-Sum: 1\r\nSet-Cookie: x\r\nB:\r\n\r\n",
    );
    assert_eq!((&*chunked.body, chunked.reusable), ("hello", Some(true)));
    assert_eq!(chunked.trailers, "X-Sum: 1\r\nB: \r\n");
    let closing = reply(
        &ready(GET),
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello",
    );
    assert_eq!(
        (closing.body.as_str(), closing.reusable),
        ("hello", Some(false))
    );
    let head = "HEAD / HTTP/1.1\r\nHost: a.example\r\n\r\n";
    let headed = reply(
        &ready(head),
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
    );
    // A body that arrives all the same must not become the next answer.
    assert_eq!((headed.body.as_str(), headed.reusable), ("", Some(false)));
    let cut = reply(
        &ready(GET),
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
    );
    assert_eq!(cut.error, Some(ResponseError::ClosedInBody.sentence()));
}

#[test]
fn after_a_switch_of_protocols_bytes_go_as_they_are() {
    let answer = request(
        "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0\r\n\
         Connection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    );
    let outgoing = Outgoing {
        exchange: answer.exchange(),
        host: &BackendHost {
            upgrade: Upgrades::websocket(),
            ..host(Protocol::Http)
        },
        extras: &Extras::default(),
        body: BodyLength::Unknown,
    };
    let mut conversation = HttpConversation::new(&Rc::default());
    assert_eq!(conversation.encode_head(&outgoing, &mut Vec::new()), Ok(()));
    let reply = b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n";
    let decoded = conversation.decode(reply).expect("it is sound");
    assert_eq!(decoded.event, ReplyEvent::Head);
    let mut out = Vec::new();
    conversation.encode_body(b"raw", &mut out);
    conversation.encode_end(&mut out);
    assert_eq!(out, b"raw");
}

#[test]
fn a_connection_with_a_request_half_sent_is_not_used_again() {
    let answer = request("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0\r\n\r\n");
    for is_sent in [false, true] {
        let outgoing = Outgoing {
            exchange: answer.exchange(),
            host: &host(Protocol::Http),
            extras: &Extras::default(),
            body: BodyLength::Known(3),
        };
        let mut conversation = HttpConversation::new(&Rc::default());
        assert_eq!(conversation.encode_head(&outgoing, &mut Vec::new()), Ok(()));
        if is_sent {
            conversation.encode_end(&mut Vec::new());
        }
        let refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n";
        assert!(conversation.decode(refusal).is_ok());
        let end = conversation.decode(b"").expect("it is complete");
        assert_eq!(end.event, ReplyEvent::End { reusable: is_sent });
    }
}
