//! Parses form fields, cookies and header names out of what the web server passes on.

use std::borrow::Cow;

use proto::escape::form_decode;

use super::limits::FORM_FIELDS_MAX;

/// The decoded fields of a form, from a query string or a body (`application/x-www-form-urlencoded`). A field
/// without `=` has an empty value.
pub(crate) fn form(text: &[u8]) -> impl Iterator<Item = (Cow<'_, [u8]>, Cow<'_, [u8]>)> {
    let fields = text.split(|byte| *byte == b'&');
    let fields = fields.filter(|field| !field.is_empty());
    fields.take(FORM_FIELDS_MAX).map(|field| {
        let (name, value) = halves(field);
        (form_decode(name), form_decode(value))
    })
}

/// The cookies of a `Cookie` field, not decoded.
pub(crate) fn cookies(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let cookies = text.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let cookies = cookies.filter(|cookie| !cookie.is_empty());
    cookies.take(FORM_FIELDS_MAX).map(halves)
}

/// The name of the header field in a variable such as `HTTP_ACCEPT`, with `-` for each `_`. `None` if the
/// variable holds no header field.
pub(crate) fn header_name(variable: &[u8]) -> Option<Vec<u8>> {
    let name = match variable {
        b"CONTENT_TYPE" | b"CONTENT_LENGTH" => variable,
        _ => variable.strip_prefix(b"HTTP_")?,
    };
    let dashed = name.iter().map(|byte| match byte {
        b'_' => b'-',
        byte => *byte,
    });
    Some(dashed.collect())
}

fn halves(field: &[u8]) -> (&[u8], &[u8]) {
    match field.iter().position(|byte| *byte == b'=') {
        Some(equals) => {
            let (name, value) = field.split_at(equals);
            (name, value.get(1..).unwrap_or_default())
        }
        None => (field, &[]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_decoded() {
        let fields: Vec<_> = form(b"a=1&&b=x+y%26z%3D&c&=d&e=%4&f=%zz%&%61=2=3").collect();
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, value)| {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                (text(name), text(value))
            })
            .collect();
        let expected = [
            ("a", "1"),
            ("b", "x y&z="),
            ("c", ""),
            ("", "d"),
            ("e", "%4"),
            ("f", "%zz%"),
            ("a", "2=3"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(fields, expected);
        let many = "a&".repeat(FORM_FIELDS_MAX + 5);
        assert_eq!(form(many.as_bytes()).count(), FORM_FIELDS_MAX);
        assert_eq!(form(b"").count(), 0);
    }

    #[test]
    fn cookies_stay_as_they_are() {
        let cookies: Vec<_> = cookies(b"a=1; b=%20=x;;c ; ").collect();
        let expected: [(&[u8], &[u8]); 3] = [(b"a", b"1"), (b"b", b"%20=x"), (b"c", b"")];
        assert_eq!(cookies, expected);
    }

    #[test]
    fn variables_stand_for_fields() {
        for (variable, name) in [
            ("HTTP_ACCEPT_LANGUAGE", Some("ACCEPT-LANGUAGE")),
            ("CONTENT_TYPE", Some("CONTENT-TYPE")),
            ("HTTPS", None),
            ("REMOTE_ADDR", None),
        ] {
            let found = header_name(variable.as_bytes());
            assert_eq!(found.as_deref(), name.map(str::as_bytes), "{variable}");
        }
    }
}
