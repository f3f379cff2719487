//! What the threads have done: for the status page and for those who wonder what waits for what.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Class, pool};

/// Counts of one class of work since the process began, and how it is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Jobs that were done.
    pub jobs: u64,
    /// Jobs that were refused because too many waited.
    pub refused: u64,
    /// The time that jobs waited for a thread, all together, in microseconds.
    pub wait_us: u64,
    /// The time that they took, all together, in microseconds.
    pub run_us: u64,
    /// Jobs that wait now.
    pub queued: usize,
    /// Threads there are now.
    pub threads: usize,
    /// Jobs that run now on the file system that has most of them.
    pub in_flight_max: usize,
}

/// The counts of `class`.
pub fn counts(class: Class) -> Counts {
    let pool = pool(class);
    let state = pool.lock();
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Counts {
        jobs: read(&pool.counters.jobs),
        refused: read(&pool.counters.refused),
        wait_us: read(&pool.counters.wait_us),
        run_us: read(&pool.counters.run_us),
        queued: state.queue.len(),
        threads: state.threads,
        in_flight_max: state.queue.busiest(),
    }
}

/// The counters themselves.
pub(super) struct Counters {
    jobs: AtomicU64,
    refused: AtomicU64,
    wait_us: AtomicU64,
    run_us: AtomicU64,
}

impl Counters {
    pub const fn new() -> Counters {
        Counters {
            jobs: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            wait_us: AtomicU64::new(0),
            run_us: AtomicU64::new(0),
        }
    }

    pub fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub fn begun(&self, waited: Duration) {
        self.wait_us
            .fetch_add(microseconds(waited), Ordering::Relaxed);
    }

    pub fn ended(&self, ran: Duration) {
        self.jobs.fetch_add(1, Ordering::Relaxed);
        self.run_us.fetch_add(microseconds(ran), Ordering::Relaxed);
    }
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
