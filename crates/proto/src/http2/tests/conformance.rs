//! The cases of h2spec, sections 3 to 8, as far as a connection by itself can be asked. Where h2spec bears a stream error, the
//! end of the connection will do.

use super::*;
use ErrorCode::{
    CompressionError, FlowControlError, FrameSizeError, ProtocolError, RefusedStream, StreamClosed,
};

/// Bytes behind the preface and SETTINGS that end the connection.
fn fails(input: &[Vec<u8>], code: ErrorCode) {
    Server::settled().fails(&input.concat(), code);
}

/// Bytes that cost stream 1.
fn loses(input: &[Vec<u8>], code: ErrorCode) {
    Server::settled().loses(&input.concat(), 1, code);
}

/// Bytes with which nothing is wrong: the connection still answers PING.
fn bears(input: &[Vec<u8>]) {
    let mut server = Server::settled();
    server.takes(&input.concat());
    server.sent();
    server.takes(&ping());
    let sent = server.sent();
    assert_eq!((sent[0].kind, sent[0].flags), (PING, flag::ACK));
    assert_eq!(sent[0].payload, b"12345678");
}

/// A stream that both sides have ended.
fn closed(also_released: bool) -> Server {
    let mut server = Server::settled();
    server.takes(&get(1));
    server.answer(1, 1);
    server.sent();
    if also_released {
        server.release(1);
    }
    server
}

/// The beginning of a head that goes on.
fn unfinished() -> Vec<u8> {
    frame(HEADERS, flag::END, 1, &post(&[])[..3])
}

#[test]
fn section_3_preface() {
    let mut server = Server::new(Http2Options::default());
    let error = server.fails(b"GET / HTTP/1.1\r\n", ProtocolError);
    assert_eq!(error, ConnectionError::Preface.into());
    for first in [ping(), get(1), frame(SETTINGS, flag::ACK, 0, b"")] {
        let mut server = Server::new(Http2Options::default());
        server.takes(PREFACE);
        let error = server.fails(&first, ProtocolError);
        assert_eq!(error, ConnectionError::FirstFrame.into());
    }
    let mut server = Server::new(Http2Options::default());
    server.takes(&[&PREFACE[..], &frame(SETTINGS, 0, 0, b"")].concat());
    let kinds: Vec<_> = server
        .sent()
        .iter()
        .map(|sent| (sent.kind, sent.flags))
        .collect();
    assert_eq!(kinds, [(SETTINGS, 0), (WINDOW, 0), (SETTINGS, flag::ACK)]);
}

#[test]
fn section_4_frames() {
    bears(&[frame(0x16, 0, 0, b"12345678")]);
    bears(&[frame(PING, 0x16, 0, b"12345678")]);
    let mut reserved = ping();
    reserved[5] |= 0x80;
    bears(&[reserved]);
    bears(&[upload(1, &[]), data(1, flag::END, &[0; 16_384])]);
    fails(
        &[upload(1, &[]), data(1, flag::END, &[0; 16_385])],
        FrameSizeError,
    );
    fails(
        &[frame(HEADERS, flag::ALL, 1, &[0; 16_385])],
        FrameSizeError,
    );
    fails(
        &[frame(HEADERS, flag::ALL, 1, &[0x40, 0x01])],
        CompressionError,
    );
    fails(
        &[unfinished(), frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 15])],
        ProtocolError,
    );
    fails(&[unfinished(), get(3)], ProtocolError);
}

#[test]
fn section_5_1_states() {
    for idle in [
        data(1, flag::END, b"test"),
        reset(1, ErrorCode::Cancel),
        window(1, 100),
        frame(CONTINUATION, flag::END_HEADERS, 1, &post(&[])),
        data(2, flag::END, b"test"),
    ] {
        fails(&[idle], ProtocolError);
    }
    // Half-closed by the client.
    loses(&[get(1), data(1, flag::END, b"test")], StreamClosed);
    loses(&[get(1), get(1)], StreamClosed);
    fails(
        &[get(1), frame(CONTINUATION, flag::END_HEADERS, 1, &[])],
        ProtocolError,
    );
    // Closed by the client's reset.
    let cancel = || reset(1, ErrorCode::Cancel);
    fails(
        &[upload(1, &[]), cancel(), data(1, flag::END, b"test")],
        StreamClosed,
    );
    fails(&[upload(1, &[]), cancel(), get(1)], StreamClosed);
    // Closed by both sides.
    for also_released in [false, true] {
        closed(also_released).fails(&data(1, flag::END, b"test"), StreamClosed);
        closed(also_released).fails(&get(1), StreamClosed);
        let mut server = closed(also_released);
        server.takes(&[window(1, 1), cancel(), frame(PRIORITY, 0, 1, &[0; 5])].concat());
        assert!(server.sent().is_empty());
    }
}

#[test]
fn section_5_1_identifiers() {
    fails(&[get(2)], ProtocolError);
    fails(&[get(5), get(3)], ProtocolError);
    let options = Http2Options {
        limits: Http2Limits {
            streams_max: 1,
            ..Http2Limits::default()
        },
        ..Http2Options::default()
    };
    let mut server = Server::settled_with(options, b"");
    server.takes(&get(1));
    server.loses(&get(3), 3, RefusedStream);
    server.release(1);
    server.story.clear();
    assert_eq!(server.told(&get(5)), ["request 5 GET / end"]);
}

#[test]
fn section_5_3_dependencies() {
    let on_itself = [&[0, 0, 0, 1, 15], &post(&[])[..]].concat();
    loses(
        &[frame(HEADERS, flag::ALL | flag::PRIORITY, 1, &on_itself)],
        ProtocolError,
    );
    loses(
        &[upload(1, &[]), frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 15])],
        ProtocolError,
    );
    // RST_STREAM may not be sent for streams that the client has not begun (RFC 9113 6.4).
    for (stream, payload) in [(1, [0, 0, 0, 1, 15]), (2, [0, 0, 0, 2, 15])] {
        let mut server = Server::settled();
        server.fails(&frame(PRIORITY, 0, stream, &payload), ProtocolError);
    }
    let mut server = Server::settled();
    server.takes(&frame(PRIORITY, 0, 3, &[0; 4]));
    assert!(server.sent().is_empty());
    let on_another = [&[0, 0, 0, 9, 15], &post(&[])[..]].concat();
    bears(&[frame(HEADERS, flag::ALL | flag::PRIORITY, 1, &on_another)]);
}

#[test]
fn section_5_5_extensions() {
    bears(&[frame(0xff, 0, 7, b"unknown")]);
    fails(
        &[unfinished(), frame(0xff, 0, 0, b"unknown")],
        ProtocolError,
    );
}

#[test]
fn section_6_1_data() {
    fails(&[data(0, flag::END, b"test")], ProtocolError);
    fails(
        &[
            upload(1, &[]),
            frame(DATA, flag::PADDED | flag::END, 1, b"\x06Test"),
        ],
        ProtocolError,
    );
}

#[test]
fn section_6_2_headers() {
    fails(&[unfinished(), data(1, flag::END, b"test")], ProtocolError);
    fails(&[get(0)], ProtocolError);
    let padded = [&[0xff], &post(&[])[..]].concat();
    fails(
        &[frame(HEADERS, flag::ALL | flag::PADDED, 1, &padded)],
        ProtocolError,
    );
}

#[test]
fn section_6_3_priority() {
    fails(&[frame(PRIORITY, 0, 0, &[0; 5])], ProtocolError);
    loses(
        &[upload(1, &[]), frame(PRIORITY, 0, 1, &[0; 4])],
        ErrorCode::FrameSizeError,
    );
}

#[test]
fn section_6_4_reset() {
    fails(&[reset(0, ErrorCode::Cancel)], ProtocolError);
    fails(&[reset(1, ErrorCode::Cancel)], ProtocolError);
    fails(
        &[upload(1, &[]), frame(RESET, 0, 1, &[0; 3])],
        FrameSizeError,
    );
}

#[test]
fn section_6_5_settings() {
    fails(&[frame(SETTINGS, flag::ACK, 0, b"x")], FrameSizeError);
    fails(&[frame(SETTINGS, 0, 1, b"")], ProtocolError);
    fails(&[frame(SETTINGS, 0, 0, &[0; 3])], FrameSizeError);
    let settings = |number, value| [frame(SETTINGS, 0, 0, &setting(number, value))];
    fails(&settings(2, 2), ProtocolError);
    fails(&settings(4, 1 << 31), FlowControlError);
    fails(&settings(5, 16_383), ProtocolError);
    fails(&settings(5, 1 << 24), ProtocolError);
    bears(&settings(0xff, 1));
    let twice = [setting(4, 100), setting(4, 1)].concat();
    let mut server = Server::settled();
    server.takes(&frame(SETTINGS, 0, 0, &twice));
    assert_eq!(server.sent()[0].flags, flag::ACK);
    server.takes(&get(1));
    assert_eq!(server.answer(1, 10), 1);
}

#[test]
fn section_6_7_ping() {
    bears(&[]);
    let mut server = Server::settled();
    server.takes(&frame(PING, flag::ACK, 0, b"invalid!"));
    assert!(server.sent().is_empty());
    fails(&[frame(PING, 0, 1, b"12345678")], ProtocolError);
    fails(&[frame(PING, 0, 0, b"1234567")], FrameSizeError);
}

#[test]
fn section_6_8_go_away() {
    fails(&[frame(GO_AWAY, 0, 1, &[0; 8])], ProtocolError);
    let mut server = Server::settled();
    let told = server.told(&frame(GO_AWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 2, b'x']));
    assert_eq!(told, ["go away INTERNAL_ERROR"]);
}

#[test]
fn section_6_9_windows() {
    fails(&[window(0, 0)], ProtocolError);
    loses(&[upload(1, &[]), window(1, 0)], ProtocolError);
    fails(&[frame(WINDOW, 0, 0, &[0, 0, 1])], FrameSizeError);
    fails(
        &[window(0, 0x7fff_ffff), window(0, 0x7fff_ffff)],
        FlowControlError,
    );
    let twice = [upload(1, &[]), window(1, 0x7fff_ffff), window(1, 1)];
    loses(&twice, FlowControlError);
    let overflow = [
        upload(1, &[]),
        window(1, 0x7fff_ffff - 65_535),
        frame(SETTINGS, 0, 0, &setting(4, 65_536)),
    ];
    fails(&overflow, FlowControlError);
    // More than our windows.
    let mut long = vec![upload(1, &[])];
    long.extend(std::iter::repeat_n(data(1, 0, &[0; 16_384]), 17));
    loses(&long, FlowControlError);
    let narrow = Http2Options {
        connection_window: 0,
        ..Http2Options::default()
    };
    let mut server = Server::settled_with(narrow, b"");
    let piece = [0; 16_384];
    server.takes(&[upload(1, &[]), upload(3, &[])].concat());
    server.takes(&[data(1, 0, &piece), data(1, 0, &piece), data(3, 0, &piece)].concat());
    server.fails(&data(3, 0, &piece), FlowControlError);
}

#[test]
fn section_6_10_continuation() {
    let (head, mut parts) = (post(&[]), Vec::new());
    for (number, part) in head.chunks(5).enumerate() {
        let kind = if number == 0 { HEADERS } else { CONTINUATION };
        parts.push(frame(kind, u8::from(number == 0) * flag::END, 1, part));
    }
    let last = frame(CONTINUATION, flag::END_HEADERS, 1, b"");
    let mut server = Server::settled();
    assert!(server.told(&parts.concat()).is_empty());
    assert_eq!(server.told(&last), ["request 1 POST / end"]);
    fails(&[unfinished(), data(1, flag::END, b"x")], ProtocolError);
    fails(
        &[unfinished(), frame(CONTINUATION, flag::END_HEADERS, 0, b"")],
        ProtocolError,
    );
    fails(
        &[unfinished(), frame(CONTINUATION, flag::END_HEADERS, 3, b"")],
        ProtocolError,
    );
    fails(&[upload(1, &[]), last.clone()], ProtocolError);
    fails(&[upload(1, &[]), data(1, 0, b"x"), last], ProtocolError);
}

#[test]
fn section_7_codes_that_are_not_known() {
    bears(&[frame(GO_AWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 0xff])]);
    bears(&[upload(1, &[]), frame(RESET, 0, 1, &[0, 0, 0, 0xff])]);
}

#[test]
fn section_8_1_messages() {
    let trailers = |flags, fields: &[(&str, &str)]| frame(HEADERS, flags, 1, &block(fields));
    loses(
        &[upload(1, &[]), trailers(flag::END_HEADERS, &[("a", "b")])],
        ProtocolError,
    );
    for field in [
        (":method", "GET"),
        ("X-Upper", "1"),
        ("connection", "close"),
        ("content-length", "1"),
        ("a b", "c"),
        ("a", "b\nc"),
        ("a", " b"),
        ("a", "b\t"),
    ] {
        loses(
            &[upload(1, &[]), trailers(flag::ALL, &[field])],
            ProtocolError,
        );
    }
}

#[test]
fn section_8_1_2_fields() {
    let head = |fields: &[(&str, &str)]| [frame(HEADERS, flag::ALL, 1, &block(fields))];
    for field in [
        ("X-TEST", "ok"),
        (":test", "ok"),
        (":status", "200"),
        ("connection", "keep-alive"),
        ("keep-alive", "1"),
        ("proxy-connection", "keep-alive"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
        ("te", "trailers, deflate"),
        ("content-length", "1"),
        ("content-length", "x"),
        ("a", "b\r\nc: d"),
        ("a", " b"),
        ("", "b"),
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
    ] {
        loses(&head(&[&PSEUDO[..], &[field]].concat()), ProtocolError);
    }
    for left_out in [0, 1, 3] {
        let mut fields = PSEUDO.to_vec();
        fields.remove(left_out);
        loses(&head(&fields), ProtocolError);
    }
    let mut empty = PSEUDO;
    empty[3].1 = "";
    loses(&head(&empty), ProtocolError);
    for authority in [" a.example", "a.example\t", "a b", "user@a.example", "@"] {
        let mut fields = PSEUDO;
        fields[2].1 = authority;
        loses(&head(&fields), ProtocolError);
    }
    for (number, value) in [(0, "GET "), (1, " https"), (3, "/ ")] {
        let mut fields = PSEUDO;
        fields[number].1 = value;
        loses(&head(&fields), ProtocolError);
    }
    let mut late = PSEUDO.to_vec();
    late.insert(3, ("x-test", "ok"));
    loses(&head(&late), ProtocolError);
}

#[test]
fn section_8_1_2_6_lengths() {
    let one = || upload(1, &[("content-length", "1")]);
    loses(&[one(), data(1, flag::END, b"test")], ProtocolError);
    loses(
        &[one(), data(1, 0, b"t"), data(1, flag::END, b"est")],
        ProtocolError,
    );
    loses(&[one(), data(1, flag::END, b"")], ProtocolError);
    loses(
        &[one(), frame(HEADERS, flag::ALL, 1, &block(&[("a", "b")]))],
        ProtocolError,
    );
    bears(&[one(), data(1, flag::END, b"t")]);
}

#[test]
fn section_8_2_push() {
    fails(
        &[get(1), frame(PUSH, flag::END_HEADERS, 1, &[0, 0, 0, 2])],
        ProtocolError,
    );
}
