//! How many connections one backend may have, from all workers together.
//!
//! The limit is configured (`max-connections`, `max-pool-size`, or the number of processes that Petrel
//! spawns) or learned. It is learned for backends whose processes each serve one connection at a time and
//! that do not say how many processes there are (php-fpm). For such a backend the kernel accepts connections
//! that no process serves as long as all processes are busy with other persistent connections.
//!
//! A connection on which a request was written, and which has never answered, is a *newcomer*. A newcomer
//! that has waited for longer than requests usually take is *late*. Then the next connection that becomes
//! free is closed instead of kept, so that its process turns to the newcomer, and the number of connections
//! that have ever answered is taken as the limit. The learned limit is tested from time to time by opening
//! one connection more; each test in vain doubles the pause until the next one. It has to be tested because a
//! newcomer may also have been late only because its script was slow. A limit that has risen until nothing
//! waits any more is forgotten: then it says how many connections the clients want, not how many processes
//! there are.
//!
//! Times are milliseconds of the monotonic clock, passed in by the caller. Counts are atomic. The list of
//! newcomers has a lock, but in the steady state it is empty and not locked.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use petrel_engine::shared::lock;

use super::limits;

/// Counts the connections of one backend.
#[derive(Debug)]
pub struct ConnectionLimit {
    /// The configured limit; [`UNKNOWN`] without one.
    told: u32,
    /// Whether a smaller limit may be learned.
    learns: bool,
    /// Connections that are open or being opened.
    open: AtomicU32,
    /// Connections that have answered, so that a process serves each.
    proven: AtomicU32,
    /// The learned limit; [`UNKNOWN`] while there is none.
    learned: AtomicU32,
    /// The most connections that were proven at the same time lately, and since when there were not more.
    peak: AtomicU32,
    peak_at_ms: AtomicU64,
    newcomers: AtomicU32,
    list: Mutex<Newcomers>,
    /// When a connection beyond the learned limit may be opened.
    probe_at_ms: AtomicU64,
    probe_pause_ms: AtomicU64,
}

#[derive(Debug, Default)]
struct Newcomers {
    next_id: u64,
    waiting: VecDeque<Newcomer>,
}

#[derive(Debug)]
struct Newcomer {
    id: u64,
    /// Since when it has waited, or when the last connection was closed for it.
    since_ms: u64,
}

/// A connection that has a request and has never answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewcomerId(u64);

const UNKNOWN: u32 = u32::MAX;

impl ConnectionLimit {
    /// `told` is the configured limit, if there is one. `learns`: a smaller limit may be learned.
    pub fn new(told: Option<u32>, learns: bool) -> ConnectionLimit {
        ConnectionLimit {
            told: told.unwrap_or(UNKNOWN).max(1),
            learns,
            open: AtomicU32::new(0),
            proven: AtomicU32::new(0),
            learned: AtomicU32::new(UNKNOWN),
            peak: AtomicU32::new(0),
            peak_at_ms: AtomicU64::new(0),
            newcomers: AtomicU32::new(0),
            list: Mutex::default(),
            probe_at_ms: AtomicU64::new(0),
            probe_pause_ms: AtomicU64::new(limits::PROBE_PAUSE_MS_MIN),
        }
    }

    /// Takes a permit for one more connection, if the limit allows it.
    pub(crate) fn try_open(&self) -> bool {
        self.try_open_below(self.limit())
    }

    /// As [`Self::try_open`], for a request that has already waited: from time to time one connection more
    /// than the learned limit is allowed, to find out whether the limit is still right.
    pub(crate) fn try_probe(&self, now_ms: u64) -> bool {
        if self.try_open() {
            return true;
        }
        let due_ms = self.probe_at_ms.load(Ordering::Relaxed);
        if now_ms < due_ms || self.is_tried() {
            return false;
        }
        let pause_ms = self.probe_pause_ms.load(Ordering::Relaxed);
        let next_ms = now_ms + pause_ms;
        // Of several workers that get here at the same time one makes the test.
        let is_mine = self
            .probe_at_ms
            .compare_exchange(due_ms, next_ms, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
        if !is_mine || !self.try_open_below(self.told) {
            return false;
        }
        let longer_ms = (pause_ms * 2).min(limits::PROBE_PAUSE_MS_MAX);
        self.probe_pause_ms.store(longer_ms, Ordering::Relaxed);
        true
    }

    /// Gives a permit back: the connection was closed or could not be made. `was_proven`: it had answered.
    pub fn closed(&self, was_proven: bool) {
        self.open.fetch_sub(1, Ordering::Relaxed);
        self.replaced(was_proven);
    }

    /// A connection was closed, and its permit goes to another connection. `was_proven`: it had answered.
    pub fn replaced(&self, was_proven: bool) {
        if was_proven {
            self.proven.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The first request was written on a new connection.
    pub(crate) fn newcomer(&self, now_ms: u64) -> NewcomerId {
        let mut list = lock(&self.list);
        list.next_id += 1;
        let id = list.next_id;
        list.waiting.push_back(Newcomer {
            id,
            since_ms: now_ms,
        });
        self.count(&list);
        NewcomerId(id)
    }

    /// The first byte of a reply arrived on a newcomer: a process has accepted it. `do_requests_wait`: for a
    /// connection of this backend.
    pub(crate) fn answered(&self, id: NewcomerId, now_ms: u64, do_requests_wait: bool) {
        self.gone(id);
        let proven = self.proven.fetch_add(1, Ordering::Relaxed) + 1;
        if proven >= self.recent_peak(now_ms) {
            self.peak.store(proven, Ordering::Relaxed);
            self.peak_at_ms.store(now_ms, Ordering::Relaxed);
        }
        let learned = self.learned.load(Ordering::Relaxed);
        // The limit was too low: there are more processes now, or a slow script was taken for a missing one.
        if learned != UNKNOWN && proven > learned {
            if do_requests_wait || self.newcomers.load(Ordering::Relaxed) > 0 {
                self.learned.fetch_max(proven, Ordering::Relaxed);
            } else {
                // Unless another worker has just learned a new one.
                let _ = self.learned.compare_exchange(
                    learned,
                    UNKNOWN,
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
            }
            self.probe_pause_ms
                .store(limits::PROBE_PAUSE_MS_MIN, Ordering::Relaxed);
            self.probe_at_ms.store(0, Ordering::Relaxed);
        }
    }

    /// A newcomer was closed before it answered.
    pub fn gone(&self, id: NewcomerId) {
        let mut list = lock(&self.list);
        list.waiting.retain(|newcomer| newcomer.id != id.0);
        self.count(&list);
    }

    /// Whether a connection that has just become free must be closed because a newcomer has waited for longer
    /// than `patience_ms`. One connection is closed for each late newcomer, and another one after the same
    /// time. When there are no more connections than processes, newcomers wait because of other front ends;
    /// then only a connection whose tenure is over is closed.
    pub(crate) fn must_give_up(&self, now_ms: u64, patience_ms: u64, is_tenure_over: bool) -> bool {
        if !self.learns || self.newcomers.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let learned = self.learned.load(Ordering::Relaxed);
        if learned != UNKNOWN && self.open() <= learned && !is_tenure_over {
            return false;
        }
        let mut list = lock(&self.list);
        let is_late =
            |newcomer: &&mut Newcomer| now_ms.saturating_sub(newcomer.since_ms) > patience_ms;
        let Some(late) = list.waiting.iter_mut().find(is_late) else {
            return false;
        };
        late.since_ms = now_ms;
        // The processes of connections that were closed a moment ago count, too.
        let proven = self.proven.load(Ordering::Relaxed).max(1);
        let proven = proven.max(self.recent_peak(now_ms));
        if proven < self.learned.swap(proven, Ordering::Relaxed) {
            let pause_ms = self.probe_pause_ms.load(Ordering::Relaxed);
            self.probe_at_ms.store(now_ms + pause_ms, Ordering::Relaxed);
        }
        true
    }

    /// Whether no further connection may be opened now. While one beyond a learned limit is tried, the limit
    /// does not count as reached, so that no connection is closed for another: if there were always some
    /// that have not answered yet, they could never all have answered, and a limit that is too low would
    /// stay.
    pub(crate) fn is_reached(&self) -> bool {
        self.open() >= self.limit() && !self.is_tried()
    }

    /// Whether a connection beyond the learned limit is open.
    fn is_tried(&self) -> bool {
        self.open() > self.learned.load(Ordering::Relaxed)
    }

    /// Whether there is a connection that has a request and has never answered.
    pub(crate) fn has_newcomers(&self) -> bool {
        self.learns && self.newcomers.load(Ordering::Relaxed) > 0
    }

    /// Whether a limit was learned.
    pub(crate) fn is_learned(&self) -> bool {
        self.learned.load(Ordering::Relaxed) != UNKNOWN
    }

    /// The limit that was configured or learned.
    pub(crate) fn known(&self) -> Option<u32> {
        Some(self.limit()).filter(|limit| *limit != UNKNOWN)
    }

    /// Connections that are open or being opened.
    pub fn open(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    fn recent_peak(&self, now_ms: u64) -> u32 {
        let at_ms = self.peak_at_ms.load(Ordering::Relaxed);
        match now_ms.saturating_sub(at_ms) < limits::PEAK_MS {
            true => self.peak.load(Ordering::Relaxed),
            false => 0,
        }
    }

    fn limit(&self) -> u32 {
        self.told.min(self.learned.load(Ordering::Relaxed))
    }

    fn try_open_below(&self, limit: u32) -> bool {
        let before = self.open.fetch_add(1, Ordering::Relaxed);
        if before >= limit {
            self.open.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        true
    }

    fn count(&self, list: &Newcomers) {
        let count = u32::try_from(list.waiting.len()).unwrap_or(u32::MAX);
        self.newcomers.store(count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE_MS: u64 = 20;

    /// Opens `count` connections and writes a request on each.
    fn newcomers(limit: &ConnectionLimit, count: u32, now_ms: u64) -> Vec<NewcomerId> {
        let open = |_| {
            assert!(limit.try_open());
            limit.newcomer(now_ms)
        };
        (0..count).map(open).collect()
    }

    #[test]
    fn a_told_limit_holds() {
        let limit = ConnectionLimit::new(Some(2), true);
        assert!(limit.try_open() && limit.try_open() && !limit.try_open());
        assert!(!limit.try_probe(1_000_000), "not even to find out");
        limit.closed(false);
        assert!(limit.try_open());
    }

    #[test]
    fn a_late_newcomer_has_a_connection_given_up_for_it_once() {
        let limit = ConnectionLimit::new(None, true);
        let new = newcomers(&limit, 3, 0);
        limit.answered(new[0], 100, true);
        limit.answered(new[1], 100, true);
        assert!(
            !limit.must_give_up(PATIENCE_MS, PATIENCE_MS, false),
            "not late yet"
        );
        assert!(limit.must_give_up(PATIENCE_MS + 1, PATIENCE_MS, false));
        assert!(!limit.must_give_up(PATIENCE_MS + 2, PATIENCE_MS, false));
        assert!(limit.must_give_up(3 * PATIENCE_MS, PATIENCE_MS, false));
    }

    #[test]
    fn the_limit_is_as_many_as_have_answered() {
        let limit = ConnectionLimit::new(None, true);
        let new = newcomers(&limit, 3, 0);
        limit.answered(new[0], 100, true);
        limit.answered(new[1], 100, true);
        assert!(!limit.is_learned());
        assert!(limit.must_give_up(100, PATIENCE_MS, false));
        limit.closed(true);
        limit.answered(new[2], 100, true);
        assert!(limit.is_learned() && limit.is_reached());
        assert!(!limit.try_open());
    }

    #[test]
    fn a_learned_limit_is_tried_again_ever_more_seldom_until_it_rises() {
        let limit = ConnectionLimit::new(None, true);
        let new = newcomers(&limit, 2, 0);
        limit.answered(new[0], 100, true);
        assert!(limit.must_give_up(100, PATIENCE_MS, false));
        limit.answered(new[1], 100, true);
        assert_eq!(limit.open(), 2);
        let mut now_ms = 100;
        let mut pauses = Vec::new();
        for _ in 0..3 {
            let begin_ms = now_ms;
            while !limit.try_probe(now_ms) {
                now_ms += 1;
            }
            pauses.push(now_ms - begin_ms);
            let probe = limit.newcomer(now_ms);
            assert!(!limit.try_probe(now_ms + 1_000_000), "one at a time");
            limit.gone(probe);
            limit.closed(false);
        }
        assert!(pauses[1] > pauses[0] && pauses[2] > pauses[1], "{pauses:?}");
        while !limit.try_probe(now_ms) {
            now_ms += 1;
        }
        let probe = limit.newcomer(now_ms);
        limit.answered(probe, 100, true);
        assert!(
            limit.try_probe(now_ms),
            "it was right: the next one at once"
        );
    }

    #[test]
    fn a_limit_that_has_risen_until_nothing_waits_is_forgotten() {
        for do_requests_wait in [false, true] {
            let limit = ConnectionLimit::new(None, true);
            let new = newcomers(&limit, 3, 0);
            limit.answered(new[0], 100, false);
            assert!(limit.must_give_up(100, PATIENCE_MS, false), "a slow start");
            assert_eq!(limit.known(), Some(1));
            limit.answered(new[1], 200, false);
            assert_eq!(limit.known(), Some(2), "one newcomer waits");
            limit.answered(new[2], 200, do_requests_wait);
            assert_eq!(limit.known(), do_requests_wait.then_some(3));
        }
    }

    /// A connection of the model below, which serves one request after the other.
    struct Busy {
        newcomer: Option<NewcomerId>,
        since_ms: u64,
        done_ms: u64,
    }

    #[test]
    fn a_limit_that_is_too_low_rises_while_connections_are_closed_for_others() {
        const CLIENTS: u32 = 64;
        let limit = ConnectionLimit::new(None, true);
        limit.learned.store(57, Ordering::Relaxed);
        let mut connections: Vec<Busy> = Vec::new();
        let mut made = 0;
        for now_ms in 0..5000 {
            // The backend has a process for each client, and a request takes 4 to 16 ms.
            let done_ms = |number: u64| now_ms + 4 + (number * 7 + now_ms) % 13;
            connections.retain_mut(|connection| {
                if connection.done_ms > now_ms {
                    return true;
                }
                if let Some(id) = connection.newcomer.take() {
                    limit.answered(id, now_ms, limit.open() < CLIENTS);
                }
                connection.done_ms = done_ms(connection.since_ms);
                // A connection moves to the other worker after 15 to 115 ms.
                let is_old = now_ms - connection.since_ms >= 15 + connection.since_ms * 31 % 100;
                let is_closed = is_old && limit.is_reached() && limit.open() < CLIENTS;
                if is_closed {
                    limit.closed(true);
                }
                !is_closed
            });
            while limit.open() < CLIENTS && limit.try_probe(now_ms) {
                made += 1;
                connections.push(Busy {
                    newcomer: Some(limit.newcomer(now_ms)),
                    since_ms: now_ms,
                    done_ms: done_ms(made),
                });
            }
        }
        assert_eq!(limit.known(), None, "{made} connections were made");
    }

    #[test]
    fn a_limit_that_is_right_is_not_forgotten() {
        const CLIENTS: u32 = 64;
        const PROCESSES: usize = 8;
        let limit = ConnectionLimit::new(None, true);
        let mut connections: Vec<Busy> = Vec::new();
        let mut answers = 0;
        for now_ms in 0..5000 {
            let done_ms = |since_ms: u64| now_ms + 4 + (since_ms * 7 + now_ms) % 13;
            connections.retain_mut(|connection| {
                if connection.done_ms > now_ms {
                    return true;
                }
                answers += 1;
                let waiting = CLIENTS - limit.open();
                if let Some(id) = connection.newcomer.take() {
                    limit.answered(id, now_ms, waiting > 0);
                    connection.since_ms = now_ms;
                }
                connection.done_ms = done_ms(connection.since_ms);
                let is_old = now_ms - connection.since_ms >= limits::TENURE_MS;
                let is_closed = limit.must_give_up(now_ms, PATIENCE_MS, is_old)
                    || (is_old && waiting > 0 && limit.is_learned() && limit.is_reached());
                if is_closed {
                    limit.closed(true);
                }
                !is_closed
            });
            while limit.open() < CLIENTS && limit.try_probe(now_ms) {
                connections.push(Busy {
                    newcomer: Some(limit.newcomer(now_ms)),
                    since_ms: now_ms,
                    done_ms: u64::MAX,
                });
            }
            // The first connections of the kernel's queue have a process each.
            for connection in connections.iter_mut().take(PROCESSES) {
                if connection.done_ms == u64::MAX {
                    connection.done_ms = done_ms(connection.since_ms);
                }
            }
            assert!(now_ms < 1000 || limit.is_learned(), "after {now_ms} ms");
        }
        let known = limit.known().expect("it is learned");
        assert!((8..=10).contains(&known), "{known}");
        assert!(answers > 3500, "the processes have work: {answers}");
    }

    #[test]
    fn without_learning_nothing_is_given_up() {
        let limit = ConnectionLimit::new(None, false);
        newcomers(&limit, 2, 0);
        assert!(!limit.must_give_up(1_000_000, PATIENCE_MS, false));
        assert!(limit.try_open());
    }
}
