//! `linux-aio-sendfile`: kernel AIO reads past the page cache (O_DIRECT) into files in memory, and
//! sendfile(2) sends from them without copying.
//!
//! lighttpd 1.5 did the same with files in /dev/shm. Parts that the page cache has already are taken from
//! there. Only whole blocks can be read from the disk, so a chunk can begin and end within a block.

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

/// Creates the reader of a worker.
pub(super) fn start(readers: &Readers) -> io::Result<QueueReader> {
    let queue = KernelAio::new(limits::QUEUED_READS_MAX)?;
    try_to_reopen()?;
    QueueReader::start(NetworkBackend::LinuxAioSendfile, queue, prepare, readers)
}

/// Whether this backend works here: `Ok` says how it reads, `Err` why it does not.
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

/// Whether an open file can be opened once more by way of /proc. Whether that helps depends on the file
/// system of each file.
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

/// Widens the wanted range to whole blocks.
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

/// A file that was opened once more. The first descriptor is closed last, because its type knows that closing
/// a file without a name takes time, and which thread may do it.
struct DirectFile {
    direct: OwnedFd,
    _shared: SharedDescriptor,
}

impl AsFd for DirectFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.direct.as_fd()
    }
}

/// Whether all of `range` is in the page cache. If the kernel does not tell (before Linux 6.5, or for files
/// of other users), the answer is no, and the range is read from the disk.
fn is_in_page_cache(file: impl AsFd, range: DirectRange) -> bool {
    let end = range.offset + (range.skip + range.wanted) as u64;
    let pages = rustix::param::page_size() as u64;
    let wanted = end.div_ceil(pages) - range.offset / pages;
    residency(file, range.offset..end).is_ok_and(|found| found.cached >= wanted)
}
