//! Bytes that a spool has in memory, and the budget that all spools of a worker share.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use bytes::Bytes;

use crate::limits;

/// Bytes in memory. What is more than [`limits::SPOOL_MEMORY_BYTES_MAX`] counts for a budget that all
/// spools of a worker share, until it is sent or forgotten.
#[derive(Default)]
pub(super) struct SpoolMemory {
    bytes: Vec<u8>,
    share: SpoolShare,
}

impl SpoolMemory {
    /// Whether `count` more bytes may stay here; counts them.
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

    /// Appends what there is room for.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        match self.bytes.capacity() {
            // Most bodies come at once: what has exactly their size becomes a piece as it is.
            0 => self.bytes = bytes.to_vec(),
            _ => self.bytes.extend_from_slice(bytes),
        }
    }

    /// Appends what has to stay here, room or not, until it is written.
    pub(crate) fn append_all(&mut self, bytes: &[u8]) {
        let length = self.bytes.len() + bytes.len();
        if self.bytes.capacity() == 0 {
            self.bytes
                .reserve_exact(limits::SPOOL_WRITE_BYTES.max(length));
        }
        self.bytes.extend_from_slice(bytes);
        self.count();
    }

    /// The bytes in front of `count` are not needed any more.
    pub(crate) fn drain(&mut self, count: usize) {
        self.bytes.drain(..count.min(self.bytes.len()));
        self.count();
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(limits::POOLED_BUFFER_BYTES_MAX);
        self.share.set(0);
    }

    /// The bytes; they count until nobody holds them.
    pub(crate) fn into_bytes(self) -> Bytes {
        match self.share.counted {
            0 => Bytes::from(self.bytes),
            _ => Bytes::from_owner(self),
        }
    }

    /// The bytes for this worker, which count until it has let go of them, and for another thread, which may
    /// look for them until then.
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

/// Whether bytes that need not stay in memory may.
pub(super) fn has_budget() -> bool {
    COUNTED.get() < limits::SPOOL_BUDGET_BYTES_MAX
}

/// What this worker's spools have counted.
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

/// A part of the budget, given back when it is dropped.
#[derive(Default)]
struct SpoolShare {
    counted: usize,
}

thread_local! {
    /// What this worker's spools have counted.
    static COUNTED: Cell<usize> = const { Cell::new(0) };
}

impl SpoolShare {
    fn set(&mut self, counted: usize) {
        if counted != self.counted {
            // Bytes that another thread was given count there: nobody does that, and it would only
            // make the budget wrong.
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
