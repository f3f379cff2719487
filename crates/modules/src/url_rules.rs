//! Rules that replace a request's path and query by regular expressions, for mod_redirect and mod_rewrite.
//!
//! They are compiled once for the block they stand in: the check at the start does it, all workers and
//! settings share them. Which rules can match is found by the text that they begin with ([`PatternSet`]).

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use petrel_engine::Exchange;
use petrel_engine::cause::CauseCode;
use petrel_engine::config::{
    BlockId, Captures, Diagnostic, Element, Pattern, PatternSet, Sources, Span, Template,
};
use petrel_engine::exchange::dry_run::Note;
use petrel_engine::module::Outcome;
use petrel_engine::settings::Values;

use crate::substitutions;

/// Rules in the order in which they are tried.
pub(crate) struct UrlRules {
    patterns: PatternSet,
    rules: Vec<ReplacementRule>,
}

struct ReplacementRule {
    /// `None`: what the rule matches stays as it is.
    replacement: Option<Template>,
    /// Where its expression stands.
    span: Span,
}

/// The replacement that a rule has made.
pub(crate) struct Replacement {
    /// The number of the rule.
    pub(crate) rule: usize,
    /// The text with all substitutions made. Anything can stand in it.
    pub(crate) text: Vec<u8>,
}

/// A rule took too many steps to find out whether it matches. Logged; the answer is the outcome.
pub(crate) struct TooManySteps(pub(crate) Outcome);

impl UrlRules {
    /// Compiles `elements`: regular expressions and what takes the place of the URLs they match.
    ///
    /// # Errors
    /// The first expression that does not compile.
    pub(crate) fn compile<'v>(
        values: &Values<'_>,
        elements: impl Iterator<Item = &'v Element>,
    ) -> Result<UrlRules, Diagnostic> {
        let is_normalized = normalizes_urls(values);
        let mut patterns = Vec::new();
        let mut rules = Vec::new();
        for element in elements {
            let replacement = element.value.as_str().unwrap_or_default();
            let replacement = match is_normalized {
                true => normalized(replacement, "%%"),
                false => replacement.into(),
            };
            patterns.push(pattern(element, is_normalized)?);
            rules.push(ReplacementRule {
                replacement: (!replacement.is_empty()).then(|| Template::compile(&replacement)),
                span: span(element),
            });
        }
        Ok(UrlRules {
            patterns: PatternSet::new(patterns),
            rules,
        })
    }

    /// Whether there is no rule.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// What the first rule that matches makes of the URL. `condition` is the block whose groups `%0` to `%9`
    /// are. `None`: no rule matches, or the one that does leaves the URL as it is.
    pub(crate) fn replace(
        &self,
        exchange: &mut Exchange,
        condition: Option<BlockId>,
    ) -> Result<Option<Replacement>, TooManySteps> {
        let target = exchange.request.url.target();
        let mut groups = Captures::new();
        let rule = match self.patterns.first_match(target, &mut groups) {
            Ok(Some(rule)) => rule,
            Ok(None) => return Ok(None),
            Err(rule) => return Err(self.too_many_steps(exchange, rule)),
        };
        let matched = self.rules.get(rule);
        if let Some(matched) = matched {
            exchange.note(|| Note::Rule(matched.span));
        }
        let template = matched.and_then(|rule| rule.replacement.as_ref());
        Ok(template.map(|template| Replacement {
            rule,
            text: substitutions::expand(template, groups, target, condition, exchange),
        }))
    }

    /// Names the rules with these numbers for a log: their expressions, and where they stand.
    pub(crate) fn name(&self, exchange: &Exchange, numbers: &[usize]) -> String {
        let sources = &exchange.worker.settings_table().config().sources;
        let mut names = String::new();
        for rule in numbers.iter().filter_map(|number| self.rules.get(*number)) {
            let separator = if names.is_empty() { "" } else { ", " };
            // Writing to a string does not fail.
            let _ = write!(names, "{separator}{}", RuleName { sources, rule });
        }
        names
    }

    #[cold]
    fn too_many_steps(&self, exchange: &mut Exchange, rule: usize) -> TooManySteps {
        let name = self.name(exchange, &[rule]);
        let outcome = exchange.fail(CauseCode::RuleTooSlow);
        let cause = format_args!("the rule {name} takes too many steps to match this URL");
        exchange.log_error("translate", cause);
        TooManySteps(outcome)
    }
}

struct RuleName<'r> {
    sources: &'r Sources,
    rule: &'r ReplacementRule,
}

impl fmt::Display for RuleName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.sources.location(self.rule.span);
        let text = self.sources.text(self.rule.span);
        write!(f, "{text} ({}:{})", place.file, place.line)
    }
}

fn pattern(element: &Element, is_normalized: bool) -> Result<Pattern, Diagnostic> {
    let text = element.key().unwrap_or_default();
    let compiled = match is_normalized {
        true => Pattern::compile(&normalized(text, "%")),
        false => Pattern::compile(text),
    };
    compiled.map_err(|error| {
        let message = format!("{text:?} is no regular expression: {}", error.message);
        let diagnostic = Diagnostic::error(message, span(element));
        match error.offset {
            Some(offset) => diagnostic.with_hint(format!("it fails at character {}", offset + 1)),
            None => diagnostic,
        }
    })
}

fn span(element: &Element) -> Span {
    element.key.as_ref().map_or(element.span, |key| key.span)
}

/// Whether the targets that rules match are normalised (url-normalize of `server.http-parseopts`).
fn normalizes_urls(values: &Values<'_>) -> bool {
    let mut options = values.array("server.http-parseopts").into_iter().flatten();
    let switch = options.find(|option| option.key() == Some("url-normalize"));
    switch.and_then(|switch| switch.value.as_bool()) != Some(false)
}

/// `text` as a normalised target would have it: letters of other alphabets percent-encoded, and what is
/// percent-encoded in upper case. `sign` is what begins an encoded byte in it; in replacements a percent sign
/// is doubled.
fn normalized<'t>(text: &'t str, sign: &str) -> Cow<'t, str> {
    if text.is_ascii() && !text.contains('%') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let encoded = rest.strip_prefix(sign).and_then(|behind| behind.get(..2));
        let encoded = encoded.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let length = match encoded {
            Some(digits) => {
                out.push_str(sign);
                out.push_str(&digits.to_ascii_uppercase());
                sign.len() + digits.len()
            }
            None if first.is_ascii() => {
                out.push(first);
                1
            }
            None => {
                for byte in first.encode_utf8(&mut [0; 4]).bytes() {
                    // Writing to a string does not fail.
                    let _ = write!(out, "{sign}{byte:02X}");
                }
                first.len_utf8()
            }
        };
        rest = rest.get(length..).unwrap_or_default();
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_written_as_targets_are_normalised() {
        for (text, key, replacement) in [
            ("^/a$", "^/a$", "^/a$"),
            ("/%c3%bc%2f%zz%", "/%C3%BC%2F%zz%", "/%c3%bc%2f%zz%"),
            ("/%%c3%1", "/%%C3%1", "/%%C3%1"),
            ("/ü", "/%C3%BC", "/%%C3%%BC"),
        ] {
            assert_eq!(normalized(text, "%"), key);
            assert_eq!(normalized(text, "%%"), replacement);
        }
    }
}
