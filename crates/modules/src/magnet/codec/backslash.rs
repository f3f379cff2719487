//! Text with backslash escapes for bytes that cannot be printed.
//! [`escape::log`](petrel_engine::proto::escape::log) writes the other form.

/// The letters that follow the backslash for control characters.
const LETTERS: [(u8, u8); 7] = [
    (b'a', 0x07),
    (b'b', 0x08),
    (b't', b'\t'),
    (b'n', b'\n'),
    (b'v', 0x0b),
    (b'f', 0x0c),
    (b'r', b'\r'),
];

/// Encodes a JSON string (RFC 8259 section 7). Bytes beyond ASCII are kept, because JSON is UTF-8.
pub(crate) fn encode_json(text: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(text.len());
    for &byte in text {
        match byte {
            b'"' | b'\\' => encoded.extend_from_slice(&[b'\\', byte]),
            0x08 => encoded.extend_from_slice(b"\\b"),
            b'\t' => encoded.extend_from_slice(b"\\t"),
            b'\n' => encoded.extend_from_slice(b"\\n"),
            0x0c => encoded.extend_from_slice(b"\\f"),
            b'\r' => encoded.extend_from_slice(b"\\r"),
            0..b' ' => encoded.extend_from_slice(format!("\\u00{byte:02X}").as_bytes()),
            _ => encoded.push(byte),
        }
    }
    encoded
}

/// Decodes both forms. `\u00HH` is one byte; larger numbers and surrogate pairs become UTF-8. A backslash
/// before any other character is dropped.
pub(crate) fn decode(text: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' || after.is_empty() {
            decoded.push(byte);
            continue;
        }
        rest = decode_one(after, &mut decoded);
    }
    decoded
}

/// Decodes what follows a backslash. Returns the rest of the text.
fn decode_one<'t>(text: &'t [u8], decoded: &mut Vec<u8>) -> &'t [u8] {
    let Some((&first, after)) = text.split_first() else {
        return text;
    };
    if let Some((_, stands_for)) = LETTERS.iter().find(|(letter, _)| *letter == first) {
        decoded.push(*stands_for);
        return after;
    }
    match first {
        b'x' => {
            if let Some(value) = hex(after, 2) {
                decoded.extend(u8::try_from(value));
                return after.get(2..).unwrap_or_default();
            }
        }
        b'u' => {
            if let Some(length) = decode_unicode(after, decoded) {
                return after.get(length..).unwrap_or_default();
            }
        }
        b'0'..=b'3' => {
            if let Some([a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7']) = text.get(..3) {
                decoded.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                return text.get(3..).unwrap_or_default();
            }
            if first == b'0' {
                decoded.push(0);
                return after;
            }
        }
        _ => {}
    }
    decoded.push(first);
    after
}

/// Decodes the digits after `\u`. Returns their length.
fn decode_unicode(text: &[u8], decoded: &mut Vec<u8>) -> Option<usize> {
    let high = hex(text, 4)?;
    if let Ok(byte) = u8::try_from(high) {
        decoded.push(byte);
        return Some(4);
    }
    let mut buffer = [0; 4];
    if let Some(character) = char::from_u32(high) {
        decoded.extend_from_slice(character.encode_utf8(&mut buffer).as_bytes());
        return Some(4);
    }
    let low = text.get(4..).and_then(|rest| rest.strip_prefix(b"\\u"));
    let low = hex(low?, 4).filter(|low| (0xdc00..0xe000).contains(low) && high < 0xdc00)?;
    let character = char::from_u32(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00))?;
    decoded.extend_from_slice(character.encode_utf8(&mut buffer).as_bytes());
    Some(10)
}

fn hex(text: &[u8], digits: usize) -> Option<u32> {
    let digits = std::str::from_utf8(text.get(..digits)?).ok()?;
    let are_digits = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    are_digits.then(|| u32::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_encoded_as_lighttpd_does() {
        assert_eq!(
            encode_json(b"a\"\\\n\x07\x00\xc3\xa4"),
            b"a\\\"\\\\\\n\\u0007\\u0000\xc3\xa4"
        );
    }

    #[test]
    fn text_is_decoded_as_lighttpd_does() {
        for (encoded, expected) in [
            (r"a\nb", &b"a\nb"[..]),
            (r"\x41\101", b"AA"),
            (r"\u00e4", b"\xe4"),
            (r#"\""#, b"\""),
            ("a\\", b"a\\"),
            (r"\z\/\e", b"z/e"),
            (r"\0", b"\0"),
            (r"\x4", b"x4"),
            (r"\u20ac\ud83d\ude00", "\u{20ac}\u{1f600}".as_bytes()),
            (r"\ud83d", b"ud83d"),
            (r"\ude00\ude00", b"ude00ude00"),
        ] {
            assert_eq!(decode(encoded.as_bytes()), expected, "{encoded}");
        }
    }

    #[test]
    fn what_is_encoded_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        let mut encoded = Vec::new();
        petrel_engine::proto::escape::log(&mut encoded, &all);
        assert_eq!(decode(&encoded), all);
        assert_eq!(decode(&encode_json(&all)), all);
    }
}
