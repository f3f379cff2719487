//! What each backend has read: `server.io.BACKEND.*`.
//!
//! What the workers send themselves is counted by each for itself, without a word that they share, and added
//! up once a second; reads by others are rare enough to be counted at once.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::settings::core::NetworkBackend;

/// What a backend has read since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounts {
    /// Reads that another thread, or the kernel meanwhile, has done: the file was not in memory.
    pub async_reads: u64,
    /// Reads and sends that were done at once: it was.
    pub sync_reads: u64,
    /// Bytes of the first.
    pub async_bytes: u64,
    /// Bytes of the second.
    pub sync_bytes: u64,
}

/// The counts of `backend`. Those of other workers may be a second old.
pub fn io_counts(backend: NetworkBackend) -> IoCounts {
    publish();
    let counters = &COUNTERS[backend as usize];
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    IoCounts {
        async_reads: read(&counters.async_reads),
        sync_reads: read(&counters.sync_reads),
        async_bytes: read(&counters.async_bytes),
        sync_bytes: read(&counters.sync_bytes),
    }
}

/// The kernel, or a thread, has read `bytes`.
pub(crate) fn count_async(backend: NetworkBackend, bytes: usize) {
    let counters = &COUNTERS[backend as usize];
    add(&counters.async_reads, 1);
    add(&counters.async_bytes, bytes as u64);
}

/// The worker has read or sent `bytes` itself.
pub(super) fn count_sync(backend: NetworkBackend, bytes: usize) {
    OWN.with(|own| {
        let own = &own[backend as usize];
        let (reads, all) = own.get();
        own.set((reads + 1, all + bytes as u64));
    });
}

/// Adds what this thread has counted to what all have.
pub(crate) fn publish() {
    OWN.with(|own| {
        for (own, counters) in own.iter().zip(&COUNTERS) {
            let (reads, bytes) = own.take();
            if reads > 0 {
                add(&counters.sync_reads, reads);
                add(&counters.sync_bytes, bytes);
            }
        }
    });
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

thread_local! {
    /// Reads and bytes that this thread has done and not published.
    static OWN: [Cell<(u64, u64)>; NetworkBackend::ALL.len()] =
        const { [const { Cell::new((0, 0)) }; NetworkBackend::ALL.len()] };
}

struct Counters {
    async_reads: AtomicU64,
    sync_reads: AtomicU64,
    async_bytes: AtomicU64,
    sync_bytes: AtomicU64,
}

static COUNTERS: [Counters; NetworkBackend::ALL.len()] = [const {
    Counters {
        async_reads: AtomicU64::new(0),
        sync_reads: AtomicU64::new(0),
        async_bytes: AtomicU64::new(0),
        sync_bytes: AtomicU64::new(0),
    }
}; NetworkBackend::ALL.len()];
