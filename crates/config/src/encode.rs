//! The encodings of substitutions: percent-encoding in three kinds, base64url, and letter case.

use base64::engine::general_purpose::{self, GeneralPurpose};
use base64::{Engine, alphabet};
use percent_encoding::percent_encode_byte;

/// How a substituted value is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// As it is.
    None,
    /// Everything but unreserved characters (RFC 3986, section 2.3) is percent-encoded.
    All,
    /// Like `All`, but leaves existing percent-encoding as it is.
    NotTwice,
    /// Like `NotTwice`, and leaves slashes as they are.
    NotTwiceKeepSlashes,
    /// base64url without padding (RFC 4648, section 5).
    ToBase64Url,
    /// Decodes base64url; empty if the value is not base64url.
    FromBase64Url,
}

/// How letters are changed after the encoding.
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
        Encoding::ToBase64Url => out.extend_from_slice(BASE64URL.encode(value).as_bytes()),
        Encoding::FromBase64Url => from_base64url(value, out),
    }
    let written = out.get_mut(start..).unwrap_or(&mut []);
    match letters {
        Letters::AsTheyAre => {}
        Letters::Lower => change_letters(written, <[u8]>::make_ascii_lowercase),
        Letters::Upper => change_letters(written, <[u8]>::make_ascii_uppercase),
    }
}

/// Changes the letters of `text`, except for the digits of percent-encoded bytes.
fn change_letters(mut text: &mut [u8], change: fn(&mut [u8])) {
    while !text.is_empty() {
        let (is_kept, length) = match is_encoded(text) {
            true => (true, 3),
            false => (
                false,
                memchr::memchr(b'%', &text[1..]).map_or(text.len(), |at| at + 1),
            ),
        };
        let (piece, rest) = text.split_at_mut(length);
        if !is_kept {
            change(piece);
        }
        text = rest;
    }
}

/// Percent-encodes the bytes for which `encode` returns true. It gets the value from that byte on, and the
/// byte.
fn percent(value: &[u8], out: &mut Vec<u8>, encode: impl Fn(&[u8], u8) -> bool) {
    for (at, &byte) in value.iter().enumerate() {
        if encode(value.get(at..).unwrap_or(b""), byte) {
            out.extend_from_slice(percent_encode_byte(byte).as_bytes());
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

fn from_base64url(value: &[u8], out: &mut Vec<u8>) {
    let digits = value.iter().rposition(|&byte| byte != b'=');
    let digits = value.get(..digits.map_or(0, |last| last + 1));
    let decoded = BASE64URL.decode(digits.unwrap_or_default());
    out.extend_from_slice(&decoded.unwrap_or_default());
}

/// Unused bits at the end may have any value.
const BASE64URL: GeneralPurpose = GeneralPurpose::new(
    &alphabet::URL_SAFE,
    general_purpose::NO_PAD.with_decode_allow_trailing_bits(true),
);

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
        let with_bits_behind_the_end = encoded(b"Zh", Encoding::FromBase64Url);
        assert_eq!(with_bits_behind_the_end, b"f");
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
