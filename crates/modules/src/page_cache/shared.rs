//! The part of the page cache that all workers share, and the part that each worker has of its own.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock};

use petrel_engine::proto::stored_page::CachedPage;
use petrel_engine::proto::stored_page::blob::{self, BlobName};
use petrel_engine::shared::{Shared, lock};
use petrel_engine::worker::Worker;

use super::counters::Counters;
use super::disk::Disk;
use super::entry::CacheEntry;
use super::flight::{Flights, Landing};
use super::fragments::Fragments;
use super::front::Front;
use super::limits;
use super::memory::Memory;
use super::options::Places;
use super::second_tier::SecondTier;
use super::tag_purges::TagPurges;
use super::turns::Turns;

/// Where all workers of a server process find the cache.
#[derive(Debug, Default)]
pub(crate) struct Registry(OnceLock<Arc<SharedCache>>);

impl Registry {
    /// The cache, if a worker has used it.
    pub(crate) fn get(&self) -> Option<&Arc<SharedCache>> {
        self.0.get()
    }
}

/// The part of the cache that all workers share.
#[derive(Debug)]
pub struct SharedCache {
    /// Stored answers.
    pub memory: Memory<CacheEntry>,
    /// Fetches that are under way.
    pub(crate) flights: Arc<Flights>,
    /// Parts of pages that scripts have stored.
    pub fragments: Fragments,
    /// The latest purges.
    pub(crate) purges: Purges,
    /// The files, if a disk cache is configured.
    pub disk: Option<Arc<Disk>>,
    /// Tags that were purged, for answers in files.
    pub(crate) tag_purges: Arc<TagPurges>,
    /// The order of operations on the store that several machines share.
    turns: Arc<Turns>,
    counters: Mutex<Vec<Arc<Counters>>>,
}

/// Called when the server process drains: pages that only it has in memory are of no use to its successor.
pub fn drain(shared: &Shared) {
    if let Some(cache) = shared.belonging(Registry::default).get() {
        cache.memory.purge_all(|_| true);
    }
}

impl SharedCache {
    fn new(places: &Places, worker: &Worker) -> SharedCache {
        SharedCache {
            disk: open_disk(places, worker),
            tag_purges: Arc::default(),
            turns: Arc::default(),
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

    /// How much is stored now.
    pub fn sizes(&self) -> [(&'static str, u64); 7] {
        let disk = self.disk.as_ref().map(|disk| disk.sizes());
        let (disk_entries, disk_bytes, disk_errors) = disk.unwrap_or_default();
        [
            ("page-cache.disk.entries", disk_entries),
            ("page-cache.disk.bytes", disk_bytes),
            ("page-cache.disk.errors", disk_errors),
            ("page-cache.entries", self.memory.entries() as u64),
            ("page-cache.bytes", self.memory.bytes() as u64),
            (
                "page-cache.fragments.entries",
                self.fragments.entries() as u64,
            ),
            ("page-cache.fragments.bytes", self.fragments.bytes() as u64),
        ]
    }
}

/// The page cache as one worker sees it.
pub struct PageCache {
    /// The part that it shares with other workers.
    pub shared: Arc<SharedCache>,
    /// This worker's counters.
    pub counters: Arc<Counters>,
    /// The store that several machines share, if one is configured.
    pub(super) tier: Option<Rc<SecondTier>>,
    pub(super) front: RefCell<Front>,
    /// A buffer that keys are written into.
    pub(super) key: RefCell<Vec<u8>>,
}

impl PageCache {
    /// The cache of this worker, made on the first call.
    pub fn of(worker: &Rc<Worker>) -> Rc<PageCache> {
        worker.belonging(|| PageCache::new(worker))
    }

    fn new(worker: &Rc<Worker>) -> PageCache {
        let registry = worker.shared().belonging(Registry::default);
        let places = Places::of(worker.settings_table().config());
        let make = || {
            let shared = Arc::new(SharedCache::new(&places, worker));
            shared.load();
            shared
        };
        let shared = registry.0.get_or_init(make);
        let counters = Arc::new(Counters::default());
        lock(&shared.counters).push(Arc::clone(&counters));
        PageCache {
            shared: Arc::clone(shared),
            tier: SecondTier::new(worker, &places, &counters, &shared.turns),
            counters,
            front: RefCell::default(),
            key: RefCell::default(),
        }
    }

    /// Stores an answer that was requested in second `at_s`, when `since` was the number of the latest purge.
    /// Returns what the requests that wait for it can do.
    pub(super) fn store(&self, entry: &Arc<CacheEntry>, since: u64, at_s: u64) -> Landing {
        let landing = self.adopt(entry, since);
        if landing == Landing::Stored {
            self.counters.stores.add();
            self.store_below(entry, since, at_s);
        }
        landing
    }

    /// Puts an answer into memory.
    pub(super) fn adopt(&self, entry: &Arc<CacheEntry>, since: u64) -> Landing {
        if self
            .shared
            .purges
            .concern(&entry.page.key, &entry.page.tags, since)
        {
            return Landing::NotStored;
        }
        let evicted = self.shared.memory.insert(entry).unwrap_or(0);
        self.counters.evictions.add_many(evicted as u64);
        // A purge that ran between the check and the insertion has not seen the entry.
        if self
            .shared
            .purges
            .concern(&entry.page.key, &entry.page.tags, since)
        {
            let is_it = |other: &CacheEntry| std::ptr::eq(other, &**entry);
            self.shared.memory.remove_variants(&entry.page.key, is_it);
        }
        match entry.is_live() {
            true => Landing::Stored,
            false => Landing::NotStored,
        }
    }

    /// Removes one stored answer from memory, disk and shared store.
    pub(super) fn remove(&self, entry: &CacheEntry) {
        let is_it = |other: &CacheEntry| std::ptr::eq(other, entry);
        self.shared.memory.remove_variants(&entry.page.key, is_it);
        entry.withdraw();
        let name = blob::name(&entry.page.key, &entry.page.vary);
        if let Some(disk) = &self.shared.disk {
            disk.remove_elsewhere(name);
        }
        if let Some(tier) = &self.tier {
            tier.remove(name);
        }
    }

    /// Writes a stored answer to the disk and to the shared store, if it is of use for long enough.
    fn store_below(&self, entry: &Arc<CacheEntry>, since: u64, at_s: u64) {
        let times = &entry.page.times;
        let lifetime_s = times.useful_until_s().saturating_sub(times.received_s);
        if lifetime_s < limits::BELOW_S_MIN {
            return;
        }
        if let Some(disk) = &self.shared.disk {
            let (entry, shared) = (Arc::clone(entry), Arc::clone(&self.shared));
            let purged = Arc::clone(&entry);
            let is_purged = move || {
                let page = &purged.page;
                purged.is_withdrawn() || shared.purges.concern(&page.key, &page.tags, since)
            };
            if let Some(job) = disk.write(move || blobs(&entry.page, at_s), is_purged) {
                let counters = Arc::clone(&self.counters);
                tokio::task::spawn_local(async move {
                    if job.await == Ok(true) {
                        counters.disk_stores.add();
                    }
                });
            }
        }
        if let Some(tier) = &self.tier {
            tier.store(blobs(&entry.page, at_s), lifetime_s);
        }
    }

    /// Removes all variants of the page whose key begins with `base`. Returns how many were in memory.
    pub(super) fn purge_base(&self, worker: &Worker, base: &[u8]) -> usize {
        self.shared.purges.add(Purged::Base(base.into()));
        let count = self.shared.memory.purge_base(base);
        self.counters.purged.add_many(count as u64);
        let name = blob::base_name(base);
        if let Some(disk) = &self.shared.disk {
            disk.purge(name);
        }
        if let Some(tier) = &self.tier {
            tier.purge_base(name, end_of_second_ms(worker));
        }
        count
    }

    /// Removes all pages with this tag. Returns how many were in memory.
    pub(crate) fn purge_tag(&self, worker: &Worker, tag: &[u8]) -> usize {
        self.shared.purges.add(Purged::Tag(tag.into()));
        let has_tag = |entry: &CacheEntry| entry.page.tags.iter().any(|known| **known == *tag);
        let count = self.shared.memory.purge_all(has_tag);
        self.counters.purged.add_many(count as u64);
        let now_ms = end_of_second_ms(worker);
        if let Some(disk) = &self.shared.disk {
            self.shared.tag_purges.add(tag, now_ms);
            disk.write_note(Arc::clone(&self.shared.tag_purges));
        }
        if let Some(tier) = &self.tier {
            tier.purge_tag(tag, now_ms);
        }
        count
    }
}

/// The time of a purge: the end of this second, because an answer that was requested in the same second may
/// be older than the purge.
fn end_of_second_ms(worker: &Worker) -> u64 {
    let now_s = worker.clock().steady_seconds();
    now_s.saturating_mul(1000).saturating_add(999)
}

impl SharedCache {
    /// Indexes the files of earlier processes, in the background.
    fn load(&self) {
        if let Some(disk) = &self.disk {
            disk.load(Arc::clone(&self.tag_purges));
        }
    }
}

fn open_disk(places: &Places, worker: &Worker) -> Option<Arc<Disk>> {
    let path = places.disk_path.as_deref()?;
    let log = worker.base_settings().core.error_log.clone();
    match Disk::open(path, places.disk_bytes, log.clone()) {
        Ok(disk) => Some(disk),
        Err(error) => {
            log.error(format_args!(
                "(page-cache) page-cache.disk-path {path:?} is not used: {error}"
            ));
            None
        }
    }
}

/// The blobs of a page that was requested in second `at_s`. If it depends on request fields, the blob that
/// names them is included.
fn blobs(page: &CachedPage, at_s: u64) -> Vec<(BlobName, Vec<u8>)> {
    let at_ms = at_s.saturating_mul(1000);
    let name = blob::name(&page.key, &page.vary);
    let mut blobs = vec![(name, blob::encode_page(page, at_ms))];
    if !page.vary.is_empty() {
        let name = blob::name(&page.key, &[]);
        blobs.push((name, blob::encode_vary(&page.key, &page.vary)));
    }
    blobs
}

/// The latest purges. An answer that was fetched before a purge must not be stored after it.
#[derive(Debug, Default)]
pub(crate) struct Purges {
    latest: Mutex<Latest>,
}

#[derive(Debug, Default)]
struct Latest {
    /// How many purges there were in total.
    count: u64,
    /// The last of them; the latest is at the end.
    purged: VecDeque<Purged>,
}

#[derive(Debug)]
enum Purged {
    Base(Box<[u8]>),
    Tag(Box<[u8]>),
}

impl Purges {
    /// The number of the latest purge, which a fetch notes when it begins.
    pub(crate) fn number(&self) -> u64 {
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

    /// Whether a page with this key and these tags was purged after purge number `since`; true also if that
    /// is not known any more.
    fn concern(&self, key: &[u8], tags: &[Box<[u8]>], since: u64) -> bool {
        let latest = lock(&self.latest);
        let count = usize::try_from(latest.count.saturating_sub(since)).unwrap_or(usize::MAX);
        if count > latest.purged.len() {
            return true;
        }
        latest
            .purged
            .iter()
            .rev()
            .take(count)
            .any(|purged| match purged {
                Purged::Base(base) => key.starts_with(base),
                Purged::Tag(tag) => tags.contains(tag),
            })
    }
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
        assert!(
            purges.concern(b"b", &[], before),
            "it is not known any more"
        );
        assert!(!purges.concern(b"b", &[], purges.number() - 5));
    }
}
