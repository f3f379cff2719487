//! Replies of memcached, in the text and the binary protocol, are decoded the same in one piece or in many,
//! and no value exceeds the limit. A valid key cannot end a command.
//!
//! The input is what a server sends, and a key.

use petrel_proto::memcached::{
    Command, Key, MemcachedProgress, Reply, ReplyError, Write, binary, text,
};

const VALUE_BYTES_MAX: usize = 1000;

pub fn memcached(input: &[u8]) {
    let whole = (as_text(input, usize::MAX), as_packets(input, usize::MAX));
    for step in [1, 7] {
        assert_eq!(as_text(input, step), whole.0);
        assert_eq!(as_packets(input, step), whole.1);
    }
    keys_end_nothing(input);
}

type Story = (Vec<Reply>, Option<ReplyError>);

fn as_text(input: &[u8], step: usize) -> Story {
    let mut decoder = text::TextDecoder::new(VALUE_BYTES_MAX);
    story(input, step, |piece| decoder.feed(piece))
}

fn as_packets(input: &[u8], step: usize) -> Story {
    let mut decoder = binary::BinaryDecoder::new(VALUE_BYTES_MAX);
    // The opaque number of the first packet is expected, so that its content is decoded.
    let opaque = input.get(12..16).and_then(|bytes| bytes.try_into().ok());
    decoder.expect(opaque.map_or(0, u32::from_be_bytes));
    story(input, step, |piece| decoder.feed(piece))
}

fn story(
    input: &[u8],
    step: usize,
    mut feed: impl FnMut(&[u8]) -> Result<MemcachedProgress, ReplyError>,
) -> Story {
    let mut replies = Vec::new();
    for piece in input.chunks(step.min(input.len()).max(1)) {
        let mut rest = piece;
        while !rest.is_empty() {
            match feed(rest) {
                Err(error) => return (replies, Some(error)),
                Ok(fed) => {
                    assert!(fed.reply.is_some() || fed.consumed == rest.len());
                    rest = &rest[fed.consumed..];
                    if let Some(Reply::Value(item)) = &fed.reply {
                        assert!(item.data.len() <= VALUE_BYTES_MAX);
                        assert!(Key::new(&item.key).is_ok());
                    }
                    replies.extend(fed.reply);
                }
            }
        }
    }
    (replies, None)
}

fn keys_end_nothing(input: &[u8]) {
    let Ok(key) = Key::new(input) else {
        return;
    };
    let mut wire = Vec::new();
    let store = Command::Store {
        how: Write::Set,
        key,
        flags: 0,
        expiry_s: 0,
        data: b"",
    };
    text::write(&mut wire, &store);
    let lines: Vec<&[u8]> = wire.split(|&byte| byte == b'\n').collect();
    assert_eq!(lines.len(), 3);
    let words: Vec<&[u8]> = lines[0].split(|&byte| byte == b' ').collect();
    assert_eq!(words, [b"set", input, b"0", b"0", b"0\r"]);
}
