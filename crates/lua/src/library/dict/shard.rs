//! One part of a dictionary under one lock: a map into a slab, whose entries form a list in order of their
//! last use.

use std::collections::HashMap;

use super::{DictItem, NEVER, NotCounted, When, Written};

/// Bytes that are counted for an item in addition to its key and its text.
pub const ENTRY_BYTES: usize = 128;

/// Counters of a dictionary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Current number of items.
    pub entries: usize,
    /// Bytes that they take.
    pub bytes: usize,
    /// Reads that found a value.
    pub hits: u64,
    /// Reads that found none.
    pub misses: u64,
    /// Items that were evicted to make room.
    pub evicted: u64,
    /// Items that had expired when they were looked up.
    pub expired: u64,
    /// Items that were too large to be stored.
    pub refused: u64,
}

impl Counters {
    pub(super) fn add(&mut self, other: &Counters) {
        self.entries += other.entries;
        self.bytes += other.bytes;
        self.hits += other.hits;
        self.misses += other.misses;
        self.evicted += other.evicted;
        self.expired += other.expired;
        self.refused += other.refused;
    }
}

pub(super) struct Shard {
    places: HashMap<Box<[u8]>, usize>,
    entries: Vec<Entry>,
    /// Unused positions in `entries`.
    free: Vec<usize>,
    /// The most and the least recently used entry; [`NONE`] if the shard is empty.
    newest: usize,
    oldest: usize,
    bytes_max: usize,
    counters: Counters,
}

struct Entry {
    key: Box<[u8]>,
    item: DictItem,
    /// In milliseconds; [`NEVER`] if the item does not expire.
    expires: u64,
    newer: usize,
    older: usize,
}

const NONE: usize = usize::MAX;

impl Shard {
    pub(super) fn new(bytes_max: usize) -> Shard {
        Shard {
            places: HashMap::new(),
            entries: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            bytes_max,
            counters: Counters::default(),
        }
    }

    pub(super) fn get(&mut self, key: &[u8], now: u64) -> Option<DictItem> {
        let found = self.place(key, now);
        match found {
            Some(place) => {
                self.counters.hits += 1;
                self.touch(place);
                Some(self.entries[place].item.clone())
            }
            None => {
                self.counters.misses += 1;
                None
            }
        }
    }

    pub(super) fn set(
        &mut self,
        key: &[u8],
        item: DictItem,
        expires: u64,
        when: When,
        now: u64,
    ) -> Written {
        let found = self.place(key, now);
        match (when, found) {
            (When::Absent, Some(_)) | (When::Present, None) => return Written::Unchanged,
            _ => {}
        }
        let bytes = size(key, &item);
        if bytes > self.bytes_max {
            self.counters.refused += 1;
            return Written::TooLarge;
        }
        if let Some(place) = found {
            self.remove(place);
        }
        self.make_room(bytes);
        self.insert(key, item, expires, bytes);
        Written::Done
    }

    pub(super) fn increment(
        &mut self,
        key: &[u8],
        by: f64,
        first: Option<f64>,
        expires: u64,
        now: u64,
    ) -> Result<f64, NotCounted> {
        if let Some(place) = self.place(key, now) {
            self.touch(place);
            let DictItem::Number(number) = &mut self.entries[place].item else {
                return Err(NotCounted::NotANumber);
            };
            *number += by;
            return Ok(*number);
        }
        let sum = first.ok_or(NotCounted::Absent)? + by;
        match self.set(key, DictItem::Number(sum), expires, When::Always, now) {
            Written::Done => Ok(sum),
            Written::Unchanged | Written::TooLarge => Err(NotCounted::TooLarge),
        }
    }

    pub(super) fn delete(&mut self, key: &[u8], now: u64) -> bool {
        let found = self.place(key, now);
        if let Some(place) = found {
            self.remove(place);
        }
        found.is_some()
    }

    pub(super) fn flush(&mut self) {
        let mut counters = self.counters;
        (counters.entries, counters.bytes) = (0, 0);
        *self = Shard::new(self.bytes_max);
        self.counters = counters;
    }

    /// Adds keys until `keys` has `count_max`.
    pub(super) fn keys(&self, count_max: usize, now: u64, keys: &mut Vec<Box<[u8]>>) {
        let missing = count_max.saturating_sub(keys.len());
        let alive = self
            .places
            .iter()
            .filter(|(_, place)| self.entries[**place].expires > now);
        keys.extend(alive.take(missing).map(|(key, _)| key.clone()));
    }

    pub(super) fn expires(&mut self, key: &[u8], now: u64) -> Option<u64> {
        let place = self.place(key, now)?;
        Some(self.entries[place].expires)
    }

    pub(super) fn set_expires(&mut self, key: &[u8], expires: u64, now: u64) -> bool {
        let found = self.place(key, now);
        if let Some(place) = found {
            self.entries[place].expires = expires;
        }
        found.is_some()
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    /// The position of `key`. An expired item is removed and counts as missing.
    fn place(&mut self, key: &[u8], now: u64) -> Option<usize> {
        let place = *self.places.get(key)?;
        let expires = self.entries[place].expires;
        if expires != NEVER && expires <= now {
            self.counters.expired += 1;
            self.remove(place);
            return None;
        }
        Some(place)
    }

    /// Evicts the least recently used items until `bytes` more fit.
    fn make_room(&mut self, bytes: usize) {
        while self.counters.bytes + bytes > self.bytes_max && self.oldest != NONE {
            self.counters.evicted += 1;
            self.remove(self.oldest);
        }
    }

    fn insert(&mut self, key: &[u8], item: DictItem, expires: u64, bytes: usize) {
        let entry = Entry {
            key: key.into(),
            item,
            expires,
            newer: NONE,
            older: NONE,
        };
        let place = match self.free.pop() {
            Some(place) => {
                self.entries[place] = entry;
                place
            }
            None => {
                self.entries.push(entry);
                self.entries.len() - 1
            }
        };
        self.places.insert(key.into(), place);
        self.link(place);
        self.counters.entries += 1;
        self.counters.bytes += bytes;
    }

    fn remove(&mut self, place: usize) {
        self.unlink(place);
        let entry = &mut self.entries[place];
        let key = std::mem::take(&mut entry.key);
        let bytes = size(&key, &entry.item);
        entry.item = DictItem::Boolean(false);
        self.places.remove(&key);
        self.free.push(place);
        self.counters.entries -= 1;
        self.counters.bytes -= bytes;
    }

    fn touch(&mut self, place: usize) {
        if self.newest != place {
            self.unlink(place);
            self.link(place);
        }
    }

    fn link(&mut self, place: usize) {
        let older = self.newest;
        self.entries[place].newer = NONE;
        self.entries[place].older = older;
        match self.entries.get_mut(older) {
            Some(entry) => entry.newer = place,
            None => self.oldest = place,
        }
        self.newest = place;
    }

    fn unlink(&mut self, place: usize) {
        let (newer, older) = (self.entries[place].newer, self.entries[place].older);
        match self.entries.get_mut(newer) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
        match self.entries.get_mut(older) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
    }
}

/// The key counts twice, because both the map and the entry hold it.
fn size(key: &[u8], item: &DictItem) -> usize {
    let text = match item {
        DictItem::Text(text) => text.len(),
        DictItem::Number(_) | DictItem::Boolean(_) => 0,
    };
    ENTRY_BYTES + 2 * key.len() + text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard_of(items: usize) -> Shard {
        Shard::new(items * (ENTRY_BYTES + 2))
    }

    fn set(shard: &mut Shard, key: &[u8], number: f64) -> Written {
        shard.set(key, DictItem::Number(number), NEVER, When::Always, 0)
    }

    #[test]
    fn what_was_used_longest_ago_makes_way() {
        let mut shard = shard_of(3);
        for key in [b"a", b"b", b"c"] {
            set(&mut shard, key, 1.0);
        }
        assert!(shard.get(b"a", 0).is_some());
        set(&mut shard, b"d", 1.0);
        assert!(shard.get(b"b", 0).is_none());
        for key in [b"a", b"c", b"d"] {
            assert!(shard.get(key, 0).is_some());
        }
        assert_eq!(shard.counters().evicted, 1);
    }

    #[test]
    fn a_large_item_drives_out_many_but_not_itself() {
        let mut shard = shard_of(4);
        for key in [b"a", b"b", b"c"] {
            set(&mut shard, key, 1.0);
        }
        let large = DictItem::Text(vec![0; 2 * ENTRY_BYTES].into());
        assert_eq!(
            shard.set(b"l", large, NEVER, When::Always, 0),
            Written::Done
        );
        assert_eq!(shard.counters().entries, 2);
        let huge = DictItem::Text(vec![0; 5 * ENTRY_BYTES].into());
        assert_eq!(
            shard.set(b"l", huge, NEVER, When::Always, 0),
            Written::TooLarge
        );
        assert!(shard.get(b"l", 0).is_some(), "what was there stays");
        assert_eq!(shard.counters().refused, 1);
    }

    #[test]
    fn expired_items_are_gone_at_their_moment() {
        let mut shard = shard_of(3);
        shard.set(b"k", DictItem::Number(1.0), 100, When::Always, 0);
        assert!(shard.get(b"k", 99).is_some());
        assert_eq!(shard.increment(b"k", 1.0, Some(10.0), NEVER, 100), Ok(11.0));
        assert_eq!(shard.counters().expired, 1);
        assert_eq!(shard.expires(b"k", 100), Some(NEVER));
    }

    #[test]
    fn numbers_count_from_their_beginning() {
        let mut shard = shard_of(3);
        assert_eq!(
            shard.increment(b"n", 1.0, None, NEVER, 0),
            Err(NotCounted::Absent)
        );
        assert_eq!(shard.increment(b"n", 2.5, Some(0.0), NEVER, 0), Ok(2.5));
        assert_eq!(shard.increment(b"n", -1.0, None, NEVER, 0), Ok(1.5));
        shard.set(b"n", DictItem::Boolean(true), NEVER, When::Always, 0);
        assert_eq!(
            shard.increment(b"n", 1.0, None, NEVER, 0),
            Err(NotCounted::NotANumber)
        );
    }

    #[test]
    fn places_are_used_again() {
        let mut shard = shard_of(2);
        for round in 0..1000u32 {
            set(&mut shard, &[(round % 251) as u8], f64::from(round));
        }
        assert!(shard.entries.len() <= 3);
        assert_eq!(shard.counters().entries, 2);
        assert_eq!(shard.counters().bytes, 2 * (ENTRY_BYTES + 2));
    }
}
