//! How look-ups were answered that a worker's own memory could not answer.
//!
//! Those it could answer are not counted: that would be the only thing they write to memory that workers
//! share. The number of requests gives the ratio.

use std::sync::atomic::{AtomicU64, Ordering};

/// Look-ups since the process began, of all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LookUps {
    /// The kernel had everything in its caches.
    pub(crate) cached: u64,
    /// It had not, or could not be asked without waiting: a job was begun, or one that was under way was
    /// joined.
    pub(crate) disk: u64,
}

/// The counters themselves.
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
