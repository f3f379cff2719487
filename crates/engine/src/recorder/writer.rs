//! What one worker records: the last requests, errors, and the slowest requests of each host.
//!
//! Each worker has one region of the shared memory. Errors and slow requests are copied to parts of it that
//! the ring of all requests does not overwrite: 5xx and Petrel's own 4xx to a ring each, so that a flood of
//! 404 leaves the 5xx alone, and slow ones to slots.

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use petrel_proto::recording::record::last_word;
use petrel_proto::recording::region::{
    AT_AREAS, AT_ERRORS_STATE, AT_NOW, AT_RECENT_STATE, AT_REFUSALS_STATE, AT_WORKER, Area, Areas,
    NOW_ID, NOW_STARTED, NOW_TARGET, NOW_WORDS, REGION_WORDS_MIN, SLOT_WORDS,
};
use petrel_proto::recording::ring::STATE_WORDS;
use petrel_proto::recording::{KEPT, RecordFlag};
use petrel_sys::shared_memory::Words;

use super::memory::SharedMemory;
use super::record::{Finished, Window, encode, last_of, put};
use super::ring::Ring;
use crate::ledger::{Nanos, Stage};
use crate::request_id::RequestId;

/// The recorder of one worker.
pub(crate) struct Recorder {
    recent: Ring,
    errors: Ring,
    refusals: Ring,
    now: Words,
    slow: Slow,
    /// Added to a time of the monotonic clock, gives one since 1970.
    to_wall: Cell<u64>,
    /// How many more requests that were fast and went well are recorded in this second.
    fast_left: Cell<u32>,
    /// Nothing but this process has the memory.
    is_private: bool,
}

/// How much is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecorderSize {
    /// `recorder.size`: bytes for each worker; 0: nothing is recorded.
    pub bytes: usize,
    /// `recorder.slowest`: the requests that are kept of each host; 0: none.
    pub slowest: usize,
}

impl RecorderSize {
    /// How many words the region of a worker has.
    fn words(self) -> usize {
        (self.bytes / 8).max(REGION_WORDS_MIN)
    }
}

impl Recorder {
    /// The recorder of worker `worker` of this process. `None`: the configuration wants none.
    pub(crate) fn new(
        memory: &SharedMemory,
        size: RecorderSize,
        worker: usize,
    ) -> Option<Recorder> {
        if size.bytes == 0 {
            return None;
        }
        let count = size.words();
        let shared = memory.ring(count);
        let is_private = shared.is_none();
        let words = shared.unwrap_or_else(|| Words::private(count));
        let worker = u16::try_from(worker).unwrap_or(u16::MAX);
        let areas = Areas::of(count, size.slowest);
        write_header(&areas, &words, worker);
        let ring = |area: Area, state: usize| {
            let state = part(
                &words,
                Area {
                    at: state,
                    count: STATE_WORDS,
                },
            );
            Ring::new(state, part(&words, area), worker)
        };
        Some(Recorder {
            recent: ring(areas.recent, AT_RECENT_STATE),
            errors: ring(areas.errors, AT_ERRORS_STATE),
            refusals: ring(areas.refusals, AT_REFUSALS_STATE),
            now: part(
                &words,
                Area {
                    at: AT_NOW,
                    count: NOW_WORDS,
                },
            ),
            slow: Slow::new(part(&words, areas.slow), areas.slowest),
            to_wall: Cell::new(0),
            fast_left: Cell::new(FAST_EACH_SECOND),
            is_private,
        })
    }

    /// Whether other programs cannot read what is recorded, and it ends with the process.
    pub(crate) fn is_private(&self) -> bool {
        self.is_private
    }

    /// Called once a second: `to_wall` is the difference between the wall clock and the monotonic one.
    pub(crate) fn tick(&self, to_wall: u64, now: Nanos) {
        self.to_wall.set(to_wall);
        self.fast_left.set(FAST_EACH_SECOND);
        self.slow.forget_old(now);
    }

    /// The worker works for this request now, until it [has ended](Recorder::ended). If the worker crashes, the
    /// report names this request.
    #[inline]
    pub(crate) fn works_for(&self, id: RequestId, started: Nanos, target: &[u8]) {
        let Some(now) = self.now.first_chunk::<NOW_WORDS>() else {
            return;
        };
        now[NOW_ID].store(id.to_bits(), Relaxed);
        now[NOW_STARTED].store(started.wrapping_add(self.to_wall.get()), Relaxed);
        let [first, second] = first_words(target);
        now[NOW_TARGET].store(first, Relaxed);
        now[NOW_TARGET + 1].store(second, Relaxed);
    }

    /// The request is over. If the worker worked for it last, it works for none now.
    #[inline]
    pub(crate) fn ended(&self, id: RequestId) {
        if let Some(now) = self.now.get(NOW_ID)
            && now.load(Relaxed) == id.to_bits()
        {
            now.store(0, Relaxed);
        }
    }

    /// Whether a request that took `total` is left out. Under load nearly all requests are fast and go well.
    /// The others must not be pushed out by them, and they cost the worker most.
    #[inline]
    pub(crate) fn leaves_out(&self, total: Nanos, status: u16) -> bool {
        if total >= FAST || status >= 400 {
            return false;
        }
        let left = self.fast_left.get();
        self.fast_left.set(left.saturating_sub(1));
        left == 0
    }

    /// Records a request that is over.
    #[inline]
    pub(crate) fn add<'a>(
        &self,
        finished: &Finished<'_>,
        waits: impl ExactSizeIterator<Item = (Stage, Nanos, &'a str)>,
    ) {
        let to_wall = self.to_wall.get();
        let (record, count) = self
            .recent
            .add(|window| encode(window, finished, waits, to_wall));
        let is_slow = finished.flags & RecordFlag::Tunnel as u8 == 0
            && finished.ledger.total() > self.slow.threshold(finished.host);
        if is_slow || finished.status >= 400 {
            self.add_to_others(finished, &record[..count], is_slow);
        }
    }

    #[cold]
    #[inline(never)]
    fn add_to_others(&self, finished: &Finished<'_>, record: &[AtomicU64], is_slow: bool) {
        let is_own = finished.flags & RecordFlag::Own as u8 != 0;
        let ring = match finished.status {
            500.. => Some(&self.errors),
            400..500 if is_own => Some(&self.refusals),
            _ => None,
        };
        if let Some(ring) = ring {
            ring.add(|window| copy(record, window));
        }
        if is_slow {
            self.slow.add(finished, |window| copy(record, window));
        }
    }
}

/// Writes the words of a record into another window. Returns how many there are.
fn copy(record: &[AtomicU64], window: &Window) -> usize {
    for (from, to) in record.iter().zip(window) {
        to.store(from.load(Relaxed), Relaxed);
    }
    record.len()
}

/// The first 16 bytes of `target`, filled up with zeroes.
#[inline]
fn first_words(target: &[u8]) -> [u64; 2] {
    let Some((first, rest)) = target.split_first_chunk() else {
        return [last_of(target, target), 0];
    };
    let second = match rest.first_chunk() {
        Some(second) => u64::from_le_bytes(*second),
        None if rest.is_empty() => 0,
        None => last_of(target, rest),
    };
    [u64::from_le_bytes(*first), second]
}

/// The slowest requests of each host. Hosts are told apart by a small hash: a few of them may share their
/// slots.
struct Slow {
    slots: Words,
    /// How many slots each group has. A group is for the hosts of one hash.
    slowest: usize,
    /// For each hash: the time that a request must exceed to get a slot.
    thresholds: [Cell<Nanos>; HASHES],
    groups: RefCell<Groups>,
}

/// Which slots belong to which hash, and what is in them.
struct Groups {
    of_hash: [Option<u16>; HASHES],
    assigned: usize,
    /// For each slot the time that its request took, and when it ended by the monotonic clock; 0: it is
    /// empty.
    taken: Vec<(Nanos, Nanos)>,
    looked: Nanos,
}

impl Slow {
    fn new(slots: Words, slowest: usize) -> Slow {
        // What another process has left there is shown until the slots are used again.
        let count = slots.len() / SLOT_WORDS;
        let first = match slowest > 0 && count >= slowest {
            true => 0,
            false => Nanos::MAX,
        };
        Slow {
            slots,
            slowest,
            thresholds: std::array::from_fn(|_| Cell::new(first)),
            groups: RefCell::new(Groups {
                of_hash: [None; HASHES],
                assigned: 0,
                taken: vec![(0, 0); count],
                looked: 0,
            }),
        }
    }

    #[inline]
    fn threshold(&self, host: &[u8]) -> Nanos {
        self.thresholds[hash(host)].get()
    }

    fn add(&self, finished: &Finished<'_>, write: impl FnOnce(&Window) -> usize) {
        let hash = hash(finished.host);
        let mut groups = self.groups.borrow_mut();
        let Groups {
            of_hash,
            assigned,
            taken,
            ..
        } = &mut *groups;
        let group = of_hash[hash].get_or_insert_with(|| {
            *assigned += 1;
            // When all groups are in use, further hosts share them.
            ((*assigned - 1) % (taken.len() / self.slowest).max(1)) as u16
        });
        let first = usize::from(*group) * self.slowest;
        let range = first..first + self.slowest;
        let Some(of_host) = taken.get_mut(range) else {
            return;
        };
        let total = finished.ledger.total();
        let Some(least) = (0..of_host.len()).min_by_key(|slot| of_host[*slot].0) else {
            return;
        };
        if total > of_host[least].0 {
            of_host[least] = (total, finished.ledger.last());
            let at = (first + least) * SLOT_WORDS;
            if let Some(slot) = self.slots.get(at..).and_then(<[_]>::first_chunk) {
                write_slot(slot, write);
            }
        }
        let threshold = of_host.iter().map(|(nanos, _)| *nanos).min();
        self.thresholds[hash].set(threshold.unwrap_or(Nanos::MAX));
    }

    /// Makes room for new ones where a request ended more than an hour ago.
    fn forget_old(&self, now: Nanos) {
        let mut groups = self.groups.borrow_mut();
        if self.slowest == 0 || now < groups.looked + FORGET_EVERY {
            return;
        }
        groups.looked = now;
        let Groups { of_hash, taken, .. } = &mut *groups;
        for slot in taken.iter_mut().filter(|(nanos, _)| *nanos > 0) {
            if slot.1 + KEPT < now {
                // It stays in memory until a slower request than the others comes.
                *slot = (0, 0);
            }
        }
        for (hash, group) in of_hash.iter().enumerate() {
            let Some(group) = group else { continue };
            let first = usize::from(*group) * self.slowest;
            let of_host = taken.get(first..first + self.slowest).unwrap_or_default();
            if of_host.iter().any(|(nanos, _)| *nanos == 0) {
                self.thresholds[hash].set(0);
            }
        }
    }
}

/// Writes a record into a slot. Its first word is odd meanwhile, and changes.
fn write_slot(slot: &[AtomicU64; SLOT_WORDS], write: impl FnOnce(&Window) -> usize) {
    let Some((state, window)) = slot.split_first() else {
        return;
    };
    let Some(window) = window.first_chunk() else {
        return;
    };
    let before = state.load(Relaxed);
    state.store(before | 1, Relaxed);
    fence(Release);
    let count = write(window);
    put(window, count - 1, last_word(0, count, 0));
    // The count, and a number that is another one each time.
    let turn = (before >> 17).wrapping_add(1);
    state.store(turn << 17 | (count as u64) << 1, Release);
}

#[inline]
fn hash(host: &[u8]) -> usize {
    // The last letters of hosts are mostly the same, and so are the first ones.
    let ends = match (host.first_chunk::<8>(), host.last_chunk::<8>()) {
        (Some(first), Some(last)) => {
            u64::from_le_bytes(*first) ^ u64::from_le_bytes(*last).rotate_left(29)
        }
        _ => host
            .iter()
            .fold(0, |hash, byte| hash << 8 | u64::from(*byte)),
    };
    (ends.wrapping_add(host.len() as u64)).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize
        >> (usize::BITS - HASH_BITS)
}

/// Tells readers where the parts are. Where the division is another one, what was there is forgotten.
fn write_header(areas: &Areas, words: &Words, worker: u16) {
    let numbers = areas.numbers();
    let is_same = |(word, number): (&AtomicU64, &u64)| word.load(Relaxed) == *number;
    let is_used = words[AT_AREAS].load(Relaxed) != 0;
    if is_used && !words[AT_AREAS..].iter().zip(&numbers).all(is_same) {
        words.iter().for_each(|word| word.store(0, Relaxed));
    }
    for (word, number) in words[AT_AREAS..].iter().zip(numbers) {
        word.store(number, Relaxed);
    }
    words[AT_WORKER].store(worker.into(), Relaxed);
    for word in &words[AT_NOW..AT_NOW + NOW_WORDS] {
        word.store(0, Relaxed);
    }
}

fn part(words: &Words, area: Area) -> Words {
    let part = words.part(area.at..area.at + area.count);
    part.expect("a region has room for its parts: REGION_WORDS_MIN")
}

const HASH_BITS: u32 = 8;
const HASHES: usize = 1 << HASH_BITS;
/// A request that took less, and whose status is below 400, is fast and went well.
const FAST: Nanos = 1_000_000;
/// How many of those a worker records in a second.
const FAST_EACH_SECOND: u32 = 250;
const FORGET_EVERY: Nanos = 60_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_fast_requests_only_some_in_each_second_are_recorded() {
        let size = RecorderSize {
            bytes: 1,
            slowest: 8,
        };
        let recorder = Recorder::new(&SharedMemory::private(), size, 0).expect("it is on");
        for _ in 0..3 {
            let left_out = (0..1000).filter(|_| recorder.leaves_out(FAST - 1, 200));
            assert_eq!(left_out.count(), 1000 - FAST_EACH_SECOND as usize);
            assert!(!recorder.leaves_out(FAST, 200) && !recorder.leaves_out(1, 404));
            recorder.tick(0, 0);
        }
    }
}
