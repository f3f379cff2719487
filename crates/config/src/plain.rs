//! Regular expressions that are only comparisons with fixed text.
//!
//! Recognised are a literal with optional anchors (`^/doc/`, `\.php$`, `^www\.example\.com$`, `~$`), and the
//! host idiom `(^|\.)example\.com$`. PCRE matches all others. The results are exactly those of PCRE, also for
//! `$` before a final line feed; a test compares both on random input.

use memchr::memmem;

use crate::captures::Captures;

/// A literal with anchors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plain {
    start: Start,
    text: Vec<u8>,
    anchored_end: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// `^`
    Anchored,
    /// No anchor.
    Free,
    /// `(^|\.)`, a group that captures the dot or nothing.
    Label,
}

impl Plain {
    /// `pattern` as a comparison with fixed text. `None`: it needs PCRE.
    pub(crate) fn recognise(pattern: &str) -> Option<Plain> {
        let (start, rest) = if let Some(rest) = pattern.strip_prefix("(^|\\.)") {
            (Start::Label, rest)
        } else if let Some(rest) = pattern.strip_prefix('^') {
            (Start::Anchored, rest)
        } else {
            (Start::Free, pattern)
        };
        let anchored_end = rest.ends_with('$') && !rest.ends_with("\\$");
        let body = if anchored_end {
            rest.strip_suffix('$')?
        } else {
            rest
        };
        // Without the end anchor the host idiom could match at several places, so PCRE does it.
        if start == Start::Label && !anchored_end {
            return None;
        }
        Some(Plain {
            start,
            text: literal(body)?,
            anchored_end,
        })
    }

    /// Whether it matches anywhere in `value`.
    pub(crate) fn is_match(&self, value: &[u8]) -> bool {
        self.find(value).is_some()
    }

    /// Whether it matches anywhere in `value`; stores the groups in `out`.
    pub(crate) fn captures(&self, value: &[u8], out: &mut Captures) -> bool {
        let Some((start, end)) = self.find(value) else {
            return false;
        };
        out.clear();
        out.push(start, end);
        if self.start == Start::Label {
            out.push(start, end - self.text.len());
        }
        true
    }

    fn find(&self, value: &[u8]) -> Option<(usize, usize)> {
        match (self.start, self.anchored_end) {
            (Start::Anchored, false) => value
                .starts_with(&self.text)
                .then_some((0, self.text.len())),
            (Start::Anchored, true) => ends(value)
                .find(|&end| value.get(..end) == Some(&self.text))
                .map(|end| (0, end)),
            (Start::Free, false) => {
                memmem::find(value, &self.text).map(|at| (at, at + self.text.len()))
            }
            (Start::Free, true) => self.at_end(value).min(),
            (Start::Label, _) => self
                .at_end(value)
                .filter_map(|(start, end)| Some((label_start(value, start)?, end)))
                .min(),
        }
    }

    /// Where the text is at the end of `value`, or before a final line feed.
    fn at_end(&self, value: &[u8]) -> impl Iterator<Item = (usize, usize)> {
        ends(value)
            .filter(|&end| {
                value
                    .get(..end)
                    .is_some_and(|head| head.ends_with(&self.text))
            })
            .map(|end| (end - self.text.len(), end))
    }
}

/// The positions where `$` matches.
fn ends(value: &[u8]) -> impl Iterator<Item = usize> + use<> {
    let before_line_feed = value.ends_with(b"\n").then(|| value.len() - 1);
    before_line_feed.into_iter().chain([value.len()])
}

/// Where `(^|\.)` begins if the text after it begins at `at`.
fn label_start(value: &[u8], at: usize) -> Option<usize> {
    match at.checked_sub(1) {
        None => Some(0),
        Some(before) => (value.get(before) == Some(&b'.')).then_some(before),
    }
}

/// The text that `body` matches, if there is only one.
fn literal(body: &str) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(body.len());
    let mut bytes = body.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            // A backslash before punctuation makes a literal character; before a letter or digit it makes a
            // class.
            b'\\' => text.push(bytes.next().filter(u8::is_ascii_punctuation)?),
            b'^' | b'$' | b'.' | b'[' | b'|' | b'(' | b')' | b'?' | b'*' | b'+' | b'{' => {
                return None;
            }
            _ => text.push(byte),
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pattern::Pattern;

    #[test]
    fn the_usual_forms_are_recognised() {
        for pattern in [
            "",
            "^",
            "$",
            "^/doc/",
            r"\.php$",
            r"^www\.example\.com$",
            r"(^|\.)example\.com$",
            "~$",
            "a-b_c,d",
            r"\$$",
        ] {
            assert!(
                Pattern::compile(pattern).expect("sound").is_plain(),
                "{pattern}"
            );
        }
    }

    #[test]
    fn whatever_else_is_left_to_pcre() {
        for pattern in [
            "a.b", "a|b", "(a)", "a+", "a*", "a?", "[a]", r"\d", r"\Aa", "a{2}", "^a^", "a$b",
            r"(^|\.)a", r"a\\$b", "(?i)a",
        ] {
            assert!(Plain::recognise(pattern).is_none(), "{pattern}");
        }
    }

    fn pcre(pattern: &str, value: &[u8]) -> Option<Vec<(usize, usize)>> {
        let regex = pcre2::bytes::Regex::new(pattern).expect("sound");
        let mut groups = regex.capture_locations();
        regex
            .captures_read(&mut groups, value)
            .expect("within limits")?;
        Some(
            (0..groups.len())
                .map(|n| groups.get(n).unwrap_or((0, 0)))
                .collect(),
        )
    }

    proptest! {
        #[test]
        fn plain_compares_mean_what_pcre_means(
            head in prop_oneof![Just("^"), Just(""), Just(r"(^|\.)")],
            body in r"([ab/\n]|\\\.|\\\$){0,3}",
            tail in prop_oneof![Just("$"), Just("")],
            value in "[ab/.$\n]{0,7}",
        ) {
            let pattern = format!("{head}{body}{tail}");
            if let Some(plain) = Plain::recognise(&pattern) {
                let mut captures = Captures::new();
                let matched = plain.captures(value.as_bytes(), &mut captures);
                let ours = matched.then(|| captures.clone());
                let theirs = pcre(&pattern, value.as_bytes()).map(|groups| {
                    let mut expected = Captures::new();
                    groups.iter().for_each(|&(start, end)| expected.push(start, end));
                    expected
                });
                prop_assert_eq!(ours, theirs, "{:?} on {:?}", pattern, value);
            }
        }
    }
}
