//! What the threads have done: for the status page and for those who wonder what waits for what.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Class, Origin, PoolState, pool};

/// Counts of one class of work since the process began, and how it is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Jobs that were done.
    pub jobs: u64,
    /// Jobs that were refused because too many waited.
    pub refused: u64,
    /// The time that jobs waited for a thread, all together, in microseconds.
    pub wait_us: u64,
    /// The longest of these waits.
    pub wait_us_max: u64,
    /// The time that they took, all together, in microseconds. Of those that are done.
    pub run_us: u64,
    /// The longest of these times.
    pub run_us_max: u64,
    /// Jobs that wait now.
    pub queued: usize,
    /// Jobs that run now.
    pub running: usize,
    /// Those of them that have been running for longer than [`limits::STUCK_JOB_MS`](crate::limits::STUCK_JOB_MS).
    pub stuck: usize,
    /// Threads there are now.
    pub threads: usize,
}

impl Counts {
    /// What a job has waited for a thread on average, in microseconds; 0 before the first.
    pub(crate) fn wait_us_mean(&self) -> u64 {
        let begun = self.jobs + self.running as u64;
        self.wait_us.checked_div(begun).unwrap_or(0)
    }

    /// What a job has taken on average, in microseconds; 0 before the first is done.
    pub(crate) fn run_us_mean(&self) -> u64 {
        self.run_us.checked_div(self.jobs).unwrap_or(0)
    }
}

/// The counts of `class`.
pub fn counts(class: Class) -> Counts {
    let pool = pool(class);
    pool.counters.read(&pool.lock())
}

/// What runs and waits for a file system now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceLoad {
    /// Its number, as in [`Origin`]: 0 for all that is not known.
    pub device: u64,
    /// Jobs that run.
    pub running: usize,
    /// Jobs that wait.
    pub waiting: usize,
}

/// The file systems that have work now, in the order of their numbers. All classes together.
pub fn device_loads() -> Vec<DeviceLoad> {
    let mut all: Vec<DeviceLoad> = Vec::new();
    for class in Class::ALL {
        let state = pool(class).lock();
        let is_of_one = |load: &DeviceLoad| load.device < Origin::USERS.device;
        for load in state.queue.loads().filter(is_of_one) {
            match all.iter_mut().find(|known| known.device == load.device) {
                Some(known) => {
                    known.running += load.running;
                    known.waiting += load.waiting;
                }
                None => all.push(load),
            }
        }
    }
    all.sort_by_key(|load| load.device);
    all
}

/// The counters themselves.
pub(super) struct JobCounters {
    jobs: AtomicU64,
    refused: AtomicU64,
    wait_us: AtomicU64,
    wait_us_max: AtomicU64,
    run_us: AtomicU64,
    run_us_max: AtomicU64,
}

impl JobCounters {
    pub(crate) const fn new() -> JobCounters {
        JobCounters {
            jobs: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            wait_us: AtomicU64::new(0),
            wait_us_max: AtomicU64::new(0),
            run_us: AtomicU64::new(0),
            run_us_max: AtomicU64::new(0),
        }
    }

    pub(crate) fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn begun(&self, waited: Duration) {
        let waited = microseconds(waited);
        self.wait_us.fetch_add(waited, Ordering::Relaxed);
        self.wait_us_max.fetch_max(waited, Ordering::Relaxed);
    }

    pub(crate) fn ended(&self, ran: Duration) {
        let ran = microseconds(ran);
        self.jobs.fetch_add(1, Ordering::Relaxed);
        self.run_us.fetch_add(ran, Ordering::Relaxed);
        self.run_us_max.fetch_max(ran, Ordering::Relaxed);
    }

    pub(crate) fn read(&self, state: &PoolState) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            jobs: read(&self.jobs),
            refused: read(&self.refused),
            wait_us: read(&self.wait_us),
            wait_us_max: read(&self.wait_us_max),
            run_us: read(&self.run_us),
            run_us_max: read(&self.run_us_max),
            queued: state.queue.len(),
            running: state.running(),
            stuck: state.stuck(),
            threads: state.threads,
        }
    }
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
