//! mod_limit: limits how many requests of one key may arrive in a time, how many may be under way at once, and
//! how fast their answers are sent. A key is an address, a header field, a cookie, a URL or a variable.
//!
//! [`rule`] reads `limit.rules`. [`key`] finds the key of a request. [`table`] remembers the keys of one
//! rule, each with its token bucket ([`rate`]). [`state`] holds one table for each rule, which all workers
//! share. Gateways ask [`share`] whether a key may take another connection of a backend. [`bandwidth`] has the
//! buckets that the answers to one key share.
//!
//! A request counts once under each rule, however often it is rewritten or restarted. Subrequests and error
//! handlers, which the server starts itself, do not count. Each request of an HTTP/2 connection counts. A request
//! that is refused because of its head counts under the rules outside all conditions whose key is the address, or all.
//! Behind a trusted proxy the key is the address that mod_extforward has found.

mod bandwidth;
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
use petrel_engine::cause::CauseCode;
use petrel_engine::config::{Diagnostic, Effect, Subject};
use petrel_engine::exchange::dry_run::Note;
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
    doc: "Limits how many requests of one client, or of another key, may come and be under way, and how fast their answers are sent. docs/limits.md is about it.",
    loaded: Loaded::Listed,
    directives: petrel_engine::directives! {
        "limit.rules", Map, Request, "()", Effect::Works,
            "A map from a rule's name to its options: key (address, header:NAME, cookie:NAME, url, env:NAME or all), ipv4-prefix and ipv6-prefix, rate (such as 10/m) and burst, concurrent, pool-share (percent of a backend's connections), kbytes-per-second (of all answers of the key together), entries, status. Requests beyond a limit are answered 429 with Retry-After.";
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
        // Before access rules, scripts and redirects, wherever the module is listed: a limit also keeps a flood
        // of passwords away from mod_auth.
        let phase = match depends_on_file(configure.values) {
            true => Phase::Resolved,
            false => Phase::Translate,
        };
        let of_the_client: Vec<_> = others
            .iter()
            .filter(|rule| rule.key.needs_no_head())
            .cloned()
            .collect();
        if !of_the_client.is_empty() {
            // A head that is refused may be no request at all, so only the client is known.
            configure.add(Phase::Refused, RefusedHeads(Limits::new(of_the_client)));
        }
        configure.add(phase, Limits::new(others));
    }
    if !variables.is_empty() {
        // The rule counts the request at the first of these places where the variable is set: at the module's
        // place in server.modules, behind the scripts and mod_auth, and behind the scripts of the path.
        let limits = Rc::new(Limits::new(variables));
        configure.add(Phase::Authorize, SharedLimits(Rc::clone(&limits)));
        for phase in [Phase::Authorize, Phase::Resolved] {
            configure.add_last(phase, SharedLimits(Rc::clone(&limits)));
        }
    }
    Ok(())
}

/// Whether `limit.rules` stands in a condition on the path of the file. It can be decided only once the file
/// has been looked up.
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
    /// Filled in by the first request of this worker: `configure` does not know the state that workers share.
    prepared: OnceCell<Prepared>,
}

/// The rules with the states that all workers share.
struct Prepared {
    states: Vec<Arc<LimitState>>,
    /// The marks of all rules, if the rules leave nothing else on a request that they admit. 0 if a rule
    /// counts requests under way or shares of a backend, limits bandwidth, is asked again in a later phase, or has no mark.
    marks: u64,
}

/// [`Limits`] whose hook runs in several phases.
struct SharedLimits(Rc<Limits>);

/// [`Limits`] for requests whose answer is an error already, because their heads were refused.
struct RefusedHeads(Limits);

/// What a request keeps until it is over, if marks are not enough.
#[derive(Default)]
struct Admitted {
    /// The rules without a mark that have counted it.
    by: Vec<Arc<LimitState>>,
    /// For the rules that limit requests under way. Dropping these ends the request in the tables. Usually
    /// there is one such rule, which needs no vector.
    under_way: Option<CountedRequest>,
    further_under_way: Vec<CountedRequest>,
    /// The keys that the gateway counts, for the rules with a `pool-share`.
    shares: Vec<KeyOfRule>,
    /// What rules of an earlier phase, or of the URL before it was rewritten, had this request keep.
    before: Option<Rc<Admitted>>,
}

impl Hook for Limits {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        if exchange.is_subrequest() || exchange.handles_error() {
            return Outcome::Next;
        }
        self.count(exchange)
    }

    fn dry_run(&self, exchange: &mut Exchange) -> Outcome {
        exchange.note(|| Note::Text(format!("would count the request for {NAME_OF_RULES}")));
        Outcome::Next
    }
}

impl Prepared {
    /// Counts a request that none of the rules has counted yet, where they leave nothing but marks. This is
    /// the path of most requests.
    #[inline]
    fn count(&self, exchange: &mut Exchange) -> Outcome {
        let now = exchange.worker.clock().latest();
        let mut marks = 0;
        for state in &self.states {
            let Some(hash) = state.hash(exchange) else {
                continue;
            };
            marks |= state.mark;
            match state.take_token(hash, now) {
                LimitVerdict::Admitted | LimitVerdict::Uncounted => {}
                refusal => {
                    let before = |counted: &&Arc<LimitState>| !Arc::ptr_eq(counted, state);
                    let counted = self.states.iter().take_while(before);
                    return refuse_for(refusal, exchange, state, counted);
                }
            }
        }
        exchange.mark(marks);
        exchange.took_no_time();
        Outcome::Next
    }

    /// Counts a request where rules have counted it before, or leave more than a mark on it.
    #[inline(never)]
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
        // The refusal of a later rule does not wait for the bandwidth.
        let mut buckets = Vec::new();
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
            buckets.extend(state.bucket(hash));
            if state.rule.pool_share.is_some() {
                let state = Arc::clone(state);
                admitted.shares.push(KeyOfRule { state, hash });
            }
            match state.mark {
                0 => admitted.by.push(Arc::clone(state)),
                mark => marks |= mark,
            }
        }
        for bucket in buckets {
            exchange.limit_bandwidth(bucket);
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

    fn dry_run(&self, exchange: &mut Exchange) -> Outcome {
        self.0.dry_run(exchange)
    }
}

impl Hook for RefusedHeads {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        self.0.count(exchange)
    }
}

impl Limits {
    #[inline]
    fn count(&self, exchange: &mut Exchange) -> Outcome {
        let prepared = self.prepared.get_or_init(|| self.prepare(exchange));
        match prepared.marks {
            marks if marks != 0 && exchange.marks() & marks == 0 => prepared.count(exchange),
            _ => prepared.count_in_full(exchange),
        }
    }

    fn new(rules: Vec<LimitRule>) -> Limits {
        Limits {
            rules,
            prepared: OnceCell::new(),
        }
    }

    fn prepare(&self, exchange: &Exchange) -> Prepared {
        let states = LimitStates::of(&exchange.worker, &self.rules);
        let leaves_a_mark_alone = |state: &Arc<LimitState>| {
            let rule = &state.rule;
            let is_counted_only = !state.counts_under_way() && rule.pool_share.is_none();
            is_counted_only
                && rule.bytes_per_second.is_none()
                && !rule.key.is_variable()
                && state.mark != 0
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

    /// This, and what rules of earlier phases and URLs had the request keep.
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

/// Refuses the request because the rule of `state` does not admit it. The rules of `counted` admitted it a
/// moment ago. It must cost nothing under them, so their tokens are returned.
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
    let outcome = refuse(
        exchange,
        CauseCode::RateLimited,
        rule,
        wait.div_ceil(SECOND),
    );
    if let Some(rate) = &rule.allowance.rate {
        let cause = format_args!("limit.rules: {name:?} allows {rate} for each key");
        tell(exchange, "translate", rule, cause);
    }
    outcome
}

fn refuse_too_many(exchange: &mut Exchange, state: &LimitState) -> Outcome {
    state.too_many.fetch_add(1, Relaxed);
    let rule = &state.rule;
    let name = &rule.name;
    let cause = CauseCode::ConcurrencyLimited;
    let outcome = refuse(exchange, cause, rule, CONCURRENT_RETRY_S);
    if let Some(most) = rule.allowance.concurrent {
        let cause =
            format_args!("limit.rules: {name:?} allows {most} at the same time for each key");
        tell(exchange, "translate", rule, cause);
    }
    outcome
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

/// Answers with an error page, without the error handler: that may be the very script or backend that the
/// rule protects.
fn refuse(exchange: &mut Exchange, cause: CauseCode, rule: &LimitRule, retry_s: u64) -> Outcome {
    let outcome = exchange.fail_by_page(cause, rule.status);
    let retry_s = retry_s.max(1).to_string();
    exchange.response.set("Retry-After", retry_s.as_bytes());
    outcome
}

const SECOND: Nanos = 1_000_000_000;

/// Retry-After for a client that has too many requests under way. The server cannot know how long they will
/// take.
const CONCURRENT_RETRY_S: u64 = 1;
