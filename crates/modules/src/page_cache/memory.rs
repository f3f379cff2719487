//! The memory that all workers share: stored answers or fragments by key, up to a number of bytes.
//!
//! It consists of parts, chosen by key, each with a lock that is held only for a look or a change, never
//! while anything slow happens. All variants of a page are in one part, so that a purge looks at one part
//! only. Workers keep weak references of their own to the entries ([`super::front`]); the entry itself says
//! when it has left the memory.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use petrel_engine::proto::stored_page::key;
use petrel_engine::shared::lock;

use super::entry::CacheEntry;
use super::limits;
use super::sieve::Sieve;

/// The shared memory.
#[derive(Debug)]
pub struct Memory<T> {
    parts: Box<[Mutex<MemoryPart<T>>]>,
    hasher: RandomState,
    bytes: AtomicUsize,
    bytes_max: usize,
    entries: AtomicUsize,
}

/// What a memory can hold: whole answers or fragments.
pub trait MemoryContent {
    /// The key that it is found by.
    fn key(&self) -> &Arc<[u8]>;

    /// The bytes that it takes.
    fn size(&self) -> usize;

    /// Whether it was used since the last call.
    fn take_used(&self) -> bool;

    /// Whether it replaces `other`, which has the same key.
    fn replaces(&self, other: &Self) -> bool;

    /// Called when it has left the memory.
    fn end(&self) {}

    /// The beginning of the key, which chooses the part.
    fn base(key: &[u8]) -> &[u8] {
        key
    }
}

impl MemoryContent for CacheEntry {
    fn key(&self) -> &Arc<[u8]> {
        &self.page.key
    }

    fn size(&self) -> usize {
        let page = &self.page;
        let vary = page.vary.iter().map(|varying| {
            varying.name.len() + varying.value.as_ref().map_or(0, |value| value.len()) + 32
        });
        let tags = page.tags.iter().map(|tag| tag.len() + 16);
        limits::ENTRY_BYTES
            + page.body.len()
            + 2 * page.fields.len()
            + 2 * page.key.len()
            + vary.sum::<usize>()
            + tags.sum::<usize>()
    }

    fn take_used(&self) -> bool {
        self.take_used()
    }

    fn replaces(&self, other: &CacheEntry) -> bool {
        self.is_same_variant(other)
    }

    fn end(&self) {
        self.end();
    }

    fn base(key: &[u8]) -> &[u8] {
        key::base(key)
    }
}

#[derive(Debug)]
struct MemoryPart<T> {
    /// Ordered, so that a purge finds all keys with one base without looking at the others. Purges must be
    /// cheap, because every client that may POST can cause one.
    by_key: BTreeMap<Arc<[u8]>, Vec<StoredEntry<T>>>,
    queue: Sieve<Arc<T>>,
}

/// An entry and its number in the queue.
#[derive(Debug)]
struct StoredEntry<T> {
    entry: Arc<T>,
    number: usize,
}

impl<T: MemoryContent> Memory<T> {
    /// An empty memory with room for so many bytes.
    pub fn new(bytes_max: usize) -> Memory<T> {
        let parts = (0..limits::SHARDS).map(|_| {
            Mutex::new(MemoryPart {
                by_key: BTreeMap::new(),
                queue: Sieve::default(),
            })
        });
        Memory {
            parts: parts.collect(),
            hasher: RandomState::new(),
            bytes: AtomicUsize::new(0),
            bytes_max,
            entries: AtomicUsize::new(0),
        }
    }

    /// The bytes that are taken.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// The number of entries.
    pub fn entries(&self) -> usize {
        self.entries.load(Relaxed)
    }

    /// The hash of the base of `key`, which chooses the part.
    pub fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash_one(T::base(key))
    }

    /// All variants under `key`, the latest first.
    pub fn find(&self, key: &[u8]) -> Vec<Arc<T>> {
        let part = self.part(self.hash(key));
        let variants = part.by_key.get(key).map(Vec::as_slice).unwrap_or_default();
        let entries = variants.iter().rev();
        entries.map(|stored| Arc::clone(&stored.entry)).collect()
    }

    /// The latest entry under `key`.
    pub(crate) fn find_latest(&self, key: &[u8]) -> Option<Arc<T>> {
        let part = self.part(self.hash(key));
        let latest = part.by_key.get(key)?.last()?;
        Some(Arc::clone(&latest.entry))
    }

    /// Stores `entry` in place of the same variant. Returns how many other entries were evicted for it;
    /// `None`: it is larger than the whole memory and was not stored.
    pub fn insert(&self, entry: &Arc<T>) -> Option<usize> {
        let size = entry.size();
        if size > self.bytes_max {
            // The older answer must not be sent any more.
            self.remove_variants(entry.key(), |other| entry.replaces(other));
            entry.end();
            return None;
        }
        let hash = self.hash(entry.key());
        let mut part = self.part(hash);
        let number = part.queue.insert(Arc::clone(entry));
        let key = Arc::clone(entry.key());
        let variants = part.by_key.entry(key).or_default();
        let same = variants
            .iter()
            .position(|stored| entry.replaces(&stored.entry));
        // Variants are in the order of arrival, so the first one is the oldest.
        let surplus = (variants.len() >= limits::VARIANTS_MAX).then_some(0);
        let old = same.or(surplus).map(|at| variants.remove(at));
        variants.push(StoredEntry {
            entry: Arc::clone(entry),
            number,
        });
        self.bytes.fetch_add(size, Relaxed);
        self.entries.fetch_add(1, Relaxed);
        if let Some(old) = old {
            part.queue.remove(old.number);
            self.account_end(&old.entry);
        }
        // `make_room` locks this part again.
        drop(part);
        Some(self.make_room(hash, entry))
    }

    /// Removes every entry whose key begins with `base`. Returns how many.
    pub(crate) fn purge_base(&self, base: &[u8]) -> usize {
        let mut part = self.part(self.hash(base));
        let from_base = (Bound::Included(base), Bound::Unbounded);
        let keys = part.by_key.range::<[u8], _>(from_base).map(|(key, _)| key);
        let keys = keys.take_while(|key| key.starts_with(base));
        let keys: Vec<Arc<[u8]>> = keys.cloned().collect();
        let mut count = 0;
        for key in keys {
            for stored in part.by_key.remove(&key).into_iter().flatten() {
                part.queue.remove(stored.number);
                self.account_end(&stored.entry);
                count += 1;
            }
        }
        count
    }

    /// Removes every entry for which `is_it` is true, in all parts. Returns how many.
    pub(crate) fn purge_all(&self, is_it: impl Fn(&T) -> bool) -> usize {
        let mut count = 0;
        for part in &self.parts {
            let mut part = lock(part);
            let gone = part.queue.iter().filter(|(_, entry)| is_it(entry));
            let gone: Vec<usize> = gone.map(|(number, _)| number).collect();
            count += gone.len();
            for number in gone {
                if let Some(entry) = part.queue.remove(number) {
                    self.forget(&mut part, &entry);
                }
            }
        }
        count
    }

    /// Removes the variants under one key for which `is_it` is true. Returns how many.
    pub(crate) fn remove_variants(&self, key: &[u8], is_it: impl Fn(&T) -> bool) -> usize {
        let mut part = self.part(self.hash(key));
        let variants = part.by_key.get(key).map(Vec::as_slice).unwrap_or_default();
        let gone: Vec<usize> = variants
            .iter()
            .filter(|stored| is_it(&stored.entry))
            .map(|stored| stored.number)
            .collect();
        for number in &gone {
            if let Some(entry) = part.queue.remove(*number) {
                self.forget(&mut part, &entry);
            }
        }
        gone.len()
    }

    /// Evicts entries until there is room: first in the part of the latest entry, then in the others. Entries
    /// that were used are evicted in the second round only, the latest entry never.
    fn make_room(&self, hash: u64, latest: &Arc<T>) -> usize {
        let mut count = 0;
        for step in 0..2 * limits::SHARDS as u64 {
            while self.bytes() > self.bytes_max {
                let mut part = self.part(hash.wrapping_add(step));
                let is_used = |entry: &Arc<T>| Arc::ptr_eq(entry, latest) || entry.take_used();
                let Some(entry) = part.queue.evict(is_used) else {
                    break;
                };
                self.forget(&mut part, &entry);
                count += 1;
            }
        }
        count
    }

    /// Removes an entry that has left the queue from its key's list.
    fn forget(&self, part: &mut MemoryPart<T>, entry: &Arc<T>) {
        if let Some(variants) = part.by_key.get_mut(entry.key()) {
            variants.retain(|stored| !Arc::ptr_eq(&stored.entry, entry));
            if variants.is_empty() {
                part.by_key.remove(entry.key());
            }
        }
        self.account_end(entry);
    }

    fn account_end(&self, entry: &T) {
        entry.end();
        self.bytes.fetch_sub(entry.size(), Relaxed);
        self.entries.fetch_sub(1, Relaxed);
    }

    fn part(&self, hash: u64) -> MutexGuard<'_, MemoryPart<T>> {
        let at = usize::try_from(hash % limits::SHARDS as u64).unwrap_or(0);
        lock(&self.parts[at])
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::tests::page;
    use super::*;
    use petrel_engine::proto::stored_page::vary::Varying;

    fn key(name: &str) -> Vec<u8> {
        super::super::key::testing::key_of(name)
    }

    fn entry(name: &str, bytes: usize) -> Arc<CacheEntry> {
        CacheEntry::new(page(&key(name), &"x".repeat(bytes), 0, 1))
    }

    fn entry_for(name: &str, language: &str) -> Arc<CacheEntry> {
        let mut page = page(&key(name), language, 0, 1);
        page.vary = Box::new([Varying {
            name: "accept-language".into(),
            value: Some(language.as_bytes().into()),
        }]);
        CacheEntry::new(page)
    }

    #[test]
    fn the_same_variant_is_replaced_and_others_stay() {
        let memory = Memory::new(1 << 20);
        let (old, new, other) = (
            entry_for("a", "de"),
            entry_for("a", "de"),
            entry_for("a", "en"),
        );
        for entry in [&old, &other, &new] {
            memory.insert(entry);
        }
        assert!(!old.is_live() && new.is_live() && other.is_live());
        let found = memory.find(&key("a"));
        assert!(Arc::ptr_eq(&found[0], &new) && Arc::ptr_eq(&found[1], &other));
        assert_eq!((found.len(), memory.entries()), (2, 2));
        assert_eq!(memory.bytes(), new.size() + other.size());
    }

    #[test]
    fn variants_of_one_page_are_limited() {
        let memory = Memory::new(1 << 20);
        let entries: Vec<_> = (0..limits::VARIANTS_MAX + 3)
            .map(|number| entry_for("a", &number.to_string()))
            .collect();
        for entry in &entries {
            memory.insert(entry);
        }
        let live = entries.iter().map(|entry| entry.is_live());
        assert_eq!(
            live.clone().filter(|live| *live).count(),
            limits::VARIANTS_MAX
        );
        assert_eq!(live.take_while(|live| !live).count(), 3);
        assert_eq!(memory.entries(), limits::VARIANTS_MAX);
    }

    #[test]
    fn memory_is_bounded_and_what_is_used_stays() {
        let hot = entry("hot", 1000);
        let memory = Memory::new(20 * hot.size());
        memory.insert(&hot);
        let mut evicted = 0;
        for number in 0..1000 {
            hot.touch();
            evicted += memory
                .insert(&entry(&number.to_string(), 1000))
                .unwrap_or(0);
            assert!(memory.bytes() <= 20 * hot.size());
        }
        assert!(hot.is_live(), "used all the time");
        assert!(evicted >= 900, "{evicted}");
        let large = entry("large", 1 << 20);
        memory.insert(&large);
        assert!(!large.is_live() && memory.find(&key("large")).is_empty());
    }

    #[test]
    fn purges_find_pages_by_base_and_by_anything_else() {
        let memory = Memory::new(1 << 20);
        let entries = [
            entry_for("a", "de"),
            entry_for("a", "en"),
            entry_for("b", "de"),
        ];
        for entry in &entries {
            memory.insert(entry);
        }
        assert_eq!(memory.purge_base(&key("a")), 2);
        assert_eq!(memory.purge_base(&key("a")), 0);
        assert!(!entries[0].is_live() && !entries[1].is_live() && entries[2].is_live());
        assert_eq!(memory.purge_all(|entry| &entry.page.body[..] == b"de"), 1);
        assert_eq!((memory.bytes(), memory.entries()), (0, 0));
    }

    #[test]
    fn threads_that_store_and_purge_leave_it_whole() {
        let memory = Arc::new(Memory::new(50_000));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let memory = Arc::clone(&memory);
                scope.spawn(move || {
                    for number in 0..2000 {
                        let name = ((number * 7 + thread) % 50).to_string();
                        memory.insert(&entry(&name, 500));
                        if number % 10 == 0 {
                            memory.purge_base(&key(&name));
                        }
                    }
                });
            }
        });
        assert!(memory.bytes() <= 50_000);
        memory.purge_all(|_| true);
        assert_eq!((memory.bytes(), memory.entries()), (0, 0));
    }
}
