//! `kbytes-per-second`: how fast the answers to requests of one key are sent, all of them together.
//!
//! Each key has a [`Bucket`] that its answers share, whatever workers send them. The map holds the keys with
//! requests under way, and for a second or so those that have got back what they sent in advance. So it cannot grow
//! beyond the requests of such a time, and needs no limit of its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use petrel_engine::ledger::Nanos;
use petrel_engine::shared::lock;
use petrel_engine::throttle::Bucket;

use super::rule::LimitRule;

/// The buckets of one rule.
pub(super) struct KeyBuckets {
    name: Arc<str>,
    bytes_per_second: u64,
    buckets: Mutex<HashMap<u64, Arc<Bucket>>>,
}

impl KeyBuckets {
    /// No buckets yet. `None`: the rule does not limit bandwidth.
    pub(super) fn of(rule: &LimitRule) -> Option<KeyBuckets> {
        let bytes_per_second = rule.bytes_per_second?;
        Some(KeyBuckets {
            name: format!("limit.rules {:?}", rule.name).into(),
            bytes_per_second,
            buckets: Mutex::default(),
        })
    }

    /// The bucket of the key with this hash.
    pub(super) fn bucket(&self, hash: u64) -> Arc<Bucket> {
        let make = || Bucket::new(Arc::clone(&self.name), self.bytes_per_second);
        Arc::clone(lock(&self.buckets).entry(hash).or_insert_with(make))
    }

    /// Forgets the buckets that no request uses and that are full. Called once a second.
    pub(super) fn sweep(&self, now: Nanos) {
        let mut buckets = lock(&self.buckets);
        buckets.retain(|_, bucket| Arc::strong_count(bucket) > 1 || !bucket.is_full(now));
        let length = buckets.len();
        buckets.shrink_to(2 * length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets() -> KeyBuckets {
        KeyBuckets {
            name: "".into(),
            bytes_per_second: 1024,
            buckets: Mutex::default(),
        }
    }

    #[test]
    fn a_key_keeps_its_bucket_while_it_has_requests_and_others_are_forgotten() {
        let buckets = buckets();
        let held = buckets.bucket(0);
        for hash in 1..10_000 {
            buckets.bucket(hash);
        }
        buckets.sweep(0);
        let known = lock(&buckets.buckets);
        assert_eq!(known.len(), 1);
        assert!(known.capacity() < 10, "{}", known.capacity());
        drop(known);
        assert!(Arc::ptr_eq(&held, &buckets.bucket(0)));
    }

    #[test]
    fn a_key_that_has_sent_in_advance_has_no_new_bucket_until_the_time_has_passed() {
        let buckets = buckets();
        buckets.bucket(0).take(256, 0);
        let is_known_after_sweep = |now| {
            buckets.sweep(now);
            lock(&buckets.buckets).contains_key(&0)
        };
        assert!(is_known_after_sweep(249_999_999));
        assert!(!is_known_after_sweep(250_000_000));
    }
}
