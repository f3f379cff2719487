//! A ring of records with one writer, and readers in other processes that may come at any time.
//!
//! Positions count words and never go back; the place in the ring is the rest of the division by its size.
//! Before the writer changes words it says how far it may get (`reserved`), and when they are complete, how
//! far it got (`written`). A reader notes `written`, copies the ring, and then notes `reserved`: what is less
//! than a ring behind the latter has not changed meanwhile. It goes through the records from the last one
//! back, because the oldest one may be half overwritten. A record never goes over the end of the ring: what
//! is left there is skipped.

use super::record::{RECORD_WORDS_MAX, count_in, last_word};

/// The word at the end of the ring that tells how many words are skipped there.
pub fn skipped(position: u64, count: usize) -> u64 {
    last_word(position, count, 0xfff)
}

/// Goes through the records in `words`, a copy of a ring, from the last one back. `written` was read before
/// the copy was made, and `reserved` after. Calls `each` with the words of each record until it returns
/// false.
pub fn read_back(words: &[u64], written: u64, reserved: u64, mut each: impl FnMut(&[u64]) -> bool) {
    let size = words.len() as u64;
    if size == 0 || reserved < written || reserved - written > size {
        return;
    }
    let oldest = reserved.saturating_sub(size);
    let mut end = written;
    while end > oldest {
        let last = match (end % size) as usize {
            0 => words.len() - 1,
            at => at - 1,
        };
        let Some(count) = count_in(words[last], end) else {
            return;
        };
        let begins = end - count as u64;
        if begins < oldest || last + 1 < count {
            return;
        }
        let record = &words[last + 1 - count..=last];
        end = begins;
        let is_skipped = words[last] == skipped(begins, count);
        if !is_skipped && !each(record) {
            return;
        }
    }
}

/// How many words the state of a ring has.
pub const STATE_WORDS: usize = 2;
/// How far the writer may get.
pub const RESERVED: usize = 0;
/// How far the writer got.
pub const WRITTEN: usize = 1;
/// Then a ring holds at least one record of any length.
pub const RING_WORDS_MIN: usize = 3 * RECORD_WORDS_MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_without_sense_are_no_records() {
        let words = vec![u64::MAX; 512];
        for (written, reserved) in [
            (0, 0),
            (u64::MAX, u64::MAX),
            (u64::MAX, 0),
            (1, u64::MAX),
            (512, 512),
            (513, 600),
        ] {
            read_back(&words, written, reserved, |_| panic!("there is none"));
            read_back(&[], written, reserved, |_| panic!("there is none"));
        }
    }
}
