//! mod_rewrite: another URL takes the place of the one that the client asked for.
//!
//! Rules match path and query together, normalised. What the first one that matches makes of them becomes the
//! request's URL, and the request begins anew with it: conditions, access rules and files are those of the
//! new URL. Rules "if not file" are asked when the physical path is known and no regular file is there; a URL
//! that belongs to a backend which needs no file is left to it, and nothing is looked up. What the client
//! asked for stays [`original_target`](petrel_engine::exchange::Request::original_target).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use petrel_engine::Exchange;
use petrel_engine::cause::CauseCode;
use petrel_engine::config::{BlockId, Diagnostic, Effect};
use petrel_engine::file_cache::FileKind;
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};
use petrel_engine::proto::url::UrlError;
use petrel_engine::settings::Values;

use crate::url_rules::{Replacement, TooManySteps, UrlRules};

/// mod_rewrite.
pub(crate) static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_rewrite",
    doc: "Rewrites URLs by regular expressions. The innermost block that sets one of the first four directives replaces what blocks around it set by any of them; so do the last two.",
    loaded: Loaded::Listed,
    directives: petrel_engine::directives! {
        "url.rewrite-once", StringMap, Request, "()", Effect::Works,
            "Regular expressions over path and query, and the URL to answer with instead; substitutions as in url.redirect. The first match counts, and no rule is tried on what it made; an empty URL leaves the URL as it is.";
        "url.rewrite", StringMap, Request, "()", Effect::Works,
            "Old name of url.rewrite-once. Rules of both are tried, those of url.rewrite-once first.";
        "url.rewrite-final", StringMap, Request, "()", Effect::Works,
            "Another old name of url.rewrite-once.";
        "url.rewrite-repeat", StringMap, Request, "()", Effect::Works,
            "As url.rewrite-once, and behind its rules; all rules are tried again on what such a rule made. More than 100 times is an error (500).";
        "url.rewrite-if-not-file", StringMap, Request, "()", Effect::Works,
            "As url.rewrite-once, where the URL leads to no regular file.";
        "url.rewrite-repeat-if-not-file", StringMap, Request, "()", Effect::Works,
            "As url.rewrite-repeat, where the URL leads to no regular file.";
    },
    configure,
};

/// Directives whose rules are tried together, in this order. What the last one's rules make is rewritten
/// again.
type Directives = [&'static str];

const ALWAYS: &Directives = &[
    "url.rewrite-once",
    "url.rewrite-final",
    "url.rewrite",
    "url.rewrite-repeat",
];

const IF_NOT_FILE: &Directives = &["url.rewrite-if-not-file", "url.rewrite-repeat-if-not-file"];

/// How often rules are asked about URLs that rules have made, for one request.
const ROUNDS_MAX: u16 = 100;

/// Bytes of a URL that a rule makes. A rule that repeats and doubles its URL comes to gigabytes in twenty
/// rounds.
const TARGET_BYTES_MAX: usize = 64 * 1024;

/// From this round on it is kept which rules match, to name those that lead to one another.
const SUSPICIOUS_ROUND: u16 = 80;

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    if let Some(rewrite) = Rewrite::of(configure.values, ALWAYS)? {
        // As in lighttpd: access rules, redirects and scripts see what rules have made, wherever their modules
        // are listed. Only mod_extforward may come before.
        configure.add_first(Phase::Translate, rewrite);
    }
    if let Some(rewrite) = Rewrite::of(configure.values, IF_NOT_FILE)? {
        configure.add(Phase::Map, RewriteIfNotFile(rewrite));
    }
    Ok(())
}

struct Rewrite {
    rules: Arc<RewriteRuleSet>,
    /// Whose groups `%0` to `%9` are.
    condition: Option<BlockId>,
}

struct RewriteIfNotFile(Rewrite);

struct RewriteRuleSet {
    rules: UrlRules,
    /// The rules from this one on are those of the last directive.
    first_repeated: usize,
}

/// What rules have done to a request.
#[derive(Default)]
struct Rewritten {
    /// How often rules were asked since the first of them matched.
    rounds: Cell<u16>,
    /// Rules have had their say.
    is_final: Cell<bool>,
    /// The request begins again behind the place of [`Rewrite`].
    is_passed_once: Cell<bool>,
    /// The rules that matched in the last rounds.
    suspects: RefCell<Vec<usize>>,
}

impl Rewrite {
    /// The rules that `directives` have in the innermost block that sets one of them.
    fn of(values: &Values<'_>, directives: &Directives) -> Result<Option<Rewrite>, Diagnostic> {
        let block = directives.iter().filter_map(|name| values.block_of(name));
        let Some(block) = block.max() else {
            return Ok(None);
        };
        let (Some(first), Some(last)) = (directives.first(), directives.last()) else {
            return Ok(None);
        };
        let set = directives.iter().copied();
        let set: Vec<_> = set
            .filter(|name| values.block_of(name) == Some(block))
            .collect();
        let rules = values
            .config()
            .compiled(first, block, || RewriteRuleSet::compile(values, &set, last))?;
        let condition = set.first().and_then(|name| values.condition_of(name));
        Ok((!rules.rules.is_empty()).then_some(Rewrite { rules, condition }))
    }

    /// Replaces the URL if a rule matches.
    fn rewrite(&self, exchange: &mut Exchange) -> Outcome {
        if exchange.request.url.path().first() != Some(&b'/') {
            return Outcome::Next;
        }
        let before = exchange.kept::<Rewritten>(MODULE.name);
        if let Some(before) = &before {
            before.rounds.set(before.rounds.get() + 1);
            if before.rounds.get() > ROUNDS_MAX {
                return self.endless(exchange, &before.suspects.borrow());
            }
            if before.is_final.get() {
                return Outcome::Next;
            }
        }
        let replacement = match self.rules.rules.replace(exchange, self.condition) {
            Ok(Some(replacement)) => replacement,
            Ok(None) => return Outcome::Next,
            Err(TooManySteps(outcome)) => return outcome,
        };
        if replacement.text.len() > TARGET_BYTES_MAX {
            return self.too_long(exchange, &replacement);
        }
        match exchange.set_target(&replacement.text) {
            Ok(()) => {}
            Err(error) => return self.refuse(exchange, &replacement, error),
        }
        let rewritten = rewritten(exchange);
        rewritten
            .is_final
            .set(replacement.rule < self.rules.first_repeated);
        let mut suspects = rewritten.suspects.borrow_mut();
        if rewritten.rounds.get() >= SUSPICIOUS_ROUND && !suspects.contains(&replacement.rule) {
            suspects.push(replacement.rule);
        }
        Outcome::Rewritten
    }

    /// What a rule made is no URL. A wrong form is the rule's fault; what may not stand in a URL came from
    /// the client's.
    #[cold]
    fn refuse(
        &self,
        exchange: &mut Exchange,
        replacement: &Replacement,
        error: UrlError,
    ) -> Outcome {
        let name = self.rules.rules.name(exchange, &[replacement.rule]);
        let made = replacement.text.escape_ascii();
        let outcome = exchange.fail(match error {
            UrlError::Form => CauseCode::RewriteNoUrl,
            _ => CauseCode::RewriteRefused,
        });
        exchange.log_error(
            "translate",
            format_args!("the rule {name} made \"{made}\": {error}"),
        );
        outcome
    }

    #[cold]
    fn too_long(&self, exchange: &mut Exchange, replacement: &Replacement) -> Outcome {
        let name = self.rules.rules.name(exchange, &[replacement.rule]);
        let outcome = exchange.fail(CauseCode::RewriteTooLong);
        let cause =
            format_args!("the rule {name} made a URL of more than {TARGET_BYTES_MAX} bytes");
        exchange.log_error("translate", cause);
        outcome
    }

    #[cold]
    fn endless(&self, exchange: &mut Exchange, suspects: &[usize]) -> Outcome {
        let names = self.rules.rules.name(exchange, suspects);
        let outcome = exchange.fail(CauseCode::RewriteEndless);
        let cause = format_args!(
            "the URL was rewritten more than {ROUNDS_MAX} times, by {names}; a rule of url.rewrite-once ends that"
        );
        exchange.log_error("translate", cause);
        outcome
    }
}

impl RewriteRuleSet {
    /// The rules of the directives `set`; those of `repeated`, if it is one of them, are the last.
    fn compile(
        values: &Values<'_>,
        set: &[&str],
        repeated: &str,
    ) -> Result<RewriteRuleSet, Diagnostic> {
        let arrays = |name: &&str| values.array(name);
        let once = set.iter().filter(|name| **name != repeated);
        let first_repeated = once
            .filter_map(arrays)
            .map(|rules| rules.iter().count())
            .sum();
        let elements = set.iter().filter_map(arrays).flatten();
        Ok(RewriteRuleSet {
            rules: UrlRules::compile(values, elements)?,
            first_repeated,
        })
    }
}

/// Keeps rules from being asked when the request begins again, because they stand before the module that has it
/// begin again. Rules about files are not meant.
pub(crate) fn pass_once(exchange: &mut Exchange) {
    rewritten(exchange).is_passed_once.set(true);
}

fn rewritten(exchange: &mut Exchange) -> Rc<Rewritten> {
    exchange.kept(MODULE.name).unwrap_or_else(|| {
        let rewritten = Rc::<Rewritten>::default();
        exchange.keep(MODULE.name, Rc::<Rewritten>::clone(&rewritten));
        rewritten
    })
}

impl Hook for Rewrite {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let before = exchange.kept::<Rewritten>(MODULE.name);
        if before.is_some_and(|before| before.is_passed_once.take()) {
            return Outcome::Next;
        }
        self.rewrite(exchange)
    }
}

impl Hook for RewriteIfNotFile {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        if exchange.physical.is_virtual {
            return Outcome::Next;
        }
        let symlinks = exchange.settings.core.symlinks;
        let Some(file) = exchange.look_up(&exchange.physical.path, symlinks) else {
            return Outcome::Cold;
        };
        match file.kind() {
            FileKind::Regular => Outcome::Next,
            FileKind::Denied if file.is_unreadable_file() => Outcome::Next,
            // Whether a file is there is not known: the error is the answer, not another page.
            FileKind::Failed(_) => Outcome::Next,
            _ => self.0.rewrite(exchange),
        }
    }
}

#[cfg(test)]
mod tests;
