//! The writer of a [ring](petrel_proto::recording::ring) of records.

use std::cell::Cell;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::fence;

use petrel_proto::recording::record::{RECORD_WORDS_MAX, last_word};
use petrel_proto::recording::ring::{RESERVED, RING_WORDS_MIN, STATE_WORDS, WRITTEN, skipped};
use petrel_sys::shared_memory::Words;

use super::record::{Window, put};

/// The writer's side of a ring.
pub(crate) struct Ring {
    /// `reserved` and `written`.
    state: Words,
    words: Words,
    position: Cell<u64>,
    /// The position in the ring.
    at: Cell<usize>,
    worker: u16,
}

impl Ring {
    /// The ring in `words`, with its state in `state` (two words). Goes on where the last writer ended.
    pub(crate) fn new(state: Words, words: Words, worker: u16) -> Ring {
        assert!(words.len() >= RING_WORDS_MIN && state.len() == STATE_WORDS);
        let position = state[WRITTEN].load(Acquire);
        let at = (position % words.len() as u64) as usize;
        Ring {
            state,
            words,
            position: Cell::new(position),
            at: Cell::new(at),
            // The largest number stands for a skip.
            worker: worker.min(0xffe),
        }
    }

    /// Adds a record, which `write` writes into the window; it returns the number of words, the last one
    /// included, which is left to the ring. Returns the window, and that number.
    #[inline]
    pub(crate) fn add(&self, write: impl FnOnce(&Window) -> usize) -> (&Window, usize) {
        let at = self.at.get();
        let window = match self.words.get(at..).and_then(<[_]>::first_chunk) {
            Some(window) => window,
            None => self.skip_to_start(),
        };
        let position = self.position.get();
        self.state[RESERVED].store(position + RECORD_WORDS_MAX as u64, Relaxed);
        // A reader that sees one of the words below sees this number as well.
        fence(Release);
        let count = write(window);
        put(window, count - 1, last_word(position, count, self.worker));
        let end = position + count as u64;
        self.state[WRITTEN].store(end, Release);
        self.position.set(end);
        self.at.set(self.at.get() + count);
        (window, count)
    }

    /// There is no room for the longest record before the end of the ring. The last word of the ring says how
    /// many words are skipped.
    #[cold]
    fn skip_to_start(&self) -> &Window {
        let at = self.at.replace(0);
        let position = self.position.get();
        let count = self.words.len() - at;
        self.state[RESERVED].store(position + count as u64, Relaxed);
        fence(Release);
        if count > 0 {
            self.words[self.words.len() - 1].store(skipped(position, count), Relaxed);
        }
        self.state[WRITTEN].store(position + count as u64, Release);
        self.position.set(position + count as u64);
        self.words
            .first_chunk()
            .expect("a ring has room for a record")
    }
}

#[cfg(test)]
mod tests {
    use petrel_proto::recording::ring::read_back;

    use super::*;

    fn ring(size: usize) -> (Words, Ring) {
        let all = Words::private(STATE_WORDS + size);
        let part = |range| all.part(range).expect("it is inside");
        let ring = Ring::new(
            part(0..STATE_WORDS),
            part(STATE_WORDS..STATE_WORDS + size),
            5,
        );
        (all, ring)
    }

    /// The first words of the records, the last record first.
    fn read(all: &Words) -> Vec<u64> {
        let copy: Vec<u64> = all.iter().map(|word| word.load(Relaxed)).collect();
        let mut found = Vec::new();
        read_back(
            &copy[STATE_WORDS..],
            copy[WRITTEN],
            copy[RESERVED],
            |record| {
                let first = record[0];
                assert!(record[..record.len() - 1].iter().all(|word| *word == first));
                found.push(first);
                true
            },
        );
        found
    }

    fn add(ring: &Ring, count: usize, value: u64) {
        ring.add(|window| {
            (0..count - 1).for_each(|at| put(window, at, value));
            count
        });
    }

    #[test]
    fn records_of_every_length_are_read_back_from_rings_of_every_size() {
        for size in (RING_WORDS_MIN..RING_WORDS_MIN + 40).chain([1000, 4096]) {
            let (all, ring) = ring(size);
            assert!(read(&all).is_empty());
            for number in 1..600_u64 {
                let count = 2 + (number * 37 % (RECORD_WORDS_MAX as u64 - 1)) as usize;
                add(&ring, count, number);
                let found = read(&all);
                assert_eq!(found[0], number);
                let in_order = found.windows(2).all(|pair| pair[0] == pair[1] + 1);
                assert!(in_order && !found.contains(&0), "{size} {number} {found:?}");
            }
            // Short records are all there.
            (600..610).for_each(|number| add(&ring, 2, number));
            assert!(read(&all).len() >= 10);
        }
    }

    #[test]
    fn the_next_writer_goes_on() {
        let (all, first) = ring(600);
        (1..100).for_each(|number| add(&first, 50, number));
        let part = |range| all.part(range).expect("it is inside");
        let second = Ring::new(
            part(0..STATE_WORDS),
            part(STATE_WORDS..STATE_WORDS + 600),
            5,
        );
        add(&second, 50, 100);
        assert_eq!(read(&all)[..2], [100, 99]);
    }

    #[test]
    fn what_was_overwritten_while_it_was_copied_is_not_shown() {
        let (all, ring) = ring(1024);
        (1..200).for_each(|number| add(&ring, 20, number));
        let copy =
            |all: &Words| -> Vec<u64> { all.iter().map(|word| word.load(Relaxed)).collect() };
        let before = copy(&all);
        for more in 0..60 {
            // The first half is from before, the second half from later.
            let after = copy(&all);
            for cut in (0..1024).step_by(61) {
                let mut torn = before[STATE_WORDS..].to_vec();
                torn[cut..].copy_from_slice(&after[STATE_WORDS + cut..]);
                read_back(&torn, before[WRITTEN], after[RESERVED], |record| {
                    assert!(record[0] < 200, "later than what the reader began with");
                    let first = record[0];
                    assert!(record[..record.len() - 1].iter().all(|word| *word == first));
                    true
                });
            }
            add(&ring, 20 + more % 7, 200 + more as u64);
        }
    }

    #[test]
    fn a_writer_that_ended_within_a_record_leaves_the_others() {
        let (all, ring) = ring(1024);
        (1..100).for_each(|number| add(&ring, 20, number));
        let written = all[WRITTEN].load(Relaxed);
        all[RESERVED].store(written + RECORD_WORDS_MAX as u64, Relaxed);
        let at = STATE_WORDS + (written % 1024) as usize;
        for word in all.get(at..at + 10).unwrap_or_default() {
            word.store(u64::MAX, Relaxed);
        }
        assert_eq!(read(&all)[..3], [99, 98, 97]);
    }
}
