//! The encodings of substitutions: percent-encoding in three kinds, base64url, and letter case.

/// How a substituted value is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// As it is.
    None,
    /// Everything but unreserved characters (RFC 3986, section 2.3) is percent-encoded.
    All,
    /// The same, but what is percent-encoded already stays: not encoded twice.
    NotTwice,
    /// The same, and slashes stay too.
    NotTwiceKeepSlashes,
    /// base64url without padding (RFC 4648, section 5).
    ToBase64Url,
    /// The bytes that base64url text stands for; nothing when it is no such text.
    FromBase64Url,
}

/// What becomes of letters behind the encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Letters {
    AsTheyAre,
    Lower,
    Upper,
}

/// Appends `value` to `out`, encoded.
pub(crate) fn append(value: &[u8], encoding: Encoding, letters: Letters, out: &mut Vec<u8>) {
    let start = out.len();
    match encoding {
        Encoding::None => out.extend_from_slice(value),
        Encoding::All => percent(value, out, |_, byte| !is_unreserved(byte)),
        Encoding::NotTwice => percent(value, out, |rest, byte| {
            !is_unreserved(byte) && !is_encoded(rest)
        }),
        Encoding::NotTwiceKeepSlashes => percent(value, out, |rest, byte| {
            !is_unreserved(byte) && byte != b'/' && !is_encoded(rest)
        }),
        Encoding::ToBase64Url => to_base64url(value, out),
        Encoding::FromBase64Url => from_base64url(value, out),
    }
    let written = out.get_mut(start..).unwrap_or(&mut []);
    match letters {
        Letters::AsTheyAre => {}
        Letters::Lower => written.make_ascii_lowercase(),
        Letters::Upper => written.make_ascii_uppercase(),
    }
}

/// Percent-encodes the bytes for which `encode` says so; it sees the value from that byte on.
fn percent(value: &[u8], out: &mut Vec<u8>, encode: impl Fn(&[u8], u8) -> bool) {
    for (at, &byte) in value.iter().enumerate() {
        if encode(value.get(at..).unwrap_or(b""), byte) {
            out.extend_from_slice(&[b'%', hex_digit(byte >> 4), hex_digit(byte & 15)]);
        } else {
            out.push(byte);
        }
    }
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

fn is_encoded(rest: &[u8]) -> bool {
    matches!(rest, [b'%', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit())
}

fn hex_digit(nibble: u8) -> u8 {
    if nibble < 10 {
        b'0' + nibble
    } else {
        b'A' + nibble - 10
    }
}

fn to_base64url(value: &[u8], out: &mut Vec<u8>) {
    for chunk in value.chunks(3) {
        let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..=chunk.len() as u32 {
            out.push(base64url_digit((bits >> (18 - 6 * digit) & 63) as u8));
        }
    }
}

fn base64url_digit(value: u8) -> u8 {
    match value {
        0..=25 => b'A' + value,
        26..=51 => b'a' + value - 26,
        52..=61 => b'0' + value - 52,
        62 => b'-',
        _ => b'_',
    }
}

fn from_base64url(value: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    let digits = value
        .iter()
        .rposition(|&byte| byte != b'=')
        .map_or(0, |last| last + 1);
    for chunk in value.get(..digits).unwrap_or(b"").chunks(4) {
        let mut bits = 0_u32;
        for at in 0..4 {
            let digit = chunk.get(at).map_or(Some(0), |&byte| base64url_value(byte));
            match digit {
                Some(digit) => bits = bits << 6 | digit,
                None => return out.truncate(start),
            }
        }
        if chunk.len() == 1 {
            return out.truncate(start);
        }
        let [_, bytes @ ..] = bits.to_be_bytes();
        out.extend_from_slice(bytes.get(..chunk.len() - 1).unwrap_or(b""));
    }
}

fn base64url_value(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'-' => 62,
        b'_' => 63,
        _ => return None,
    };
    Some(value.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(value: &[u8], encoding: Encoding) -> Vec<u8> {
        let mut out = b"x".to_vec();
        append(value, encoding, Letters::AsTheyAre, &mut out);
        out.split_off(1)
    }

    #[test]
    fn a_percent_sign_alone_is_encoded_even_when_not_twice() {
        assert_eq!(encoded(b"100%/%4", Encoding::NotTwice), b"100%25%2F%254");
        assert_eq!(
            encoded(b"%2f%zz", Encoding::NotTwiceKeepSlashes),
            b"%2f%25zz"
        );
        assert_eq!(encoded(b"\xff\n", Encoding::All), b"%FF%0A");
    }

    #[test]
    fn base64url_has_the_examples_of_the_rfc() {
        for (plain, text) in [
            ("", ""),
            ("f", "Zg"),
            ("fo", "Zm8"),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg"),
            ("fooba", "Zm9vYmE"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(
                encoded(plain.as_bytes(), Encoding::ToBase64Url),
                text.as_bytes()
            );
            assert_eq!(
                encoded(text.as_bytes(), Encoding::FromBase64Url),
                plain.as_bytes()
            );
        }
        assert_eq!(encoded(b"\xfb\xff", Encoding::ToBase64Url), b"-_8");
        assert_eq!(encoded(b"Zg==", Encoding::FromBase64Url), b"f");
        assert_eq!(encoded(b"Zm9vZ", Encoding::FromBase64Url), b"");
        assert_eq!(encoded(b"Zm9v+/", Encoding::FromBase64Url), b"");
    }

    proptest! {
        #[test]
        fn base64url_comes_back(value in proptest::collection::vec(any::<u8>(), 0..40)) {
            let text = encoded(&value, Encoding::ToBase64Url);
            prop_assert_eq!(encoded(&text, Encoding::FromBase64Url), value);
        }
    }
}
