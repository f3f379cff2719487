//! A table of fixed size that counts the failed log-ins of the last minutes by key.
//!
//! It knows no user, no address and no clock: keys are hashes that no client can foresee, and the caller
//! passes the time in seconds. A key may be in one of eight places. When all of them are in use, the table
//! drops the entry with the fewest failures, among equal ones the one that ends first, and a locked one last.

/// See the module's documentation.
#[derive(Default)]
pub(super) struct FailureTable {
    /// Empty before the first failure.
    entries: Box<[FailureEntry]>,
    /// How many entries were dropped before their time.
    forgotten: u64,
}

/// How many failures lock a key, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LockRule {
    pub(super) failures_max: u32,
    /// Seconds after the first failure in which the others count.
    pub(super) within_s: u32,
    pub(super) for_s: u32,
}

/// The count of one key. An entry without failures is free.
#[derive(Clone, Copy, Default)]
struct FailureEntry {
    key: u64,
    /// The attempt that failed last.
    attempt: u64,
    failures: u32,
    /// The second in which the entry ends.
    until_s: u32,
    is_locked: bool,
}

impl FailureTable {
    /// How many seconds `key` stays locked; `None`: it is not.
    pub(super) fn locked_s(&self, key: u64, now_s: u32) -> Option<u32> {
        let bucket = self.entries.get(places(key))?;
        let entry = bucket.iter().find(|entry| entry.is_of(key, now_s))?;
        entry.is_locked.then(|| entry.until_s - now_s)
    }

    /// Counts a failure of `key`, and answers whether a lock-out begins. An `attempt` like the one before
    /// does not count: a program that repeats an old password guesses nothing.
    pub(super) fn count(
        &mut self,
        key: u64,
        attempt: Option<u64>,
        now_s: u32,
        rule: LockRule,
    ) -> bool {
        let entry = self.entry(key, now_s);
        if entry.failures == 0 {
            entry.until_s = now_s.saturating_add(rule.within_s);
        }
        let is_repeated = entry.failures > 0 && attempt == Some(entry.attempt);
        if entry.is_locked || is_repeated {
            return false;
        }
        entry.attempt = attempt.unwrap_or_default();
        entry.failures += 1;
        if entry.failures < rule.failures_max {
            return false;
        }
        entry.is_locked = true;
        entry.until_s = now_s.saturating_add(rule.for_s);
        true
    }

    /// Forgets the failures of `key`.
    pub(super) fn forget(&mut self, key: u64) {
        let bucket = self.entries.get_mut(places(key)).unwrap_or_default();
        if let Some(entry) = bucket.iter_mut().find(|entry| entry.key == key) {
            *entry = FailureEntry::default();
        }
    }

    /// How many entries were dropped before their time.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// The entry of `key`. A new one takes the place of a free entry, or of the one that is worth least.
    fn entry(&mut self, key: u64, now_s: u32) -> &mut FailureEntry {
        if self.entries.is_empty() {
            self.entries = vec![FailureEntry::default(); BUCKETS * WAYS].into();
        }
        let bucket = &mut self.entries[places(key)];
        // An ended entry of the key itself is used first, so that a key never has two entries.
        let known = bucket.iter().position(|entry| entry.key == key);
        let live = known.filter(|place| !bucket[*place].is_over(now_s));
        let place = live.unwrap_or_else(|| {
            let worth = |place: &usize| bucket[*place].worth(now_s);
            let place = known.or_else(|| (0..WAYS).min_by_key(worth));
            let place = place.unwrap_or_default();
            self.forgotten += u64::from(!bucket[place].is_over(now_s));
            bucket[place] = FailureEntry {
                key,
                ..FailureEntry::default()
            };
            place
        });
        &mut bucket[place]
    }
}

impl FailureEntry {
    fn is_over(&self, now_s: u32) -> bool {
        self.failures == 0 || self.until_s <= now_s
    }

    fn is_of(&self, key: u64, now_s: u32) -> bool {
        self.key == key && !self.is_over(now_s)
    }

    /// Entries that are to stay are worth more.
    fn worth(&self, now_s: u32) -> impl Ord + use<> {
        let is_in_use = !self.is_over(now_s);
        (is_in_use, self.is_locked, self.failures, self.until_s)
    }
}

/// The places where the entry of `key` can be.
fn places(key: u64) -> std::ops::Range<usize> {
    let bucket = key as usize % BUCKETS;
    bucket * WAYS..(bucket + 1) * WAYS
}

/// 16,384 entries of 32 bytes.
const BUCKETS: usize = 2048;
const WAYS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: LockRule = LockRule {
        failures_max: 3,
        within_s: 60,
        for_s: 10,
    };

    fn count(table: &mut FailureTable, key: u64, attempt: u64, now_s: u32) -> bool {
        table.count(key, Some(attempt), now_s, RULE)
    }

    #[test]
    fn failures_lock_a_key_for_a_time() {
        let mut table = FailureTable::default();
        assert_eq!(table.locked_s(7, 100), None);
        let begun = [1, 2, 3, 4].map(|attempt| count(&mut table, 7, attempt, 100));
        assert_eq!(begun, [false, false, true, false], "it begins once");
        assert_eq!(table.locked_s(7, 100), Some(10));
        assert_eq!(table.locked_s(7, 109), Some(1));
        assert_eq!(table.locked_s(7, 110), None);
        assert_eq!(table.locked_s(8, 100), None);
        // Afterwards there are as many attempts as before.
        assert!(!count(&mut table, 7, 1, 110) && !count(&mut table, 7, 2, 110));
        table.forget(7);
        assert!(!count(&mut table, 7, 3, 110));
    }

    #[test]
    fn old_failures_and_repeated_ones_do_not_count() {
        let mut table = FailureTable::default();
        for now_s in [100, 160, 220, 280] {
            assert!(!count(&mut table, 7, u64::from(now_s), now_s));
            assert!(!count(&mut table, 7, 2, now_s + 59));
        }
        for _ in 0..10 {
            assert!(!count(&mut table, 8, 1, 100));
        }
        // Where no attempt is like another one, each counts.
        let begun = [(); 3].map(|()| table.count(9, None, 100, RULE));
        assert_eq!(begun, [false, false, true]);
    }

    #[test]
    fn many_keys_take_no_more_memory_and_locks_stay() {
        let mut table = FailureTable::default();
        let spread = |number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        for attempt in 0..3 {
            count(&mut table, spread(1), attempt, 100);
        }
        // Two failures stay, too, as long as the others have one.
        count(&mut table, spread(2), 1, 100);
        count(&mut table, spread(2), 2, 100);
        for number in 3..500_000 {
            count(&mut table, spread(number), 1, 100);
        }
        assert_eq!(table.entries.len(), BUCKETS * WAYS);
        assert!(table.forgotten() > 400_000);
        assert_eq!(table.locked_s(spread(1), 100), Some(10));
        assert!(count(&mut table, spread(2), 3, 100));
    }
}
