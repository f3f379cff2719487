//! Reads of files that go on while the thread does something else.
//!
//! The seam is [`ReadQueue`]; behind it are three ways, a file each: [`IoUring`], [`KernelAio`] and
//! [`PosixAio`]. A thread that waits for sockets begins reads with [`submit`](ReadQueue::submit) and
//! [`flush`](ReadQueue::flush), waits for [`descriptor`](ReadQueue::descriptor) along with everything else, and
//! collects with [`completed`](ReadQueue::completed).
//!
//! A [`Buffer`] belongs to the queue from `submit` until it comes back in a [`Done`]. The kernel writes to it
//! whenever it likes, so a queue that is dropped gives memory back only when nothing writes to it any more,
//! or never.
//!
//! None of them knows what is read, for whom, or what is done if it fails; which files suit which queue,
//! and how many reads a device is given at a time, is the caller's to decide.

mod buffer;
mod direct;
mod event;
mod in_flight;
mod io_uring;
mod kernel_aio;
mod posix_aio;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

pub use buffer::{ALIGNMENT_BYTES, BUFFER_BYTES_MAX, Buffer};
pub use direct::{DirectRange, open_direct, prepare_direct};
pub use io_uring::IoUring;
pub use kernel_aio::KernelAio;
pub use posix_aio::{PosixAio, set_posix_aio_threads};

/// Reads that the kernel or the C library does while the thread goes on.
pub trait ReadQueue {
    /// Begins a read, or gathers it until the next [`flush`](ReadQueue::flush).
    ///
    /// # Errors
    /// Gives the read back: `WouldBlock` if [`capacity`](ReadQueue::capacity) reads are in flight,
    /// `InvalidInput` if the buffer is shorter than the length or the offset is beyond what files have, and
    /// whatever keeps the read from being begun.
    fn submit(&mut self, read: Read) -> Result<(), (Read, io::Error)>;

    /// Begins what has been gathered, all in one system call.
    ///
    /// # Errors
    /// What keeps all of them from being begun, such as ENOMEM. They stay gathered and in flight; this and
    /// [`completed`](ReadQueue::completed) try again. An error of a single read is in its [`Done`].
    fn flush(&mut self) -> io::Result<()>;

    /// Can be read, in the sense of poll(2), when reads have ended; it may be so without any. It stays the
    /// same open file for the life of the queue, and must be waited for only.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Appends what has ended to `done`. Never waits. When it returns, whatever ends from then on makes the
    /// descriptor readable anew, also for those who wait edge-triggered.
    fn completed(&mut self, done: &mut Vec<Done>);

    /// Reads that were submitted and are not yet among those that ended.
    fn in_flight(&self) -> usize;

    /// How many reads there may be in flight.
    fn capacity(&self) -> usize;
}

/// A read to begin.
pub struct Read {
    /// Comes back in the [`Done`]; the queue does not look at it.
    pub token: u64,
    /// What is read. It is held until the read has ended, and has to name the same open file for as long.
    pub file: Arc<dyn AsFd + Send + Sync>,
    /// Where in the file, in bytes.
    pub offset: u64,
    /// Where to.
    pub buffer: Buffer,
    /// How many bytes at most.
    pub length: usize,
}

/// A read that has ended.
#[derive(Debug)]
pub struct Done {
    /// That of the [`Read`].
    pub token: u64,
    /// Holds what was read.
    pub buffer: Buffer,
    /// How many bytes; fewer than asked for at the end of the file, and now and then elsewhere.
    /// `WouldBlock`: this queue could not do it without making the thread wait. For [`is_refusal`] see
    /// there.
    pub result: io::Result<usize>,
}

/// Whether an error says that the file system does not do this kind of read (O_DIRECT, or without waiting),
/// so that another kind may succeed. All others say something about the file, or the disk.
#[must_use]
pub fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS)
    )
}

/// The most reads a queue is made for.
pub(crate) const CAPACITY_MAX: u32 = 4096;

impl Read {
    /// Whether it can be submitted at all.
    fn check(&self, in_flight: usize, capacity: usize) -> io::Result<()> {
        if in_flight >= capacity {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if self.length > self.buffer.capacity() || libc::off64_t::try_from(self.offset).is_err() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(())
    }

    /// Checks it, and makes its buffer ready.
    ///
    /// The buffer may be written to as long as it is neither dropped nor given back.
    fn prepare(&mut self, in_flight: usize, capacity: usize) -> io::Result<()> {
        self.check(in_flight, capacity)?;
        self.buffer.begin()
    }

    fn raw_descriptor(&self) -> RawFd {
        self.file.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for Read {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Read")
            .field("token", &self.token)
            .field("descriptor", &self.raw_descriptor())
            .field("offset", &self.offset)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

impl Done {
    /// `result` as the kernel has it: a count, or a negated errno.
    fn new(token: u64, mut buffer: Buffer, result: i64) -> Done {
        let result = usize::try_from(result).map_err(|_| {
            let errno = i32::try_from(-result).unwrap_or(libc::EIO);
            io::Error::from_raw_os_error(errno)
        });
        buffer.end(*result.as_ref().unwrap_or(&0));
        Done {
            token,
            buffer,
            result,
        }
    }
}

/// A capacity as the kernel takes it: at least one.
fn within_limits(capacity: u32) -> u32 {
    capacity.clamp(1, CAPACITY_MAX)
}
