//! The streams of a connection that the owner has not released, in slots, and the latest ones that the server
//! has reset.

use super::flow::{ReceiveWindow, SendWindow};
use super::priority::Priority;
use super::turns::Turn;

/// The owner's handle of a stream. It never means another stream: after [`super::Http2Connection::release`]
/// it means none.
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

    /// A small number that no other stream has until this one is released. The owner can use it as an index.
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
    /// It is an extended CONNECT.
    pub(super) is_tunnel: bool,
    /// Its head was refused: it does not count as completed.
    pub(super) is_refused: bool,
    /// Bytes of DATA that the owner has to send, at most [`super::flow::USEFUL_BYTES`]; 0: none.
    pub(super) ready_bytes: u16,
    /// Its window was widened by [`super::flow::WIDER_BYTES`].
    pub(super) is_wide: bool,
    pub(super) send_window: SendWindow,
    pub(super) receive_window: ReceiveWindow,
    /// Bytes in events to the owner that it has not consumed.
    pub(super) unconsumed: u32,
    /// Bytes of the body that have not come; [`LENGTH_UNKNOWN`] if the head has no Content-Length.
    pub(super) body_left: u64,
    /// Its place in [`Turns`](super::turns::Turns).
    pub(super) turn: Turn,
}

/// The state of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remote {
    Open,
    Ended,
}

/// The state of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Local {
    /// At most interim answers were sent.
    Waiting,
    Begun,
    Ended,
}

/// The side that has reset a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResetBy {
    Client,
    Server,
}

pub(super) const LENGTH_UNKNOWN: u64 = u64::MAX;

impl StreamSlot {
    /// Whether the server may send frames on it.
    pub(super) fn is_writable(&self) -> bool {
        self.reset.is_none() && self.local != Local::Ended
    }

    /// Whether the server may send DATA on it.
    pub(super) fn takes_data(&self) -> bool {
        self.reset.is_none() && self.local == Local::Begun
    }

    /// Whether a DATA frame is worth sending. The windows of a client may all be smaller than that: then half
    /// of the window with which streams begin is enough.
    pub(super) fn has_useful_room(&self, window_at_first: u32) -> bool {
        let useful = u32::from(self.ready_bytes).min(window_at_first / 2);
        self.send_window.room() >= useful.max(1)
    }

    /// Whether the answer has begun.
    pub(super) fn is_answered(&self) -> bool {
        self.local != Local::Waiting
    }

    /// Whether both sides have ended it.
    pub(super) fn is_over(&self) -> bool {
        self.reset.is_none() && self.remote == Remote::Ended && self.local == Local::Ended
    }

    /// Whether it is neither ended by both sides nor reset.
    pub(super) fn is_alive(&self) -> bool {
        self.reset.is_none() && !self.is_over()
    }
}

/// The streams that are not released.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// A free slot has the identifier 0.
    slots: Vec<StreamSlot>,
    free: Vec<u16>,
    /// Identifiers in ascending order, each with its slot.
    by_id: Vec<(u32, u16)>,
}

impl Streams {
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether one more stream may begin. `max` is the limit for streams that are not over.
    pub(super) fn has_room(&self, max: u16) -> bool {
        let max = usize::from(max);
        let is_alive = |stream: &&StreamSlot| stream.id != 0 && !stream.is_over();
        // The number of slots must fit into 16 bits.
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
        // Most frames are for the latest stream.
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

    /// The stream of a key, unless it is released.
    pub(super) fn get(&self, key: StreamKey) -> Option<&StreamSlot> {
        let stream = self.slots.get(key.slot())?;
        (stream.id == key.id).then_some(stream)
    }

    pub(super) fn get_mut(&mut self, key: StreamKey) -> Option<&mut StreamSlot> {
        let stream = self.slots.get_mut(key.slot())?;
        (stream.id == key.id).then_some(stream)
    }

    /// Adds a stream, whose identifier must be the highest.
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

    /// All slots, free ones included.
    pub(super) fn slots(&self) -> impl Iterator<Item = u16> + use<> {
        0..self.slots.len() as u16
    }

    /// Frees the memory if there are no streams.
    pub(super) fn shrink(&mut self) {
        if self.by_id.is_empty() {
            *self = Streams::default();
        }
    }
}

/// The streams that the server has reset. Frames that the client sent on them before it knew are no errors.
#[derive(Debug, Default)]
pub(super) struct ResetStreams {
    latest: Vec<u32>,
    next: usize,
    /// The highest identifier that was forgotten. All streams up to it count as reset.
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
            ready_bytes: 0,
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
