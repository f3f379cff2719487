//! The bounded queue between threads that log and the writer thread: one buffer, which is swapped for an
//! empty one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::limits::{LOG_QUEUE_BYTES_MAX, LOG_WAKE_BYTES};

/// Lines that wait for the writer.
#[derive(Default)]
pub(super) struct LineQueue {
    lines: Mutex<Lines>,
    dropped: AtomicU64,
}

#[derive(Default)]
struct Lines {
    bytes: Vec<u8>,
    /// The writer was woken for these lines already.
    urged: bool,
}

/// What happened to a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    /// It waits for the next round of the writer.
    Waits,
    /// It waits, and the writer should begin now. Returned once for each swap.
    Urgent,
    /// The queue was full; the line was dropped and counted.
    Dropped,
}

/// The size of the queue: half of the limit, because the writer can hold as much again.
const BYTES_MAX: usize = LOG_QUEUE_BYTES_MAX / 2;

/// A swapped buffer keeps this capacity. A queue that wakes the writer in time fits into it.
const KEPT_BYTES: usize = 4 * LOG_WAKE_BYTES;

impl LineQueue {
    /// Adds the line `mark` + `line`.
    #[inline]
    pub(super) fn push(&self, mark: Option<u8>, line: &[u8]) -> Pushed {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.bytes.len() + line.len() >= BYTES_MAX {
            drop(lines);
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return Pushed::Dropped;
        }
        lines.bytes.extend(mark);
        lines.bytes.extend_from_slice(line);
        if lines.bytes.len() < LOG_WAKE_BYTES || lines.urged {
            return Pushed::Waits;
        }
        lines.urged = true;
        Pushed::Urgent
    }

    /// Swaps the queued lines with `empty`.
    pub(super) fn take(&self, empty: &mut Vec<u8>) {
        debug_assert!(empty.is_empty());
        if empty.capacity() > KEPT_BYTES {
            *empty = Vec::new();
        }
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut lines.bytes, empty);
        lines.urged = false;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .bytes
            .is_empty()
    }

    /// How many lines were dropped so far.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Counts lines that were lost after the writer had taken them.
    pub(super) fn count_dropped(&self, lines: u64) {
        self.dropped.fetch_add(lines, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_out_in_order_and_once() {
        let queue = LineQueue::default();
        queue.push(None, b"one\n");
        queue.push(Some(b'6'), b"two\n");
        let mut taken = Vec::new();
        queue.take(&mut taken);
        assert_eq!(taken, b"one\n6two\n");
        taken.clear();
        queue.take(&mut taken);
        assert!(taken.is_empty());
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let queue = LineQueue::default();
        let line = vec![b'x'; 64 * 1024];
        let mut results = Vec::new();
        for _ in 0..BYTES_MAX / line.len() + 3 {
            results.push(queue.push(None, &line));
        }
        assert_eq!(queue.dropped(), 4);
        assert_eq!(results.last(), Some(&Pushed::Dropped));
        let urgent = results
            .iter()
            .filter(|result| **result == Pushed::Urgent)
            .count();
        assert_eq!(urgent, 1, "one wake-up for the whole burst");
        queue.take(&mut Vec::new());
        assert_eq!(queue.push(None, &line), Pushed::Waits);
    }
}
