//! `linux-aio-sendfile`: kernel AIO reads past the page cache into files that lie in memory, from where
//! sendfile(2) sends them without copying.
//!
//! As lighttpd 1.5 did it, with files in /dev/shm. What is in the page cache already is taken from there. The
//! disk is asked for whole blocks, so a chunk begins and ends in the middle of what was read.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use petrel_sys::page_cache::residency;
use petrel_sys::read_queue::{
    ALIGNMENT_BYTES, BUFFER_BYTES_MAX, Buffer, DirectRange, KernelAio, ReadQueue, is_refusal,
    open_direct,
};

use super::queue_reader::{PreparedRead, QueueReader};
use super::{NetworkBackend, Readers};
use crate::file_cache::SharedDescriptor;
use crate::limits;

/// The reader of a worker.
pub(super) fn start(readers: &Readers) -> io::Result<QueueReader> {
    let queue = KernelAio::new(limits::QUEUED_READS_MAX)?;
    try_to_reopen()?;
    QueueReader::start(NetworkBackend::LinuxAioSendfile, queue, prepare, readers)
}

/// Whether there can be such readers, in a few words either way.
pub(super) fn check() -> Result<String, String> {
    let queue = KernelAio::new(limits::QUEUED_READS_MAX).map_err(|error| reason(&error))?;
    Buffer::in_file(1).map_err(|error| format!("there are no files in memory: {error}"))?;
    try_to_reopen().map_err(|error| {
        format!("files cannot be opened once more, past the page cache, by /proc/self/fd: {error}")
    })?;
    Ok(format!(
        "io_submit past the page cache for {} reads a worker at a time",
        queue.capacity()
    ))
}

/// Whether open files can be opened once more. It is the file system of each that says whether that is of use.
fn try_to_reopen() -> io::Result<()> {
    let buffer = Buffer::in_file(1)?;
    let Some((file, _)) = buffer.file() else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    match open_direct(file) {
        Err(error) if !is_refusal(&error) => Err(error),
        _ => Ok(()),
    }
}

fn reason(error: &io::Error) -> String {
    let why = match error.kind() {
        io::ErrorKind::PermissionDenied => "io_setup is forbidden, by seccomp",
        io::ErrorKind::Unsupported => "the kernel has no AIO",
        io::ErrorKind::WouldBlock => "all contexts that fs.aio-max-nr allows are in use",
        _ => "io_setup has failed",
    };
    format!("{why}: {error}")
}

/// What is wanted, in whole blocks.
fn prepare(file: &SharedDescriptor, offset: u64, length: usize) -> io::Result<PreparedRead> {
    let room = length + 2 * ALIGNMENT_BYTES;
    let range = DirectRange::around(offset, length, room.min(BUFFER_BYTES_MAX))
        .ok_or(io::ErrorKind::InvalidInput)?;
    let buffer = Buffer::in_file(range.length)?;
    let file = match is_in_page_cache(file, range) {
        true => file.clone(),
        false => Arc::new(DirectFile {
            direct: open_direct(&**file)?,
            _shared: file.clone(),
        }),
    };
    Ok(PreparedRead {
        file,
        buffer,
        range,
    })
}

/// A file that was opened once more. The first one is closed last: a file without a name knows that its end
/// takes time, and who has it.
struct DirectFile {
    direct: OwnedFd,
    _shared: SharedDescriptor,
}

impl AsFd for DirectFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.direct.as_fd()
    }
}

/// Whether all of it is. Where the kernel does not tell (before Linux 6.5, or of other people's files) it is
/// taken not to be, and read once more.
fn is_in_page_cache(file: impl AsFd, range: DirectRange) -> bool {
    let end = range.offset + (range.skip + range.wanted) as u64;
    let pages = rustix::param::page_size() as u64;
    let wanted = end.div_ceil(pages) - range.offset / pages;
    residency(file, range.offset..end).is_ok_and(|found| found.cached >= wanted)
}
