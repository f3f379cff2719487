//! Base64 as lighttpd reads it: white space is skipped, padding ends the text and may be missing, and surplus
//! bits at the end are ignored.

use petrel_lua::library::base64::{Alphabet, decode_any_end};

/// Decodes `text`. `None`: it contains something else.
pub(crate) fn decode(text: &[u8], alphabet: Alphabet) -> Option<Vec<u8>> {
    let digits = text.split(|byte| *byte == b'=').next()?;
    if digits.is_empty() && !text.is_empty() {
        return None;
    }
    let digits = digits.iter().filter(|byte| !byte.is_ascii_whitespace());
    decode_any_end(&digits.copied().collect::<Vec<_>>(), alphabet)
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
