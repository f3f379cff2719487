//! The counters of one worker. Only the worker writes them; other threads read.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::histogram::{
    LATENCY_BOUNDS, LATENCY_BUCKETS, STAGE_BUCKETS, latency_bucket, stage_bucket,
};
use super::seconds::Totals;
use super::{Ended, StatusClass};
use crate::ledger::{Nanos, Stage};
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

impl<T: Default> Slots<T> {
    /// The value at `slot`. Numbers that are too large share values.
    #[inline]
    pub(super) fn of(&self, slot: u16) -> &T {
        let slot = usize::from(slot);
        let page = self.0[slot / PAGE_SLOTS % PAGES]
            .get_or_init(|| Box::new([const { OnceLock::new() }; PAGE_SLOTS]));
        page[slot % PAGE_SLOTS].get_or_init(Box::default)
    }

    /// The value at `slot` if it was used.
    pub(super) fn get(&self, slot: usize) -> Option<&T> {
        let page = self.0.get(slot / PAGE_SLOTS)?.get()?;
        page[slot % PAGE_SLOTS].get().map(Box::as_ref)
    }

    /// All values that were used.
    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        let pages = self.0.iter().filter_map(OnceLock::get);
        let slots = pages.flat_map(|page| page.iter());
        slots.filter_map(|slot| slot.get().map(Box::as_ref))
    }
}

/// The counters of one route.
pub(super) struct RouteCells {
    stages: [StageCells; STAGES],
    /// Of each [`StatusClass`], once there was a request of it.
    classes: [OnceLock<Box<ClassCells>>; CLASSES],
}

/// The times of one stage.
#[derive(Default)]
struct StageCells {
    buckets: [AtomicU64; STAGE_BUCKETS],
    sum: AtomicU64,
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
        if let Some(bucket) = self.buckets.get(latency_bucket(nanos)) {
            add(bucket, 1);
        }
    }

    /// Adds what was counted to `counts`.
    pub fn add_to(&self, counts: &mut LatencyCounts) {
        counts.sum += self.sum.load(Relaxed);
        add_all(&mut counts.buckets, &self.buckets);
    }
}

/// The requests of one status class.
#[derive(Default)]
pub(super) struct ClassCells {
    latency: LatencyCells,
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
    /// The slowest request of late.
    slowest: ExemplarCells,
}

#[derive(Default)]
struct ExemplarCells {
    /// How long a request must take to replace it.
    floor: AtomicU64,
    nanos: AtomicU64,
    id: AtomicU64,
    ended: AtomicU64,
}

impl Default for RouteCells {
    fn default() -> RouteCells {
        RouteCells {
            stages: std::array::from_fn(|_| StageCells::default()),
            classes: [const { OnceLock::new() }; CLASSES],
        }
    }
}

impl RouteCells {
    #[inline]
    pub(super) fn count_stage(&self, stage: usize, nanos: Nanos) {
        let Some(cells) = self.stages.get(stage) else {
            return;
        };
        add(&cells.sum, nanos);
        if let Some(bucket) = cells.buckets.get(stage_bucket(nanos)) {
            add(bucket, 1);
        }
    }

    #[inline]
    pub(super) fn class(&self, class: StatusClass) -> &ClassCells {
        self.classes[class as usize].get_or_init(Box::default)
    }

    fn classes(&self) -> impl Iterator<Item = (usize, &ClassCells)> {
        let classes = self.classes.iter().enumerate();
        classes.filter_map(|(class, cells)| Some((class, &**cells.get()?)))
    }

    /// From now on any request may be the slowest of its class.
    pub(super) fn forget_slowest(&self) {
        for (_, class) in self.classes() {
            class.slowest.floor.store(0, Relaxed);
        }
    }

    pub(super) fn add_to(&self, counts: &mut RouteCounts) {
        for (cells, counts) in self.stages.iter().zip(&mut counts.stages) {
            counts.sum += cells.sum.load(Relaxed);
            add_all(&mut counts.buckets, &cells.buckets);
        }
        for (class, cells) in self.classes() {
            let counts = &mut counts.classes[class];
            cells.latency.add_to(&mut counts.latency);
            counts.sent_bytes += cells.sent_bytes.load(Relaxed);
            counts.received_bytes += cells.received_bytes.load(Relaxed);
            counts.exemplar = [counts.exemplar, cells.slowest.read()]
                .into_iter()
                .flatten()
                .max_by_key(|exemplar| exemplar.nanos);
        }
    }

    pub(super) fn add_totals(&self, totals: &mut Totals) {
        for (cells, sum) in self.stages.iter().zip(&mut totals.stages) {
            *sum += cells.sum.load(Relaxed);
        }
        for (class, cells) in self.classes() {
            let before = totals.latency.requests();
            cells.latency.add_to(&mut totals.latency);
            totals.classes[class] += totals.latency.requests() - before;
            totals.sent_bytes += cells.sent_bytes.load(Relaxed);
            totals.received_bytes += cells.received_bytes.load(Relaxed);
        }
    }
}

impl ClassCells {
    #[inline]
    pub(super) fn count(&self, nanos: Nanos, ended: &Ended<'_>) {
        self.latency.count(nanos);
        add(&self.sent_bytes, ended.sent_bytes);
        add(&self.received_bytes, ended.received_bytes);
        if nanos > self.slowest.floor.load(Relaxed) {
            self.slowest.set(nanos, ended);
        }
    }
}

impl ExemplarCells {
    #[cold]
    fn set(&self, nanos: Nanos, ended: &Ended<'_>) {
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

/// The counters of one host of the configuration.
#[derive(Default)]
pub(super) struct HostCells {
    classes: [AtomicU64; CLASSES],
    sent_bytes: AtomicU64,
}

impl HostCells {
    #[inline]
    pub(super) fn count(&self, ended: &Ended<'_>) {
        add(&self.classes[ended.class as usize], 1);
        add(&self.sent_bytes, ended.sent_bytes);
    }

    pub(super) fn add_to(&self, counts: &mut HostCounts) {
        add_all(&mut counts.classes, &self.classes);
        counts.sent_bytes += self.sent_bytes.load(Relaxed);
    }
}

fn add_all(sums: &mut [u64], cells: &[AtomicU64]) {
    for (sum, cell) in sums.iter_mut().zip(cells) {
        *sum += cell.load(Relaxed);
    }
}

/// What was counted for one route.
#[derive(Clone, Debug)]
pub struct RouteCounts {
    /// By [`Stage`], in its order.
    pub stages: [StageCounts; STAGES],
    /// By [`StatusClass`], in its order.
    pub classes: [ClassCounts; CLASSES],
}

/// The times of one stage.
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
#[derive(Clone, Copy, Debug, Default)]
pub struct ClassCounts {
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

impl Default for RouteCounts {
    fn default() -> RouteCounts {
        RouteCounts {
            stages: [StageCounts::default(); STAGES],
            classes: [ClassCounts::default(); CLASSES],
        }
    }
}

impl RouteCounts {
    /// All requests.
    pub fn requests(&self) -> u64 {
        self.latency().requests()
    }

    /// All requests by the time that they took.
    pub fn latency(&self) -> LatencyCounts {
        let mut all = LatencyCounts::default();
        self.classes
            .iter()
            .for_each(|class| all.add(&class.latency));
        all
    }

    /// Adds the counts of `other`, without its exemplars.
    pub fn add(&mut self, other: &RouteCounts) {
        for (own, other) in self.stages.iter_mut().zip(&other.stages) {
            own.sum += other.sum;
            let buckets = own.buckets.iter_mut().zip(&other.buckets);
            buckets.for_each(|(own, other)| *own += other);
        }
        for (own, other) in self.classes.iter_mut().zip(&other.classes) {
            own.latency.add(&other.latency);
            own.sent_bytes += other.sent_bytes;
            own.received_bytes += other.received_bytes;
        }
    }
}

impl StageCounts {
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
