//! Entity tags (RFC 9110 8.8.3) and the lists of them in If-Match and If-None-Match.
//!
//! As in lighttpd, a list that is malformed counts up to the error.

use crate::accept::Coding;

/// Whether two entity tags are the same under strong comparison: equal, and neither is weak.
pub fn strong_eq(left: &[u8], right: &[u8]) -> bool {
    is_strong(left) && left == right
}

/// Whether two entity tags are the same under weak comparison: equal apart from `W/`.
pub fn weak_eq(left: &[u8], right: &[u8]) -> bool {
    opaque(left) == opaque(right)
}

/// Whether `etag` is well-formed and not weak.
fn is_strong(etag: &[u8]) -> bool {
    matches!(split_first(etag), Some((tag, b"")) if tag.first() == Some(&b'"'))
}

/// Whether If-Match selects a representation with this entity tag, under strong comparison. `*` selects any
/// that exists. `etag` is `None` for a representation without an entity tag, which only `*` selects. A tag that was
/// sent with a coded form of the representation (`"abc-gzip"` for `"abc"`) selects it as well.
pub fn if_match(list: &[u8], etag: Option<&[u8]>) -> bool {
    matches(list, etag, |tag, etag| {
        strong_eq(tag, etag) || (is_strong(etag) && without_coding(tag) == etag.strip_suffix(b"\""))
    })
}

/// What stands before the name of the coding in a tag such as `"abc-gzip"`: `"abc`.
fn without_coding(tag: &[u8]) -> Option<&[u8]> {
    let tag = tag.strip_suffix(b"\"")?;
    let dash = memchr::memrchr(b'-', tag)?;
    Coding::from_name(&tag[dash + 1..]).map(|_| &tag[..dash])
}

/// Whether If-None-Match names this entity tag, under weak comparison, so that its condition is false. `*`
/// names any representation that exists.
pub fn if_none_match(list: &[u8], etag: Option<&[u8]>) -> bool {
    matches(list, etag, weak_eq)
}

fn matches(list: &[u8], etag: Option<&[u8]>, is_same: fn(&[u8], &[u8]) -> bool) -> bool {
    let list = list.trim_ascii();
    if list == b"*" {
        return true;
    }
    let Some(etag) = etag else { return false };
    let mut rest = list;
    while let Some((tag, after)) = next_in_list(rest) {
        if is_same(tag, etag) {
            return true;
        }
        match after.trim_ascii_start().strip_prefix(b",") {
            Some(after) => rest = after,
            None => return false,
        }
    }
    false
}

/// The next tag of a list and what follows it; empty items before it are skipped.
fn next_in_list(list: &[u8]) -> Option<(&[u8], &[u8])> {
    let start = list.iter().position(|byte| !b" \t,".contains(byte))?;
    split_first(&list[start..])
}

/// Splits a tag off the beginning of `text`.
fn split_first(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let weak_length = if text.starts_with(b"W/") { 2 } else { 0 };
    let inner = text[weak_length..].strip_prefix(b"\"")?;
    let inner_length = memchr::memchr(b'"', inner)?;
    let is_etagc = |byte: &u8| matches!(byte, 0x21 | 0x23..=0x7e | 0x80..);
    inner[..inner_length]
        .iter()
        .all(is_etagc)
        .then(|| text.split_at(weak_length + inner_length + 2))
}

fn opaque(etag: &[u8]) -> &[u8] {
    etag.strip_prefix(b"W/").unwrap_or(etag)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn comparison_follows_the_table_of_the_rfc() {
        // RFC 9110 8.8.3.2
        for (left, right, strong, weak) in [
            ("W/\"1\"", "W/\"1\"", false, true),
            ("W/\"1\"", "W/\"2\"", false, false),
            ("W/\"1\"", "\"1\"", false, true),
            ("\"1\"", "\"1\"", true, true),
        ] {
            assert_eq!(strong_eq(left.as_bytes(), right.as_bytes()), strong);
            assert_eq!(weak_eq(left.as_bytes(), right.as_bytes()), weak);
        }
        assert!(!strong_eq(b"x", b"x"));
    }

    #[test]
    fn lists_are_searched() {
        let etag = Some(&b"\"b\""[..]);
        for list in [
            "*",
            " * ",
            "\"b\"",
            "\"a\", \"b\"",
            "\"a\",\"b\",W/\"c\"",
            ", ,\"a\" , \"b\" ,,",
            "\"a,\" ,\"b\"",
        ] {
            assert!(
                if_match(list.as_bytes(), etag) && if_none_match(list.as_bytes(), etag),
                "{list}"
            );
        }
        for list in ["", ",", "\"a\"", "\"a, \"", "\"B\""] {
            assert!(
                !if_match(list.as_bytes(), etag) && !if_none_match(list.as_bytes(), etag),
                "{list}"
            );
        }
        assert!(!if_match(b"W/\"b\"", etag) && if_none_match(b"W/\"b\"", etag));
        for coded in [&b"\"b-gzip\""[..], b"\"a\", \"b-br\""] {
            assert!(if_match(coded, etag) && !if_none_match(coded, etag));
        }
        assert!(!if_match(b"\"a-gzip\"", etag) && !if_match(b"\"b-lzma\"", etag));
        assert!(
            if_match(b"*", None) && if_none_match(b"*", None) && !if_none_match(b"\"b\"", None)
        );
    }

    #[test]
    fn lists_count_up_to_what_is_malformed() {
        let etag = Some(&b"\"b\""[..]);
        for list in [
            "b",
            "\"b",
            "b\"",
            "w/\"b\"",
            "*,\"b\"",
            "c, \"b\"",
            "\"a\" \"b\"",
        ] {
            assert!(!if_none_match(list.as_bytes(), etag), "{list}");
        }
        for list in [
            "\"b\" \"c\"",
            "\"b\",c",
            "\"b\"x",
            "\"b\",*",
            "\"b\", \"c d\"",
            "\"a\", \"b\", \"broken",
            "\"b\";",
        ] {
            assert!(if_none_match(list.as_bytes(), etag), "{list}");
        }
    }

    proptest! {
        #[test]
        fn random_lists_never_panic(list in "[\"W/a, *\u{e4}]{0,20}") {
            if_match(list.as_bytes(), Some(b"\"a\""));
        }
    }
}
