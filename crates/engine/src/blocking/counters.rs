//! Counters of the disk threads, for the status page and the log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Class, Origin, PoolState, pool};

/// Counters of one class since the process began, and its present state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Jobs that were done.
    pub jobs: u64,
    /// Jobs that were refused because too many waited.
    pub refused: u64,
    /// The sum of the times that jobs waited for a thread, in microseconds.
    pub wait_us: u64,
    /// The longest time that a job waited for a thread.
    pub wait_us_max: u64,
    /// The sum of the times that finished jobs ran, in microseconds.
    pub run_us: u64,
    /// The longest time that a job ran.
    pub run_us_max: u64,
    /// Jobs that wait now.
    pub queued: usize,
    /// Jobs that run now.
    pub running: usize,
    /// How many of these have run for longer than [`limits::STUCK_JOB_MS`](crate::limits::STUCK_JOB_MS).
    pub stuck: usize,
    /// Threads that exist now.
    pub threads: usize,
}

impl Counts {
    /// The average time that a job waited for a thread, in microseconds; 0 before the first job.
    pub(crate) fn wait_us_mean(&self) -> u64 {
        let begun = self.jobs + self.running as u64;
        self.wait_us.checked_div(begun).unwrap_or(0)
    }

    /// The average time that a job ran, in microseconds; 0 before the first is done.
    pub(crate) fn run_us_mean(&self) -> u64 {
        self.run_us.checked_div(self.jobs).unwrap_or(0)
    }
}

/// The counts of `class`.
pub fn counts(class: Class) -> Counts {
    let pool = pool(class);
    pool.counters.read(&pool.lock())
}

/// The jobs that run on a file system or wait for it now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceLoad {
    /// The device number, as in [`Origin`]; 0 stands for all file systems that are not known.
    pub device: u64,
    /// Jobs that run.
    pub running: usize,
    /// Jobs that wait.
    pub waiting: usize,
    /// How long the oldest job that runs has been running.
    pub oldest: Option<Duration>,
}

/// The file systems that have jobs now, ordered by device number. All classes are added up.
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
                    known.oldest = known.oldest.max(state.oldest(load.device));
                }
                None => all.push(DeviceLoad {
                    oldest: state.oldest(load.device),
                    ..load
                }),
            }
        }
    }
    all.sort_by_key(|load| load.device);
    all
}

/// The counters of one class; disk threads and workers add to them.
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
