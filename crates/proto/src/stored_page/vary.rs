//! Vary: which request fields an answer depends on, and whether a request has the same values (RFC 9111 4.1).
//!
//! Values are normalised before they are compared: white space around commas is removed, and in fields that
//! only list codings, types or languages letter case is ignored.

use crate::header_block::HeaderBlock;
use crate::request_head::RequestHead;

/// One field name in Vary, and the value in the request that the stored answer was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Varying {
    /// The name in lower case.
    pub name: Box<str>,
    /// The normalised value; `None` if the request had no such field.
    pub value: Option<Box<[u8]>>,
}

/// The names in all Vary fields, in lower case, each once; `None` for `*`.
pub fn names(fields: &HeaderBlock) -> Option<Vec<Box<str>>> {
    let mut names: Vec<Box<str>> = Vec::new();
    for (name, value) in fields.iter() {
        if !name.eq_ignore_ascii_case(b"vary") {
            continue;
        }
        let items = value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        for item in items.filter(|item| !item.is_empty()) {
            if item == b"*" {
                return None;
            }
            let item: Box<str> = String::from_utf8_lossy(item).to_ascii_lowercase().into();
            if !names.contains(&item) {
                names.push(item);
            }
        }
    }
    names.sort_unstable();
    Some(names)
}

/// The values of `names` in `head`.
pub fn varying(names: Vec<Box<str>>, head: &RequestHead) -> Box<[Varying]> {
    let of = |name: Box<str>| {
        let mut value = Vec::new();
        let is_there = normalised(head, &name, |byte| {
            value.push(byte);
            true
        });
        Varying {
            value: is_there.is_some().then(|| value.into()),
            name,
        }
    };
    names.into_iter().map(of).collect()
}

/// Whether `head` has the same values for these names. Allocates nothing.
#[inline]
pub fn matches(stored: &[Varying], head: &RequestHead) -> bool {
    stored.iter().all(|varying| {
        let mut expected = varying.value.as_deref().unwrap_or_default().iter();
        let same = normalised(head, &varying.name, |byte| expected.next() == Some(&byte));
        match same {
            None => varying.value.is_none(),
            Some(is_same) => is_same && varying.value.is_some() && expected.next().is_none(),
        }
    })
}

/// Feeds the joined value of all fields with this name to `take` until that returns false. `None`: the
/// request has no such field.
fn normalised(head: &RequestHead, name: &str, mut take: impl FnMut(u8) -> bool) -> Option<bool> {
    let folds_case = FOLDED.contains(&name);
    let mut is_there = false;
    for value in head.fields_named(name) {
        if std::mem::replace(&mut is_there, true) && !take(b',') {
            return Some(false);
        }
        let mut items = value.split(|byte| *byte == b',');
        let mut is_first = true;
        for item in items.by_ref() {
            if !std::mem::replace(&mut is_first, false) && !take(b',') {
                return Some(false);
            }
            for byte in item.trim_ascii() {
                let byte = if folds_case {
                    byte.to_ascii_lowercase()
                } else {
                    *byte
                };
                if !take(byte) {
                    return Some(false);
                }
            }
        }
    }
    is_there.then_some(true)
}

/// Fields whose values do not depend on letter case (RFC 9110 8.4.1, 8.3.1, 12.5.4).
const FOLDED: [&str; 3] = ["accept-encoding", "accept-language", "accept"];

#[cfg(test)]
mod tests {
    use super::*;

    fn head(fields: &str) -> RequestHead {
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let mut head = RequestHead::new();
        let parsed = head.parse(text.as_bytes(), &Default::default());
        assert!(parsed.is_ok(), "{parsed:?}");
        head
    }

    fn names_of(values: &[&str]) -> Option<Vec<Box<str>>> {
        let mut block = HeaderBlock::new();
        for value in values {
            block.append("Vary", value.as_bytes());
        }
        names(&block)
    }

    #[test]
    fn names_come_once_and_sorted() {
        let names = names_of(&["Origin, accept-encoding", "ORIGIN,,"]).expect("no star");
        assert_eq!(names, ["accept-encoding".into(), "origin".into()]);
        assert_eq!(names_of(&["Cookie", "*"]), None);
        assert_eq!(names_of(&[]), Some(Vec::new()));
    }

    #[test]
    fn values_match_as_the_rfc_allows() {
        for (name, stored, asked, is_same) in [
            ("accept-encoding", "gzip, br", "GZIP,br", true),
            ("accept-encoding", "gzip, br", "br, gzip", false),
            ("accept-encoding", "gzip", "gzip, br", false),
            ("accept-encoding", "gzip, br", "gzip", false),
            ("x-a", "1", "1", true),
            ("x-a", "a", "A", false),
            ("x-a", "a,  b", "a,b", true),
            ("x-a", "", "", true),
            ("user-agent", "x y", "x  y", false),
        ] {
            let before = head(&format!("{name}: {stored}\r\n"));
            let varying = varying(vec![name.into()], &before);
            let now = head(&format!("{name}: {asked}\r\n"));
            assert!(matches(&varying, &before), "{name}: {stored}");
            assert_eq!(matches(&varying, &now), is_same, "{name}: {stored} {asked}");
        }
    }

    #[test]
    fn no_field_is_not_an_empty_field() {
        let without = varying(vec!["x-a".into()], &head(""));
        assert!(matches(&without, &head("")));
        assert!(!matches(&without, &head("x-a:\r\n")));
        let with = varying(vec!["x-a".into()], &head("x-a:\r\n"));
        assert!(!matches(&with, &head("")));
    }

    #[test]
    fn fields_that_are_repeated_are_one_list() {
        let joined = varying(vec!["x-a".into()], &head("x-a: 1, 2\r\n"));
        assert!(matches(&joined, &head("X-A: 1\r\nx-a: 2\r\n")));
        assert!(!matches(&joined, &head("X-A: 2\r\nx-a: 1\r\n")));
    }
}
