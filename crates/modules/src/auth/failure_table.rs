//! Failed log-ins of the last minutes, counted by keys: a table that never grows.
//!
//! Knows no user, no address and no clock: keys are hashes that no client can foresee, times come in as arguments, in
//! seconds. A key has eight places. When all of them are taken, the entry goes that has the fewest failures, and of
//! those the one whose time ends first; one that is locked goes last.

/// See the module's documentation.
#[derive(Default)]
pub(super) struct FailureTable {
    /// None before the first failure.
    entries: Box<[FailureEntry]>,
    /// Entries that had to go before their time.
    forgotten: u64,
}

/// How many failures lock a key, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LockRule {
    pub(super) failures_max: u32,
    /// Failures count for so long after the first one.
    pub(super) within_s: u32,
    pub(super) for_s: u32,
}

/// One key; without failures it is free.
#[derive(Clone, Copy, Default)]
struct FailureEntry {
    key: u64,
    /// What was tried last.
    attempt: u64,
    failures: u32,
    /// When all of this is over.
    until_s: u32,
    is_locked: bool,
}

impl FailureTable {
    /// For how many more seconds `key` is locked, if it is.
    pub(super) fn locked_s(&self, key: u64, now_s: u32) -> Option<u32> {
        let bucket = self.entries.get(places(key))?;
        let entry = bucket.iter().find(|entry| entry.is_of(key, now_s))?;
        entry.is_locked.then(|| entry.until_s - now_s)
    }

    /// Counts a failure of `key`; whether it begins a lock-out. An `attempt` like the one before is not counted: a
    /// program that has an old password guesses nothing.
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

    /// How many entries had to go before their time.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// The entry of `key`, made in the place of another one if there is none.
    fn entry(&mut self, key: u64, now_s: u32) -> &mut FailureEntry {
        if self.entries.is_empty() {
            self.entries = vec![FailureEntry::default(); BUCKETS * WAYS].into();
        }
        let bucket = &mut self.entries[places(key)];
        // Of an entry whose time is over the place is used again, so that a key never has two.
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

    /// What is to stay is worth more.
    fn worth(&self, now_s: u32) -> impl Ord + use<> {
        let is_in_use = !self.is_over(now_s);
        (is_in_use, self.is_locked, self.failures, self.until_s)
    }
}

/// Where the entry of `key` can be.
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
