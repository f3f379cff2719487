//! Encodes text for XML and HTML, in content and in attributes.

/// Encodes control characters, quotation marks, `&`, `<`, `>`, and the grave accent, which old browsers took
/// for a quotation mark.
pub(crate) fn encode(text: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(text.len());
    for &byte in text {
        match byte {
            0..=0x1f | 0x7f | b'"' | b'&' | b'\'' | b'<' | b'>' | b'`' => {
                encoded.extend_from_slice(format!("&#x{byte:02X};").as_bytes());
            }
            _ => encoded.push(byte),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_something_in_xml_is_encoded() {
        let encoded = encode(b"<a href='x'>&\"`\n\x7f</a>\xc3\xa4");
        let expected =
            "&#x3C;a href=&#x27;x&#x27;&#x3E;&#x26;&#x22;&#x60;&#x0A;&#x7F;&#x3C;/a&#x3E;\u{e4}";
        assert_eq!(encoded, expected.as_bytes());
    }
}
