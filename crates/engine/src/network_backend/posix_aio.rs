//! `posix-aio`: the C library reads by threads of its own, the worker sends.
//!
//! There because lighttpd 1.5 had it, for systems with nothing better; `gthread-aio` does the same with
//! threads that this server can see.

use std::io;

use petrel_sys::read_queue::{PosixAio, ReadQueue, set_posix_aio_threads};

use super::queue_reader::{PreparedRead, QueueReader};
use super::{NetworkBackend, Readers};
use crate::limits;

/// The reader of a worker.
pub(super) fn start(readers: &Readers) -> io::Result<QueueReader> {
    let queue = queue(readers.threads)?;
    QueueReader::start(
        NetworkBackend::PosixAio,
        queue,
        PreparedRead::plain,
        readers,
    )
}

/// Whether there can be such readers, in a few words either way.
pub(super) fn check(read_threads: usize) -> Result<String, String> {
    let queue = queue(read_threads).map_err(|error| error.to_string())?;
    Ok(format!(
        "the C library reads with up to {read_threads} threads, {} reads a worker at a time",
        queue.capacity()
    ))
}

fn queue(read_threads: usize) -> io::Result<PosixAio> {
    set_posix_aio_threads(u32::try_from(read_threads).unwrap_or(u32::MAX));
    PosixAio::new(limits::QUEUED_READS_MAX)
}
