//! How many bytes one connection may move before other connections of the worker run.

use std::task::{Context, Poll};

use crate::limits;

/// Counts the bytes that a task has moved since it last waited for the other side.
///
/// A fast sender always has more bytes, so a task that reads until none are left would occupy its worker as
/// long as the sender likes.
#[derive(Debug, Default)]
pub struct Turn {
    bytes: u64,
}

impl Turn {
    /// Counts bytes that were moved.
    pub fn moved(&mut self, bytes: u64) {
        self.bytes += bytes;
    }

    /// Starts again, because the task waits for the other side, which lets other tasks run.
    pub fn waits(&mut self) {
        self.bytes = 0;
    }

    /// Pending after [`limits::TURN_BYTES`]: the task is polled again after all others that are ready.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.bytes < limits::TURN_BYTES {
            return Poll::Ready(());
        }
        self.bytes = 0;
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_turn_ends_after_its_bytes_and_the_next_one_begins_by_itself() {
        let woken = Arc::new(Woken::default());
        let waker = Arc::clone(&woken).into();
        let mut context = Context::from_waker(&waker);
        let mut turn = Turn::default();
        turn.moved(limits::TURN_BYTES - 1);
        assert!(turn.poll(&mut context).is_ready());
        turn.waits();
        turn.moved(limits::TURN_BYTES - 1);
        assert!(turn.poll(&mut context).is_ready());
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
        turn.moved(1);
        assert!(turn.poll(&mut context).is_pending());
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert!(turn.poll(&mut context).is_ready());
    }
}
