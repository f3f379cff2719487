//! The counters of one worker. Only the worker writes them; other threads read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};

use super::histogram::{
    LATENCY_BOUNDS, LATENCY_BUCKETS, STAGE_BUCKETS, latency_bucket, stage_bucket,
};
use super::seconds::Totals;
use super::{EndedRequest, StatusClass, lock};
use crate::ledger::{self, Nanos, Stage};
use crate::recorder::Words;
use crate::request_id::RequestId;

const CLASSES: usize = StatusClass::ALL.len();
const STAGES: usize = Stage::ALL.len();

/// Adds `count` to a counter. This is not atomic: only the worker that owns the counter calls it.
#[inline]
pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(count), Relaxed);
}

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

/// The counters of one route: times of stages, then requests by status class.
pub(super) struct RouteCells {
    words: Words,
    /// Whether there was a request since [`RouteCells::take_totals`].
    has_changed: AtomicBool,
    /// What that returned the last times, added up; what was there at the beginning included.
    taken: Mutex<Totals>,
    /// The slowest request of late of each class.
    slowest: [ExemplarCells; CLASSES],
}

/// Counters of one stage: buckets, and the sum of the times.
const STAGE_WORDS: usize = STAGE_BUCKETS + 1;

/// Counters of one status class: buckets, the sum of the times, bytes sent, bytes received.
const CLASS_WORDS: usize = LATENCY_BUCKETS + 3;

/// Counters of one route.
pub(super) const ROUTE_WORDS: usize = STAGES * STAGE_WORDS + CLASSES * CLASS_WORDS;

/// Whatever number of a stage a ledger could have, its words would be some of the route's.
const _: () = assert!(ledger::BITS * STAGE_WORDS <= ROUTE_WORDS);

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
    pub(super) fn new(words: Words) -> RouteCells {
        // It was counted in an earlier process.
        let mut taken = Totals::default();
        taken.add_cells(&words);
        RouteCells {
            has_changed: AtomicBool::new(false),
            taken: Mutex::new(taken),
            words,
            slowest: Default::default(),
        }
    }

    #[inline]
    pub(super) fn count(&self, ended: &EndedRequest<'_>) {
        self.has_changed.store(true, Relaxed);
        let Some(words) = self.words.first_chunk::<ROUTE_WORDS>() else {
            return;
        };
        ended.ledger.each_touched(|stage, nanos| {
            // Every stage has cells, and `min` never changes a bucket: the compiler then leaves out the checks.
            let at = stage * STAGE_WORDS;
            add(&words[at + STAGE_BUCKETS], nanos);
            add(&words[at + stage_bucket(nanos).min(STAGE_BUCKETS)], 1);
        });
        let classes = class_cells(words);
        let (nanos, class) = (ended.ledger.total(), ended.class as usize);
        if let Some(cells) = classes.get(class) {
            add(&cells[latency_bucket(nanos)], 1);
            add(&cells[LATENCY_BUCKETS], nanos);
            add(&cells[LATENCY_BUCKETS + 1], ended.sent_bytes);
            add(&cells[LATENCY_BUCKETS + 2], ended.received_bytes);
        }
        let slowest = &self.slowest[class];
        if nanos > slowest.floor.load(Relaxed) {
            slowest.set(nanos, ended);
        }
    }

    /// From now on any request may be the slowest of its class.
    pub(super) fn forget_slowest(&self) {
        for slowest in &self.slowest {
            slowest.floor.store(0, Relaxed);
        }
    }

    /// What was counted since the last call. `None`: nothing.
    pub(super) fn take_totals(&self) -> Option<Totals> {
        if !self.has_changed.load(Relaxed) {
            return None;
        }
        self.has_changed.store(false, Relaxed);
        let mut now = Totals::default();
        now.add_cells(&self.words);
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
    pub(super) fn add_cells(&mut self, words: &[AtomicU64]) {
        for (cells, nanos) in stage_cells(words).iter().zip(&mut self.stages) {
            *nanos += cells[STAGE_BUCKETS].load(Relaxed);
        }
        for (class, cells) in used_classes(words) {
            let mut latency = LatencyCounts::default();
            latency.add_cells(cells);
            self.classes[class as usize] += latency.requests();
            self.latency.add(&latency);
            self.sent_bytes += cells[LATENCY_BUCKETS + 1].load(Relaxed);
            self.received_bytes += cells[LATENCY_BUCKETS + 2].load(Relaxed);
        }
    }
}

#[inline]
fn stage_cells(words: &[AtomicU64]) -> &[[AtomicU64; STAGE_WORDS]] {
    let stages = words.get(..STAGES * STAGE_WORDS).unwrap_or_default();
    stages.as_chunks().0
}

#[inline]
fn class_cells(words: &[AtomicU64]) -> &[[AtomicU64; CLASS_WORDS]] {
    let classes = words.get(STAGES * STAGE_WORDS..ROUTE_WORDS);
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

/// Times of whole requests or of a backend, counted by one thread.
#[derive(Debug, Default)]
pub struct LatencyCells {
    buckets: [AtomicU64; LATENCY_BUCKETS],
    sum: AtomicU64,
}

impl LatencyCells {
    /// Counts a time. This is not atomic: only the thread that owns the cells calls it.
    #[inline]
    pub fn count(&self, nanos: Nanos) {
        add(&self.sum, nanos);
        add(&self.buckets[latency_bucket(nanos)], 1);
    }

    /// Adds what was counted to `counts`.
    pub fn add_to(&self, counts: &mut LatencyCounts) {
        counts.sum += self.sum.load(Relaxed);
        add_all(&mut counts.buckets, &self.buckets);
    }
}

fn add_all(sums: &mut [u64], cells: &[AtomicU64]) {
    for (sum, cell) in sums.iter_mut().zip(cells) {
        *sum += cell.load(Relaxed);
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

/// Requests by the time that they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyCounts {
    /// One count for each of [`LATENCY_BOUNDS`], and one for longer times.
    pub buckets: [u64; LATENCY_BUCKETS],
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
        for (cells, nanos) in stage_cells(words).iter().zip(&mut self.stages) {
            *nanos += cells[STAGE_BUCKETS].load(Relaxed);
        }
        for (class, cells) in used_classes(words) {
            let counts = self.of_class(class);
            counts.latency.add_cells(cells);
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
    /// Adds the counters of a route of one worker to those of all stages.
    pub(super) fn add_cells(stages: &mut [StageCounts; STAGES], words: &[AtomicU64]) {
        for (cells, counts) in stage_cells(words).iter().zip(stages) {
            let sum = cells[STAGE_BUCKETS].load(Relaxed);
            // Most routes are in few stages. What took no time is in the first bucket.
            if sum > 0 || cells[0].load(Relaxed) > 0 {
                counts.sum += sum;
                add_all(&mut counts.buckets, cells);
            }
        }
    }

    /// Requests that were in the stage.
    pub fn requests(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

impl LatencyCounts {
    /// All requests.
    pub fn requests(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Adds the counters of a status class of a route.
    fn add_cells(&mut self, cells: &[AtomicU64; CLASS_WORDS]) {
        add_all(&mut self.buckets, cells);
        self.sum += cells[LATENCY_BUCKETS].load(Relaxed);
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &LatencyCounts) {
        self.sum += other.sum;
        let buckets = self.buckets.iter_mut().zip(&other.buckets);
        buckets.for_each(|(own, other)| *own += other);
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
