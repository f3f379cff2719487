//! How long requests took, in fine buckets, and the longest time.
//!
//! The metrics get sums of the fine buckets. Percentiles are from the fine buckets themselves, and never above
//! the longest time.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::histogram::{
    LATENCY_BUCKETS, OCTAVES, STEPS, exported_bucket, fine_bounds, fine_bucket,
};
use crate::ledger::Nanos;

/// Adds `count` to a counter. This is not atomic: only the worker that owns the counter calls it.
#[inline]
pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(count), Relaxed);
}

/// Makes `max` no less than `value`. This is not atomic, as [`add`].
#[inline]
pub(super) fn raise(max: &AtomicU64, value: u64) {
    if value > max.load(Relaxed) {
        max.store(value, Relaxed);
    }
}

pub(super) fn add_all(sums: &mut [u64], cells: &[AtomicU64]) {
    for (sum, cell) in sums.iter_mut().zip(cells) {
        *sum += cell.load(Relaxed);
    }
}

/// Times in fine buckets, counted by one thread. An octave is allocated when it is first used.
#[derive(Debug, Default)]
pub(super) struct FineCells {
    octaves: [OnceLock<Box<[AtomicU64; STEPS]>>; OCTAVES],
    max: AtomicU64,
}

impl FineCells {
    /// Counts the time `nanos`, whose [`fine_bucket`] is `bucket`.
    #[inline]
    pub(super) fn count(&self, nanos: Nanos, bucket: usize) {
        let octave = self.octaves[bucket / STEPS % OCTAVES].get_or_init(Box::default);
        add(&octave[bucket % STEPS], 1);
        raise(&self.max, nanos);
    }

    /// Adds what was counted to `counts`.
    fn add_to(&self, counts: &mut FineCounts) {
        for (number, octave) in self.used() {
            counts.add_octave(number, octave);
        }
        counts.max = counts.max.max(self.max.load(Relaxed));
    }

    /// Moves what was counted to `counts`. Only the thread that counts calls it.
    pub(super) fn move_to(&self, counts: &mut FineCounts) {
        self.add_to(counts);
        let cells = self.used().flat_map(|(_, octave)| octave);
        cells.for_each(|cell| cell.store(0, Relaxed));
        self.max.store(0, Relaxed);
    }

    fn used(&self) -> impl Iterator<Item = (usize, &[AtomicU64; STEPS])> {
        let octaves = self.octaves.iter().enumerate();
        octaves.filter_map(|(number, octave)| Some((number, &**octave.get()?)))
    }
}

/// Times of a backend, counted by one thread.
#[derive(Debug, Default)]
pub struct LatencyCells {
    times: FineCells,
    sum: AtomicU64,
}

impl LatencyCells {
    /// Counts a time. This is not atomic: only the thread that owns the cells calls it.
    #[inline]
    pub fn count(&self, nanos: Nanos) {
        add(&self.sum, nanos);
        self.times.count(nanos, fine_bucket(nanos));
    }

    /// Adds what was counted to `counts`.
    pub fn add_to(&self, counts: &mut FineCounts) {
        counts.sum += self.sum.load(Relaxed);
        self.times.add_to(counts);
    }
}

/// Requests by the time that they took, in fine buckets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FineCounts {
    /// The buckets that have requests, in their order, and how many.
    buckets: Vec<(u16, u64)>,
    /// The sum of the times.
    pub sum: Nanos,
    /// The longest time.
    pub max: Nanos,
}

impl FineCounts {
    /// All requests.
    pub fn requests(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// The time that `percent` of 100 requests did not exceed. From 8 us to 4.9 h it is too long by at most a
    /// 32nd, and it is never above the longest time. `None` without requests.
    pub fn percentile(&self, percent: u64) -> Option<Nanos> {
        let wanted = self.requests().saturating_mul(percent).div_ceil(100);
        let mut seen = 0;
        let reaches = |(_, count): &&(u16, u64)| {
            seen += count;
            seen >= wanted
        };
        let (bucket, _) = self.buckets.iter().find(reaches)?;
        let (first, last) = fine_bounds(usize::from(*bucket));
        // A worker counts a time before it raises the maximum.
        Some(last.min(self.max.max(first)))
    }

    /// The same in the buckets of the metrics.
    pub fn exported(&self) -> LatencyCounts {
        let mut exported = LatencyCounts {
            sum: self.sum,
            ..LatencyCounts::default()
        };
        for (bucket, count) in &self.buckets {
            exported.buckets[exported_bucket(usize::from(*bucket) / STEPS)] += count;
        }
        exported
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &FineCounts) {
        for (bucket, count) in &other.buckets {
            self.add_bucket(*bucket, *count);
        }
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// Adds the buckets of one octave.
    pub(super) fn add_octave(&mut self, octave: usize, cells: &[AtomicU64]) {
        for (bucket, cell) in (octave * STEPS..).zip(cells) {
            match cell.load(Relaxed) {
                0 => (),
                count => self.add_bucket(bucket as u16, count),
            }
        }
    }

    fn add_bucket(&mut self, bucket: u16, count: u64) {
        let known = self
            .buckets
            .binary_search_by_key(&bucket, |(bucket, _)| *bucket);
        match known {
            Ok(index) => self.buckets[index].1 += count,
            Err(index) => self.buckets.insert(index, (bucket, count)),
        }
    }
}

/// Requests by the time that they took, in the buckets of the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyCounts {
    /// One count for each of [`LATENCY_BOUNDS`](super::LATENCY_BOUNDS), and one for longer times.
    pub buckets: [u64; LATENCY_BUCKETS],
    /// The sum of the times.
    pub sum: Nanos,
}

impl LatencyCounts {
    /// All requests.
    pub fn requests(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

const _: () = assert!(OCTAVES * STEPS <= u16::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Nanos = 2_300_000_000;

    fn counts(times: &[Nanos]) -> FineCounts {
        let cells = LatencyCells::default();
        times.iter().for_each(|nanos| cells.count(*nanos));
        let mut counts = FineCounts::default();
        cells.add_to(&mut counts);
        counts
    }

    #[test]
    fn one_slow_request_is_shown_as_it_was() {
        let mut fast = vec![1_000_000; 9];
        assert_eq!(counts(&[SLOW]).percentile(50), Some(SLOW));
        fast.push(SLOW);
        let counts = counts(&fast);
        assert_eq!(
            (counts.percentile(99), counts.percentile(100)),
            (Some(SLOW), Some(SLOW))
        );
        let half = counts.percentile(50).expect("there are requests");
        assert!((1_000_000..=1_031_250).contains(&half), "{half}");
        assert_eq!(FineCounts::default().percentile(50), None);
    }

    #[test]
    fn percentiles_are_those_of_the_times() {
        let times: Vec<Nanos> = (1..=1000).map(|number| number * 1_000_000).collect();
        let counts = counts(&times);
        for percent in 1..=100 {
            let exact = percent * 10_000_000;
            let shown = counts.percentile(percent).expect("there are requests");
            assert!(
                (exact..=exact + exact / 32).contains(&shown),
                "{percent}: {shown}"
            );
        }
        assert_eq!(counts.percentile(100), Some(1_000_000_000));
    }

    #[test]
    fn workers_are_added_up_and_the_longest_time_is_that_of_all() {
        let one = counts(&[0, 10_000, SLOW]);
        let other = counts(&[10_000, 20_000, Nanos::MAX >> 1]);
        let mut both = one.clone();
        both.add(&other);
        let mut reversed = other;
        reversed.add(&one);
        assert_eq!(both, reversed);
        assert_eq!((both.requests(), both.max), (6, Nanos::MAX >> 1));
        assert_eq!(both.percentile(100), Some(Nanos::MAX >> 1));
        let exported = both.exported();
        assert_eq!((exported.requests(), exported.sum), (6, both.sum));
        assert_eq!(exported.buckets[..3], [1, 2, 1]);
        assert_eq!(exported.buckets[LATENCY_BUCKETS - 1], 1);
    }

    #[test]
    fn what_was_moved_is_counted_no_more() {
        let cells = FineCells::default();
        let mut first = FineCounts::default();
        cells.count(SLOW, fine_bucket(SLOW));
        cells.move_to(&mut first);
        cells.count(10_000, fine_bucket(10_000));
        let mut second = FineCounts::default();
        cells.move_to(&mut second);
        assert_eq!((first.requests(), first.max), (1, SLOW));
        assert_eq!((second.requests(), second.max), (1, 10_000));
    }

    /// A worker that is about to raise the maximum, or was killed before it did.
    #[test]
    fn a_time_without_its_maximum_is_not_shown_as_shorter_than_its_bucket() {
        let mut counts = counts(&[SLOW]);
        counts.max = 5;
        let shown = counts.percentile(99).expect("there is a request");
        assert!((SLOW - SLOW / 32..=SLOW).contains(&shown), "{shown}");
    }
}
