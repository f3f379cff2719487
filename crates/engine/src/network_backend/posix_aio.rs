//! `posix-aio`: the C library reads with threads of its own, and the worker sends.
//!
//! It is here because lighttpd 1.5 had it. `gthread-aio` does the same with threads that this server
//! controls.

use std::io;

use petrel_sys::read_queue::{PosixAio, ReadQueue, set_posix_aio_threads};

use super::queue_reader::{PreparedRead, QueueReader};
use super::{NetworkBackend, Readers};
use crate::limits;

/// Creates the reader of a worker.
pub(super) fn start(readers: &Readers) -> io::Result<QueueReader> {
    let queue = queue(readers.threads)?;
    QueueReader::start(
        NetworkBackend::PosixAio,
        queue,
        PreparedRead::plain,
        readers,
    )
}

/// Whether this backend works here: `Ok` says how it reads, `Err` why it does not.
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
