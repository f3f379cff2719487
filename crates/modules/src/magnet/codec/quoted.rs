//! Quoted strings of header fields (RFC 9110 5.6.4).

/// Puts `text` in quotation marks, with a backslash before quotation marks and backslashes in it. An empty
/// text stays empty.
pub(crate) fn encode(text: &[u8]) -> Vec<u8> {
    if text.is_empty() {
        return Vec::new();
    }
    let mut encoded = Vec::with_capacity(text.len() + 2);
    encoded.push(b'"');
    for &byte in text {
        if matches!(byte, b'"' | b'\\') {
            encoded.push(b'\\');
        }
        encoded.push(byte);
    }
    encoded.push(b'"');
    encoded
}

/// Decodes a quoted string. Text that does not begin with a quotation mark is returned unchanged. `None`: the
/// closing mark is missing, or something follows it.
pub(crate) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let Some(inner) = text.strip_prefix(b"\"") else {
        return Some(text.to_vec());
    };
    let mut decoded = Vec::with_capacity(inner.len());
    let mut bytes = inner.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'\\' => decoded.push(*bytes.next()?),
            b'"' => return bytes.as_slice().is_empty().then_some(decoded),
            _ => decoded.push(byte),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_strings_are_read_and_written() {
        assert_eq!(encode(br#"a"b\"#), br#""a\"b\\""#);
        assert_eq!(encode(b""), b"");
        for (text, expected) in [
            (r#""abc""#, Some("abc")),
            ("abc", Some("abc")),
            (r#""a\"b""#, Some("a\"b")),
            (r#""a\nb""#, Some("anb")),
            ("", Some("")),
            (r#""""#, Some("")),
            (r#""abc"#, None),
            (r#""a\"#, None),
            (r#""a"b"#, None),
        ] {
            assert_eq!(
                decode(text.as_bytes()).as_deref(),
                expected.map(str::as_bytes),
                "{text}"
            );
        }
    }
}
