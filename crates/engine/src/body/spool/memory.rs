//! Bytes of a spool that are in memory, and the memory budget that all spools of a worker share.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use bytes::Bytes;

use crate::limits;

/// Bytes in memory. If there are more than [`limits::SPOOL_MEMORY_BYTES_MAX`], all of them count against the
/// budget that all spools of a worker share, until they are sent or dropped.
#[derive(Default)]
pub(super) struct SpoolMemory {
    bytes: Vec<u8>,
    share: SpoolShare,
}

impl SpoolMemory {
    /// Whether `count` more bytes may be stored in memory. If so, takes them from the budget.
    pub(crate) fn has_room_for(&mut self, count: usize) -> bool {
        let length = self.bytes.len() + count;
        if length <= limits::SPOOL_MEMORY_BYTES_MAX {
            return true;
        }
        let all = COUNTED.get() + length.saturating_sub(self.share.counted);
        let has_room =
            length <= limits::SPOOL_LARGE_BYTES_MAX && all <= limits::SPOOL_BUDGET_BYTES_MAX;
        if has_room {
            self.share.set(length);
        }
        has_room
    }

    /// Appends bytes for which [`SpoolMemory::has_room_for`] returned true.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        match self.bytes.capacity() {
            // Most bodies arrive in one piece. With exactly their size, the vector becomes a piece without a
            // copy.
            0 => self.bytes = bytes.to_vec(),
            _ => self.bytes.extend_from_slice(bytes),
        }
    }

    /// Appends bytes even if the budget is used up: they stay in memory until they are written.
    pub(crate) fn append_all(&mut self, bytes: &[u8]) {
        let length = self.bytes.len() + bytes.len();
        if self.bytes.capacity() == 0 {
            self.bytes
                .reserve_exact(limits::SPOOL_WRITE_BYTES.max(length));
        }
        self.bytes.extend_from_slice(bytes);
        self.count();
    }

    /// Removes the first `count` bytes.
    pub(crate) fn drain(&mut self, count: usize) {
        self.bytes.drain(..count.min(self.bytes.len()));
        self.count();
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(limits::POOLED_BUFFER_BYTES_MAX);
        self.share.set(0);
    }

    /// The bytes. They use the budget until the last reference is dropped.
    pub(crate) fn into_bytes(self) -> Bytes {
        match self.share.counted {
            0 => Bytes::from(self.bytes),
            _ => Bytes::from_owner(self),
        }
    }

    /// The bytes for this worker, which use the budget until it drops them, and a weak reference for a disk
    /// thread.
    pub(crate) fn into_shared(self) -> (Bytes, Weak<Vec<u8>>) {
        let bytes = Arc::new(self.bytes);
        let for_others = Arc::downgrade(&bytes);
        let mut share = self.share;
        share.set(bytes.len());
        let counted = CountedBytes {
            bytes,
            _share: share,
        };
        (Bytes::from_owner(counted), for_others)
    }

    fn count(&mut self) {
        let length = self.bytes.len();
        self.share
            .set(match length > limits::SPOOL_MEMORY_BYTES_MAX {
                true => length,
                false => 0,
            });
    }
}

impl From<Vec<u8>> for SpoolMemory {
    fn from(bytes: Vec<u8>) -> SpoolMemory {
        let mut memory = SpoolMemory {
            bytes,
            share: SpoolShare::default(),
        };
        memory.count();
        memory
    }
}

impl Deref for SpoolMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for SpoolMemory {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Whether the budget of this worker has room.
pub(super) fn has_budget() -> bool {
    COUNTED.get() < limits::SPOOL_BUDGET_BYTES_MAX
}

/// How many bytes of the budget this worker's spools use.
#[cfg(test)]
pub(super) fn counted() -> usize {
    COUNTED.get()
}

struct CountedBytes {
    bytes: Arc<Vec<u8>>,
    _share: SpoolShare,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A part of the budget, which is returned when this is dropped.
#[derive(Default)]
struct SpoolShare {
    counted: usize,
}

thread_local! {
    /// How many bytes of the budget this worker's spools use.
    static COUNTED: Cell<usize> = const { Cell::new(0) };
}

impl SpoolShare {
    fn set(&mut self, counted: usize) {
        if counted != self.counted {
            // Dropped on another thread, this counts for that thread's budget. That does not happen, and
            // would only make the budget wrong.
            COUNTED.set((COUNTED.get() + counted).saturating_sub(self.counted));
            self.counted = counted;
        }
    }
}

impl Drop for SpoolShare {
    fn drop(&mut self) {
        self.set(0);
    }
}
