//! `io_uring`: the kernel reads, with a ring in shared memory for requests and results; the worker sends.

use std::io;

use petrel_sys::read_queue::{IoUring, ReadQueue};

use super::queue_reader::{PreparedRead, QueueReader};
use super::{NetworkBackend, Readers};
use crate::limits;

/// Creates the reader of a worker.
pub(super) fn start(readers: &Readers) -> io::Result<QueueReader> {
    let queue = IoUring::new(limits::QUEUED_READS_MAX)?;
    QueueReader::start(NetworkBackend::IoUring, queue, PreparedRead::plain, readers)
}

/// Whether this backend works here: `Ok` says how it reads, `Err` why it does not.
pub(super) fn check() -> Result<String, String> {
    let queue = IoUring::new(limits::QUEUED_READS_MAX).map_err(|error| reason(&error))?;
    Ok(format!(
        "a ring with {} for {} reads a worker at a time",
        queue.mode(),
        queue.capacity()
    ))
}

fn reason(error: &io::Error) -> String {
    let why = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "io_uring_setup is forbidden, by seccomp or kernel.io_uring_disabled"
        }
        io::ErrorKind::Unsupported => "the kernel has no io_uring, or one before Linux 5.6",
        io::ErrorKind::OutOfMemory => "the limit of locked memory is too low (RLIMIT_MEMLOCK)",
        _ => "io_uring_setup has failed",
    };
    format!("{why}: {error}")
}
