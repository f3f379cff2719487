//! Reads the user name and the password of Basic (RFC 7617).

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// The name and the password that a client has sent, in one allocation.
pub(super) struct Credentials {
    pair: Vec<u8>,
    /// Where the colon is.
    colon: usize,
}

impl Credentials {
    /// The user's name, which has no colon.
    pub(super) fn user(&self) -> &[u8] {
        self.pair.get(..self.colon).unwrap_or_default()
    }

    /// The password.
    pub(super) fn password(&self) -> &[u8] {
        self.pair.get(self.colon + 1..).unwrap_or_default()
    }

    /// Name and password, with the colon between them.
    pub(super) fn pair(&self) -> &[u8] {
        &self.pair
    }

    /// The user's name, without the password behind it.
    pub(super) fn into_user(mut self) -> Vec<u8> {
        self.pair.truncate(self.colon);
        self.pair
    }
}

/// The content of an Authorization field.
pub(super) enum BasicField {
    /// There is no field, or it has another scheme.
    Absent,
    /// It is no base64, or has no colon or a NUL, where programs in C would take the name or the password to
    /// end.
    Malformed,
    Credentials(Credentials),
}

/// Reads the value of Authorization.
pub(super) fn read(field: Option<&[u8]>) -> BasicField {
    let Some(encoded) = encoded(field) else {
        return BasicField::Absent;
    };
    match decode(encoded) {
        Some(credentials) => BasicField::Credentials(credentials),
        None => BasicField::Malformed,
    }
}

/// Name and password as they stand in the value of Authorization, in base64. `None`: there is no field, or it
/// has another scheme.
pub(super) fn encoded(field: Option<&[u8]>) -> Option<&[u8]> {
    let field = field?;
    // As nearly all clients write it.
    match field.strip_prefix(b"Basic ") {
        Some(rest) => Some(rest.trim_ascii()),
        None => after_scheme(field, b"basic"),
    }
}

/// The part of Authorization behind `scheme`; `None`: it has another scheme.
pub(super) fn after_scheme<'f>(field: &'f [u8], scheme: &[u8]) -> Option<&'f [u8]> {
    let (name, rest) = field.split_at_checked(scheme.len())?;
    let is_scheme = name.eq_ignore_ascii_case(scheme) && rest.first() == Some(&b' ');
    is_scheme.then(|| rest.trim_ascii())
}

fn decode(encoded: &[u8]) -> Option<Credentials> {
    let pair = BASE64.decode(encoded).ok()?;
    if memchr::memchr(0, &pair).is_some() {
        return None;
    }
    let colon = memchr::memchr(b':', &pair)?;
    Some(Credentials { pair, colon })
}

/// As lighttpd: with or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(field: &str) -> Option<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
        match read(Some(field.as_bytes())) {
            BasicField::Credentials(sent) => {
                let pair = (text(sent.user()), text(sent.password()));
                assert_eq!(text(&sent.into_user()), pair.0);
                Some(pair)
            }
            BasicField::Absent | BasicField::Malformed => None,
        }
    }

    #[test]
    fn names_end_at_the_first_colon() {
        let known = Some(("Aladdin".to_owned(), "open sesame".to_owned()));
        assert_eq!(pair("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="), known);
        assert_eq!(pair("bAsIc    QWxhZGRpbjpvcGVuIHNlc2FtZQ"), known);
        assert_eq!(pair("Basic YTpiOmM="), Some(("a".into(), "b:c".into())));
        assert_eq!(pair("Basic Og=="), Some((String::new(), String::new())));
    }

    #[test]
    fn what_is_no_pair_is_malformed() {
        for field in [
            "Basic !!",
            "Basic bm9jb2xvbg==",
            "Basic ",
            "Basic YQBiOmM=",
            "Basic YTpiAGM=",
        ] {
            assert!(
                matches!(read(Some(field.as_bytes())), BasicField::Malformed),
                "{field}"
            );
        }
    }

    #[test]
    fn other_schemes_are_none() {
        for field in ["Bearer x", "Basic", "Basicx YTpi", "Digest a=b", ""] {
            assert!(
                matches!(read(Some(field.as_bytes())), BasicField::Absent),
                "{field}"
            );
        }
        assert!(matches!(read(None), BasicField::Absent));
    }
}
