//! A worker's own table of stored answers, so that a hot page needs no lock.
//!
//! It holds weak references by key, in two generations. A key that is looked up moves to the younger
//! generation; when that is full, the older one is dropped. An entry that is no longer in use says so itself
//! ([`CacheEntry::is_live`]). The table also notes the keys that requests should not wait for, because the
//! last answer could not be stored.

use std::hash::BuildHasher;
use std::sync::{Arc, Weak};

use foldhash::quality::RandomState;
use hashbrown::HashTable;
use petrel_engine::proto::request_head::RequestHead;

use super::entry::CacheEntry;
use super::limits;

/// The table of one worker.
#[derive(Debug, Default)]
pub(super) struct Front {
    young: Generation,
    old: Generation,
    hasher: RandomState,
}

type Generation = HashTable<(Box<[u8]>, KnownPage)>;

#[derive(Debug, Default)]
struct KnownPage {
    variants: Vec<Weak<CacheEntry>>,
    /// The second of the worker's clock until which no request waits for this key.
    pass_until_s: u32,
    /// Until that second a file answers for this key, which needs no cache.
    is_file: bool,
}

/// What the table has for a key.
#[derive(Debug)]
pub(super) enum FrontAnswer {
    /// The stored answer.
    Page(Arc<CacheEntry>),
    /// A file has answered a moment ago.
    File,
    /// Nothing.
    Nothing,
}

impl Front {
    /// Looks up a request with this key and head. `now_s` is monotonic.
    #[inline]
    pub(super) fn find(&mut self, key: &[u8], head: &RequestHead, now_s: u32) -> FrontAnswer {
        let Some(known) = self.known(key) else {
            return FrontAnswer::Nothing;
        };
        if known.is_file && now_s < known.pass_until_s {
            return FrontAnswer::File;
        }
        let mut live = known.variants.iter().filter_map(Weak::upgrade);
        match live.find(|entry| entry.is_live() && entry.answers(head)) {
            Some(entry) => FrontAnswer::Page(entry),
            None => FrontAnswer::Nothing,
        }
    }

    /// Notes what the shared memory has under `key`, the latest first.
    pub(crate) fn learn(&mut self, key: &[u8], variants: &[Arc<CacheEntry>]) {
        if let Some(known) = self.place(key) {
            known.variants = variants.iter().map(Arc::downgrade).collect();
        }
    }

    /// Until second `until_s` no request waits for `key`. `is_file`: and it is not looked up at all.
    pub(super) fn pass(&mut self, key: &[u8], until_s: u32, is_file: bool) {
        if let Some(known) = self.place(key) {
            known.pass_until_s = until_s;
            known.is_file = is_file;
        }
    }

    /// Whether requests must not wait for `key`.
    pub(crate) fn passes(&mut self, key: &[u8], now_s: u32) -> bool {
        self.known(key)
            .is_some_and(|known| now_s < known.pass_until_s)
    }

    /// Finds a key. If it is in the older generation, it moves to the younger one.
    #[inline]
    fn known(&mut self, key: &[u8]) -> Option<&mut KnownPage> {
        let hash = self.hasher.hash_one(key);
        let is_it = |known: &(Box<[u8]>, KnownPage)| *known.0 == *key;
        if self.young.find(hash, is_it).is_none() {
            let (known, _) = self.old.find_entry(hash, is_it).ok()?.remove();
            self.add(hash, known);
        }
        self.young.find_mut(hash, is_it).map(|(_, known)| known)
    }

    /// Where to note what is known about `key`; `None` if the key is too long.
    fn place(&mut self, key: &[u8]) -> Option<&mut KnownPage> {
        if key.len() > limits::FRONT_KEY_BYTES_MAX {
            return None;
        }
        if self.known(key).is_none() {
            let hash = self.hasher.hash_one(key);
            self.add(hash, (key.into(), KnownPage::default()));
        }
        self.known(key)
    }

    fn add(&mut self, hash: u64, known: (Box<[u8]>, KnownPage)) {
        if self.young.len() >= limits::FRONT_KEYS_MAX {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        let hasher = &self.hasher;
        self.young
            .insert_unique(hash, known, |(key, _)| hasher.hash_one(&**key));
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::tests::page;
    use super::*;

    #[test]
    fn what_has_ended_is_not_found() {
        let mut front = Front::default();
        let head = RequestHead::new();
        let entries = [
            CacheEntry::new(page(b"k", "x", 0, 1)),
            CacheEntry::new(page(b"k", "y", 0, 1)),
        ];
        front.learn(b"k", &entries);
        let found = |front: &mut Front| match front.find(b"k", &head, 0) {
            FrontAnswer::Page(entry) => Some(entry.page.body.clone()),
            FrontAnswer::File | FrontAnswer::Nothing => None,
        };
        assert_eq!(found(&mut front).as_deref(), Some(&b"x"[..]));
        entries[0].end();
        assert_eq!(found(&mut front).as_deref(), Some(&b"y"[..]));
        drop(entries);
        assert_eq!(found(&mut front), None);
    }

    #[test]
    fn what_is_asked_for_outlives_generations() {
        let mut front = Front::default();
        let head = RequestHead::new();
        let hot = CacheEntry::new(page(b"hot", "x", 0, 1));
        front.learn(b"hot", &[Arc::clone(&hot)]);
        front.pass(b"cold", 100, false);
        for number in 0..3 * limits::FRONT_KEYS_MAX {
            front.pass(number.to_string().as_bytes(), 1, false);
            let found = front.find(b"hot", &head, 0);
            assert!(matches!(found, FrontAnswer::Page(_)), "{number}");
        }
        assert!(!front.passes(b"cold", 50));
        assert!(front.young.len() <= limits::FRONT_KEYS_MAX);
        assert!(front.old.len() <= limits::FRONT_KEYS_MAX);
    }

    #[test]
    fn passing_ends_by_itself() {
        let mut front = Front::default();
        front.pass(b"k", 10, true);
        let head = RequestHead::new();
        assert!(matches!(front.find(b"k", &head, 9), FrontAnswer::File));
        assert!(matches!(front.find(b"k", &head, 10), FrontAnswer::Nothing));
        front.pass(b"k", 10, false);
        assert!(matches!(front.find(b"k", &head, 9), FrontAnswer::Nothing));
        assert!(front.passes(b"k", 9) && !front.passes(b"k", 10) && !front.passes(b"other", 9));
        let long = vec![b'a'; limits::FRONT_KEY_BYTES_MAX + 1];
        front.pass(&long, 10, false);
        assert!(!front.passes(&long, 9));
    }
}
