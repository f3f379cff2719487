//! Counts the look-ups that a worker's own cache could not answer.
//!
//! The others are not counted: the counter would be the only memory shared between workers that they write
//! to. The ratio follows from the number of requests.

use std::sync::atomic::{AtomicU64, Ordering};

/// Look-ups of all workers since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LookUps {
    /// The kernel had everything in its caches.
    pub(crate) cached: u64,
    /// The kernel did not, or asking it could have waited. The request started a job or joined one.
    pub(crate) disk: u64,
}

/// The counters that workers add to.
#[derive(Default)]
pub(super) struct LookUpCounters {
    cached: AtomicU64,
    disk: AtomicU64,
}

impl LookUpCounters {
    pub(crate) fn read(&self) -> LookUps {
        LookUps {
            cached: self.cached.load(Ordering::Relaxed),
            disk: self.disk.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn count_cached(&self) {
        self.cached.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_disk(&self) {
        self.disk.fetch_add(1, Ordering::Relaxed);
    }
}
