//! Counts how much memory bytes of files take, and which network backend has read how much, for all workers
//! of a process.
//!
//! All code that reads files has a handle of the one [`FileAccounts`] that the workers share; disk threads,
//! too. Knows nothing of files.

mod backend;
mod counters;
mod queues;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use crate::limits;
pub use backend::NetworkBackend;
pub(crate) use counters::IoCounts;
pub(crate) use counters::OwnCounts;
use counters::ReadCounters;
pub(crate) use queues::CountedRead;
use queues::Queues;

/// Memory use and read counters of all workers.
#[derive(Default)]
pub struct FileAccounts {
    /// How many bytes of files are in memory.
    bytes: AtomicUsize,
    counters: [ReadCounters; NetworkBackend::ALL.len()],
    queues: Queues,
}

impl FileAccounts {
    /// Allocates memory for `length` bytes.
    pub(crate) fn memory(self: &Arc<FileAccounts>, length: usize) -> ChunkMemory {
        ChunkMemory {
            bytes: vec![0; length],
            _share: self.share(length),
        }
    }

    /// Counts `length` bytes that other code stores.
    pub(crate) fn share(self: &Arc<FileAccounts>, length: usize) -> MemoryShare {
        self.bytes.fetch_add(length, Ordering::Relaxed);
        MemoryShare {
            accounts: Arc::clone(self),
            length,
        }
    }

    /// How many of the `length` bytes that are needed now may be read: all, or only a few if memory is short.
    /// Called when the read begins, because many reads may have been queued while there was memory.
    pub(crate) fn within_memory(&self, length: usize) -> usize {
        match self.has_memory() {
            true => length,
            false => length.min(limits::CHUNK_BYTES_MIN),
        }
    }

    /// Whether there is memory for more than what is needed now.
    pub(crate) fn has_memory(&self) -> bool {
        self.memory_in_use() < limits::READ_MEMORY_BYTES_MAX
    }

    /// How many bytes of files are in memory because they are being read or sent.
    pub(crate) fn memory_in_use(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Memory for bytes of a file. It counts against [`limits::READ_MEMORY_BYTES_MAX`] until its last byte is
/// dropped.
pub(crate) struct ChunkMemory {
    bytes: Vec<u8>,
    _share: MemoryShare,
}

impl ChunkMemory {
    /// The whole buffer.
    pub(crate) fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The first `length` bytes.
    pub(crate) fn into_bytes(self, length: usize) -> Bytes {
        Bytes::from_owner(self).slice(..length)
    }
}

impl AsRef<[u8]> for ChunkMemory {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Memory that counts against [`limits::READ_MEMORY_BYTES_MAX`] until this is dropped.
pub(crate) struct MemoryShare {
    accounts: Arc<FileAccounts>,
    length: usize,
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.accounts
            .bytes
            .fetch_sub(self.length, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_memory_is_short_little_is_read() {
        let accounts = Arc::<FileAccounts>::default();
        let min = limits::CHUNK_BYTES_MIN;
        assert_eq!(accounts.within_memory(10 * min), 10 * min);
        let all = accounts.share(limits::READ_MEMORY_BYTES_MAX);
        assert_eq!(accounts.within_memory(10 * min), min);
        assert_eq!(accounts.within_memory(7), 7);
        drop(all);
        let bytes = accounts.memory(10).into_bytes(3);
        assert_eq!((bytes.len(), accounts.memory_in_use()), (3, 10));
        drop(bytes);
        assert_eq!(accounts.memory_in_use(), 0);
    }
}
