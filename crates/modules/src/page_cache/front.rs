//! What one worker remembers of the shared memory, so that a hot page costs no lock.
//!
//! Weak references by key, in two generations: what is asked for moves to the younger one, and when that
//! is full the older one is forgotten. What has ended says so itself. Also which keys are not worth waiting
//! for, because the last answer could not be stored.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use petrel_engine::proto::http1::RequestHead;

use super::entry::Entry;
use super::limits;

/// A worker's own references.
#[derive(Debug, Default)]
pub struct Front {
    young: Generation,
    old: Generation,
}

type Generation = HashMap<Box<[u8]>, Known>;

#[derive(Debug, Default)]
struct Known {
    variants: Vec<Weak<Entry>>,
    /// Second of the worker's clock until which nobody waits for this key.
    pass_until_s: u32,
    /// Until then it is that of a file, which needs no cache.
    is_file: bool,
}

impl Front {
    /// The stored answer to a request with this key and head.
    #[inline]
    pub fn find(&mut self, key: &[u8], head: &RequestHead) -> Option<Arc<Entry>> {
        let known = self.known(key)?;
        let live = known.variants.iter().filter_map(Weak::upgrade);
        live.into_iter()
            .find(|entry| entry.is_live() && entry.answers(head))
    }

    /// Remembers what the shared memory has under `key`, the latest first.
    pub fn learn(&mut self, key: &[u8], variants: &[Arc<Entry>]) {
        if key.len() > limits::FRONT_KEY_BYTES_MAX {
            return;
        }
        let known = self.place(key);
        known.variants = variants.iter().map(Arc::downgrade).collect();
    }

    /// Nobody waits for `key` before second `until_s`; `is_file`: nor is it looked up at all.
    pub fn pass(&mut self, key: &[u8], until_s: u32, is_file: bool) {
        if key.len() <= limits::FRONT_KEY_BYTES_MAX {
            let known = self.place(key);
            known.pass_until_s = until_s;
            known.is_file = is_file;
        }
    }

    /// Whether a file answers under `key`.
    #[inline]
    pub fn is_file(&mut self, key: &[u8], now_s: u32) -> bool {
        self.known(key)
            .is_some_and(|known| known.is_file && now_s < known.pass_until_s)
    }

    /// Whether nobody waits for `key`.
    pub fn passes(&mut self, key: &[u8], now_s: u32) -> bool {
        self.known(key)
            .is_some_and(|known| now_s < known.pass_until_s)
    }

    /// Two keys may be the same for a moment: in that case the younger counts.
    #[inline]
    fn known(&mut self, key: &[u8]) -> Option<&Known> {
        // Asked twice, as a borrow that is returned from one branch would last for the other as well.
        if self.young.contains_key(key) {
            return self.young.get(key);
        }
        let (key, known) = self.old.remove_entry(key)?;
        self.make_room();
        Some(self.young.entry(key).or_insert(known))
    }

    fn place(&mut self, key: &[u8]) -> &mut Known {
        if self.known(key).is_none() {
            self.make_room();
        }
        self.young.entry(key.into()).or_default()
    }

    fn make_room(&mut self) {
        if self.young.len() >= limits::FRONT_KEYS_MAX {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
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
            Entry::new(page(b"k", "x", 0, 1)),
            Entry::new(page(b"k", "y", 0, 1)),
        ];
        front.learn(b"k", &entries);
        let found =
            |front: &mut Front| front.find(b"k", &head).map(|entry| entry.page.body.clone());
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
        let hot = Entry::new(page(b"hot", "x", 0, 1));
        front.learn(b"hot", &[Arc::clone(&hot)]);
        front.pass(b"cold", 100, false);
        for number in 0..3 * limits::FRONT_KEYS_MAX {
            front.pass(number.to_string().as_bytes(), 1, false);
            assert!(front.find(b"hot", &head).is_some(), "{number}");
        }
        assert!(!front.passes(b"cold", 50));
        assert!(front.young.len() <= limits::FRONT_KEYS_MAX);
        assert!(front.old.len() <= limits::FRONT_KEYS_MAX);
    }

    #[test]
    fn passing_ends_by_itself() {
        let mut front = Front::default();
        front.pass(b"k", 10, true);
        assert!(front.is_file(b"k", 9) && !front.is_file(b"k", 10));
        front.pass(b"k", 10, false);
        assert!(!front.is_file(b"k", 9));
        assert!(front.passes(b"k", 9) && !front.passes(b"k", 10) && !front.passes(b"other", 9));
        let long = vec![b'a'; limits::FRONT_KEY_BYTES_MAX + 1];
        front.pass(&long, 10, false);
        assert!(!front.passes(&long, 9));
    }
}
