//! Which streams of a connection are to be polled.
//!
//! Each slot has a waker of its own, so that a backend or timer wakes one stream and not all of them. The
//! waker adds the slot to a set and wakes the connection's task, which polls the streams in the set.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Wake, Waker};

use petrel_proto::http2::STREAMS_MAX;

/// A set of slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SlotSet([u64; WORDS]);

impl SlotSet {
    pub(super) fn insert(&mut self, slot: usize) {
        if let Some(word) = self.0.get_mut(slot / 64) {
            *word |= 1 << (slot % 64);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    pub(super) fn extend(&mut self, other: SlotSet) {
        for (word, other) in self.0.iter_mut().zip(other.0) {
            *word |= other;
        }
    }

    /// Takes the lowest slot out.
    pub(super) fn pop(&mut self) -> Option<usize> {
        let position = self.0.iter().position(|word| *word != 0)?;
        let bit = self.0[position].trailing_zeros();
        self.0[position] &= self.0[position] - 1;
        Some(position * 64 + bit as usize)
    }
}

/// The set that wakers add slots to, from any thread.
pub(super) struct WokenStreams {
    words: [AtomicU64; WORDS],
    connection: Waker,
}

/// The waker of one slot.
struct StreamAlarm {
    woken: Arc<WokenStreams>,
    slot: usize,
}

impl WokenStreams {
    /// An empty set. `connection` wakes the connection's task, which never changes.
    pub(super) fn new(connection: Waker) -> Arc<WokenStreams> {
        Arc::new(WokenStreams {
            words: Default::default(),
            connection,
        })
    }

    /// The waker of a slot.
    pub(super) fn waker(self: &Arc<Self>, slot: usize) -> Waker {
        let woken = Arc::clone(self);
        Waker::from(Arc::new(StreamAlarm { woken, slot }))
    }

    /// Takes all slots out.
    pub(super) fn take(&self) -> SlotSet {
        let mut taken = SlotSet::default();
        for (word, ours) in self.words.iter().zip(&mut taken.0) {
            // The set is mostly empty, and a plain load is cheaper than a swap.
            if word.load(Ordering::Relaxed) != 0 {
                *ours = word.swap(0, Ordering::Acquire);
            }
        }
        taken
    }
}

impl Wake for StreamAlarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let Some(word) = self.woken.words.get(self.slot / 64) else {
            return;
        };
        let bit = 1 << (self.slot % 64);
        // If the slot was in the set, the task was woken for it and has not run yet.
        if word.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
            self.woken.connection.wake_by_ref();
        }
    }
}

/// Words of a set. There can be twice as many streams as the limit says: see
/// [`Http2Limits::streams_max`](petrel_proto::http2::Http2Limits::streams_max).
const WORDS: usize = (2 * STREAMS_MAX as usize).div_ceil(64);

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_stream_that_is_woken_twice_wakes_the_connection_once() {
        let count = Arc::new(Count::default());
        let woken = WokenStreams::new(Arc::clone(&count).into());
        let wakers = [3, 64, 199].map(|slot| woken.waker(slot));
        for waker in wakers.iter().chain(&wakers) {
            waker.wake_by_ref();
        }
        assert_eq!(count.0.load(Ordering::Relaxed), 3);
        let mut taken = woken.take();
        let slots: Vec<usize> = std::iter::from_fn(|| taken.pop()).collect();
        assert_eq!(slots, [3, 64, 199]);
        assert!(taken.is_empty() && woken.take().is_empty());
        wakers[0].wake_by_ref();
        assert_eq!(count.0.load(Ordering::Relaxed), 4);
    }
}
