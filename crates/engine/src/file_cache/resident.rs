//! Which parts of a file were lately seen to be in the page cache.
//!
//! sendfile(2) is the cheapest way to send what is there, and waits for the disk where it is not; the kernel
//! tells only whoever reads. So the first to send a block reads it (preadv2 RWF_NOWAIT), and for a while
//! others take it to be there still: half a minute, as long as nothing that was seen is found gone, and
//! seconds for a minute after that. Nothing is asked for files in memory.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::limits;

/// The blocks of one file.
#[derive(Default)]
pub(super) struct Resident {
    /// When the first block was seen; 0 is never. Most files have no other.
    first: Cell<u32>,
    /// The same for those behind it.
    others: RefCell<Vec<u32>>,
}

impl Resident {
    /// How far `range` is taken to be in the page cache: the end of its first bytes that are, at most its own.
    /// `range.start`: not even the first byte. What was seen counts for `life_s`: [`LastLoss::life_s`].
    #[inline]
    pub(crate) fn end_of_seen(&self, range: &Range<u64>, now_s: u32, life_s: u32) -> u64 {
        let since = now_s.saturating_sub(life_s);
        let is_fresh = |seen_s: u32| seen_s != 0 && seen_s >= since;
        if range.end <= BLOCK {
            return match is_fresh(self.first.get()) {
                true => range.end,
                false => range.start,
            };
        }
        let mut blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        let others = self.others.borrow();
        let unseen = blocks.find(|block| match block {
            0 => !is_fresh(self.first.get()),
            _ => !usize::try_from(block - 1)
                .ok()
                .and_then(|place| others.get(place))
                .is_some_and(|seen_s| is_fresh(*seen_s)),
        });
        unseen.map_or(range.end, |block| (block * BLOCK).max(range.start))
    }

    /// All of `range` was seen there. Blocks count as a whole, the last one up to the end of the file at `size`.
    pub(crate) fn saw(&self, range: &Range<u64>, size: u64, now_s: u32) {
        let first = range.start.div_ceil(BLOCK);
        let last = match range.end >= size {
            true => range.end.div_ceil(BLOCK),
            false => range.end / BLOCK,
        };
        for block in first..last.min(BLOCKS_MAX) {
            self.set(block, now_s.max(1));
        }
    }

    /// The block at `offset` is not there. Answers whether it was seen before: memory is short then.
    pub(crate) fn missed(&self, offset: u64) -> bool {
        let block = offset / BLOCK;
        let before = match block {
            0 => self.first.get(),
            _ => usize::try_from(block - 1)
                .ok()
                .and_then(|place| self.others.borrow().get(place).copied())
                .unwrap_or(0),
        };
        if before != 0 {
            self.set(block, 0);
        }
        before != 0
    }

    fn set(&self, block: u64, seen_s: u32) {
        let Some(place) = block.checked_sub(1) else {
            return self.first.set(seen_s);
        };
        let Ok(place) = usize::try_from(place) else {
            return;
        };
        let mut others = self.others.borrow_mut();
        if others.len() <= place {
            others.resize(place + 1, 0);
        }
        if let Some(known) = others.get_mut(place) {
            *known = seen_s;
        }
    }
}

/// When something was gone from the page cache that had been seen, by the coarse clock; 0 is never. One for all workers.
#[derive(Clone, Default)]
pub(crate) struct LastLoss(Arc<AtomicU32>);

impl LastLoss {
    /// How long ago a block may have been seen.
    #[inline]
    pub(crate) fn life_s(&self, now_s: u32) -> u32 {
        let lost_s = self.0.load(Ordering::Relaxed);
        match lost_s != 0 && now_s.saturating_sub(lost_s) < limits::RESIDENT_LOSS_S {
            true => limits::RESIDENT_S_MIN,
            false => limits::RESIDENT_S_MAX,
        }
    }

    /// It is now.
    pub(crate) fn set(&self, now_s: u32) {
        self.0.store(now_s.max(1), Ordering::Relaxed);
    }
}

/// Bytes that are seen or not seen as a whole.
const BLOCK: u64 = limits::CHUNK_BYTES_PROBED as u64;

/// Blocks of a file that are remembered: 16 GiB.
const BLOCKS_MAX: u64 = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_seen_as_a_whole_and_for_a_while() {
        let resident = Resident::default();
        let size = 3 * BLOCK + 10;
        assert_eq!(
            resident.end_of_seen(&(0..10), 100, limits::RESIDENT_S_MAX),
            0
        );
        // Not from its beginning: nothing is known of the block.
        resident.saw(&(1..BLOCK), size, 100);
        assert_eq!(
            resident.end_of_seen(&(0..10), 100, limits::RESIDENT_S_MAX),
            0
        );
        resident.saw(&(0..BLOCK), size, 100);
        resident.saw(&(BLOCK..2 * BLOCK), size, 100);
        let all_but_last = 0..2 * BLOCK;
        assert_eq!(
            resident.end_of_seen(&all_but_last, 100, limits::RESIDENT_S_MAX),
            2 * BLOCK
        );
        let within = BLOCK + 5..2 * BLOCK - 5;
        assert_eq!(
            resident.end_of_seen(&within, 101, limits::RESIDENT_S_MAX),
            within.end
        );
        // As far as it was seen, and no further.
        assert_eq!(
            resident.end_of_seen(&(7..size), 100, limits::RESIDENT_S_MAX),
            2 * BLOCK
        );
        let unseen = 2 * BLOCK + 3..size;
        assert_eq!(
            resident.end_of_seen(&unseen, 100, limits::RESIDENT_S_MAX),
            unseen.start
        );
        // The last block ends with the file.
        resident.saw(&(3 * BLOCK..size), size, 100);
        assert_eq!(
            resident.end_of_seen(&(3 * BLOCK..size), 100, limits::RESIDENT_S_MAX),
            size
        );
        assert_eq!(
            resident.end_of_seen(&(0..size), 100, limits::RESIDENT_S_MAX),
            2 * BLOCK
        );
        let late = 101 + limits::RESIDENT_S_MAX;
        assert_eq!(
            resident.end_of_seen(&(0..10), late, limits::RESIDENT_S_MAX),
            0
        );
    }

    #[test]
    fn a_loss_makes_all_that_was_seen_count_for_less() {
        let (resident, loss) = (Resident::default(), LastLoss::default());
        let end_of_seen =
            |range: &Range<u64>, now_s| resident.end_of_seen(range, now_s, loss.life_s(now_s));
        let missed = |offset, now_s| {
            if resident.missed(offset) {
                loss.set(now_s);
            }
        };
        let late = u32::MAX / 2;
        resident.saw(&(0..2 * BLOCK), 2 * BLOCK, late);
        // Nothing that was seen is lost.
        missed(5 * BLOCK, late + 10);
        let both = 0..2 * BLOCK;
        assert_eq!(end_of_seen(&both, late + 10), both.end);
        missed(BLOCK, late + 10);
        assert_eq!(end_of_seen(&both, late + 10), 0);
        resident.saw(&(0..BLOCK), 2 * BLOCK, late + 10);
        assert_eq!(end_of_seen(&both, late + 11), BLOCK);
    }
}
