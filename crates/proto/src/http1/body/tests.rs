use proptest::prelude::*;

use super::*;
use crate::status::Status;

const LIMITS: BodyLimits = BodyLimits {
    body_bytes_max: Some(1000),
    trailer_bytes_max: 40,
    chunk_extension_bytes_max: 10,
};

/// The result of decoding a body that arrived `step` bytes at a time.
#[derive(Debug, PartialEq)]
struct Outcome {
    body: Vec<u8>,
    consumed: usize,
    end: Result<bool, BodyError>,
    trailer: Vec<u8>,
}

fn decoded_in_steps(
    framing: BodyFraming,
    limits: BodyLimits,
    input: &[u8],
    step: usize,
) -> Outcome {
    let mut decoder = BodyDecoder::new(framing, limits);
    let mut outcome = Outcome {
        body: Vec::new(),
        consumed: 0,
        end: Ok(false),
        trailer: Vec::new(),
    };
    let mut available = 0;
    loop {
        match decoder.decode(&input[outcome.consumed..available]) {
            Err(error) => {
                assert_eq!(decoder.decode(&[]), Err(error), "an error is final");
                outcome.consumed = 0; // Where a refused body was refused depends on the pieces.
                outcome.end = Err(error);
                return outcome;
            }
            Ok(DecodedPiece {
                consumed,
                piece: Piece::Data(range),
            }) => {
                assert!(!range.is_empty() && range.end == consumed);
                outcome
                    .body
                    .extend_from_slice(&input[outcome.consumed..available][range]);
                outcome.consumed += consumed;
            }
            Ok(DecodedPiece {
                consumed,
                piece: Piece::NeedMore,
            }) => {
                outcome.consumed += consumed;
                assert_eq!(outcome.consumed, available, "all input is consumed");
                if available == input.len() {
                    return outcome;
                }
                available = (available + step).min(input.len());
            }
            Ok(DecodedPiece {
                consumed,
                piece: Piece::End,
            }) => {
                assert!(decoder.is_end());
                assert_eq!(decoder.bytes_received, outcome.body.len() as u64);
                outcome.consumed += consumed;
                outcome.end = Ok(true);
                outcome.trailer = decoder.trailer_lines().to_vec();
                return outcome;
            }
        }
    }
}

fn chunked(input: &str) -> Outcome {
    decoded_in_steps(
        BodyFraming::Chunked,
        LIMITS,
        input.as_bytes(),
        input.len().max(1),
    )
}

#[test]
fn a_body_of_known_length_ends_there() {
    let outcome = decoded_in_steps(BodyFraming::Length(3), LIMITS, b"abcGET /", 2);
    assert_eq!(
        (&outcome.body[..], outcome.consumed, outcome.end),
        (&b"abc"[..], 3, Ok(true))
    );
    let mut decoder = BodyDecoder::new(BodyFraming::Length(3), LIMITS);
    assert_eq!(
        decoder.decode(b"ab").map(|decoded| decoded.piece),
        Ok(Piece::Data(0..2))
    );
    assert_eq!((decoder.remaining(), decoder.is_end()), (Some(1), false));
    let none = BodyDecoder::new(BodyFraming::None, LIMITS).decode(b"GET /");
    assert_eq!(
        none,
        Ok(DecodedPiece {
            consumed: 0,
            piece: Piece::End
        })
    );
}

#[test]
fn chunks_are_put_together_and_what_follows_is_left() {
    let outcome = chunked("3\r\nabc\r\n00A;x=\"y\"\r\n0123456789\r\n0\r\n\r\nGET /");
    assert_eq!(outcome.body, b"abc0123456789");
    assert_eq!((outcome.consumed, outcome.end), (36, Ok(true)));
}

#[test]
fn trailers_are_kept() {
    let outcome = chunked("0\r\nA: 1\r\nb:2 \r\n\r\n");
    assert_eq!(outcome.end, Ok(true));
    assert_eq!(outcome.trailer, b"A: 1\r\nb:2 \r\n");
}

#[test]
fn bad_chunk_framing_is_refused() {
    for (input, reason) in [
        ("g\r\n", BodyError::ChunkSize),
        ("-1\r\n", BodyError::ChunkSize),
        ("+1\r\n", BodyError::ChunkSize),
        ("0x1\r\n", BodyError::ChunkSize),
        (" 1\r\n", BodyError::ChunkSize),
        ("\r\n", BodyError::ChunkSize),
        (";x\r\n", BodyError::ChunkSize),
        ("00000000000000001\r\na\r\n", BodyError::ChunkSize),
        ("1\n", BodyError::ChunkSize),
        ("1;x\n", BodyError::ChunkLineEnd),
        ("1\r\r\n", BodyError::ChunkLineEnd),
        ("1\r\nab\r\n", BodyError::ChunkLineEnd),
        ("1\r\na\n", BodyError::ChunkLineEnd),
        ("1\r\na\rb", BodyError::ChunkLineEnd),
        ("1;a\0\r\n", BodyError::ChunkExtension),
        ("1;aaaaaaaaaa\r\n", BodyError::ChunkExtensionTooLong),
        ("0\r\nA\r\n\r\n", BodyError::Trailer),
        ("0\r\nA : 1\r\n\r\n", BodyError::Trailer),
        ("0\r\nA: 1\n\r\n", BodyError::Trailer),
        ("0\r\nA: \x01\r\n\r\n", BodyError::Trailer),
        ("0\r\n A: 1\r\n\r\n", BodyError::Trailer),
        ("0\r\n\n", BodyError::Trailer),
    ] {
        assert_eq!(chunked(input).end, Err(reason), "{input:?}");
    }
}

/// What may follow the chunk size of a request (RFC 9112 7.1.1), and what must not.
#[test]
fn chunk_extensions_of_requests_are_names_and_values() {
    let limits = BodyLimits {
        chunk_extension_bytes_max: 100,
        ..LIMITS
    };
    let end = |line: &str, step| {
        let input = format!("{line}\r\nhello\r\n0\r\n\r\n");
        decoded_in_steps(BodyFraming::Chunked, limits, input.as_bytes(), step).end
    };
    for line in [
        "5;a",
        "5;a=b",
        "5 ;a=b",
        "5\t \t; a \t=\t b",
        "5;a;b=c;d=\"e\"",
        "5;a=b ;c",
        "5;a=\"\"",
        "5;a=\" ;\\\"\\\\\t\u{fc}\" ; b",
        "5;!#$%&'*+-.^_`|~=~",
    ] {
        for step in [1, 99] {
            assert_eq!(end(line, step), Ok(true), "{line:?}");
        }
    }
    for line in [
        "5 ",
        "5\t",
        "5 \t ",
        "5;",
        "5; ",
        "5;;a",
        "5;a;",
        "5 a",
        "5 =b",
        "5;=b",
        "5;a=",
        "5;a= ",
        "5;a b",
        "5;a ",
        "5;a=b ",
        "5;a=b c",
        "5;a=b=c",
        "5;a=\"b",
        "5;a=\"b\\\"",
        "5;a=\"b\"c",
        "5;a=\"b\" ",
        "5;a=\"\x7f\"",
        "5;a=\"\\\0\"",
        "5;a\"b\"",
        "5;a/b",
        "5;a=b\"c",
        "5;\u{fc}",
        "5,a",
    ] {
        let reason = match line {
            "5,a" => BodyError::ChunkSize,
            _ => BodyError::ChunkExtension,
        };
        for step in [1, 99] {
            assert_eq!(end(line, step), Err(reason), "{line:?}");
        }
    }
}

#[test]
fn backends_may_pad_chunk_sizes() {
    for line in ["3   ", "3\t", "3;", "3;a b", "3 ;;=", "3;x=\"y"] {
        let input = format!("{line}\r\nabc\r\n0  \r\n\r\n");
        let mut decoder = BodyDecoder::of_reply(BodyFraming::Chunked, BodyLimits::default());
        let first = decoder.decode(input.as_bytes()).expect(line);
        let at = line.len() + 2;
        assert_eq!(first.piece, Piece::Data(at..at + 3), "{line:?}");
        let last = decoder.decode(&input.as_bytes()[first.consumed..]);
        assert_eq!(last.expect(line).piece, Piece::End, "{line:?}");
    }
}

#[test]
fn sizes_beyond_63_bits_are_refused() {
    let unlimited = BodyLimits {
        body_bytes_max: None,
        ..LIMITS
    };
    let end = |input: &[u8]| decoded_in_steps(BodyFraming::Chunked, unlimited, input, 99).end;
    assert_eq!(end(b"7fffffffffffffff\r\n"), Ok(false));
    assert_eq!(end(b"8000000000000000\r\n"), Err(BodyError::ChunkSize));
    assert_eq!(end(b"ffffffffffffffff\r\n"), Err(BodyError::ChunkSize));
    assert_eq!(end(b"10000000000000000\r\n"), Err(BodyError::ChunkSize));
}

#[test]
fn limits_hold_to_the_byte() {
    let length = |length| decoded_in_steps(BodyFraming::Length(length), LIMITS, b"", 1).end;
    assert_eq!(length(1000), Ok(false));
    assert_eq!(length(1001), Err(BodyError::BodyTooLarge));
    assert_eq!(BodyError::BodyTooLarge.status(), Status::CONTENT_TOO_LARGE);
    let data = "a".repeat(1000);
    assert_eq!(
        chunked(&format!("3e8\r\n{data}\r\n0\r\n\r\n")).end,
        Ok(true)
    );
    let beyond = chunked(&format!("3e8\r\n{data}\r\n1\r\na\r\n0\r\n\r\n"));
    assert_eq!(
        (beyond.body.len(), beyond.end),
        (1000, Err(BodyError::BodyTooLarge))
    );
    assert_eq!(chunked("3e9").end, Err(BodyError::BodyTooLarge));
    assert_eq!(chunked("1;aaaaaaaaa\r\na\r\n0\r\n\r\n").end, Ok(true));
    let trailer = |length| chunked(&format!("0\r\nA: {}\r\n\r\n", "1".repeat(length))).end;
    assert_eq!(trailer(35), Ok(true));
    assert_eq!(trailer(36), Err(BodyError::TrailerTooLarge));
    let endless = format!("0\r\nA: {}", "1".repeat(90));
    assert_eq!(chunked(&endless).end, Err(BodyError::TrailerTooLarge));
}

fn chunked_like() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        6 => proptest::collection::vec(any::<u8>(), 1..20).prop_map(|data| {
            [format!("{:x}\r\n", data.len()).as_bytes(), &data, b"\r\n"].concat()
        }),
        1 => Just(b"1;x\r\na\r\n".to_vec()),
        1 => Just(b"0\r\n\r\n".to_vec()),
        1 => Just(b"0\r\nA: b\r\n".to_vec()),
        1 => Just(b"\r\n".to_vec()),
        1 => proptest::collection::vec(any::<u8>(), 0..4),
    ];
    proptest::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn bodies_are_read_alike_however_they_arrive(input in chunked_like(), step in 1..30_usize) {
        let whole = decoded_in_steps(BodyFraming::Chunked, LIMITS, &input, input.len().max(1));
        prop_assert_eq!(&decoded_in_steps(BodyFraming::Chunked, LIMITS, &input, step), &whole);
        prop_assert_eq!(&decoded_in_steps(BodyFraming::Chunked, LIMITS, &input, 1), &whole);
    }

    #[test]
    fn what_is_chunked_comes_back(parts in proptest::collection::vec(
        proptest::collection::vec(any::<u8>(), 1..50), 0..10,
    )) {
        let mut wire = Vec::new();
        for part in &parts {
            crate::http1::write_chunk_header(&mut wire, part.len() as u64);
            wire.extend_from_slice(part);
            wire.extend_from_slice(b"\r\n");
        }
        wire.extend_from_slice(b"0\r\n\r\n");
        let outcome = decoded_in_steps(BodyFraming::Chunked, LIMITS, &wire, 7);
        prop_assert_eq!(outcome.body, parts.concat());
        prop_assert_eq!((outcome.consumed, outcome.end), (wire.len(), Ok(true)));
    }
}
