//! Conditional requests (RFC 9110 13): whether to proceed or to answer 304 or 412.
//!
//! Takes the condition fields as they were sent, and the validators of the selected representation.
//! [`crate::range`] handles the Range field itself.

use crate::{date, etag};

/// The condition fields of a request, as they were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

impl Preconditions<'_> {
    /// Whether the request has no conditions.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.if_match.is_none()
            && self.if_none_match.is_none()
            && self.if_modified_since.is_none()
            && self.if_unmodified_since.is_none()
            && self.if_range.is_none()
    }
}

/// The result of the conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Perform the request.
    Proceed {
        /// Whether a Range field may be honoured. False if If-Range says that the client has a part of
        /// another representation.
        honour_range: bool,
    },
    /// Answer 304.
    NotModified,
    /// Answer 412.
    PreconditionFailed,
}

/// Evaluates the conditions in the order of RFC 9110 13.2.2, for a representation that exists.
///
/// `last_modified` is in seconds since 1970. A date that cannot be parsed is ignored (13.1.3, 13.1.4).
pub fn evaluate(
    preconditions: &Preconditions<'_>,
    is_get_or_head: bool,
    etag: Option<&[u8]>,
    last_modified: Option<u64>,
) -> Verdict {
    if preconditions.is_empty() {
        return Verdict::Proceed { honour_range: true };
    }
    if !may_proceed(preconditions, etag, last_modified) {
        return Verdict::PreconditionFailed;
    }
    if is_unchanged(preconditions, is_get_or_head, etag, last_modified) {
        return if is_get_or_head {
            Verdict::NotModified
        } else {
            Verdict::PreconditionFailed
        };
    }
    let honour_range = preconditions
        .if_range
        .is_none_or(|validator| is_same_representation(validator, etag, last_modified));
    Verdict::Proceed { honour_range }
}

/// Steps 1 and 2: If-Match, or else If-Unmodified-Since.
fn may_proceed(
    preconditions: &Preconditions<'_>,
    etag: Option<&[u8]>,
    last_modified: Option<u64>,
) -> bool {
    if let Some(list) = preconditions.if_match {
        return etag::if_match(list, etag);
    }
    match (
        preconditions.if_unmodified_since.and_then(date::parse),
        last_modified,
    ) {
        (Some(date), Some(last_modified)) => last_modified <= date,
        _ => true,
    }
}

/// Steps 3 and 4: If-None-Match, or else If-Modified-Since with GET and HEAD.
fn is_unchanged(
    preconditions: &Preconditions<'_>,
    is_get_or_head: bool,
    etag: Option<&[u8]>,
    last_modified: Option<u64>,
) -> bool {
    if let Some(list) = preconditions.if_none_match {
        return etag::if_none_match(list, etag);
    }
    match (preconditions.if_modified_since, last_modified) {
        (Some(text), Some(last_modified)) if is_get_or_head => {
            date::parse(text).is_some_and(|date| last_modified <= date)
        }
        _ => false,
    }
}

/// Step 5: If-Range (13.1.5). Only a strong entity tag, or exactly the date of last modification, proves that
/// the parts belong together.
fn is_same_representation(
    validator: &[u8],
    etag: Option<&[u8]>,
    last_modified: Option<u64>,
) -> bool {
    match validator {
        [b'"', ..] => etag.is_some_and(|etag| etag::strong_eq(validator, etag)),
        [b'W', b'/', ..] => false,
        _ => last_modified.is_some() && date::parse(validator) == last_modified,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETAG: &[u8] = b"\"a\"";
    const MODIFIED: u64 = 784_111_777;
    const BEFORE: &[u8] = b"Sun, 06 Nov 1994 08:49:36 GMT";
    const SAME: &[u8] = b"Sun, 06 Nov 1994 08:49:37 GMT";
    const AFTER: &[u8] = b"Sun, 06 Nov 1994 08:49:38 GMT";
    const PROCEED: Verdict = Verdict::Proceed { honour_range: true };

    fn get(preconditions: Preconditions<'_>) -> Verdict {
        evaluate(&preconditions, true, Some(ETAG), Some(MODIFIED))
    }

    fn put(preconditions: Preconditions<'_>) -> Verdict {
        evaluate(&preconditions, false, Some(ETAG), Some(MODIFIED))
    }

    #[test]
    fn nothing_asked_proceeds() {
        assert_eq!(get(Preconditions::default()), PROCEED);
    }

    #[test]
    fn if_match_wins_over_if_unmodified_since() {
        let with = |if_match, since| Preconditions {
            if_match: Some(if_match),
            if_unmodified_since: Some(since),
            ..Preconditions::default()
        };
        assert_eq!(put(with(ETAG, BEFORE)), PROCEED);
        assert_eq!(put(with(b"*", BEFORE)), PROCEED);
        assert_eq!(put(with(b"\"b\"", AFTER)), Verdict::PreconditionFailed);
        assert_eq!(put(with(b"W/\"a\"", AFTER)), Verdict::PreconditionFailed);
    }

    #[test]
    fn if_unmodified_since_compares_dates() {
        let with = |since| Preconditions {
            if_unmodified_since: Some(since),
            ..Preconditions::default()
        };
        assert_eq!(get(with(BEFORE)), Verdict::PreconditionFailed);
        assert_eq!(get(with(SAME)), PROCEED);
        assert_eq!(get(with(b"yesterday")), PROCEED);
        assert_eq!(evaluate(&with(BEFORE), true, None, None), PROCEED);
    }

    #[test]
    fn if_none_match_wins_over_if_modified_since() {
        let with = |list, since| Preconditions {
            if_none_match: Some(list),
            if_modified_since: Some(since),
            ..Preconditions::default()
        };
        assert_eq!(get(with(b"W/\"a\"", BEFORE)), Verdict::NotModified);
        assert_eq!(get(with(b"\"b\"", AFTER)), PROCEED);
        assert_eq!(put(with(b"*", BEFORE)), Verdict::PreconditionFailed);
    }

    #[test]
    fn if_modified_since_is_for_get_and_head() {
        let with = |since| Preconditions {
            if_modified_since: Some(since),
            ..Preconditions::default()
        };
        assert_eq!(get(with(SAME)), Verdict::NotModified);
        assert_eq!(get(with(AFTER)), Verdict::NotModified);
        assert_eq!(get(with(BEFORE)), PROCEED);
        assert_eq!(get(with(b"x")), PROCEED);
        assert_eq!(put(with(SAME)), PROCEED);
    }

    #[test]
    fn a_failed_match_comes_before_not_modified() {
        let both = Preconditions {
            if_match: Some(b"\"b\""),
            if_none_match: Some(ETAG),
            ..Preconditions::default()
        };
        assert_eq!(get(both), Verdict::PreconditionFailed);
    }

    #[test]
    fn if_range_needs_an_exact_validator() {
        for (validator, honour_range) in [
            (ETAG, true),
            (SAME, true),
            (&b"\"b\""[..], false),
            (b"W/\"a\"", false),
            (BEFORE, false),
            (AFTER, false),
            (b"x", false),
            (b"", false),
        ] {
            let with = Preconditions {
                if_range: Some(validator),
                ..Preconditions::default()
            };
            assert_eq!(get(with), Verdict::Proceed { honour_range });
        }
        let weak = Preconditions {
            if_range: Some(b"W/\"a\""),
            ..Preconditions::default()
        };
        let proceed = Verdict::Proceed {
            honour_range: false,
        };
        assert_eq!(evaluate(&weak, true, Some(b"W/\"a\""), None), proceed);
        let unreadable = Preconditions {
            if_range: Some(b"x"),
            ..Preconditions::default()
        };
        assert_eq!(evaluate(&unreadable, true, None, None), proceed);
    }
}
