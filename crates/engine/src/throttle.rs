//! Bandwidth limits: a token bucket for the connection, one for its scope, and a timer.
//!
//! A bucket holds the bytes of a quarter of a second at most, so that the rate is even.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::Mutex;
use std::task::{Context, Poll};
use std::time::Duration;

use petrel_config::BlockId;
use tokio::time::Sleep;

use crate::ledger::Nanos;

/// The limits of one response.
pub(crate) struct Throttle {
    own: Option<Bucket>,
    scope: Option<Arc<Mutex<Bucket>>>,
    timer: Option<Pin<Box<Sleep>>>,
}

/// How many bytes may be sent; grows with time.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    bytes_per_second: u64,
    bytes: u64,
    filled_at: Nanos,
}

impl Throttle {
    pub(crate) fn new(
        bytes_per_second: u64,
        scope: Option<Arc<Mutex<Bucket>>>,
        now: Nanos,
    ) -> Throttle {
        let own = (bytes_per_second > 0).then(|| Bucket::new(bytes_per_second, now));
        Throttle {
            own,
            scope,
            timer: None,
        }
    }

    /// How many bytes may be sent now. `None`: none; the task is woken when some may be sent.
    pub(crate) fn poll_allowance(&mut self, now: Nanos, context: &mut Context<'_>) -> Option<u64> {
        let own = self
            .own
            .as_mut()
            .map_or(Some(u64::MAX), |bucket| bucket.allowance(now));
        let scope = self
            .scope
            .as_ref()
            .map_or(Some(u64::MAX), |bucket| lock(bucket).allowance(now));
        if let (Some(own), Some(scope)) = (own, scope) {
            let allowed = own.min(scope);
            self.timer = None;
            return Some(allowed);
        }
        loop {
            let pause = || Box::pin(tokio::time::sleep(PAUSE));
            // A new timer has to be polled, or it would not wake this task; so the loop goes round once more.
            let timer = self.timer.get_or_insert_with(pause);
            if timer.as_mut().poll(context) == Poll::Pending {
                return None;
            }
            self.timer = None;
        }
    }

    /// Counts `count` bytes that were sent.
    pub(crate) fn take(&mut self, count: u64) {
        if let Some(bucket) = &mut self.own {
            bucket.take(count);
        }
        if let Some(bucket) = &self.scope {
            lock(bucket).take(count);
        }
    }
}

impl Bucket {
    pub(crate) fn new(bytes_per_second: u64, now: Nanos) -> Bucket {
        let bytes = bytes_per_second / BUCKETS_PER_SECOND;
        Bucket {
            bytes_per_second,
            bytes,
            filled_at: now,
        }
    }

    fn level(&mut self, now: Nanos) -> u64 {
        let passed = now.saturating_sub(self.filled_at).min(SECOND);
        // In microseconds, because with nanoseconds the product could overflow.
        let new = self.bytes_per_second.saturating_mul(passed / 1000) / (SECOND / 1000);
        // Otherwise time that is worth less than a byte would be lost.
        if new > 0 {
            let full = (self.bytes_per_second / BUCKETS_PER_SECOND).max(1);
            self.bytes = (self.bytes + new).min(full);
            self.filled_at = now;
        }
        self.bytes
    }

    /// How many bytes may be sent now. `None` if that is too little to be worth a system call.
    fn allowance(&mut self, now: Nanos) -> Option<u64> {
        let level = self.level(now);
        (level >= (self.bytes_per_second / SENDS_PER_SECOND).max(1)).then_some(level)
    }

    fn take(&mut self, count: u64) {
        self.bytes = self.bytes.saturating_sub(count);
    }
}

fn lock(bucket: &Mutex<Bucket>) -> std::sync::MutexGuard<'_, Bucket> {
    bucket
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

const SECOND: Nanos = 1_000_000_000;
const BUCKETS_PER_SECOND: u64 = 4;
const SENDS_PER_SECOND: u64 = 16;
const PAUSE: Duration = Duration::from_millis(50);

/// A bandwidth limit that all responses of a scope share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScopeThrottle {
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

    #[test]
    fn a_bucket_fills_with_time_and_not_beyond_its_size() {
        let mut bucket = Bucket::new(4000, 0);
        assert_eq!(bucket.level(0), 1000);
        bucket.take(1000);
        assert_eq!(bucket.level(0), 0);
        assert_eq!(bucket.level(SECOND / 8), 500);
        assert_eq!(bucket.level(10 * SECOND), 1000);
    }

    #[test]
    fn a_second_lets_through_about_what_it_should() {
        let mut bucket = Bucket::new(100_000, 0);
        let mut sent = 0;
        for millis in (0..2000).step_by(10) {
            let level = bucket.level(millis * 1_000_000);
            bucket.take(level);
            sent += level;
        }
        assert!((190_000..=230_000).contains(&sent), "{sent}");
    }
}
