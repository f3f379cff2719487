//! `kbytes-per-second`: how fast the answers to requests of one key are sent, all of them together.
//!
//! Each key has a [`Bucket`] that its answers share, whatever workers send them. The map holds the keys with
//! requests under way, and those that have not got back what they sent in advance, which takes a quarter of a
//! second. So it cannot grow beyond the requests of such a time, and needs no limit of its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use petrel_engine::ledger::Nanos;
use petrel_engine::shared::lock;
use petrel_engine::throttle::Bucket;

/// The buckets of one rule.
#[derive(Default)]
pub(super) struct KeyBuckets(Mutex<Known>);

#[derive(Default)]
struct Known {
    buckets: HashMap<u64, Arc<Bucket>>,
    /// With how many buckets the next look for those that are not needed any more pays.
    sweep_at: usize,
}

impl KeyBuckets {
    /// The bucket of the key with this hash. `make` makes a new one.
    pub(super) fn of(
        &self,
        hash: u64,
        now: Nanos,
        make: impl FnOnce() -> Arc<Bucket>,
    ) -> Arc<Bucket> {
        let mut known = lock(&self.0);
        if known.buckets.len() >= known.sweep_at {
            let is_needed =
                |bucket: &Arc<Bucket>| Arc::strong_count(bucket) > 1 || !bucket.is_full(now);
            known.buckets.retain(|_, bucket| is_needed(bucket));
            known.sweep_at = (2 * known.buckets.len()).max(SWEEP_MIN);
        }
        Arc::clone(known.buckets.entry(hash).or_insert_with(make))
    }
}

const SWEEP_MIN: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_keeps_its_bucket_while_it_has_requests_and_others_are_forgotten() {
        let buckets = KeyBuckets::default();
        let of = |hash, now| buckets.of(hash, now, || Bucket::new("", 1024));
        let held = of(0, 0);
        for hash in 1..10_000 {
            of(hash, 0);
        }
        assert!(Arc::ptr_eq(&held, &of(0, 0)));
        assert!(lock(&buckets.0).buckets.len() <= SWEEP_MIN);
    }

    #[test]
    fn a_key_that_has_sent_in_advance_has_no_new_bucket_until_the_time_has_passed() {
        let buckets = KeyBuckets::default();
        let of = |hash, now| buckets.of(hash, now, || Bucket::new("", 1024));
        let sent = of(0, 0);
        sent.take(256, 0);
        let address = Arc::as_ptr(&sent);
        drop(sent);
        let still_there = |now| {
            for hash in 1..1000 {
                of(hash, now);
            }
            lock(&buckets.0).buckets.get(&0).map(Arc::as_ptr)
        };
        assert_eq!(still_there(249_999_999), Some(address));
        assert_eq!(still_there(250_000_000), None);
    }
}
