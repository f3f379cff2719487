use proptest::prelude::*;

use super::*;
use crate::method::Method;
use crate::request_head::{BodyFraming, HeadError};
use crate::status::Status;

fn parsed_with(input: &[u8], options: &HeadOptions) -> Result<RequestHead, HeadError> {
    let mut head = RequestHead::new();
    match head.parse(input, options)? {
        Parsed::Complete { length } => assert!(length <= input.len()),
        Parsed::Partial => panic!("a complete head was expected"),
    }
    Ok(head)
}

fn parsed(input: &[u8]) -> Result<RequestHead, HeadError> {
    parsed_with(input, &HeadOptions::default())
}

/// Why a request line with these fields, each ending in CR LF, is refused.
fn refusal(line: &str, fields: &str) -> Option<HeadError> {
    parsed(format!("{line}\r\n{fields}\r\n").as_bytes()).err()
}

/// Why a POST with these fields is refused.
fn post_refusal(fields: &str) -> Option<HeadError> {
    refusal("POST / HTTP/1.1", &format!("Host: a\r\n{fields}"))
}

fn lenient() -> HeadOptions {
    HeadOptions {
        header_strict: false,
        ..HeadOptions::default()
    }
}

#[test]
fn a_request_is_taken_apart() {
    let input =
        b"GET /a?b HTTP/1.1\r\nHost: Example.ORG\r\nuser-agent:  x y \t\r\nX-Empty:\r\n\r\nrest";
    let mut head = RequestHead::new();
    let length = input.len() - 4;
    assert_eq!(
        head.parse(input, &HeadOptions::default()),
        Ok(Parsed::Complete { length })
    );
    assert_eq!(head.method(), Method::Get);
    assert_eq!(head.method_bytes(), b"GET");
    assert_eq!(head.target(), b"/a?b");
    assert_eq!(head.version(), Version::Http11);
    assert_eq!(head.host(), b"example.org");
    assert_eq!(head.field(KnownField::UserAgent), Some(&b"x y"[..]));
    assert_eq!(head.value_of("x-empty"), Some(&b""[..]));
    assert_eq!(head.value_of("x-none"), None);
    assert_eq!(head.framing(), BodyFraming::None);
    assert!(head.keep_alive());
    assert_eq!(head.head_bytes(), &input[..length]);
    assert_eq!(head.iter().count(), 3);
}

#[test]
fn content_length_must_be_one_decimal_number() {
    assert_eq!(
        post_refusal("Content-Length: \r\n"),
        Some(HeadError::ContentLengthInvalid)
    );
    assert_eq!(
        refusal("GET / HTTP/1.1", "Host: a\r\nContent-Length:\r\n"),
        Some(HeadError::ContentLengthInvalid)
    );
    for value in [
        "5,6",
        "5, 5",
        "+5",
        "-1",
        "0x5",
        "5 5",
        "5.0",
        "9223372036854775808",
        "99999999999999999999",
    ] {
        let fields = format!("Content-Length: {value}\r\n");
        assert_eq!(
            post_refusal(&fields),
            Some(HeadError::ContentLengthInvalid),
            "{value}"
        );
    }
    let head = parsed(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9223372036854775807\r\n\r\n");
    assert_eq!(
        head.expect("63 bits fit").framing(),
        BodyFraming::Length(i64::MAX as u64)
    );
}

#[test]
fn repeated_content_length_is_refused_unless_equal_and_lenient() {
    let request = |second| {
        format!(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: {second}\r\n\r\n"
        )
    };
    let reason = |second, options| parsed_with(request(second).as_bytes(), &options).err();
    assert_eq!(
        reason("5", HeadOptions::default()),
        Some(HeadError::ContentLengthRepeated)
    );
    assert_eq!(reason("5", lenient()), None);
    assert_eq!(
        reason("6", lenient()),
        Some(HeadError::ContentLengthRepeated)
    );
    assert_eq!(
        reason("+5", lenient()),
        Some(HeadError::ContentLengthRepeated)
    );
}

#[test]
fn transfer_encoding_is_chunked_or_refused() {
    let refused = |value: &str| post_refusal(&format!("Transfer-Encoding: {value}\r\n"));
    for value in ["chunked", "CHUNKED", ", chunked ,"] {
        assert_eq!(refused(value), None, "{value}");
    }
    for value in [
        "",
        ",",
        "chunked, chunked",
        "chunked, gzip",
        "gzip, chunked, chunked",
    ] {
        assert_eq!(
            refused(value),
            Some(HeadError::TransferEncodingInvalid),
            "{value}"
        );
    }
    for value in [
        "xchunked",
        "gzip",
        "gzip, chunked",
        "identity",
        "chunked;q=1",
        "chunke",
    ] {
        assert_eq!(
            refused(value),
            Some(HeadError::TransferEncodingUnknown),
            "{value}"
        );
    }
    let twice = "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n";
    assert_eq!(
        post_refusal(twice),
        Some(HeadError::TransferEncodingInvalid)
    );
    let two = "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n";
    assert_eq!(post_refusal(two), Some(HeadError::TransferEncodingInvalid));
}

#[test]
fn two_ways_of_framing_are_refused() {
    let fields = "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n";
    assert_eq!(
        post_refusal(fields),
        Some(HeadError::ContentLengthWithTransferEncoding)
    );
    let fields = "Host: a\r\nTransfer-Encoding: chunked\r\n";
    assert_eq!(
        refusal("POST / HTTP/1.0", fields),
        Some(HeadError::TransferEncodingInHttp10)
    );
}

#[test]
fn a_body_needs_a_method_that_has_one() {
    let get = b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n";
    assert_eq!(parsed(get).err(), Some(HeadError::BodyUnexpected));
    let options = HeadOptions {
        method_get_body: true,
        ..HeadOptions::default()
    };
    let head = parsed_with(get, &options).expect("method-get-body allows it");
    assert_eq!(head.framing(), BodyFraming::Length(1));
    let empty = parsed(b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(
        empty.expect("there is no body").framing(),
        BodyFraming::None
    );
    let chunked = "Host: a\r\nTransfer-Encoding: chunked\r\n";
    assert_eq!(
        refusal("HEAD / HTTP/1.1", chunked),
        Some(HeadError::BodyUnexpected)
    );
    assert_eq!(refusal("DELETE / HTTP/1.1", chunked), None);
    assert_eq!(post_refusal(""), Some(HeadError::LengthRequired));
}

#[test]
fn field_lines_must_be_well_formed() {
    for line in [
        "X : 1",
        ": 1",
        "X",
        "X(: 1",
        " X: 1",
        "X: 1\r\n 2",
        "X: 1\r\n\t2",
        "\u{e4}: 1",
    ] {
        let reason = post_refusal(&format!("{line}\r\nContent-Length: 0\r\n"));
        assert_eq!(reason, Some(HeadError::FieldName), "{line:?}");
    }
    for line in ["X: 1\r2", "X: \0", "X: \x01", "X: \x7f", "X: 1\r"] {
        let reason = post_refusal(&format!("{line}\r\nContent-Length: 0\r\n"));
        assert!(
            matches!(reason, Some(HeadError::FieldValue | HeadError::LineEnd)),
            "{line:?} {reason:?}"
        );
    }
    assert!(parsed(b"GET / HTTP/1.1\r\nHost: a\r\nX: \xe4\x80\r\n\r\n").is_ok());
}

#[test]
fn bare_line_feeds_are_for_the_lenient() {
    for input in [
        &b"GET / HTTP/1.1\nHost: a\r\n\r\n"[..],
        b"GET / HTTP/1.1\r\nHost: a\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n\n",
        b"GET / HTTP/1.1\r\nX: \nHost: a\r\n\r\n",
        b"\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        assert_eq!(parsed(input).err(), Some(HeadError::LineEnd));
        assert_eq!(
            parsed_with(input, &lenient()).expect("lenient").host(),
            b"a"
        );
    }
    let head = parsed_with(b"GET / HTTP/1.0\n\n", &lenient()).expect("lenient");
    assert_eq!(head.version(), Version::Http10);
    assert_eq!(refusal("GET / HTTP/1.0\n", ""), Some(HeadError::LineEnd));
}

#[test]
fn a_target_may_hold_bytes_that_are_no_utf_8() {
    for target in [&b"/M\xe4rz?q=M\xe4rz"[..], b"/\xff", b"http://a/\xc3("] {
        let input = [b"GET ", target, b" HTTP/1.1\r\nHost: a\r\nX: \xe4\r\n\r\n"].concat();
        let head = parsed(&input).expect("any byte above 0x7f");
        assert_eq!(head.target(), target);
        let mut in_parts = RequestHead::new();
        for end in 1..input.len() {
            let read = in_parts.parse(&input[..end], &HeadOptions::default());
            assert_eq!(read, Ok(Parsed::Partial), "{end}");
        }
        let read = in_parts.parse(&input, &HeadOptions::default());
        let length = input.len();
        assert_eq!(read, Ok(Parsed::Complete { length }));
        assert_eq!(in_parts.target(), target);
    }
    let lines = [
        "G\u{e4}T / HTTP/1.1",
        "GET /\u{e4}\u{1} HTTP/1.1",
        "GET / \u{e4}HTTP/1.1",
    ];
    for line in lines {
        let reason = refusal(line, "Host: a\r\n");
        assert_eq!(reason, Some(HeadError::RequestLine), "{line:?}");
    }
}

#[test]
fn versions_are_told_apart() {
    let head = parsed(b"GET /x HTTP/1.2\r\nHost: a\r\n\r\n").expect("1.2 is read as 1.1");
    assert_eq!(head.version(), Version::Http11);
    assert_eq!(head.head_bytes(), b"GET /x HTTP/1.2\r\nHost: a\r\n\r\n");
    assert_eq!(refusal("GET / HTTP/1.2", ""), Some(HeadError::HostMissing));
    for version in ["HTTP/2.0", "HTTP/0.9", "HTTP/3.0"] {
        let reason = refusal(&format!("GET / {version}"), "Host: a\r\n");
        assert_eq!(reason, Some(HeadError::VersionUnsupported), "{version}");
    }
    for line in [
        "GET / HTTP/a.b",
        "GET / HTTP/10.1",
        "GET / HTTP/01.01",
        "GET / HTTP/ 1.1",
        "GET / HTTP/1",
        "GET / HTTP/",
        "GET / HTTP/1.10",
        "GET / http/1.1",
        "GET /",
        "GET",
        "GET / a HTTP/1.1",
        "GET  / HTTP/1.1",
        "GET / a HTTP/1.2",
        " GET / HTTP/1.1",
        "GET / HTTP/1.1 ",
    ] {
        let reason = refusal(line, "Host: a\r\n");
        assert!(
            matches!(reason, Some(HeadError::RequestLine | HeadError::LineEnd)),
            "{line} {reason:?}"
        );
    }
    let preface = parsed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect_err("this is HTTP/2");
    assert_eq!(preface, HeadError::Http2Preface);
    assert_eq!(preface.status(), Status::HTTP_VERSION_NOT_SUPPORTED);
}

#[test]
fn methods_must_be_known() {
    assert_eq!(
        refusal("FOO / HTTP/1.1", "Host: a\r\n"),
        Some(HeadError::MethodUnknown)
    );
    assert_eq!(
        refusal("get / HTTP/1.1", "Host: a\r\n"),
        Some(HeadError::MethodUnknown)
    );
    assert_eq!(
        refusal("CONNECT a:80 HTTP/1.1", "Host: a\r\n"),
        Some(HeadError::MethodConnect)
    );
}

#[test]
fn http11_needs_exactly_one_host() {
    assert_eq!(refusal("GET / HTTP/1.1", ""), Some(HeadError::HostMissing));
    assert_eq!(
        refusal("GET / HTTP/1.1", "Host:\r\n"),
        Some(HeadError::HostInvalid)
    );
    assert_eq!(
        refusal("GET / HTTP/1.1", "Host: a\r\nHost: a\r\n"),
        Some(HeadError::HostRepeated)
    );
    assert_eq!(
        refusal("GET / HTTP/1.1", "Host: a\r\nX: 1\r\nHost: b\r\n"),
        Some(HeadError::HostRepeated)
    );
    assert_eq!(
        refusal("GET / HTTP/1.0", "Host: a\r\nHost: a\r\n"),
        Some(HeadError::HostRepeated)
    );
    assert_eq!(
        refusal("GET / HTTP/1.1", "Host: a b\r\n"),
        Some(HeadError::HostInvalid)
    );
    assert_eq!(
        parsed(b"GET / HTTP/1.0\r\n\r\n").expect("1.0 may").host(),
        b""
    );
    assert_eq!(
        parsed(b"GET / HTTP/1.0\r\nHost:\r\n\r\n")
            .expect("1.0 may")
            .host(),
        b""
    );
}

#[test]
fn an_absolute_target_overrides_host() {
    let head = parsed(b"GET http://B:81/x HTTP/1.1\r\nHost: a\r\n\r\n").expect("RFC 9112 3.2.2");
    assert_eq!(head.host(), b"b:81");
    assert_eq!(head.host_without_port(), b"b");
    assert_eq!(head.field(KnownField::Host), Some(&b"B:81"[..]));
    let head = parsed(b"GET HTTPS://b HTTP/1.1\r\n\r\n").expect("the target names the host");
    assert_eq!(head.field(KnownField::Host), Some(&b"b"[..]));
    for target in [
        "ftp://b/",
        "http:/b",
        "http:///x",
        "x",
        "http://",
        "?",
        "*x",
    ] {
        let reason = refusal(&format!("GET {target} HTTP/1.1"), "Host: a\r\n");
        assert_eq!(reason, Some(HeadError::RequestTarget), "{target}");
    }
    assert_eq!(
        refusal("GET http://u@b/ HTTP/1.1", "Host: a\r\n"),
        Some(HeadError::HostInvalid)
    );
}

#[test]
fn what_is_too_long_is_refused_with_its_own_status() {
    let line = format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(9000));
    let fields = format!(
        "GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
        "a".repeat(9000)
    );
    for end in [8192, 9000, line.len()] {
        let mut head = RequestHead::new();
        let error = head.parse(&line.as_bytes()[..end], &HeadOptions::default());
        assert_eq!(
            error.map_err(|error| error.status()),
            Err(Status::URI_TOO_LONG)
        );
        let mut head = RequestHead::new();
        let error = head.parse(&fields.as_bytes()[..end], &HeadOptions::default());
        let expected = Err(Status::REQUEST_HEADER_FIELDS_TOO_LARGE);
        assert_eq!(error.map_err(|error| error.status()), expected);
    }
}

#[test]
fn a_head_of_exactly_the_limit_fits() {
    let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let options = |head_bytes_max| HeadOptions {
        head_bytes_max,
        ..HeadOptions::default()
    };
    assert!(parsed_with(request, &options(request.len())).is_ok());
    let reason = parsed_with(request, &options(request.len() - 1)).err();
    assert_eq!(reason, Some(HeadError::HeadTooLarge));
}

#[test]
fn many_fields_are_read_and_too_many_refused() {
    let options = HeadOptions {
        head_bytes_max: 1 << 20,
        ..HeadOptions::default()
    };
    let request = |count| {
        format!(
            "GET / HTTP/1.1\r\nHost: a\r\n{}\r\n",
            "X: 1\r\n".repeat(count)
        )
    };
    for count in [63, 64, 1023] {
        let head = parsed_with(request(count).as_bytes(), &options).expect("that many fit");
        assert_eq!(head.fields_named("x").count(), count);
    }
    let reason = parsed_with(request(1024).as_bytes(), &options).err();
    assert_eq!(reason, Some(HeadError::TooManyFields));
}

#[test]
fn empty_lines_before_a_request_are_skipped_and_bounded() {
    let request = |count| format!("{}GET / HTTP/1.1\r\nHost: a\r\n\r\n", "\r\n".repeat(count));
    let head = parsed(request(2).as_bytes()).expect("two are skipped");
    assert!(head.head_bytes().starts_with(b"GET"));
    let reason = parsed(request(3).as_bytes()).err();
    assert_eq!(reason, Some(HeadError::TooManyEmptyLines));
    let mut head = RequestHead::new();
    assert_eq!(
        head.parse(b"\r\n\r", &HeadOptions::default()),
        Ok(Parsed::Partial)
    );
    assert!(
        RequestHead::new()
            .parse(b"\rG", &HeadOptions::default())
            .is_err()
    );
}

#[test]
fn keep_alive_follows_version_and_connection() {
    let keeps = |version: &str, connection: &str| {
        let request = format!("GET / {version}\r\nHost: a\r\n{connection}\r\n");
        parsed(request.as_bytes())
            .expect("a sound request")
            .keep_alive()
    };
    assert!(keeps("HTTP/1.1", ""));
    assert!(!keeps("HTTP/1.0", ""));
    assert!(!keeps("HTTP/1.1", "Connection: Close\r\n"));
    assert!(keeps("HTTP/1.0", "Connection: Keep-Alive\r\n"));
    assert!(!keeps("HTTP/1.1", "Connection: keep-alive, close\r\n"));
    assert!(!keeps(
        "HTTP/1.1",
        "Connection: keep-alive\r\nConnection: close\r\n"
    ));
    assert!(keeps("HTTP/1.1", "Connection: upgrade\r\n"));
}

#[test]
fn expect_continue_needs_http11_and_a_body() {
    let expects = |line: &str, fields: &str| {
        let request = format!("{line}\r\nHost: a\r\nExpect: 100-Continue\r\n{fields}\r\n");
        parsed(request.as_bytes())
            .expect("a sound request")
            .expects_continue()
    };
    assert!(expects("PUT / HTTP/1.1", "Content-Length: 1\r\n"));
    assert!(!expects("PUT / HTTP/1.0", "Content-Length: 1\r\n"));
    assert!(!expects("GET / HTTP/1.1", ""));
}

#[test]
fn repeated_fields_go_together_by_their_rule() {
    let head = parsed(
        b"GET / HTTP/1.1\r\nHost: a\r\nAccept: x\r\nCookie: a=1\r\nX: 1\r\nAccept: y\r\n\
          Cookie: b=2\r\nX: 2\r\nRange: bytes=0-0\r\nRange: bytes=1-1\r\n\r\n",
    )
    .expect("a sound request");
    assert_eq!(head.field(KnownField::Accept), Some(&b"x, y"[..]));
    assert_eq!(head.field(KnownField::Cookie), Some(&b"a=1; b=2"[..]));
    assert_eq!(head.field(KnownField::Range), Some(&b"bytes=0-0"[..]));
    assert_eq!(head.fields_named("range").count(), 1);
    assert_eq!(head.fields_named("X").collect::<Vec<_>>(), [b"1", b"2"]);
    let refused = |second: &str| {
        let fields = format!("Host: a\r\nIf-Range: x\r\nIf-Range: {second}\r\n");
        refusal("GET / HTTP/1.1", &fields)
    };
    assert_eq!(refused("x"), None);
    assert_eq!(refused("y"), Some(HeadError::FieldRepeated));
}

#[test]
fn an_empty_repeated_field_adds_nothing() {
    let head = parsed(
        b"GET / HTTP/1.1\r\nHost: a\r\nAccept:\r\nAccept: x\r\nAccept: \r\nAccept: y\r\n\
          Cookie:\r\nCookie:\r\n\r\n",
    )
    .expect("a sound request");
    assert_eq!(head.field(KnownField::Accept), Some(&b"x, y"[..]));
    assert_eq!(head.field(KnownField::Cookie), Some(&b""[..]));
}

#[test]
fn fields_can_be_set_added_and_removed() {
    let mut head = parsed(b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\nAccept: x\r\nx: 2\r\n\r\n")
        .expect("a sound request");
    head.set_field("X", b"3\r\nY: 4");
    assert_eq!(head.fields_named("x").collect::<Vec<_>>(), [b"3  Y: 4"]);
    assert_eq!(head.field(KnownField::Accept), Some(&b"x"[..]));
    head.remove_field("X");
    assert_eq!(head.value_of("x"), None);
    assert_eq!(head.field(KnownField::Accept), Some(&b"x"[..]));
    head.remove_field("accept");
    assert_eq!(head.field(KnownField::Accept), None);
    head.append_field("Accept", b"y");
    head.append_field("Accept", b"z");
    head.append_field("no token", b"z");
    assert_eq!(head.field(KnownField::Accept), Some(&b"y"[..]));
    assert_eq!(head.field_count(), 3);
    assert_eq!(head.head_bytes().len(), head.head_length());
}

/// Feeds `input` in prefixes that grow by `step` bytes. Returns the last result.
fn fed(input: &[u8], step: usize) -> (Result<Parsed, HeadError>, RequestHead) {
    let mut head = RequestHead::new();
    let mut end = 0;
    loop {
        end = (end + step).min(input.len());
        let answer = head.parse(&input[..end], &HeadOptions::default());
        if end == input.len() || answer != Ok(Parsed::Partial) {
            return (answer, head);
        }
    }
}

#[test]
fn heads_are_read_alike_however_they_arrive() {
    for input in [
        &b"GET /a HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n"[..],
        b"\r\n\r\nPUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
        b"GET /a HTTP/1.5\r\nHost: a\r\n\r\n",
        b"GET /a HTTP/1.1\r\nHost: a\r\nX : y\r\n\r\n",
        b"GET /a HTTP/7.0\r\nHost: a\r\n\r\n",
        b"POST /a HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        let (whole, whole_head) = fed(input, input.len());
        for step in 1..input.len() {
            let (answer, head) = fed(input, step);
            assert_eq!(answer, whole, "step {step}");
            assert!(head.iter().eq(whole_head.iter()));
            assert_eq!(
                (head.host(), head.target()),
                (whole_head.host(), whole_head.target())
            );
        }
    }
}

#[test]
fn an_endless_bad_line_is_refused_before_it_ends() {
    let input = [b"GET /\x01".as_slice(), &[b'a'; 200]].concat();
    assert_eq!(fed(&input, 1).0, Err(HeadError::RequestLine));
}

/// Text that often resembles a head closely enough to get beyond the first check.
fn head_like() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"GET / HTTP/1.1\r\n".to_vec()),
        Just(b"POST http://a HTTP/1.0\r\n".to_vec()),
        Just(b"Host: a\r\n".to_vec()),
        Just(b"Content-Length: 5\r\n".to_vec()),
        Just(b"Transfer-Encoding: chunked\r\n".to_vec()),
        Just(b"Connection: close\r\n".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"\n".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..6),
        "[ -~]{0,12}(: [ -~]{0,12})?\r\n".prop_map(String::into_bytes),
    ];
    proptest::collection::vec(piece, 0..10).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_input_is_read_alike_however_it_arrives(input in head_like(), step in 1..40_usize) {
        let (whole, whole_head) = fed(&input, input.len().max(1));
        let (answer, head) = fed(&input, step);
        // A head without an end may be refused a little later when it arrives in pieces. Leading empty lines
        // are not its end.
        let begin = input.iter().position(|byte| !b"\r\n".contains(byte)).unwrap_or(input.len());
        let is_late = answer == Ok(Parsed::Partial) && !has_empty_line(&input[begin..]);
        prop_assert!(answer == whole || is_late, "{answer:?} {whole:?}");
        if let Ok(Parsed::Complete { length }) = answer {
            prop_assert!(length <= input.len());
            prop_assert!(head.iter().eq(whole_head.iter()));
            for &known in KnownField::ALL {
                let first = head.iter().find(|(name, _)| KnownField::from_name(name) == Some(known));
                prop_assert_eq!(head.field(known), first.map(|(_, value)| value));
            }
        }
    }

    #[test]
    fn random_bytes_never_panic(input in proptest::collection::vec(any::<u8>(), 0..200)) {
        for options in [HeadOptions::default(), lenient()] {
            let _ = RequestHead::new().parse(&input, &options);
        }
    }
}
