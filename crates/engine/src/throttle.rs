//! Bandwidth limits: token buckets, and the timer of a response that waits for them.
//!
//! A response has as many buckets as limits: its own, that of its scope, and those of rules in `limit.rules`.
//! All workers share the last two. Before a response sends it takes bytes out of its buckets. If one of them
//! has too few, it owes them, and the response waits until they have come. So responses that share a bucket
//! take turns, and together keep the rate exactly, whatever workers they are on. They send in the order in which
//! they asked, unless a response before them ends and returns what it took: then those behind it send as soon as
//! the bucket owes nothing, in any order.
//!
//! A bucket is one number: the time at which it is full again (GCRA). Workers change it without a lock. It
//! holds the bytes of a quarter of a second at most, so that the rate is even.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use petrel_config::BlockId;
use tokio::time::Sleep;

use crate::ledger::Nanos;

/// The limits of one response.
pub(crate) struct Throttle {
    limits: Vec<Limit>,
    /// The bytes that were taken out of the buckets and are not sent yet.
    taken: u64,
    /// When they may be sent.
    due: Nanos,
    timer: Option<Pin<Box<Sleep>>>,
}

struct Limit {
    bucket: Arc<Bucket>,
    /// The response has waited for it, and not longer for another one.
    has_held: bool,
}

/// How many bytes may be sent; grows with time.
#[derive(Debug)]
pub struct Bucket {
    /// The directive or rule, for those who ask why an answer was slow.
    name: Arc<str>,
    bytes_per_second: u64,
    full_at: AtomicU64,
}

impl Throttle {
    pub(crate) fn new(buckets: impl Iterator<Item = Arc<Bucket>>) -> Throttle {
        let limit = |bucket| Limit {
            bucket,
            has_held: false,
        };
        Throttle {
            limits: buckets.map(limit).collect(),
            taken: 0,
            due: 0,
            timer: None,
        }
    }

    /// How many bytes may be sent now, of `wanted` or more that are ready. `None`: none; the task is woken to ask
    /// again.
    pub(crate) fn poll_allowance(
        &mut self,
        wanted: u64,
        now: Nanos,
        context: &mut Context<'_>,
    ) -> Option<u64> {
        loop {
            let (bytes, due) = self.allowance(wanted, now);
            if due <= now {
                self.timer = None;
                return Some(bytes);
            }
            let pause = Duration::from_nanos((due - now).min(FILL_TIME));
            let timer = self
                .timer
                .get_or_insert_with(|| Box::pin(tokio::time::sleep(pause)));
            if timer.as_mut().poll(context) == Poll::Pending {
                return None;
            }
            self.timer = None;
        }
    }

    /// How many bytes may be sent, and when.
    fn allowance(&mut self, wanted: u64, now: Nanos) -> (u64, Nanos) {
        if self.taken == 0 {
            let portions = self.limits.iter().map(|limit| limit.bucket.portion());
            self.taken = portions.min().unwrap_or(u64::MAX).min(wanted).max(1);
            self.due = now;
            let mut holder = None;
            for limit in &mut self.limits {
                let due = limit.bucket.take(self.taken, now);
                if due > self.due {
                    self.due = due;
                    holder = Some(limit);
                }
            }
            if let Some(limit) = holder {
                limit.has_held = true;
            }
        } else if self.due > now {
            // Responses before this one may have returned what they took.
            let owes_until = self.limits.iter().map(|limit| limit.bucket.owes_until());
            self.due = self.due.min(owes_until.max().unwrap_or(now));
        }
        (self.taken, self.due)
    }

    /// Counts `count` bytes that were sent.
    pub(crate) fn sent(&mut self, count: u64, now: Nanos) {
        let beyond = count.saturating_sub(self.taken);
        self.taken = self.taken.saturating_sub(count);
        if beyond > 0 {
            for limit in &self.limits {
                limit.bucket.take(beyond, now);
            }
        }
    }

    /// The limits that the response has waited for, in words.
    pub(crate) fn holders(&self) -> impl fmt::Display {
        fmt::from_fn(|f| {
            let held = self.limits.iter().filter(|limit| limit.has_held);
            for (index, Limit { bucket, .. }) in held.enumerate() {
                let separator = if index == 0 { "" } else { ", " };
                let kbytes = bucket.bytes_per_second / 1024;
                write!(f, "{separator}{} ({kbytes} KiB a second)", bucket.name)?;
            }
            Ok(())
        })
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        for limit in &self.limits {
            limit.bucket.give_back(self.taken);
        }
    }
}

impl Bucket {
    /// A full bucket of the limit with this name.
    pub fn new(name: impl Into<Arc<str>>, bytes_per_second: u64) -> Arc<Bucket> {
        Arc::new(Bucket {
            name: name.into(),
            bytes_per_second: bytes_per_second.max(1),
            full_at: AtomicU64::new(0),
        })
    }

    /// Whether it is full, so that it is as good as a new one.
    pub fn is_full(&self, now: Nanos) -> bool {
        self.full_at.load(Relaxed) <= now
    }

    /// The most bytes that a response takes at once: so many that they are worth a system call, and so few that
    /// the other responses do not wait long.
    fn portion(&self) -> u64 {
        (self.bytes_per_second / SENDS_PER_SECOND).clamp(1, PORTION_BYTES_MAX)
    }

    /// Takes `count` bytes. Returns when they may be sent.
    pub fn take(&self, count: u64, now: Nanos) -> Nanos {
        let time = self.time_of(count);
        self.full_at.fetch_max(now, Relaxed);
        let full_at = self.full_at.fetch_add(time, Relaxed) + time;
        full_at.saturating_sub(FILL_TIME)
    }

    /// When all that was taken out of it may be sent.
    fn owes_until(&self) -> Nanos {
        self.full_at.load(Relaxed).saturating_sub(FILL_TIME)
    }

    /// Puts back `count` bytes that were not sent.
    fn give_back(&self, count: u64) {
        self.full_at.fetch_sub(self.time_of(count), Relaxed);
    }

    /// The time in which this many bytes come.
    fn time_of(&self, count: u64) -> Nanos {
        count.saturating_mul(SECOND) / self.bytes_per_second
    }
}

const SECOND: Nanos = 1_000_000_000;

/// The time in which a bucket fills. A response that waits looks at its buckets again after this time at the latest.
/// A bucket keeps what comes meanwhile, so no bandwidth is lost if responses before it have ended.
const FILL_TIME: Nanos = SECOND / 4;

const SENDS_PER_SECOND: u64 = 16;
const PORTION_BYTES_MAX: u64 = 64 << 10;

/// A bandwidth limit that all responses of a scope share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScopeThrottle {
    /// The block that sets the limit; identifies the scope.
    pub(crate) block: BlockId,
    /// The limit.
    pub(crate) bytes_per_second: u64,
}

impl ScopeThrottle {
    /// The limit that `block` sets. `None`: 0 bytes are no limit.
    pub(crate) fn new(block: BlockId, bytes_per_second: u64) -> Option<ScopeThrottle> {
        (bytes_per_second > 0).then_some(ScopeThrottle {
            block,
            bytes_per_second,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn throttle(buckets: &[&Arc<Bucket>]) -> Throttle {
        Throttle::new(buckets.iter().map(|bucket| Arc::clone(bucket)))
    }

    /// What each response has sent until `end`, if it sends whenever it may.
    fn run(throttles: &mut [Throttle], end: Nanos) -> Vec<u64> {
        let mut sent = vec![0; throttles.len()];
        let mut now = 0;
        while now < end {
            let mut next = end;
            for (throttle, sent) in throttles.iter_mut().zip(&mut sent) {
                let (bytes, due) = throttle.allowance(u64::MAX, now);
                if due > now {
                    next = next.min(due);
                    continue;
                }
                throttle.sent(bytes, now);
                *sent += bytes;
                next = now;
            }
            now = next;
        }
        sent
    }

    #[test]
    fn one_response_gets_the_rate_and_a_quarter_of_a_second_in_advance() {
        for rate in [1024, 100 << 10, 4 << 20, 100 << 20] {
            let bucket = Bucket::new("", rate);
            let sent = run(&mut [throttle(&[&bucket])], 4 * SECOND)[0];
            let expected = rate * 4 + rate / 4;
            assert!(
                (expected - bucket.portion()..=expected + bucket.portion()).contains(&sent),
                "{sent} of {expected}"
            );
        }
    }

    #[test]
    fn responses_with_one_bucket_share_it_evenly_and_keep_its_rate_together() {
        let rate = 160 << 10;
        let bucket = Bucket::new("", rate);
        let mut throttles: Vec<_> = (0..8).map(|_| throttle(&[&bucket])).collect();
        let sent = run(&mut throttles, 8 * SECOND);
        let sum: u64 = sent.iter().sum();
        let expected = rate * 8 + rate / 4;
        assert!(
            (expected - bucket.portion()..=expected + bucket.portion()).contains(&sum),
            "{sum} of {expected}"
        );
        let (least, most) = (sent.iter().min(), sent.iter().max());
        let apart = most.zip(least).map(|(most, least)| most - least);
        assert!(apart <= Some(bucket.portion()), "{sent:?}");
    }

    #[test]
    fn the_smallest_of_several_limits_counts_and_is_named() {
        let small = Bucket::new("small", 64 << 10);
        let large = Bucket::new("large", 1 << 20);
        let mut throttles = [throttle(&[&large, &small])];
        let sent = run(&mut throttles, 2 * SECOND)[0];
        assert!(sent.abs_diff(9 * (16 << 10)) <= small.portion(), "{sent}");
        assert_eq!(
            throttles[0].holders().to_string(),
            "small (64 KiB a second)"
        );
    }

    #[test]
    fn what_a_response_took_and_did_not_send_is_returned() {
        let bucket = Bucket::new("", 16 << 10);
        let mut leaves: Vec<_> = (0..100).map(|_| throttle(&[&bucket])).collect();
        let dues: Vec<_> = leaves
            .iter_mut()
            .map(|one| one.allowance(u64::MAX, 0).1)
            .collect();
        assert_eq!(dues[..5], [0, 0, 0, 0, SECOND / 16]);
        assert_eq!(dues[99], 6 * SECOND);
        drop(leaves);
        assert_eq!(bucket.full_at.load(Relaxed), 0);
        assert_eq!(throttle(&[&bucket]).allowance(u64::MAX, 0), (1024, 0));
    }

    #[test]
    fn a_response_takes_no_more_than_it_has_to_send() {
        let bucket = Bucket::new("", 16 << 10);
        for _ in 0..40 {
            let mut small = throttle(&[&bucket]);
            assert_eq!(small.allowance(100, 0), (100, 0));
            small.sent(100, 0);
        }
        assert!(throttle(&[&bucket]).allowance(1024, 0).1 > 0);
    }

    #[test]
    fn responses_wait_no_longer_when_those_before_them_leave() {
        let (bucket, other) = (Bucket::new("", 16 << 10), Bucket::new("", 1 << 20));
        let mut leaves: Vec<_> = (0..100).map(|_| throttle(&[&bucket])).collect();
        for one in &mut leaves {
            one.allowance(u64::MAX, 0);
        }
        let mut stay = [throttle(&[&bucket, &other]), throttle(&[&other, &bucket])];
        let mut dues = || stay.each_mut().map(|one| one.allowance(u64::MAX, 1).1);
        let before = dues();
        assert!(before.iter().all(|due| *due > 6 * SECOND), "{before:?}");
        assert_eq!(dues(), before, "all are there");
        drop(leaves.split_off(10));
        let after = dues();
        assert!(
            after.iter().all(|due| (SECOND / 2..SECOND).contains(due)),
            "{after:?}"
        );
        drop(leaves);
        assert!(dues().iter().all(|due| *due <= 1));
    }

    #[test]
    fn of_several_limits_that_hold_a_response_the_one_that_holds_it_longest_is_named() {
        let [small, large] =
            [("small", 16 << 10), ("large", 32 << 10)].map(|(name, rate)| Bucket::new(name, rate));
        for bucket in [&small, &large] {
            bucket.take(64 << 10, 0);
        }
        for buckets in [[&small, &large], [&large, &small]] {
            let mut throttle = throttle(&buckets);
            throttle.allowance(u64::MAX, 0);
            assert_eq!(throttle.holders().to_string(), "small (16 KiB a second)");
        }
    }

    #[test]
    fn bytes_beyond_the_allowance_are_owed() {
        let bucket = Bucket::new("", 16 << 10);
        let mut throttle = throttle(&[&bucket]);
        throttle.allowance(u64::MAX, 0);
        throttle.sent(16 << 10, 0);
        assert_eq!(throttle.allowance(u64::MAX, 0).1, SECOND * 13 / 16);
    }
}
