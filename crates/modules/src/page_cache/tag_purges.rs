//! When each tag was purged, for answers that outlive the server process.
//!
//! Files cannot be searched for tags. A thread that reads a file asks here whether one of its tags was purged
//! after the answer was requested. The number of tags is limited; beyond it everything that was stored before
//! counts as purged.

use petrel_engine::proto::stored_page::blob::{self, HALF_BYTES};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::limits;

/// The purges of tags.
#[derive(Debug, Default)]
pub struct TagPurges(Mutex<PurgeTable>);

#[derive(Debug, Default)]
struct PurgeTable {
    /// Everything that was stored up to this millisecond of the wall clock counts as purged.
    all_until_ms: u64,
    by_tag: HashMap<[u8; HALF_BYTES], u64>,
}

impl TagPurges {
    /// Notes that this tag is purged now.
    pub fn add(&self, tag: &[u8], now_ms: u64) {
        let mut table = self.table();
        if table.by_tag.len() >= limits::TAG_PURGES_MAX {
            table.all_until_ms = now_ms;
            table.by_tag.clear();
        }
        table.by_tag.insert(tag_name(tag), now_ms);
    }

    /// Whether an answer with these tags, requested at `stored_ms`, was purged since.
    pub(crate) fn concern(&self, tags: &[Box<[u8]>], stored_ms: u64) -> bool {
        let table = self.table();
        let is_purged = |tag: &[u8]| {
            let purged_ms = table.by_tag.get(&tag_name(tag));
            purged_ms.is_some_and(|purged_ms| stored_ms <= *purged_ms)
        };
        let is_old = table.all_until_ms > 0 && stored_ms <= table.all_until_ms;
        is_old || tags.iter().any(|tag| is_purged(tag))
    }

    /// Encodes the table for [`TagPurges::read`].
    pub fn to_bytes(&self) -> Vec<u8> {
        let table = self.table();
        let mut out = table.all_until_ms.to_le_bytes().to_vec();
        for (tag, purged_ms) in &table.by_tag {
            out.extend_from_slice(tag);
            out.extend_from_slice(&purged_ms.to_le_bytes());
        }
        out
    }

    /// Adds the purges that another process has written. Invalid bytes add nothing; the result is then false.
    pub fn read(&self, bytes: &[u8]) -> bool {
        const PAIR_BYTES: usize = HALF_BYTES + 8;
        let Some((all_until_ms, pairs)) = bytes.split_first_chunk::<8>() else {
            return false;
        };
        if pairs.len() % PAIR_BYTES != 0 || pairs.len() / PAIR_BYTES > limits::TAG_PURGES_MAX {
            return false;
        }
        let mut table = self.table();
        let all_until_ms = u64::from_le_bytes(*all_until_ms);
        table.all_until_ms = table.all_until_ms.max(all_until_ms);
        for pair in pairs.chunks_exact(PAIR_BYTES) {
            let Some((tag, rest)) = pair.split_first_chunk::<HALF_BYTES>() else {
                continue;
            };
            let purged_ms = rest.try_into().map_or(u64::MAX, u64::from_le_bytes);
            let place = table.by_tag.entry(*tag).or_default();
            *place = purged_ms.max(*place);
        }
        table.forget_old();
        true
    }

    fn table(&self) -> MutexGuard<'_, PurgeTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PurgeTable {
    /// Drops purges that `all_until_ms` covers. If there are too many even so, everything up to the latest
    /// one counts as purged.
    fn forget_old(&mut self) {
        if self.by_tag.len() > limits::TAG_PURGES_MAX {
            let latest_ms = self.by_tag.values().max().copied().unwrap_or_default();
            self.all_until_ms = self.all_until_ms.max(latest_ms);
        }
        let all_until_ms = self.all_until_ms;
        self.by_tag.retain(|_, purged_ms| *purged_ms > all_until_ms);
    }
}

/// The hash of a tag.
pub(crate) fn tag_name(tag: &[u8]) -> [u8; HALF_BYTES] {
    blob::base_name(tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(names: &[&str]) -> Vec<Box<[u8]>> {
        names.iter().map(|name| name.as_bytes().into()).collect()
    }

    #[test]
    fn what_was_asked_for_before_a_purge_is_purged() {
        let purges = TagPurges::default();
        purges.add(b"a", 100);
        for (names, stored_ms, expected) in [
            (&["a"][..], 100, true),
            (&["b", "a"], 50, true),
            (&["a"], 101, false),
            (&["b"], 50, false),
            (&[], 0, false),
        ] {
            assert_eq!(
                purges.concern(&tags(names), stored_ms),
                expected,
                "{names:?}"
            );
        }
    }

    #[test]
    fn purges_outlive_the_process() {
        let before = TagPurges::default();
        before.add(b"a", 100);
        before.add(b"b", 200);
        let after = TagPurges::default();
        assert!(after.read(&before.to_bytes()));
        assert!(after.concern(&tags(&["b"]), 200) && !after.concern(&tags(&["a"]), 101));
        for bytes in [&b""[..], b"1234567", &[0; 9], &[0; 31]] {
            assert!(!after.read(bytes), "{bytes:?}");
        }
    }

    #[test]
    fn there_is_an_end_to_what_processes_hand_on() {
        let names = |first: usize| (first..first + limits::TAG_PURGES_MAX).map(|it| it.to_string());
        let (before, after) = (TagPurges::default(), TagPurges::default());
        for name in names(0) {
            before.add(name.as_bytes(), 10);
        }
        for name in names(limits::TAG_PURGES_MAX / 2) {
            after.add(name.as_bytes(), 20);
        }
        assert!(after.read(&before.to_bytes()));
        assert!(after.concern(&[], 20) && !after.concern(&[], 21));
        assert!(TagPurges::default().read(&after.to_bytes()));
        // A note that is older adds nothing.
        assert!(after.read(&before.to_bytes()));
        assert_eq!(after.to_bytes().len(), 8);
    }

    #[test]
    fn more_tags_than_there_is_room_for_purge_everything() {
        let purges = TagPurges::default();
        for number in 0..=limits::TAG_PURGES_MAX {
            purges.add(number.to_string().as_bytes(), 10);
        }
        assert!(purges.concern(&[], 10) && !purges.concern(&[], 11));
    }
}
