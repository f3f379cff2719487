//! The reads that the kernel is doing, whose memory it may write to.
#![expect(clippy::disallowed_methods, reason = "it limits the end of a queue")]

use std::mem;
use std::time::{Duration, Instant};

use super::{Done, Read, ReadQueue, event};

/// Reads that were passed to a kernel, each with a number that the kernel returns at its end.
///
/// Only [`take`](InFlight::take) returns the memory of a read, after the kernel has reported its end. If this
/// is dropped with reads in it, they are leaked, because the kernel still writes to their memory.
pub(super) struct InFlight {
    places: Vec<Option<Read>>,
    free: Vec<u32>,
}

impl InFlight {
    pub(super) fn new(capacity: u32) -> InFlight {
        InFlight {
            places: (0..capacity).map(|_| None).collect(),
            free: (0..capacity).rev().collect(),
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.places.len()
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Adds a read and returns its number. Returns the read if there is no room.
    pub(super) fn put(&mut self, read: Read) -> Result<u32, Read> {
        let Some(number) = self.free.pop() else {
            return Err(read);
        };
        match self.places.get_mut(number as usize) {
            Some(place) => {
                *place = Some(read);
                Ok(number)
            }
            None => Err(read),
        }
    }

    /// Removes a read that the kernel has ended. `None` if there is no read with this number.
    pub(super) fn take(&mut self, number: u64, result: i64) -> Option<Done> {
        let read = self.give_back(u32::try_from(number).ok()?)?;
        Some(Done::new(read.token, read.buffer, result))
    }

    /// Removes a read that was not passed to the kernel.
    pub(super) fn give_back(&mut self, number: u32) -> Option<Read> {
        let read = self.places.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(read)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.len() > 0 {
            mem::forget(mem::take(&mut self.places));
        }
    }
}

/// Called before a queue is dropped: waits some time for its reads to end. The time is limited, because a
/// disk that hangs must not block the thread; reads that are left are leaked.
pub(super) fn wait_for_end(queue: &mut dyn ReadQueue) {
    let deadline = Instant::now() + WAIT_MAX;
    let mut done = Vec::new();
    loop {
        queue.completed(&mut done);
        let left = deadline.saturating_duration_since(Instant::now());
        if queue.in_flight() == 0 || left.is_zero() {
            return;
        }
        event::wait(queue.descriptor(), left.min(PAUSE));
    }
}

pub(super) const WAIT_MAX: Duration = Duration::from_millis(500);
/// The pause between two checks without an event.
const PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_queue::Buffer;
    use std::sync::Arc;

    fn read(token: u64) -> Read {
        Read {
            token,
            file: Arc::new(std::fs::File::open("/dev/null").unwrap()),
            offset: 0,
            buffer: Buffer::new(1).unwrap(),
            length: 1,
        }
    }

    #[test]
    fn each_number_is_given_once() {
        let mut reads = InFlight::new(2);
        let first = reads.put(read(10)).unwrap();
        let second = reads.put(read(11)).unwrap();
        assert_ne!(first, second);
        assert_eq!(reads.put(read(12)).unwrap_err().token, 12);
        let done = reads.take(first.into(), -i64::from(libc::EIO)).unwrap();
        assert_eq!(done.token, 10);
        assert_eq!(done.result.unwrap_err().raw_os_error(), Some(libc::EIO));
        assert!(reads.take(first.into(), 0).is_none());
        assert!(reads.take(u64::MAX, 0).is_none());
        assert_eq!(reads.len(), 1);
        reads.put(read(13)).unwrap();
        assert_eq!(reads.len(), 2);
    }

    #[test]
    fn what_is_in_flight_is_never_given_back() {
        let mut reads = InFlight::new(2);
        let watched = read(1);
        let file = Arc::clone(&watched.file);
        reads.put(watched).unwrap();
        drop(reads);
        assert_eq!(Arc::strong_count(&file), 2);
    }
}
