//! The states of the rules, which all workers of a server process share. They live until that process ends: a
//! reload starts with empty tables.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use petrel_engine::Exchange;
use petrel_engine::shared::{Shared, lock};
use petrel_engine::throttle::Bucket;
use petrel_engine::worker::Worker;

use super::bandwidth::KeyBuckets;
use super::key::HashSecret;
use super::rule::LimitRule;
use super::table::{KeyTable, LimitVerdict};

/// The states of all rules that a request has asked for so far.
#[derive(Default)]
pub(super) struct LimitStates {
    states: Mutex<Vec<Arc<LimitState>>>,
    secret: HashSecret,
}

/// One rule with its table of keys and its counters.
pub(super) struct LimitState {
    pub(super) rule: LimitRule,
    pub(super) table: KeyTable,
    buckets: Option<KeyBuckets>,
    pub(super) too_fast: AtomicU64,
    pub(super) too_many: AtomicU64,
    pub(super) beyond_share: AtomicU64,
    /// The index of the rule among all of the process.
    pub(super) number: usize,
    /// The bit of [`Exchange::marks`] that says that this rule has counted the request. The rules behind the
    /// 64th have none: 0.
    pub(super) mark: u64,
    secret: HashSecret,
}

/// The worker that made this sweeps the buckets of all rules, for all workers.
struct BucketSweeper;

/// A request that the table counts as under way. Dropping it ends that.
pub(super) struct CountedRequest {
    state: Arc<LimitState>,
    hash: u64,
}

impl LimitStates {
    /// The states of `rules`, in the same order. Makes those that are missing.
    pub(super) fn of(worker: &Rc<Worker>, rules: &[LimitRule]) -> Vec<Arc<LimitState>> {
        let shared = worker.shared();
        if rules.iter().any(|rule| rule.bytes_per_second.is_some()) {
            shared.belonging(|| {
                worker.each_second(sweep_buckets);
                BucketSweeper
            });
        }
        let all = shared.belonging(LimitStates::default);
        rules.iter().map(|rule| all.get(rule)).collect()
    }

    fn get(&self, rule: &LimitRule) -> Arc<LimitState> {
        let mut states = lock(&self.states);
        if let Some(known) = states.iter().find(|state| state.rule == *rule) {
            return Arc::clone(known);
        }
        let made = Arc::new(LimitState {
            table: KeyTable::new(rule.entries),
            buckets: KeyBuckets::of(rule),
            rule: rule.clone(),
            too_fast: AtomicU64::new(0),
            too_many: AtomicU64::new(0),
            beyond_share: AtomicU64::new(0),
            number: states.len(),
            mark: u32::try_from(states.len()).map_or(0, |bit| 1_u64.checked_shl(bit).unwrap_or(0)),
            secret: self.secret.clone(),
        });
        states.push(Arc::clone(&made));
        made
    }
}

impl LimitState {
    /// The hash of the request's key under this rule, if it has one.
    #[inline]
    pub(super) fn hash(&self, exchange: &Exchange) -> Option<u64> {
        self.rule.key.hash(exchange, &self.secret)
    }

    /// Whether the rule needs its table. Shares are counted at the backends, not in the table.
    #[inline]
    pub(super) fn remembers_keys(&self) -> bool {
        self.rule.entries > 0
    }

    /// Whether an admitted request counts until it is over.
    pub(super) fn counts_under_way(&self) -> bool {
        self.rule.allowance.concurrent.is_some()
    }

    /// The guard of a request that [`LimitState::admit`] has just counted as under way.
    pub(super) fn under_way(self: &Arc<Self>, hash: u64) -> CountedRequest {
        CountedRequest {
            state: Arc::clone(self),
            hash,
        }
    }

    /// The bucket that the answers to the key with this hash share, if the rule limits their bandwidth.
    pub(super) fn bucket(&self, hash: u64) -> Option<Arc<Bucket>> {
        Some(self.buckets.as_ref()?.bucket(hash))
    }

    /// Counts a request of the key with this hash.
    pub(super) fn admit(&self, hash: u64, now: u64) -> LimitVerdict {
        self.table.admit(hash, now, &self.rule.allowance)
    }

    /// [`LimitState::admit`] for a rule that does not limit requests under way.
    #[inline(always)]
    pub(super) fn take_token(&self, hash: u64, now: u64) -> LimitVerdict {
        match &self.rule.allowance.rate {
            Some(rate) => self.table.take_token(hash, now, rate),
            None => LimitVerdict::Admitted,
        }
    }

    /// Returns the token of a request that this rule has just admitted and another rule refuses. What it
    /// counts as under way ends with the guard.
    pub(super) fn give_back(&self, exchange: &Exchange) {
        if let (Some(rate), Some(hash)) = (&self.rule.allowance.rate, self.hash(exchange)) {
            self.table.give_back(hash, rate);
        }
    }
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.state.table.end(self.hash);
    }
}

fn sweep_buckets(worker: &Rc<Worker>) {
    let now = worker.clock().latest();
    let states = worker.shared().belonging(LimitStates::default);
    for state in lock(&states.states).iter() {
        if let Some(buckets) = &state.buckets {
            buckets.sweep(now);
        }
    }
}

/// Adds the counters of all rules to `counters`. Rules of the same name are summed.
pub(crate) fn read_counters(shared: &Shared, counters: &mut BTreeMap<String, u64>) {
    let states = shared.belonging(LimitStates::default);
    for state in lock(&states.states).iter() {
        let name = &state.rule.name;
        let (forgotten, uncounted) = state.table.losses();
        for (what, count) in [
            ("refused-rate", state.too_fast.load(Relaxed)),
            ("refused-concurrent", state.too_many.load(Relaxed)),
            ("refused-pool-share", state.beyond_share.load(Relaxed)),
            ("keys-forgotten", forgotten),
            ("uncounted", uncounted),
        ] {
            *counters.entry(format!("limit.{name}.{what}")).or_default() += count;
        }
    }
}
