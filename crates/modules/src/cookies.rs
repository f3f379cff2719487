//! Splits the cookies of a request, for all modules that read them.

/// Names and values of a Cookie field (RFC 6265 4.2.1).
pub(crate) fn cookies_of(field: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let pairs = field.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    pairs
        .filter(|pair| !pair.is_empty())
        .map(|pair| match memchr::memchr(b'=', pair) {
            Some(at) => (
                pair.get(..at).unwrap_or_default().trim_ascii(),
                pair.get(at + 1..).unwrap_or_default().trim_ascii(),
            ),
            None => (pair, &b""[..]),
        })
}
