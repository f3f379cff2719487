//! Entries by path: a hash table of 16-byte slots.
//!
//! A slot holds the whole hash of the path, so that a look-up reads only the entry that it wants. The path
//! itself is stored in front of the entry's header fields, which a hit reads anyway. When requests go through
//! 10,000 files in turn, every cache line counts.

use std::hash::BuildHasher;
use std::rc::Rc;

use hashbrown::HashTable;

use super::FileEntry;

/// A hash table of entries.
#[derive(Default)]
pub(super) struct EntryTable {
    slots: HashTable<Slot>,
    hasher: foldhash::fast::RandomState,
}

struct Slot {
    hash: u64,
    entry: Rc<FileEntry>,
}

impl EntryTable {
    /// The entry of `path`.
    #[inline]
    pub(crate) fn get(&self, path: &[u8]) -> Option<&Rc<FileEntry>> {
        let hash = self.hasher.hash_one(path);
        let slot = self
            .slots
            .find(hash, |slot| slot.hash == hash && slot.entry.is_at(path))?;
        Some(&slot.entry)
    }

    /// Adds `entry`. Returns the entry that had its path before.
    pub(crate) fn insert(&mut self, path: &[u8], entry: Rc<FileEntry>) -> Option<Rc<FileEntry>> {
        let hash = self.hasher.hash_one(path);
        let is_same = |slot: &Slot| slot.hash == hash && slot.entry.is_at(path);
        if let Some(slot) = self.slots.find_mut(hash, is_same) {
            return Some(std::mem::replace(&mut slot.entry, entry));
        }
        self.slots
            .insert_unique(hash, Slot { hash, entry }, |slot| slot.hash);
        None
    }

    /// Keeps the entries for which `keep` is true.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&FileEntry) -> bool) {
        self.slots.retain(|slot| keep(&slot.entry));
    }

    /// Removes all entries.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Rc<FileEntry>> {
        self.slots.drain().map(|slot| slot.entry)
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }
}
