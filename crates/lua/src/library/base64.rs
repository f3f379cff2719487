//! Base64 (RFC 4648): both alphabets, with and without padding.

use base64::Engine;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use mlua::{Lua, LuaString, Result, Table};

/// The alphabet, whose variants differ in the last two digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alphabet {
    /// `+` and `/` (RFC 4648 §4).
    Standard,
    /// `-` and `_` (RFC 4648 §5), safe in URLs and file names.
    Url,
}

/// Whether `=` fills up the last group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// With `=`.
    Filled,
    /// Without `=`.
    Left,
}

/// `bytes` as base64.
#[must_use]
pub fn encode(bytes: &[u8], alphabet: Alphabet, padding: Padding) -> String {
    engine(alphabet, padding).encode(bytes)
}

/// Decodes `text`, with or without padding. `None` if it is not base64 in that alphabet: blanks and other
/// bytes are not skipped, and unused bits at the end must be zero.
#[must_use]
pub fn decode(text: &[u8], alphabet: Alphabet) -> Option<Vec<u8>> {
    engine(alphabet, Padding::Filled).decode(text).ok()
}

/// Decodes text without padding; unused bits at the end may have any value.
#[must_use]
pub fn decode_any_end(text: &[u8], alphabet: Alphabet) -> Option<Vec<u8>> {
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true);
    let engine = GeneralPurpose::new(digits(alphabet), config);
    engine.decode(text).ok()
}

/// The library as a table. `encode(s)` and `decode(s)` use the standard alphabet with padding;
/// `encode_url(s)` and `decode_url(s)` use the one for URLs without padding. Both decoders accept text with
/// and without padding, and return `nil` and a message for what is not base64.
///
/// # Errors
/// Memory has run out, or the libraries of the state are not open.
pub fn table(lua: &Lua) -> Result<Table> {
    let library = lua.create_table()?;
    for (alphabet, padding, encode_name, decode_name) in [
        (Alphabet::Standard, Padding::Filled, "encode", "decode"),
        (Alphabet::Url, Padding::Left, "encode_url", "decode_url"),
    ] {
        let encoder =
            move |_: &Lua, text: LuaString| Ok(encode(&text.as_bytes(), alphabet, padding));
        library.set(encode_name, lua.create_function(encoder)?)?;
        let decoder = move |lua: &Lua, text: LuaString| decoded(lua, &text, alphabet);
        library.set(decode_name, lua.create_function(decoder)?)?;
    }
    super::plain_errors(lua, library)
}

type Answer = (Option<LuaString>, Option<&'static str>);

fn decoded(lua: &Lua, text: &LuaString, alphabet: Alphabet) -> Result<Answer> {
    match decode(&text.as_bytes(), alphabet) {
        Some(bytes) => Ok((Some(lua.create_string(bytes)?), None)),
        None => Ok((None, Some("not base64"))),
    }
}

fn engine(alphabet: Alphabet, padding: Padding) -> GeneralPurpose {
    let config = GeneralPurposeConfig::new()
        .with_encode_padding(padding == Padding::Filled)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent);
    GeneralPurpose::new(digits(alphabet), config)
}

fn digits(alphabet: Alphabet) -> &'static alphabet::Alphabet {
    match alphabet {
        Alphabet::Standard => &alphabet::STANDARD,
        Alphabet::Url => &alphabet::URL_SAFE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_rfc_4648() {
        for (plain, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            let encoded = encode(plain.as_bytes(), Alphabet::Standard, Padding::Filled);
            assert_eq!(encoded, text);
            let bare = text.trim_end_matches('=');
            for text in [text, bare] {
                let decoded = decode(text.as_bytes(), Alphabet::Standard);
                assert_eq!(decoded.as_deref(), Some(plain.as_bytes()));
            }
        }
    }

    #[test]
    fn alphabets_are_not_mixed() {
        let bytes = [0xFB, 0xFF];
        assert_eq!(encode(&bytes, Alphabet::Standard, Padding::Filled), "+/8=");
        assert_eq!(encode(&bytes, Alphabet::Url, Padding::Left), "-_8");
        assert_eq!(decode(b"-_8", Alphabet::Standard), None);
        assert_eq!(decode(b"+/8=", Alphabet::Url), None);
    }

    #[test]
    fn what_is_no_base64_is_refused() {
        for text in ["Z", "Zg===", "Zh==", "Zm 9v", "Zm9v\n", "Z\0==", "===="] {
            assert_eq!(decode(text.as_bytes(), Alphabet::Standard), None, "{text}");
        }
    }
}
