//! Reads files while the thread does other work.
//!
//! [`ReadQueue`] is the interface, and there are three implementations, each in a file: [`IoUring`],
//! [`KernelAio`] and [`PosixAio`]. A thread that waits for sockets begins reads with
//! [`submit`](ReadQueue::submit) and [`flush`](ReadQueue::flush), waits for
//! [`descriptor`](ReadQueue::descriptor) together with its sockets, and collects results with
//! [`completed`](ReadQueue::completed).
//!
//! A [`Buffer`] belongs to the queue from `submit` until it comes back in a [`Done`]. The kernel may write to
//! it at any time meanwhile. So a queue that is dropped frees the memory only when the kernel does not write
//! to it any more, or never.
//!
//! The queues do not know what is read, for which client, or what happens after an error. The caller decides
//! which files are read by which queue, and how many reads a device gets at a time.

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

/// Reads that the kernel or the C library does while the thread continues.
pub trait ReadQueue {
    /// Begins a read, or gathers it for the next [`flush`](ReadQueue::flush).
    ///
    /// # Errors
    /// Those that keep the read from being begun; returned with the read. `WouldBlock` if
    /// [`capacity`](ReadQueue::capacity) reads are in flight; `InvalidInput` if the buffer is shorter than
    /// the length, or if the offset is larger than that of any file.
    fn submit(&mut self, read: Read) -> Result<(), (Read, io::Error)>;

    /// Begins all gathered reads with one system call.
    ///
    /// # Errors
    /// Errors that concern all of them, such as ENOMEM. The reads stay gathered and in flight; this function
    /// and [`completed`](ReadQueue::completed) try again. An error of a single read is in its [`Done`].
    fn flush(&mut self) -> io::Result<()>;

    /// Readable by poll(2) when reads have ended, and sometimes without any. It is the same open file for the
    /// life of the queue. The caller may only wait for it.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Appends the reads that have ended to `done`. Never waits. Reads that end after it has returned make
    /// the descriptor readable again, also for edge-triggered waits.
    fn completed(&mut self, done: &mut Vec<Done>);

    /// How many reads were submitted and have not come back in a [`Done`].
    fn in_flight(&self) -> usize;

    /// How many reads may be in flight.
    fn capacity(&self) -> usize;
}

/// A read to begin.
pub struct Read {
    /// Comes back in the [`Done`]; the queue ignores it.
    pub token: u64,
    /// The file. The queue holds it until the read has ended. It must stay the same open file.
    pub file: Arc<dyn AsFd + Send + Sync>,
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// The buffer to read into.
    pub buffer: Buffer,
    /// The most bytes to read.
    pub length: usize,
}

/// A read that has ended.
#[derive(Debug)]
pub struct Done {
    /// The token of the [`Read`].
    pub token: u64,
    /// The buffer with the bytes.
    pub buffer: Buffer,
    /// How many bytes were read: fewer than requested at the end of the file, and sometimes elsewhere.
    /// `WouldBlock`: the queue could not do the read without blocking the thread. See also [`is_refusal`].
    pub result: io::Result<usize>,
}

/// Whether the error says that the file system does not support this kind of read (O_DIRECT, or without
/// waiting), so that another kind may succeed. All other errors concern the file or the disk.
#[must_use]
pub fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS)
    )
}

/// The most reads that a queue can be made for.
pub(crate) const CAPACITY_MAX: u32 = 4096;

impl Read {
    /// Whether the read can be submitted.
    fn check(&self, in_flight: usize, capacity: usize) -> io::Result<()> {
        if in_flight >= capacity {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if self.length > self.buffer.capacity() || libc::off64_t::try_from(self.offset).is_err() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(())
    }

    /// Checks the read and prepares its buffer.
    ///
    /// The kernel may write to the buffer until it is dropped or returned.
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
    /// Makes a `Done` from the kernel's `result`: a count of bytes, or a negated errno.
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

/// The capacity within the limits of the kernel; at least one.
fn within_limits(capacity: u32) -> u32 {
    capacity.clamp(1, CAPACITY_MAX)
}
