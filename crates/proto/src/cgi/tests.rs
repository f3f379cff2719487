use proptest::prelude::*;

use super::*;

const LIMITS: HeadLimits = HeadLimits {
    bytes_max: 200,
    fields_max: 6,
};

/// A decoded head: kind, status, fields, where it ends.
#[derive(Debug, PartialEq)]
struct Read {
    kind: HeadKind,
    status: u16,
    fields: Vec<(String, Vec<u8>)>,
    length: usize,
    content_length: Option<u64>,
    is_chunked: bool,
}

/// Decodes `input`, which arrives `step` bytes at a time. `None` if it ends inside the head.
fn read_in_steps(input: &[u8], step: usize) -> Result<Option<Read>, HeadError> {
    let mut decoder = HeadDecoder::new(LIMITS);
    let mut head = ReplyHead::new();
    let mut arrived = 0;
    while arrived < input.len() {
        arrived = (arrived + step).min(input.len());
        if let ParsedCgiHead::Complete { length, kind } =
            decoder.decode(&input[..arrived], &mut head)?
        {
            assert!(length <= arrived && input[..length].ends_with(b"\n"));
            let owned = |(name, value): (&str, &[u8])| (name.to_owned(), value.to_vec());
            return Ok(Some(Read {
                kind,
                status: head.status().0,
                fields: head.fields().map(owned).collect(),
                length,
                content_length: decoder.content_length(),
                is_chunked: decoder.is_chunked(),
            }));
        }
    }
    Ok(None)
}

/// Decodes `input`, and checks that the result does not depend on how it arrives.
fn read(input: &str) -> Result<Option<Read>, HeadError> {
    let whole = read_in_steps(input.as_bytes(), input.len());
    for step in 1..input.len() {
        assert_eq!(read_in_steps(input.as_bytes(), step), whole, "{step}");
    }
    whole
}

fn complete(input: &str) -> Read {
    read(input)
        .expect("the head is accepted")
        .expect("the head is complete")
}

fn refusal(input: &str) -> HeadError {
    read(input).expect_err("the head is refused")
}

#[test]
fn a_script_may_say_very_little() {
    for (input, length) in [
        ("Content-Type: a/b\r\n\r\nbody", 21),
        ("Content-Type:a/b\n\nbody\n\n", 18),
    ] {
        let head = complete(input);
        assert_eq!((head.kind, head.status), (HeadKind::Final, 200));
        assert_eq!(head.length, length);
        assert_eq!(head.fields, [("Content-Type".to_owned(), b"a/b".to_vec())]);
        assert_eq!(head.content_length, None);
    }
}

#[test]
fn the_status_comes_from_its_field_or_from_a_status_line() {
    for (input, status) in [
        ("Status: 404 Not Found\n\n", 404),
        ("status:999\n\n", 999),
        ("Status: 200\nStatus: 200 OK\n\n", 200),
        ("HTTP/1.1 503 Try: later\r\n\r\n", 503),
        ("HTTP/2 100\r\n\r\n", 100),
        ("HTTP/1.0 201 \r\nStatus: 201\r\n\r\n", 201),
    ] {
        let head = complete(input);
        assert_eq!(head.status, status, "{input}");
        assert_eq!(head.fields, [], "{input}");
    }
    for input in [
        "99", "1000", "abc", "2x0", "", "20", "200OK", "-20", "099", "20 OK",
    ] {
        assert_eq!(refusal(&format!("Status: {input}\n\n")), HeadError::Status);
        let line = format!("HTTP/1.1 {input}\r\n\r\n");
        assert_eq!(refusal(&line), HeadError::Status, "{input}");
    }
    for line in [
        "HTTP/x 200",
        "HTTP/11 200 OK",
        "HTTP/1.1: 200",
        "HTTP/1.1 200 \x1b",
    ] {
        assert_eq!(refusal(&format!("{line}\n\n")), HeadError::StatusLine);
    }
    assert_eq!(refusal("HTTP/1.1\n\n"), HeadError::Status);
    for input in [
        "Status: 200\nStatus: 404\n\n",
        "HTTP/1.1 200\nStatus: 404\n\n",
    ] {
        assert_eq!(refusal(input), HeadError::StatusRepeated);
    }
}

#[test]
fn a_location_without_status_redirects() {
    for (input, kind, status) in [
        ("Location: /a?b\n\n", HeadKind::LocalRedirect, 302),
        ("Location: //host/a\n\n", HeadKind::Final, 302),
        ("Location: http://host/a\n\n", HeadKind::Final, 302),
        ("Status: 201\nLocation: /a\n\n", HeadKind::Final, 201),
    ] {
        let head = complete(input);
        assert_eq!((head.kind, head.status), (kind, status), "{input}");
        assert_eq!(head.fields.len(), 1);
    }
}

#[test]
fn interim_heads_are_told_apart() {
    let wire = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nStatus: 200\r\n\r\n";
    let head = complete(wire);
    assert_eq!((head.kind, head.status), (HeadKind::Interim, 103));
    assert_eq!(&wire[head.length..], "Status: 200\r\n\r\n");
    assert_eq!(complete("Status: 100\n\n").kind, HeadKind::Interim);
    assert_eq!(complete("Status: 101\n\n").kind, HeadKind::Final);

    let mut decoder = HeadDecoder::new(LIMITS);
    let mut fields = ReplyHead::new();
    assert!(decoder.decode(wire.as_bytes(), &mut fields).is_ok());
    decoder.begin();
    fields.clear();
    let rest = &wire.as_bytes()[head.length..];
    let last = ParsedCgiHead::Complete {
        length: rest.len(),
        kind: HeadKind::Final,
    };
    assert_eq!(decoder.decode(rest, &mut fields), Ok(last));
}

#[test]
fn a_reply_without_head_is_refused() {
    for input in ["hello\nA: b\n\n", "<html>\n", &"x".repeat(200)] {
        assert_eq!(refusal(input), HeadError::NoHead, "{input}");
    }
    assert_eq!(read("hello"), Ok(None));
    assert_eq!(read("A: b\r\n\r"), Ok(None));
}

#[test]
fn an_empty_line_is_a_head() {
    for (input, length) in [("\n", 1), ("\r\n\r\nbody", 2)] {
        let head = complete(input);
        assert_eq!(
            (head.kind, head.status),
            (HeadKind::Final, 200),
            "{input:?}"
        );
        assert_eq!((head.length, head.fields.len()), (length, 0), "{input:?}");
    }
    assert_eq!(read("\r"), Ok(None));
}

#[test]
fn what_could_split_or_smuggle_is_refused() {
    for (input, error) in [
        ("A: b\0\n\n", HeadError::FieldValue),
        ("A: b\rc\n\n", HeadError::FieldValue),
        ("A: b\r\r\n\n", HeadError::FieldValue),
        ("A: \x0bb\n\n", HeadError::FieldValue),
        ("A: b\x0c\n\n", HeadError::FieldValue),
        ("A: \x7f\n\n", HeadError::FieldValue),
        ("A : b\n\n", HeadError::FieldName),
        (": b\n\n", HeadError::FieldName),
        ("A b: c\n\n", HeadError::FieldName),
        ("\u{e4}: c\n\n", HeadError::FieldName),
        ("A\0: c\n\n", HeadError::FieldName),
        ("A: b\nHTTP/1.1 200 OK\n\n", HeadError::FieldName),
        ("A: b\nhello\n\n", HeadError::FieldName),
        ("A: b\n c\n\n", HeadError::FoldedLine),
        ("A: b\n\tC: d\n\n", HeadError::FoldedLine),
        (" A: b\n\n", HeadError::FieldName),
    ] {
        assert_eq!(refusal(input), error, "{input:?}");
    }
    assert_eq!(
        complete("A: \t\u{e4}\tb \n\n").fields[0].1,
        "\u{e4}\tb".as_bytes()
    );
    assert_eq!(complete("A:\n\n").fields[0].1, b"");
}

#[test]
fn lengths_do_not_contradict_each_other() {
    let head = complete("Content-Length: 5\ncontent-length: 5\n\n");
    assert_eq!((head.content_length, head.fields.len()), (Some(5), 1));
    for value in ["", "+5", "-1", "0x5", "5,6", "5 5", "9223372036854775808"] {
        let input = format!("Content-Length: {value}\n\n");
        assert_eq!(refusal(&input), HeadError::ContentLength, "{value}");
    }
    let input = "Content-Length: 5\nContent-Length: 6\n\n";
    assert_eq!(refusal(input), HeadError::ContentLengthRepeated);
}

#[test]
fn only_chunked_is_a_transfer_encoding() {
    let head = complete("Transfer-Encoding: Chunked\n\n");
    assert!(head.is_chunked && head.fields.is_empty());
    for value in ["gzip", "chunked, chunked", "", "xchunked"] {
        let input = format!("Transfer-Encoding: {value}\n\n");
        assert_eq!(refusal(&input), HeadError::TransferEncoding);
    }
    let twice = "Transfer-Encoding: chunked\nTransfer-Encoding: chunked\n\n";
    assert_eq!(refusal(twice), HeadError::TransferEncoding);
    let both = "Transfer-Encoding: chunked\nContent-Length: 1\n\n";
    assert_eq!(refusal(both), HeadError::ContentLengthWithTransferEncoding);
}

#[test]
fn limits_hold() {
    assert_eq!(complete(&("A: b\n".repeat(6) + "\n")).fields.len(), 6);
    assert_eq!(refusal(&"A: b\n".repeat(7)), HeadError::TooManyFields);
    let line = |length: usize| format!("A:{}\n\n", "b".repeat(length - 4));
    assert_eq!(complete(&line(200)).length, 200);
    assert_eq!(refusal(&format!("A: b\n{}", line(200))), HeadError::TooLong);
    assert_eq!(refusal(&line(202)), HeadError::TooLong);
}

#[test]
fn an_error_is_final() {
    let mut decoder = HeadDecoder::new(LIMITS);
    let mut head = ReplyHead::new();
    assert_eq!(decoder.decode(b"x\n", &mut head), Err(HeadError::NoHead));
    assert_eq!(
        decoder.decode(b"x\nA: b\n\n", &mut head),
        Err(HeadError::NoHead)
    );
    decoder.begin();
    assert!(decoder.decode(b"A: b\n\n", &mut head).is_ok());
}

proptest! {
    #[test]
    fn heads_are_read_alike_however_they_arrive(
        input in proptest::collection::vec(
            proptest::sample::select(vec![
                "Status: 404", "HTTP/1.1 200 OK", "A: b", ":", "Content-Length: 3", "\n", "\r\n",
                "\r", " ", "\0", "Location: /", "x",
            ]),
            0..30,
        ),
        step in 1..20_usize,
    ) {
        let input = input.concat().into_bytes();
        let whole = read_in_steps(&input, input.len().max(1));
        prop_assert_eq!(&read_in_steps(&input, step), &whole);
        prop_assert_eq!(&read_in_steps(&input, 1), &whole);
    }

    #[test]
    fn what_is_written_comes_back(
        fields in proptest::collection::vec(("X[a-z]{0,9}", "[!-~]([ -~]{0,9}[!-~])?"), 1..6)
    ) {
        let wire: String = fields.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
        let read = complete(&(wire + "\n"));
        let fields: Vec<_> = fields
            .into_iter()
            .map(|(name, value)| (name, value.into_bytes()))
            .collect();
        prop_assert_eq!(read.fields, fields);
    }
}
