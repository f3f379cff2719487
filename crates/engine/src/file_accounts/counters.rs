//! What each backend has read: `server.io.BACKEND.*`.
//!
//! What the workers send themselves is counted by each for itself, without a word that they share, and added
//! up once a second; reads by others are rare enough to be counted at once.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{FileAccounts, NetworkBackend};

/// What a backend has read since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IoCounts {
    /// Reads that another thread, or the kernel meanwhile, has done: the file was not in memory.
    pub(crate) async_reads: u64,
    /// Reads and sends that were done at once: it was.
    pub(crate) sync_reads: u64,
    /// Bytes of the first.
    pub(crate) async_bytes: u64,
    /// Bytes of the second.
    pub(crate) sync_bytes: u64,
}

/// Reads and bytes that one worker has done itself and not published.
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
    /// The counts of `backend`, without what workers have not published.
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

    /// The kernel, or a thread, has read `bytes`.
    pub(crate) fn count_async(&self, backend: NetworkBackend, bytes: usize) {
        let counters = &self.counters[backend as usize];
        add(&counters.async_reads, 1);
        add(&counters.async_bytes, bytes as u64);
    }
}

impl OwnCounts {
    /// The worker has read or sent `bytes` itself.
    pub(crate) fn count_sync(&self, backend: NetworkBackend, bytes: usize) {
        let own = &self.0[backend as usize];
        let (reads, all) = own.get();
        own.set((reads + 1, all + bytes as u64));
    }

    /// Adds what the worker has counted to what all have.
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
