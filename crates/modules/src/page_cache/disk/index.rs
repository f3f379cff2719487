//! The index of the files. Nothing here waits.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::super::limits;
use super::super::sieve::Sieve;
use petrel_engine::proto::stored_page::blob::{BlobName, HALF_BYTES};

#[derive(Debug)]
pub(super) struct Index {
    /// Ordered, so that a purge finds all entries with one base without looking at the others.
    numbers: BTreeMap<BlobName, usize>,
    queue: Sieve<DiskEntry>,
    bytes: u64,
    /// The bases that were purged while files of earlier processes are still being indexed; `None` when that
    /// is done.
    purged: Option<HashSet<[u8; HALF_BYTES]>>,
    /// More were purged than can be remembered: all files of earlier processes count as purged.
    is_all_purged: bool,
}

#[derive(Debug)]
struct DiskEntry {
    name: BlobName,
    bytes: u64,
    /// The number of the write that made the file. The highest number for a name counts.
    order: u64,
    was_used: AtomicBool,
}

impl Index {
    /// An empty index. The files of earlier processes are not known yet.
    pub(crate) fn new() -> Index {
        Index {
            numbers: BTreeMap::new(),
            queue: Sieve::default(),
            bytes: 0,
            purged: Some(HashSet::new()),
            is_all_purged: false,
        }
    }

    /// The number of entries and of bytes.
    pub(crate) fn sizes(&self) -> (usize, u64) {
        (self.queue.len(), self.bytes)
    }

    pub(crate) fn knows(&self, name: &BlobName) -> bool {
        self.numbers.contains_key(name)
    }

    /// The number of the write that made the file `name`.
    pub(crate) fn order_of(&self, name: &BlobName) -> Option<u64> {
        self.place(name).map(|place| place.order)
    }

    /// Write number `order` has written `name` with so many bytes.
    pub(crate) fn insert(&mut self, name: BlobName, bytes: u64, order: u64) {
        self.forget(&name);
        let place = DiskEntry {
            name,
            bytes,
            order,
            was_used: AtomicBool::new(false),
        };
        let number = self.queue.insert(place);
        self.numbers.insert(name, number);
        self.bytes += bytes;
    }

    /// Removes an entry. False: there was none.
    pub(crate) fn forget(&mut self, name: &BlobName) -> bool {
        let number = self.numbers.remove(name);
        let place = number.and_then(|number| self.queue.remove(number));
        if let Some(place) = &place {
            self.bytes -= place.bytes;
        }
        place.is_some()
    }

    /// Removes the entry of write number `order`. The entry of a later write stays.
    pub(crate) fn forget_write(&mut self, name: &BlobName, order: u64) {
        if self.order_of(name) == Some(order) {
            self.forget(name);
        }
    }

    /// Removes all entries with this base. Returns their names.
    pub(crate) fn purge(&mut self, base: [u8; HALF_BYTES]) -> Vec<BlobName> {
        self.note_purge(base);
        let mut first: BlobName = [0; 2 * HALF_BYTES];
        first[..HALF_BYTES].copy_from_slice(&base);
        let names = self.numbers.range(first..).map(|(name, _)| *name);
        let names: Vec<BlobName> = names.take_while(|name| name.starts_with(&base)).collect();
        for name in &names {
            self.forget(name);
        }
        names
    }

    /// Removes entries that were not used for long, until at most `bytes_max` bytes are left. Returns their
    /// names.
    pub(crate) fn make_room(&mut self, bytes_max: u64) -> Vec<BlobName> {
        let mut gone = Vec::new();
        while self.bytes > bytes_max {
            let was_used = |place: &DiskEntry| place.was_used.swap(false, Relaxed);
            // A second round: the first one has cleared the marks, so in the second nearly every entry can
            // go.
            let place = self.queue.evict(was_used);
            let Some(place) = place.or_else(|| self.queue.evict(was_used)) else {
                break;
            };
            self.numbers.remove(&place.name);
            self.bytes -= place.bytes;
            gone.push(place.name);
        }
        gone
    }

    /// Marks an entry as used.
    pub(crate) fn touch(&self, name: &BlobName) {
        if let Some(place) = self.place(name) {
            place.was_used.store(true, Relaxed);
        }
    }

    /// Notes that files of earlier processes with this base do not count, if they are not indexed yet.
    pub(crate) fn note_purge(&mut self, base: [u8; HALF_BYTES]) {
        let Some(purged) = &mut self.purged else {
            return;
        };
        if purged.len() >= limits::PURGES_WHILE_LOADING_MAX {
            self.is_all_purged = true;
        } else {
            purged.insert(base);
        }
    }

    /// Whether a file that was just found, and is not in the index, was purged before.
    pub(crate) fn was_purged(&self, name: &BlobName) -> bool {
        let is_purged = |purged: &HashSet<[u8; HALF_BYTES]>| {
            name.first_chunk().is_some_and(|base| purged.contains(base))
        };
        !self.knows(name) && (self.is_all_purged || self.purged.as_ref().is_some_and(is_purged))
    }

    /// The files of earlier processes are indexed.
    pub(crate) fn complete(&mut self) {
        self.purged = None;
    }

    /// Whether purges are still noted for files that are not indexed yet.
    #[cfg(test)]
    pub(crate) fn remembers_purges(&self) -> bool {
        self.purged.is_some()
    }

    fn place(&self, name: &BlobName) -> Option<&DiskEntry> {
        let number = self.numbers.get(name)?;
        self.queue.get(*number)
    }
}
