//! What all workers share of the page cache, and what each has of its own.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use petrel_engine::worker::Worker;

use super::counters::Counters;
use super::entry::Entry;
use super::flight::{Flights, Landing};
use super::fragments::Fragments;
use super::front::Front;
use super::limits;
use super::memory::Memory;
use super::options::Places;

/// Where the cache of a server process is found by all its workers.
#[derive(Debug, Default)]
pub struct Registry(OnceLock<Arc<SharedCache>>);

impl Registry {
    /// The cache, if a worker has used it.
    pub fn get(&self) -> Option<&Arc<SharedCache>> {
        self.0.get()
    }
}

/// The part of the cache that all workers share.
#[derive(Debug)]
pub struct SharedCache {
    /// Stored answers.
    pub memory: Memory,
    /// Fetches under way.
    pub flights: Arc<Flights>,
    /// Parts of pages that scripts have stored.
    pub fragments: Fragments,
    /// What was purged lately.
    pub purges: Purges,
    counters: Mutex<Vec<Arc<Counters>>>,
}

impl SharedCache {
    fn new(places: &Places) -> SharedCache {
        SharedCache {
            memory: Memory::new(places.memory_bytes),
            flights: Arc::default(),
            fragments: Fragments::new(places.fragments_bytes),
            purges: Purges::default(),
            counters: Mutex::default(),
        }
    }

    /// The counters of all workers.
    pub fn counters(&self) -> Vec<Arc<Counters>> {
        lock(&self.counters).clone()
    }

    /// What is stored now.
    pub fn sizes(&self) -> [(&'static str, u64); 4] {
        [
            ("page-cache.entries", self.memory.entries() as u64),
            ("page-cache.bytes", self.memory.bytes() as u64),
            ("page-cache.fragments.entries", self.fragments.entries() as u64),
            ("page-cache.fragments.bytes", self.fragments.bytes() as u64),
        ]
    }
}

/// The page cache as one worker sees it.
pub struct PageCache {
    /// What it shares with the others.
    pub shared: Arc<SharedCache>,
    /// What it has counted.
    pub counters: Arc<Counters>,
    pub(super) front: RefCell<Front>,
    /// Keys are written here.
    pub(super) key: RefCell<Vec<u8>>,
    /// The wall clock as tests want it, in seconds ahead of the real one.
    pub(super) ahead_s: Cell<u64>,
}

impl PageCache {
    /// The cache of this worker, made when it is first asked for.
    pub fn of(worker: &Worker) -> Rc<PageCache> {
        worker.belonging(|| PageCache::new(worker))
    }

    fn new(worker: &Worker) -> PageCache {
        let registry = worker.shared().belonging(Registry::default);
        let places = || Places::of(worker.settings_table().config());
        let shared = registry.0.get_or_init(|| Arc::new(SharedCache::new(&places())));
        let counters = Arc::new(Counters::default());
        lock(&shared.counters).push(Arc::clone(&counters));
        PageCache {
            shared: Arc::clone(shared),
            counters,
            front: RefCell::default(),
            key: RefCell::default(),
            ahead_s: Cell::new(0),
        }
    }

    /// The second of the wall clock that counts for freshness.
    pub(super) fn now_s(&self, worker: &Worker) -> u64 {
        worker.clock().wall_seconds() + self.ahead_s.get()
    }

    /// Keeps an answer that was fetched when `since` was the number of the latest purge. Says what others
    /// can do who wait for it.
    pub(super) fn store(&self, entry: &Arc<Entry>, since: u64) -> Landing {
        if self.shared.purges.concern(&entry.page.key, &entry.page.tags, since) {
            return Landing::NotStored;
        }
        let evicted = self.shared.memory.insert(entry);
        self.counters.evictions.add_many(evicted as u64);
        // A purge that came between looking and storing has not seen it.
        if self.shared.purges.concern(&entry.page.key, &entry.page.tags, since) {
            let is_it = |other: &Entry| std::ptr::eq(other, &**entry);
            self.shared.memory.remove_variants(&entry.page.key, is_it);
        }
        if !entry.is_live() {
            return Landing::NotStored;
        }
        self.counters.stores.add();
        Landing::Stored
    }

    /// Removes all variants of the page whose key begins with `base`. Says how many were in memory.
    pub(super) fn purge_base(&self, base: &[u8]) -> usize {
        self.shared.purges.add(Purged::Base(base.into()));
        let count = self.shared.memory.purge_base(base);
        self.counters.purged.add_many(count as u64);
        count
    }

    /// Removes all pages with this tag. Says how many were in memory.
    pub fn purge_tag(&self, tag: &[u8]) -> usize {
        self.shared.purges.add(Purged::Tag(tag.into()));
        let has_tag = |entry: &Entry| entry.page.tags.iter().any(|known| **known == *tag);
        let count = self.shared.memory.purge_all(has_tag);
        self.counters.purged.add_many(count as u64);
        count
    }
}

/// The latest purges: what was fetched before one must not be stored after it.
#[derive(Debug, Default)]
pub struct Purges {
    latest: Mutex<Latest>,
}

#[derive(Debug, Default)]
struct Latest {
    /// How many there were in all.
    count: u64,
    /// The last of them, the latest at the end.
    purged: VecDeque<Purged>,
}

#[derive(Debug)]
enum Purged {
    Base(Box<[u8]>),
    Tag(Box<[u8]>),
}

impl Purges {
    /// The number of the latest one. A fetch that begins now asks for it.
    pub fn number(&self) -> u64 {
        lock(&self.latest).count
    }

    fn add(&self, purged: Purged) {
        let mut latest = lock(&self.latest);
        latest.count += 1;
        latest.purged.push_back(purged);
        if latest.purged.len() > limits::PURGES_MAX {
            latest.purged.pop_front();
        }
    }

    /// Whether a page with this key and these tags was purged after number `since`. Also if that is not
    /// known any more.
    fn concern(&self, key: &[u8], tags: &[Box<[u8]>], since: u64) -> bool {
        let latest = lock(&self.latest);
        let count = usize::try_from(latest.count.saturating_sub(since)).unwrap_or(usize::MAX);
        if count > latest.purged.len() {
            return true;
        }
        latest.purged.iter().rev().take(count).any(|purged| match purged {
            Purged::Base(base) => key.starts_with(base),
            Purged::Tag(tag) => tags.contains(tag),
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purges_concern_what_was_fetched_before_them() {
        let purges = Purges::default();
        let tags: [Box<[u8]>; 1] = [b"t"[..].into()];
        let before = purges.number();
        assert!(!purges.concern(b"ab", &tags, before));
        purges.add(Purged::Base(b"a"[..].into()));
        assert!(purges.concern(b"ab", &[], before));
        assert!(!purges.concern(b"b", &tags, before));
        assert!(!purges.concern(b"ab", &tags, purges.number()));
        purges.add(Purged::Tag(b"t"[..].into()));
        assert!(purges.concern(b"b", &tags, before));
        for _ in 0..limits::PURGES_MAX {
            purges.add(Purged::Base(b"x"[..].into()));
        }
        assert!(purges.concern(b"b", &[], before), "nobody knows any more");
        assert!(!purges.concern(b"b", &[], purges.number() - 5));
    }
}
