//! Heads of CGI replies are decoded the same in one piece or in many, and nothing in them can split a
//! response or misstate its length.
//!
//! The input is what an application sends.

use petrel_proto::cgi::{HeadDecoder, HeadError, HeadKind, HeadLimits, ParsedCgiHead};
use petrel_proto::reply_head::ReplyHead;

const LIMITS: HeadLimits = HeadLimits {
    bytes_max: 300,
    fields_max: 8,
};

pub fn cgi_head(input: &[u8]) {
    let whole = read(input, usize::MAX);
    for step in [1, 7] {
        assert_eq!(read(input, step), whole);
    }
    let Ok(Some(head)) = whole else { return };
    is_sound(&head, input);
}

/// A decoded head.
#[derive(Debug, PartialEq)]
struct Read {
    kind: HeadKind,
    status: u16,
    fields: Vec<(String, Vec<u8>)>,
    length: usize,
    content_length: Option<u64>,
    is_chunked: bool,
}

/// Decodes a head from `input`, which arrives `step` bytes at a time.
fn read(input: &[u8], step: usize) -> Result<Option<Read>, HeadError> {
    let mut decoder = HeadDecoder::new(LIMITS);
    let mut head = ReplyHead::new();
    let mut arrived: usize = 0;
    while arrived < input.len() {
        arrived = arrived.saturating_add(step).min(input.len());
        let parsed = decoder
            .decode(&input[..arrived], &mut head)
            .inspect_err(|&error| assert_eq!(decoder.decode(b"A: b\n\n", &mut head), Err(error)))?;
        if let ParsedCgiHead::Complete { length, kind } = parsed {
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

fn is_sound(head: &Read, input: &[u8]) {
    assert!((100..=999).contains(&head.status));
    assert!(
        head.length <= input.len().min(LIMITS.bytes_max) && input[..head.length].ends_with(b"\n")
    );
    assert!(head.fields.len() <= LIMITS.fields_max);
    assert!(!(head.is_chunked && head.content_length.is_some()));
    let mut lengths = 0;
    for (name, value) in &head.fields {
        assert!(
            !name.is_empty()
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_graphic() && byte != b':')
        );
        assert!(!value.iter().any(|byte| b"\r\n\0".contains(byte)));
        assert!(!name.eq_ignore_ascii_case("status"));
        lengths += usize::from(name.eq_ignore_ascii_case("content-length"));
    }
    assert_eq!(lengths, usize::from(head.content_length.is_some()));
    if head.kind == HeadKind::Interim {
        assert!(head.status < 200 && head.status != 101);
    }
}
