//! What is known of the files. Nothing here waits.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::super::blob::{BlobName, HALF_BYTES};
use super::super::limits;
use super::super::sieve::Sieve;

#[derive(Debug)]
pub(super) struct Index {
    /// In order, so that everything with one base is found without looking at all there is.
    numbers: BTreeMap<BlobName, usize>,
    queue: Sieve<DiskEntry>,
    bytes: u64,
    /// Bases that were purged while files of earlier processes are looked for; `None` when these are known.
    purged: Option<HashSet<[u8; HALF_BYTES]>>,
    /// More were purged than are remembered: nothing of earlier processes counts.
    is_all_purged: bool,
}

#[derive(Debug)]
struct DiskEntry {
    name: BlobName,
    bytes: u64,
    /// Of those who write under one name the one with the highest counts.
    order: u64,
    was_used: AtomicBool,
}

impl Index {
    /// Of a disk where nothing is known yet of what earlier processes have left.
    pub(crate) fn new() -> Index {
        Index {
            numbers: BTreeMap::new(),
            queue: Sieve::default(),
            bytes: 0,
            purged: Some(HashSet::new()),
            is_all_purged: false,
        }
    }

    /// Entries and bytes.
    pub(crate) fn sizes(&self) -> (usize, u64) {
        (self.queue.len(), self.bytes)
    }

    pub(crate) fn knows(&self, name: &BlobName) -> bool {
        self.numbers.contains_key(name)
    }

    /// Which write has made what stands under `name`.
    pub(crate) fn order_of(&self, name: &BlobName) -> Option<u64> {
        self.place(name).map(|place| place.order)
    }

    /// Write number `order` has put so many bytes under `name`.
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

    /// Whether it was known.
    pub(crate) fn forget(&mut self, name: &BlobName) -> bool {
        let number = self.numbers.remove(name);
        let place = number.and_then(|number| self.queue.remove(number));
        if let Some(place) = &place {
            self.bytes -= place.bytes;
        }
        place.is_some()
    }

    /// Forgets what write number `order` has made; what came later stays.
    pub(crate) fn forget_write(&mut self, name: &BlobName, order: u64) {
        if self.order_of(name) == Some(order) {
            self.forget(name);
        }
    }

    /// Forgets everything whose name begins so. The names.
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

    /// Forgets what was not used for long until there are no more than `bytes_max` bytes. The names.
    pub(crate) fn make_room(&mut self, bytes_max: u64) -> Vec<BlobName> {
        let mut gone = Vec::new();
        while self.bytes > bytes_max {
            let was_used = |place: &DiskEntry| place.was_used.swap(false, Relaxed);
            // Two rounds: in the second nothing is marked, but for what is used just now.
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

    /// It was used.
    pub(crate) fn touch(&self, name: &BlobName) {
        if let Some(place) = self.place(name) {
            place.was_used.store(true, Relaxed);
        }
    }

    /// What an earlier process has stored under this base does not count, if it is not known yet.
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

    /// Whether a file that was found now, and is not in the index, was purged before.
    pub(crate) fn was_purged(&self, name: &BlobName) -> bool {
        let is_purged = |purged: &HashSet<[u8; HALF_BYTES]>| {
            name.first_chunk().is_some_and(|base| purged.contains(base))
        };
        !self.knows(name) && (self.is_all_purged || self.purged.as_ref().is_some_and(is_purged))
    }

    /// What earlier processes have left is known now.
    pub(crate) fn complete(&mut self) {
        self.purged = None;
    }

    /// Whether purges are remembered for what is still to be found.
    #[cfg(test)]
    pub(crate) fn remembers_purges(&self) -> bool {
        self.purged.is_some()
    }

    fn place(&self, name: &BlobName) -> Option<&DiskEntry> {
        let number = self.numbers.get(name)?;
        self.queue.get(*number)
    }
}
