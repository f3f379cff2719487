//! Responses of HTTP backends: decoded in one piece or in many, they have the same heads, body and trailers,
//! or are refused; and nothing in a head can end a line.
//!
//! The first byte of the input selects the request that the response is for. The rest is what the backend
//! sends before it closes.

use petrel_proto::http1::{Asked, ResponseDecoder, ResponseEvent, ResponseLimits};
use petrel_proto::method::Method;

pub fn response(input: &[u8]) {
    let Some((&kind, input)) = input.split_first() else {
        return;
    };
    let asked = Asked {
        method: if kind & 1 == 1 {
            Method::Head
        } else {
            Method::Get
        },
        upgrade: kind & 2 == 2,
    };
    let whole = read(asked, input, usize::MAX);
    for step in [1, 7] {
        assert_eq!(read(asked, input, step), whole);
    }
}

/// A name and a value.
type Field = (String, Vec<u8>);

/// Heads with their fields, the body, and the trailers that are passed on.
#[derive(Debug, Default, PartialEq)]
struct Response {
    heads: Vec<(u16, Vec<Field>)>,
    body: Vec<u8>,
    trailers: Vec<u8>,
}

/// The result for `input` when it arrives `step` bytes at a time and then ends. Which error is found may
/// depend on how much had arrived by then.
fn read(asked: Asked, input: &[u8], step: usize) -> Option<Response> {
    let limits = ResponseLimits {
        head_bytes_max: 512,
        fields_max: 20,
        interim_max: 3,
        trailer_bytes_max: 40,
    };
    let mut decoder = ResponseDecoder::new(limits);
    decoder.begin(asked);
    let mut response = Response::default();
    let (mut position, mut arrived) = (0, 0);
    loop {
        let given = &input[position..arrived];
        let decoded = match decoder.decode(given) {
            Ok(decoded) => decoded,
            Err(error) => {
                assert_eq!(decoder.decode(b"").err(), Some(error), "an error is final");
                return None;
            }
        };
        assert!(decoded.consumed <= given.len());
        position += decoded.consumed;
        match decoded.event {
            ResponseEvent::NeedMore if arrived == input.len() => {
                decoder.end_of_input().ok()?;
                return Some(response);
            }
            ResponseEvent::NeedMore => arrived = arrived.saturating_add(step).min(input.len()),
            ResponseEvent::Interim | ResponseEvent::Head => {
                let head = decoder.head();
                assert!((100..1000).contains(&head.status().0));
                let fields = head.fields();
                let fields = fields.map(|(name, value)| {
                    assert!(!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic()));
                    assert!(!value.iter().any(|byte| b"\r\n\0".contains(byte)));
                    (name.to_owned(), value.to_vec())
                });
                response.heads.push((head.status().0, fields.collect()));
                assert!(response.heads.len() <= 4, "endless interim responses");
            }
            ResponseEvent::Body(range) => {
                assert!(!range.is_empty() && range.end <= decoded.consumed);
                response.body.extend_from_slice(&given[range]);
            }
            ResponseEvent::End { reusable } => {
                assert!(!reusable || arrived == position, "nothing may follow");
                response.trailers = decoder.take_trailers().as_bytes().to_vec();
                return Some(response);
            }
        }
    }
}
