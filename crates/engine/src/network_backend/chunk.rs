//! Bytes of a file that were read to be sent, how much memory they take up, and what is counted of them.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;

use crate::limits;
use crate::settings::core::NetworkBackend;

/// A stretch of a file in memory.
pub(crate) struct Chunk {
    /// The offset of the first byte in the file.
    pub offset: u64,
    /// The bytes.
    pub bytes: Bytes,
}

impl Chunk {
    /// Where it lies in the file.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.bytes.len() as u64
    }

    /// The bytes from `offset` of the file on.
    pub fn from(&self, offset: u64) -> &[u8] {
        let skipped = offset.checked_sub(self.offset);
        let skipped = skipped.and_then(|skipped| usize::try_from(skipped).ok());
        skipped
            .and_then(|skipped| self.bytes.get(skipped..))
            .unwrap_or_default()
    }
}

/// Memory for a chunk, which counts for [`limits::READ_MEMORY_BYTES_MAX`] until nobody holds it.
pub(crate) struct Memory(Vec<u8>);

impl Memory {
    /// Room for `length` bytes.
    pub fn new(length: usize) -> Memory {
        IN_USE.fetch_add(length, Ordering::Relaxed);
        Memory(vec![0; length])
    }

    /// The room.
    pub fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    /// The first `length` bytes.
    pub fn into_bytes(self, length: usize) -> Bytes {
        Bytes::from_owner(self).slice(..length)
    }
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        IN_USE.fetch_sub(self.0.len(), Ordering::Relaxed);
    }
}

/// Whether there is memory for more than what is needed now.
pub(crate) fn has_memory() -> bool {
    IN_USE.load(Ordering::Relaxed) < limits::READ_MEMORY_BYTES_MAX
}

static IN_USE: AtomicUsize = AtomicUsize::new(0);

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

/// The counts of `backend`.
pub fn io_counts(backend: NetworkBackend) -> IoCounts {
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
pub(super) fn count_async(backend: NetworkBackend, bytes: usize) {
    let counters = &COUNTERS[backend as usize];
    counters.async_reads.fetch_add(1, Ordering::Relaxed);
    counters
        .async_bytes
        .fetch_add(bytes as u64, Ordering::Relaxed);
}

/// The worker has read or sent `bytes` itself.
pub(super) fn count_sync(backend: NetworkBackend, bytes: usize) {
    let counters = &COUNTERS[backend as usize];
    counters.sync_reads.fetch_add(1, Ordering::Relaxed);
    counters
        .sync_bytes
        .fetch_add(bytes as u64, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_knows_where_it_lies() {
        let chunk = Chunk {
            offset: 100,
            bytes: Bytes::from_static(b"abcdef"),
        };
        assert_eq!(chunk.range(), 100..106);
        assert_eq!(chunk.from(102), b"cdef");
        assert_eq!(chunk.from(106), b"");
        assert_eq!(chunk.from(99), b"");
        assert_eq!(chunk.from(107), b"");
    }
}
