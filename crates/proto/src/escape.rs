//! Escapes text for HTML, JSON, URLs and logs, and decodes percent-encoded text and forms.
//!
//! All functions that escape append to a buffer of the caller. They take bytes, because file names and header
//! values need not be UTF-8.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

/// Appends `text` escaped for HTML text or a quoted attribute value. Bytes outside ASCII pass unchanged.
pub fn html(out: &mut Vec<u8>, text: &[u8]) {
    for &byte in text {
        match byte {
            b'&' => out.extend_from_slice(b"&amp;"),
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            b'"' => out.extend_from_slice(b"&quot;"),
            b'\'' => out.extend_from_slice(b"&#39;"),
            _ => out.push(byte),
        }
    }
}

/// Appends `text` escaped for the inside of a JSON string (RFC 8259 7). Invalid UTF-8 becomes U+FFFD, since
/// JSON cannot represent it.
pub fn json(out: &mut Vec<u8>, text: &[u8]) {
    if let Ok(text) = std::str::from_utf8(text) {
        return json_text(out, text);
    }
    for chunk in text.utf8_chunks() {
        json_text(out, chunk.valid());
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
}

fn json_text(out: &mut Vec<u8>, text: &str) {
    let mut rest = text.as_bytes();
    let is_escaped = |byte: &u8| matches!(byte, 0..0x20 | b'"' | b'\\' | 0x7f);
    while let Some(at) = rest.iter().position(is_escaped) {
        let (plain, from_escaped) = rest.split_at(at);
        out.extend_from_slice(plain);
        json_byte(out, from_escaped[0]);
        rest = &from_escaped[1..];
    }
    out.extend_from_slice(rest);
}

/// Appends `path` escaped for the path of a URL: all but unreserved characters, `/` and the harmless
/// delimiters `!$()*+,;=@` becomes `%XX`. So `?`, `#` and `%` in file names do not change the meaning of the
/// URL, `:` in a relative URL does not make a scheme, and nothing is left for HTML to escape.
pub fn percent_encode_path(out: &mut Vec<u8>, path: &[u8]) {
    for part in percent_encode(path, NO_PATH) {
        out.extend_from_slice(part.as_bytes());
    }
}

/// As [`percent_encode_path`], but every delimiter except `/` becomes `%XX`: for a path in a header field.
pub fn percent_encode_all(out: &mut Vec<u8>, path: &[u8]) {
    for part in percent_encode(path, RESERVED) {
        out.extend_from_slice(part.as_bytes());
    }
}

/// Decodes `%XX`; a percent sign without two hexadecimal digits stands for itself.
pub fn percent_decode(text: &[u8]) -> Cow<'_, [u8]> {
    percent_encoding::percent_decode(text).into()
}

/// Decodes a name or value of a form (`application/x-www-form-urlencoded`), where `+` is a space.
pub fn form_decode(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.contains(&b'+') {
        return percent_decode(text);
    }
    let spaced = text.iter().map(|byte| match byte {
        b'+' => b' ',
        byte => *byte,
    });
    let spaced: Vec<u8> = spaced.collect();
    Cow::Owned(percent_decode(&spaced).into_owned())
}

/// The characters that are encoded in the path of a URL.
const NO_PATH: &AsciiSet = &RESERVED
    .remove(b'!')
    .remove(b'$')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b'@');

/// All but unreserved characters (RFC 3986 2.3) and the slash.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

/// Appends `text` escaped for a field of a log, as lighttpd does: `"` and `\` get a backslash, control
/// characters with a letter in C are written with it, and all other bytes that are not printable ASCII become
/// `\xHH`. So a log line stays one line, and a terminal that shows it receives no control sequences.
pub fn log(out: &mut Vec<u8>, text: &[u8]) {
    for &byte in text {
        let letter = match byte {
            b'"' | b'\\' => byte,
            0x07 => b'a',
            0x08 => b'b',
            b'\t' => b't',
            b'\n' => b'n',
            0x0b => b'v',
            0x0c => b'f',
            b'\r' => b'r',
            b' '..=b'~' => {
                out.push(byte);
                continue;
            }
            _ => {
                out.extend_from_slice(b"\\x");
                out.extend_from_slice(&upper_hex(byte));
                continue;
            }
        };
        out.extend_from_slice(&[b'\\', letter]);
    }
}

fn json_byte(out: &mut Vec<u8>, byte: u8) {
    match byte {
        b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
        b'\n' => out.extend_from_slice(b"\\n"),
        b'\r' => out.extend_from_slice(b"\\r"),
        b'\t' => out.extend_from_slice(b"\\t"),
        0..=0x1f | 0x7f => {
            out.extend_from_slice(b"\\u00");
            out.extend_from_slice(&upper_hex(byte));
        }
        _ => out.push(byte),
    }
}

fn upper_hex(byte: u8) -> [u8; 2] {
    let digit = |value: u8| b"0123456789ABCDEF"[usize::from(value & 15)];
    [digit(byte >> 4), digit(byte)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn escaped(escape: fn(&mut Vec<u8>, &[u8]), text: &[u8]) -> String {
        let mut out = Vec::new();
        escape(&mut out, text);
        String::from_utf8(out).expect("these escapes are UTF-8")
    }

    #[test]
    fn html_has_no_markup_left() {
        assert_eq!(
            escaped(html, "<a b=\"c\">'&'ä".as_bytes()),
            "&lt;a b=&quot;c&quot;&gt;&#39;&amp;&#39;ä"
        );
    }

    #[test]
    fn json_strings_are_sound() {
        assert_eq!(
            escaped(json, b"\"\\\n\r\t\x00\x1b\x7f"),
            "\\\"\\\\\\n\\r\\t\\u0000\\u001B\\u007F"
        );
        assert_eq!(escaped(json, b"\xc3\xa4\xff\xc3b"), "ä\u{fffd}\u{fffd}b");
    }

    #[test]
    fn paths_mean_the_same_in_a_url() {
        let path = "/a b?c#d%e:f&'\"<ä-._~!$()*+,;=@";
        let expected = "/a%20b%3Fc%23d%25e%3Af%26%27%22%3C%C3%A4-._~!$()*+,;=@";
        assert_eq!(escaped(percent_encode_path, path.as_bytes()), expected);
    }

    #[test]
    fn log_fields_are_as_lighttpd_writes_them() {
        let text = b"\"\\\x01\x07\x08\t\x0b\x0c\x1b\x7f\x80\xc3\xa4~ a'<\r\n";
        let expected = "\\\"\\\\\\x01\\a\\b\\t\\v\\f\\x1B\\x7F\\x80\\xC3\\xA4~ a'<\\r\\n";
        assert_eq!(escaped(log, text), expected);
    }

    proptest! {
        #[test]
        fn an_encoded_path_is_decoded_to_itself(name in "[^\\x00-\\x1f\\x7f/]{1,20}") {
            prop_assume!(name != "." && name != "..");
            let path = format!("/{name}");
            let mut url = crate::url::Url::new();
            let target = escaped(percent_encode_path, path.as_bytes());
            let method = crate::method::Method::Get;
            prop_assert_eq!(url.parse(target.as_bytes(), method, &Default::default()), Ok(()));
            prop_assert_eq!(url.path(), path.as_bytes());
        }
    }

    #[test]
    fn percent_encoding_that_is_none_stays() {
        for (text, expected) in [
            ("a%20b+c", "a b c"),
            ("%", "%"),
            ("%4", "%4"),
            ("%zz%41", "%zzA"),
            ("", ""),
        ] {
            assert_eq!(
                &*form_decode(text.as_bytes()),
                expected.as_bytes(),
                "{text}"
            );
        }
    }
}
