use super::*;
use crate::method::Method;
use crate::request_head::BodyFraming;

#[test]
fn a_request_with_a_body_and_trailers() {
    let mut server = Server::settled();
    let told = server.told(&upload(1, &[("content-length", "5"), ("te", "trailers")]));
    assert_eq!(told, ["request 1 POST / more"]);
    assert_eq!(server.head.framing(), BodyFraming::Length(5));
    assert_eq!(server.head.host(), b"a.example");
    server.takes(&data(1, flag::NONE, b"hel"));
    server.takes(&frame(DATA, flag::PADDED, 1, b"\x03lo\0\0\0"));
    assert_eq!(server.story, [("data 1".to_owned(), b"hello".to_vec())]);
    server.story.clear();
    let trailers = block(&[("checksum", "1"), ("x-b", "")]);
    let told = server.told(&frame(HEADERS, flag::ALL, 1, &trailers));
    assert_eq!(told, ["trailers 1 checksum: 1\r\nx-b:"]);
}

#[test]
fn a_body_without_bytes_has_an_end() {
    let mut server = Server::settled();
    let told = server.told(&[upload(1, &[]), data(1, flag::END, b"")].concat());
    assert_eq!(told, ["request 1 POST / more", "data 1", "end 1"]);
    let told = server.told(
        &[
            upload(3, &[("content-length", "0")]),
            data(3, flag::END, b""),
        ]
        .concat(),
    );
    assert_eq!(told, ["request 3 POST / more", "data 3", "end 3"]);
}

#[test]
fn a_get_may_end_behind_its_head_but_has_no_body() {
    let mut get = PSEUDO;
    get[0].1 = "GET";
    let head = |stream| frame(HEADERS, flag::END_HEADERS, stream, &block(&get));
    let mut server = Server::settled();
    let told = server.told(&[head(1), data(1, flag::END, b"")].concat());
    assert_eq!(told, ["request 1 GET / more", "data 1", "end 1"]);
    assert_eq!(server.head.framing(), BodyFraming::None);
    assert_eq!(server.told(&head(3)), ["request 3 GET / more"]);
    // The owner decides about it.
    assert_eq!(server.told(&data(3, flag::NONE, b"x")), ["data 3"]);
    let nothing = upload(5, &[("content-length", "0")]);
    server.takes(&nothing);
    server.loses(&data(5, flag::NONE, b"x"), 5, ErrorCode::ProtocolError);
    server.story.clear();
    // So it does about bytes that are no UTF-8.
    let mut raw = block(&get[..3]);
    raw.extend(b"\0\x05:path\x03/\xe4?");
    let told = server.told(&frame(HEADERS, flag::ALL, 7, &raw));
    assert_eq!(told.len(), 1);
    assert_eq!(server.head.target(), b"/\xe4?");
}

#[test]
fn a_head_that_http_1_would_refuse_is_refused_with_a_status() {
    let mut server = Server::settled();
    let long = "x".repeat(9000);
    let mut unknown = PSEUDO;
    unknown[0].1 = "BREW";
    let mut no_host = PSEUDO.to_vec();
    no_host.remove(2);
    let many: Vec<_> = PSEUDO.into_iter().chain([("a", "b"); 2000]).collect();
    let cases: [(&[(&str, &str)], &str); 6] = [
        (&[&PSEUDO[..], &[("x", &long)]].concat(), "HeadTooLarge"),
        (&unknown, "MethodUnknown"),
        (&no_host, "HostMissing"),
        (
            &[&PSEUDO[..], &[("host", "b.example")]].concat(),
            "HostRepeated",
        ),
        (
            &[(":method", "CONNECT"), (":authority", "a.example:443")],
            "MethodConnect",
        ),
        (&many, "TooManyFields"),
    ];
    for (id, (fields, reason)) in (1..).step_by(2).zip(cases) {
        let told = server.told(&frame(HEADERS, flag::ALL, id, &block(fields)));
        assert_eq!(told, [format!("refused {id} {reason} end")]);
        server.answer(id, 1);
    }
    // The connection is none the worse.
    assert_eq!(server.told(&get(21)), ["request 21 GET / end"]);
}

#[test]
fn extended_connect_is_told_apart() {
    let mut connect = PSEUDO.to_vec();
    connect[0].1 = "CONNECT";
    connect.push((":protocol", "websocket"));
    let head = |stream| frame(HEADERS, flag::END_HEADERS, stream, &block(&connect));
    let mut server = Server::settled();
    assert_eq!(server.told(&head(1)), ["request 1 CONNECT / more"]);
    assert_eq!(server.head.method(), Method::Connect);
    assert_eq!(server.head.protocol(), Some(&b"websocket"[..]));
    assert_eq!(server.head.framing(), BodyFraming::None);
    let told = server.told(&data(1, flag::END, b"bytes"));
    assert_eq!(told, ["data 1", "end 1"]);
    let priority = server.connection.priority(server.key(1));
    assert_eq!(priority, Some(Priority::new(3, true)));
    let mut server = Server::settled();
    server.takes(&head(1));
    server.takes(&frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=1, i=?0"));
    let priority = server.connection.priority(server.key(1));
    assert_eq!(priority, Some(Priority::new(1, true)));
    // Nothing but DATA goes through it (RFC 9113 8.5).
    let trailers = frame(HEADERS, flag::ALL, 1, &block(&[("a", "b")]));
    server.loses(&trailers, 1, ErrorCode::ProtocolError);
    let options = Http2Options {
        takes_extended_connect: false,
        ..Http2Options::default()
    };
    let mut server = Server::settled_with(options, b"");
    server.loses(&head(1), 1, ErrorCode::ProtocolError);
}

#[test]
fn a_protocol_is_for_connect_alone() {
    for fields in [
        post(&[(":protocol", "websocket")]),
        block(&[&[(":protocol", "websocket")], &PSEUDO[..]].concat()),
        block(&[(":method", "CONNECT"), (":protocol", "websocket")]),
    ] {
        let mut server = Server::settled();
        let head = frame(HEADERS, flag::END_HEADERS, 1, &fields);
        server.loses(&head, 1, ErrorCode::ProtocolError);
    }
}

#[test]
fn priorities_come_before_with_and_after_a_request() {
    let mut server = Server::settled();
    let update = |stream: u32, value: &str| {
        let payload = [&stream.to_be_bytes(), value.as_bytes()].concat();
        frame(PRIORITY_UPDATE, flag::NONE, 0, &payload)
    };
    server.takes(&update(3, "u=1"));
    server.takes(&upload(1, &[("priority", "u=5, i")]));
    server.takes(&upload(3, &[("priority", "u=6")]));
    let priority = |server: &Server, id| server.connection.priority(server.key(id));
    assert_eq!(priority(&server, 1), Some(Priority::new(5, true)));
    assert_eq!(priority(&server, 3), Some(Priority::new(1, false)));
    server.takes(&update(1, ""));
    assert_eq!(priority(&server, 1), Some(Priority::default()));
    let of_answer = Priority::new(0, true);
    server.connection.set_priority(server.key(1), of_answer);
    assert_eq!(priority(&server, 1), Some(of_answer));
}

#[test]
fn credit_is_given_back_when_bytes_are_consumed() {
    let options = Http2Options {
        stream_window: 100_000,
        connection_window: 200_000,
        ..Http2Options::default()
    };
    let mut server = Server::settled_with(options, b"");
    server.takes(&upload(1, &[]));
    let piece = vec![b'x'; 16_000];
    for _ in 0..6 {
        server.takes(&data(1, flag::NONE, &piece));
    }
    assert!(server.sent().is_empty(), "nothing is consumed");
    let key = server.key(1);
    for _ in 0..6 {
        server.connection.consumed(key, 16_000);
    }
    let sent: Vec<_> = server.sent();
    let opened = |stream| {
        let of_stream = sent.iter().filter(|sent| sent.stream == stream);
        of_stream.map(Sent::number).collect::<Vec<_>>()
    };
    assert_eq!(opened(1), [48_000, 48_000]);
    assert_eq!(opened(0), [48_000, 48_000]);
    // What the owner has not consumed goes back to the connection when the stream is released.
    server.takes(&data(1, flag::NONE, &piece));
    server.takes(&data(1, flag::NONE, &piece));
    server.takes(&data(1, flag::END, &piece));
    server.answer(1, 1);
    server.sent();
    server.release(1);
    let sent = server.sent();
    assert_eq!(
        (sent.len(), sent[0].stream, sent[0].number()),
        (1, 0, 48_000)
    );
}

#[test]
fn bodies_that_are_not_consumed_leave_every_other_stream_its_whole_window() {
    let mut server = Server::settled();
    let piece = vec![b'x'; 16_000];
    let mut opened = Vec::new();
    for id in (1..=199).step_by(2) {
        server.takes(&upload(id, &[]));
        let mut room: u32 = 65_535;
        // Those that are consumed at first get a wider window, as long as there is more for them.
        for _ in 0..3 {
            server.takes(&data(id, flag::NONE, &piece));
            server.connection.consumed(server.key(id), 16_000);
            room -= 16_000;
        }
        let sent = server.sent();
        let of_stream = sent.iter().filter(|sent| sent.stream == id);
        room += of_stream.map(Sent::number).sum::<u32>();
        opened.push(room > 65_535);
        while room > 0 {
            let length = room.min(16_000);
            server.takes(&data(id, flag::NONE, &piece[..length as usize]));
            room -= length;
        }
    }
    assert_eq!(opened.iter().filter(|is_wide| **is_wide).count(), 8);
    assert!(opened[..8].iter().all(|is_wide| *is_wide));
    server.loses(
        &data(199, flag::NONE, b"x"),
        199,
        ErrorCode::FlowControlError,
    );
    // The next upload gets what one that is over has had.
    server.connection.reset(server.key(1), ErrorCode::Cancel);
    server.release(1);
    server.release(199);
    server.takes(&upload(201, &[]));
    server.sent();
    for _ in 0..3 {
        server.takes(&data(201, flag::NONE, &piece));
        server.connection.consumed(server.key(201), 16_000);
    }
    let sent = server.sent();
    let of_stream: u32 = (sent.iter().filter(|sent| sent.stream == 201))
        .map(Sent::number)
        .sum();
    assert!(of_stream > 65_535, "{of_stream}");
}

#[test]
fn a_body_that_fits_the_window_brings_no_window_update() {
    let mut server = Server::settled();
    server.takes(&upload(1, &[("content-length", "64000")]));
    for _ in 0..8 {
        server.takes(&data(1, flag::NONE, &[0; 8000]));
        server.connection.consumed(server.key(1), 8000);
    }
    assert!(server.sent().iter().all(|sent| sent.stream == 0));
}

#[test]
fn a_window_that_shrinks_under_a_body_is_opened_again() {
    let options = Http2Options {
        stream_window: 1000,
        ..Http2Options::default()
    };
    let mut server = Server::new(options);
    server.takes(&[&PREFACE[..], &frame(SETTINGS, flag::NONE, 0, b"")].concat());
    server.takes(&upload(1, &[("content-length", "20000")]));
    server.takes(&data(1, flag::NONE, &[0; 10_000]));
    server.connection.consumed(server.key(1), 10_000);
    // The client still has the window that it began with, and room in it.
    assert!(server.sent().iter().all(|sent| sent.stream == 0));
    server.takes(&frame(SETTINGS, flag::ACK, 0, b""));
    let sent = server.sent();
    assert_eq!((sent[0].stream, sent[0].number()), (1, 10_000));
    server.takes(&data(1, flag::NONE, &[0; 1000]));
}

#[test]
fn padding_does_not_take_the_room_of_a_body() {
    let options = Http2Options {
        stream_window: 1000,
        ..Http2Options::default()
    };
    let mut server = Server::settled_with(options, b"");
    server.takes(&upload(1, &[("content-length", "900")]));
    server.takes(&data(1, flag::NONE, &[0; 700]));
    server.connection.consumed(server.key(1), 700);
    assert!(server.sent().is_empty(), "there is room for the rest");
    let padded = [&[198; 1][..], &[0; 199]].concat();
    server.takes(&frame(DATA, flag::PADDED, 1, &padded));
    let sent = server.sent();
    assert_eq!((sent[0].stream, sent[0].number()), (1, 899));
}

#[test]
fn a_reset_stream_counts_for_the_connection_alone() {
    let mut server = Server::settled();
    server.takes(&upload(1, &[]));
    server.connection.reset(server.key(1), ErrorCode::Cancel);
    assert_eq!(server.sent().len(), 1);
    server.story.clear();
    // What was on its way.
    for _ in 0..100 {
        assert!(server.told(&data(1, flag::NONE, &[0; 16_000])).is_empty());
    }
    let opened: u32 = server.sent().iter().map(Sent::number).sum();
    assert!(opened > 1_500_000, "{opened}");
    assert!(
        server
            .told(&frame(HEADERS, flag::ALL, 1, &block(&[("a", "b")])))
            .is_empty()
    );
    server.release(1);
    assert!(server.told(&data(1, flag::END, b"x")).is_empty());
    assert!(server.told(&reset(1, ErrorCode::Cancel)).is_empty());
    assert!(server.told(&window(1, 1)).is_empty());
    assert!(server.sent().is_empty());
}

#[test]
fn an_http_1_request_becomes_stream_1() {
    let options = Http2Options::default();
    let mut server = Server::new(options);
    let settings = [setting(4, 3), setting(5, 20_000)].concat();
    let (connection, key) = Http2Connection::upgraded(options, &settings).expect("sound");
    server.connection = connection;
    server.keys.push(key);
    assert_eq!(server.answer(1, 10), 3);
    server.takes(
        &[
            PREFACE.to_vec(),
            frame(SETTINGS, 0, 0, &setting(4, 10)),
            get(3),
        ]
        .concat(),
    );
    assert_eq!(server.send(1, 7), 7);
    assert_eq!(server.answer(3, 5), 5);
    server.takes(&[]);
    server.fails(&data(1, flag::END, b"x"), ErrorCode::StreamClosed);
    for unsound in [&settings[..5], &setting(4, u32::MAX), &[0; 20_000]] {
        assert!(Http2Connection::upgraded(options, unsound).is_none());
    }
}
