//! Which parts of a file were recently found in the page cache.
//!
//! sendfile(2) is the cheapest way to send what is in the page cache, but waits for the disk where it is not.
//! Only a read tells (preadv2 with RWF_NOWAIT). So the first response that sends a block reads it, and for a
//! while later responses assume that it is still in the page cache: for half a minute, as long as no block is
//! found to have left the cache, and for some seconds during the minute after one was. Files on file systems
//! in memory are always taken to be there.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::limits;

/// The blocks of one file that were found in the page cache.
#[derive(Default)]
pub(super) struct Resident {
    /// When the first block was found; 0: never. Most files have only this block.
    first: Cell<u32>,
    /// The same for the later blocks.
    others: RefCell<Vec<u32>>,
}

impl Resident {
    /// The end of the part of `range` that is probably in the page cache, from the start of `range`.
    /// `range.start`: its first byte is not. A block counts for `life_s` seconds after it was found:
    /// [`LastLoss::life_s`].
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

    /// Notes that all of `range` was found in the page cache. Only whole blocks count; the last one ends with
    /// the file at `size`.
    pub(crate) fn saw(&self, range: &Range<u64>, size: u64, now_s: u32) {
        let first = range.start.div_ceil(BLOCK);
        let last = match range.end >= size {
            true => range.end.div_ceil(BLOCK),
            false => range.end / BLOCK,
        };
        for block in first..last.min(BLOCKS_MAX) {
            // 0 means never.
            self.set(block, now_s.max(1));
        }
    }

    /// Notes that the block at `offset` is not in the page cache. Returns whether it was there before; then
    /// the machine is short of memory.
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

/// When a block was last found to have left the page cache, by the coarse clock; 0: never. All workers share
/// this.
#[derive(Clone, Default)]
pub(crate) struct LastLoss(Arc<AtomicU32>);

impl LastLoss {
    /// For how many seconds a found block counts.
    #[inline]
    pub(crate) fn life_s(&self, now_s: u32) -> u32 {
        let lost_s = self.0.load(Ordering::Relaxed);
        match lost_s != 0 && now_s.saturating_sub(lost_s) < limits::RESIDENT_LOSS_S {
            true => limits::RESIDENT_S_MIN,
            false => limits::RESIDENT_S_MAX,
        }
    }

    /// A block has left the page cache at `now_s`.
    pub(crate) fn set(&self, now_s: u32) {
        self.0.store(now_s.max(1), Ordering::Relaxed);
    }
}

/// Blocks of this many bytes are tracked as a whole.
const BLOCK: u64 = limits::CHUNK_BYTES_PROBED as u64;

/// The most blocks of a file that are tracked: 16 GiB.
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
        // This read does not begin with the block, so nothing is known of the block.
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
        // Up to the end of what was found, and no further.
        assert_eq!(
            resident.end_of_seen(&(7..size), 100, limits::RESIDENT_S_MAX),
            2 * BLOCK
        );
        let unseen = 2 * BLOCK + 3..size;
        assert_eq!(
            resident.end_of_seen(&unseen, 100, limits::RESIDENT_S_MAX),
            unseen.start
        );
        // The last block ends at the end of the file.
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
        // Block 5 was never found, so missing it is no loss.
        missed(5 * BLOCK, late + 10);
        let both = 0..2 * BLOCK;
        assert_eq!(end_of_seen(&both, late + 10), both.end);
        missed(BLOCK, late + 10);
        assert_eq!(end_of_seen(&both, late + 10), 0);
        resident.saw(&(0..BLOCK), 2 * BLOCK, late + 10);
        assert_eq!(end_of_seen(&both, late + 11), BLOCK);
    }
}
