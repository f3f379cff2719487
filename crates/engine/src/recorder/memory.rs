//! The memory that the keeper makes and every server process inherits: counters and records that are still
//! there after a reload and after a crash.
//!
//! It begins with a header and a directory. A server process claims a region by name when it starts; the next
//! process that asks for the same name and the same layout gets the same words. Regions are never moved, and
//! given back only for another layout of the same name. The keeper makes this memory and does not read it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use petrel_proto::recording::Recording;
use petrel_proto::recording::layout::{
    AT_CLAIMS, AT_COUNT, AT_ENTRIES, AT_FREE, AT_MAGIC, AT_VERSION, COUNTERS, ENTRIES_MAX,
    ENTRY_COUNT, ENTRY_KIND, ENTRY_LAYOUT, ENTRY_NAME, ENTRY_OFFSET, ENTRY_OWNER, ENTRY_WORDS,
    HEADER_WORDS, LAYOUT_VERSION, MAGIC, REGIONS, RING,
};
use petrel_sys::shared_memory::Words;

use super::source::WordsSource;

/// The shared memory of a server, as the keeper or one of its server processes has it.
#[derive(Clone)]
pub struct SharedMemory {
    /// `None`: there is no keeper, and all regions belong to this process.
    all: Option<Words>,
    /// The other server processes that were alive when this one was forked.
    others: Arc<[u32]>,
    /// The number of the first claim that was made after that. What younger processes have claimed is in use.
    forked_at_claim: u64,
    claimed: Arc<Mutex<Vec<Claimed>>>,
}

/// A region that this process has claimed.
struct Claimed {
    name: RegionName,
    layout: u64,
    words: Words,
}

impl SharedMemory {
    /// Memory for counters and for rings of `ring_bytes` in all. Also returns its descriptor, by which it can
    /// be read only.
    ///
    /// # Errors
    /// The kernel is older than Linux 5.1, or has no descriptors or address space left.
    pub fn create(ring_bytes: usize) -> io::Result<(SharedMemory, OwnedFd)> {
        // A draining process keeps its rings, and a changed size needs new ones.
        let bytes = ring_bytes
            .saturating_mul(RINGS_SPARE)
            .saturating_add(COUNTER_BYTES)
            .min(BYTES_MAX);
        let (all, descriptor) = Words::shared(c"petrel-recorder", bytes / 8)?;
        all[AT_VERSION].store(LAYOUT_VERSION, Relaxed);
        all[AT_COUNT].store(all.len() as u64, Relaxed);
        all[AT_FREE].store(REGIONS as u64, Relaxed);
        all[AT_CLAIMS].store(1, Relaxed);
        all[AT_MAGIC].store(MAGIC, Release);
        Ok((SharedMemory::of(Some(all)), descriptor))
    }

    /// Memory that no other process sees.
    pub fn private() -> SharedMemory {
        SharedMemory::of(None)
    }

    fn of(all: Option<Words>) -> SharedMemory {
        SharedMemory {
            all,
            others: Arc::new([]),
            forked_at_claim: u64::MAX,
            claimed: Arc::default(),
        }
    }

    /// The memory for a server process that is about to be forked, while the server processes `others` are
    /// alive.
    #[must_use]
    pub fn beside(&self, others: Vec<u32>) -> SharedMemory {
        SharedMemory {
            all: self.all.clone(),
            others: others.into(),
            forked_at_claim: self
                .all
                .as_ref()
                .map_or(u64::MAX, |all| all[AT_CLAIMS].load(Acquire)),
            claimed: Arc::default(),
        }
    }

    /// `count` counters with the name `name`, zero at first. Processes that claim the same name with the same
    /// `layout` share them, at one time and one after another: count by `fetch_add`. `layout` is a hash of what the
    /// caller keeps where ([`layout_hash`]); with another layout the caller gets other words. All workers of this
    /// process get the same words.
    ///
    /// If the shared memory is full, the counters belong to this process alone.
    ///
    /// # Panics
    /// The name has more than 24 bytes.
    pub fn counters(&self, name: &str, layout: u64, count: usize) -> Words {
        let name = name_of(name);
        let mut claimed = self.lock();
        let is_same = |known: &&Claimed| {
            known.name == name && known.layout == layout && known.words.len() == count
        };
        if let Some(known) = claimed.iter().find(is_same) {
            return known.words.clone();
        }
        let shared = self
            .all
            .as_ref()
            .and_then(|all| self.find_counters(all, name, layout, count));
        let words = shared.unwrap_or_else(|| Words::private(count));
        claimed.push(Claimed {
            name,
            layout,
            words: words.clone(),
        });
        words
    }

    /// Counters that a process has claimed before by [`SharedMemory::counters`]. `None`: there are none.
    pub fn known_counters(&self, name: &str, layout: u64, count: usize) -> Option<Words> {
        let (all, name) = (self.all.as_ref()?, name_of(name));
        let is_same = |entry: &Entry<'_>| {
            let known_layout = entry.0[ENTRY_LAYOUT].load(Relaxed);
            entry.kind() == COUNTERS && entry.name() == name && known_layout == layout
        };
        let entry = entries(all).find(is_same)?;
        entry.words(all)?.part(0..count)
    }

    /// Whether server processes share this memory. Otherwise the process has it alone.
    pub(crate) fn is_shared(&self) -> bool {
        self.all.is_some()
    }

    /// Makes this process the owner of what `owner` belongs to, for one worker. False: this or another living
    /// process owns it. Only one of several processes that call this at the same time gets true. The word has
    /// the number of the claim in its upper half and the process in its lower half; 0: there was no owner.
    pub(crate) fn claim(&self, owner: &AtomicU64) -> bool {
        let before = owner.load(Relaxed);
        let (number, process) = (before >> 32, before as u32);
        let is_free = process != std::process::id()
            && number < self.forked_at_claim
            && !self.others.contains(&process);
        is_free
            && owner
                .compare_exchange(before, self.next_claim(), Release, Relaxed)
                .is_ok()
    }

    /// What the word of an owner says of a claim that this process makes now.
    fn next_claim(&self) -> u64 {
        let claims = self.all.as_ref().map(|all| &all[AT_CLAIMS]);
        let number = claims.map_or(0, |claims| claims.fetch_add(1, Release));
        number << 32 | u64::from(std::process::id())
    }

    /// The slowest requests that this server process and the ones before it have recorded here, and the requests for
    /// which their workers work. Without shared memory there are none, nor if it is damaged.
    pub fn slowest(&self) -> Recording {
        let all = self.all.as_ref();
        let read = all.and_then(|all| Recording::read_slowest(&WordsSource(all)).ok());
        read.unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Claimed>> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find_counters(
        &self,
        all: &Words,
        name: RegionName,
        layout: u64,
        count: usize,
    ) -> Option<Words> {
        let mut reusable = None;
        for entry in entries(all) {
            if entry.kind() != COUNTERS || entry.name() != name {
                continue;
            }
            let Some(words) = entry.words(all).and_then(|words| words.part(0..count)) else {
                continue;
            };
            if entry.0[ENTRY_LAYOUT].load(Relaxed) == layout {
                return Some(words);
            }
            reusable = Some((entry, words));
        }
        // No other process counts with the old layout.
        if self.others.is_empty()
            && let Some((entry, words)) = reusable
        {
            words.iter().for_each(|word| word.store(0, Relaxed));
            entry.0[ENTRY_LAYOUT].store(layout, Relaxed);
            return Some(words);
        }
        allot(all, COUNTERS, name, layout, 0, count)?;
        // Another process that has begun at the same moment may have made them, too. The first ones count.
        let is_same = |entry: &Entry<'_>| {
            let known_layout = entry.0[ENTRY_LAYOUT].load(Relaxed);
            entry.kind() == COUNTERS && entry.name() == name && known_layout == layout
        };
        let mut same = entries(all).filter(is_same);
        same.find_map(|entry| entry.words(all)?.part(0..count))
    }

    /// A region of `count` words for one worker of this process, which no living process uses. Prefers the
    /// one that has been out of use for longest. `None`: the shared memory is full, or there is none.
    pub(crate) fn ring(&self, count: usize) -> Option<Words> {
        let all = self.all.as_ref()?;
        let _guard = self.lock();
        let mut rings: Vec<_> = entries(all)
            .filter(|entry| entry.kind() == RING)
            .filter_map(|entry| Some((entry, entry.words(all)?)))
            .filter(|(_, words)| words.len() == count)
            .collect();
        rings.sort_by_key(|(entry, _)| entry.0[ENTRY_LAYOUT].load(Relaxed));
        let number = all[AT_CLAIMS].load(Relaxed);
        let free = rings
            .into_iter()
            .find(|(entry, _)| self.claim(&entry.0[ENTRY_OWNER]));
        match free {
            Some((entry, words)) => {
                entry.0[ENTRY_LAYOUT].store(number, Relaxed);
                Some(words)
            }
            None => {
                let owner = self.next_claim();
                allot(all, RING, name_of("ring"), owner >> 32, owner, count)
            }
        }
    }
}

/// A hash of the parts of a layout, the same in every process of one program: FNV-1a.
pub fn layout_hash<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for part in parts {
        hash = part.iter().fold(hash, |hash, byte| step(hash, *byte));
        // Not a byte of UTF-8, so that no two lists of names have the same bytes.
        hash = step(hash, 0xff);
    }
    hash
}

/// An entry of the directory.
#[derive(Clone, Copy)]
struct Entry<'a>(&'a [AtomicU64; ENTRY_WORDS]);

impl Entry<'_> {
    fn kind(self) -> u64 {
        self.0[ENTRY_KIND].load(Acquire)
    }

    fn name(self) -> RegionName {
        std::array::from_fn(|index| self.0[ENTRY_NAME + index].load(Relaxed))
    }

    /// The words of the region. `None`: it does not lie in the memory. A process with a defect may have
    /// written anything there.
    fn words(self, all: &Words) -> Option<Words> {
        let offset = usize::try_from(self.0[ENTRY_OFFSET].load(Relaxed)).ok()?;
        let count = usize::try_from(self.0[ENTRY_COUNT].load(Relaxed)).ok()?;
        if offset < REGIONS || count == 0 {
            return None;
        }
        all.part(offset..offset.checked_add(count)?)
    }
}

fn entries(all: &Words) -> impl Iterator<Item = Entry<'_>> {
    let used = all[AT_ENTRIES].load(Acquire).min(ENTRIES_MAX as u64) as usize;
    let (entries, _) = all[HEADER_WORDS..REGIONS].as_chunks();
    entries.iter().take(used).map(Entry)
}

/// Takes a new region. Processes may do so at the same time: each adds to the two counts, and an entry has no
/// kind until it is complete.
fn allot(
    all: &Words,
    kind: u64,
    name: RegionName,
    layout: u64,
    owner: u64,
    count: usize,
) -> Option<Words> {
    let end_of = |offset: u64| {
        let offset = usize::try_from(offset).ok().filter(|at| *at >= REGIONS)?;
        let end = offset.checked_add(count).filter(|_| count > 0)?;
        all.get(offset..end)?;
        Some(end.next_multiple_of(PAGE_WORDS) as u64)
    };
    let offset = all[AT_FREE].fetch_update(Relaxed, Relaxed, end_of).ok()?;
    let is_left = |used: u64| (used < ENTRIES_MAX as u64).then(|| used + 1);
    let used = all[AT_ENTRIES]
        .fetch_update(Release, Relaxed, is_left)
        .ok()?;
    let (entries, _) = all[HEADER_WORDS..REGIONS].as_chunks::<ENTRY_WORDS>();
    let entry = entries.get(used as usize)?;
    for (index, part) in name.iter().enumerate() {
        entry[ENTRY_NAME + index].store(*part, Relaxed);
    }
    entry[ENTRY_LAYOUT].store(layout, Relaxed);
    entry[ENTRY_OFFSET].store(offset, Relaxed);
    entry[ENTRY_COUNT].store(count as u64, Relaxed);
    entry[ENTRY_OWNER].store(owner, Relaxed);
    entry[ENTRY_KIND].store(kind, Release);
    let offset = offset as usize;
    all.part(offset..offset + count)
}

type RegionName = [u64; 3];

fn name_of(name: &str) -> RegionName {
    let mut bytes = [0; 24];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    let (words, _) = bytes.as_chunks();
    std::array::from_fn(|index| u64::from_le_bytes(words[index]))
}

const PAGE_WORDS: usize = 512;

/// How often all rings fit into the memory: for this many generations of server processes.
const RINGS_SPARE: usize = 8;
/// For counters. Pages that are not used take no memory.
const COUNTER_BYTES: usize = 64 << 20;
const BYTES_MAX: usize = 1 << 36;

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> SharedMemory {
        SharedMemory::create(1 << 20)
            .expect("the kernel has memfd")
            .0
    }

    #[test]
    fn counters_of_one_name_and_layout_are_the_same_in_all_processes() {
        let keeper = memory();
        let first = keeper.beside(vec![]);
        first.counters("requests", 1, 10)[9].fetch_add(7, Relaxed);
        assert_eq!(first.counters("requests", 1, 10)[9].load(Relaxed), 7);
        let second = keeper.beside(vec![4711]);
        assert_eq!(second.counters("requests", 1, 10)[9].load(Relaxed), 7);
        assert_eq!(second.counters("others", 1, 10)[9].load(Relaxed), 0);
    }

    #[test]
    fn another_layout_gets_other_words_and_the_old_ones_once_no_process_has_them() {
        let keeper = memory();
        let first = keeper.beside(vec![]);
        let old = first.counters("requests", 1, 10);
        old[0].store(7, Relaxed);
        let second = keeper.beside(vec![4711]);
        let new = second.counters("requests", 2, 10);
        new[0].fetch_add(1, Relaxed);
        assert_eq!(old[0].load(Relaxed), 7);
        let third = keeper.beside(vec![]);
        assert_eq!(third.counters("requests", 2, 10)[0].load(Relaxed), 1);
        let again = third.counters("requests", 3, 5);
        assert_eq!(again[0].load(Relaxed), 0);
        assert!(std::ptr::eq(&again[0], &new[0]) || std::ptr::eq(&again[0], &old[0]));
    }

    #[test]
    fn without_a_keeper_or_room_counters_belong_to_the_process() {
        for memory in [SharedMemory::private(), memory()] {
            let many = COUNTER_BYTES;
            memory.counters("many", 1, many)[many - 1].fetch_add(3, Relaxed);
            assert_eq!(memory.counters("many", 1, many)[many - 1].load(Relaxed), 3);
            let beside = memory.beside(vec![]);
            assert_eq!(beside.counters("many", 1, many)[many - 1].load(Relaxed), 0);
        }
    }

    #[test]
    fn a_ring_is_one_workers_until_its_process_is_gone() {
        let keeper = memory();
        let first = keeper.beside(vec![]);
        let one = first.ring(4096).expect("there is room");
        let other = first.ring(4096).expect("there is room");
        assert!(!std::ptr::eq(&one[0], &other[0]));
        one[5].store(7, Relaxed);
        // To this test's process its own rings are in use. Let another process own them.
        let all = keeper.all.as_ref().expect("shared");
        entries(all).for_each(|entry| entry.0[ENTRY_OWNER].store(4711, Relaxed));
        let third = keeper.beside(vec![4711]).ring(4096).expect("there is room");
        assert_eq!(third[5].load(Relaxed), 0);
        let fourth = keeper.beside(vec![]).ring(4096).expect("the oldest");
        assert_eq!(fourth[5].load(Relaxed), 7);
        assert!(keeper.ring(1 << 30).is_none());
        assert!(SharedMemory::private().ring(4096).is_none());
    }

    #[test]
    fn processes_that_begin_at_the_same_moment_have_rings_of_their_own() {
        let keeper = memory();
        let first = keeper.beside(vec![]);
        let gone = first.ring(4096).expect("there is room");
        let all = keeper.all.as_ref().expect("shared");
        let owner = || &entries(all).next().expect("there is one").0[ENTRY_OWNER];
        owner().store(4711, Relaxed);
        let (one, other) = (keeper.beside(vec![]), keeper.beside(vec![4712]));
        let of_other = other.ring(4096).expect("that of the process that has gone");
        assert!(std::ptr::eq(&of_other[0], &gone[0]));
        // Let it belong to the process 4713, of which `one` knows nothing.
        owner()
            .fetch_update(Relaxed, Relaxed, |word| Some(word >> 32 << 32 | 4713))
            .expect("a word");
        let of_one = one.ring(4096).expect("there is room");
        assert!(!std::ptr::eq(&of_one[0], &gone[0]));
    }

    #[test]
    fn what_is_free_is_claimed_once() {
        let keeper = memory();
        let memories: Vec<_> = (0..4).map(|_| keeper.beside(vec![])).collect();
        for _ in 0..100 {
            let owner = &AtomicU64::new(4711);
            let claimed: usize = std::thread::scope(|scope| {
                let claim = |memory| scope.spawn(move || SharedMemory::claim(memory, owner));
                let threads: Vec<_> = memories.iter().map(claim).collect();
                let claims = threads.into_iter().map(|thread| thread.join());
                claims
                    .map(|claimed| usize::from(claimed.expect("no panic")))
                    .sum()
            });
            assert_eq!(claimed, 1);
        }
    }

    #[test]
    fn regions_that_are_taken_at_the_same_moment_do_not_overlap() {
        let keeper = memory();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let memory = keeper.beside(vec![]);
                scope.spawn(move || {
                    for number in 0..50 {
                        let own = memory.counters(&format!("{thread}.{number}"), 1, 10);
                        own[9].fetch_add(1 + thread * 1000 + number, Relaxed);
                    }
                });
            }
        });
        let memory = keeper.beside(vec![]);
        for (thread, number) in (0..4).flat_map(|thread| (0..50).map(move |n| (thread, n))) {
            let counters = memory.known_counters(&format!("{thread}.{number}"), 1, 10);
            let value = counters.expect("they are there")[9].load(Relaxed);
            assert_eq!(value, 1 + thread * 1000 + number);
        }
    }

    #[test]
    fn a_directory_that_was_overwritten_gives_no_words_outside() {
        let keeper = memory();
        keeper.beside(vec![]).counters("requests", 1, 10);
        let all = keeper.all.as_ref().expect("shared");
        for (at, value) in [
            (ENTRY_OFFSET, 0),
            (ENTRY_OFFSET, u64::MAX),
            (ENTRY_COUNT, u64::MAX),
        ] {
            let entry = entries(all).next().expect("there is one");
            let before = entry.0[at].swap(value, Relaxed);
            assert_eq!(keeper.beside(vec![]).counters("requests", 1, 10).len(), 10);
            entry.0[at].store(before, Relaxed);
        }
        for at in [AT_FREE, AT_ENTRIES] {
            let before = all[at].swap(u64::MAX, Relaxed);
            assert_eq!(keeper.beside(vec![]).counters("more", 1, 10).len(), 10);
            all[at].store(before, Relaxed);
        }
    }

    #[test]
    fn the_hash_tells_lists_apart() {
        let hash = |parts: &[&str]| layout_hash(parts.iter().map(|part| part.as_bytes()));
        assert_eq!(hash(&["ab", "c"]), hash(&["ab", "c"]));
        assert_ne!(hash(&["ab", "c"]), hash(&["a", "bc"]));
        assert_ne!(hash(&["ab"]), hash(&["ab", ""]));
    }
}
