//! Base64 as lighttpd reads it: white space is passed over, padding is the end and may be missing, bits
//! behind the end do not matter.

use petrel_lua::library::base64::Alphabet;

/// What `text` stands for; nothing if there is anything else in it.
pub fn decode(text: &[u8], alphabet: Alphabet) -> Option<Vec<u8>> {
    let digits = text.split(|byte| *byte == b'=').next()?;
    if digits.is_empty() && !text.is_empty() {
        return None;
    }
    let mut decoded = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    let (mut bits, mut count) = (0_u32, 0);
    for byte in digits.iter().filter(|byte| !byte.is_ascii_whitespace()) {
        bits = bits << 6 | u32::from(value(*byte, alphabet)?);
        count += 6;
        if count >= 8 {
            count -= 8;
            decoded.extend(u8::try_from(bits >> count & 0xff));
        }
    }
    // One digit is not enough for a byte.
    (count != 6).then_some(decoded)
}

fn value(byte: u8, alphabet: Alphabet) -> Option<u8> {
    let value = match (byte, alphabet) {
        (b'A'..=b'Z', _) => byte - b'A',
        (b'a'..=b'z', _) => byte - b'a' + 26,
        (b'0'..=b'9', _) => byte - b'0' + 52,
        (b'+', Alphabet::Standard) | (b'-', Alphabet::Url) => 62,
        (b'/', Alphabet::Standard) | (b'_', Alphabet::Url) => 63,
        _ => return None,
    };
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_and_white_space_do_not_matter() {
        for (text, expected) in [
            ("YWJj", Some("abc")),
            ("YWI=", Some("ab")),
            ("YWI", Some("ab")),
            ("YQ==", Some("a")),
            ("YQ=", Some("a")),
            ("Y Q ==", Some("a")),
            ("YWJj=", Some("abc")),
            ("YQ==x", Some("a")),
            ("YR", Some("a")),
            ("\tY\nQ", Some("a")),
            ("Y", None),
            ("YWJjZ", None),
            ("", Some("")),
            ("Y!Q=", None),
            ("====", None),
            ("-_-_", None),
        ] {
            let decoded = decode(text.as_bytes(), Alphabet::Standard);
            assert_eq!(decoded.as_deref(), expected.map(str::as_bytes), "{text}");
        }
        let decoded = decode(b"-_-_", Alphabet::Url);
        assert_eq!(decoded.as_deref(), Some(&b"\xfb\xff\xbf"[..]));
    }
}
