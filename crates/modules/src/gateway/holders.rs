//! Which requests have the connections of a backend, so that a request that waits can say who holds it up.
//!
//! Every worker has a part of the board, which only it writes: a request takes a slot when it gets a
//! connection, and writes when it began, its client and the beginning of its path. That is a few plain
//! stores. A request of any worker that has to queue reads all parts. It may read a slot that is just being
//! written; then the path can be a mixture of two, for a log line that matters little.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use petrel_engine::Exchange;
use petrel_engine::exchange::client_of_key;
use petrel_engine::ledger::Nanos;
use petrel_engine::shared::lock;
use petrel_engine::waits::Time;

use super::backend::SharedBackend;

/// Slots of one worker for one backend. Requests beyond that are counted, and not named.
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
    /// When the request got its connection; 0: no request has the slot.
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

/// A request that has a connection, as it is read from the board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// When it got the connection, on the monotonic clock.
    pub(crate) since: Nanos,
    /// Its client.
    pub(crate) client: u64,
    /// The beginning of its path.
    pub(crate) path: Vec<u8>,
}

/// Which requests had the connections when another one began to wait.
pub(super) struct HolderSurvey {
    /// Connections that were open or being opened.
    open: u32,
    /// The request that had its connection for longest.
    oldest: Option<Held>,
    /// The path that most of them asked for, and how many.
    frequent: Vec<u8>,
    count: usize,
}

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
    pub(crate) fn all(&self) -> Vec<Held> {
        let parts = lock(&self.parts);
        let mut all = Vec::new();
        for part in parts.iter().filter_map(Weak::upgrade) {
            all.extend(part.slots.iter().filter_map(HolderSlot::read));
        }
        all.sort_by_key(|held| held.since);
        all
    }

    /// What a request that begins to wait keeps of the board. `open` connections are open.
    pub(super) fn survey(&self, open: u32) -> HolderSurvey {
        let all = self.all();
        let mut paths: HashMap<&[u8], usize> = HashMap::new();
        for held in &all {
            *paths.entry(&held.path).or_default() += 1;
        }
        let most = paths.iter().max_by_key(|(path, count)| (**count, **path));
        let (frequent, count) = match most {
            Some((path, count)) => (path.to_vec(), *count),
            None => (Vec::new(), 0),
        };
        HolderSurvey {
            open,
            oldest: all.into_iter().next(),
            frequent,
            count,
        }
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
        let mut path: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        path.truncate(
            path.iter()
                .position(|byte| *byte == 0)
                .unwrap_or(path.len()),
        );
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
    /// Which requests the waiting one had to wait for, in words.
    #[cold]
    pub(super) fn tell(&self, backend: &SharedBackend, exchange: &Exchange) -> String {
        let now = exchange.worker.clock().latest();
        let label = &backend.label;
        let mut text = match backend.limit.known() {
            Some(most) => format!("pool \"{label}\" full ({} of {most})", self.open),
            None => format!("pool \"{label}\" full ({})", self.open),
        };
        let Some(oldest) = &self.oldest else {
            return text;
        };
        let path = String::from_utf8_lossy(&self.frequent);
        text += &format!(": {}x {}", self.count, path.escape_debug());
        let age = Time(now.saturating_sub(oldest.since));
        text += &format!(", oldest {age}, client {}", client_of_key(oldest.client));
        text
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(all[0].path, &long[..PATH_WORDS * 8]);
        assert_eq!(all[1].path, b"/report.php");
        drop(early);
        // A shorter path takes the same slot.
        let again = HeldConnection::new(&other, 30, 9, b"/a").expect("a slot");
        assert_eq!(board.all()[1].path, b"/a");
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
