//! Which request counts (`nc`) clients have used with which nonces, so that a request that was overheard is not
//! accepted again (RFC 7616 section 5.5).
//!
//! Requests overtake one another on several connections and streams, so a count may come late: the counts below the
//! highest one are kept as bits, as IPsec does (RFC 6479). Only requests with a right proof are noted, so no client
//! without a password pushes others out of the table.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::{Arc, Mutex};

use petrel_engine::shared::{Shared, lock};

/// The counts of all workers.
#[derive(Default)]
pub(super) struct UsedCounts {
    hasher: RandomState,
    table: Mutex<CountTable>,
}

impl UsedCounts {
    /// The counts of this server process.
    pub(super) fn of(shared: &Shared) -> Arc<UsedCounts> {
        shared.belonging(UsedCounts::default)
    }

    /// Notes that a request has used `count` with `nonce`. False if one had used it before, or if it is too far behind
    /// the others to know.
    pub(super) fn take(&self, nonce: &[u8], count: u32, now_s: u32) -> bool {
        let key = self.hasher.hash_one(nonce);
        lock(&self.table).take(key, count, now_s)
    }
}

/// A table of a fixed size, which takes memory when the first count comes.
#[derive(Default)]
struct CountTable(Box<[NonceCounts]>);

/// The counts that were used with one nonce.
#[derive(Clone, Copy, Default)]
struct NonceCounts {
    /// The hash of the nonce.
    key: u64,
    /// The second of the last use.
    used_s: u32,
    /// The highest count.
    highest: u32,
    /// Bit n: the count `highest - n` was used. 0: the entry is free.
    used: u128,
}

impl CountTable {
    fn take(&mut self, key: u64, count: u32, now_s: u32) -> bool {
        if self.0.is_empty() {
            self.0 = vec![NonceCounts::default(); BUCKETS * WAYS].into();
        }
        let bucket = key as usize % BUCKETS;
        let bucket = &mut self.0[bucket * WAYS..(bucket + 1) * WAYS];
        let known = bucket
            .iter()
            .position(|entry| entry.key == key && entry.used != 0);
        let place = known.unwrap_or_else(|| {
            // The nonce that was not used for the longest time is most likely too old by now.
            let oldest =
                (0..WAYS).min_by_key(|place| (bucket[*place].used != 0, bucket[*place].used_s));
            let place = oldest.unwrap_or_default();
            bucket[place] = NonceCounts {
                key,
                ..NonceCounts::default()
            };
            place
        });
        bucket[place].take(count, now_s)
    }
}

impl NonceCounts {
    fn take(&mut self, count: u32, now_s: u32) -> bool {
        self.used_s = now_s;
        if self.used == 0 || count > self.highest {
            let ahead = count.saturating_sub(self.highest);
            self.used = self.used.checked_shl(ahead).unwrap_or(0) | 1;
            self.highest = count;
            return true;
        }
        let bit = 1_u128.checked_shl(self.highest - count).unwrap_or(0);
        let is_new = bit != 0 && self.used & bit == 0;
        self.used |= bit;
        is_new
    }
}

/// 16,384 entries of 32 bytes.
const BUCKETS: usize = 2048;
const WAYS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_count_passes_once_in_any_order_near_the_highest() {
        let mut table = CountTable::default();
        for (count, is_new) in [
            (5, true),
            (5, false),
            (3, true),
            (4, true),
            (3, false),
            (132, true),
            (5, false),
            (6, true),
            (4, false),
            (u32::MAX, true),
            (u32::MAX, false),
            (132, false),
            (0, false),
            (u32::MAX - 127, true),
            (u32::MAX - 128, false),
        ] {
            assert_eq!(table.take(7, count, 100), is_new, "{count}");
        }
        assert!(table.take(8, 5, 100), "another nonce");
        assert!(table.take(9, 0, 100) && !table.take(9, 0, 100));
    }

    #[test]
    fn many_nonces_take_no_more_memory_and_the_latest_stay() {
        let mut table = CountTable::default();
        let spread = |number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        for number in 0..100_000 {
            assert!(table.take(spread(number), 1, number as u32));
        }
        assert_eq!(table.0.len(), BUCKETS * WAYS);
        assert!(!table.take(spread(99_999), 1, 100_000));
        assert!(table.take(spread(0), 1, 100_000), "it was forgotten");
    }
}
