//! A dictionary that all workers share: strings, numbers and booleans under keys, with expiry.
//!
//! A [`Dict`] has a limit in bytes. When it is full, the least recently used items are evicted and counted.
//! Keys are spread over shards. Each shard has a lock, which is held for one lookup. Every operation is
//! atomic, so [`Dict::increment`] is a counter for all workers.
//!
//! Nothing is written to disk: the dictionary lives as long as the process. Time is monotonic.
#![expect(
    clippy::disallowed_methods,
    reason = "threads share it: no clock is one"
)]

mod shard;
mod table;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use shard::Shard;
pub use shard::{Counters, ENTRY_BYTES};
pub use table::{opener, table};

/// The value under a key.
#[derive(Clone, Debug, PartialEq)]
pub enum DictItem {
    /// Any bytes.
    Text(Arc<[u8]>),
    /// A number.
    Number(f64),
    /// A boolean.
    Boolean(bool),
}

/// The condition for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Always.
    Always,
    /// If the key does not exist.
    Absent,
    /// If the key exists.
    Present,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The item was written.
    Done,
    /// The condition did not hold.
    Unchanged,
    /// The item is larger than a shard may be, and was not stored.
    TooLarge,
}

/// Why a number was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotCounted {
    /// The key does not exist, and no initial value was given.
    Absent,
    /// The value is not a number.
    NotANumber,
    /// There is no room for it.
    TooLarge,
}

/// How long an item is kept. `None` means that it does not expire, but may be evicted.
pub type Lifetime = Option<Duration>;

/// A shared dictionary.
pub struct Dict {
    shards: Vec<Mutex<Shard>>,
    hasher: RandomState,
    started: Instant,
    bytes_max: usize,
}

/// The most shards, and how many bytes justify a shard.
const SHARDS_MAX: usize = 16;
const SHARD_BYTES: usize = 1 << 20;

impl Dict {
    /// An empty dictionary with a limit of `bytes_max` bytes: keys, texts and [`ENTRY_BYTES`] per item.
    #[must_use]
    pub fn new(bytes_max: usize) -> Dict {
        let count = (bytes_max / SHARD_BYTES).clamp(1, SHARDS_MAX);
        let shard = || Mutex::new(Shard::new(bytes_max / count));
        Dict {
            shards: (0..count).map(|_| shard()).collect(),
            hasher: RandomState::new(),
            started: Instant::now(),
            bytes_max,
        }
    }

    /// The value under `key`.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<DictItem> {
        let now = self.now();
        self.shard(key).get(key, now)
    }

    /// Stores `item` under `key`. Its lifetime replaces the old one.
    pub fn set(&self, key: &[u8], item: DictItem, lifetime: Lifetime, when: When) -> Written {
        let now = self.now();
        let expires = expiry(now, lifetime);
        self.shard(key).set(key, item, expires, when, now)
    }

    /// Adds `by` to the number under `key` and returns the sum. A missing key starts with `first`, if that is
    /// given, and then lives for `lifetime`; otherwise the lifetime stays as it is.
    ///
    /// # Errors
    /// There is no number to change.
    pub fn increment(
        &self,
        key: &[u8],
        by: f64,
        first: Option<f64>,
        lifetime: Lifetime,
    ) -> Result<f64, NotCounted> {
        let now = self.now();
        let expires = expiry(now, lifetime);
        self.shard(key).increment(key, by, first, expires, now)
    }

    /// Removes `key`. Returns whether it existed.
    pub fn delete(&self, key: &[u8]) -> bool {
        let now = self.now();
        self.shard(key).delete(key, now)
    }

    /// Removes all items. The counters stay.
    pub fn flush(&self) {
        for shard in &self.shards {
            locked(shard).flush();
        }
    }

    /// Up to `count_max` keys, in no particular order.
    #[must_use]
    pub fn keys(&self, count_max: usize) -> Vec<Box<[u8]>> {
        let now = self.now();
        let mut keys = Vec::new();
        for shard in &self.shards {
            locked(shard).keys(count_max, now, &mut keys);
        }
        keys
    }

    /// The remaining lifetime of `key`; `None` if it does not exist.
    #[must_use]
    pub fn lifetime(&self, key: &[u8]) -> Option<Lifetime> {
        let now = self.now();
        let expires = self.shard(key).expires(key, now)?;
        Some((expires != NEVER).then(|| Duration::from_millis(expires - now)))
    }

    /// Gives `key` a new lifetime, from now on. Returns whether it exists.
    pub fn expire(&self, key: &[u8], lifetime: Lifetime) -> bool {
        let now = self.now();
        let expires = expiry(now, lifetime);
        self.shard(key).set_expires(key, expires, now)
    }

    /// The sums of all shards' counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut all = Counters::default();
        for shard in &self.shards {
            all.add(&locked(shard).counters());
        }
        all
    }

    /// The limit in bytes.
    #[must_use]
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    fn shard(&self, key: &[u8]) -> MutexGuard<'_, Shard> {
        let index = self.hasher.hash_one(key) as usize % self.shards.len();
        let shard = self
            .shards
            .get(index)
            .expect("a remainder is below the number of shards");
        locked(shard)
    }

    /// Milliseconds since the dictionary was created.
    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
}

/// The expiry of items that do not expire.
const NEVER: u64 = u64::MAX;

fn expiry(now: u64, lifetime: Lifetime) -> u64 {
    lifetime.map_or(NEVER, |lifetime| {
        let millis = u64::try_from(lifetime.as_millis()).unwrap_or(NEVER);
        now.saturating_add(millis.max(1))
    })
}

/// No operation leaves a shard half changed, so a poisoned lock is still usable.
fn locked(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The dictionaries of a server, by name.
pub struct Dicts {
    named: Mutex<HashMap<String, Arc<Dict>>>,
    bytes_max: usize,
}

impl Dicts {
    /// No dictionaries yet. Each one that [`Dicts::open`] creates has `bytes_max` bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Dicts {
        Dicts {
            named: Mutex::default(),
            bytes_max,
        }
    }

    /// Creates the dictionary `name` with a limit of its own, unless it exists.
    pub fn define(&self, name: &str, bytes_max: usize) {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        named
            .entry(name.to_owned())
            .or_insert_with(|| Arc::new(Dict::new(bytes_max)));
    }

    /// The dictionary `name`, created if it does not exist; `None` if there are [`DICTS_MAX`] already.
    #[must_use]
    pub fn open(&self, name: &str) -> Option<Arc<Dict>> {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(dict) = named.get(name) {
            return Some(Arc::clone(dict));
        }
        if named.len() >= DICTS_MAX {
            return None;
        }
        let dict = Arc::new(Dict::new(self.bytes_max));
        named.insert(name.to_owned(), Arc::clone(&dict));
        Some(dict)
    }

    /// All dictionaries with their names, sorted by name.
    #[must_use]
    pub fn all(&self) -> Vec<(String, Arc<Dict>)> {
        let named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = named
            .iter()
            .map(|(name, dict)| (name.clone(), Arc::clone(dict)))
            .collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}

/// The most dictionaries of a server. There is a limit because scripts create them by naming them.
pub(crate) const DICTS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> DictItem {
        DictItem::Text(text.as_bytes().into())
    }

    #[test]
    fn writes_have_conditions() {
        let dict = Dict::new(1 << 20);
        assert_eq!(
            dict.set(b"k", text("1"), None, When::Present),
            Written::Unchanged
        );
        assert_eq!(dict.set(b"k", text("1"), None, When::Absent), Written::Done);
        assert_eq!(
            dict.set(b"k", text("2"), None, When::Absent),
            Written::Unchanged
        );
        assert_eq!(dict.get(b"k"), Some(text("1")));
        assert_eq!(
            dict.set(b"k", DictItem::Boolean(false), None, When::Present),
            Written::Done
        );
        assert_eq!(dict.get(b"k"), Some(DictItem::Boolean(false)));
        assert!(dict.delete(b"k") && !dict.delete(b"k"));
        assert_eq!(dict.get(b"k"), None);
    }

    #[test]
    fn items_expire() {
        let dict = Dict::new(1 << 20);
        let moment = Duration::from_secs(1);
        let soon = Some(moment);
        dict.set(b"soon", text("x"), soon, When::Always);
        dict.set(b"kept", text("x"), soon, When::Always);
        assert!(
            dict.lifetime(b"soon")
                .flatten()
                .is_some_and(|left| left <= moment)
        );
        assert!(dict.expire(b"kept", None));
        std::thread::sleep(moment + Duration::from_millis(100));
        assert_eq!(dict.get(b"soon"), None);
        assert_eq!(dict.lifetime(b"soon"), None);
        assert_eq!(dict.lifetime(b"kept"), Some(None));
        assert!(!dict.expire(b"soon", None));
        assert_eq!(dict.keys(10).len(), 1);
    }

    #[test]
    fn counters_of_threads_add_up() {
        let dict = Dict::new(4 << 20);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let dict = &dict;
                scope.spawn(move || {
                    for round in 0..10_000u32 {
                        let key = format!("k{}", round % 7);
                        let counted = dict.increment(key.as_bytes(), 1.0, Some(0.0), None);
                        assert!(counted.is_ok());
                        if round % 100 == 0 {
                            dict.set(
                                format!("t{thread}").as_bytes(),
                                text("x"),
                                None,
                                When::Always,
                            );
                            assert!(dict.keys(5).len() <= 5);
                        }
                    }
                });
            }
        });
        let sum: f64 = (0..7)
            .map(|index| match dict.get(format!("k{index}").as_bytes()) {
                Some(DictItem::Number(number)) => number,
                _ => 0.0,
            })
            .sum();
        assert_eq!(sum, 80_000.0);
    }

    #[test]
    fn the_limit_holds_while_threads_write() {
        let dict = Dict::new(2 << 20);
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let dict = &dict;
                scope.spawn(move || {
                    for round in 0..4_000u32 {
                        let key = (round.wrapping_mul(2_654_435_761) ^ thread) % 5_000;
                        let size = (key % 3_000) as usize;
                        let item = DictItem::Text(vec![0; size].into());
                        dict.set(&key.to_le_bytes(), item, None, When::Always);
                    }
                });
            }
        });
        let counters = dict.counters();
        assert!(counters.bytes <= 2 << 20, "{counters:?}");
        assert!(counters.evicted > 0 && counters.entries > 0, "{counters:?}");
        dict.flush();
        let counters = dict.counters();
        assert_eq!((counters.entries, counters.bytes), (0, 0));
    }

    #[test]
    fn dictionaries_have_names() {
        let dicts = Dicts::new(1000);
        dicts.define("large", 5000);
        assert_eq!(dicts.open("large").map(|dict| dict.bytes_max()), Some(5000));
        let a = dicts.open("a").expect("room");
        a.set(b"k", DictItem::Number(1.0), None, When::Always);
        assert_eq!(
            dicts.open("a").and_then(|dict| dict.get(b"k")),
            Some(DictItem::Number(1.0))
        );
        assert_eq!(dicts.open("b").and_then(|dict| dict.get(b"k")), None);
        let made = (0..DICTS_MAX)
            .filter(|index| dicts.open(&format!("n{index}")).is_some())
            .count();
        assert_eq!(made, DICTS_MAX - 3);
    }
}
