//! Redis replies are decoded the same in one piece or in many, and no more of them is stored than the limits
//! allow.
//!
//! The input is what a server sends. It is also split at its zeros into the arguments of a command.

use petrel_proto::resp::{ReplyLimits, RespDecoder, RespError, Value, write_command};

const LIMITS: ReplyLimits = ReplyLimits {
    bulk_bytes_max: 1000,
    reply_bytes_max: 2000,
    depth_max: 4,
};

pub fn resp(input: &[u8]) {
    let whole = replies(input, usize::MAX);
    for step in [1, 7] {
        assert_eq!(replies(input, step), whole);
    }
    a_command_is_an_array(input);
}

/// Replies as text, because NaN is not equal to itself, and the final error.
fn replies(input: &[u8], step: usize) -> (Vec<String>, Option<RespError>) {
    let mut decoder = RespDecoder::new(LIMITS);
    let mut replies = Vec::new();
    for piece in input.chunks(step.min(input.len()).max(1)) {
        let mut rest = piece;
        while !rest.is_empty() {
            match decoder.feed(rest) {
                Err(error) => return (replies, Some(error)),
                Ok(fed) => {
                    assert!(fed.value.is_some() || fed.consumed == rest.len());
                    rest = &rest[fed.consumed..];
                    if let Some(value) = fed.value {
                        assert!(size(&value) <= LIMITS.reply_bytes_max + size_of::<Value>());
                        replies.push(format!("{value:?}"));
                    }
                }
            }
        }
    }
    (replies, None)
}

/// The size of a value as the limit counts it.
fn size(value: &Value) -> usize {
    let all = |values: &[Value]| values.iter().map(size).sum::<usize>();
    let within = match value {
        Value::Array(values) | Value::Set(values) | Value::Push(values) => all(values),
        Value::Map(pairs) => pairs
            .iter()
            .map(|(key, value)| size(key) + size(value))
            .sum(),
        other => other.bytes().map_or(0, <[u8]>::len),
    };
    size_of::<Value>() + within
}

fn a_command_is_an_array(input: &[u8]) {
    let arguments: Vec<&[u8]> = input.split(|&byte| byte == 0).collect();
    let mut wire = Vec::new();
    write_command(&mut wire, &arguments);
    let mut decoder = RespDecoder::new(ReplyLimits::default());
    let fed = decoder.feed(&wire).expect("it is sound");
    assert_eq!(fed.consumed, wire.len());
    let strings = arguments
        .iter()
        .map(|argument| Value::Bulk(argument.to_vec()));
    assert_eq!(fed.value, Some(Value::Array(strings.collect())));
}
