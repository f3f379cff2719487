//! Request bodies: decoded in one piece or in many, they have the same bytes and the same end, and no limit
//! is exceeded.
//!
//! The input is what follows the head. It is decoded as chunks, and as a body of a known length.

use petrel_proto::http1::{BodyDecoder, BodyError, BodyLimits, Piece};
use petrel_proto::request_head::BodyFraming;

const BODY_BYTES_MAX: u64 = 96;

pub fn request_body(input: &[u8]) {
    let framings = [
        BodyFraming::Chunked,
        BodyFraming::Length(0),
        BodyFraming::Length(17),
        BodyFraming::Length(input.len() as u64),
    ];
    let limited = BodyLimits {
        body_bytes_max: Some(BODY_BYTES_MAX),
        trailer_bytes_max: 40,
        chunk_extension_bytes_max: 12,
    };
    for framing in framings {
        for limits in [BodyLimits::default(), limited] {
            let whole = decode(input, usize::MAX, framing, limits);
            is_within_limits(&whole, limits);
            for step in [1, 5] {
                assert_eq!(decode(input, step, framing, limits), whole);
            }
        }
    }
}

/// The result of decoding a body.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    data: Vec<u8>,
    /// Where the next message begins, if this one is complete.
    end: Option<usize>,
    refused: Option<BodyError>,
}

/// Decodes `input`, which arrives `step` bytes at a time.
fn decode(input: &[u8], step: usize, framing: BodyFraming, limits: BodyLimits) -> Outcome {
    let mut decoder = BodyDecoder::new(framing, limits);
    let mut outcome = Outcome::default();
    let mut position = 0;
    let mut arrived = 0;
    loop {
        match decoder.decode(&input[position..arrived]) {
            Err(error) => {
                assert_eq!(
                    decoder.decode(b"0\r\n\r\n"),
                    Err(error),
                    "an error is final"
                );
                outcome.refused = Some(error);
                break;
            }
            Ok(decoded) => {
                assert!(position + decoded.consumed <= arrived);
                match decoded.piece {
                    Piece::Data(range) => {
                        assert!(!range.is_empty() && range.end <= decoded.consumed);
                        let data = &input[position + range.start..position + range.end];
                        outcome.data.extend_from_slice(data);
                        position += decoded.consumed;
                    }
                    Piece::End => {
                        position += decoded.consumed;
                        outcome.end = Some(position);
                        break;
                    }
                    Piece::NeedMore => {
                        position += decoded.consumed;
                        assert_eq!(position, arrived, "all input is consumed");
                        if arrived == input.len() {
                            break;
                        }
                        arrived = arrived.saturating_add(step).min(input.len());
                    }
                }
            }
        }
    }
    assert_eq!(decoder.is_end(), outcome.end.is_some());
    if let (BodyFraming::Chunked, Some(end)) = (framing, outcome.end) {
        trailer_is_sound(&input[..end], limits);
    }
    outcome
}

/// Checks what is between the last chunk's line and the empty line that ends the body.
fn trailer_is_sound(body: &[u8], limits: BodyLimits) {
    let lines: Vec<_> = body.rsplit(|&byte| byte == b'\n').skip(2).collect();
    let is_field = |line: &&&[u8]| !line.starts_with(b"0");
    let fields: Vec<_> = lines.iter().take_while(is_field).collect();
    let bytes: usize = fields.iter().map(|line| line.len() + 1).sum();
    assert!(bytes <= limits.trailer_bytes_max);
    for line in fields {
        let line = line.strip_suffix(b"\r").expect("lines end in CR LF");
        let name = line.split(|&byte| byte == b':').next().expect("a part");
        assert!(!name.is_empty() && name.len() < line.len());
        assert!(!line.iter().any(|byte| matches!(byte, b'\r' | b'\0')));
    }
}

fn is_within_limits(outcome: &Outcome, limits: BodyLimits) {
    if let Some(limit) = limits.body_bytes_max {
        assert!(outcome.data.len() as u64 <= limit);
    }
}
