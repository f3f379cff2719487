//! Whether one backend works, as all workers together have found out.
//!
//! A [`Health`] is told what happened to requests, and says whether the next request may go to the backend.
//! It does no I/O and reads no clock: times are milliseconds of the monotonic clock, passed in by the caller.
//! `balance` asks it, requests report to it, `active_check` does both. It knows nothing of other backends;
//! `balance` notices when all backends of a route are down.
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
//! - **Down**: no connection could be made. Nothing was sent, so every request can go to another backend, and
//!   no client can cause this state. It lasts for `disable-time`, doubled with each failure in a row up to 32
//!   times. After it exactly one request is let through; the others still go elsewhere until that request has
//!   connected. If it reports nothing (its client has left), the next request is let through after the same
//!   time again.
//! - **Strained** is independent of these states: connections can be made, but three times in a row the
//!   backend closed one before it replied, or did not answer in time, or its queue was full. For
//!   `disable-time` it gets requests only when no other backend is left, because a backend that fails quickly
//!   always has the shortest queue. It is not shut off: otherwise one URL that crashes the application would
//!   take the site down for all clients.
//! - **CheckFailed** ends only when a health check succeeds.
//!
//! Many requests usually find out at the same time that a backend is down. Only the first one counts as a
//! failure in a row; the others find the backend already down.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The health of one backend, shared by all workers. It has a cache line of its own, because every request
/// reads it and few write it.
#[derive(Debug)]
#[repr(align(64))]
pub struct Health {
    /// A packed [`HealthState`].
    state: AtomicU64,
    /// A packed [`Strain`].
    strain: AtomicU64,
    /// When the backend came back, while its slow start lasts; otherwise 0.
    recovered_at_ms: AtomicU64,
    disable_ms: u64,
    slow_start_ms: u64,
    died: AtomicU64,
    disabled: AtomicU64,
    overloaded: AtomicU64,
}

/// Whether a backend may get a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usability {
    /// Yes.
    Ready,
    /// It was down and may get a single request, which [`Health::admit`] grants to the first that asks.
    Probe,
    /// Only if no other backend is left.
    Strained,
    /// No.
    Down,
}

/// What a failed request says about the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendFault {
    /// No connection could be made: refused, no route, or not in time.
    Unreachable,
    /// The connection was made, but it ended or broke the protocol before the head of a reply, or no reply
    /// came in time. A persistent connection that was closed while idle does not count.
    NoReply,
    /// It has no room for another connection (EAGAIN from the queue of a unix socket).
    Overloaded,
}

/// Counters for the status page. All but the first two count since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HealthCounters {
    /// It gets no requests now.
    pub is_down: bool,
    /// It gets requests only if no other backend is left.
    pub is_strained: bool,
    /// Requests that it failed.
    pub died: u64,
    /// How often it was taken out of service.
    pub disabled: u64,
    /// Requests that it had no room for.
    pub overloaded: u64,
}

impl Health {
    /// A backend that works. After its first failure it gets no requests for `disable_time` (zero: it always
    /// does). After it came back its share grows to the full one over `slow_start`.
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

    /// Whether the backend may get a request. Costs two atomic loads.
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

    /// Takes the offer of [`Health::usability`]. False if another request took the only turn in the meantime.
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
        // With a `disable_time` of 0 nothing is ever withheld, so the state may be unchanged although the
        // request is admitted.
        before == HealthState::Up || before != after || self.usability(now_ms) == Usability::Probe
    }

    /// The request that [`Health::admit`] let through at `now_ms` is not sent after all. If it was the probe,
    /// the next request is.
    pub(crate) fn return_probe(&self, now_ms: u64) {
        self.change(|state| match state {
            HealthState::Probing { failures, .. } => HealthState::Down {
                until_ms: now_ms,
                failures,
            },
            other => other,
        });
    }

    /// A new connection was made. True if that brought the backend back.
    #[inline]
    pub fn connected(&self, now_ms: u64) -> bool {
        self.state() != HealthState::Up && self.end_probe(now_ms)
    }

    /// The head of a reply arrived. True if that brought the backend back.
    #[inline]
    pub(crate) fn replied(&self, now_ms: u64) -> bool {
        if self.strain.load(Ordering::Relaxed) != 0 {
            self.strain.store(0, Ordering::Relaxed);
        }
        self.connected(now_ms)
    }

    /// A request failed. `Some(time)` if the backend gets no requests for that time from now on. Only one of
    /// the workers that report at once gets `Some`, so that the log says it once.
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

    /// A health check succeeded. True if that brought the backend back.
    pub(crate) fn check_answered(&self, now_ms: u64) -> bool {
        let (before, _) = self.change(|_| HealthState::Up);
        let is_back = before != HealthState::Up;
        if is_back {
            self.begin_slow_start(now_ms);
        }
        is_back
    }

    /// A connection was made to a backend that was expected back: it gets requests at once.
    pub(crate) fn is_back(&self) -> bool {
        let (before, after) = self.change(|state| match state {
            HealthState::CheckFailed => state,
            _ => HealthState::Up,
        });
        before != after
    }

    /// Enough health checks failed: the backend gets no requests until one succeeds. True if it got requests
    /// before.
    pub(crate) fn check_failed(&self) -> bool {
        let (before, _) = self.change(|_| HealthState::CheckFailed);
        if before == HealthState::Up {
            self.disabled.fetch_add(1, Ordering::Relaxed);
        }
        before == HealthState::Up
    }

    /// Health checks stop. A backend that only they took out of service gets requests again.
    pub(crate) fn checks_end(&self) {
        self.change(|state| match state {
            HealthState::CheckFailed => HealthState::Up,
            other => other,
        });
    }

    /// The part of its weight that the backend gets, in thousandths: 1000, or less during slow start, growing
    /// evenly from 100.
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
        // `elapsed_ms` is less than `slow_start_ms`, which is at most 2^48: the product does not overflow and
        // the result is in range.
        let grown = u64::from(SHARE_FULL - SHARE_MIN) * elapsed_ms / self.slow_start_ms;
        SHARE_MIN + grown as u32
    }

    /// Counters for the status page.
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

    /// Changes the state atomically. Returns the state before and after.
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
                // The request was sent before the backend went down, so its failure is no new one.
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

    /// Counts missing replies. From [`NO_REPLIES_MAX`] in a row on the backend is strained.
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
        // Two workers that store at the same time may lose one count. The order of magnitude is enough here.
        self.strain.store(after.pack(), Ordering::Relaxed);
    }

    /// A request got through: ends the probe, even one that took longer than its turn.
    fn end_probe(&self, now_ms: u64) -> bool {
        let (before, after) = self.change(|state| match state {
            HealthState::Probing { .. } => HealthState::Up,
            // No request probes it yet, but one that was sent before has got through.
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
            // 0 would say that there is no slow start.
            self.recovered_at_ms.store(now_ms.max(1), Ordering::Relaxed);
        }
    }

    /// How long the backend gets no requests after so many failures in a row.
    fn time_out_ms(&self, failures: u64) -> u64 {
        self.disable_ms << (failures.clamp(1, FAILURES_COUNTED_MAX) - 1)
    }
}

/// A state of the diagram above. Packed into one word, so that it changes atomically.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HealthState {
    Up,
    /// No requests until `until_ms`, after `failures` failures in a row.
    Down {
        until_ms: u64,
        failures: u64,
    },
    /// One request is on its way. If it has not reported by `until_ms`, another request may try.
    Probing {
        until_ms: u64,
        failures: u64,
    },
    CheckFailed,
}

/// How many replies in a row did not come, and until when the backend is avoided because of that.
#[derive(Clone, Copy, Debug, Default)]
struct Strain {
    until_ms: u64,
    no_replies: u64,
}

impl HealthState {
    /// Bits 0 and 1: the state. Bits 2 to 7: failures in a row. The rest: the time.
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

/// At most 2^48, so that 32 times as much plus the present time fits into 56 bits.
fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis())
        .unwrap_or(u64::MAX)
        .min(1 << 48)
}

/// From the sixth failure in a row on, a backend is taken out for 32 times `disable-time`.
const FAILURES_COUNTED_MAX: u64 = 6;

/// Missing replies in a row after which a backend is avoided. One may be the fault of the request itself, and
/// two as well if its client tries again.
const NO_REPLIES_MAX: u64 = 3;

/// The full share, in thousandths.
const SHARE_FULL: u32 = 1000;

/// The share at the beginning of a slow start: enough to warm up.
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
    fn a_probe_that_was_not_sent_is_followed_by_another_at_once() {
        let health = health();
        health.failed(0, BackendFault::Unreachable);
        assert!(health.admit(SECOND));
        health.return_probe(SECOND);
        assert!(health.admit(SECOND), "the turn of the first is free again");
        assert!(!health.admit(SECOND));
        assert_eq!(seconds(&health, SECOND), Some(2), "failures still add up");
        health.check_answered(SECOND);
        health.return_probe(SECOND);
        assert_eq!(health.usability(SECOND), Usability::Ready);
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
