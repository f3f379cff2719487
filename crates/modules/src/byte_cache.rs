//! A worker's cache with a limit in bytes.
//!
//! When it is full, the entries that were not used since the last time are dropped; if that is not enough,
//! all are. mod_deflate and mod_dirlisting keep their results in it.

use std::collections::HashMap;
use std::hash::Hash;

/// Entries by key, and the bytes that they take.
pub(crate) struct ByteCache<K, V> {
    entries: HashMap<K, Entry<V>>,
    bytes: usize,
    bytes_max: usize,
}

struct Entry<V> {
    value: V,
    bytes: usize,
    /// Since the last time that entries were dropped.
    was_used: bool,
}

impl<K: Eq + Hash, V> ByteCache<K, V> {
    /// An empty cache for `bytes_max` bytes.
    pub(crate) fn new(bytes_max: usize) -> ByteCache<K, V> {
        ByteCache {
            entries: HashMap::new(),
            bytes: 0,
            bytes_max,
        }
    }

    /// The value for `key`.
    pub(crate) fn get(&mut self, key: &K) -> Option<&V> {
        let entry = self.entries.get_mut(key)?;
        entry.was_used = true;
        Some(&entry.value)
    }

    /// Stores `value`, which takes `bytes`, unless that is more than a quarter of the limit.
    pub(crate) fn insert(&mut self, key: K, value: V, bytes: usize) {
        if bytes > self.bytes_max / 4 {
            return;
        }
        if self.bytes + bytes > self.bytes_max {
            self.make_room();
        }
        self.bytes += bytes;
        let entry = Entry {
            value,
            bytes,
            was_used: false,
        };
        if let Some(old) = self.entries.insert(key, entry) {
            self.bytes -= old.bytes;
        }
    }

    fn make_room(&mut self) {
        self.entries
            .retain(|_, entry| std::mem::take(&mut entry.was_used));
        self.bytes = self.entries.values().map(|entry| entry.bytes).sum();
        if self.bytes > self.bytes_max / 2 {
            self.entries.clear();
            self.bytes = 0;
        }
    }

    /// How many entries there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_is_bounded_and_what_is_used_stays() {
        let mut cache = ByteCache::new(1000);
        for number in 0..100 {
            cache.insert(number, number, 40);
            assert_eq!(cache.get(&0), Some(&0));
            assert!(cache.bytes <= 1000);
            let sum: usize = cache.entries.values().map(|entry| entry.bytes).sum();
            assert_eq!(cache.bytes, sum);
        }
        cache.insert(200, 200, 251);
        assert_eq!(cache.get(&200), None);
    }
}
