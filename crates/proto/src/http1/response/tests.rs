use proptest::prelude::*;

use super::*;

const GET: Asked = Asked {
    method: Method::Get,
    upgrade: false,
};
const HEAD: Asked = Asked {
    method: Method::Head,
    upgrade: false,
};
const UPGRADE: Asked = Asked {
    method: Method::Get,
    upgrade: true,
};

/// The result of decoding a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Read {
    /// `STATUS NAME=VALUE NAME=VALUE` of each head.
    heads: Vec<String>,
    body: Vec<u8>,
    trailers: String,
    reusable: Option<bool>,
}

/// Feeds `input` as a connection would, `piece` bytes at a time. The connection closes at the end if `closes`
/// is set.
fn read_in_pieces(
    asked: Asked,
    input: &[u8],
    piece: usize,
    closes: bool,
) -> Result<Read, ResponseError> {
    let mut decoder = ResponseDecoder::new(ResponseLimits::default());
    read_another(&mut decoder, asked, input, piece, closes)
}

/// As [`read_in_pieces`], with a decoder that may have read another response.
fn read_another(
    decoder: &mut ResponseDecoder,
    asked: Asked,
    input: &[u8],
    piece: usize,
    closes: bool,
) -> Result<Read, ResponseError> {
    decoder.begin(asked);
    let mut read = Read::default();
    let mut received = Vec::new();
    for bytes in input.chunks(piece.max(1)) {
        received.extend_from_slice(bytes);
        loop {
            let decoded = decoder.decode(&received)?;
            match decoded.event {
                ResponseEvent::Interim | ResponseEvent::Head => {
                    read.heads.push(shown(decoder.head()));
                }
                ResponseEvent::Body(range) => {
                    assert!(!range.is_empty() && range.end <= decoded.consumed);
                    read.body.extend_from_slice(&received[range]);
                }
                ResponseEvent::NeedMore => {
                    received.drain(..decoded.consumed);
                    break;
                }
                ResponseEvent::End { reusable } => {
                    read.reusable = Some(reusable);
                    let trailers = decoder.take_trailers();
                    read.trailers += &String::from_utf8_lossy(trailers.as_bytes());
                    received.drain(..decoded.consumed);
                    break;
                }
            }
            received.drain(..decoded.consumed);
        }
    }
    if closes {
        let event = decoder.end_of_input()?;
        assert_eq!(event, ResponseEvent::End { reusable: false });
        read.reusable.get_or_insert(false);
    }
    Ok(read)
}

fn shown(head: &ReplyHead) -> String {
    let mut line = head.status().0.to_string();
    for (name, value) in head.fields() {
        line += &format!(" {name}={}", String::from_utf8_lossy(value));
    }
    line
}

fn read(asked: Asked, input: &str) -> Result<Read, ResponseError> {
    read_in_pieces(asked, input.as_bytes(), usize::MAX, false)
}

/// The error that decoding ends with when the connection closes after this input.
fn error(asked: Asked, input: &[u8]) -> ResponseError {
    let error = read_in_pieces(asked, input, usize::MAX, true).expect_err("it must be refused");
    let bytewise = read_in_pieces(asked, input, 1, true).expect_err("it must be refused");
    assert_eq!(error, bytewise, "{}", input.escape_ascii());
    error
}

fn complete(heads: &[&str], body: &str, reusable: bool) -> Result<Read, ResponseError> {
    Ok(Read {
        heads: heads.iter().map(|&head| head.to_owned()).collect(),
        body: body.into(),
        trailers: String::new(),
        reusable: Some(reusable),
    })
}

#[test]
fn a_length_ends_the_body() {
    let response = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: y\r\n\r\nhello";
    let expected = complete(&["200 Content-Length=5 X=y"], "hello", true);
    assert_eq!(read(GET, response), expected);
    let empty = "HTTP/1.1 404 \r\nContent-Length:0\r\n\r\n";
    assert_eq!(
        read(GET, empty),
        complete(&["404 Content-Length=0"], "", true)
    );
}

#[test]
fn the_last_chunk_ends_the_body_and_trailers_come_behind_it() {
    for (field, head, trailers) in [
        ("", "200", "X-Sum: 1\r\n"),
        ("Trailer: X-Sum\r\n", "200 Trailer=X-Sum", "X-Sum: 1\r\n"),
        ("Connection: x-sum\r\n", "200", ""),
    ] {
        let response = format!(
            "HTTP/1.1 200\r\n{field}transfer-encoding: Chunked\r\n\r\n\
             5;x=y\r\nhello\r\n1\r\n!\r\n0\r\nX-Sum: 1\r\nDate: now\r\n\r\n"
        );
        let expected = complete(&[head], "hello!", true).map(|complete| Read {
            trailers: trailers.to_owned(),
            ..complete
        });
        for piece in 1..=response.len() {
            let read = read_in_pieces(GET, response.as_bytes(), piece, false);
            assert_eq!(read, expected, "{piece}");
        }
    }
}

#[test]
fn without_either_the_connection_ends_the_body() {
    let response = b"HTTP/1.1 200 OK\r\nX: y\r\n\r\nhello";
    assert_eq!(
        read_in_pieces(GET, response, 7, true),
        complete(&["200 X=y"], "hello", false)
    );
    let empty = b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\n";
    assert_eq!(
        read_in_pieces(GET, empty, 7, true),
        complete(&["200"], "", false)
    );
}

#[test]
fn some_responses_have_no_body_whatever_they_say() {
    let of_head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(
        read(HEAD, of_head),
        complete(&["200 Content-Length=5"], "", true)
    );
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(read(HEAD, chunked), complete(&["200"], "", true));
    assert_eq!(
        read(HEAD, "HTTP/1.1 200 OK\r\n\r\n"),
        complete(&["200"], "", true)
    );
    let not_modified = "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n";
    assert_eq!(
        read(GET, not_modified),
        complete(&["304 Content-Length=5"], "", true)
    );
    let none = "HTTP/1.1 204 No Content\r\n\r\n";
    assert_eq!(read(GET, none), complete(&["204"], "", true));
}

#[test]
fn a_204_that_announces_a_body_is_the_last_of_its_connection() {
    for field in ["Content-Length: 3", "Transfer-Encoding: chunked"] {
        let response = format!("HTTP/1.1 204 No Content\r\n{field}\r\n\r\n");
        assert_eq!(read(GET, &response), complete(&["204"], "", false));
    }
    let harmless = "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(read(GET, harmless), complete(&["204"], "", true));
}

#[test]
fn connections_are_kept_as_the_backend_says() {
    for (line, connection, reusable) in [
        ("HTTP/1.1", "", true),
        ("HTTP/1.1", "Connection: close\r\n", false),
        ("HTTP/1.1", "Connection: x , CLOSE\r\n", false),
        ("HTTP/1.1", "Connection: keep-alive, close\r\n", false),
        (
            "HTTP/1.1",
            "Connection: close\r\nConnection: keep-alive\r\n",
            false,
        ),
        ("HTTP/1.0", "", false),
        ("HTTP/1.0", "Connection: Keep-Alive\r\n", true),
    ] {
        let response = format!("{line} 200 OK\r\n{connection}Content-Length: 1\r\n\r\nx");
        assert_eq!(
            read(GET, &response),
            complete(&["200 Content-Length=1"], "x", reusable),
            "{response}"
        );
    }
}

#[test]
fn bytes_behind_the_end_make_the_connection_useless() {
    for response in [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nx",
    ] {
        let read = read(GET, response).expect("it is sound so far");
        assert_eq!(
            (read.body.as_slice(), read.reusable),
            (&b"ok"[..], Some(false))
        );
    }
    let response = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nnot a one";
    assert_eq!(
        read(HEAD, response),
        complete(&["200 Content-Length=9"], "", false)
    );
}

#[test]
fn fields_about_the_connection_are_left_out() {
    let response = "HTTP/1.1 200 OK\r\nConnection: X-A, close\r\nx-a: 1\r\nX-B: 2\r\n\
                    Connection: x-c\r\nX-C: 3\r\nKeep-Alive: timeout=5\r\nTrailer: X\r\n\
                    Upgrade: h2c\r\nTE: x\r\nProxy-Connection: close\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(
        read(GET, response),
        complete(&["200 X-B=2 Trailer=X Content-Length=0"], "", false)
    );
    let required =
        "HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(
        read(GET, required),
        complete(&["426 Upgrade=websocket Content-Length=0"], "", true)
    );
}

#[test]
fn one_length_said_twice_is_one_length() {
    for field in ["5\r\nContent-Length: 5", "5, 5", "005,5"] {
        let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {field}\r\n\r\nhello");
        let expected = complete(&["200 Content-Length=5"], "hello", true);
        assert_eq!(read(GET, &response), expected, "{field}");
    }
}

#[test]
fn interim_responses_come_first_and_continue_is_not_told() {
    let response = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\
                    Content-Length: 9\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n\
                    HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let expected = complete(&["103 Link=</a>", "200 Content-Length=0"], "", true);
    assert_eq!(read(GET, response), expected);
    assert_eq!(
        read_in_pieces(GET, response.as_bytes(), 1, false),
        complete(&["103 Link=</a>", "200 Content-Length=0"], "", true)
    );
}

#[test]
fn endless_interim_responses_are_refused() {
    for (status, name) in [("100", "Continue"), ("103", "Early Hints")] {
        let interim = format!("HTTP/1.1 {status} {name}\r\n\r\n");
        let end = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        assert!(read(GET, &(interim.repeat(16) + end)).is_ok());
        assert_eq!(
            error(GET, (interim.repeat(17) + end).as_bytes()),
            ResponseError::TooManyInterim
        );
    }
}

#[test]
fn a_switch_of_protocols_opens_a_tunnel_if_it_was_asked_for() {
    let response = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
                     Connection: Upgrade\r\nContent-Length: 3\r\n\r\n\x81\x05hello";
    assert_eq!(
        read_in_pieces(UPGRADE, response, usize::MAX, true).map(|read| (read.heads, read.body)),
        Ok((
            vec!["101 Upgrade=websocket".to_owned()],
            b"\x81\x05hello".to_vec()
        ))
    );
    assert_eq!(error(GET, response), ResponseError::SwitchedUnasked);
    let refused = "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno";
    assert_eq!(
        read(UPGRADE, refused),
        complete(&["403 Content-Length=2"], "no", true)
    );
}

#[test]
fn what_is_malformed_is_refused() {
    use ResponseError::*;
    for (response, expected) in [
        (&b"\r\nHTTP/1.1 200 OK\r\n\r\n"[..], NotHttp),
        (b"<html>no head</html>", NotHttp),
        (b"HTTP/2.0 200 OK\r\n\r\n", NotHttp),
        (b"HTTP/1.2 200 OK\r\n\r\n", NotHttp),
        (b"ICY 200 OK\r\n\r\n", NotHttp),
        (b"HTTP/1.1 99 Low\r\n\r\n", StatusInvalid),
        (b"HTTP/1.1 099 Low\r\n\r\n", StatusInvalid),
        (b"HTTP/1.1 2000 OK\r\n\r\n", StatusInvalid),
        (b"HTTP/1.1 2x0 OK\r\n\r\n", StatusInvalid),
        (b"HTTP/1.1 -20 OK\r\n\r\n", StatusInvalid),
        (b"HTTP/1.1 200 O\0K\r\n\r\n", StatusInvalid),
        (b"HTTP/1.1 200 OK\r\nA: b\0c\r\n\r\n", FieldValue),
        (b"HTTP/1.1 200 OK\r\nA: b\rc\r\n\r\n", FieldValue),
        (b"HTTP/1.1 200 OK\r\nA: b\x1bc\r\n\r\n", FieldValue),
        (b"HTTP/1.1 200 OK\r\nA b: c\r\n\r\n", FieldName),
        (b"HTTP/1.1 200 OK\r\n: c\r\n\r\n", FieldName),
        (b"HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n", FieldName),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", FieldName),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\n",
            ContentLengthInvalid,
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n",
            ContentLengthInvalid,
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            ContentLengthInvalid,
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 0x5\r\n\r\n",
            ContentLengthInvalid,
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 5,\r\n\r\n",
            ContentLengthInvalid,
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775808\r\n\r\n",
            ContentLengthInvalid,
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\n",
            ContentLengthDiffers,
        ),
        (
            b"HTTP/1.1 304 X\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            ContentLengthDiffers,
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            ContentLengthWithTransferEncoding,
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            TransferEncodingUnknown,
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\n",
            TransferEncodingUnknown,
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            TransferEncodingUnknown,
        ),
        (
            b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            TransferEncodingInHttp10,
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\nhello",
            Chunk,
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
            Chunk,
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab",
            Chunk,
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nno field\r\n",
            Trailer,
        ),
    ] {
        assert_eq!(
            error(GET, response),
            expected,
            "{}",
            response.escape_ascii()
        );
    }
}

#[test]
fn white_space_before_a_colon_is_removed() {
    let response = "HTTP/1.1 200 OK\r\nContent-Length : 2\r\nX : y\r\n\r\nok";
    assert_eq!(
        read(GET, response),
        complete(&["200 Content-Length=2 X=y"], "ok", true)
    );
}

#[test]
fn lines_may_end_in_a_line_feed_alone() {
    let response = "HTTP/1.1 200 OK\nContent-Length: 2\nX: y\n\nok";
    let expected = complete(&["200 Content-Length=2 X=y"], "ok", true);
    assert_eq!(read(GET, response), expected);
    assert_eq!(read_in_pieces(GET, response.as_bytes(), 1, false), expected);
}

#[test]
fn a_response_that_is_cut_off_is_refused() {
    use ResponseError::*;
    for (response, expected) in [
        (&b""[..], ClosedBeforeHead),
        (b"HTTP", ClosedInHead),
        (b"HTTP/1.1 200 OK\r\nA: b\r\n", ClosedInHead),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n", ClosedInHead),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
            ClosedInBody,
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
            ClosedInBody,
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n",
            ClosedInBody,
        ),
    ] {
        assert_eq!(
            error(GET, response),
            expected,
            "{}",
            response.escape_ascii()
        );
    }
}

#[test]
fn an_oversized_head_is_refused_before_its_end() {
    let field = format!("X: {}\r\n", "x".repeat(1000));
    let begun = format!("HTTP/1.1 200 OK\r\n{}", field.repeat(66));
    assert!(begun.len() > 65536);
    assert!(read(GET, &begun[..65536]).is_ok());
    assert_eq!(
        error(GET, &begun.as_bytes()[..65537]),
        ResponseError::HeadTooLarge
    );
    let whole = begun + "\r\n";
    assert_eq!(read(GET, &whole), Err(ResponseError::HeadTooLarge));
}

#[test]
fn many_fields_are_read_and_too_many_refused() {
    let response = |count: usize| {
        let fields = "A: b\r\n".repeat(count);
        format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 0\r\n\r\n")
    };
    let many = read(GET, &response(1023)).expect("it is within the limit");
    assert_eq!(many.heads[0].matches("A=b").count(), 1023);
    for count in [1024, 4095, 4096] {
        assert_eq!(
            read(GET, &response(count)),
            Err(ResponseError::TooManyFields)
        );
    }
}

#[test]
fn a_decoder_serves_one_response_after_the_other() {
    let mut decoder = ResponseDecoder::new(ResponseLimits::default());
    assert!(decoder.decode(b"HTTP/1.1 20").is_ok());
    assert!(decoder.decode(b"HTTP/1.1 20\0 and more of it").is_err());
    assert!(
        decoder.decode(b"HTTP/1.1 200 OK\r\n\r\n").is_err(),
        "an error is final"
    );
    for asked in [HEAD, GET] {
        decoder.begin(asked);
        let response = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n";
        let decoded = decoder.decode(response).expect("it is sound");
        assert_eq!(decoded.event, ResponseEvent::Head);
        let left = if asked == HEAD { 0 } else { 2 };
        assert_eq!(decoder.remaining(), Some(left));
    }
}

#[test]
fn sentences_are_told_apart_and_have_no_full_stop() {
    for (position, error) in ResponseError::ALL.iter().enumerate() {
        assert!(!error.sentence().ends_with('.'));
        let later = &ResponseError::ALL[position + 1..];
        assert!(
            later
                .iter()
                .all(|other| other.sentence() != error.sentence())
        );
    }
}

/// A response of parts that may or may not fit together.
fn some_response() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        8 => Just("HTTP/1.1 200 OK\r\n"),
        1 => Just("HTTP/1.0 200 OK\r\n"),
        1 => Just("HTTP/1.1 204 No Content\r\n"),
        1 => Just("HTTP/1.1 304 X\r\n"),
        1 => Just("HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n"),
        1 => Just("HTTP/1.1 101 X\r\n"),
    ];
    let field = prop_oneof![
        Just("Content-Length: 5\r\n"),
        Just("Content-Length: 3\r\n"),
        Just("Transfer-Encoding: chunked\r\n"),
        Just("Connection: close\r\n"),
        Just("Connection: keep-alive\r\n"),
        Just("Connection: X-A\r\n"),
        Just("X-A: b\r\n"),
        Just("Bad\r\n"),
    ];
    let body = prop_oneof![
        Just("hello"),
        Just("5\r\nhello\r\n0\r\n\r\n"),
        Just("3\r\nabc\r\n2;x\r\nde\r\n0\r\nX: y\r\n\r\nrest"),
        Just(""),
    ];
    (line, prop::collection::vec(field, 0..4), body).prop_map(|(line, fields, body)| {
        format!("{line}{}\r\n{body}", fields.concat()).into_bytes()
    })
}

proptest! {
    #[test]
    fn pieces_make_no_difference(response in some_response(), head: bool) {
        let asked = if head { HEAD } else { UPGRADE };
        let whole = read_in_pieces(asked, &response, usize::MAX, true);
        for piece in 1..response.len() {
            let pieced = read_in_pieces(asked, &response, piece, true);
            // Bytes after the end of the response may arrive too late to be noticed.
            let comparable = |read: Result<Read, ResponseError>| {
                read.map(|read| (read.heads, read.body, read.trailers))
            };
            prop_assert_eq!(comparable(pieced), comparable(whole.clone()));
        }
    }

    #[test]
    fn a_response_means_the_same_after_another_one(
        before in some_response(),
        response in some_response(),
        repeats: bool,
        heads: [bool; 2],
        piece in 1_usize..200,
    ) {
        let before = if repeats { response.clone() } else { before };
        let [asked_before, asked] = heads.map(|head| if head { HEAD } else { UPGRADE });
        let mut decoder = ResponseDecoder::new(ResponseLimits::default());
        let _ = read_another(&mut decoder, asked_before, &before, usize::MAX, false);
        let again = read_another(&mut decoder, asked, &response, piece, true);
        prop_assert_eq!(again, read_in_pieces(asked, &response, piece, true));
    }

    #[test]
    fn any_bytes_are_survived(bytes: Vec<u8>, piece in 1_usize..20) {
        let begun = [b"HTTP/1.1 200 OK\r\n".as_slice(), &bytes].concat();
        let _ = read_in_pieces(UPGRADE, &bytes, piece, true);
        let _ = read_in_pieces(UPGRADE, &begun, piece, true);
    }
}
