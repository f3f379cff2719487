//! Conditional requests.

/// The condition fields of a request, as they were sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Preconditions<'a> {
    /// If-Match
    pub if_match: Option<&'a [u8]>,
    /// If-None-Match
    pub if_none_match: Option<&'a [u8]>,
    /// If-Modified-Since
    pub if_modified_since: Option<&'a [u8]>,
    /// If-Unmodified-Since
    pub if_unmodified_since: Option<&'a [u8]>,
    /// If-Range
    pub if_range: Option<&'a [u8]>,
}

/// What the conditions come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Perform the request.
    Proceed {
        /// Whether a Range field, if there is one, may be honoured.
        honour_range: bool,
    },
    /// 304
    NotModified,
    /// 412
    PreconditionFailed,
}

/// Evaluates the conditions in the order of RFC 9110 13.2.2.
#[allow(unused_variables)]
pub fn evaluate(
    preconditions: &Preconditions<'_>,
    is_get_or_head: bool,
    etag: Option<&[u8]>,
    last_modified: Option<u64>,
) -> Verdict {
    todo!()
}
