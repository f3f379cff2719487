//! Chooses the entry to evict when memory is short: SIEVE (Zhang et al., NSDI 2024).
//!
//! A queue in order of arrival, and a hand that walks it from the oldest entry on. An entry that was used
//! since the hand last passed stays where it is; one that was not is evicted. Using an entry moves nothing,
//! so it needs no lock. The queue does not know what its entries are.

/// The queue. Each entry gets a number by which it is found.
#[derive(Debug)]
pub(crate) struct Sieve<T> {
    nodes: Vec<Node<T>>,
    free: Vec<usize>,
    /// The newest entry.
    head: usize,
    /// The oldest entry.
    tail: usize,
    hand: usize,
    length: usize,
}

#[derive(Debug)]
struct Node<T> {
    what: Option<T>,
    /// The next entry towards the head.
    newer: usize,
    /// The next entry towards the tail.
    older: usize,
}

/// No node.
const NONE: usize = usize::MAX;

impl<T> Default for Sieve<T> {
    fn default() -> Sieve<T> {
        Sieve {
            nodes: Vec::new(),
            free: Vec::new(),
            head: NONE,
            tail: NONE,
            hand: NONE,
            length: 0,
        }
    }
}

impl<T> Sieve<T> {
    /// How many entries there are.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    /// Adds an entry as the newest.
    pub(super) fn insert(&mut self, what: T) -> usize {
        let node = Node {
            what: Some(what),
            newer: NONE,
            older: self.head,
        };
        let at = match self.free.pop() {
            Some(at) => {
                if let Some(place) = self.nodes.get_mut(at) {
                    *place = node;
                }
                at
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        match self.nodes.get_mut(self.head) {
            Some(head) => head.newer = at,
            None => self.tail = at,
        }
        self.head = at;
        self.length += 1;
        at
    }

    /// The entry with this number.
    pub(super) fn get(&self, at: usize) -> Option<&T> {
        self.nodes.get(at)?.what.as_ref()
    }

    /// Removes the entry with this number.
    pub(super) fn remove(&mut self, at: usize) -> Option<T> {
        let node = self.nodes.get_mut(at)?;
        let what = node.what.take()?;
        let (newer, older) = (node.newer, node.older);
        match self.nodes.get_mut(newer) {
            Some(node) => node.older = older,
            None => self.head = older,
        }
        match self.nodes.get_mut(older) {
            Some(node) => node.newer = newer,
            None => self.tail = newer,
        }
        if self.hand == at {
            self.hand = newer;
        }
        self.free.push(at);
        self.length -= 1;
        Some(what)
    }

    /// Removes the entry that is to be evicted. `take_used` says whether an entry was used, and clears that
    /// mark. `None`: all entries were used since the hand last passed.
    pub(super) fn evict(&mut self, take_used: impl Fn(&T) -> bool) -> Option<T> {
        for _ in 0..self.length {
            let at = match self.hand {
                NONE => self.tail,
                at => at,
            };
            let node = self.nodes.get(at)?;
            let is_used = node.what.as_ref().is_some_and(&take_used);
            self.hand = node.newer;
            if !is_used {
                return self.remove(at);
            }
        }
        None
    }

    /// All entries with their numbers, the newest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        let mut at = self.head;
        std::iter::from_fn(move || {
            let node = self.nodes.get(at)?;
            let number = std::mem::replace(&mut at, node.older);
            Some((number, node.what.as_ref()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    type Entry = (char, Cell<bool>);

    fn sieve(names: &str) -> Sieve<Entry> {
        let mut sieve = Sieve::default();
        for name in names.chars() {
            sieve.insert((name, Cell::new(false)));
        }
        sieve
    }

    fn order(sieve: &Sieve<Entry>) -> String {
        sieve.iter().map(|(_, entry)| entry.0).collect()
    }

    fn touch(sieve: &Sieve<Entry>, names: &str) {
        for (_, entry) in sieve.iter().filter(|(_, entry)| names.contains(entry.0)) {
            entry.1.set(true);
        }
    }

    fn evict(sieve: &mut Sieve<Entry>) -> Option<char> {
        sieve.evict(|entry| entry.1.take()).map(|entry| entry.0)
    }

    /// The example in the paper's figure: an entry that was used stays in its place.
    #[test]
    fn what_was_used_survives_the_hand_once() {
        let mut sieve = sieve("abcdefg");
        touch(&sieve, "abg");
        assert_eq!(evict(&mut sieve), Some('c'));
        sieve.insert(('h', Cell::new(false)));
        touch(&sieve, "ad");
        assert_eq!(evict(&mut sieve), Some('e'));
        assert_eq!(order(&sieve), "hgfdba");
        assert_eq!(evict(&mut sieve), Some('f'));
        // g was used, h was not; then the hand starts again at the oldest.
        assert_eq!(evict(&mut sieve), Some('h'));
        assert_eq!(evict(&mut sieve), Some('b'));
    }

    #[test]
    fn where_all_were_used_the_next_round_counts() {
        let mut sieve = sieve("abc");
        touch(&sieve, "abc");
        assert_eq!(evict(&mut sieve), None);
        assert_eq!(evict(&mut sieve), Some('a'));
        assert!(sieve.evict(|_| true).is_none());
        assert_eq!(evict(&mut sieve), Some('b'));
        assert_eq!(evict(&mut sieve), Some('c'));
        assert_eq!(evict(&mut sieve), None);
        assert_eq!(sieve.len(), 0);
    }

    /// Compares with a simple model in a sequence of pseudo-random steps.
    #[test]
    fn links_stay_whole_when_entries_are_removed() {
        let mut sieve = Sieve::default();
        let mut model: Vec<usize> = Vec::new();
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        for _ in 0..10_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            match random % 5 {
                0 | 1 => model.push(sieve.insert((random % 97) as usize)),
                2 if !model.is_empty() => {
                    let at = model.remove((random >> 8) as usize % model.len());
                    assert!(sieve.remove(at).is_some());
                    assert!(sieve.remove(at).is_none());
                }
                3 => {
                    let before = model.len();
                    let can_go = sieve.iter().any(|(_, entry)| entry % 3 != 0);
                    assert_eq!(sieve.evict(|entry| entry % 3 == 0).is_some(), can_go);
                    let left: Vec<usize> = sieve.iter().map(|(at, _)| at).collect();
                    model.retain(|at| left.contains(at));
                    assert_eq!(model.len(), before - usize::from(can_go));
                }
                _ => {}
            }
            let mut numbers: Vec<usize> = sieve.iter().map(|(at, _)| at).collect();
            numbers.reverse();
            assert_eq!(numbers, model);
            assert_eq!(sieve.len(), model.len());
        }
    }
}
