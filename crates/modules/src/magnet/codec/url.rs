//! URLs, their queries and their paths.

use percent_encoding::percent_encode_byte;

/// Decodes percent encoding. Control characters become `_`, so that a client cannot cut or split a text by
/// encoding them. A `%` without two digits is kept.
pub(crate) fn decode(text: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match encoded_byte(byte, after) {
            Some(value) => {
                decoded.push(if value.is_ascii_control() {
                    b'_'
                } else {
                    value
                });
                rest = after.get(2..).unwrap_or_default();
            }
            None => decoded.push(byte),
        }
    }
    decoded
}

/// The byte encoded by `%` and the two digits in `after`.
fn encoded_byte(byte: u8, after: &[u8]) -> Option<u8> {
    if byte != b'%' {
        return None;
    }
    let digit = |at: usize| char::from(*after.get(at)?).to_digit(16);
    u8::try_from(digit(0)? << 4 | digit(1)?).ok()
}

/// Encodes every byte that may have a meaning in a URL, except the slash.
pub(crate) fn encode(text: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(text.len());
    for &byte in text {
        match byte {
            b'/' => encoded.push(byte),
            _ => encode_byte(byte, &mut encoded),
        }
    }
    encoded
}

fn encode_byte(byte: u8, encoded: &mut Vec<u8>) {
    match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' => encoded.push(byte),
        b'-' | b'.' | b'_' | b'~' | b'!' | b'(' | b')' | b'*' => encoded.push(byte),
        _ => percent(byte, encoded),
    }
}

fn percent(byte: u8, encoded: &mut Vec<u8>) {
    encoded.extend_from_slice(percent_encode_byte(byte).as_bytes());
}

/// Names and values of a query, in order. A name without `=` has an empty value.
pub(crate) fn decode_query(query: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut parameters = Vec::new();
    for part in query.split(|byte| *byte == b'&') {
        if part.is_empty() {
            continue;
        }
        let (name, value) = match memchr::memchr(b'=', part) {
            Some(at) => part.split_at(at),
            None => (part, &b""[..]),
        };
        let value = value.strip_prefix(b"=").unwrap_or_default();
        let decoded = |text: &[u8]| {
            let plus = |byte: &u8| if *byte == b'+' { b' ' } else { *byte };
            decode(&text.iter().map(plus).collect::<Vec<_>>())
        };
        parameters.push((decoded(name), decoded(value)));
    }
    parameters
}

/// Adds one parameter to `query`.
pub(crate) fn encode_parameter(name: &[u8], value: &[u8], query: &mut Vec<u8>) {
    if !query.is_empty() {
        query.push(b'&');
    }
    for (number, part) in [name, value].into_iter().enumerate() {
        if number > 0 {
            query.push(b'=');
        }
        for &byte in part {
            match byte {
                b' ' => query.push(b'+'),
                b'=' if number > 0 => query.push(byte),
                b'&' | b'+' | b';' | b'=' | b'#' | b'\'' | b'%' => percent(byte, query),
                _ if may_stand(byte) => query.push(byte),
                _ => percent(byte, query),
            }
        }
    }
}

/// Normalizes path and query: bytes are encoded only where that is necessary, with digits in upper case; the
/// path is simplified and a fragment dropped.
pub(crate) fn normalize(target: &[u8]) -> Vec<u8> {
    let target = target
        .split(|byte| *byte == b'#')
        .next()
        .unwrap_or_default();
    let path_length = memchr::memchr(b'?', target).unwrap_or(target.len());
    let (path, query) = target.split_at(path_length);
    // Decoded, a question mark or number sign would end the path.
    let path = recode(path, b"?#%", b"%20");
    let mut normal = match memchr::memchr(b'/', &path) {
        Some(_) if has_detours(&path) => simplify_path(&path),
        None if matches!(&*path, b"." | b"..") => Vec::new(),
        _ => path,
    };
    // These stay encoded if they were, because they are part of a name or a value.
    normal.extend_from_slice(&recode(query, b"&+;=#%", b"+"));
    normal
}

/// Whether the path has segments that [`simplify_path`] would remove.
fn has_detours(path: &[u8]) -> bool {
    let inner = path.strip_prefix(b"/").unwrap_or(path);
    let inner = inner.strip_suffix(b"/").unwrap_or(inner);
    let mut segments = inner.split(|byte| *byte == b'/');
    !inner.is_empty() && segments.any(|segment| matches!(segment, b"" | b"." | b".."))
        || path == b"//"
}

/// Whether `byte` is allowed unencoded in a path or query (RFC 3986, sections 3.3 and 3.4).
fn may_stand(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!$&'()*+,-./:;=?@_~#".contains(&byte)
}

/// Decodes bytes that are allowed unencoded, except those in `kept`, and encodes bytes that are not allowed.
fn recode(text: &[u8], kept: &[u8], space: &[u8]) -> Vec<u8> {
    let mut recoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let value = encoded_byte(byte, after);
        if value.is_some() {
            rest = after.get(2..).unwrap_or_default();
        }
        match value {
            Some(b' ') => recoded.extend_from_slice(space),
            None if byte == b' ' => recoded.extend_from_slice(space),
            Some(value) if may_stand(value) && !kept.contains(&value) => recoded.push(value),
            Some(value) => percent(value, &mut recoded),
            None if may_stand(byte) => recoded.push(byte),
            None => percent(byte, &mut recoded),
        }
    }
    recoded
}

/// Removes `.`, `..` and empty segments from a path. The result begins with a slash, unless the path contains
/// none.
pub(crate) fn simplify_path(path: &[u8]) -> Vec<u8> {
    match memchr::memchr(b'/', path) {
        Some(_) => {}
        None if matches!(path, b"." | b"..") => return Vec::new(),
        None => return path.to_vec(),
    }
    let mut segments: Vec<&[u8]> = Vec::new();
    let mut parts = path.split(|byte| *byte == b'/').peekable();
    while let Some(part) = parts.next() {
        let is_last = parts.peek().is_none();
        match part {
            b"" | b"." => {}
            b".." => {
                segments.pop();
            }
            _ => {
                segments.push(part);
                if is_last {
                    return joined(&segments, b"");
                }
            }
        }
    }
    joined(&segments, b"/")
}

fn joined(segments: &[&[u8]], end: &[u8]) -> Vec<u8> {
    let mut path = Vec::new();
    for segment in segments {
        path.push(b'/');
        path.extend_from_slice(segment);
    }
    path.extend_from_slice(end);
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8_lossy(&bytes).into_owned()
    }

    #[test]
    fn text_is_decoded_as_lighttpd_does() {
        for (encoded, expected) in [
            ("a%20b+c", "a b+c"),
            ("%41%zz%4", "A%zz%4"),
            ("%00x%0a%7f", "_x__"),
            ("a%2fb%25", "a/b%"),
            ("%C3%A4", "\u{e4}"),
        ] {
            assert_eq!(text(decode(encoded.as_bytes())), expected, "{encoded}");
        }
    }

    #[test]
    fn text_is_encoded_as_lighttpd_does() {
        let printable: Vec<u8> = (b' '..0x7f).collect();
        assert_eq!(
            text(encode(&printable)),
            "%20!%22%23%24%25%26%27()*%2B%2C-./0123456789%3A%3B%3C%3D%3E%3F%40ABCDEFGHIJKLMNOPQRSTUVWXYZ\
             %5B%5C%5D%5E_%60abcdefghijklmnopqrstuvwxyz%7B%7C%7D~"
        );
        assert_eq!(text(encode(b"\x00\xff")), "%00%FF");
    }

    #[test]
    fn paths_are_simplified_as_lighttpd_does() {
        for (path, expected) in [
            ("/a/../b", "/b"),
            ("a/../b", "/b"),
            ("../a", "/a"),
            ("/../a", "/a"),
            ("/a//b/./c/", "/a/b/c/"),
            ("/a/..", "/"),
            ("/a/.", "/a/"),
            ("", ""),
            ("/", "/"),
            ("a\\b", "a\\b"),
            ("/a/b/../../../c", "/c"),
            ("./a", "/a"),
            ("/...", "/..."),
            ("/..a/", "/..a/"),
            ("..", ""),
            (".", ""),
            ("x/..", "/"),
        ] {
            assert_eq!(text(simplify_path(path.as_bytes())), expected, "{path}");
        }
    }

    #[test]
    fn urls_are_normalized_as_lighttpd_does() {
        for (url, expected) in [
            ("/a/../b", "/b"),
            ("/a b?c d", "/a%20b?c+d"),
            ("/%41%2f?%41&b", "/A/?A&b"),
            ("a", "a"),
            ("a/b", "a/b"),
            ("..", ""),
            ("/x//y/./z", "/x/y/z"),
            ("/%", "/%25"),
            ("/a%00", "/a%00"),
            ("/a?b#c", "/a?b"),
            ("%2e%2e/", "/"),
            ("/a\\b", "/a%5Cb"),
            ("/%C3%A4/\u{e4}", "/%C3%A4/%C3%A4"),
            ("/a%3fb", "/a%3Fb"),
            ("?a", "?a"),
            ("#x", ""),
            ("/?a=%26%3d%2b%25%20+", "/?a=%26%3D%2B%25++"),
        ] {
            assert_eq!(text(normalize(url.as_bytes())), expected, "{url}");
        }
        let printable: Vec<u8> = (b'!'..0x7f).filter(|byte| !b"#?%".contains(byte)).collect();
        assert_eq!(
            text(normalize(&[b"/", &*printable].concat())),
            "/!%22$&'()*+,-./0123456789:;%3C=%3E@ABCDEFGHIJKLMNOPQRSTUVWXYZ%5B%5C%5D%5E_%60\
             abcdefghijklmnopqrstuvwxyz%7B%7C%7D~"
        );
    }

    #[test]
    fn queries_are_read_and_written_as_lighttpd_does() {
        let shown = |query: &str| {
            let parameters = decode_query(query.as_bytes());
            let shown = parameters
                .into_iter()
                .map(|(name, value)| text([name, b":".into(), value].concat()));
            shown.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            shown("a=1&b=2&&a=3&c&=x&d=%41+b&e="),
            "a:1 b:2 a:3 c: :x d:A b e:"
        );
        assert_eq!(shown("a;b=1;c=2"), "a;b:1;c=2");
        assert_eq!(shown(""), "");
        let mut query = Vec::new();
        encode_parameter(b"a", b"1 2", &mut query);
        encode_parameter(b"b=", b"&=/%?#'", &mut query);
        assert_eq!(text(query), "a=1+2&b%3D=%26=/%25?%23%27");
    }
}
