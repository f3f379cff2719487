//! Reads a long part of a file in steps, so that the disk does not have to seek in between.
//!
//! If the kernel has no further request for the place where the disk's head is, the disk serves another file
//! and comes back later. If it has requests for the whole part, and takes the nearest first, then half of the
//! time the head comes from behind and the disk reads the part backwards. So the kernel always has requests
//! for two steps, the one that is being read and the next one. As soon as either has been read, it gets the
//! request for the one after them; it may be the second one that is read first.
//!
//! A reading thread can wait for one step only. To learn which of the two was read first, each thread has a
//! small ring (io_uring) that reads the last byte of each step. Without a ring, the thread waits for the
//! steps in their order.
//!
//! Knows nothing of who wants the bytes; disk threads call it.

use std::cell::RefCell;
use std::io;
use std::iter;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use petrel_sys::read_queue::{Buffer, Done, IoUring, Read, ReadQueue};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;

use super::chunk::Chunk;
use crate::file_accounts::FileAccounts;
use crate::file_cache::SharedDescriptor;
use crate::file_cache::read::read_full;
use crate::limits::{READ_AHEAD_STEP_BYTES, READ_AHEAD_STEPS};

/// Reads a chunk, however long that takes. `is_local`: the file system is on a disk of this machine.
///
/// # Errors
/// Those of the file.
pub(super) fn read_chunk(
    accounts: &Arc<FileAccounts>,
    file: &SharedDescriptor,
    offset: u64,
    length: usize,
    is_local: bool,
) -> io::Result<Chunk> {
    let range = offset..offset + length as u64;
    let is_long = length > READ_AHEAD_STEPS * READ_AHEAD_STEP_BYTES;
    if is_local && is_long && bring(file, range.clone()) {
        let mut memory = accounts.memory(length);
        let count = read_full(&**file, memory.as_mut(), offset)?;
        return Ok(Chunk::new(offset, memory.into_bytes(count)));
    }
    read_in_order(accounts, file.as_fd(), range)
}

/// Tells the kernel what will be read soon. Its own read-ahead has steps of 128 KiB, and between two of them
/// the disk seeks elsewhere.
pub(super) fn ask_for(file: impl AsFd, range: Range<u64>) {
    for step in steps(range) {
        let length = NonZeroU64::new(step.end - step.start);
        // This is only a hint: if the kernel ignores it, the read still works.
        let _ = fadvise(&file, step.start, length, Advice::WillNeed);
    }
}

/// The steps of `range`. All but the first and the last begin and end at multiples of the step length in the
/// file.
fn steps(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    const STEP: u64 = READ_AHEAD_STEP_BYTES as u64;
    let mut left = range;
    iter::from_fn(move || {
        if left.is_empty() {
            return None;
        }
        let end = (left.start / STEP + 1).saturating_mul(STEP).min(left.end);
        let step = left.start..end;
        left.start = end;
        Some(step)
    })
}

/// Reads step by step; the kernel already has the requests for the next ones.
fn read_in_order(
    accounts: &Arc<FileAccounts>,
    file: BorrowedFd<'_>,
    range: Range<u64>,
) -> io::Result<Chunk> {
    let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    let mut memory = accounts.memory(length);
    let mut asked = steps(range.clone());
    for step in asked.by_ref().take(READ_AHEAD_STEPS) {
        ask_for(file, step);
    }
    let (mut left, mut count) = (memory.as_mut(), 0);
    for step in steps(range.clone()) {
        let bytes = usize::try_from(step.end - step.start).unwrap_or(usize::MAX);
        let Some((now, behind)) = left.split_at_mut_checked(bytes) else {
            break;
        };
        let read = read_full(file, now, step.start)?;
        count += read;
        if read < bytes {
            break;
        }
        left = behind;
        if let Some(next) = asked.next() {
            ask_for(file, next);
        }
    }
    Ok(Chunk::new(range.start, memory.into_bytes(count)))
}

/// Brings a part of the file into the page cache, step by step. Returns false if it is unknown whether it is
/// there.
fn bring(file: &SharedDescriptor, range: Range<u64>) -> bool {
    WATCH.with_borrow_mut(|watch| {
        let Some(known) = watch else { return false };
        let result = known.bring(file, range);
        if result.is_err() {
            // A read may still be under way in the ring, so the ring must not be used again.
            *watch = None;
        }
        result.is_ok()
    })
}

thread_local! {
    /// The ring of this thread, created when it is first needed. `None`: the kernel refuses rings.
    static WATCH: RefCell<Option<StepWatch>> = RefCell::new(StepWatch::new().ok());
}

/// Tells when steps have been read.
struct StepWatch {
    queue: Box<dyn ReadQueue>,
    /// Each one is for the last byte of a step.
    buffers: Vec<Buffer>,
    done: Vec<Done>,
}

impl StepWatch {
    fn new() -> io::Result<StepWatch> {
        let steps = u32::try_from(READ_AHEAD_STEPS).unwrap_or(u32::MAX);
        StepWatch::with(Box::new(IoUring::new(steps)?))
    }

    fn with(queue: Box<dyn ReadQueue>) -> io::Result<StepWatch> {
        let buffers = (0..READ_AHEAD_STEPS).map(|_| Buffer::new(1));
        Ok(StepWatch {
            queue,
            buffers: buffers.collect::<io::Result<_>>()?,
            done: Vec::new(),
        })
    }

    fn bring(&mut self, file: &SharedDescriptor, range: Range<u64>) -> io::Result<()> {
        let mut steps = steps(range);
        loop {
            while let Some(buffer) = self.buffers.pop() {
                let Some(step) = steps.next() else {
                    self.buffers.push(buffer);
                    break;
                };
                ask_for(&**file, step.clone());
                self.watch(file, step.end - 1, buffer)?;
            }
            if self.queue.in_flight() == 0 {
                return Ok(());
            }
            self.queue.flush()?;
            self.wait()?;
        }
    }

    fn watch(&mut self, file: &SharedDescriptor, last: u64, buffer: Buffer) -> io::Result<()> {
        let read = Read {
            token: last,
            file: file.clone(),
            offset: last,
            buffer,
            length: 1,
        };
        self.queue.submit(read).map_err(|(_, error)| error)
    }

    /// Waits until a read has ended. Its result does not matter: the read of the data will see any error.
    fn wait(&mut self) -> io::Result<()> {
        loop {
            self.queue.completed(&mut self.done);
            if !self.done.is_empty() {
                let buffers = self.done.drain(..).map(|done| done.buffer);
                self.buffers.extend(buffers);
                return Ok(());
            }
            let descriptor = self.queue.descriptor();
            match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests;
