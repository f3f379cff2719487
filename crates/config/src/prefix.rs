//! The fixed text that every match of a regular expression begins with.
//!
//! In case of doubt the prefix is empty, which is correct for every expression.

/// The bytes that every match of `pattern` begins with; empty if they are unknown.
pub(crate) fn literal_prefix(pattern: &str) -> Vec<u8> {
    let Some(rest) = pattern.strip_prefix('^') else {
        return Vec::new();
    };
    if may_have_branches(pattern) {
        return Vec::new();
    }
    let mut text = Vec::new();
    let mut rest = rest.as_bytes();
    loop {
        let (byte, behind) = match *rest {
            // Quoting and comments may come between a character and the quantifier that makes it optional.
            [b'*' | b'?' | b'{', ..] | [b'\\', b'Q' | b'E', ..] | [b'(', b'?', b'#', ..] => {
                text.pop();
                return text;
            }
            // A backslash before punctuation makes a literal character; before a letter or digit it makes a
            // class.
            [b'\\', escaped, ref behind @ ..] if escaped.is_ascii_punctuation() => {
                (escaped, behind)
            }
            []
            | [
                b'\\' | b'+' | b'.' | b'[' | b'(' | b')' | b'|' | b'$' | b'^',
                ..,
            ] => return text,
            [byte, ref behind @ ..] => (byte, behind),
        };
        text.push(byte);
        rest = behind;
    }
}

/// Whether `pattern` may have alternatives outside of all groups; the anchor would belong only to the first.
///
/// Counts parentheses. Returns true for anything that could falsify the count: quoting, comments, names that
/// may contain a parenthesis, and parentheses in character classes.
fn may_have_branches(pattern: &str) -> bool {
    if !pattern.contains('|') {
        return false;
    }
    if CONFUSING.iter().any(|text| pattern.contains(text)) {
        return true;
    }
    let mut depth = 0_u32;
    let mut rest = pattern.as_bytes();
    loop {
        rest = match *rest {
            [] => return false,
            [b'\\', ref behind @ ..] => behind.get(1..).unwrap_or_default(),
            [b'[', ref class @ ..] => match behind_class(class) {
                Some(behind) => behind,
                None => return true,
            },
            [b'(', ref behind @ ..] => {
                depth += 1;
                behind
            }
            [b')', ref behind @ ..] => match depth.checked_sub(1) {
                Some(outer) => {
                    depth = outer;
                    behind
                }
                None => return true,
            },
            [b'|', ..] if depth == 0 => return true,
            [_, ref behind @ ..] => behind,
        };
    }
}

/// The text after the character class whose content `class` begins with. `None`: the class contains a
/// parenthesis or bracket that could be mistaken for one outside.
fn behind_class(class: &[u8]) -> Option<&[u8]> {
    let rest = class.strip_prefix(b"^").unwrap_or(class);
    let mut rest = rest.strip_prefix(b"]").unwrap_or(rest);
    loop {
        rest = match *rest {
            [b']', ref behind @ ..] => return Some(behind),
            [b'\\', _, ref behind @ ..] => behind,
            [] | [b'\\' | b'[' | b'(' | b')', ..] => return None,
            [_, ref behind @ ..] => behind,
        };
    }
}

/// Quoting, control characters, comments, callouts, verbs, and extended syntax, where more characters are
/// comments or ignored.
const CONFUSING: [&str; 7] = ["\\Q", "\\c", "(?#", "(?C", "(*", "\n", "xx"];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pattern::Pattern;

    #[test]
    fn fixed_text_behind_the_anchor_is_found() {
        for (pattern, prefix) in [
            ("^/foo/(.*)$", "/foo/"),
            (r"^/a\.b\?c=(\d+)", "/a.b?c="),
            ("^/foo+", "/foo"),
            ("^/foo*", "/fo"),
            ("^/foo?", "/fo"),
            ("^/foo{0,2}", "/fo"),
            (r"^/foo\E?", "/fo"),
            ("^/foo(?#comment)?", "/fo"),
            ("^/(?!x)", "/"),
            ("^/a(b|c)|d", ""),
            ("^/a(b|c)d", "/a"),
            ("^/a[^b]|d", ""),
            ("^/a[|]", "/a"),
            ("^/a(?:[)|]|x)", ""),
            (r"^/a\(|b", ""),
            (r"^/a\Q(\E|b", ""),
            ("^/a(?#()|b", ""),
            ("(?i)^/a", ""),
            ("/a", ""),
            ("^", ""),
            (r"^/a\d", "/a"),
        ] {
            assert_eq!(literal_prefix(pattern), prefix.as_bytes(), "{pattern}");
        }
    }

    proptest! {
        #[test]
        fn whatever_matches_begins_with_it(
            pattern in r"\^([ab|()\[\]?*+.^$]|\\\||\\\(|\\[QEdc]|\(\?#|\(\?:|\{0,1\}){0,8}",
            value in "[ab|()\\[\\]]{0,5}",
        ) {
            if let Ok(compiled) = Pattern::compile(&pattern) {
                let prefix = literal_prefix(&pattern);
                prop_assert!(
                    !compiled.is_match(value.as_bytes()) || value.as_bytes().starts_with(&prefix),
                    "{pattern:?} matches {value:?}, which does not begin with {prefix:?}"
                );
            }
        }
    }
}
