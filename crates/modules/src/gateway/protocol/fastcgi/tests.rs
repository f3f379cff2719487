use petrel_engine::proto::fastcgi::{
    RequestDecoder, RequestEvent, write_end_of_stream, write_end_request, write_stream,
};

use super::*;
use crate::gateway::options::Protocol;
use crate::gateway::protocol::testing::{self, Reply, get, host, request, sent};
use crate::gateway::upgrade::Upgrades;

/// A conversation that has sent this request.
fn after(text: &str) -> impl Fn() -> Box<dyn Conversation> + use<> {
    let answer = request(text);
    move || {
        let mut conversation = FastCgiConversation::new(&Rc::default());
        sent(&mut conversation, &answer, &host(Protocol::FastCgi), b"");
        Box::new(conversation)
    }
}

fn reply(wire: &[u8]) -> Reply {
    testing::reply(&after("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), wire)
}

fn records(parts: &[(u8, &str)]) -> Vec<u8> {
    let mut wire = Vec::new();
    for (kind, text) in parts {
        write_stream(&mut wire, *kind, ID, text.as_bytes());
    }
    wire
}

fn ended(parts: &[(u8, &str)]) -> Vec<u8> {
    let mut wire = records(parts);
    write_end_request(&mut wire, ID, 0, ProtocolStatus::RequestComplete);
    wire
}

const OUT: u8 = kind::STDOUT;
const ERR: u8 = kind::STDERR;

#[test]
fn a_request_is_begun_described_and_ended() {
    let mut host = host(Protocol::FastCgi);
    for (mode, role, after) in [
        (Mode::Responder, Role::Responder, AfterRequest::Keep),
        (Mode::Authorizer, Role::Authorizer, AfterRequest::Close),
    ] {
        host.mode = mode;
        let is_kept = after == AfterRequest::Keep;
        host.keep_alive_idle = std::time::Duration::from_secs(is_kept.into());
        let wire = sent(
            &mut FastCgiConversation::new(&Rc::default()),
            &get(),
            &host,
            b"body",
        );
        let mut decoder = RequestDecoder::new();
        let mut position = 0;
        let mut params = Vec::new();
        let mut others = Vec::new();
        loop {
            let rest = &wire[position..];
            let decoded = decoder.decode(rest).expect("it is sound");
            position += decoded.consumed;
            match decoded.event {
                RequestEvent::NeedMore => break,
                RequestEvent::Params(ID, range) => params.extend_from_slice(&rest[range]),
                RequestEvent::Stdin(ID, range) => assert_eq!(&rest[range], b"body"),
                event => others.push(event),
            }
        }
        let begin = RequestEvent::Begin {
            id: ID,
            role: Some(role),
            after,
        };
        let ends = [
            begin,
            RequestEvent::ParamsEnd(ID),
            RequestEvent::StdinEnd(ID),
        ];
        assert_eq!(others, ends);
        let pairs: Vec<_> = fastcgi::Pairs::new(&params).map(Result::unwrap).collect();
        let has_length = pairs.contains(&(b"CONTENT_LENGTH", b"4"));
        assert_eq!(has_length, mode == Mode::Responder);
        assert!(pairs.contains(&(b"QUERY_STRING", b"b=c")));
    }
}

#[test]
fn a_reply_is_taken_apart_and_the_connection_kept() {
    let expected = Reply {
        status: 404,
        fields: vec![("A".to_owned(), "b".to_owned())],
        body: "body and more".to_owned(),
        log: "oops".to_owned(),
        reusable: Some(true),
        ..Reply::default()
    };
    let parts = [
        (OUT, "Status: 404 Not Found\r\nA: b\r\n\r\nbody"),
        (ERR, "oops"),
        (OUT, " and more"),
    ];
    assert_eq!(reply(&ended(&parts)), expected);
    let split = [
        (OUT, "Status: 404 Not"),
        (OUT, " Found\r\nA: b\r"),
        (ERR, "oops"),
        (OUT, "\n"),
        (OUT, "\r\nbody and"),
        (OUT, " more"),
    ];
    assert_eq!(reply(&ended(&split)), expected);
}

#[test]
fn interim_heads_come_before_the_head() {
    let text = "Status: 103\r\nLink: <a>\r\n\r\nHTTP/1.1 102 Processing\n\nStatus: 200\n\nx";
    let found = reply(&ended(&[(OUT, text)]));
    assert_eq!((found.interim, found.status), (vec![103, 102], 200));
    assert_eq!((found.fields, found.body.as_str()), (Vec::new(), "x"));
    let endless = "Status: 103\n\n".repeat(17);
    let found = reply(&ended(&[(OUT, &endless)]));
    assert_eq!(
        found.error,
        Some("the reply has too many interim responses")
    );
}

#[test]
fn a_reply_means_the_same_after_another_one() {
    let texts = [
        "A: b\n\nbody",
        "A: b\n\nmore",
        "A: b\n\n",
        "A: b\nC: d\n\nbody",
        "A: c\n\nbody",
        "Content-Length: 3\n\nabc",
        "Content-Length: 3\n\nab",
        "Transfer-Encoding: chunked\n\n1\r\na\r\n0\r\n\r\n",
        "Status: 103\nLink: <a>\n\nA: b\n\nbody",
        "Status: 103\n\n",
        "Status: 204\n\n",
        "Location: /a\n\n",
        "A: b\n",
        "no head\n",
    ];
    let mut wires: Vec<Vec<u8>> = texts.iter().map(|text| ended(&[(OUT, *text)])).collect();
    wires.push(ended(&[(OUT, "A: b\n"), (OUT, "\nbody")]));
    let new = || -> Box<dyn Conversation> { Box::new(FastCgiConversation::new(&Rc::default())) };
    let host = host(Protocol::FastCgi);
    testing::assert_independent_replies(&new, &get(), &host, &wires);
}

#[test]
fn a_request_is_the_same_after_another_one() {
    let texts = [
        "GET / HTTP/1.1\r\nHost: a\r\nX-A: 1\r\n\r\n",
        "GET /b HTTP/1.1\r\nHost: a\r\nX-A: 1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX-A: 2\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX-B: 1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a:80\r\nX-A: 1\r\n\r\n",
        "GET http://b/ HTTP/1.1\r\nHost: a\r\nX-A: 1\r\n\r\n",
        "GET / HTTP/1.0\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: a\r\nX-A: 1\r\n\r\n",
        "HEAD / HTTP/1.1\r\nHost: a\r\nX-A: 1\r\n\r\n",
        "GET / HTTP/1.1\r\nX-A: 1\r\nHost: a\r\nX-A: 1\r\n\r\n",
    ];
    let answers = testing::various(&texts);
    let host = host(Protocol::FastCgi);
    for (before, answer) in answers
        .iter()
        .flat_map(|one| answers.iter().map(move |other| (one, other)))
    {
        let repeated = Rc::default();
        let mut conversation = FastCgiConversation::new(&repeated);
        sent(&mut conversation, before, &host, b"");
        let mut other = FastCgiConversation::new(&repeated);
        let expected = sent(
            &mut FastCgiConversation::new(&Rc::default()),
            answer,
            &host,
            b"",
        );
        assert_eq!(sent(&mut other, answer, &host, b""), expected);
    }
}

#[test]
fn a_body_over_its_length_is_dropped_and_a_short_one_an_error() {
    let found = reply(&ended(&[(OUT, "Content-Length: 3\n\nbody"), (OUT, "more")]));
    assert_eq!((found.body.as_str(), found.reusable), ("bod", Some(true)));
    let found = reply(&ended(&[(OUT, "Content-Length: 5\n\nbody")]));
    let short = Some("the reply is shorter than its Content-Length");
    assert_eq!((found.body.as_str(), found.error), ("body", short));
    let found = reply(&ended(&[(OUT, "Content-Length: 0\n\n")]));
    assert_eq!((found.body.as_str(), found.reusable), ("", Some(true)));
}

#[test]
fn replies_without_a_body_have_none() {
    let texts = [
        "Content-Length: 5\n\nbody",
        "Status: 204\n\nbody",
        "Status: 304\n\nbody",
    ];
    for (index, text) in texts.into_iter().enumerate() {
        let method = if index == 0 { "HEAD" } else { "GET" };
        let ready = after(&format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n"));
        let found = testing::reply(&ready, &ended(&[(OUT, text)]));
        assert_eq!(
            (found.body.as_str(), found.reusable),
            ("", Some(true)),
            "{text}"
        );
    }
}

#[test]
fn chunks_that_the_application_made_are_undone() {
    let head = "Transfer-Encoding: chunked\n\n";
    let found = reply(&ended(&[
        (OUT, head),
        (OUT, "3\r\nabc\r\n2"),
        (OUT, "\r\nde\r\n0\r\n\r\n"),
    ]));
    assert_eq!((found.body.as_str(), found.reusable), ("abcde", Some(true)));
    assert_eq!(found.fields, []);
    let trailers = "1\r\na\r\n0\r\nX-Sum: 1\r\nAge: 2\r\n\r\n";
    let found = reply(&ended(&[(OUT, head), (OUT, trailers)]));
    assert_eq!((&*found.body, &*found.trailers), ("a", "X-Sum: 1\r\n"));
    let found = reply(&ended(&[(OUT, head), (OUT, "3\r\nabc\r\n")]));
    assert_eq!(found.error, Some("the reply ends before its last chunk"));
    let found = reply(&ended(&[(OUT, head), (OUT, "x")]));
    assert!(
        found
            .error
            .is_some_and(|error| error.contains("chunk size"))
    );
}

#[test]
fn a_reply_has_a_head() {
    for (parts, error) in [
        (&[][..], "the backend sent no reply"),
        (&[(ERR, "Segmentation fault")], "the backend sent no reply"),
        (
            &[(OUT, "A: b\n")],
            "the reply ends before its head is complete",
        ),
        (
            &[(OUT, "Status: 103\n\n")],
            "the reply ends before its head is complete",
        ),
        (
            &[(OUT, "<html>\n")],
            "the reply does not begin with header fields",
        ),
        (
            &[(OUT, "Status: 101\n\n")],
            "the reply changes the protocol unasked",
        ),
    ] {
        assert_eq!(reply(&ended(parts)).error, Some(error));
    }
}

#[test]
fn a_tunnel_is_all_body() {
    let answer = testing::request(
        "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    );
    let ready = move || -> Box<dyn Conversation> {
        let mut host = host(Protocol::FastCgi);
        host.upgrade = Upgrades::websocket();
        let mut conversation = FastCgiConversation::new(&Rc::default());
        sent(&mut conversation, &answer, &host, b"");
        Box::new(conversation)
    };
    let text = "Status: 101\nContent-Length: 1\n\nabc";
    let found = testing::reply(&ready, &ended(&[(OUT, text)]));
    assert_eq!((found.status, found.body.as_str()), (101, "abc"));
}

#[test]
fn a_close_without_end_request_is_an_error_unless_the_reply_told_its_end() {
    let cut = "the FastCGI application closed the connection inside its reply";
    let found = reply(&records(&[(OUT, "A: b\n\nbody")]));
    assert_eq!((found.error, found.reusable), (Some(cut), None));
    let found = reply(&records(&[(OUT, "Content-Length: 4\n\nbody")]));
    assert_eq!((found.error, found.reusable), (None, Some(false)));
    let mut wire = records(&[(OUT, "A: b\n\nbody")]);
    write_end_of_stream(&mut wire, kind::STDOUT, ID);
    assert_eq!(reply(&wire).reusable, Some(false));
}

#[test]
fn an_application_may_refuse() {
    for (status, error) in [
        (ProtocolStatus::Overloaded, OVERLOADED.0),
        (
            ProtocolStatus::CannotMultiplex,
            "the FastCGI application takes this for a second request at a time",
        ),
        (
            ProtocolStatus::UnknownRole,
            "the FastCGI application does not play this role",
        ),
    ] {
        let mut wire = Vec::new();
        write_end_request(&mut wire, ID, 0, status);
        assert_eq!(reply(&wire).error, Some(error));
    }
}

#[test]
fn an_application_that_has_begun_cannot_refuse() {
    for begun in [(OUT, "Stat"), (OUT, "A: b\n\nbody"), (ERR, "warning")] {
        let mut wire = records(&[begun]);
        write_end_request(&mut wire, ID, 0, ProtocolStatus::Overloaded);
        let error = "the FastCGI application says that it is overloaded after it has begun";
        assert_eq!(reply(&wire).error, Some(error), "{begun:?}");
    }
}

#[test]
fn broken_records_are_errors() {
    let found = reply(b"\x02\x06\0\x01\0\0\0\0");
    assert_eq!(found.error, Some(RecordError::Version.sentence()));
    let mut wire = Vec::new();
    write_stream(
        &mut wire,
        kind::STDOUT,
        2,
        b"Status: 200\n\nof another request",
    );
    let found = reply(&wire);
    assert_eq!(found.error, Some(RecordError::RequestId.sentence()));
    assert_eq!(found.status, 0);
}

#[test]
fn what_follows_the_end_ends_the_connection_but_not_the_reply() {
    let mut wire = ended(&[(OUT, "A: b\n\nbody")]);
    write_stream(&mut wire, kind::STDOUT, ID, b"Status: 200\n\n");
    let found = reply(&wire);
    assert_eq!((found.body.as_str(), found.reusable), ("body", Some(false)));
}

#[test]
fn a_reply_before_the_end_of_the_request_ends_the_connection() {
    let answer = get();
    let ready = move || -> Box<dyn Conversation> {
        let mut conversation = FastCgiConversation::new(&Rc::default());
        sent(&mut conversation, &answer, &host(Protocol::FastCgi), b"");
        conversation.is_sent = false;
        Box::new(conversation)
    };
    let found = testing::reply(&ready, &ended(&[(OUT, "A: b\n\n")]));
    assert_eq!(found.reusable, Some(false));
}

#[test]
fn stderr_is_logged_up_to_a_limit_and_suffered_up_to_another() {
    let mebibyte = "e".repeat(1 << 20);
    let mut wire = records(&[(ERR, &mebibyte), (ERR, &mebibyte)]);
    wire.extend(ended(&[(OUT, "A: b\n\nbody")]));
    let mut conversation = FastCgiConversation::new(&Rc::default());
    let mut logged = 0;
    let mut position = 0;
    let end = loop {
        let decoded = conversation.decode(&wire[position..]).expect("it is sound");
        position += decoded.consumed;
        match decoded.event {
            ReplyEvent::Log(range) => logged += range.len() as u64,
            ReplyEvent::End { .. } => break position,
            _ => {}
        }
    };
    assert_eq!((logged, end), (limits::STDERR_LOGGED_BYTES_MAX, wire.len()));
    assert_eq!(conversation.log_bytes_dropped(), 1 << 20);
    let flood = records(&[(ERR, mebibyte.as_str()); 17]);
    let ready = || -> Box<dyn Conversation> { Box::new(FastCgiConversation::new(&Rc::default())) };
    let found = testing::reply_in_steps(&ready, &flood, 100_000);
    assert_eq!(
        found.error,
        Some("the FastCGI application floods its STDERR")
    );
}

#[test]
fn requests_follow_each_other_on_a_connection() {
    let answer = get();
    let mut conversation = FastCgiConversation::new(&Rc::default());
    for number in 0..3 {
        sent(&mut conversation, &answer, &host(Protocol::FastCgi), b"");
        let wire = ended(&[(OUT, &format!("N: {number}\n\n"))]);
        let mut position = 0;
        loop {
            let decoded = conversation.decode(&wire[position..]).expect("it is sound");
            position += decoded.consumed;
            if let ReplyEvent::End { reusable } = decoded.event {
                assert!(reusable && position == wire.len());
                break;
            }
        }
        let value = conversation.head().get("N").expect("it is there");
        assert_eq!(value, number.to_string().as_bytes());
        assert_eq!(conversation.head().len(), 1);
    }
}
