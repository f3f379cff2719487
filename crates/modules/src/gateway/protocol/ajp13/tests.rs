use super::*;
use crate::gateway::options::{Extras, Protocol};
use crate::gateway::protocol::testing::{self, Reply, get, host, request, send, sent};

fn after(text: &str) -> impl Fn() -> Box<dyn Conversation> + use<> {
    let answer = request(text);
    move || {
        let mut conversation = Ajp13Conversation::new();
        sent(&mut conversation, &answer, &host(Protocol::Ajp13), b"");
        Box::new(conversation)
    }
}

fn reply(wire: &[u8]) -> Reply {
    testing::reply(&after("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), wire)
}

fn packet(kind: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len() + 1).expect("packets are small");
    [&b"AB"[..], &length.to_be_bytes(), &[kind], content].concat()
}

fn string(text: &str) -> Vec<u8> {
    let length = u16::try_from(text.len()).expect("strings are short");
    [&length.to_be_bytes()[..], text.as_bytes(), b"\0"].concat()
}

fn headers(status: u16, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut content = [&status.to_be_bytes()[..], &string("OK")].concat();
    content.extend(u16::try_from(fields.len()).expect("few").to_be_bytes());
    for (name, value) in fields {
        content.extend(string(name));
        content.extend(string(value));
    }
    packet(4, &content)
}

fn chunk(text: &str) -> Vec<u8> {
    packet(3, &string(text))
}

fn end() -> Vec<u8> {
    packet(5, &[1])
}

fn asks(length: u16) -> Vec<u8> {
    packet(6, &length.to_be_bytes())
}

fn contains(wire: &[u8], part: &[u8]) -> bool {
    memchr::memmem::find(wire, part).is_some()
}

#[test]
fn a_request_is_forwarded_with_its_fields() {
    let answer = request(
        "GET /a%20b/c?d=e HTTP/1.1\r\nHost: a.example\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n\
         TE: trailers\r\nX-Other: f\r\nUser-Agent: g\r\n\r\n",
    );
    let wire = sent(
        &mut Ajp13Conversation::new(),
        &answer,
        &host(Protocol::Ajp13),
        b"",
    );
    assert!(wire.starts_with(b"\x12\x34"));
    assert_eq!(
        usize::from(u16::from_be_bytes([wire[2], wire[3]])),
        wire.len() - 4
    );
    assert!(wire[4..].starts_with(b"\x02\x02\0\x08HTTP/1.1\0\0\x08/a%20b/c\0\0\x09127.0.0.1\0"));
    for part in [
        &b"\xff\xff\0\x09a.example\0\0\x50\0\0\x03"[..],
        b"\xa0\x0b\0\x09a.example\0",
        b"\xa0\x0e\0\x01g\0",
        b"\0\x07X-Other\0\0\x01f\0",
        b"\x05\0\x03d=e\0",
        b"\x0a\0\x0fAJP_REMOTE_PORT\0\0\x0540000\0",
        b"\x0a\0\x0eAJP_LOCAL_ADDR\0\0\x09127.0.0.1\0",
    ] {
        assert!(contains(&wire, part), "{}", part.escape_ascii());
    }
    for part in [&b"X-Hop"[..], b"\xa0\x06", b"trailers", b"\xa0\x08"] {
        assert!(!contains(&wire, part), "{}", part.escape_ascii());
    }
    assert_eq!(wire.last(), Some(&0xff));
}

#[test]
fn what_modules_know_of_the_client_is_passed_on() {
    let mut answer = get();
    let environment = &mut answer.exchange_mut().environment;
    environment.set("REMOTE_USER", b"anna");
    environment.set("AUTH_TYPE", b"Basic");
    environment.set("AJP13_SECRET", b"hush");
    environment.set("OTHER", b"not for containers");
    let wire = sent(
        &mut Ajp13Conversation::new(),
        &answer,
        &host(Protocol::Ajp13),
        b"",
    );
    for part in [
        &b"\x03\0\x04anna\0"[..],
        b"\x04\0\x05Basic\0",
        b"\x0c\0\x04hush\0",
    ] {
        assert!(contains(&wire, part), "{}", part.escape_ascii());
    }
    assert!(!contains(&wire, b"OTHER"));
}

#[test]
fn the_length_of_a_body_is_told_once() {
    let answer = request("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 04\r\n\r\nbody");
    let wire = sent(
        &mut Ajp13Conversation::new(),
        &answer,
        &host(Protocol::Ajp13),
        b"body",
    );
    assert!(contains(&wire, b"\xa0\x08\0\x014\0"));
    assert_eq!(memchr::memmem::find_iter(&wire, b"\xa0\x08").count(), 1);
    assert!(wire.ends_with(b"\xff\x12\x34\0\x06\0\x04body"));
    let empty = request("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    let wire = sent(
        &mut Ajp13Conversation::new(),
        &empty,
        &host(Protocol::Ajp13),
        b"",
    );
    assert!(contains(&wire, b"\xa0\x08\0\x010\0") && wire.ends_with(b"\xff"));
}

#[test]
fn a_request_that_is_too_long_cannot_be_sent() {
    let mut answer = get();
    let long = vec![b'x'; 9000];
    answer.exchange_mut().environment.set("REMOTE_USER", &long);
    let outgoing = Outgoing {
        exchange: answer.exchange(),
        host: &host(Protocol::Ajp13),
        extras: &Extras::default(),
        body: BodyLength::None,
    };
    let mut out = Vec::new();
    let refused = Ajp13Conversation::new().encode_head(&outgoing, &mut out);
    let too_long = RequestError("the request is too long for an AJP13 packet");
    assert_eq!((refused, out.len()), (Err(too_long), 0));
}

#[test]
fn a_body_waits_until_it_is_asked_for() {
    let answer = request("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nabcde");
    let mut conversation = Ajp13Conversation::new();
    let outgoing = Outgoing {
        exchange: answer.exchange(),
        host: &host(Protocol::Ajp13),
        extras: &Extras::default(),
        body: BodyLength::Known(5),
    };
    conversation.begin();
    assert_eq!(conversation.encode_head(&outgoing, &mut Vec::new()), Ok(()));
    let mut out = Vec::new();
    assert_eq!(conversation.body_allowance(), BODY_BYTES_MAX);
    conversation.encode_body(b"abc", &mut out);
    assert_eq!(
        (&out[..], conversation.body_allowance()),
        (&b"\x12\x34\0\x05\0\x03abc"[..], 0)
    );

    let wants = |conversation: &mut Ajp13Conversation, length: u16| {
        let decoded = conversation.decode(&asks(length)).expect("it is sound");
        assert_eq!(
            (decoded.consumed, decoded.event),
            (7, ReplyEvent::WantsBody)
        );
    };
    wants(&mut conversation, 2);
    assert_eq!(conversation.body_allowance(), 2);
    out.clear();
    conversation.encode_body(b"de", &mut out);
    conversation.encode_end(&mut out);
    assert_eq!(out, b"\x12\x34\0\x04\0\x02de");
    for length in [0, 8186, 0xffff] {
        wants(&mut conversation, length);
        assert!((1..=BODY_BYTES_MAX).contains(&conversation.body_allowance()));
        out.clear();
        conversation.encode_end(&mut out);
        assert_eq!(
            (&out[..], conversation.body_allowance()),
            (&b"\x12\x34\0\0"[..], 0)
        );
    }
}

#[test]
fn a_reply_is_taken_apart_and_the_connection_kept() {
    let wire = [
        packet(9, &[]),
        headers(103, &[("Link", "<a>")]),
        headers(404, &[("A", "b")]),
        chunk("body"),
        chunk(""),
        chunk(" and more"),
        end(),
    ];
    let expected = Reply {
        interim: vec![103],
        status: 404,
        fields: vec![("A".to_owned(), "b".to_owned())],
        body: "body and more".to_owned(),
        reusable: Some(true),
        ..Reply::default()
    };
    assert_eq!(reply(&wire.concat()), expected);
    let closing = [headers(200, &[]), packet(5, &[0])].concat();
    assert_eq!(reply(&closing).reusable, Some(false));
    let more = [headers(200, &[]), end(), end()].concat();
    assert_eq!(reply(&more).reusable, Some(false));
}

#[test]
fn a_body_keeps_to_its_length() {
    let of = |length: &str, text: &str| {
        let wire = [
            headers(200, &[("Content-Length", length)]),
            chunk(text),
            end(),
        ];
        reply(&wire.concat())
    };
    let over = of("3", "body");
    assert_eq!((over.body.as_str(), over.reusable), ("bod", Some(true)));
    let short = of("5", "body");
    assert_eq!(
        short.error,
        Some("the reply is shorter than its Content-Length")
    );
    let ready = after("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    let wire = [
        headers(200, &[("Content-Length", "9")]),
        chunk("body"),
        end(),
    ]
    .concat();
    let found = testing::reply(&ready, &wire);
    assert_eq!((found.body.as_str(), found.reusable), ("", Some(true)));
}

#[test]
fn a_container_that_breaks_the_rules_is_an_error() {
    let interim = headers(103, &[]);
    let head = headers(200, &[]);
    for (wire, error) in [
        (b"HTTP/1.1 400".to_vec(), "not an AJP13 packet"),
        (Vec::new(), "the backend sent no reply"),
        (end(), "AJP13 packets in a wrong order"),
        (
            interim.repeat(17),
            "the reply has too many interim responses",
        ),
        (
            [&head[..], &chunk("body")].concat(),
            "the AJP13 container closed the connection inside its reply",
        ),
        (headers(101, &[]), "the reply changes the protocol unasked"),
    ] {
        assert_eq!(reply(&wire).error, Some(error));
    }
    let whole = [headers(200, &[("Content-Length", "4")]), chunk("body")].concat();
    assert_eq!(reply(&whole).reusable, Some(false));
}

#[test]
fn requests_follow_each_other_on_a_connection() {
    let answer = get();
    let mut conversation = Ajp13Conversation::new();
    let wire = [headers(200, &[("Content-Length", "1")]), chunk("x"), end()].concat();
    let mut out = Vec::new();
    for _ in 0..3 {
        send(
            &mut conversation,
            &answer,
            &host(Protocol::Ajp13),
            b"",
            &mut out,
        );
        let mut position = 0;
        let reusable = loop {
            let decoded = conversation.decode(&wire[position..]).expect("it is sound");
            position += decoded.consumed;
            if let ReplyEvent::End { reusable } = decoded.event {
                break reusable;
            }
        };
        assert!(reusable && position == wire.len());
        assert_eq!(conversation.head().len(), 1);
    }
}
