//! A list of regular expressions, of which the first that matches counts.
//!
//! Expressions that begin with fixed text are found by binary search in a sorted list, so expressions for
//! other texts do not run: of 10,000 rules like `^/old/page-17(.*)$`, only those run that can match the
//! value. The other expressions are tried one by one, in their place in the order.

use crate::captures::Captures;
use crate::pattern::{LimitExceeded, Pattern};
use crate::prefix::literal_prefix;

/// Regular expressions in the order in which they are tried.
#[derive(Debug, Default)]
pub struct PatternSet {
    patterns: Vec<Pattern>,
    /// The numbers of the expressions without a fixed prefix.
    free: Vec<u32>,
    /// The distinct prefixes, sorted by their text.
    prefixes: Vec<Prefix>,
}

#[derive(Debug)]
struct Prefix {
    text: Vec<u8>,
    /// The numbers of the expressions with exactly this prefix, ascending.
    numbers: Vec<u32>,
    /// The index of the longest other prefix that this one begins with.
    shorter: Option<usize>,
}

impl PatternSet {
    /// A set of `patterns`, which are numbered from 0.
    #[must_use]
    pub fn new(patterns: Vec<Pattern>) -> PatternSet {
        let mut free = Vec::new();
        let mut anchored = Vec::new();
        for (number, pattern) in (0_u32..).zip(&patterns) {
            match literal_prefix(pattern.as_str()) {
                text if text.is_empty() => free.push(number),
                text => anchored.push((text, number)),
            }
        }
        anchored.sort();
        PatternSet {
            patterns,
            free,
            prefixes: grouped(anchored),
        }
    }

    /// The number of the first expression that matches `value`; stores its groups in `out`.
    ///
    /// # Errors
    /// The number of an expression whose match took too long, if no earlier one matches.
    pub fn first_match(&self, value: &[u8], out: &mut Captures) -> Result<Option<usize>, usize> {
        let longest = self.longest_prefix_of(value);
        let mut free = self.free.iter().copied().peekable();
        let mut next = 0;
        loop {
            let anchored = self.next_anchored(longest, next);
            let number = match (anchored, free.peek().copied()) {
                (Some(anchored), Some(other)) => anchored.min(other),
                (Some(number), None) | (None, Some(number)) => number,
                (None, None) => return Ok(None),
            };
            free.next_if_eq(&number);
            next = number + 1;
            let index = number as usize;
            let pattern = self.patterns.get(index).ok_or(index)?;
            match pattern.try_captures(value, out) {
                Ok(true) => return Ok(Some(index)),
                Ok(false) => {}
                Err(LimitExceeded) => return Err(index),
            }
        }
    }

    /// The index of the longest prefix that `value` begins with.
    fn longest_prefix_of(&self, value: &[u8]) -> Option<usize> {
        // All prefixes of `value` are prefixes of the last text that sorts before it.
        let behind = self
            .prefixes
            .partition_point(|prefix| prefix.text.as_slice() <= value);
        let mut place = behind.checked_sub(1)?;
        loop {
            let prefix = self.prefixes.get(place)?;
            if value.starts_with(&prefix.text) {
                return Some(place);
            }
            place = prefix.shorter?;
        }
    }

    /// The lowest number, `first` or greater, of the prefix at `longest` and of the shorter ones that it
    /// begins with.
    fn next_anchored(&self, longest: Option<usize>, first: u32) -> Option<u32> {
        let at = |place: usize| self.prefixes.get(place);
        let chain = std::iter::successors(longest.and_then(at), |prefix| at(prefix.shorter?));
        let numbers = chain.filter_map(|prefix| {
            let behind = prefix.numbers.partition_point(|number| *number < first);
            prefix.numbers.get(behind).copied()
        });
        numbers.min()
    }
}

/// Groups `anchored`, which is sorted, by prefix.
fn grouped(anchored: Vec<(Vec<u8>, u32)>) -> Vec<Prefix> {
    let mut prefixes: Vec<Prefix> = Vec::new();
    for (text, number) in anchored {
        match prefixes.last_mut() {
            Some(last) if last.text == text => last.numbers.push(number),
            _ => {
                let mut shorter = prefixes.len().checked_sub(1);
                while let Some(prefix) = shorter.and_then(|place| prefixes.get(place)) {
                    if text.starts_with(&prefix.text) {
                        break;
                    }
                    shorter = prefix.shorter;
                }
                prefixes.push(Prefix {
                    text,
                    numbers: vec![number],
                    shorter,
                });
            }
        }
    }
    prefixes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(patterns: &[impl AsRef<str>]) -> PatternSet {
        let compile = |text: &str| Pattern::compile(text).expect("it is sound");
        PatternSet::new(patterns.iter().map(|text| compile(text.as_ref())).collect())
    }

    #[test]
    fn the_first_that_matches_counts_with_and_without_fixed_text() {
        let set = set(&["^/a/b/c", "^/a/[x-z]", "y$", "^/a/", "", "^/"]);
        let found = |value: &str| {
            let mut groups = Captures::new();
            let number = set.first_match(value.as_bytes(), &mut groups);
            number.map(|number| (number, groups.group(0, value.as_bytes()).to_vec()))
        };
        for (value, number, text) in [
            ("/a/b/c/d", 0, "/a/b/c"),
            ("/a/y", 1, "/a/y"),
            ("/b/y", 2, "y"),
            ("/a/b/d", 3, "/a/"),
            ("/b", 4, ""),
        ] {
            assert_eq!(found(value), Ok((Some(number), text.into())), "{value}");
        }
    }

    #[test]
    fn of_many_only_those_that_can_match_are_run() {
        let mut patterns: Vec<String> = (0..10_000)
            .map(|number| format!("^/page-{number}/(a+)+$"))
            .collect();
        patterns.push("^/".into());
        let set = set(&patterns);
        let mut groups = Captures::new();
        let longest = set.longest_prefix_of(b"/page-77/aa");
        assert_eq!(set.next_anchored(longest, 0), Some(77));
        assert_eq!(set.next_anchored(longest, 78), Some(10_000));
        assert_eq!(set.next_anchored(longest, 10_001), None);
        assert_eq!(set.first_match(b"/page-77/aa", &mut groups), Ok(Some(77)));
        assert_eq!(set.first_match(b"/page/", &mut groups), Ok(Some(10_000)));
        assert_eq!(set.first_match(b"page", &mut groups), Ok(None));
    }

    #[test]
    fn a_match_that_takes_too_long_is_named() {
        let set = set(&["^/x", "(a+)+$", "^/a"]);
        let exploding = format!("/{}!", "a".repeat(60));
        let mut groups = Captures::new();
        assert_eq!(set.first_match(exploding.as_bytes(), &mut groups), Err(1));
        assert_eq!(set.first_match(b"/x", &mut groups), Ok(Some(0)));
    }

    proptest! {
        #[test]
        fn the_order_is_that_of_trying_all(
            patterns in proptest::collection::vec(r"\^?/?[ab]{0,3}(\[ab\]|\.\*|b\+|a\?|\$)?", 0..12),
            value in "/[ab]{0,5}",
        ) {
            let set = set(&patterns);
            let mut groups = Captures::new();
            let found = set.first_match(value.as_bytes(), &mut groups);
            let mut all = set.patterns.iter();
            let mut expected = Captures::new();
            let first = all.position(|pattern| pattern.captures(value.as_bytes(), &mut expected));
            prop_assert_eq!(found, Ok(first));
            prop_assert_eq!(groups, expected);
        }
    }
}
