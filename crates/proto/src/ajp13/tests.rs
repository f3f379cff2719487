use proptest::prelude::*;

use super::reply::{END_RESPONSE, GET_BODY_CHUNK, PONG, SEND_BODY_CHUNK, SEND_HEADERS};
use super::request::{
    ATTRIBUTES_END, FIELDS, FORWARD_REQUEST, METHOD_STORED, METHODS, NAMED, STORED_METHOD,
};
use super::*;
use crate::cgi::{HeadError, HeadLimits};
use crate::reply_head::ReplyHead;

const LIMITS: HeadLimits = HeadLimits {
    bytes_max: 65_536,
    fields_max: 20,
};

const REQUEST: Request<'_> = Request {
    method: b"GET",
    protocol: b"HTTP/1.1",
    uri: b"/a%20b",
    remote_address: b"10.0.0.1",
    server_name: b"a.example",
    server_port: 8080,
    is_tls: false,
};

/// Reads a packet as a container does.
struct Reader<'p>(&'p [u8]);

impl<'p> Reader<'p> {
    fn byte(&mut self) -> u8 {
        let (&byte, rest) = self.0.split_first().expect("a byte");
        self.0 = rest;
        byte
    }

    fn number(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    fn string(&mut self) -> &'p [u8] {
        let length = self.number();
        self.rest_of_string(length)
    }

    fn rest_of_string(&mut self, length: u16) -> &'p [u8] {
        if length == 0xffff {
            return b"(null)";
        }
        let (text, rest) = self.0.split_at(usize::from(length));
        self.0 = rest;
        assert_eq!(self.byte(), 0);
        text
    }
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Decodes a FORWARD_REQUEST into its fixed parts, its fields and its attributes.
fn forwarded(wire: &[u8]) -> (Vec<Vec<u8>>, Pairs, Pairs) {
    let mut reader = Reader(wire);
    assert_eq!(reader.number(), 0x1234);
    assert_eq!(usize::from(reader.number()), wire.len() - 4);
    assert_eq!(reader.byte(), FORWARD_REQUEST);
    let method = reader.byte();
    let mut fixed = vec![match method {
        METHOD_STORED => b"(stored)".to_vec(),
        number => METHODS[usize::from(number) - 1].as_bytes().to_vec(),
    }];
    for _ in 0..5 {
        fixed.push(reader.string().to_vec());
    }
    fixed.push(reader.number().to_string().into_bytes());
    fixed.push(reader.byte().to_string().into_bytes());
    let mut fields = Vec::new();
    for _ in 0..reader.number() {
        let name = match reader.number() {
            number @ 0xa001.. => {
                let named = |(_, known): &&(&str, u16)| *known == number;
                let field = FIELDS.iter().find(named).expect("a known number");
                field.0.as_bytes()
            }
            length => reader.rest_of_string(length),
        };
        fields.push((name.to_vec(), reader.string().to_vec()));
    }
    let mut attributes = Vec::new();
    loop {
        let name = match reader.byte() {
            ATTRIBUTES_END => break,
            NAMED => reader.string().to_vec(),
            number => number.to_string().into_bytes(),
        };
        attributes.push((name, reader.string().to_vec()));
    }
    assert!(reader.0.is_empty());
    (fixed, fields, attributes)
}

/// A reply as the server decodes it.
#[derive(Debug, Default, PartialEq)]
struct Reply {
    statuses: Vec<u16>,
    fields: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    asked: Vec<u16>,
    pongs: usize,
    reuse: Option<bool>,
    refused: Option<ReplyError>,
}

fn reply_in_steps(input: &[u8], step: usize) -> Reply {
    let mut decoder = AjpDecoder::new(LIMITS);
    let mut head = ReplyHead::new();
    let mut reply = Reply::default();
    let (mut position, mut arrived) = (0, 0);
    loop {
        let given = &input[position..arrived];
        let decoded = match decoder.decode(given, &mut head) {
            Ok(decoded) => decoded,
            Err(error) => {
                assert_eq!(
                    decoder.decode(b"", &mut head),
                    Err(error),
                    "an error is final"
                );
                reply.refused = Some(error);
                return reply;
            }
        };
        position += decoded.consumed;
        match decoded.event {
            AjpEvent::NeedMore if arrived == input.len() => return reply,
            AjpEvent::NeedMore => arrived = (arrived + step).min(input.len()),
            AjpEvent::Head | AjpEvent::Interim => {
                reply.statuses.push(head.status().0);
                let owned = |(name, value): (&str, &[u8])| (name.to_owned(), value.to_vec());
                reply.fields = head.fields().map(owned).collect();
                head.clear();
            }
            AjpEvent::Body(range) => {
                assert!(!range.is_empty() && range.end == decoded.consumed);
                reply.body.extend_from_slice(&given[range]);
            }
            AjpEvent::GetBody(length) => reply.asked.push(length),
            AjpEvent::Pong => reply.pongs += 1,
            AjpEvent::End { reuse } => {
                reply.reuse = Some(reuse);
                assert_eq!(decoder.decode(b"", &mut head), Err(ReplyError::BehindEnd));
                return reply;
            }
        }
    }
}

fn reply(input: &[u8]) -> Reply {
    let whole = reply_in_steps(input, input.len().max(1));
    for step in 1..input.len().min(40) {
        assert_eq!(reply_in_steps(input, step), whole, "{step}");
    }
    whole
}

fn packet(kind: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len() + 1).expect("packets are small");
    [&b"AB"[..], &length.to_be_bytes(), &[kind], content].concat()
}

fn string(text: &[u8]) -> Vec<u8> {
    let length = u16::try_from(text.len()).expect("strings are short");
    [&length.to_be_bytes()[..], text, b"\0"].concat()
}

/// A SEND_HEADERS packet. Names of two bytes are numbers.
fn headers(status: u16, fields: &[(&[u8], &[u8])]) -> Vec<u8> {
    let count = u16::try_from(fields.len()).expect("few");
    let mut content = [
        &status.to_be_bytes()[..],
        &string(b"Phrase"),
        &count.to_be_bytes(),
    ]
    .concat();
    for (name, value) in fields {
        match name {
            [0xa0, _] => content.extend_from_slice(name),
            name => content.extend(string(name)),
        }
        content.extend(string(value));
    }
    packet(SEND_HEADERS, &content)
}

fn chunk(bytes: &[u8]) -> Vec<u8> {
    packet(SEND_BODY_CHUNK, &string(bytes))
}

fn end() -> Vec<u8> {
    packet(END_RESPONSE, &[1])
}

#[test]
fn a_request_is_written_as_the_specification_says() {
    let mut out = b"kept".to_vec();
    let mut fields = RequestEncoder::new(&mut out, &REQUEST);
    fields.field(b"host", b"a.example:8080");
    fields.field(b"X-Other", b"");
    let mut attributes = fields.attributes();
    attributes.add(Attribute::QueryString, b"c=d");
    attributes.add_named(b"AJP_REMOTE_PORT", b"4711");
    assert_eq!(attributes.finish(), Ok(()));
    assert!(out.starts_with(b"kept\x12\x34"));
    assert!(out[8..].starts_with(b"\x02\x02\0\x08HTTP/1.1\0\0\x06/a%20b\0"));
    let (fixed, fields, attributes) = forwarded(&out[4..]);
    let expected: [&[u8]; 8] = [
        b"GET",
        b"HTTP/1.1",
        b"/a%20b",
        b"10.0.0.1",
        b"(null)",
        b"a.example",
        b"8080",
        b"0",
    ];
    assert_eq!(fixed, expected);
    let pair = |name: &str, value: &str| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
    assert_eq!(
        fields,
        [pair("Host", "a.example:8080"), pair("X-Other", "")]
    );
    assert_eq!(
        attributes,
        [pair("5", "c=d"), pair("AJP_REMOTE_PORT", "4711")]
    );
}

#[test]
fn methods_without_a_number_are_an_attribute() {
    for (method, shown) in [
        ("PATCH", "(stored)"),
        ("MKACTIVITY", "MKACTIVITY"),
        ("GET", "GET"),
    ] {
        let mut out = Vec::new();
        let request = Request {
            method: method.as_bytes(),
            is_tls: true,
            ..REQUEST
        };
        let finished = RequestEncoder::new(&mut out, &request)
            .attributes()
            .finish();
        assert_eq!(finished, Ok(()));
        let (fixed, _, attributes) = forwarded(&out);
        assert_eq!(fixed[0], shown.as_bytes());
        assert_eq!(fixed[7], b"1");
        let stored = (STORED_METHOD.to_string().into_bytes(), b"PATCH".to_vec());
        assert_eq!(attributes.contains(&stored), method == "PATCH");
    }
}

#[test]
fn a_request_has_to_fit_into_one_packet() {
    let of = |length: usize| {
        let mut out = b"kept".to_vec();
        let mut fields = RequestEncoder::new(&mut out, &REQUEST);
        fields.field(b"A", &vec![b'x'; length]);
        let finished = fields.attributes().finish();
        (finished, out.len())
    };
    let (_, short) = of(0);
    let longest = PACKET_BYTES_MAX - (short - 4);
    assert_eq!(of(longest), (Ok(()), 4 + PACKET_BYTES_MAX));
    for length in [longest + 1, 9000, 100_000] {
        assert_eq!(of(length), (Err(RequestTooLong), 4));
    }
    let mut out = Vec::new();
    let mut fields = RequestEncoder::new(&mut out, &REQUEST);
    for _ in 0..70_000 {
        fields.field(b"Host", b"");
    }
    assert_eq!(fields.attributes().finish(), Err(RequestTooLong));
    assert!(out.capacity() < 1 << 20);
}

#[test]
fn bodies_go_in_packets() {
    let mut out = Vec::new();
    write_body(&mut out, b"abc");
    assert_eq!(out, b"\x12\x34\0\x05\0\x03abc");
    out.clear();
    write_body(&mut out, &[7; BODY_BYTES_MAX + 1]);
    assert_eq!(out.len(), PACKET_BYTES_MAX + 7);
    assert_eq!(out[PACKET_BYTES_MAX..], *b"\x12\x34\0\x03\0\x01\x07");
    out.clear();
    write_body(&mut out, b"");
    assert_eq!(out, b"");
    write_end_of_body(&mut out);
    assert_eq!(out, b"\x12\x34\0\0");
}

#[test]
fn a_reply_comes_out_as_it_went_in() {
    let fields: [(&[u8], &[u8]); 4] = [
        (b"\xa0\x01", b"text/html"),
        (b"X-Other", b" a "),
        (b"\xa0\x0b", b"Basic"),
        (b"\xa0\x03", b"9"),
    ];
    let wire = [
        packet(PONG, &[]),
        packet(GET_BODY_CHUNK, &[0x1f, 0xfa]),
        headers(103, &[(b"Link", b"<a>")]),
        headers(404, &fields),
        chunk(b"body "),
        chunk(b""),
        packet(SEND_BODY_CHUNK, b"\0\x04more"),
        packet(GET_BODY_CHUNK, &[0, 1]),
        end(),
    ];
    let expected = Reply {
        statuses: vec![103, 404],
        fields: vec![
            ("Content-Type".to_owned(), b"text/html".to_vec()),
            ("X-Other".to_owned(), b"a".to_vec()),
            ("WWW-Authenticate".to_owned(), b"Basic".to_vec()),
            ("Content-Length".to_owned(), b"9".to_vec()),
        ],
        body: b"body more".to_vec(),
        asked: vec![0x1ffa, 1],
        pongs: 1,
        reuse: Some(true),
        refused: None,
    };
    let wire = wire.concat();
    assert_eq!(reply(&wire), expected);
    for length in 0..wire.len() {
        assert_eq!(reply_in_steps(&wire[..length], 7).reuse, None);
    }
    let closing = [headers(200, &[]), packet(END_RESPONSE, &[0])].concat();
    assert_eq!(reply(&closing).reuse, Some(false));
}

#[test]
fn replies_that_break_the_rules_are_refused() {
    let head = headers(200, &[]);
    let behind = |packet: Vec<u8>| [&head[..], &packet].concat();
    for (wire, error) in [
        (b"x".to_vec(), ReplyError::Magic),
        (b"AC".to_vec(), ReplyError::Magic),
        (vec![0x12, 0x34], ReplyError::Magic),
        (b"AB\0\0".to_vec(), ReplyError::Length),
        (packet(2, &[]), ReplyError::Kind),
        (packet(11, &[]), ReplyError::Kind),
        (chunk(b"x"), ReplyError::Order),
        (end(), ReplyError::Order),
        (behind(head.clone()), ReplyError::Order),
        (behind(packet(END_RESPONSE, &[])), ReplyError::Length),
        (behind(packet(END_RESPONSE, &[1, 1])), ReplyError::Length),
        (packet(GET_BODY_CHUNK, &[1]), ReplyError::Length),
        (packet(PONG, &[1]), ReplyError::Length),
        (behind(packet(SEND_BODY_CHUNK, b"\0")), ReplyError::Length),
        (
            behind(packet(SEND_BODY_CHUNK, b"\0\x02a")),
            ReplyError::Length,
        ),
        (
            behind(packet(SEND_BODY_CHUNK, b"\0\x01a\0\0")),
            ReplyError::Length,
        ),
        (packet(SEND_HEADERS, b"\0"), ReplyError::Length),
        (packet(SEND_HEADERS, b"\0\xc8\0\x05a\0"), ReplyError::Length),
        (packet(SEND_HEADERS, b"\0\xc8\0\x01ab"), ReplyError::Length),
        (
            packet(SEND_HEADERS, b"\0\xc8\0\0\0\0\x01"),
            ReplyError::Length,
        ),
        (
            packet(SEND_HEADERS, b"\0\xc8\0\0\0\0\0!"),
            ReplyError::Length,
        ),
        (headers(99, &[]), ReplyError::Head(HeadError::Status)),
        (headers(1000, &[]), ReplyError::Head(HeadError::Status)),
        (
            headers(200, &[(b"A b", b"")]),
            ReplyError::Head(HeadError::FieldName),
        ),
        (
            headers(200, &[(b"", b"")]),
            ReplyError::Head(HeadError::FieldName),
        ),
        (
            headers(200, &[(b"\xa0\x0c", b"")]),
            ReplyError::Head(HeadError::FieldName),
        ),
        (
            headers(200, &[(b"A", b"a\r\nB: c")]),
            ReplyError::Head(HeadError::FieldValue),
        ),
        (
            headers(200, &[(b"A", b"\0")]),
            ReplyError::Head(HeadError::FieldValue),
        ),
        (
            headers(200, &[(&b"A"[..], &b""[..]); 21]),
            ReplyError::Head(HeadError::TooManyFields),
        ),
        (
            headers(200, &[(b"\xa0\x03", b"1"), (b"content-length", b"2")]),
            ReplyError::Head(HeadError::ContentLengthRepeated),
        ),
        (
            headers(200, &[(b"\xa0\x0a", b"404")]),
            ReplyError::Head(HeadError::StatusRepeated),
        ),
    ] {
        assert_eq!(reply(&wire).refused, Some(error), "{}", wire.escape_ascii());
    }
    // The number 0xA000 stands for no name, so it is read as a length, and the packet has fewer bytes than
    // that.
    assert_eq!(
        reply(&headers(200, &[(b"\xa0\0", b"")])).refused,
        Some(ReplyError::Length)
    );
}

#[test]
fn replies_follow_each_other() {
    let wire = [headers(200, &[(b"\xa0\x03", b"1")]), chunk(b"x"), end()].concat();
    let mut decoder = AjpDecoder::new(LIMITS);
    let mut head = ReplyHead::new();
    for _ in 0..3 {
        decoder.begin();
        head.clear();
        let mut position = 0;
        loop {
            let decoded = decoder.decode(&wire[position..], &mut head);
            let decoded = decoded.expect("it is sound");
            position += decoded.consumed;
            if decoded.event == (AjpEvent::End { reuse: true }) {
                break;
            }
        }
        assert_eq!((position, decoder.content_length()), (wire.len(), Some(1)));
        assert_eq!(head.len(), 1);
    }
}

proptest! {
    #[test]
    fn requests_come_back(
        fields_in in proptest::collection::vec(
            ("(Host|Cookie|Accept|[A-Z][a-z]{0,9})", proptest::collection::vec(any::<u8>(), 0..90)),
            0..30,
        ),
        uri in proptest::collection::vec(any::<u8>(), 0..900),
    ) {
        let mut out = Vec::new();
        let mut encoder = RequestEncoder::new(&mut out, &Request { uri: &uri, ..REQUEST });
        for (name, value) in &fields_in {
            encoder.field(name.as_bytes(), value);
        }
        encoder.attributes().finish().expect("it is short");
        let (fixed, fields, _) = forwarded(&out);
        prop_assert_eq!(&fixed[2], &uri);
        let expected: Pairs = fields_in
            .into_iter()
            .map(|(name, value)| (name.into_bytes(), value))
            .collect();
        prop_assert_eq!(fields, expected);
    }

    #[test]
    fn packets_are_read_alike_however_they_arrive(
        parts in proptest::collection::vec(prop_oneof![
            Just(headers(200, &[(b"\xa0\x03", b"5")])),
            Just(headers(103, &[])),
            Just(end()),
            Just(b"AB".to_vec()),
            proptest::collection::vec(any::<u8>(), 0..9).prop_map(|bytes| chunk(&bytes)),
            (0..12_u8, proptest::collection::vec(any::<u8>(), 0..9))
                .prop_map(|(kind, bytes)| packet(kind, &bytes)),
        ], 0..8),
        step in 1..30_usize,
    ) {
        let wire = parts.concat();
        let whole = reply_in_steps(&wire, wire.len().max(1));
        prop_assert_eq!(reply_in_steps(&wire, step), whole);
    }
}
