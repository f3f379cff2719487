//! Matches a pattern's items against a subject, counting steps.

use super::compile::{Pattern, PatternItem, Repeat, Set};
use super::{CAPTURES_MAX, DEPTH_MAX};

/// A match: its position and its captures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Offset of the first byte.
    pub start: usize,
    /// Offset after the last byte.
    pub end: usize,
    captures: [Capture; CAPTURES_MAX],
    count: usize,
}

/// What a pair of parentheses captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    /// The text between two offsets.
    Text(usize, usize),
    /// A position capture `()`: an offset.
    Position(usize),
    /// A parenthesis that began here and is not closed.
    Unfinished(usize),
}

/// Why a match was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// All steps are used up.
    Steps,
    /// More nesting than [`DEPTH_MAX`].
    TooComplex,
    /// More captures than [`CAPTURES_MAX`].
    TooManyCaptures,
    /// A reference to a capture that does not exist or is still open.
    InvalidCapture,
    /// A `)` without `(`.
    UnmatchedClose,
    /// A `(` without `)`.
    UnfinishedCapture,
    /// `%` as the last byte.
    EndsWithPercent,
    /// `[` without `]`.
    MissingBracket,
    /// `%b` without two bytes.
    Unbalanced,
    /// `%f` without `[`.
    FrontierWithoutSet,
}

impl Stop {
    /// LuaJIT's message for it; there is none for [`Stop::Steps`].
    #[must_use]
    pub fn message(self) -> &'static str {
        match self {
            Stop::Steps => "the pattern needs too many steps",
            Stop::TooComplex => "pattern too complex",
            Stop::TooManyCaptures => "too many captures",
            Stop::InvalidCapture => "invalid capture index",
            Stop::UnmatchedClose => "invalid pattern capture",
            Stop::UnfinishedCapture => "unfinished capture",
            Stop::EndsWithPercent => "malformed pattern (ends with '%')",
            Stop::MissingBracket => "malformed pattern (missing ']')",
            Stop::Unbalanced => "unbalanced pattern",
            Stop::FrontierWithoutSet => "missing '[' after '%f' in pattern",
        }
    }
}

impl Found {
    /// The captures in the order of their opening parentheses; none if the pattern has none.
    #[must_use]
    pub fn captures(&self) -> &[Capture] {
        self.captures.get(..self.count).unwrap_or_default()
    }

    /// The capture that `%index` (from zero) means in a replacement; the whole match if the pattern has no
    /// captures.
    ///
    /// # Errors
    /// There is no such capture, or it is not closed.
    pub(crate) fn capture(&self, index: usize) -> Result<Capture, Stop> {
        match self.captures().get(index) {
            Some(Capture::Unfinished(_)) => Err(Stop::UnfinishedCapture),
            Some(capture) => Ok(*capture),
            None if index == 0 => Ok(Capture::Text(self.start, self.end)),
            None => Err(Stop::InvalidCapture),
        }
    }
}

impl Pattern {
    /// The first match that begins at or after `from`, or exactly at `from` if the pattern is anchored.
    /// `steps` is the remaining allowance, and is reduced.
    ///
    /// # Errors
    /// The steps are used up, or the match reaches an error in the pattern.
    pub fn find(
        &self,
        subject: &[u8],
        from: usize,
        steps: &mut u64,
    ) -> Result<Option<Found>, Stop> {
        let mut attempt = Attempt {
            items: &self.items,
            subject,
            captures: [Capture::Position(0); CAPTURES_MAX],
            count: 0,
            depth: 0,
            steps: *steps,
        };
        let found = attempt.search(from, self.anchored);
        *steps = attempt.steps;
        found
    }
}

/// A search in progress.
struct Attempt<'a> {
    items: &'a [PatternItem],
    subject: &'a [u8],
    captures: [Capture; CAPTURES_MAX],
    count: usize,
    depth: usize,
    steps: u64,
}

impl Attempt<'_> {
    fn search(&mut self, from: usize, anchored: bool) -> Result<Option<Found>, Stop> {
        let mut start = from;
        loop {
            if !anchored {
                start = match self.next_start(start)? {
                    Some(start) => start,
                    None => return Ok(None),
                };
            }
            if let Some(found) = self.begin(start)? {
                return Ok(Some(found));
            }
            if anchored || start >= self.subject.len() {
                return Ok(None);
            }
            start += 1;
        }
    }

    /// The first position from `start` on where the first item may match.
    fn next_start(&mut self, start: usize) -> Result<Option<usize>, Stop> {
        let Some(PatternItem::One(set, Repeat::Once | Repeat::Some)) = self.items.first() else {
            return Ok(Some(start));
        };
        let rest = self.subject.get(start..).unwrap_or_default();
        let skipped = match set.single() {
            Some(byte) => memchr::memchr(byte, rest),
            None => rest.iter().position(|byte| set.contains(*byte)),
        };
        self.spend(skipped.unwrap_or(rest.len()))?;
        Ok(skipped.map(|skipped| start + skipped))
    }

    fn begin(&mut self, start: usize) -> Result<Option<Found>, Stop> {
        self.count = 0;
        self.depth = 0;
        let Some(end) = self.follow(start, 0)? else {
            return Ok(None);
        };
        Ok(Some(Found {
            start,
            end,
            captures: self.captures,
            count: self.count,
        }))
    }

    /// Uses up `count` steps.
    fn spend(&mut self, count: usize) -> Result<(), Stop> {
        match self.steps.checked_sub(count as u64) {
            Some(left) => {
                self.steps = left;
                Ok(())
            }
            None => {
                self.steps = 0;
                Err(Stop::Steps)
            }
        }
    }

    /// Where the items from `item` on end if they match at `at`.
    fn follow(&mut self, at: usize, item: usize) -> Result<Option<usize>, Stop> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(Stop::TooComplex);
        }
        let end = self.walk(at, item);
        self.depth -= 1;
        end
    }

    fn walk(&mut self, mut at: usize, mut index: usize) -> Result<Option<usize>, Stop> {
        let items = self.items;
        while let Some(item) = items.get(index) {
            self.spend(1)?;
            let next = match item {
                PatternItem::One(set, Repeat::Once) => self.one(set, at),
                PatternItem::One(set, Repeat::Optional) => {
                    if let Some(next) = self.one(set, at)
                        && let Some(end) = self.follow(next, index + 1)?
                    {
                        return Ok(Some(end));
                    }
                    Some(at)
                }
                PatternItem::One(set, Repeat::Any) => return self.longest(set, at, at, index + 1),
                PatternItem::One(set, Repeat::Some) => {
                    return match self.one(set, at) {
                        Some(next) => self.longest(set, next, next, index + 1),
                        None => Ok(None),
                    };
                }
                PatternItem::One(set, Repeat::Shortest) => {
                    return self.shortest(set, at, index + 1);
                }
                PatternItem::Balance(open, close) => self.balance(at, *open, *close)?,
                PatternItem::Frontier(set) => self.is_frontier(set, at).then_some(at),
                PatternItem::Again(capture) => self.again(at, *capture)?,
                PatternItem::Open => return self.open(Capture::Unfinished(at), at, index + 1),
                PatternItem::Position => return self.open(Capture::Position(at), at, index + 1),
                PatternItem::Close => return self.close(at, index + 1),
                PatternItem::End => (at == self.subject.len()).then_some(at),
                PatternItem::Fault(fault) => return Err(*fault),
            };
            match next {
                Some(next) => at = next,
                None => return Ok(None),
            }
            index += 1;
        }
        Ok(Some(at))
    }

    fn one(&self, set: &Set, at: usize) -> Option<usize> {
        self.subject
            .get(at)
            .filter(|byte| set.contains(**byte))
            .map(|_| at + 1)
    }

    /// Tries as many bytes of `set` as possible from `at` on, then fewer, down to `least`.
    fn longest(
        &mut self,
        set: &Set,
        at: usize,
        least: usize,
        rest: usize,
    ) -> Result<Option<usize>, Stop> {
        let tail = self.subject.get(at..).unwrap_or_default();
        let count = tail.iter().take_while(|byte| set.contains(**byte)).count();
        self.spend(count)?;
        let mut end = at + count;
        // If only one byte can come next, only positions before that byte are tried.
        let wanted = match self.items.get(rest) {
            Some(PatternItem::One(next, Repeat::Once | Repeat::Some)) => Some(*next),
            _ => None,
        };
        loop {
            let hopeless = wanted.is_some_and(|next| self.one(&next, end).is_none());
            if hopeless {
                self.spend(1)?;
            } else if let Some(found) = self.follow(end, rest)? {
                return Ok(Some(found));
            }
            if end == least {
                return Ok(None);
            }
            end -= 1;
        }
    }

    fn shortest(&mut self, set: &Set, mut at: usize, rest: usize) -> Result<Option<usize>, Stop> {
        loop {
            if let Some(found) = self.follow(at, rest)? {
                return Ok(Some(found));
            }
            match self.one(set, at) {
                Some(next) => at = next,
                None => return Ok(None),
            }
        }
    }

    fn balance(&mut self, at: usize, open: u8, close: u8) -> Result<Option<usize>, Stop> {
        let mut bytes = self.subject.get(at..).unwrap_or_default().iter();
        if bytes.next() != Some(&open) {
            return Ok(None);
        }
        let mut nesting = 1usize;
        let mut end = at + 1;
        for byte in bytes {
            end += 1;
            if *byte == close {
                nesting -= 1;
                if nesting == 0 {
                    self.spend(end - at)?;
                    return Ok(Some(end));
                }
            } else if *byte == open {
                nesting += 1;
            }
        }
        self.spend(end - at)?;
        Ok(None)
    }

    fn is_frontier(&self, set: &Set, at: usize) -> bool {
        let before = at
            .checked_sub(1)
            .and_then(|before| self.subject.get(before))
            .copied()
            .unwrap_or(0);
        let here = self.subject.get(at).copied().unwrap_or(0);
        !set.contains(before) && set.contains(here)
    }

    fn again(&mut self, at: usize, capture: Option<usize>) -> Result<Option<usize>, Stop> {
        let index = capture.filter(|index| *index < self.count);
        let capture = index.and_then(|index| self.captures.get(index));
        match capture {
            Some(Capture::Text(start, end)) => {
                let text = self.subject.get(*start..*end).unwrap_or_default();
                self.spend(1 + text.len() / 16)?;
                let rest = self.subject.get(at..).unwrap_or_default();
                Ok(rest.starts_with(text).then_some(at + text.len()))
            }
            // LuaJIT stores a huge length for a position capture, which never fits.
            Some(Capture::Position(_)) => Ok(None),
            Some(Capture::Unfinished(_)) | None => Err(Stop::InvalidCapture),
        }
    }

    fn open(&mut self, capture: Capture, at: usize, rest: usize) -> Result<Option<usize>, Stop> {
        let slot = self
            .captures
            .get_mut(self.count)
            .ok_or(Stop::TooManyCaptures)?;
        *slot = capture;
        self.count += 1;
        let end = self.follow(at, rest)?;
        if end.is_none() {
            self.count -= 1;
        }
        Ok(end)
    }

    fn close(&mut self, at: usize, rest: usize) -> Result<Option<usize>, Stop> {
        let open = self.captures.get(..self.count).unwrap_or_default();
        let index = open
            .iter()
            .rposition(|capture| matches!(capture, Capture::Unfinished(_)))
            .ok_or(Stop::UnmatchedClose)?;
        let Capture::Unfinished(start) = self.captures[index] else {
            return Err(Stop::UnmatchedClose);
        };
        self.captures[index] = Capture::Text(start, at);
        let end = self.follow(at, rest)?;
        if end.is_none() {
            self.captures[index] = Capture::Unfinished(start);
        }
        Ok(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(pattern: &str, subject: &str) -> Result<Option<(usize, usize)>, Stop> {
        let mut steps = 1_000_000;
        let found = Pattern::new(pattern.as_bytes()).find(subject.as_bytes(), 0, &mut steps)?;
        Ok(found.map(|found| (found.start, found.end)))
    }

    #[test]
    fn exponential_patterns_run_out_of_steps() {
        let pattern = format!("{}b", "a?".repeat(40));
        assert_eq!(find(&pattern, &"a".repeat(60)), Err(Stop::Steps));
        assert_eq!(
            find(&format!("{}b", ".-".repeat(9)), &"a".repeat(300)),
            Err(Stop::Steps)
        );
    }

    #[test]
    fn deep_patterns_are_too_complex() {
        assert_eq!(
            find(&"a?".repeat(300), &"a".repeat(300)),
            Err(Stop::TooComplex)
        );
        assert_eq!(find(&"()".repeat(33), ""), Err(Stop::TooManyCaptures));
    }

    #[test]
    fn faults_count_only_where_a_match_comes() {
        assert_eq!(find("x[", "abc"), Ok(None));
        assert_eq!(find("a[", "abc"), Err(Stop::MissingBracket));
        assert_eq!(find("a%", "abc"), Err(Stop::EndsWithPercent));
        assert_eq!(find("%1", "abc"), Err(Stop::InvalidCapture));
    }

    #[test]
    fn steps_are_charged_once_for_a_linear_search() {
        let subject = vec![b'x'; 100_000];
        let mut steps = 300_000;
        let found = Pattern::new(b"%d+").find(&subject, 0, &mut steps);
        assert_eq!(found, Ok(None));
        assert!(steps > 100_000, "{steps}");
    }
}
