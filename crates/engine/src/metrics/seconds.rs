//! The last minutes, second by second, as all workers have counted them.
//!
//! Seconds are those of the monotonic clock, so that a step of the wall clock moves nothing.

use std::collections::VecDeque;

use super::{FineCounts, StatusClass, WorkerState};
use crate::ledger::{Nanos, Stage};
use crate::limits;

/// Sums over requests: those of one route, or all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// By [`StatusClass`], in its order.
    pub classes: [u64; StatusClass::ALL.len()],
    /// By [`Stage`], in its order.
    pub stages: [Nanos; Stage::ALL.len()],
    /// Requests by the time that they took.
    pub latency: FineCounts,
    /// Bytes of the responses with their heads.
    pub sent_bytes: u64,
    /// Bytes of the request bodies.
    pub received_bytes: u64,
}

impl Totals {
    /// All requests.
    pub fn requests(&self) -> u64 {
        self.classes.iter().sum()
    }

    /// What was counted since `before`, but for the buckets of the times and the longest of them.
    pub(super) fn since(&self, before: &Totals) -> Totals {
        let mut since = self.with(before, u64::wrapping_sub);
        since.latency.sum = self.latency.sum.wrapping_sub(before.latency.sum);
        since
    }

    /// Adds `more`.
    pub fn add(&mut self, more: &Totals) {
        self.latency.add(&more.latency);
        let latency = std::mem::take(&mut self.latency);
        *self = Totals {
            latency,
            ..self.with(more, u64::wrapping_add)
        };
    }

    /// Combines all but `latency`.
    fn with(&self, other: &Totals, combine: fn(u64, u64) -> u64) -> Totals {
        let Totals {
            classes,
            stages,
            latency: _,
            sent_bytes,
            received_bytes,
        } = self;
        Totals {
            classes: std::array::from_fn(|index| combine(classes[index], other.classes[index])),
            stages: std::array::from_fn(|index| combine(stages[index], other.stages[index])),
            latency: FineCounts::default(),
            sent_bytes: combine(*sent_bytes, other.sent_bytes),
            received_bytes: combine(*received_bytes, other.received_bytes),
        }
    }
}

/// What was counted in one second.
#[derive(Clone, Debug, Default)]
pub struct Second {
    /// The requests that ended.
    pub totals: Totals,
    /// How many requests began.
    pub begun: u64,
    /// The most that one request lagged.
    pub lag_max: Nanos,
    /// The longest time that a worker ran without asking for events.
    pub turn_max: Nanos,
    /// Open connections of clients.
    pub connections: u64,
    /// Requests that were being received or answered.
    pub open_requests: u64,
}

/// The last [`limits::METRICS_SECONDS`] seconds.
#[derive(Default)]
pub(super) struct Seconds {
    ring: VecDeque<Second>,
    /// The second of the last entry.
    last: u32,
}

impl Seconds {
    /// Adds what one worker has counted in `second`.
    pub(super) fn add(&mut self, second: u32, more: &Totals, state: &WorkerState) {
        let entry = self.entry(second);
        entry.totals.add(more);
        entry.begun += state.gauges.begun_per_s;
        entry.lag_max = entry.lag_max.max(state.lag_max);
        entry.turn_max = entry.turn_max.max(state.gauges.turn_max);
        entry.connections += state.gauges.connections;
        entry.open_requests += state.gauges.open_requests;
    }

    fn entry(&mut self, second: u32) -> &mut Second {
        let missing = match self.ring.is_empty() {
            true => 1,
            false => second.saturating_sub(self.last) as usize,
        };
        if missing > limits::METRICS_SECONDS {
            self.ring.clear();
        }
        for _ in 0..missing.min(limits::METRICS_SECONDS) {
            if self.ring.len() == limits::METRICS_SECONDS {
                self.ring.pop_front();
            }
            self.ring.push_back(Second::default());
        }
        if missing > 0 {
            self.last = second;
        }
        // A worker that was held up for long adds to the oldest second.
        let age = (self.last - second) as usize;
        let index = (self.ring.len() - 1).saturating_sub(age);
        &mut self.ring[index]
    }

    /// The seconds that all workers have reported by the second `now`, and which one the first is.
    pub(super) fn complete(&self, now: u32) -> (u32, Vec<Second>) {
        // Workers report a second in the course of the next one.
        let is_complete = |age: usize| self.last.saturating_sub(age as u32) + 1 < now;
        let count = self.ring.len();
        let complete = (0..count).filter(|index| is_complete(count - 1 - index));
        let all: Vec<Second> = complete.map(|index| self.ring[index].clone()).collect();
        let left_out = (count - all.len()) as u32;
        let last = self.last.saturating_sub(left_out);
        ((last + 1).saturating_sub(all.len() as u32), all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(count: u64) -> Totals {
        let mut totals = Totals::default();
        totals.classes[1] = count;
        totals
    }

    fn counts(seconds: &Seconds, now: u32) -> (u32, Vec<u64>) {
        let (first, all) = seconds.complete(now);
        (
            first,
            all.iter().map(|second| second.totals.requests()).collect(),
        )
    }

    #[test]
    fn workers_add_to_seconds_and_gaps_are_empty() {
        let (mut seconds, state) = (Seconds::default(), WorkerState::default());
        assert_eq!(counts(&seconds, 9).1, []);
        seconds.add(10, &requests(1), &state);
        seconds.add(10, &requests(2), &state);
        seconds.add(13, &requests(4), &state);
        seconds.add(12, &requests(8), &state);
        assert_eq!(counts(&seconds, 15), (10, vec![3, 0, 8, 4]));
        assert_eq!(
            counts(&seconds, 14),
            (10, vec![3, 0, 8]),
            "13 may be incomplete"
        );
        // A worker was held up since before the first second.
        seconds.add(2, &requests(16), &state);
        assert_eq!(counts(&seconds, 15), (10, vec![19, 0, 8, 4]));
    }

    #[test]
    fn old_seconds_go() {
        let (mut seconds, state) = (Seconds::default(), WorkerState::default());
        let most = limits::METRICS_SECONDS as u32;
        for second in 0..most + 7 {
            seconds.add(second, &requests(u64::from(second)), &state);
        }
        let (first, all) = counts(&seconds, most + 9);
        assert_eq!((first, all.len(), all[0]), (7, limits::METRICS_SECONDS, 7));
        seconds.add(10 * most, &requests(5), &state);
        let (first, all) = counts(&seconds, 10 * most + 2);
        assert_eq!(all.len(), limits::METRICS_SECONDS);
        assert_eq!((first, all.last()), (9 * most + 1, Some(&5)));
        assert_eq!(all.iter().sum::<u64>(), 5);
    }
}
