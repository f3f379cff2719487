//! How much each network backend has read: `server.io.BACKEND.*`.
//!
//! Each worker counts what it sends itself without shared memory, and adds that to the shared counters once a
//! second. Other reads are rare enough to be counted in the shared counters at once.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{FileAccounts, NetworkBackend};

/// How much a network backend has read since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IoCounts {
    /// Reads by a thread, or by the kernel in the background: the file was not in memory.
    pub(crate) async_reads: u64,
    /// Reads and sends that were done at once, from memory.
    pub(crate) sync_reads: u64,
    /// The bytes of `async_reads`.
    pub(crate) async_bytes: u64,
    /// The bytes of `sync_reads`.
    pub(crate) sync_bytes: u64,
}

/// Reads and bytes of one worker that are not in the shared counters yet.
#[derive(Default)]
pub(crate) struct OwnCounts([Cell<(u64, u64)>; NetworkBackend::ALL.len()]);

#[derive(Default)]
pub(super) struct ReadCounters {
    async_reads: AtomicU64,
    sync_reads: AtomicU64,
    async_bytes: AtomicU64,
    sync_bytes: AtomicU64,
}

impl FileAccounts {
    /// The shared counters of `backend`, without what workers have not added yet.
    pub(crate) fn io_counts(&self, backend: NetworkBackend) -> IoCounts {
        let counters = &self.counters[backend as usize];
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        IoCounts {
            async_reads: read(&counters.async_reads),
            sync_reads: read(&counters.sync_reads),
            async_bytes: read(&counters.async_bytes),
            sync_bytes: read(&counters.sync_bytes),
        }
    }

    /// Counts `bytes` that a thread or the kernel has read.
    pub(crate) fn count_async(&self, backend: NetworkBackend, bytes: usize) {
        let counters = &self.counters[backend as usize];
        add(&counters.async_reads, 1);
        add(&counters.async_bytes, bytes as u64);
    }
}

impl OwnCounts {
    /// Counts `bytes` that the worker has read or sent itself.
    pub(crate) fn count_sync(&self, backend: NetworkBackend, bytes: usize) {
        let own = &self.0[backend as usize];
        let (reads, all) = own.get();
        own.set((reads + 1, all + bytes as u64));
    }

    /// Adds the worker's own counts to the shared counters.
    pub(crate) fn publish(&self, accounts: &FileAccounts) {
        for (own, counters) in self.0.iter().zip(&accounts.counters) {
            let (reads, bytes) = own.take();
            if reads > 0 {
                add(&counters.sync_reads, reads);
                add(&counters.sync_bytes, bytes);
            }
        }
    }
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}
