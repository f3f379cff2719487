//! mod_limit: how many requests may come, and be under way, for each address, header field, cookie, URL or other key.
//!
//! [`rule`] reads `limit.rules`, [`key`] finds the key of a request, [`table`] knows what keys have asked for, by [`rate`].
//! All workers count together ([`state`]); gateways ask [`share`] how much of a backend a key may take. A request counts
//! once under each rule, however often it is rewritten or begins anew; what the server asks itself (subrequests, error
//! handlers) does not count. For HTTP/2 every request counts, not the connection. Behind a trusted proxy the address is the
//! client's.

mod key;
mod rate;
mod rule;
mod share;
mod state;
mod table;

#[cfg(test)]
mod tests;

use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use petrel_engine::Exchange;
use petrel_engine::config::{Diagnostic, Effect, Subject};
use petrel_engine::ledger::Nanos;
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};
use petrel_engine::settings::Values;

use rule::LimitRule;
use share::KeyOfRule;
use state::{CountedRequest, LimitState, LimitStates};
use table::LimitVerdict;

pub(crate) use share::{PoolShares, TakenShares, take_share};
pub(crate) use state::read_counters;

const NAME: &str = "mod_limit";

const NAME_OF_RULES: &str = "limit.rules";

/// mod_limit.
pub(crate) static MODULE: ModuleSpec = ModuleSpec {
    name: NAME,
    doc: "Limits how many requests of one client, or of another key, may come and be under way. docs/limits.md is about it.",
    loaded: Loaded::Listed,
    directives: petrel_engine::directives! {
        "limit.rules", Map, Request, "()", Effect::Works,
            "A map from a rule's name to its options: key (address, header:NAME, cookie:NAME, url, env:NAME or all), ipv4-prefix and ipv6-prefix, rate (such as 10/m) and burst, concurrent, pool-share (percent of a backend's connections), entries, status. Requests beyond a limit are answered 429 with Retry-After.";
    },
    configure,
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let rules = rule::read(configure.values)?;
    if rules.is_empty() {
        return Ok(());
    }
    let (variables, others): (Vec<_>, Vec<_>) =
        rules.into_iter().partition(|rule| rule.key.is_variable());
    if !others.is_empty() {
        // Where the module stands in server.modules, so that it can spare others the work; behind what says who the
        // client is.
        let phase = match depends_on_file(configure.values) {
            true => Phase::Resolved,
            false => Phase::Translate,
        };
        configure.add(phase, Limits::new(others));
    }
    if !variables.is_empty() {
        // As soon as the variable is there: scripts set it in two phases, and authentication between them.
        let limits = Rc::new(Limits::new(variables));
        for phase in [Phase::Translate, Phase::Authorize, Phase::Resolved] {
            configure.add_last(phase, SharedLimits(Rc::clone(&limits)));
        }
    }
    Ok(())
}

/// Whether the rules count only for some files: that is not known before a file is looked up.
fn depends_on_file(values: &Values<'_>) -> bool {
    let config = values.config();
    let block = values.block_of(NAME_OF_RULES);
    let block = block.and_then(|id| config.block(id));
    let is_known = |subject: &Subject| {
        !matches!(
            subject,
            Subject::PhysicalPath | Subject::PhysicalExistingPath
        )
    };
    block.is_some_and(|block| !config.depends_only_on(block, &is_known))
}

/// The rules of one set of settings.
struct Limits {
    rules: Vec<LimitRule>,
    /// Made when the first request asks.
    prepared: OnceCell<Prepared>,
}

/// The rules with what all workers know of them.
struct Prepared {
    states: Vec<Arc<LimitState>>,
    /// The marks of all rules, if a mark is all that they leave on a request: no rule has to know when the request is over, or may
    /// be asked again. Otherwise 0.
    marks: u64,
}

/// [`Limits`] that are asked in several phases.
struct SharedLimits(Rc<Limits>);

/// What a request keeps.
#[derive(Default)]
struct Admitted {
    /// Rules without a mark that have counted it.
    by: Vec<Arc<LimitState>>,
    /// One is the rule, and needs no allocation of its own.
    under_way: Option<CountedRequest>,
    further_under_way: Vec<CountedRequest>,
    /// For rules with a share of backends.
    shares: Vec<KeyOfRule>,
    /// The same of other settings, which the request had before it was rewritten, or of an earlier phase.
    before: Option<Rc<Admitted>>,
}

impl Hook for Limits {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        if exchange.is_subrequest() || exchange.handles_error() {
            return Outcome::Next;
        }
        let prepared = self.prepared.get_or_init(|| self.prepare(exchange));
        match prepared.marks {
            marks if marks != 0 && exchange.marks() & marks == 0 => prepared.count(exchange),
            _ => prepared.count_in_full(exchange),
        }
    }
}

impl Prepared {
    /// Counts a request that no rule has counted yet, and on which rules leave nothing but marks.
    #[inline]
    fn count(&self, exchange: &mut Exchange) -> Outcome {
        let now = exchange.worker.clock().latest();
        for (index, state) in self.states.iter().enumerate() {
            let Some(hash) = state.hash(exchange) else {
                continue;
            };
            match state.admit(hash, now) {
                LimitVerdict::Admitted | LimitVerdict::Uncounted => {}
                refusal => return refuse_for(refusal, exchange, state, &self.states[..index]),
            }
        }
        exchange.mark(self.marks);
        exchange.took_no_time();
        Outcome::Next
    }

    fn count_in_full(&self, exchange: &mut Exchange) -> Outcome {
        let now = exchange.worker.clock().latest();
        let before = exchange.kept::<Admitted>(NAME);
        let marks_before = exchange.marks();
        let had_before = |state: &Arc<LimitState>| match state.mark {
            0 => before.as_ref().is_some_and(|before| before.includes(state)),
            mark => marks_before & mark != 0,
        };
        let mut marks = 0;
        let mut admitted = Admitted::default();
        for (index, state) in self.states.iter().enumerate() {
            if had_before(state) {
                continue;
            }
            let Some(hash) = state.hash(exchange) else {
                continue;
            };
            let verdict = match state.remembers_keys() {
                true => state.admit(hash, now),
                false => LimitVerdict::Admitted,
            };
            match verdict {
                LimitVerdict::Admitted if state.counts_under_way() => {
                    admitted.add_under_way(state.under_way(hash));
                }
                LimitVerdict::Admitted | LimitVerdict::Uncounted => {}
                refusal => {
                    let counted = self.states[..index].iter();
                    let counted = counted.filter(|counted| !had_before(counted));
                    return refuse_for(refusal, exchange, state, counted);
                }
            }
            if state.rule.pool_share.is_some() {
                let state = Arc::clone(state);
                admitted.shares.push(KeyOfRule { state, hash });
            }
            match state.mark {
                0 => admitted.by.push(Arc::clone(state)),
                mark => marks |= mark,
            }
        }
        exchange.mark(marks);
        if !admitted.is_empty() {
            admitted.before = before;
            exchange.keep(NAME, Rc::new(admitted));
        }
        exchange.took_no_time();
        Outcome::Next
    }
}

impl Hook for SharedLimits {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        self.0.run(exchange)
    }
}

impl Limits {
    fn new(rules: Vec<LimitRule>) -> Limits {
        Limits {
            rules,
            prepared: OnceCell::new(),
        }
    }

    fn prepare(&self, exchange: &Exchange) -> Prepared {
        let states = LimitStates::of(exchange.worker.shared(), &self.rules);
        let leaves_a_mark_alone = |state: &Arc<LimitState>| {
            let rule = &state.rule;
            let is_counted_only = !state.counts_under_way() && rule.pool_share.is_none();
            is_counted_only && !rule.key.is_variable() && state.mark != 0
        };
        let marks = match states.iter().all(leaves_a_mark_alone) {
            true => states.iter().fold(0, |marks, state| marks | state.mark),
            false => 0,
        };
        Prepared { states, marks }
    }
}

impl Admitted {
    fn is_empty(&self) -> bool {
        self.by.is_empty() && self.under_way.is_none() && self.shares.is_empty()
    }

    fn add_under_way(&mut self, counted: CountedRequest) {
        match &self.under_way {
            None => self.under_way = Some(counted),
            Some(_) => self.further_under_way.push(counted),
        }
    }

    /// This and those of other settings.
    fn all(&self) -> impl Iterator<Item = &Admitted> {
        std::iter::successors(Some(self), |admitted| admitted.before.as_deref())
    }

    fn includes(&self, state: &Arc<LimitState>) -> bool {
        let mut by = self.all().flat_map(|admitted| &admitted.by);
        by.any(|known| Arc::ptr_eq(known, state))
    }

    fn shares(&self) -> impl Iterator<Item = &KeyOfRule> {
        self.all().flat_map(|admitted| &admitted.shares)
    }
}

/// Refuses the request for the rule of `state`. The rules of `counted` have admitted it just before: they give back what
/// it took.
#[cold]
fn refuse_for<'s>(
    verdict: LimitVerdict,
    exchange: &mut Exchange,
    state: &LimitState,
    counted: impl IntoIterator<Item = &'s Arc<LimitState>>,
) -> Outcome {
    for counted in counted {
        counted.give_back(exchange);
    }
    match verdict {
        LimitVerdict::TooFast(wait) => refuse_too_fast(exchange, state, wait),
        _ => refuse_too_many(exchange, state),
    }
}

fn refuse_too_fast(exchange: &mut Exchange, state: &LimitState, wait: Nanos) -> Outcome {
    state.too_fast.fetch_add(1, Relaxed);
    let rule = &state.rule;
    let name = &rule.name;
    if let Some(rate) = &rule.allowance.rate {
        let cause = format_args!("limit.rules: {name:?} allows {rate} for each key");
        tell(exchange, "translate", rule, cause);
    }
    refuse(exchange, rule, wait.div_ceil(SECOND))
}

fn refuse_too_many(exchange: &mut Exchange, state: &LimitState) -> Outcome {
    state.too_many.fetch_add(1, Relaxed);
    let rule = &state.rule;
    let name = &rule.name;
    if let Some(most) = rule.allowance.concurrent {
        let cause =
            format_args!("limit.rules: {name:?} allows {most} at the same time for each key");
        tell(exchange, "translate", rule, cause);
    }
    refuse(exchange, rule, CONCURRENT_RETRY_S)
}

fn tell(exchange: &Exchange, stage: &str, rule: &LimitRule, cause: std::fmt::Arguments<'_>) {
    let status = rule.status.0;
    let key = std::fmt::from_fn(|f| f.write_str(&rule.key.shown(exchange)));
    exchange.log_common_error_of(
        stage,
        format_args!("answered {status}: {cause}"),
        format_args!(" key={key}"),
    );
}

/// Answers without any error handler: that may be a script or a backend, which the rule is there to protect.
fn refuse(exchange: &mut Exchange, rule: &LimitRule, retry_s: u64) -> Outcome {
    let outcome = exchange.answer_by_page(rule.status);
    let retry_s = retry_s.max(1).to_string();
    exchange.response.set("Retry-After", retry_s.as_bytes());
    outcome
}

const SECOND: Nanos = 1_000_000_000;

/// When a client is told to try again whose other requests are under way: how long they take cannot be known.
const CONCURRENT_RETRY_S: u64 = 1;
