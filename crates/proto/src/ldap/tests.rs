//! Requests and replies, byte by byte.

use super::ber;
use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b' ').collect();
    let pairs = digits
        .chunks(2)
        .map(|pair| str::from_utf8(pair).expect("digits"));
    pairs
        .map(|pair| u8::from_str_radix(pair, 16).expect("two digits"))
        .collect()
}

fn filter(text: &str) -> Vec<u8> {
    let read = read_filter(text.as_bytes());
    read.unwrap_or_else(|error| panic!("{text}: {error}"))
        .bytes()
        .to_vec()
}

#[test]
fn requests_are_those_of_the_standard() {
    let mut out = Vec::new();
    write_bind(1, b"", b"", &mut out);
    assert_eq!(out, hex("30 0c 02 01 01 60 07 02 01 03 04 00 80 00"));
    out.clear();
    write_bind(0x1234, b"cn=a", b"pw", &mut out);
    assert_eq!(
        out,
        hex("30 13 02 02 1234 60 0d 02 01 03 04 04 636e3d61 80 02 7077")
    );
    out.clear();
    write_start_tls(1, &mut out);
    let oid = "312e332e362e312e342e312e313436362e3230303337";
    assert_eq!(out, hex(&format!("30 1d 02 01 01 77 18 80 16 {oid}")));
    out.clear();
    let search = Search {
        base: b"o=x",
        scope: Scope::Subtree,
        filter: &read_filter(b"(uid=a)").expect("a filter"),
        entries_max: 2,
        seconds_max: 200,
    };
    write_search(1, &search, &mut out);
    let expected = "30 2b 02 01 01 63 26 04 03 6f3d78 0a 01 02 0a 01 00 02 01 02 02 02 00c8 01 01 00 \
        a3 08 04 03 756964 04 01 61 30 05 04 03 312e31";
    assert_eq!(out, hex(expected));
}

#[test]
fn long_contents_have_long_lengths() {
    for (length, head) in [
        (127, "04 7f"),
        (128, "04 81 80"),
        (300, "04 82 01 2c"),
        (70_000, "04 83 01 11 70"),
    ] {
        let mut out = Vec::new();
        ber::write(ber::OCTET_STRING, &vec![7; length], &mut out);
        let head = hex(head);
        assert_eq!(out[..head.len()], head);
        let (content, rest) = ber::read_as(ber::OCTET_STRING, &out).expect("as written");
        assert_eq!((content.len(), rest.len()), (length, 0));
    }
    for number in [0, 1, 127, 128, 255, 256, 0x7fff, 0x8000, u32::MAX] {
        let mut out = Vec::new();
        ber::write_number(ber::INTEGER, number, &mut out);
        let (content, _) = ber::read_as(ber::INTEGER, &out).expect("as written");
        assert_eq!(ber::number(content), Some(number));
    }
}

#[test]
fn filters_are_those_of_the_standard() {
    for (text, wire) in [
        ("(uid=anna)", "a3 0b 04 03 756964 04 04 616e6e61"),
        ("uid=anna", "a3 0b 04 03 756964 04 04 616e6e61"),
        ("(uid=)", "a3 07 04 03 756964 04 00"),
        ("(uid=*)", "87 03 756964"),
        ("(uid>=1)", "a5 08 04 03 756964 04 01 31"),
        ("(uid<=1)", "a6 08 04 03 756964 04 01 31"),
        ("(uid~=1)", "a8 08 04 03 756964 04 01 31"),
        ("(!(uid=1))", "a2 0a a3 08 04 03 756964 04 01 31"),
        ("(&)", "a0 00"),
        (
            "(&(uid=1) (a=*))",
            "a0 0d a3 08 04 03 756964 04 01 31 87 01 61",
        ),
        (
            "(|(uid=1)(a=*))",
            "a1 0d a3 08 04 03 756964 04 01 31 87 01 61",
        ),
        (
            "(uid=a*b*c)",
            "a4 10 04 03 756964 30 09 80 01 61 81 01 62 82 01 63",
        ),
        ("(uid=*b)", "a4 0a 04 03 756964 30 03 82 01 62"),
        ("(uid=a*)", "a4 0a 04 03 756964 30 03 80 01 61"),
        ("(uid=**)", "87 03 756964"),
        (r"(uid=\2a\28)", "a3 09 04 03 756964 04 02 2a28"),
        ("(a:1.2:=x)", "a9 0b 81 03 312e32 82 01 61 83 01 78"),
        ("(a:dn:=x)", "a9 09 82 01 61 83 01 78 84 01 ff"),
        ("(:dn:1.2:=x)", "a9 0b 81 03 312e32 83 01 78 84 01 ff"),
    ] {
        assert_eq!(filter(text), hex(wire), "{text}");
    }
}

#[test]
fn what_is_no_filter_is_refused() {
    let deep = format!("{}(a=1){}", "(!".repeat(40), ")".repeat(40));
    for text in [
        "",
        "()",
        "(uid)",
        "(uid=1",
        "uid=1)",
        "(uid=1)(a=1)",
        "(=1)",
        "(u d=1)",
        r"(uid=\2)",
        r"(uid=\zz)",
        r"(uid=\+1)",
        "(uid>1)",
        "(uid>=*)",
        "(&(uid=1)",
        "(&uid=1)",
        "(:=x)",
        "(a:b:c:=x)",
        "(a:1.2:=x*)",
        "(uid=a(b)",
        &deep,
    ] {
        assert!(read_filter(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn a_name_means_itself_in_a_filter_and_in_a_name() {
    let all: Vec<u8> = (0..=255).collect();
    for value in [
        &b"anna"[..],
        b"*",
        b")(uid=*",
        b"a\\",
        b"*)(|(uid=*",
        b"",
        &all,
    ] {
        let text = [b"(&(o=x)(uid=", &*escape_in_filter(value), b"))"].concat();
        let mut pair = Vec::new();
        ber::write(ber::OCTET_STRING, b"uid", &mut pair);
        ber::write(ber::OCTET_STRING, value, &mut pair);
        let mut expected = Vec::new();
        ber::write(0xa3, &pair, &mut expected);
        let read = read_filter(&text).expect("a filter");
        assert!(read.bytes().ends_with(&expected), "{value:?}");
    }
    assert_eq!(escape_in_name(b"a,ou=b +#\""), br"a\2cou\3db\20\2b\23\22");
}

/// A reply with this operation.
fn message(id: u32, operation: u8, content: &[u8]) -> Vec<u8> {
    let mut inner = Vec::new();
    ber::write_number(ber::INTEGER, id, &mut inner);
    ber::write(operation, content, &mut inner);
    let mut out = Vec::new();
    ber::write(ber::SEQUENCE, &inner, &mut out);
    out
}

fn result(code: u32, text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    ber::write_number(ber::ENUMERATED, code, &mut out);
    ber::write(ber::OCTET_STRING, b"", &mut out);
    ber::write(ber::OCTET_STRING, text.as_bytes(), &mut out);
    out
}

#[test]
fn replies_are_read_however_they_come() {
    let mut entry = Vec::new();
    ber::write(ber::OCTET_STRING, b"uid=anna,o=x", &mut entry);
    ber::write(ber::SEQUENCE, &[0; 300], &mut entry);
    let wire = [
        message(1, 0x61, &result(49, "no")),
        message(1, 0x64, &entry),
        message(1, 0x73, b""),
        message(1, 0x65, &result(0, "")),
        message(1, 0x78, &result(0, "")),
        message(0, 0x78, &result(52, "bye")),
    ]
    .concat();
    let of = |code, text: &str| LdapResult {
        code,
        text: text.into(),
    };
    let expected = [
        LdapReply::Bind(of(49, "no")),
        LdapReply::Entry(b"uid=anna,o=x".to_vec()),
        LdapReply::Reference,
        LdapReply::Done(of(0, "")),
        LdapReply::Extended(of(0, "")),
        LdapReply::Disconnection(of(52, "bye")),
    ];
    for step in [1, 2, 3, 7, wire.len()] {
        let (mut decoder, mut replies) = (LdapDecoder::for_request(1), Vec::new());
        for piece in wire.chunks(step) {
            let mut rest = piece;
            while !rest.is_empty() {
                let fed = decoder.feed(rest).expect("sound");
                rest = &rest[fed.consumed..];
                replies.extend(fed.reply);
            }
        }
        assert_eq!(replies, expected, "{step}");
        assert_eq!(decoder.held(), 0);
    }
}

#[test]
fn what_is_no_reply_is_refused() {
    let long = hex("30 84 7f ff ff ff");
    for (wire, error) in [
        (hex("31 00"), LdapError::Malformed),
        (hex("30 80"), LdapError::Malformed),
        (hex("30 85 01 01 01 01 01"), LdapError::Malformed),
        (hex("30 00"), LdapError::Malformed),
        (hex("30 03 02 01 01"), LdapError::Malformed),
        (hex("30 05 02 01 ff 61 00"), LdapError::Malformed),
        (hex("30 05 02 01 01 61 00"), LdapError::Malformed),
        (long, LdapError::TooLong),
        (message(1, 0x60, b""), LdapError::Unasked),
        (message(2, 0x61, &result(0, "")), LdapError::Unasked),
        (message(0, 0x61, &result(0, "")), LdapError::Unasked),
        (message(1, 0x64, b"\x04\x05ab"), LdapError::Malformed),
        (
            b"HTTP/1.1 400 Bad Request\r\n".to_vec(),
            LdapError::Malformed,
        ),
    ] {
        let fed = LdapDecoder::for_request(1).feed(&wire);
        assert_eq!(fed, Err(error), "{wire:02x?}");
    }
    // A beginning is none yet.
    let bind = message(1, 0x61, &result(0, ""));
    for end in 0..bind.len() {
        let fed = LdapDecoder::for_request(1)
            .feed(&bind[..end])
            .expect("a beginning");
        assert_eq!((fed.consumed, fed.reply), (end, None));
    }
}

#[test]
fn a_reply_to_an_earlier_request_is_refused() {
    let bind = |id| message(id, 0x61, &result(0, ""));
    for (id, other) in [(2, 1), (2, 3), (0x1234, 0x34), (MESSAGE_ID_MAX, 1)] {
        let fed = LdapDecoder::for_request(id).feed(&bind(other));
        assert_eq!(fed, Err(LdapError::Unasked), "{id} {other}");
        let fed = LdapDecoder::for_request(id).feed(&bind(id));
        assert!(fed.is_ok_and(|fed| fed.reply.is_some()), "{id}");
    }
}
