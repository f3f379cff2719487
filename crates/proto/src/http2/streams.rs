//! The streams of a connection: those that the owner has not released, in slots, and what is remembered of others.

use super::flow::{ReceiveWindow, SendWindow};
use super::priority::Priority;
use super::turns::Turn;

/// A stream, as the owner knows it. It means this stream for ever: after [`super::Http2Connection::release`] it means none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamKey {
    id: u32,
    slot: u16,
}

impl StreamKey {
    /// The identifier on the wire.
    pub const fn id(self) -> u32 {
        self.id
    }

    /// A small number that no other stream has before this one is released: a place in a table of the owner's.
    pub const fn slot(self) -> usize {
        self.slot as usize
    }
}

/// One stream.
///
/// ```text
///                 HEADERS
///                    │
///      ┌─────────── open ───────────┐
///      │ client ends                │ server ends
///  remote: Ended              local: Ended
///      └──────────── both ──────────┘
///                    │   a reset by either side, from everywhere
///                 closed
///                    │ release
///                  (none)
/// ```
#[derive(Debug)]
pub(super) struct StreamSlot {
    pub(super) id: u32,
    pub(super) remote: Remote,
    pub(super) local: Local,
    pub(super) reset: Option<ResetBy>,
    pub(super) priority: Priority,
    /// It was begun by extended CONNECT.
    pub(super) is_tunnel: bool,
    /// Its head was refused: it makes up for no reset.
    pub(super) is_refused: bool,
    /// The owner has something to send.
    pub(super) is_ready: bool,
    /// Its window is wider than those of other streams by [`super::flow::WIDER_BYTES`].
    pub(super) is_wide: bool,
    pub(super) send_window: SendWindow,
    pub(super) receive_window: ReceiveWindow,
    /// Bytes that the owner was told of, and has not said to be done with.
    pub(super) unconsumed: u32,
    /// Bytes of the body that have to come; [`LENGTH_UNKNOWN`] if the head does not tell.
    pub(super) body_left: u64,
    /// Its place in the queue.
    pub(super) turn: Turn,
}

/// What the client has sent of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remote {
    Open,
    Ended,
}

/// What this side has sent of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Local {
    /// Nothing but interim answers.
    Waiting,
    Begun,
    Ended,
}

/// Which side has reset a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResetBy {
    Client,
    Server,
}

pub(super) const LENGTH_UNKNOWN: u64 = u64::MAX;

impl StreamSlot {
    /// Whether this side may send something on it.
    pub(super) fn is_writable(&self) -> bool {
        self.reset.is_none() && self.local != Local::Ended
    }

    /// Whether this side may send DATA on it.
    pub(super) fn takes_data(&self) -> bool {
        self.reset.is_none() && self.local == Local::Begun
    }

    /// Whether there is something of an answer.
    pub(super) fn is_answered(&self) -> bool {
        self.local != Local::Waiting
    }

    /// Whether both sides have said all they had to say.
    pub(super) fn is_over(&self) -> bool {
        self.reset.is_none() && self.remote == Remote::Ended && self.local == Local::Ended
    }

    /// Whether a reset would end anything.
    pub(super) fn is_alive(&self) -> bool {
        self.reset.is_none() && !self.is_over()
    }
}

/// The streams that are not released.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// A free one has the identifier 0.
    slots: Vec<StreamSlot>,
    free: Vec<u16>,
    /// Identifiers in ascending order, each with its slot.
    by_id: Vec<(u32, u16)>,
}

impl Streams {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether one more may begin: of those that are not over, there may be `max`.
    pub(super) fn has_room(&self, max: u16) -> bool {
        let max = usize::from(max);
        let is_alive = |stream: &&StreamSlot| stream.id != 0 && !stream.is_over();
        // A slot has a number of 16 bits.
        self.len() < max
            || self.len() < (2 * max).min(usize::from(u16::MAX))
                && self.slots.iter().filter(is_alive).count() < max
    }

    pub(super) fn key(&self, slot: u16) -> StreamKey {
        StreamKey {
            id: self.slots[usize::from(slot)].id,
            slot,
        }
    }

    pub(super) fn find(&self, id: u32) -> Option<u16> {
        // Most frames are of the latest streams.
        let position = match self.by_id.last() {
            Some(&(last, slot)) if last == id => return Some(slot),
            _ => self.by_id.binary_search_by_key(&id, |&(id, _)| id).ok()?,
        };
        Some(self.by_id[position].1)
    }

    pub(super) fn at(&self, slot: u16) -> &StreamSlot {
        &self.slots[usize::from(slot)]
    }

    pub(super) fn at_mut(&mut self, slot: u16) -> &mut StreamSlot {
        &mut self.slots[usize::from(slot)]
    }

    /// The stream that the owner means, unless it is released.
    pub(super) fn get(&self, key: StreamKey) -> Option<&StreamSlot> {
        let stream = self.slots.get(key.slot())?;
        (stream.id == key.id).then_some(stream)
    }

    pub(super) fn get_mut(&mut self, key: StreamKey) -> Option<&mut StreamSlot> {
        let stream = self.slots.get_mut(key.slot())?;
        (stream.id == key.id).then_some(stream)
    }

    /// Takes a stream in, whose identifier is above those of all others.
    pub(super) fn insert(&mut self, stream: StreamSlot) -> StreamKey {
        let id = stream.id;
        debug_assert!(self.by_id.last().is_none_or(|&(last, _)| last < id));
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[usize::from(slot)] = stream;
                slot
            }
            None => {
                self.slots.push(stream);
                (self.slots.len() - 1) as u16
            }
        };
        self.by_id.push((id, slot));
        StreamKey { id, slot }
    }

    pub(super) fn remove(&mut self, key: StreamKey) {
        if let Ok(position) = self.by_id.binary_search_by_key(&key.id, |&(id, _)| id) {
            self.by_id.remove(position);
            self.slots[key.slot()].id = 0;
            self.free.push(key.slot);
        }
    }

    /// All that are not released.
    pub(super) fn slots(&self) -> impl Iterator<Item = u16> + use<> {
        0..self.slots.len() as u16
    }

    /// Gives back the memory if there are no streams.
    pub(super) fn shrink(&mut self) {
        if self.by_id.is_empty() {
            *self = Streams::default();
        }
    }
}

/// Streams that this side has reset: what the client had sent before it knew is not its fault.
#[derive(Debug, Default)]
pub(super) struct ResetStreams {
    latest: Vec<u32>,
    next: usize,
    /// The highest identifier that had to be forgotten. Those up to it may all have been reset.
    forgotten: u32,
}

impl ResetStreams {
    const REMEMBERED: usize = 32;

    pub(super) fn add(&mut self, id: u32) {
        if self.latest.len() < Self::REMEMBERED {
            self.latest.push(id);
            return;
        }
        let oldest = std::mem::replace(&mut self.latest[self.next], id);
        self.forgotten = self.forgotten.max(oldest);
        self.next = (self.next + 1) % Self::REMEMBERED;
    }

    pub(super) fn contains(&self, id: u32) -> bool {
        id <= self.forgotten || self.latest.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::super::flow::WINDOW_AT_FIRST;
    use super::*;

    fn stream(id: u32) -> StreamSlot {
        StreamSlot {
            id,
            remote: Remote::Open,
            local: Local::Waiting,
            reset: None,
            priority: Priority::default(),
            is_tunnel: false,
            is_refused: false,
            is_ready: false,
            is_wide: false,
            send_window: SendWindow::new(WINDOW_AT_FIRST),
            receive_window: ReceiveWindow::new(WINDOW_AT_FIRST),
            unconsumed: 0,
            body_left: LENGTH_UNKNOWN,
            turn: Turn::NONE,
        }
    }

    #[test]
    fn a_slot_is_used_again_and_an_old_key_means_nothing() {
        let mut streams = Streams::default();
        let keys = [1, 3, 7].map(|id| streams.insert(stream(id)));
        assert_eq!(keys.map(StreamKey::slot), [0, 1, 2]);
        streams.remove(keys[1]);
        streams.remove(keys[1]);
        assert!(streams.get(keys[1]).is_none() && streams.find(3).is_none());
        let new = streams.insert(stream(9));
        assert_eq!((new.slot(), streams.len()), (1, 3));
        assert!(streams.get(keys[1]).is_none());
        assert_eq!(streams.get(new).map(|stream| stream.id), Some(9));
        assert_eq!(
            [1, 7, 9, 5].map(|id| streams.find(id)),
            [Some(0), Some(2), Some(1), None]
        );
    }

    #[test]
    fn a_stream_that_was_reset_is_never_taken_for_one_that_was_not() {
        let mut reset = ResetStreams::default();
        for id in (1..1001).step_by(2) {
            reset.add(id);
        }
        assert!((1..1001).step_by(2).all(|id| reset.contains(id)));
        assert!(!reset.contains(1001));
    }

    #[test]
    fn a_stream_is_small() {
        assert!(size_of::<StreamSlot>() <= 64, "{}", size_of::<StreamSlot>());
    }
}
