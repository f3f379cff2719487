//! How look-ups were answered that a worker's own memory could not answer.
//!
//! Those it could answer are not counted: that would be the only thing they write to memory that workers
//! share. Who wants the ratio has the number of requests.

use std::sync::atomic::{AtomicU64, Ordering};

/// Look-ups since the process began, of all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookUps {
    /// The kernel had everything in its caches.
    pub cached: u64,
    /// It had not, or could not be asked without waiting: a job was begun, or one that was under way was
    /// joined.
    pub disk: u64,
}

/// The counts.
pub fn look_ups() -> LookUps {
    LookUps {
        cached: CACHED.load(Ordering::Relaxed),
        disk: DISK.load(Ordering::Relaxed),
    }
}

pub(super) fn count_cached() {
    CACHED.fetch_add(1, Ordering::Relaxed);
}

pub(super) fn count_disk() {
    DISK.fetch_add(1, Ordering::Relaxed);
}

static CACHED: AtomicU64 = AtomicU64::new(0);
static DISK: AtomicU64 = AtomicU64::new(0);
