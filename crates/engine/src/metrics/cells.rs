//! The counters of one worker. Only the worker writes them; other threads read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

use super::arena::{EntryWords, OCTAVE_STRIDE};
use super::histogram::{
    LATENCY_BOUNDS, LATENCY_BUCKETS, STAGE_BUCKETS, STEPS, exported_bucket, stage_bucket,
};
use super::latency::{LatencyCounts, add, add_all, raise};
use super::seconds::Totals;
use super::{EndedRequest, StatusClass, lock};
use crate::ledger::{self, Nanos, Stage};
use crate::recorder::Words;
use crate::request_id::RequestId;

const CLASSES: usize = StatusClass::ALL.len();
const STAGES: usize = Stage::ALL.len();

/// A table of up to [`SLOTS_MAX`] values, each made when it is first used.
pub(super) struct Slots<T>([OnceLock<Box<Page<T>>>; PAGES]);

type Page<T> = [OnceLock<Box<T>>; PAGE_SLOTS];

const PAGES: usize = 128;
const PAGE_SLOTS: usize = 128;

/// How many values a table has room for.
pub(super) const SLOTS_MAX: usize = PAGES * PAGE_SLOTS;

impl<T> Default for Slots<T> {
    fn default() -> Slots<T> {
        Slots([const { OnceLock::new() }; PAGES])
    }
}

impl<T> Slots<T> {
    /// The value at `slot`, which `make` makes when it is first used.
    #[inline]
    pub(super) fn of(&self, slot: u16, make: impl FnOnce() -> T) -> &T {
        let slot = usize::from(slot);
        let page = self.0[slot / PAGE_SLOTS % PAGES]
            .get_or_init(|| Box::new([const { OnceLock::new() }; PAGE_SLOTS]));
        page[slot % PAGE_SLOTS].get_or_init(|| Box::new(make()))
    }

    /// All values that were used, and their slots.
    pub(super) fn all(&self) -> impl Iterator<Item = (usize, &T)> {
        let pages = self.0.iter().enumerate();
        let pages = pages.filter_map(|(number, page)| Some((number * PAGE_SLOTS, page.get()?)));
        let slots = pages.flat_map(|(first, page)| (first..).zip(page.iter()));
        slots.filter_map(|(number, slot)| Some((number, &**slot.get()?)))
    }
}

/// The counters of one route: the time in each stage, the longest time of a request, then requests by status
/// class. Beside them requests of all classes in fine buckets.
pub(super) struct RouteCells {
    words: EntryWords,
    /// Whether there was a request since [`RouteCells::take_totals`].
    has_changed: AtomicBool,
    /// What that returned the last times, added up; what was there at the beginning included.
    taken: Mutex<Totals>,
    /// The slowest request of late of each class.
    slowest: [ExemplarCells; CLASSES],
}

/// Counters of one status class: buckets, the sum of the times, bytes sent, bytes received.
const CLASS_WORDS: usize = LATENCY_BUCKETS + 3;

/// Counters of one route.
pub(super) const ROUTE_WORDS: usize = STAGES + 1 + CLASSES * CLASS_WORDS;

/// Where a route has the longest time of a request.
const AT_MAX: usize = STAGES;

/// Whatever number of a stage a ledger could have, its word would be one of the route's.
const _: () = assert!(ledger::BITS <= ROUTE_WORDS);

/// Buckets of all stages that a ledger could have. They are for all routes of a worker together.
pub(super) const STAGES_WORDS: usize = ledger::BITS * STAGE_BUCKETS;

#[derive(Default)]
struct ExemplarCells {
    /// How long a request must take to replace it.
    floor: AtomicU64,
    nanos: AtomicU64,
    id: AtomicU64,
    ended: AtomicU64,
}

impl RouteCells {
    /// The counters in `words`.
    pub(super) fn new(words: EntryWords) -> RouteCells {
        // It was counted in an earlier process.
        let mut taken = Totals::default();
        taken.add_sums(&words.counters);
        RouteCells {
            has_changed: AtomicBool::new(false),
            taken: Mutex::new(taken),
            words,
            slowest: Default::default(),
        }
    }

    /// `nanos` is the time of the request and `fine` its [`fine_bucket`](super::histogram::fine_bucket);
    /// `stages` are the worker's buckets of stages.
    #[inline]
    pub(super) fn count(
        &self,
        ended: &EndedRequest<'_>,
        (nanos, fine): (Nanos, usize),
        stages: &[AtomicU64],
    ) {
        self.has_changed.store(true, Relaxed);
        let words = self.words.counters.first_chunk::<ROUTE_WORDS>();
        let (Some(words), Some(stages)) = (words, stages.first_chunk::<STAGES_WORDS>()) else {
            return;
        };
        ended.ledger.each_touched(|stage, nanos| {
            // Every stage has cells, and `min` never changes a bucket: the compiler then leaves out the checks.
            add(&words[stage], nanos);
            let bucket = stage_bucket(nanos).min(STAGE_BUCKETS - 1);
            add(&stages[stage * STAGE_BUCKETS + bucket], 1);
        });
        let octave = fine / STEPS;
        if let Some(cell) = self.words.fine.get(octave * OCTAVE_STRIDE + fine % STEPS) {
            add(cell, 1);
        }
        let classes = class_cells(words);
        let class = ended.class as usize;
        if let Some(cells) = classes.get(class) {
            add(&cells[exported_bucket(octave)], 1);
            add(&cells[LATENCY_BUCKETS], nanos);
            add(&cells[LATENCY_BUCKETS + 1], ended.sent_bytes);
            add(&cells[LATENCY_BUCKETS + 2], ended.received_bytes);
        }
        let slowest = &self.slowest[class];
        if nanos > slowest.floor.load(Relaxed) {
            slowest.set(nanos, ended);
            // The floor is never above the longest time of all.
            raise(&words[AT_MAX], nanos);
        }
    }

    /// From now on any request may be the slowest of its class.
    pub(super) fn forget_slowest(&self) {
        for slowest in &self.slowest {
            slowest.floor.store(0, Relaxed);
        }
    }

    /// What was counted since the last call, but for the buckets of the times. `None`: nothing.
    pub(super) fn take_totals(&self) -> Option<Totals> {
        if !self.has_changed.load(Relaxed) {
            return None;
        }
        self.has_changed.store(false, Relaxed);
        let mut now = Totals::default();
        now.add_sums(&self.words.counters);
        let mut taken = lock(&self.taken);
        let more = now.since(&taken);
        *taken = now;
        Some(more)
    }

    /// Makes the slowest requests the exemplars of `counts`, where they are slower than those.
    pub(super) fn show_slowest(&self, counts: &mut RouteCounts) {
        for counts in &mut counts.classes {
            let slowest = self.slowest[counts.class as usize].read();
            counts.exemplar = [counts.exemplar, slowest]
                .into_iter()
                .flatten()
                .max_by_key(|exemplar| exemplar.nanos);
        }
    }
}

impl Totals {
    /// Adds the counters of a route of one worker.
    pub(super) fn add_cells(&mut self, words: &EntryWords) {
        let mut exported = [0; LATENCY_BUCKETS];
        for (_, cells) in used_classes(&words.counters) {
            add_all(&mut exported, cells);
        }
        let octaves = words.fine.chunks(OCTAVE_STRIDE).enumerate();
        for (octave, cells) in octaves.filter(|(octave, _)| exported[exported_bucket(*octave)] > 0)
        {
            self.latency.add_octave(octave, &cells[..STEPS]);
        }
        let max = words
            .counters
            .get(AT_MAX)
            .map_or(0, |max| max.load(Relaxed));
        self.latency.max = self.latency.max.max(max);
        self.add_sums(&words.counters);
    }

    /// Adds the counters of a route of one worker, but for the buckets of the times and the longest of them.
    fn add_sums(&mut self, words: &[AtomicU64]) {
        add_all(&mut self.stages, words);
        for (class, cells) in used_classes(words) {
            let requests = cells[..LATENCY_BUCKETS]
                .iter()
                .map(|cell| cell.load(Relaxed));
            self.classes[class as usize] += requests.sum::<u64>();
            self.latency.sum += cells[LATENCY_BUCKETS].load(Relaxed);
            self.sent_bytes += cells[LATENCY_BUCKETS + 1].load(Relaxed);
            self.received_bytes += cells[LATENCY_BUCKETS + 2].load(Relaxed);
        }
    }
}

#[inline]
fn class_cells(words: &[AtomicU64]) -> &[[AtomicU64; CLASS_WORDS]] {
    let classes = words.get(AT_MAX + 1..ROUTE_WORDS);
    classes.unwrap_or_default().as_chunks().0
}

/// The status classes that have requests, with their counters. Most routes have few, and the counters of the
/// others are not read.
fn used_classes(
    words: &[AtomicU64],
) -> impl Iterator<Item = (StatusClass, &[AtomicU64; CLASS_WORDS])> {
    let classes = StatusClass::ALL.into_iter().zip(class_cells(words));
    classes.filter(|(_, cells)| {
        // A request that took no time is in the first bucket.
        cells[LATENCY_BUCKETS].load(Relaxed) > 0 || cells[0].load(Relaxed) > 0
    })
}

impl ExemplarCells {
    #[cold]
    fn set(&self, nanos: Nanos, ended: &EndedRequest<'_>) {
        self.floor.store(nanos, Relaxed);
        self.id.store(ended.id.to_bits(), Relaxed);
        self.ended.store(ended.ledger.last(), Relaxed);
        self.nanos.store(nanos, Relaxed);
    }

    fn read(&self) -> Option<Exemplar> {
        let nanos = self.nanos.load(Relaxed);
        (nanos > 0).then(|| Exemplar {
            nanos,
            id: RequestId::from_bits(self.id.load(Relaxed)),
            ended: self.ended.load(Relaxed),
        })
    }
}

/// The counters of one host of the configuration: requests by status class, then bytes sent.
pub(super) struct HostCells(Words);

/// Counters of one host.
pub(super) const HOST_WORDS: usize = CLASSES + 1;

impl HostCells {
    /// The counters in `words`.
    pub(super) fn new(words: Words) -> HostCells {
        HostCells(words)
    }

    #[inline]
    pub(super) fn count(&self, ended: &EndedRequest<'_>) {
        if let Some(cells) = self.0.first_chunk::<HOST_WORDS>() {
            add(&cells[ended.class as usize], 1);
            add(&cells[CLASSES], ended.sent_bytes);
        }
    }
}

/// What was counted for one route.
#[derive(Clone, Debug, Default)]
pub struct RouteCounts {
    /// The time in each [`Stage`], in its order.
    pub stages: [Nanos; STAGES],
    /// Those that have requests, in the order of [`StatusClass`].
    pub classes: Vec<ClassCounts>,
}

/// The times of one stage in all routes.
#[derive(Clone, Copy, Debug, Default)]
pub struct StageCounts {
    /// Requests by the time that they spent in the stage; those that never were in it are not counted.
    pub buckets: [u64; STAGE_BUCKETS],
    /// The sum of the times.
    pub sum: Nanos,
}

/// The requests of one status class.
#[derive(Clone, Copy, Debug)]
pub struct ClassCounts {
    /// Which class that is.
    pub class: StatusClass,
    /// Requests by the time that they took.
    pub latency: LatencyCounts,
    /// Bytes of the responses with their heads.
    pub sent_bytes: u64,
    /// Bytes of the request bodies.
    pub received_bytes: u64,
    /// The slowest request of late.
    pub exemplar: Option<Exemplar>,
}

/// A request that stands for others of its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exemplar {
    /// How long it took.
    pub nanos: Nanos,
    /// When it ended, on the monotonic clock.
    pub ended: Nanos,
    /// Its id.
    pub id: RequestId,
}

/// The requests for one host of the configuration.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostCounts {
    /// By [`StatusClass`], in its order.
    pub classes: [u64; CLASSES],
    /// Bytes of the responses with their heads.
    pub sent_bytes: u64,
}

impl RouteCounts {
    /// Adds the counters of a route of one worker.
    pub(super) fn add_cells(&mut self, words: &[AtomicU64]) {
        add_all(&mut self.stages, words);
        for (class, cells) in used_classes(words) {
            let counts = self.of_class(class);
            add_all(&mut counts.latency.buckets, cells);
            counts.latency.sum += cells[LATENCY_BUCKETS].load(Relaxed);
            counts.sent_bytes += cells[LATENCY_BUCKETS + 1].load(Relaxed);
            counts.received_bytes += cells[LATENCY_BUCKETS + 2].load(Relaxed);
        }
    }

    fn of_class(&mut self, class: StatusClass) -> &mut ClassCounts {
        let known = self
            .classes
            .binary_search_by_key(&(class as u8), |counts| counts.class as u8);
        let index = known.unwrap_or_else(|index| {
            let counts = ClassCounts {
                class,
                latency: LatencyCounts::default(),
                sent_bytes: 0,
                received_bytes: 0,
                exemplar: None,
            };
            self.classes.insert(index, counts);
            index
        });
        &mut self.classes[index]
    }
}

impl HostCounts {
    /// Adds the counters of a host of one worker.
    pub(super) fn add_cells(&mut self, words: &[AtomicU64]) {
        if let Some(cells) = words.first_chunk::<HOST_WORDS>() {
            add_all(&mut self.classes, cells);
            self.sent_bytes += cells[CLASSES].load(Relaxed);
        }
    }
}

impl StageCounts {
    /// Adds the buckets of all stages of one worker.
    pub(super) fn add_cells(stages: &mut [StageCounts; STAGES], words: &[AtomicU64]) {
        for (cells, counts) in words.chunks(STAGE_BUCKETS).zip(stages) {
            add_all(&mut counts.buckets, cells);
        }
    }

    /// Requests that were in the stage.
    pub fn requests(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

impl Exemplar {
    /// The bucket that it is in.
    pub fn bucket(&self) -> usize {
        LATENCY_BOUNDS
            .iter()
            .filter(|bound| self.nanos > **bound)
            .count()
    }
}
