//! Regular expressions of conditions, and of `url.redirect`, `url.rewrite` and similar directives.
//!
//! A [`Pattern`] is a PCRE expression over bytes. Most expressions in configurations only look complicated:
//! `^www\.example\.com$`, `(^|\.)example\.com$` and `^/prefix` are comparisons with fixed text. They are
//! recognised and do not use PCRE. The others are checked when they are read, and are compiled to machine
//! code at their first use, so that a file with hundreds of virtual hosts loads fast.

use std::sync::{Arc, Mutex, OnceLock};

use pcre2::bytes::{CaptureLocations, Regex, RegexBuilder};

use crate::captures::{Captures, GROUPS_MAX};
use crate::plain::Plain;

/// A compiled regular expression over bytes.
///
/// Workers may share a pattern without waiting for each other, but matches at the same moment allocate
/// scratch space. A clone shares the compiled code and has its own scratch space.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: Arc<str>,
    engine: Engine,
}

/// Why a pattern does not compile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternError {
    /// The message of PCRE.
    pub message: String,
    /// The byte offset in the pattern at which PCRE stopped.
    pub offset: Option<usize>,
}

/// A match took more steps than [`LIMIT_PREFIX`] allows, so it is unknown whether the pattern matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitExceeded;

impl Pattern {
    /// Compiles `text`. An empty expression matches everything.
    ///
    /// # Errors
    /// PCRE refuses the expression.
    pub fn compile(text: &str) -> Result<Pattern, PatternError> {
        let engine = match Plain::recognise(text) {
            Some(plain) => Engine::Plain(plain),
            None => Engine::Pcre(Box::new(Pcre::checked(text)?)),
        };
        Ok(Pattern {
            text: text.into(),
            engine,
        })
    }

    /// The expression as it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it matches anywhere in `value`. A match that exceeds [`LIMIT_PREFIX`] counts as none.
    #[must_use]
    pub fn is_match(&self, value: &[u8]) -> bool {
        match &self.engine {
            Engine::Plain(plain) => plain.is_match(value),
            Engine::Pcre(pcre) => pcre.regex().is_match(value).unwrap_or(false),
        }
    }

    /// Whether it matches anywhere in `value`; stores the groups in `out`, which is unchanged if there is no
    /// match. A match that exceeds [`LIMIT_PREFIX`] counts as none.
    pub fn captures(&self, value: &[u8], out: &mut Captures) -> bool {
        self.try_captures(value, out).unwrap_or(false)
    }

    /// Like [`Pattern::captures`], for rules where "no match" would be a decision.
    ///
    /// # Errors
    /// The match has exceeded [`LIMIT_PREFIX`].
    pub fn try_captures(&self, value: &[u8], out: &mut Captures) -> Result<bool, LimitExceeded> {
        match &self.engine {
            Engine::Plain(plain) => Ok(plain.captures(value, out)),
            Engine::Pcre(pcre) => pcre.captures(value, out),
        }
    }

    /// Whether it does not use PCRE.
    #[cfg(test)]
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.engine, Engine::Plain(_))
    }
}

#[derive(Clone, Debug)]
enum Engine {
    Plain(Plain),
    Pcre(Box<Pcre>),
}

/// An expression that PCRE matches.
#[derive(Debug)]
struct Pcre {
    /// The interpreted form, which was compiled to check the expression. It is also used if the system
    /// forbids machine code.
    checked: Regex,
    compiled: OnceLock<Regex>,
    /// Scratch space for groups that the next match uses again. Locked for one match at most.
    scratch: Mutex<Option<CaptureLocations>>,
}

impl Clone for Pcre {
    fn clone(&self) -> Self {
        Pcre {
            checked: self.checked.clone(),
            compiled: self.compiled.clone(),
            scratch: Mutex::new(None),
        }
    }
}

impl Pcre {
    fn checked(text: &str) -> Result<Pcre, PatternError> {
        let limited = format!("{LIMIT_PREFIX}{text}");
        let checked = RegexBuilder::new()
            .build(&limited)
            .map_err(|error| PatternError {
                message: reason(&error.to_string()),
                offset: error
                    .offset()
                    .map(|offset| offset.saturating_sub(LIMIT_PREFIX.len()).min(text.len())),
            })?;
        Ok(Pcre {
            checked,
            compiled: OnceLock::new(),
            scratch: Mutex::new(None),
        })
    }

    fn regex(&self) -> &Regex {
        self.compiled.get_or_init(|| {
            let fast = RegexBuilder::new()
                .jit_if_available(true)
                .build(self.checked.as_str());
            fast.unwrap_or_else(|_| self.checked.clone())
        })
    }

    fn captures(&self, value: &[u8], out: &mut Captures) -> Result<bool, LimitExceeded> {
        let regex = self.regex();
        // Another worker may use it at the moment; then this match allocates its own.
        let kept = self.scratch.try_lock().ok();
        let kept = kept.and_then(|mut scratch| scratch.take());
        let mut groups = kept.unwrap_or_else(|| regex.capture_locations());
        let mut matched = regex
            .captures_read(&mut groups, value)
            .map(|found| found.is_some());
        if matched
            .as_ref()
            .is_err_and(|error| error.code() == JIT_STACK_EXHAUSTED)
        {
            groups = self.checked.capture_locations();
            let found = self.checked.captures_read(&mut groups, value);
            matched = found.map(|found| found.is_some());
        }
        if let Ok(true) = matched {
            out.clear();
            for number in 0..groups.len().min(GROUPS_MAX) {
                let (start, end) = groups.get(number).unwrap_or((0, 0));
                out.push(start, end);
            }
        }
        if let Ok(mut scratch) = self.scratch.try_lock() {
            *scratch = Some(groups);
        }
        matched.map_err(|_| LimitExceeded)
    }
}

/// PCRE's own message, without the codes and the offset that the crate adds.
fn reason(message: &str) -> String {
    message.rsplit(": ").next().unwrap_or(message).to_owned()
}
/// How many steps one match may take. With PCRE's default of ten million, a single hostile URL can occupy a
/// worker for a tenth of a second. Reasonable expressions need a few hundred.
const LIMIT_PREFIX: &str = "(*LIMIT_MATCH=1000000)";

/// PCRE2_ERROR_JIT_STACKLIMIT: machine code has only 32 KiB of stack. The interpreter, whose memory can grow,
/// tries again.
const JIT_STACK_EXHAUSTED: i32 = -46;

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(pattern: &str, value: &[u8]) -> Option<Vec<String>> {
        let mut captures = Captures::new();
        let pattern = Pattern::compile(pattern).expect("the pattern is sound");
        pattern.captures(value, &mut captures).then(|| {
            let group = |n| String::from_utf8_lossy(captures.group(n, value)).into_owned();
            let mut groups: Vec<String> = (0..=GROUPS_MAX).map(group).collect();
            groups.truncate(
                1 + groups
                    .iter()
                    .rposition(|group| !group.is_empty())
                    .unwrap_or(0),
            );
            groups
        })
    }

    #[test]
    fn groups_are_numbered_from_the_whole_match() {
        let found = groups(r"^/(\w+)/(x)?(\d+)$", b"/ab/12").expect("it matches");
        assert_eq!(found, ["/ab/12", "ab", "", "12"]);
        assert_eq!(groups(r"^/(\w+)/(\d+)$", b"/ab/x"), None);
    }

    #[test]
    fn groups_past_the_ninth_are_left_out() {
        let found =
            groups("(a)(b)(c)(d)(e)(f)(g)(h)(i)(j)(k)", b"abcdefghijk").expect("it matches");
        assert_eq!(found.len(), GROUPS_MAX);
        assert_eq!(found.last().map(String::as_str), Some("i"));
    }

    #[test]
    fn an_error_tells_where_in_the_expression() {
        let error = Pattern::compile("ab(c").expect_err("a group is open");
        assert_eq!(
            (error.message.as_str(), error.offset),
            ("missing closing parenthesis", Some(4))
        );
        let error = Pattern::compile("a{2}**[x").expect_err("nothing to repeat");
        assert!(error.offset.is_some_and(|offset| offset <= 8), "{error:?}");
    }

    #[test]
    fn bytes_that_are_no_text_can_be_matched() {
        assert_eq!(
            groups(r"^\xff(.)$", b"\xff\xfe").map(|found| found.len()),
            Some(2)
        );
    }

    #[test]
    fn a_match_that_explodes_is_no_match_and_ends_soon() {
        let pattern = Pattern::compile("^(a+)+$").expect("the pattern is sound");
        let value = [vec![b'a'; 60], vec![b'!']].concat();
        let start = std::time::Instant::now();
        assert!(!pattern.is_match(&value));
        let mut groups = Captures::new();
        assert_eq!(
            pattern.try_captures(&value, &mut groups),
            Err(LimitExceeded)
        );
        assert_eq!(pattern.try_captures(b"b", &mut groups), Ok(false));
        assert!(start.elapsed().as_secs() < 30);
    }

    #[test]
    fn a_long_value_that_exhausts_the_stack_of_machine_code_is_matched_all_the_same() {
        let pattern = Pattern::compile("^/((?:a|b)*)$").expect("the pattern is sound");
        let value = [b"/".as_slice(), &b"ab".repeat(8000)].concat();
        let mut groups = Captures::new();
        assert_eq!(pattern.try_captures(&value, &mut groups), Ok(true));
        assert_eq!(groups.group(1, &value).len(), 16_000);
        assert_eq!(pattern.try_captures(b"/a", &mut groups), Ok(true));
    }
}
