//! The keys of one rule with their buckets, for all workers, in memory whose size is fixed when the table is
//! made.
//!
//! The table stores the hash of a key, so the key's length does not matter. The hash selects one of
//! [`SHARDS`] shards, each with a lock of its own, and in the shard a set of [`WAYS`] slots. A new key whose
//! set has no free slot replaces the key whose bucket is full already, or will be full first. So the table
//! first forgets a key that has been idle, or has used little of its burst. It never forgets a key with
//! requests under way.
//!
//! The kernel hands out the memory as zeroed pages on first use: a table with few keys takes little.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use petrel_engine::ledger::Nanos;

use super::rate::Rate;

/// The table of one rule; see the module's documentation.
pub(super) struct KeyTable {
    shards: Box<[Shard; SHARDS]>,
    sets_per_shard: u64,
    /// Keys that were forgotten before their bucket was full again.
    forgotten: AtomicU64,
    /// Requests that were not counted because all keys of their set had requests under way.
    uncounted: AtomicU64,
}

/// A part of the table with its lock. No two locks share a cache line.
#[repr(align(64))]
struct Shard(Mutex<Vec<SlotSet>>);

/// The slots that one hash may be in.
type SlotSet = [KeySlot; WAYS];

/// The hash of the key, or 0 in a free slot; when its bucket is full again; how many of its requests are
/// under way. It is an array because `vec!` takes zeroed pages from the kernel for arrays of zeros, and would
/// write every byte of a struct.
type KeySlot = [u64; 3];

const KEY: usize = 0;
const FULL_AT: usize = 1;
const UNDER_WAY: usize = 2;

/// What a rule allows a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Allowance {
    pub(super) rate: Option<Rate>,
    /// Requests that may be under way at the same time.
    pub(super) concurrent: Option<u32>,
}

/// What a rule says to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitVerdict {
    /// It may go on. If the rule limits requests under way, the caller calls [`KeyTable::end`] when the
    /// request is over.
    Admitted,
    /// It may go on, and the table does not count it: there was no slot.
    Uncounted,
    /// It came this much too soon.
    TooFast(Nanos),
    /// Too many requests of the key are under way.
    TooMany,
}

impl KeyTable {
    /// A table for at least `entries` keys. A table for none takes no memory, and is not asked.
    pub(super) fn new(entries: usize) -> KeyTable {
        let sets = entries.div_ceil(SHARDS * WAYS);
        let shard = |_| Shard(Mutex::new(vec![[[0; 3]; WAYS]; sets]));
        KeyTable {
            shards: Box::new(std::array::from_fn(shard)),
            sets_per_shard: sets as u64,
            forgotten: AtomicU64::new(0),
            uncounted: AtomicU64::new(0),
        }
    }

    /// [`KeyTable::admit`] where there is a rate and nothing else. It is inlined because it runs for each
    /// request: a call would take a third more instructions.
    #[inline(always)]
    pub(super) fn take_token(&self, hash: u64, now: Nanos, rate: &Rate) -> LimitVerdict {
        let mut shard = self.shard(hash).lock();
        let Some(slot) = self.slot(&mut shard, hash, now) else {
            self.uncounted.fetch_add(1, Relaxed);
            return LimitVerdict::Uncounted;
        };
        match rate.take(slot[FULL_AT], now) {
            Ok(full_at) => slot[FULL_AT] = full_at,
            Err(wait) => return LimitVerdict::TooFast(wait),
        }
        LimitVerdict::Admitted
    }

    /// Counts a request of the key with this hash.
    pub(super) fn admit(&self, hash: u64, now: Nanos, allowance: &Allowance) -> LimitVerdict {
        let mut shard = self.shard(hash).lock();
        let Some(slot) = self.slot(&mut shard, hash, now) else {
            self.uncounted.fetch_add(1, Relaxed);
            return LimitVerdict::Uncounted;
        };
        let concurrent = allowance.concurrent.map(u64::from);
        if concurrent.is_some_and(|most| slot[UNDER_WAY] >= most) {
            return LimitVerdict::TooMany;
        }
        slot[FULL_AT] = match &allowance.rate {
            Some(rate) => match rate.take(slot[FULL_AT], now) {
                Ok(full_at) => full_at,
                Err(wait) => return LimitVerdict::TooFast(wait),
            },
            // Without a rate this is when the key was last used: the key that was idle for longest is
            // replaced.
            None => slot[FULL_AT].max(now),
        };
        if concurrent.is_some() {
            slot[UNDER_WAY] += 1;
        }
        LimitVerdict::Admitted
    }

    /// Returns the token of a request that was admitted and is refused for another reason.
    pub(super) fn give_back(&self, hash: u64, rate: &Rate) {
        let mut shard = self.shard(hash).lock();
        if let Some(slot) = self.set(&mut shard, hash).iter_mut().find(is(hash)) {
            slot[FULL_AT] = rate.give_back(slot[FULL_AT]);
        }
    }

    /// Ends a request that was counted as under way.
    pub(super) fn end(&self, hash: u64) {
        let mut shard = self.shard(hash).lock();
        if let Some(slot) = self.set(&mut shard, hash).iter_mut().find(is(hash)) {
            slot[UNDER_WAY] = slot[UNDER_WAY].saturating_sub(1);
        }
    }

    /// How many keys were forgotten before their bucket was full again, and how many requests were not
    /// counted.
    pub(super) fn losses(&self) -> (u64, u64) {
        (self.forgotten.load(Relaxed), self.uncounted.load(Relaxed))
    }

    #[inline]
    fn shard(&self, hash: u64) -> &Mutex<Vec<SlotSet>> {
        // By the lowest bits of the hash: `set` uses the highest.
        &self.shards[hash as usize % SHARDS].0
    }

    #[inline]
    fn set<'s>(&self, sets: &'s mut [SlotSet], hash: u64) -> &'s mut SlotSet {
        let set = (u128::from(hash) * u128::from(self.sets_per_shard)) >> 64;
        &mut sets[set as usize]
    }

    /// The slot of the key. If it has none, it gets a free one, or that of a key that is forgotten.
    #[inline]
    fn slot<'s>(&self, sets: &'s mut [SlotSet], hash: u64, now: Nanos) -> Option<&'s mut KeySlot> {
        let set = self.set(sets, hash);
        match set.iter().position(|slot| slot[KEY] == hash) {
            Some(index) => Some(&mut set[index]),
            None => self.make_room(set, hash, now),
        }
    }

    #[cold]
    fn make_room<'s>(
        &self,
        set: &'s mut SlotSet,
        hash: u64,
        now: Nanos,
    ) -> Option<&'s mut KeySlot> {
        let idle = set.iter_mut().filter(|slot| slot[UNDER_WAY] == 0);
        // A free slot has 0 here, so it is taken first.
        let slot = idle.min_by_key(|slot| slot[FULL_AT])?;
        if slot[FULL_AT] > now {
            self.forgotten.fetch_add(1, Relaxed);
        }
        *slot = [hash, 0, 0];
        Some(slot)
    }
}

/// Whether a slot is that of the key.
fn is(hash: u64) -> impl Fn(&&mut KeySlot) -> bool {
    move |slot| slot[KEY] == hash
}

/// As many as large machines have cores, so that two workers seldom want the same lock.
const SHARDS: usize = 64;

/// Slots of a set, which take three cache lines. With more slots the keys spread more evenly, but a look-up
/// takes longer.
const WAYS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    fn rate(text: &str, burst: u32) -> Allowance {
        Allowance {
            rate: Some(Rate::new(text, Some(burst)).expect("a rate")),
            concurrent: None,
        }
    }

    fn concurrent(most: u32) -> Allowance {
        Allowance {
            rate: None,
            concurrent: Some(most),
        }
    }

    /// Well-spread hashes, never the same twice (splitmix64).
    fn hash(number: u64) -> u64 {
        let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn slots(table: &KeyTable) -> usize {
        let shards = table.shards.iter();
        shards.map(|shard| shard.0.lock().len() * WAYS).sum()
    }

    #[test]
    fn keys_have_buckets_of_their_own() {
        let table = KeyTable::new(1000);
        let two = rate("1/m", 2);
        for key in 0..500 {
            assert_eq!(
                table.admit(hash(key), 0, &two),
                LimitVerdict::Admitted,
                "{key}"
            );
            assert_eq!(
                table.admit(hash(key), 0, &two),
                LimitVerdict::Admitted,
                "{key}"
            );
        }
        let third = table.admit(hash(7), SECOND, &two);
        assert_eq!(third, LimitVerdict::TooFast(59 * SECOND));
    }

    /// It takes so long because ten million keys enter the table of a program that is not optimised.
    #[test]
    fn ten_million_keys_take_no_more_memory_and_the_worst_is_remembered() {
        let table = KeyTable::new(4096);
        assert_eq!(slots(&table), 4096);
        let five = rate("1/s", 5);
        let worst = hash(u64::MAX);
        for _ in 0..9 {
            table.admit(worst, 0, &five);
        }
        for key in 0..10_000_000 {
            table.admit(hash(key), 0, &five);
        }
        assert_eq!(slots(&table), 4096);
        assert_eq!(table.admit(worst, 0, &five), LimitVerdict::TooFast(SECOND));
        assert!(table.losses().0 > 9_900_000);
    }

    #[test]
    fn buckets_that_are_full_are_no_loss() {
        let table = KeyTable::new(512);
        let one = rate("1/s", 1);
        for key in 0..100_000 {
            table.admit(hash(key), key * SECOND, &one);
        }
        assert_eq!(table.losses(), (0, 0));
    }

    #[test]
    fn requests_under_way_are_counted_until_they_end() {
        let table = KeyTable::new(512);
        let two = concurrent(2);
        let admit = |key| table.admit(hash(key), 0, &two);
        assert_eq!(
            (admit(1), admit(1)),
            (LimitVerdict::Admitted, LimitVerdict::Admitted)
        );
        assert_eq!(
            (admit(1), admit(2)),
            (LimitVerdict::TooMany, LimitVerdict::Admitted)
        );
        table.end(hash(1));
        assert_eq!(
            (admit(1), admit(1)),
            (LimitVerdict::Admitted, LimitVerdict::TooMany)
        );
        // Ending a request twice, or one that was never counted, earns nothing.
        (0..5).for_each(|_| table.end(hash(2)));
        table.end(hash(3));
        assert_eq!(
            (admit(2), admit(2)),
            (LimitVerdict::Admitted, LimitVerdict::Admitted)
        );
        assert_eq!(admit(2), LimitVerdict::TooMany);
    }

    #[test]
    fn keys_with_requests_under_way_are_not_forgotten() {
        let table = KeyTable::new(512);
        let one = concurrent(1);
        let admitted = |key: &u64| table.admit(hash(*key), 0, &one) == LimitVerdict::Admitted;
        let under_way: Vec<u64> = (0..10_000).filter(admitted).collect();
        assert_eq!(under_way.len(), 512);
        assert_eq!(table.losses(), (0, 10_000 - 512));
        for key in &under_way {
            assert_eq!(table.admit(hash(*key), 0, &one), LimitVerdict::TooMany);
            table.end(hash(*key));
        }
        assert_eq!(table.admit(hash(20_000), 0, &one), LimitVerdict::Admitted);
    }

    #[test]
    fn what_is_refused_for_one_limit_does_not_count_for_the_other() {
        let table = KeyTable::new(512);
        let both = Allowance {
            concurrent: Some(1),
            ..rate("1/s", 2)
        };
        let admit = || table.admit(hash(1), 0, &both);
        assert_eq!(
            (admit(), admit(), admit()),
            (
                LimitVerdict::Admitted,
                LimitVerdict::TooMany,
                LimitVerdict::TooMany
            )
        );
        table.end(hash(1));
        assert_eq!(admit(), LimitVerdict::Admitted);
        table.end(hash(1));
        assert_eq!(admit(), LimitVerdict::TooFast(SECOND));
        assert_eq!(table.admit(hash(1), SECOND, &both), LimitVerdict::Admitted);
    }

    #[test]
    fn what_is_given_back_can_be_had_again_and_no_more() {
        let table = KeyTable::new(512);
        let two = rate("1/m", 2);
        let admit = |key| table.admit(hash(key), SECOND, &two);
        let rate = two.rate.as_ref().expect("it has one");
        assert_eq!(
            (admit(1), admit(1)),
            (LimitVerdict::Admitted, LimitVerdict::Admitted)
        );
        table.give_back(hash(1), rate);
        table.give_back(hash(2), rate);
        assert_eq!(admit(1), LimitVerdict::Admitted);
        assert_eq!(admit(1), LimitVerdict::TooFast(60 * SECOND));
        for _ in 0..9 {
            table.give_back(hash(1), rate);
        }
        assert_eq!(
            (admit(1), admit(1)),
            (LimitVerdict::Admitted, LimitVerdict::Admitted)
        );
        assert_eq!(admit(1), LimitVerdict::TooFast(60 * SECOND));
    }

    #[test]
    fn workers_count_together() {
        let table = KeyTable::new(512);
        let hundred = rate("1/d", 100);
        let admitted = std::thread::scope(|scope| {
            let worker = || {
                let verdicts = (0..200).map(|_| table.admit(hash(1), 0, &hundred));
                verdicts
                    .filter(|verdict| *verdict == LimitVerdict::Admitted)
                    .count()
            };
            let workers: Vec<_> = (0..4).map(|_| scope.spawn(worker)).collect();
            let counts = workers
                .into_iter()
                .map(|worker| worker.join().expect("no panic"));
            counts.sum::<usize>()
        });
        assert_eq!(admitted, 100);
    }
}
