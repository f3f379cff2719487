//! How many connections one backend may have, and which of its processes are known to be free.
//!
//! The only limit is a configured one (`max-connections`, `max-pool-size`, or the number of processes that
//! Petrel spawns). How many processes a backend has is not guessed: a connection counts when one of them has
//! accepted it, which the process says itself ([`asking`](super::asking)) or the kernel
//! ([`newcomers`](super::newcomers)). Requests that no process takes wait in this server. The most connections
//! that processes had within a second only tell when a new connection needs no question: a process is free.
//!
//! All workers share these counts. Times are milliseconds of the monotonic clock, passed in by the caller.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::backend::SharedBackend;
use super::limits;
use super::newcomers::OpeningConnection;

/// What all workers know about the room that one backend has.
#[derive(Debug)]
pub struct Capacity {
    /// The configured limit; [`NO_LIMIT`] without one.
    told: u32,
    /// Connections that are open or being opened.
    open: AtomicU32,
    /// Connections that no process is known to have accepted.
    unaccepted: AtomicU32,
    /// Workers whose requests have waited for a process for longer than [`limits::STUCK_MS`].
    stuck: AtomicU32,
    /// Connections that processes are known to have accepted.
    taken: AtomicU32,
    /// The most of them at a time lately, and since when there were not more.
    peak: AtomicU32,
    peak_at_ms: AtomicU64,
    /// Whether the application answers GET_VALUES as the first record of a connection.
    pub(super) first: Answering,
    /// Whether it answers GET_VALUES behind the end of a reply, when its process reads again.
    pub(super) behind: Answering,
    /// Replies behind which the process is asked each time, because one has worked on behind a reply.
    asks_behind: AtomicU32,
    /// The backend keeps a connection open when it has answered GET_VALUES on it as the first record.
    keeps_asked: AtomicBool,
    /// See [`Capacity::has_closed_behind_reply`].
    closed_behind: AtomicU8,
    /// Since when no connection can be made; 0: one can be, as far as is known.
    gone_since_ms: AtomicU64,
    /// When a connection was last refused because no process listens; 0: never.
    last_gone_ms: AtomicU64,
    /// It has replied to a request since the start.
    has_served: AtomicBool,
    /// The kernel was found not to know about its connections.
    is_unseen: AtomicBool,
}

/// What is known about answers to GET_VALUES at one place.
#[derive(Debug)]
pub(super) struct Answering {
    /// An [`Answers`].
    answers: AtomicU8,
    /// When the application was found not to answer, where that cannot be told from being busy; 0: it can.
    unsure_since_ms: AtomicU64,
}

/// Whether a FastCGI application answers GET_VALUES.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Answers {
    /// It was not asked yet.
    Unknown,
    /// It does, so its answer says that a process has the connection.
    Yes,
    /// It does not, or only together with its next reply, or it speaks another protocol.
    No,
}

/// The right to one connection. Dropping it gives the right back.
pub(super) struct Permit {
    shared: Arc<SharedBackend>,
    /// Set while a connection for a request is being made with it.
    opening: Option<OpeningConnection>,
}

impl Permit {
    /// A permit, if there are fewer connections than are allowed.
    pub(super) fn take(shared: &Arc<SharedBackend>) -> Option<Permit> {
        shared.capacity.try_open().then(|| Permit {
            shared: Arc::clone(shared),
            opening: None,
        })
    }

    /// A connection is being made with it.
    pub(super) fn opens(&mut self, opening: OpeningConnection) {
        self.opening = Some(opening);
    }

    /// The connection is made.
    pub(super) fn has_opened(&mut self) {
        self.opening = None;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.give_permit();
    }
}

const NO_LIMIT: u32 = u32::MAX;

impl Answering {
    fn new(answers: Answers) -> Answering {
        Answering {
            answers: AtomicU8::new(answers as u8),
            unsure_since_ms: AtomicU64::new(0),
        }
    }

    /// What is known at this time.
    pub(super) fn get(&self, now_ms: u64) -> Answers {
        let unsure_since_ms = self.unsure_since_ms.load(Ordering::Relaxed);
        match self.answers.load(Ordering::Relaxed) {
            known if known == Answers::Yes as u8 => Answers::Yes,
            known if known == Answers::Unknown as u8 => Answers::Unknown,
            // It may only have been busy.
            _ if unsure_since_ms > 0 && now_ms >= unsure_since_ms + limits::ASK_AGAIN_MS => {
                Answers::Unknown
            }
            _ => Answers::No,
        }
    }

    /// The application has answered.
    pub(super) fn yes(&self) {
        self.answers.store(Answers::Yes as u8, Ordering::Relaxed);
    }

    /// Another program may be there from now on, which need not answer as the one before did.
    fn forget(&self) {
        let order = Ordering::Relaxed;
        let (yes, unknown) = (Answers::Yes as u8, Answers::Unknown as u8);
        let _ = self.answers.compare_exchange(yes, unknown, order, order);
    }

    /// The application does not answer. `is_sure`: a process has read the question.
    pub(super) fn no(&self, is_sure: bool, now_ms: u64) {
        let unsure_since_ms = if is_sure { 0 } else { now_ms.max(1) };
        self.unsure_since_ms
            .store(unsure_since_ms, Ordering::Relaxed);
        self.answers.store(Answers::No as u8, Ordering::Relaxed);
    }
}

impl Capacity {
    /// `told` is the configured limit, if there is one. `answers`: what is known from the protocol.
    pub(crate) fn new(told: Option<u32>, answers: Answers) -> Capacity {
        Capacity {
            told: told.unwrap_or(NO_LIMIT).max(1),
            open: AtomicU32::new(0),
            unaccepted: AtomicU32::new(0),
            stuck: AtomicU32::new(0),
            taken: AtomicU32::new(0),
            peak: AtomicU32::new(0),
            peak_at_ms: AtomicU64::new(0),
            first: Answering::new(answers),
            behind: Answering::new(answers),
            asks_behind: AtomicU32::new(0),
            keeps_asked: AtomicBool::new(false),
            closed_behind: AtomicU8::new(0),
            gone_since_ms: AtomicU64::new(0),
            last_gone_ms: AtomicU64::new(0),
            has_served: AtomicBool::new(false),
            is_unseen: AtomicBool::new(false),
        }
    }

    /// The limit that was configured.
    pub(crate) fn told(&self) -> Option<u32> {
        Some(self.told).filter(|told| *told != NO_LIMIT)
    }

    /// Connections that are open or being opened.
    pub fn open(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    /// Whether no further connection may be opened.
    pub(crate) fn is_reached(&self) -> bool {
        self.open() >= self.told
    }

    fn try_open(&self) -> bool {
        let before = self.open.fetch_add(1, Ordering::Relaxed);
        if before >= self.told {
            self.open.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// A connection was closed or could not be made.
    pub(super) fn closed(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Connections that no process is known to have accepted.
    pub(crate) fn unaccepted(&self) -> u32 {
        self.unaccepted.load(Ordering::Relaxed)
    }

    /// One connection more waits for a process to accept it.
    pub(super) fn begins_to_wait(&self) {
        self.unaccepted.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection waits no more: a process has accepted it, or it was closed.
    pub(super) fn waits_no_more(&self) {
        self.unaccepted.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a process has worked on behind one of the last replies.
    pub(super) fn works_on(&self) -> bool {
        self.asks_behind.load(Ordering::Relaxed) > 0
    }

    /// A process was asked behind a reply, and has worked on or not.
    pub(super) fn has_worked_on(&self, has: bool) {
        let left = match has {
            true => limits::ASK_ONE_OF,
            // A reply that another worker does not count makes one question more.
            false => self.asks_behind.load(Ordering::Relaxed).saturating_sub(1),
        };
        self.asks_behind.store(left, Ordering::Relaxed);
    }

    /// A process has accepted one connection more.
    pub(super) fn is_taken(&self, now_ms: u64) {
        let taken = self.taken.fetch_add(1, Ordering::Relaxed) + 1;
        if taken >= self.recent_peak(now_ms) {
            self.peak.store(taken, Ordering::Relaxed);
            self.peak_at_ms.store(now_ms, Ordering::Relaxed);
        }
    }

    /// A connection was closed that a process had.
    pub(super) fn is_given_up(&self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a process is known to be free: a moment ago more of them had connections. Then a new connection is
    /// accepted at once, unless another front end was faster. `opening`: connections that are being made.
    pub(super) fn has_free(&self, now_ms: u64, opening: u32) -> bool {
        let used = self.taken.load(Ordering::Relaxed) + self.unaccepted() + opening;
        used < self.recent_peak(now_ms)
    }

    /// A connection was closed so that its process can turn to one of another front end.
    pub(super) fn is_given_to_others(&self) {
        self.peak_at_ms.store(0, Ordering::Relaxed);
        self.peak.store(0, Ordering::Relaxed);
    }

    fn recent_peak(&self, now_ms: u64) -> u32 {
        let at_ms = self.peak_at_ms.load(Ordering::Relaxed);
        match now_ms.saturating_sub(at_ms) < limits::PEAK_MS {
            true => self.peak.load(Ordering::Relaxed),
            false => 0,
        }
    }

    /// Whether requests of any worker have waited for a process for long.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed) > 0
    }

    /// Whether requests of another worker have; `own`: those of the asking worker have.
    pub(crate) fn others_are_stuck(&self, own: bool) -> bool {
        self.stuck.load(Ordering::Relaxed) > u32::from(own)
    }

    /// The requests of one worker begin to have waited for long, or do so no more.
    pub(super) fn set_stuck(&self, is_stuck: bool) {
        match is_stuck {
            true => self.stuck.fetch_add(1, Ordering::Relaxed),
            false => self.stuck.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// What is known about answers as the first record or `is_behind` a reply.
    pub(super) fn answering(&self, is_behind: bool) -> &Answering {
        match is_behind {
            true => &self.behind,
            false => &self.first,
        }
    }

    /// Whether a connection can be used that GET_VALUES was the first record of.
    pub(crate) fn keeps_asked(&self) -> bool {
        self.keeps_asked.load(Ordering::Relaxed)
    }

    /// Whether the application closes its connections behind their replies, although it is asked to keep them.
    pub(super) fn closes(&self) -> bool {
        self.closed_behind.load(Ordering::Relaxed) >= limits::CLOSES_BEHIND
    }

    /// A connection was closed behind its reply, before an answer to the question there. If no answer ever came
    /// there, the application keeps no connections; one of php-fpm's processes may have come to its
    /// `pm.max_requests`, so that is not believed of the first one. Such an application is not asked any more: a
    /// connection that is asked and then not needed ends Ruby's library.
    pub(super) fn has_closed_behind_reply(&self, now_ms: u64) {
        if self.behind.get(now_ms) == Answers::Unknown && !self.closes() {
            self.closed_behind.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A reply has come on such a connection, or it was closed instead, or the backend was started anew.
    pub(super) fn set_keeps_asked(&self, keeps: bool) {
        if self.keeps_asked() != keeps {
            self.keeps_asked.store(keeps, Ordering::Relaxed);
        }
    }

    /// The backend has replied to a request.
    pub(crate) fn served(&self) {
        if !self.has_served.load(Ordering::Relaxed) {
            self.has_served.store(true, Ordering::Relaxed);
        }
    }

    /// The kernel does not know about connections of this backend. True if that was known before.
    pub(super) fn is_unseen(&self) -> bool {
        self.is_unseen.swap(true, Ordering::Relaxed)
    }

    /// A connection was made.
    pub(super) fn is_there(&self) {
        if self.gone_since_ms.load(Ordering::Relaxed) != 0 {
            self.gone_since_ms.store(0, Ordering::Relaxed);
        }
    }

    /// When a connection was last refused, in milliseconds; 0: never.
    pub(super) fn last_gone_ms(&self) -> u64 {
        self.last_gone_ms.load(Ordering::Relaxed)
    }

    /// No process listens. The one that comes next may be another program, or another version of it.
    pub(super) fn is_gone(&self, now_ms: u64) {
        let order = Ordering::Relaxed;
        self.last_gone_ms.store(now_ms.max(1), order);
        let _ = self
            .gone_since_ms
            .compare_exchange(0, now_ms.max(1), order, order);
        self.set_keeps_asked(false);
        self.closed_behind.store(0, order);
        for answering in [&self.first, &self.behind] {
            answering.forget();
        }
    }

    /// Whether the backend is probably being restarted: it has served requests, and no process has listened
    /// for less than `patience_ms`.
    pub(crate) fn is_restarting(&self, now_ms: u64, patience_ms: u64) -> bool {
        let since_ms = self.gone_since_ms.load(Ordering::Relaxed);
        since_ms > 0
            && self.has_served.load(Ordering::Relaxed)
            && now_ms.saturating_sub(since_ms) < patience_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_told_limit_holds() {
        let capacity = Capacity::new(Some(2), Answers::No);
        assert!(capacity.try_open() && capacity.try_open() && !capacity.try_open());
        assert!(capacity.is_reached());
        capacity.closed();
        assert!(capacity.try_open());
        assert_eq!(Capacity::new(Some(0), Answers::No).told(), Some(1));
        assert_eq!(Capacity::new(None, Answers::No).told(), None);
    }

    #[test]
    fn a_process_is_known_to_be_free_when_it_had_a_connection_a_moment_ago() {
        let capacity = Capacity::new(None, Answers::Yes);
        assert!(!capacity.has_free(5, 0));
        capacity.is_taken(5);
        capacity.is_taken(6);
        assert!(!capacity.has_free(6, 0));
        capacity.is_given_up();
        assert!(capacity.has_free(6 + limits::PEAK_MS - 1, 0));
        assert!(!capacity.has_free(7, 1), "one is being made");
        assert!(!capacity.has_free(6 + limits::PEAK_MS, 0), "too long ago");
        capacity.begins_to_wait();
        assert!(!capacity.has_free(7, 0), "the one that waits gets it");
        capacity.waits_no_more();
        assert!(capacity.has_free(7, 0));
        capacity.is_given_to_others();
        assert!(!capacity.has_free(7, 0));
    }

    #[test]
    fn one_process_that_closes_behind_its_reply_says_nothing_of_the_others() {
        let capacity = Capacity::new(None, Answers::Unknown);
        capacity.has_closed_behind_reply(1);
        assert!(!capacity.closes());
        capacity.has_closed_behind_reply(1);
        assert!(capacity.closes());
        let capacity = Capacity::new(None, Answers::Unknown);
        capacity.behind.yes();
        capacity.has_closed_behind_reply(1);
        capacity.has_closed_behind_reply(1);
        assert!(!capacity.closes(), "it was seen to keep some");
    }

    #[test]
    fn an_application_that_may_have_been_busy_is_asked_again() {
        let answering = Answering::new(Answers::Unknown);
        answering.no(false, 10);
        assert_eq!(answering.get(10), Answers::No);
        let later_ms = 10 + limits::ASK_AGAIN_MS;
        assert_eq!(answering.get(later_ms), Answers::Unknown);
        answering.no(true, later_ms);
        assert_eq!(answering.get(2 * later_ms), Answers::No);
        answering.yes();
        assert_eq!(answering.get(later_ms), Answers::Yes);
    }

    #[test]
    fn only_a_backend_that_has_served_is_taken_for_restarting() {
        let capacity = Capacity::new(None, Answers::Yes);
        capacity.is_gone(100);
        assert!(!capacity.is_restarting(100, 50));
        capacity.served();
        assert!(capacity.is_restarting(149, 50));
        capacity.is_gone(149);
        assert!(
            !capacity.is_restarting(150, 50),
            "it counts from the first failure"
        );
        capacity.is_there();
        capacity.is_gone(1000);
        assert!(capacity.is_restarting(1000, 50));
    }
}
