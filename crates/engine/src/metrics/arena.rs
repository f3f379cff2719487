//! Where the counters of a worker are: a part of the memory that outlives the server process.
//!
//! Each arena has one owner, a worker, and only the owner writes to it. The next server process gives its
//! workers the arenas whose owners have gone, and they count on from what is there. So counts survive a
//! reload and a crash to the last request. A sum goes over all arenas, also over those without an owner.
//!
//! An arena has two tables, for routes and for hosts. An entry is a name and its counters; it gets its place
//! when the first request for that name ends. A third table has the times of routes in fine buckets: octave by
//! octave, and in each octave one block for each route. Most routes have times in a few octaves, and what no
//! route has touched of the others takes no memory. A page that is only read is memory, too, so readers keep
//! away from octaves without times.

use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use super::StatusClass;
use super::cells::{HOST_WORDS, ROUTE_WORDS, STAGES_WORDS};
use super::histogram::{OCTAVES, STEPS};
use crate::ledger::Stage;
use crate::limits;
use crate::recorder::{SharedMemory, Words, layout_hash};

/// The counters of one worker.
#[derive(Clone)]
pub(super) struct Arena(Words);

/// A table of an arena.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ArenaTable {
    Routes,
    Hosts,
}

impl ArenaTable {
    /// Where the number of entries is.
    fn at_used(self) -> usize {
        match self {
            ArenaTable::Routes => 1,
            ArenaTable::Hosts => 2,
        }
    }

    const fn begin(self) -> usize {
        match self {
            ArenaTable::Routes => HEADER_WORDS + STAGES_WORDS,
            ArenaTable::Hosts => {
                ArenaTable::Routes.begin() + ENTRIES * ArenaTable::Routes.entry_words()
            }
        }
    }

    const fn entry_words(self) -> usize {
        NAME_WORDS + self.counter_words()
    }

    const fn counter_words(self) -> usize {
        match self {
            ArenaTable::Routes => ROUTE_WORDS,
            ArenaTable::Hosts => HOST_WORDS,
        }
    }
}

/// The counters of one name.
#[derive(Clone)]
pub(super) struct EntryWords {
    pub(super) counters: Words,
    /// Times in fine buckets: [`STEPS`] words at each multiple of [`OCTAVE_STRIDE`], those between are of
    /// others. Empty for a host.
    pub(super) fine: Words,
}

impl Arena {
    /// An arena that ends with the process.
    pub(super) fn private() -> Arena {
        Arena(Words::private(ARENA_WORDS))
    }

    /// All arenas of `memory`.
    pub(super) fn all(memory: &SharedMemory) -> Vec<Arena> {
        let arenas = (0..).map_while(|number| {
            let words = memory.known_counters(&name_of_arena(number), layout(), ARENA_WORDS);
            words.map(Arena)
        });
        arenas.collect()
    }

    /// An arena for one more worker of this process: the first of `all` that no living worker owns, or a new
    /// one, which is added to `all`.
    pub(super) fn claim(memory: &SharedMemory, all: &mut Vec<Arena>) -> Arena {
        if let Some(arena) = all.iter().find(|arena| arena.take(memory)) {
            return arena.clone();
        }
        let name = name_of_arena(all.len());
        let arena = Arena(memory.counters(&name, layout(), ARENA_WORDS));
        arena.take(memory);
        all.push(arena.clone());
        arena
    }

    /// Becomes the owner, unless a living worker is.
    fn take(&self, memory: &SharedMemory) -> bool {
        self.0
            .get(AT_OWNER)
            .is_some_and(|owner| memory.claim(owner))
    }

    /// As if the owner had ended.
    #[cfg(test)]
    pub(super) fn disown(&self) {
        self.0[AT_OWNER].store(GONE, Relaxed);
    }

    /// How many requests of all routes were for how long in each stage.
    pub(super) fn stages(&self) -> Option<Words> {
        self.0.part(HEADER_WORDS..HEADER_WORDS + STAGES_WORDS)
    }

    /// The counters of `name`. `None`: there is no room for it.
    pub(super) fn counters(&self, table: ArenaTable, name: &str) -> Option<EntryWords> {
        let name = packed(name);
        let used = self.used(table);
        let known = (0..used).find(|entry| self.packed_name(table, *entry) == Some(name));
        if let Some(entry) = known {
            return self.words(table, entry);
        }
        let words = self.words(table, used).filter(|_| used < ENTRIES)?;
        let at = table.begin() + used * table.entry_words();
        for (word, part) in self.0.get(at..at + NAME_WORDS)?.iter().zip(name) {
            word.store(part, Relaxed);
        }
        self.0[table.at_used()].store(used as u64 + 1, Release);
        Some(words)
    }

    /// All names with their counters.
    pub(super) fn entries(&self, table: ArenaTable) -> impl Iterator<Item = (String, EntryWords)> {
        (0..self.used(table)).filter_map(move |entry| {
            let name = self.packed_name(table, entry)?;
            Some((unpacked(name), self.words(table, entry)?))
        })
    }

    fn used(&self, table: ArenaTable) -> usize {
        let used = self
            .0
            .get(table.at_used())
            .map_or(0, |used| used.load(Acquire));
        usize::try_from(used).unwrap_or(0).min(ENTRIES)
    }

    fn packed_name(&self, table: ArenaTable, entry: usize) -> Option<PackedName> {
        let at = table.begin() + entry * table.entry_words();
        let words: &[AtomicU64; NAME_WORDS] = self.0.get(at..at + NAME_WORDS)?.as_array()?;
        Some(words.each_ref().map(|word| word.load(Relaxed)))
    }

    fn words(&self, table: ArenaTable, entry: usize) -> Option<EntryWords> {
        let at = table.begin() + entry * table.entry_words() + NAME_WORDS;
        let fine = match table {
            ArenaTable::Routes => {
                let first = FINE_BEGIN + entry * STEPS;
                first..first + (OCTAVES - 1) * OCTAVE_STRIDE + STEPS
            }
            ArenaTable::Hosts => 0..0,
        };
        Some(EntryWords {
            counters: self.0.part(at..at + table.counter_words())?,
            fine: self.0.part(fine)?,
        })
    }
}

type PackedName = [u64; NAME_WORDS];

/// The name as words, cut to their size.
fn packed(name: &str) -> PackedName {
    let cut = name.floor_char_boundary(NAME_WORDS * 8);
    let mut bytes = [0; NAME_WORDS * 8];
    bytes[..cut].copy_from_slice(&name.as_bytes()[..cut]);
    let (words, _) = bytes.as_chunks();
    std::array::from_fn(|index| u64::from_le_bytes(words[index]))
}

fn unpacked(name: PackedName) -> String {
    let bytes = name.map(u64::to_le_bytes);
    let bytes = bytes.as_flattened();
    let end = memchr::memchr(0, bytes).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn name_of_arena(number: usize) -> String {
    format!("metrics.{number}")
}

/// Changes when the meaning of a counter does.
fn layout() -> u64 {
    let stages = Stage::ALL.iter().map(|stage| stage.name().as_bytes());
    let classes = StatusClass::ALL.iter().map(|class| class.name().as_bytes());
    let sizes = [&[
        ROUTE_WORDS as u8,
        (ROUTE_WORDS >> 8) as u8,
        HOST_WORDS as u8,
        OCTAVES as u8,
        STEPS as u8,
    ][..]];
    layout_hash(stages.chain(classes).chain(sizes))
}

/// Which process owns the arena ([`SharedMemory::claim`]).
const AT_OWNER: usize = 0;
const HEADER_WORDS: usize = 8;

/// Words of a name: 208 bytes.
const NAME_WORDS: usize = 26;

/// Entries of each table.
const ENTRIES: usize = limits::KEPT_ROUTES_MAX;

/// Words from one octave of a route to the next.
pub(super) const OCTAVE_STRIDE: usize = ENTRIES * STEPS;

/// Where the fine buckets are: each octave begins a page.
const FINE_BEGIN: usize = (ArenaTable::Hosts.begin() + ENTRIES * ArenaTable::Hosts.entry_words())
    .next_multiple_of(PAGE_WORDS);

const PAGE_WORDS: usize = 512;

const ARENA_WORDS: usize = FINE_BEGIN + OCTAVES * OCTAVE_STRIDE;

/// Bytes of an arena. Pages that no counter uses take no memory.
pub const ARENA_BYTES: usize = ARENA_WORDS * 8;

/// A process that has ended.
#[cfg(test)]
const GONE: u64 = u32::MAX as u64;

#[cfg(test)]
mod tests {
    use super::super::latency::add;
    use super::*;

    #[test]
    fn counters_have_one_place_and_their_number_is_bounded() {
        let memory = SharedMemory::private();
        let arena = Arena::claim(&memory, &mut Vec::new());
        let counters = |name: &str| arena.counters(ArenaTable::Hosts, name);
        counters("a").expect("there is room").counters[0].store(7, Relaxed);
        let known = counters("a").expect("it is known");
        assert_eq!(known.counters[0].load(Relaxed), 7);
        for number in 1..ENTRIES {
            assert!(counters(&number.to_string()).is_some());
        }
        assert!(counters("one more").is_none());
        assert_eq!(arena.entries(ArenaTable::Hosts).count(), ENTRIES);
        assert_eq!(arena.entries(ArenaTable::Routes).count(), 0);
        let routes = arena
            .counters(ArenaTable::Routes, "a")
            .expect("another table");
        assert_eq!(routes.counters[0].load(Relaxed), 0);
        assert_eq!(
            arena
                .entries(ArenaTable::Hosts)
                .next()
                .map(|(name, _)| name)
                .as_deref(),
            Some("a")
        );
    }

    /// Every word of an arena has one meaning.
    #[test]
    fn no_counters_lie_in_those_of_another_name() {
        let arena = Arena::private();
        let mut expected = 0;
        let mut fill = |words: &[AtomicU64]| {
            expected += words.len();
            words.iter().for_each(|word| add(word, 1));
        };
        fill(&arena.stages().expect("it has them"));
        for number in 0..ENTRIES {
            let name = number.to_string();
            let route = arena.counters(ArenaTable::Routes, &name).expect("room");
            let host = arena.counters(ArenaTable::Hosts, &name).expect("room");
            fill(&route.counters);
            fill(&host.counters);
            let octaves = route.fine.chunks(OCTAVE_STRIDE);
            assert_eq!(octaves.len(), OCTAVES);
            octaves.for_each(|octave| fill(&octave[..STEPS]));
            assert!(host.fine.is_empty());
        }
        for table in [ArenaTable::Routes, ArenaTable::Hosts] {
            assert_eq!(arena.used(table), ENTRIES);
            let names = arena.entries(table).map(|(name, _)| name);
            assert!(names.eq((0..ENTRIES).map(|number| number.to_string())));
        }
        let ones = arena.0.iter().filter(|word| word.load(Relaxed) == 1);
        assert_eq!(ones.count(), expected);
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        let long = "\u{20ac}".repeat(1000);
        let name = unpacked(packed(&long));
        assert!(long.starts_with(&name));
        assert_eq!(name.len(), NAME_WORDS * 8 / 3 * 3);
    }

    #[test]
    fn a_worker_counts_on_in_an_arena_whose_owner_has_gone() {
        let (keeper, _descriptor) = SharedMemory::create(4 * ARENA_BYTES).expect("memfd");
        let gone = keeper.beside(Vec::new());
        let mut all = Arena::all(&gone);
        let (first, second) = (Arena::claim(&gone, &mut all), Arena::claim(&gone, &mut all));
        assert_eq!(all.len(), 2);
        let room = first.counters(ArenaTable::Hosts, "a").expect("room");
        room.counters[0].store(7, Relaxed);
        // The process of the first worker has ended, that of the second drains.
        first.disown();
        second.0[AT_OWNER].store(1_000_002, Relaxed);
        let next = keeper.beside(vec![1_000_002]);
        let mut all = Arena::all(&next);
        assert_eq!(all.len(), 2);
        let adopted = Arena::claim(&next, &mut all);
        let known = adopted.counters(ArenaTable::Hosts, "a").expect("known");
        assert_eq!(known.counters[0].load(Relaxed), 7);
        let new = Arena::claim(&next, &mut all);
        assert_eq!(new.entries(ArenaTable::Hosts).count(), 0);
        assert_eq!(all.len(), 3);
    }
}
