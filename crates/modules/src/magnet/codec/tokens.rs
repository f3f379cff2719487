//! Splits cookies and other header fields.

/// Names and values of a Cookie field. Values are unchanged, including quotation marks.
pub(crate) fn cookies(text: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut cookies = Vec::new();
    for part in text.split(|byte| *byte == b';') {
        let part = part.trim_ascii();
        if part.is_empty() {
            continue;
        }
        let (name, value) = match memchr::memchr(b'=', part) {
            Some(at) => part.split_at(at),
            None => (part, &b""[..]),
        };
        let value = value.strip_prefix(b"=").unwrap_or_default();
        let owned = |text: &[u8]| text.trim_ascii().to_vec();
        cookies.push((owned(name), owned(value)));
    }
    cookies
}

/// Words, quoted strings with their marks, and the separators `,` `;` `=`, in order.
pub(crate) fn of_header(text: &[u8]) -> Vec<&[u8]> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_ascii_start();
    while let Some(first) = rest.first() {
        let length = match first {
            b',' | b';' | b'=' => 1,
            b'"' => quoted_length(rest),
            _ => {
                let ends =
                    |byte: &u8| matches!(byte, b',' | b';' | b'=') || byte.is_ascii_whitespace();
                rest.iter().position(ends).unwrap_or(rest.len())
            }
        };
        let (token, after) = rest.split_at(length.clamp(1, rest.len()));
        tokens.push(token);
        rest = after.trim_ascii_start();
    }
    tokens
}

/// The length of the quoted string at the beginning of `text`; without a closing mark, the rest of the text.
fn quoted_length(text: &[u8]) -> usize {
    let mut is_escaped = false;
    for (at, byte) in text.iter().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(tokens: &[&[u8]]) -> String {
        let shown = tokens
            .iter()
            .map(|token| String::from_utf8_lossy(token).into_owned());
        shown.collect::<Vec<_>>().join("|")
    }

    #[test]
    fn cookies_are_taken_apart_as_lighttpd_does() {
        let cookies = cookies(b"a=1; b=2;c=\"x y\"; d; e=;=f; a=b=c;  g = 5 ;;");
        let shown: Vec<_> = cookies
            .iter()
            .map(|(name, value)| format!("{}:{}", name.escape_ascii(), value.escape_ascii()))
            .collect();
        assert_eq!(shown.join(" "), r#"a:1 b:2 c:\"x y\" d: e: :f a:b=c g:5"#);
    }

    #[test]
    fn fields_are_taken_apart_as_lighttpd_does() {
        for (text, expected) in [
            ("gzip, deflate;q=0.5, br", "gzip|,|deflate|;|q|=|0.5|,|br"),
            (r#"a="b,c";d"#, r#"a|=|"b,c"|;|d"#),
            (r#"a;b="c\"d" , e"#, r#"a|;|b|=|"c\"d"|,|e"#),
            ("a b", "a|b"),
            ("a\t,b", "a|,|b"),
            ("*/*;q=0.8", "*/*|;|q|=|0.8"),
            (r#"x="unterminated"#, r#"x|=|"unterminated"#),
            ("  ", ""),
        ] {
            assert_eq!(shown(&of_header(text.as_bytes())), expected, "{text}");
        }
    }
}
