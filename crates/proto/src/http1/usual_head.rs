//! Reads request heads in the form in which nearly all clients write them, in one pass.
//!
//! [`read`] accepts less than httparse: CR LF at each line end, an ASCII target, HTTP/1.0 or 1.1. It returns
//! `None` for every other head, and for one that is incomplete or wrong. Then the caller asks httparse, which
//! says what it is. What this module accepts, httparse reads alike; a test compares both.

use crate::request_head::{FieldRange, KnownField, RequestHead, Version};
use crate::syntax::{is_token, is_value_byte, token_length};

/// Sets version, bytes, and the positions of method, target and fields. Returns the length of the head.
pub(super) fn read(head: &mut RequestHead, input: &[u8]) -> Option<usize> {
    head.fields.clear();
    let length = read_lines(head, input);
    match length.and_then(|length| input.get(..length)) {
        Some(bytes) => {
            head.bytes.clear();
            head.bytes.extend_from_slice(bytes);
            head.head_length = bytes.len();
        }
        // There are no bytes that the positions belong to.
        None => {
            head.fields.clear();
            head.method_range = 0..0;
            head.target = 0..0;
            head.version = Version::Http10;
        }
    }
    length
}

#[inline(always)]
fn read_lines(head: &mut RequestHead, input: &[u8]) -> Option<usize> {
    let (method, rest) = match input {
        [b'G', b'E', b'T', b' ', rest @ ..] => (3, rest),
        _ => {
            let method = token_length(input);
            let (b' ', rest) = input.get(method..)?.split_first()? else {
                return None;
            };
            (method, rest)
        }
    };
    let target = length_of_target(rest);
    let (b" HTTP/1.", rest) = rest.get(target..)?.split_first_chunk()? else {
        return None;
    };
    let (version, mut rest) = match rest {
        [b'1', b'\r', b'\n', rest @ ..] => (Version::Http11, rest),
        [b'0', b'\r', b'\n', rest @ ..] => (Version::Http10, rest),
        _ => return None,
    };
    if method == 0 || target == 0 {
        return None;
    }
    head.method_range = 0..method;
    head.target = method + 1..method + 1 + target;
    head.version = version;
    loop {
        if let [b'\r', b'\n', after @ ..] = rest {
            return Some(input.len() - after.len());
        }
        if head.fields.len() == RequestHead::FIELDS_MAX {
            return None;
        }
        rest = read_field(rest, input, &mut head.fields)?;
    }
}

/// Reads the field at the beginning of `text`, the rest of `input`. Returns what follows it.
#[inline(always)]
fn read_field<'a>(text: &'a [u8], input: &[u8], fields: &mut Vec<FieldRange>) -> Option<&'a [u8]> {
    let colon = position_of_colon(text)?;
    let (name, after) = text.split_at_checked(colon)?;
    let known = KnownField::from_name_if(name, |_| true);
    if known.is_none() && !is_token(name) {
        return None;
    }
    let after = match after {
        // Nearly all clients write one space.
        [_, b' ', b'!'..=b'~', ..] => &after[2..],
        _ => behind_white_space(&after[1..]),
    };
    let line_end = behind_value(after, input);
    let [b'\r', b'\n', next @ ..] = line_end else {
        return None;
    };
    let mut value = after.get(..after.len() - line_end.len())?;
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    let start = input.len() - text.len();
    let value_start = match value.is_empty() {
        true => 0,
        false => input.len() - after.len(),
    };
    fields.push(FieldRange {
        name: start..start + colon,
        value: value_start..value_start + value.len(),
        known,
    });
    Some(next)
}

#[inline(never)]
fn behind_white_space(mut text: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = text {
        text = rest;
    }
    text
}

/// Where the first colon is.
#[inline(always)]
fn position_of_colon(text: &[u8]) -> Option<usize> {
    let mut rest = text;
    while let Some((block, after)) = rest.split_first_chunk() {
        let others = u64::from_le_bytes(*block) ^ every(b':');
        // The lowest of these bits is right; those above it may be set by the borrow.
        let colons = others.wrapping_sub(every(1)) & !others & every(0x80);
        if colons != 0 {
            return Some(text.len() - rest.len() + first_byte(colons));
        }
        rest = after;
    }
    let position = rest.iter().position(|&byte| byte == b':')?;
    Some(text.len() - rest.len() + position)
}

/// How many bytes at the beginning of `text` are printable ASCII and no space.
#[inline(always)]
fn length_of_target(text: &[u8]) -> usize {
    let mut rest = text;
    loop {
        // Short targets end before this. The compiler makes vector code for long ones.
        if text.len() - rest.len() == CHUNK {
            rest = behind_plain_chunks(rest);
        }
        let Some((block, after)) = rest.split_first_chunk() else {
            break;
        };
        let bytes = u64::from_le_bytes(*block);
        let too_low = bytes.wrapping_sub(every(b'!'));
        let too_high = bytes.wrapping_add(every(1)) | bytes;
        let others = (too_low | too_high) & every(0x80);
        if others != 0 {
            return text.len() - rest.len() + first_byte(others);
        }
        rest = after;
    }
    let is_other = |byte: &u8| !matches!(byte, b'!'..=b'~');
    let length = rest.iter().position(is_other).unwrap_or(rest.len());
    text.len() - rest.len() + length
}

/// The rest of `text` behind the chunks at its beginning that are printable ASCII without spaces.
#[inline]
fn behind_plain_chunks(text: &[u8]) -> &[u8] {
    let mut rest = text;
    while let Some((chunk, after)) = rest.split_first_chunk::<CHUNK>() {
        let mut others = 0;
        for &byte in chunk {
            // Bytes above 0x7f are negative.
            others |= u8::from((byte.cast_signed() <= 0x20) | (byte == 0x7f));
        }
        if others != 0 {
            break;
        }
        rest = after;
    }
    rest
}

const CHUNK: usize = 32;

/// What follows the bytes at the beginning of `text` that are allowed in a field value. `text` is the rest of
/// `input`.
#[inline(always)]
fn behind_value<'a>(text: &'a [u8], input: &[u8]) -> &'a [u8] {
    let mut rest = text;
    loop {
        let (bytes, after) = match rest.split_first_chunk() {
            Some((block, after)) => (u64::from_le_bytes(*block), after),
            None => (last_bytes(input, rest.len()), &rest[rest.len()..]),
        };
        let controls = bytes.wrapping_sub(every(b' ')) & !bytes;
        let deletes = bytes.wrapping_add(every(1)) & !bytes;
        let others = (controls | deletes) & every(0x80);
        if others == 0 {
            rest = after;
            continue;
        }
        match rest.get(first_byte(others)..) {
            // A tab, or a tilde that only the carry of the byte before it has marked.
            Some([byte, after @ ..]) if is_value_byte(*byte) => rest = after,
            Some(end) => return end,
            None => return after,
        }
    }
}

/// The last `count` bytes of `input`, fewer than eight, followed by zeroes.
#[inline(always)]
fn last_bytes(input: &[u8], count: usize) -> u64 {
    let last = input
        .last_chunk()
        .map_or(0, |last| u64::from_le_bytes(*last));
    last.checked_shr(64 - 8 * count as u32).unwrap_or(0)
}

/// Eight times the same byte.
const fn every(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// The position of the first byte that has its highest bit set in `bits`.
#[inline]
const fn first_byte(bits: u64) -> usize {
    bits.trailing_zeros() as usize / 8
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::parse;
    use super::*;

    type Shape = (
        std::ops::Range<usize>,
        std::ops::Range<usize>,
        Version,
        Vec<FieldRange>,
    );

    fn shape(head: &RequestHead) -> Shape {
        let fields = head.fields.clone();
        let (method, target) = (head.method_range.clone(), head.target.clone());
        (method, target, head.version, fields)
    }

    /// Whether `input` is a head in the usual form. If it is, httparse has to read the same in it.
    fn is_usual(input: &[u8]) -> bool {
        let (mut head, mut other) = (RequestHead::new(), RequestHead::new());
        let Some(length) = read(&mut head, input) else {
            assert_eq!(shape(&head), shape(&RequestHead::new()));
            return false;
        };
        assert_eq!(
            parse::read_any(&mut other, input),
            Some(length),
            "{input:?}"
        );
        assert_eq!(shape(&head), shape(&other), "{}", input.escape_ascii());
        assert_eq!(head.head_bytes(), other.head_bytes());
        true
    }

    #[test]
    fn the_usual_form_is_read_as_httparse_reads_it() {
        for usual in [
            "GET / HTTP/1.1\r\n\r\n",
            "GET /a?b=%20&c HTTP/1.0\r\nHost: h\r\n\r\nrest\r\n",
            "VERSION-CONTROL * HTTP/1.1\r\nhost:h\r\n\r\n",
            "POST /\x7e HTTP/1.1\r\nX:\r\nY: \t \r\nZ: \t a b\tc \t\r\n\r\n",
            "GET / HTTP/1.1\r\nX: \u{e9}\u{ff}~~~~~~~~\r\nSec-CH-UA: \"a\";v=\"1\", \"b\"\r\n\r\n",
            "GET / HTTP/1.1\r\n!#$%&'*+-.^_`|~09azAZ: a:b\r\n\r\n",
        ] {
            assert!(is_usual(usual.as_bytes()), "{usual:?}");
        }
    }

    #[test]
    fn httparse_is_asked_about_every_other_form() {
        for other in [
            "",
            "\r\nGET / HTTP/1.1\r\n\r\n",
            "GET  HTTP/1.1\r\n\r\n",
            " / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\n\n",
            "GET / HTTP/1.2\r\n\r\n",
            "GET /\u{e9} HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\n\n",
            "GET / HTTP/1.1\r\nHost : h\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: h\r\n folded\r\n\r\n",
            "GET / HTTP/1.1\r\n: h\r\n\r\n",
            "GET / HTTP/1.1\r\nno colon\r\n\r\n",
            "GET / HTTP/1.1\r\nX: a\rb\r\n\r\n",
            "GET / HTTP/1.1\r\nX: a\0\r\n\r\n",
            "GET / HTTP/1.1\r\nX: a\x7f\r\n\r\n",
        ] {
            assert!(!is_usual(other.as_bytes()), "{other:?}");
        }
        let whole = b"GET /a HTTP/1.1\r\nHost: h\r\nUser-Agent: some agent\r\n\r\n";
        for end in 0..whole.len() {
            assert!(!is_usual(&whole[..end]), "{end}");
        }
        assert!(is_usual(whole));
    }

    /// The bytes of a value are looked at as words, in which a carry may mark the byte behind 0xff.
    #[test]
    fn every_pair_of_bytes_in_a_value_is_read_as_httparse_reads_it() {
        for first in 0..=u8::MAX {
            for second in 0..=u8::MAX {
                let value = [
                    b'a', first, second, b'~', b'\t', first, b'~', second, b'b', first,
                ];
                let head = [b"GET / HTTP/1.1\r\nX: ".as_slice(), &value, b"\r\n\r\n"].concat();
                let is_usual = is_usual(&head);
                let is_allowed = |byte: u8| byte == b'\t' || (byte >= b' ' && byte != 0x7f);
                assert_eq!(
                    is_usual,
                    is_allowed(first) && is_allowed(second),
                    "{first} {second}"
                );
            }
        }
    }

    #[test]
    fn every_byte_at_every_place_is_read_as_httparse_reads_it() {
        let whole = b"GET /a/path/of/a/hundred/bytes/is/searched/in/chunks/of/thirty-two/bytes/behind/its/first\
            -thirty-two/bytes HTTP/1.1\r\nHost: h\r\nLonger-Name: value  value\r\n\r\n";
        for place in 0..whole.len() {
            let usual = (0..=u8::MAX).filter(|byte| {
                let mut changed = *whole;
                changed[place] = *byte;
                is_usual(&changed)
            });
            assert!(usual.count() > 0, "{place}");
        }
    }

    fn part() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            4 => "[ -~]{0,20}".prop_map(String::into_bytes),
            3 => Just(b"\r\n".to_vec()),
            2 => "(Host|Range|x-[a-z]{1,20}): ?[a-z0-9\t ]{0,30}\r\n".prop_map(String::into_bytes),
            1 => proptest::collection::vec(any::<u8>(), 0..4),
        ]
    }

    proptest! {
        #[test]
        fn any_head_is_read_as_httparse_reads_it(parts in proptest::collection::vec(part(), 0..8)) {
            let mut input = b"GET /some/path HTTP/1.1\r\n".to_vec();
            input.extend(parts.concat());
            input.extend_from_slice(b"\r\n\r\n");
            is_usual(&input);
        }
    }
}
