//! Which requests have the connections of a backend, so that a request that waits can say who holds it up.
//!
//! Every worker has a part of the board, which only it writes: a request takes a slot when it gets a
//! connection, and writes when it began, its client and the beginning of its path. That is a few plain
//! stores. A request of any worker that has to queue reads all parts. It may read a slot that is just being
//! written; then the path can be a mixture of two, for a log line that matters little.

use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use petrel_engine::exchange::ClientOfKey;
use petrel_engine::ledger::{Nanos, Stage};
use petrel_engine::shared::lock;
use petrel_engine::waits::{HolderText, Time};

use super::backend::SharedBackend;
use super::capacity::Capacity;

/// Slots of one worker for one backend. Requests beyond that are neither counted nor named.
const SLOTS: usize = 32;

/// Words of a path: its first 56 bytes.
const PATH_WORDS: usize = 7;

/// The requests that have connections of one backend, as all workers share it.
#[derive(Default)]
pub(crate) struct HolderBoard {
    parts: Mutex<Vec<Weak<HolderPart>>>,
}

/// The slots of one worker.
struct HolderPart {
    slots: [HolderSlot; SLOTS],
}

#[derive(Default)]
struct HolderSlot {
    /// When a process had the request; 0: no request has the slot, or no process has the request.
    since: AtomicU64,
    /// The client, as [`ConnectionFacts::client_key`](petrel_engine::exchange::ConnectionFacts::client_key).
    client: AtomicU64,
    path: [AtomicU64; PATH_WORDS],
}

/// One worker's own part. Nothing but this worker writes it.
pub(crate) struct OwnHolders {
    part: Arc<HolderPart>,
    /// A bit for each free slot.
    free: AtomicU32,
}

/// A request that has a connection. Dropping it frees the slot.
pub(super) struct HeldConnection {
    own: Rc<OwnHolders>,
    slot: usize,
}

/// The slot of a request that is not shown because no process is known to have it. If the request ends before, the
/// slot may be another's: then [`HiddenHolder`] must have been dropped.
pub(super) struct HiddenHolder {
    own: Rc<OwnHolders>,
    slot: usize,
}

/// A request that has a connection, as it is read from the board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// When it got the connection, on the monotonic clock.
    pub(crate) since: Nanos,
    /// Its client.
    pub(crate) client: u64,
    path: HeldPath,
}

/// The beginning of a path, filled up with zeroes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HeldPath([[u8; 8]; PATH_WORDS]);

/// Which requests had the connections when another one began to wait.
#[derive(Clone, Copy)]
pub(super) struct HolderSurvey {
    /// The most connections that there may be, if they were all open.
    full: Option<u32>,
    /// Connections that processes had accepted.
    accepted: u32,
    /// Requests that had one.
    busy: u32,
    /// The request that had its connection for longest.
    oldest: Option<Held>,
    /// The path that most of them asked for, and how many.
    frequent: HeldPath,
    count: u32,
}

/// Paths that a survey counts. If the requests have more than these, others are not counted.
const SURVEYED_PATHS: usize = 32;

impl HolderBoard {
    /// A part for one more worker.
    pub(crate) fn part(&self) -> Rc<OwnHolders> {
        let slots = std::array::from_fn(|_| HolderSlot::default());
        let part = Arc::new(HolderPart { slots });
        let mut parts = lock(&self.parts);
        parts.retain(|part| part.strong_count() > 0);
        parts.push(Arc::downgrade(&part));
        Rc::new(OwnHolders {
            part,
            free: AtomicU32::new(u32::MAX),
        })
    }

    /// All requests on the board, the oldest first.
    #[cfg(test)]
    pub(crate) fn all(&self) -> Vec<Held> {
        let mut all = Vec::new();
        self.each(|held| all.push(held));
        all.sort_by_key(|held| held.since);
        all
    }

    /// Whether a request has had its connection since before `then`.
    pub(super) fn has_from_before(&self, then: Nanos) -> bool {
        let mut has = false;
        self.each(|held| has |= held.since < then);
        has
    }

    /// Calls `with` for all requests on the board.
    pub(crate) fn each(&self, mut with: impl FnMut(Held)) {
        let parts = lock(&self.parts);
        for part in parts.iter().filter_map(Weak::upgrade) {
            let held = part.slots.iter().filter_map(HolderSlot::read);
            held.for_each(&mut with);
        }
    }

    /// What a request that begins to wait keeps of the board. Under overload every request waits, so this
    /// allocates nothing.
    pub(super) fn survey(&self, capacity: &Capacity) -> HolderSurvey {
        let mut busy = 0;
        let mut oldest: Option<Held> = None;
        let mut paths = [(HeldPath::default(), 0); SURVEYED_PATHS];
        self.each(|held| {
            busy += 1;
            if oldest.is_none_or(|oldest| held.since < oldest.since) {
                oldest = Some(held);
            }
            let mut known = paths.iter_mut();
            if let Some((path, count)) =
                known.find(|(path, count)| *count == 0 || *path == held.path)
            {
                *path = held.path;
                *count += 1;
            }
        });
        let most = paths.iter().max_by_key(|(path, count)| (*count, path.0));
        let (frequent, count) = most.copied().unwrap_or_default();
        let open = capacity.open();
        HolderSurvey {
            full: capacity.told().filter(|_| capacity.is_reached()),
            accepted: open.saturating_sub(capacity.unaccepted()),
            busy,
            oldest,
            frequent,
            count,
        }
    }
}

impl Held {
    /// The beginning of its path.
    pub(crate) fn path(&self) -> &[u8] {
        self.path.bytes()
    }
}

impl HeldPath {
    fn bytes(&self) -> &[u8] {
        let bytes = self.0.as_flattened();
        let end = memchr::memchr(0, bytes);
        &bytes[..end.unwrap_or(bytes.len())]
    }
}

impl HolderSlot {
    fn read(&self) -> Option<Held> {
        let since = self.since.load(Ordering::Acquire);
        let client = self.client.load(Ordering::Relaxed);
        let words = self
            .path
            .each_ref()
            .map(|word| word.load(Ordering::Relaxed));
        if since == 0 || self.since.load(Ordering::Acquire) != since {
            return None;
        }
        let mut path = HeldPath(words.map(u64::to_le_bytes));
        // Words behind the end of the path are those of an earlier request.
        let length = path.bytes().len();
        path.0.as_flattened_mut()[length..].fill(0);
        Some(Held {
            since,
            client,
            path,
        })
    }
}

impl HeldConnection {
    /// Takes a slot of `own`. `None`: there is none left.
    #[inline]
    pub(super) fn new(
        own: &Rc<OwnHolders>,
        now: Nanos,
        client: u64,
        path: &[u8],
    ) -> Option<HeldConnection> {
        // Only this worker changes the word, so no atomic operation is needed.
        let free = own.free.load(Ordering::Relaxed);
        let number = free.trailing_zeros() as usize;
        let slot = own.part.slots.get(number)?;
        own.free.store(free & (free - 1), Ordering::Relaxed);
        slot.client.store(client, Ordering::Relaxed);
        let mut words = path.chunks(8);
        for word in &slot.path {
            let Some(bytes) = words.next() else {
                word.store(0, Ordering::Relaxed);
                break;
            };
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(whole), Ordering::Relaxed);
        }
        slot.since.store(now.max(1), Ordering::Release);
        Some(HeldConnection {
            own: Rc::clone(own),
            slot: number,
        })
    }
}

impl HeldConnection {
    /// Hides the request until a process has it.
    pub(super) fn hide(&self) -> HiddenHolder {
        if let Some(slot) = self.own.part.slots.get(self.slot) {
            slot.since.store(0, Ordering::Release);
        }
        HiddenHolder {
            own: Rc::clone(&self.own),
            slot: self.slot,
        }
    }
}

impl HiddenHolder {
    /// A process has the request since `at`.
    pub(super) fn show(self, at: Nanos) {
        if let Some(slot) = self.own.part.slots.get(self.slot) {
            slot.since.store(at.max(1), Ordering::Release);
        }
    }
}

impl Drop for HeldConnection {
    #[inline]
    fn drop(&mut self) {
        if let Some(slot) = self.own.part.slots.get(self.slot) {
            slot.since.store(0, Ordering::Release);
        }
        let free = self.own.free.load(Ordering::Relaxed);
        self.own
            .free
            .store(free | 1 << self.slot, Ordering::Relaxed);
    }
}

impl HolderSurvey {
    /// The stage of the wait: for a connection that the limit allows, or for a process.
    pub(super) fn stage(&self) -> Stage {
        match self.full {
            Some(_) => Stage::BackendQueue,
            None => Stage::BackendAccept,
        }
    }

    /// Whether more requests had processes than at the time of `other`.
    pub(super) fn is_busier_than(&self, other: &HolderSurvey) -> bool {
        self.busy > other.busy
    }

    /// Whether no process was known to have a request.
    pub(super) fn is_empty(&self) -> bool {
        self.busy == 0
    }

    /// Says which requests the waiting one had to wait for, at the end of that wait.
    #[cold]
    pub(super) fn tell(&self, backend: &SharedBackend, now: Nanos, text: &mut HolderText<'_>) {
        let (label, busy) = (&backend.label, self.busy);
        match self.full {
            Some(most) => write!(text, "pool \"{label}\" full ({most} of {most})"),
            None if busy == 0 => write!(text, "no process of \"{label}\" was known to be free"),
            None => {
                let accepted = self.accepted.max(busy);
                // Requests without a slot are not seen.
                let least = match busy < accepted && busy as usize >= SLOTS {
                    true => "at least ",
                    false => "",
                };
                write!(
                    text,
                    "\"{label}\" has {least}{busy} of {accepted} processes busy"
                );
            }
        }
        if let Some(oldest) = &self.oldest {
            write!(text, ": {}x ", self.count);
            for chunk in self.frequent.bytes().utf8_chunks() {
                write!(text, "{}", chunk.valid().escape_debug());
            }
            let age = Time(now.saturating_sub(oldest.since));
            let client = ClientOfKey(oldest.client);
            write!(text, ", oldest {age}, client {client}");
        }
        if let (None, Some(fpm)) = (self.full, &backend.fpm) {
            fpm.tell_children(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::capacity::Answers;
    use super::*;

    #[test]
    fn a_board_shows_the_requests_of_all_workers_until_they_end() {
        let board = HolderBoard::default();
        let (one, other) = (board.part(), board.part());
        let long = [b'p'; 100];
        let late = HeldConnection::new(&one, 20, 7, b"/report.php").expect("a slot");
        let early = HeldConnection::new(&other, 10, 8, &long).expect("a slot");
        let all = board.all();
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].since, all[0].client), (10, 8));
        assert_eq!(all[0].path(), &long[..PATH_WORDS * 8]);
        assert_eq!(all[1].path(), b"/report.php");
        drop(early);
        // A shorter path takes the same slot.
        let again = HeldConnection::new(&other, 30, 9, b"/a").expect("a slot");
        assert_eq!(board.all()[1].path(), b"/a");
        let survey = board.survey(&Capacity::new(Some(2), Answers::No));
        assert_eq!(survey.oldest, board.all().first().copied());
        assert_eq!(
            (survey.frequent.bytes(), survey.count),
            (&b"/report.php"[..], 1)
        );
        drop((late, again, other));
        assert!(board.all().is_empty());
    }

    #[test]
    fn requests_beyond_the_slots_are_not_named() {
        let board = HolderBoard::default();
        let own = board.part();
        let holders: Vec<_> = (0..SLOTS)
            .map(|_| HeldConnection::new(&own, 1, 1, b"/"))
            .collect();
        assert!(holders.iter().all(Option::is_some));
        assert!(HeldConnection::new(&own, 1, 1, b"/").is_none());
        drop(holders);
        assert_eq!(own.free.load(Ordering::Relaxed), u32::MAX);
    }
}
