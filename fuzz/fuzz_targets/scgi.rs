//! SCGI requests: what is read is what stands there, and what is written is read.
//!
//! The input is what a web server sends, and, cut at its line ends, names and values.
#![no_main]

use libfuzzer_sys::fuzz_target;
use petrel_proto::scgi::{ScgiEncoder, ParsedScgiHead, HeadVariables, parse};

const BYTES_MAX: usize = 4096;

fuzz_target!(|input: &[u8]| {
    let whole = parse(input, BYTES_MAX);
    for length in 0..input.len().min(64) {
        // A part of a sound request is never refused.
        let part = parse(&input[..length], BYTES_MAX);
        if whole.is_ok() && part != whole {
            assert_eq!(part, Ok(ParsedScgiHead::Partial));
        }
    }
    if let Ok(ParsedScgiHead::Complete {
        variables, length, ..
    }) = whole
    {
        assert!(variables.end < length && length <= input.len());
        let first = HeadVariables::new(&input[variables]).next();
        assert!(first.is_some_and(|(name, _)| name == b"CONTENT_LENGTH"));
    }
    round_trip(input);
});

fn round_trip(input: &[u8]) {
    let mut sent = Vec::new();
    let mut wire = Vec::new();
    let mut head = ScgiEncoder::new(&mut wire, input.len() as u64);
    for part in input.split(|&byte| byte == b'\n') {
        let (name, value) = part.split_at(part.len() / 3);
        head.add(name, value);
        let is_first = matches!(name, b"CONTENT_LENGTH" | b"SCGI");
        if !is_first && !part.contains(&0) {
            sent.push((name, value));
        }
    }
    head.finish();
    let Ok(ParsedScgiHead::Complete {
        variables,
        length,
        content_length,
    }) = parse(&wire, usize::MAX)
    else {
        panic!("what is written is sound");
    };
    assert_eq!((length, content_length), (wire.len(), input.len() as u64));
    let found: Vec<_> = HeadVariables::new(&wire[variables]).skip(2).collect();
    assert_eq!(found, sent);
}
