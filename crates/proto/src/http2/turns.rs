//! The order in which streams send DATA, among those that have data and a window for it.
//!
//! The most urgent streams come first. Among streams of one urgency those that are not incremental are sent
//! one after the other, in the order of their identifiers, and incremental ones take turns. If an urgency has
//! both kinds, the kinds alternate, so that neither starves.
//!
//! The queue is one sorted vector. Finding a place takes a binary search, and inserting moves at most eight
//! bytes for each stream of the connection.

use super::priority::Priority;

/// The streams in the order of their turns.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// In descending order: the next stream is at the end.
    queue: Vec<Turn>,
    /// The last number given to a turn of an incremental stream.
    round: u64,
    /// A bit for each urgency: set if its last turn was that of a stream that is not incremental.
    whole_was_last: u8,
}

/// A place in the queue: from the highest bit to the lowest the urgency, the kind, the order within the kind,
/// and the slot of the stream. 0 means none: the order is never 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn(u64);

impl Turn {
    pub(super) const NONE: Turn = Turn(0);

    fn new(priority: Priority, order: u64, slot: u16) -> Turn {
        let kind = u64::from(priority.urgency) << 1 | u64::from(priority.is_incremental);
        Turn(kind << KIND_SHIFT | order << SLOT_BITS | u64::from(slot))
    }

    pub(super) fn slot(self) -> u16 {
        (self.0 & SLOT_MASK) as u16
    }

    fn urgency(self) -> u8 {
        (self.0 >> (KIND_SHIFT + 1)) as u8
    }

    fn is_incremental(self) -> bool {
        self.0 >> KIND_SHIFT & 1 == 1
    }
}

impl Turns {
    /// Puts a stream into the queue. The caller keeps the place for [`Turns::leave`].
    pub(super) fn join(&mut self, priority: Priority, id: u32, slot: u16) -> Turn {
        let order = match priority.is_incremental {
            false => u64::from(id),
            true => {
                self.round += 1;
                self.round & ORDER_MASK
            }
        };
        let turn = Turn::new(priority, order, slot);
        let position = self.queue.partition_point(|&other| other > turn);
        self.queue.insert(position, turn);
        turn
    }

    /// Takes a stream out of the queue.
    pub(super) fn leave(&mut self, turn: Turn) {
        if let Ok(position) = self.queue.binary_search_by(|other| turn.cmp(other)) {
            self.queue.remove(position);
        }
    }

    /// The place of the stream whose turn it is.
    pub(super) fn next(&self) -> Option<Turn> {
        let &first = self.queue.last()?;
        let whole_was_last = self.whole_was_last >> first.urgency() & 1 == 1;
        if first.is_incremental() || !whole_was_last {
            return Some(first);
        }
        // The first incremental stream of the same urgency, if there is one.
        let bound = Turn::new(Priority::new(first.urgency(), true), 0, 0);
        let position = self.queue.partition_point(|&other| other > bound);
        let other = position.checked_sub(1).map(|last| self.queue[last]);
        other
            .filter(|other| other.urgency() == first.urgency())
            .or(Some(first))
    }

    /// A stream has had its turn.
    pub(super) fn was_taken(&mut self, turn: Turn) {
        let bit = 1 << turn.urgency();
        match turn.is_incremental() {
            true => self.whole_was_last &= !bit,
            false => self.whole_was_last |= bit,
        }
    }

    /// Frees the memory of an empty queue.
    pub(super) fn shrink(&mut self) {
        if self.queue.is_empty() {
            self.queue = Vec::new();
        }
    }
}

const SLOT_BITS: u32 = 16;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
/// The urgency has three bits and the kind one.
const KIND_SHIFT: u32 = 60;
/// Wide enough for all turns of a connection.
const ORDER_MASK: u64 = (1 << (KIND_SHIFT - SLOT_BITS)) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    /// The slots of the next `count` turns.
    fn order(turns: &mut Turns, streams: &mut [(Priority, u32, Turn)], count: usize) -> Vec<u16> {
        let mut slots = Vec::new();
        for _ in 0..count {
            let turn = turns.next().expect("streams wait");
            let (priority, id, kept) = &mut streams[usize::from(turn.slot())];
            assert_eq!(*kept, turn);
            turns.was_taken(turn);
            if priority.is_incremental {
                turns.leave(turn);
                *kept = turns.join(*priority, *id, turn.slot());
            }
            slots.push(turn.slot());
        }
        slots
    }

    fn joined(turns: &mut Turns, priorities: &[(u8, bool)]) -> Vec<(Priority, u32, Turn)> {
        let mut streams = Vec::new();
        for (slot, &(urgency, is_incremental)) in (0..).zip(priorities) {
            let priority = Priority::new(urgency, is_incremental);
            let id = u32::from(slot) * 2 + 1;
            streams.push((priority, id, turns.join(priority, id, slot)));
        }
        streams
    }

    #[test]
    fn urgent_streams_come_first_and_whole_ones_in_the_order_of_their_identifiers() {
        let mut turns = Turns::default();
        let mut streams = joined(&mut turns, &[(3, false), (3, false), (1, false)]);
        assert_eq!(order(&mut turns, &mut streams, 2), [2, 2]);
        turns.leave(streams[2].2);
        assert_eq!(order(&mut turns, &mut streams, 2), [0, 0]);
        turns.leave(streams[0].2);
        assert_eq!(order(&mut turns, &mut streams, 1), [1]);
        turns.leave(streams[0].2);
        turns.leave(streams[1].2);
        assert_eq!(turns.next(), None);
    }

    #[test]
    fn incremental_streams_take_turns() {
        let mut turns = Turns::default();
        let mut streams = joined(&mut turns, &[(3, true), (3, true), (3, true)]);
        assert_eq!(order(&mut turns, &mut streams, 6), [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn both_kinds_of_one_urgency_share_it() {
        let mut turns = Turns::default();
        let kinds = [(3, false), (3, true), (3, false), (3, true), (5, true)];
        let mut streams = joined(&mut turns, &kinds);
        assert_eq!(order(&mut turns, &mut streams, 6), [0, 1, 0, 3, 0, 1]);
    }
}
