//! Whether one backend works, as all workers together have learned it.
//!
//! A [`Health`] is told what happened to requests and answers whether the next one may go there. It
//! does no I/O and reads no clock: times are milliseconds of the monotonic clock, given by the
//! caller. `balance` asks it, the request tells it, `active_check` does both. It knows nothing of
//! other backends: that a route has nothing left is for `balance` to see.
//!
//! ```text
//!                 unreachable                    time over, first request that asks
//!   Up ─────────────────────────────► Down ──────────────────────────────► Probing
//!    ▲ ▲                               ▲                                    │   │
//!    │ │                               └──── unreachable: twice the time ───┘   │
//!    │ └─────────────── connected or replied ───────────────────────────────────┘
//!    │
//!    └── check answered ── CheckFailed ◄── check failed twice in a row ── any other state
//! ```
//!
//! - **Down** is for backends that cannot be connected to: nothing was sent, so every request can
//!   go elsewhere, and no client can bring this about. It lasts `disable-time`, doubled with each
//!   failure in a row up to 32 times. When it is over exactly one request is let through; the others
//!   still go elsewhere until that one has connected. One that reports nothing (its client left) is
//!   followed by the next after the same time.
//! - **Strained** is beside these states: connections are made, but the backend closed them three
//!   times in a row before a reply, or did not answer in time, or its queue was full. Such a backend
//!   gets requests only when no other is left, for `disable-time`: a backend that fails quickly has
//!   the shortest queue of all. It is not shut off, because one URL that makes the application crash
//!   would then close the site for all clients.
//! - **CheckFailed** ends only by a check that succeeds.
//!
//! Many requests usually find out at the same time. Only the first one counts as a failure in a row;
//! the others see that the backend is down already.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What is known of one backend. Shared by all workers. On a cache line of its own: it is read with
/// every request and seldom written.
#[derive(Debug)]
#[repr(align(64))]
pub struct Health {
    /// A packed [`HealthState`].
    state: AtomicU64,
    /// A packed [`Strain`].
    strain: AtomicU64,
    /// When it came back, while the slow start lasts; otherwise 0.
    recovered_at_ms: AtomicU64,
    disable_ms: u64,
    slow_start_ms: u64,
    died: AtomicU64,
    disabled: AtomicU64,
    overloaded: AtomicU64,
}

/// Whether a request may be sent to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usability {
    /// It works, as far as is known.
    Ready,
    /// It was down and may have one request, which [`Health::admit`] gives to the first that asks.
    Probe,
    /// Only if nothing else is left.
    Strained,
    /// Not now.
    Down,
}

/// What went wrong with a request, as far as it says something about the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendFault {
    /// No connection could be made: refused, no route, not in time.
    Unreachable,
    /// The connection was made, but it ended or broke the protocol before the head of a reply, or
    /// none came in time. Not for a kept connection that was closed while it was idle.
    NoReply,
    /// It has no room for a connection (EAGAIN of a unix socket's queue).
    Overloaded,
}

/// Numbers for the status page. All but the first two count since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HealthCounters {
    /// It gets no requests now.
    pub is_down: bool,
    /// It gets requests only if nothing else is left.
    pub is_strained: bool,
    /// Requests it failed.
    pub died: u64,
    /// Times it was taken out.
    pub disabled: u64,
    /// Requests it had no room for.
    pub overloaded: u64,
}

impl Health {
    /// A backend that works. `disable_time` is how long it is left alone after the first failure,
    /// zero is not at all; over `slow_start` it gets its full share again after it came back.
    pub fn new(disable_time: Duration, slow_start: Duration) -> Health {
        Health {
            state: AtomicU64::new(HealthState::Up.pack()),
            strain: AtomicU64::new(Strain::default().pack()),
            recovered_at_ms: AtomicU64::new(0),
            disable_ms: milliseconds(disable_time),
            slow_start_ms: milliseconds(slow_start),
            died: AtomicU64::new(0),
            disabled: AtomicU64::new(0),
            overloaded: AtomicU64::new(0),
        }
    }

    /// Whether a request may go there. Two loads.
    #[inline]
    pub(crate) fn usability(&self, now_ms: u64) -> Usability {
        match self.state() {
            HealthState::Up if self.strain().until_ms > now_ms => Usability::Strained,
            HealthState::Up => Usability::Ready,
            HealthState::Down { until_ms, .. } | HealthState::Probing { until_ms, .. } => {
                if until_ms > now_ms {
                    Usability::Down
                } else {
                    Usability::Probe
                }
            }
            HealthState::CheckFailed => Usability::Down,
        }
    }

    /// Takes what [`Health::usability`] offered. No, if another request was given the only turn in
    /// the meantime.
    #[inline]
    pub(crate) fn admit(&self, now_ms: u64) -> bool {
        if self.state() == HealthState::Up {
            return true;
        }
        let (before, after) = self.change(|state| match state {
            HealthState::Down { until_ms, failures }
            | HealthState::Probing { until_ms, failures }
                if until_ms <= now_ms =>
            {
                HealthState::Probing {
                    until_ms: now_ms + self.time_out_ms(failures),
                    failures,
                }
            }
            other => other,
        });
        // With a time of 0 nothing is ever withheld, and the state may stay as it was.
        before == HealthState::Up || before != after || self.usability(now_ms) == Usability::Probe
    }

    /// A new connection was made. True if that brought the backend back.
    #[inline]
    pub fn connected(&self, now_ms: u64) -> bool {
        self.state() != HealthState::Up && self.end_probe(now_ms)
    }

    /// The head of a reply came. True if that brought the backend back.
    #[inline]
    pub(crate) fn replied(&self, now_ms: u64) -> bool {
        if self.strain.load(Ordering::Relaxed) != 0 {
            self.strain.store(0, Ordering::Relaxed);
        }
        self.connected(now_ms)
    }

    /// A request failed. `Some` if the backend gets no requests from now on, for that long; only one
    /// of many callers is told, so that the log says it once.
    pub fn failed(&self, now_ms: u64, failure: BackendFault) -> Option<Duration> {
        match failure {
            BackendFault::Unreachable => {
                self.died.fetch_add(1, Ordering::Relaxed);
                self.unreachable(now_ms)
            }
            BackendFault::NoReply => {
                self.died.fetch_add(1, Ordering::Relaxed);
                self.strained(now_ms, 1);
                None
            }
            BackendFault::Overloaded => {
                self.overloaded.fetch_add(1, Ordering::Relaxed);
                self.strained(now_ms, NO_REPLIES_MAX);
                None
            }
        }
    }

    /// An active check was answered as it should be. True if that brought the backend back.
    pub(crate) fn check_answered(&self, now_ms: u64) -> bool {
        let (before, _) = self.change(|_| HealthState::Up);
        let is_back = before != HealthState::Up;
        if is_back {
            self.begin_slow_start(now_ms);
        }
        is_back
    }

    /// Active checks failed as often as is needed: no requests until one succeeds. True if the
    /// backend got requests before.
    pub(crate) fn check_failed(&self) -> bool {
        let (before, _) = self.change(|_| HealthState::CheckFailed);
        if before == HealthState::Up {
            self.disabled.fetch_add(1, Ordering::Relaxed);
        }
        before == HealthState::Up
    }

    /// There are no more checks: what they found does not keep requests away.
    pub(crate) fn checks_end(&self) {
        self.change(|state| match state {
            HealthState::CheckFailed => HealthState::Up,
            other => other,
        });
    }

    /// How much of its weight the backend gets, in thousandths: 1000, or less while it warms up
    /// after it came back, growing evenly from 100.
    #[inline]
    pub(crate) fn share_per_mille(&self, now_ms: u64) -> u32 {
        let recovered_at_ms = self.recovered_at_ms.load(Ordering::Relaxed);
        if recovered_at_ms == 0 {
            return SHARE_FULL;
        }
        let elapsed_ms = now_ms.saturating_sub(recovered_at_ms);
        if elapsed_ms >= self.slow_start_ms {
            self.recovered_at_ms.store(0, Ordering::Relaxed);
            return SHARE_FULL;
        }
        // Smaller than `slow_start_ms`, which is at most 2^48: neither overflows nor exceeds.
        let grown = u64::from(SHARE_FULL - SHARE_MIN) * elapsed_ms / self.slow_start_ms;
        SHARE_MIN + grown as u32
    }

    /// Numbers for the status page.
    pub fn counters(&self, now_ms: u64) -> HealthCounters {
        let usability = self.usability(now_ms);
        HealthCounters {
            is_down: usability == Usability::Down,
            is_strained: usability == Usability::Strained,
            died: self.died.load(Ordering::Relaxed),
            disabled: self.disabled.load(Ordering::Relaxed),
            overloaded: self.overloaded.load(Ordering::Relaxed),
        }
    }

    fn state(&self) -> HealthState {
        HealthState::unpack(self.state.load(Ordering::Relaxed))
    }

    fn strain(&self) -> Strain {
        Strain::unpack(self.strain.load(Ordering::Relaxed))
    }

    /// Changes the state in one step, and says what it was and became.
    fn change(&self, step: impl Fn(HealthState) -> HealthState) -> (HealthState, HealthState) {
        let mut before = self.state.load(Ordering::Relaxed);
        loop {
            let after = step(HealthState::unpack(before)).pack();
            let swapped = self.state.compare_exchange_weak(
                before,
                after,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            match swapped {
                Ok(_) => return (HealthState::unpack(before), HealthState::unpack(after)),
                Err(current) => before = current,
            }
        }
    }

    fn unreachable(&self, now_ms: u64) -> Option<Duration> {
        let (before, after) = self.change(|state| {
            let failures = match state {
                HealthState::Up => 1,
                HealthState::Probing { failures, .. } => (failures + 1).min(FAILURES_COUNTED_MAX),
                // No request was sent there on purpose: one that began before the others failed.
                HealthState::Down { .. } | HealthState::CheckFailed => return state,
            };
            HealthState::Down {
                until_ms: now_ms + self.time_out_ms(failures),
                failures,
            }
        });
        let HealthState::Down { until_ms, .. } = after else {
            return None;
        };
        if before == after {
            return None;
        }
        self.disabled.fetch_add(1, Ordering::Relaxed);
        Some(Duration::from_millis(until_ms - now_ms))
    }

    /// Counts replies that did not come; from [`NO_REPLIES_MAX`] in a row on the backend is strained.
    fn strained(&self, now_ms: u64, count: u64) {
        let strain = self.strain();
        let no_replies = (strain.no_replies + count).min(NO_REPLIES_MAX);
        let until_ms = if no_replies == NO_REPLIES_MAX {
            now_ms + self.disable_ms
        } else {
            strain.until_ms
        };
        let after = Strain {
            until_ms,
            no_replies,
        };
        // Two workers at once may count one: it is the order of magnitude that matters.
        self.strain.store(after.pack(), Ordering::Relaxed);
    }

    /// A request got through: the end of a probe, also of one that took longer than its turn.
    fn end_probe(&self, now_ms: u64) -> bool {
        let (before, after) = self.change(|state| match state {
            HealthState::Probing { .. } => HealthState::Up,
            HealthState::Down { until_ms, .. } if until_ms <= now_ms => HealthState::Up,
            other => other,
        });
        let is_back = before != HealthState::Up && after == HealthState::Up;
        if is_back {
            self.begin_slow_start(now_ms);
        }
        is_back
    }

    fn begin_slow_start(&self, now_ms: u64) {
        if self.slow_start_ms > 0 {
            self.recovered_at_ms.store(now_ms.max(1), Ordering::Relaxed);
        }
    }

    /// Time without requests after so many failures in a row.
    fn time_out_ms(&self, failures: u64) -> u64 {
        self.disable_ms << (failures.clamp(1, FAILURES_COUNTED_MAX) - 1)
    }
}

/// Where in the diagram a backend is. In one word, so that it changes in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HealthState {
    Up,
    /// No requests until then, after so many failures in a row.
    Down {
        until_ms: u64,
        failures: u64,
    },
    /// One request is on its way; if it has not reported until then, there may be another.
    Probing {
        until_ms: u64,
        failures: u64,
    },
    CheckFailed,
}

/// Replies in a row that did not come, and until when the backend is avoided for it.
#[derive(Clone, Copy, Debug, Default)]
struct Strain {
    until_ms: u64,
    no_replies: u64,
}

impl HealthState {
    /// Bits 0 and 1: which one; 2 to 7: failures in a row; the rest: the time.
    fn pack(self) -> u64 {
        let timed = |kind: u64, until_ms: u64, failures: u64| kind | failures << 2 | until_ms << 8;
        match self {
            HealthState::Up => 0,
            HealthState::Down { until_ms, failures } => timed(1, until_ms, failures),
            HealthState::Probing { until_ms, failures } => timed(2, until_ms, failures),
            HealthState::CheckFailed => 3,
        }
    }

    fn unpack(word: u64) -> HealthState {
        let (until_ms, failures) = (word >> 8, word >> 2 & 0x3f);
        match word & 3 {
            0 => HealthState::Up,
            1 => HealthState::Down { until_ms, failures },
            2 => HealthState::Probing { until_ms, failures },
            _ => HealthState::CheckFailed,
        }
    }
}

impl Strain {
    fn pack(self) -> u64 {
        self.no_replies | self.until_ms << 8
    }

    fn unpack(word: u64) -> Strain {
        Strain {
            until_ms: word >> 8,
            no_replies: word & 0xff,
        }
    }
}

/// At most 2^48: with 32 times that and the present time it still fits into 56 bits.
fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis())
        .unwrap_or(u64::MAX)
        .min(1 << 48)
}

/// The sixth failure in a row takes a backend out for 32 times `disable-time`, and so do all later.
const FAILURES_COUNTED_MAX: u64 = 6;

/// Replies in a row that must be missing before a backend is avoided. One may be the request's own
/// fault, and two as well when its client tries again.
const NO_REPLIES_MAX: u64 = 3;

/// Thousandths.
const SHARE_FULL: u32 = 1000;

/// What a backend gets at the beginning of its slow start: enough to warm up at all.
const SHARE_MIN: u32 = 100;

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    const SECOND: u64 = 1000;

    fn health() -> Health {
        Health::new(Duration::from_secs(1), Duration::ZERO)
    }

    fn seconds(health: &Health, now_ms: u64) -> Option<u64> {
        let time = health.failed(now_ms, BackendFault::Unreachable);
        time.map(|time| time.as_secs())
    }

    #[test]
    fn a_backend_that_cannot_be_reached_is_left_alone_for_disable_time() {
        let health = health();
        assert_eq!(health.usability(5), Usability::Ready);
        assert_eq!(seconds(&health, 5), Some(1));
        assert_eq!(health.usability(5), Usability::Down);
        assert_eq!(health.usability(1004), Usability::Down);
        assert!(!health.admit(1004));
        assert_eq!(health.usability(1005), Usability::Probe);
    }

    #[test]
    fn many_failures_at_a_time_are_one() {
        let health = health();
        assert_eq!(seconds(&health, 0), Some(1));
        for _ in 0..50 {
            assert_eq!(seconds(&health, 10), None);
        }
        assert_eq!(health.usability(SECOND), Usability::Probe);
        let counters = health.counters(10);
        assert_eq!((counters.died, counters.disabled), (51, 1));
        assert!(counters.is_down);
    }

    #[test]
    fn the_time_doubles_with_each_failure_in_a_row_up_to_32_times() {
        let health = health();
        let mut now = 0;
        for expected in [1, 2, 4, 8, 16, 32, 32, 32] {
            assert_eq!(seconds(&health, now), Some(expected));
            now += expected * SECOND;
            assert!(health.admit(now), "after {expected}");
        }
        assert!(health.connected(now));
        assert_eq!(seconds(&health, now), Some(1), "a success begins anew");
    }

    #[test]
    fn exactly_one_request_finds_out_whether_it_is_back() {
        let health = health();
        health.failed(0, BackendFault::Unreachable);
        let admitted = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let is_admitted = u32::from(health.admit(SECOND));
                        admitted.fetch_add(is_admitted, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(admitted.into_inner(), 1);
        assert_eq!(health.usability(SECOND), Usability::Down);
        assert!(health.connected(SECOND + 3));
        assert_eq!(health.usability(SECOND + 3), Usability::Ready);
        assert!(!health.connected(SECOND + 4), "it came back only once");
    }

    #[test]
    fn a_probe_that_reports_nothing_is_followed_by_another() {
        let health = health();
        health.failed(0, BackendFault::Unreachable);
        assert!(health.admit(SECOND));
        assert!(!health.admit(2 * SECOND - 1));
        assert!(health.admit(2 * SECOND));
    }

    #[test]
    fn a_reply_on_an_old_connection_does_not_bring_back_what_refuses_new_ones() {
        let health = health();
        health.failed(0, BackendFault::Unreachable);
        assert!(!health.replied(500));
        assert_eq!(health.usability(500), Usability::Down);
    }

    #[test]
    fn without_disable_time_every_request_is_admitted() {
        let health = Health::new(Duration::ZERO, Duration::ZERO);
        for _ in 0..3 {
            assert_eq!(seconds(&health, 7), Some(0));
            assert_eq!(health.usability(7), Usability::Probe);
            assert!(health.admit(7));
            assert!(health.admit(7));
        }
    }

    #[test]
    fn three_missing_replies_in_a_row_make_it_the_last_choice() {
        let health = health();
        for _ in 0..2 {
            assert_eq!(health.failed(0, BackendFault::NoReply), None);
        }
        health.replied(0);
        for _ in 0..2 {
            health.failed(0, BackendFault::NoReply);
            assert_eq!(health.usability(0), Usability::Ready);
        }
        health.failed(0, BackendFault::NoReply);
        assert_eq!(health.usability(0), Usability::Strained);
        assert!(health.admit(0), "as there may be no other");
        assert_eq!(health.usability(SECOND), Usability::Ready);
        health.failed(SECOND, BackendFault::NoReply);
        assert_eq!(health.usability(SECOND), Usability::Strained);
        health.replied(SECOND);
        assert_eq!(health.usability(SECOND), Usability::Ready);
    }

    #[test]
    fn a_full_queue_makes_it_the_last_choice_at_once() {
        let health = health();
        assert_eq!(health.failed(0, BackendFault::Overloaded), None);
        assert_eq!(health.usability(0), Usability::Strained);
        let counters = health.counters(0);
        assert_eq!((counters.overloaded, counters.died), (1, 0));
        assert!(counters.is_strained && !counters.is_down);
    }

    #[test]
    fn what_failed_its_checks_comes_back_by_a_check_only() {
        let health = health();
        assert!(health.check_failed());
        assert!(!health.check_failed());
        assert_eq!(health.usability(1_000_000), Usability::Down);
        assert!(!health.admit(1_000_000));
        assert!(!health.replied(1_000_000));
        assert_eq!(seconds(&health, 1_000_000), None);
        assert!(health.check_answered(1_000_000));
        assert_eq!(health.usability(1_000_000), Usability::Ready);
        assert!(!health.check_answered(1_000_001));
    }

    #[test]
    fn a_check_brings_back_what_requests_took_out() {
        let health = health();
        health.failed(0, BackendFault::Unreachable);
        assert!(health.check_answered(1));
        assert_eq!(health.usability(1), Usability::Ready);
    }

    #[test]
    fn the_share_grows_evenly_after_it_came_back() {
        let health = Health::new(Duration::from_secs(1), Duration::from_secs(10));
        assert_eq!(health.share_per_mille(0), 1000, "not at the start");
        health.failed(0, BackendFault::Unreachable);
        assert!(health.admit(SECOND));
        assert!(health.connected(SECOND));
        assert_eq!(health.share_per_mille(SECOND), 100);
        assert_eq!(health.share_per_mille(6 * SECOND), 550);
        assert_eq!(health.share_per_mille(11 * SECOND - 1), 999);
        assert_eq!(health.share_per_mille(11 * SECOND), 1000);
    }

    #[test]
    fn very_long_times_do_not_overflow() {
        let health = Health::new(Duration::MAX, Duration::MAX);
        let mut now = 0;
        for _ in 0..8 {
            let time = health
                .failed(now, BackendFault::Unreachable)
                .expect("it was up");
            assert_eq!(health.usability(now), Usability::Down);
            now += time.as_millis() as u64;
            assert!(health.admit(now));
        }
        assert!(health.connected(now));
        assert_eq!(health.share_per_mille(now + (1 << 47)), 550);
    }

    #[test]
    fn states_survive_packing() {
        let timed = [(0, 1), (1 << 54, 6), (123_456_789, 3)];
        let down = timed.map(|(until_ms, failures)| HealthState::Down { until_ms, failures });
        let probing = timed.map(|(until_ms, failures)| HealthState::Probing { until_ms, failures });
        let all = down.into_iter().chain(probing);
        for state in all.chain([HealthState::Up, HealthState::CheckFailed]) {
            assert_eq!(HealthState::unpack(state.pack()), state);
        }
    }
}
