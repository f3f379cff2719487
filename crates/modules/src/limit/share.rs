//! `pool-share`: how many connections of a backend the requests of one key may take.
//!
//! A request counts from the moment its backend is chosen until the backend is done with it. So it counts
//! while it waits in the backend's queue, too. The map of a backend holds only keys with such requests: it
//! cannot grow beyond the backend's connections and its queue. Gateways call [`take_share`] when they have
//! chosen a backend.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use petrel_engine::Exchange;
use petrel_engine::cause::CauseCode;
use petrel_engine::ledger::Stage;
use petrel_engine::module::Outcome;
use petrel_engine::shared::lock;

use super::state::LimitState;
use super::{Admitted, CONCURRENT_RETRY_S, NAME, refuse, tell};

/// How many requests each key has at one backend.
#[derive(Debug, Default)]
pub(crate) struct PoolShares {
    requests: Mutex<HashMap<ShareKey, u32>>,
}

/// The number of a rule, and the hash of a key.
type ShareKey = (usize, u64);

/// The key of a request under a rule with a share. The gateway counts it if the request gets to a backend.
pub(super) struct KeyOfRule {
    pub(super) state: Arc<LimitState>,
    pub(super) hash: u64,
}

/// The places of a request in the map of its backend. Dropping it frees them.
#[derive(Debug)]
pub(crate) struct TakenShares {
    pool: Arc<PoolShares>,
    keys: Vec<ShareKey>,
}

/// Counts the request in `pool`, the map of the backend `name`. `connections_max` is how many connections the
/// backend may have, if that is known; without it nothing is refused.
///
/// # Errors
/// A key of the request has its share already. The outcome answers the request.
pub(crate) fn take_share(
    exchange: &mut Exchange,
    pool: &Arc<PoolShares>,
    connections_max: Option<u32>,
    name: &str,
) -> Result<Option<TakenShares>, Outcome> {
    let Some(admitted) = exchange.kept::<Admitted>(NAME) else {
        return Ok(None);
    };
    let mut taken = TakenShares {
        pool: Arc::clone(pool),
        keys: Vec::new(),
    };
    for KeyOfRule { state, hash } in admitted.shares() {
        let percent = state.rule.pool_share.unwrap_or(100);
        let most = connections_max.map(|count| share_of(count, percent));
        if taken.take((state.number, *hash), most) {
            continue;
        }
        state.beyond_share.fetch_add(1, Relaxed);
        let (rule, most) = (&state.rule, most.unwrap_or_default());
        let rule_name = &rule.name;
        let outcome = refuse(exchange, CauseCode::ShareLimited, rule, CONCURRENT_RETRY_S);
        let cause = format_args!(
            "limit.rules: {rule_name:?} allows each key {most} connections ({percent} %) to backend={name}"
        );
        tell(exchange, Stage::BackendQueue.name(), rule, cause);
        return Err(outcome);
    }
    Ok((!taken.keys.is_empty()).then_some(taken))
}

/// `percent` of `connections_max`, rounded down, but at least one connection.
fn share_of(connections_max: u32, percent: u8) -> u32 {
    let share = u64::from(connections_max) * u64::from(percent) / 100;
    u32::try_from(share).unwrap_or(u32::MAX).max(1)
}

impl TakenShares {
    /// Counts one more request of `key`, unless it has `most` already. True if it was counted.
    fn take(&mut self, key: ShareKey, most: Option<u32>) -> bool {
        let mut requests = lock(&self.pool.requests);
        let count = requests.entry(key).or_default();
        if most.is_some_and(|most| *count >= most) {
            return false;
        }
        *count += 1;
        self.keys.push(key);
        true
    }
}

impl Drop for TakenShares {
    fn drop(&mut self) {
        let mut requests = lock(&self.pool.requests);
        for key in &self.keys {
            if let Entry::Occupied(mut count) = requests.entry(*key) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_never_nothing() {
        let shares = [
            (1, 50),
            (3, 50),
            (4, 25),
            (100, 33),
            (u32::MAX, 100),
            (0, 1),
        ];
        let shares = shares.map(|(count, percent)| share_of(count, percent));
        assert_eq!(shares, [1, 1, 1, 33, u32::MAX, 1]);
    }

    #[test]
    fn keys_are_counted_until_what_they_took_is_dropped() {
        let pool = Arc::<PoolShares>::default();
        let take = |key, most| {
            let mut taken = TakenShares {
                pool: Arc::clone(&pool),
                keys: Vec::new(),
            };
            taken.take((0, key), most).then_some(taken)
        };
        let unlimited = take(1, None);
        let second = take(1, Some(2));
        assert!(unlimited.is_some() && second.is_some());
        assert!(take(1, Some(2)).is_none() && take(2, Some(2)).is_some());
        drop(unlimited);
        assert!(take(1, Some(2)).is_some());
        drop(second);
        assert!(lock(&pool.requests).is_empty());
    }
}
