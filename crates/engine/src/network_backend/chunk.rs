//! Bytes of a file that were read to be sent, how much memory they take up, and what is counted of them.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Context;

use bytes::Bytes;
use petrel_sys::read_queue::Buffer;

use super::write::{self, taken};
use super::{Sent, linux_sendfile};
use crate::limits;
use crate::settings::core::NetworkBackend;
use crate::transport::Transport;

/// A stretch of a file in memory.
pub(crate) struct Chunk {
    /// The offset of the first byte in the file.
    pub offset: u64,
    /// The bytes.
    pub bytes: Bytes,
    /// The file in memory that they are in, if sendfile(2) can send them from there, and where in it.
    pub in_file: Option<(Arc<Buffer>, u64)>,
}

impl Chunk {
    /// Bytes in memory.
    pub fn new(offset: u64, bytes: Bytes) -> Chunk {
        Chunk {
            offset,
            bytes,
            in_file: None,
        }
    }

    /// `found` bytes of what a queue has read into `buffer`, behind the first `skip`.
    pub fn in_buffer(
        offset: u64,
        buffer: Buffer,
        skip: usize,
        found: usize,
        share: Share,
    ) -> Chunk {
        let has_file = buffer.has_file();
        let buffer = Arc::new(buffer);
        let in_file = has_file.then(|| (Arc::clone(&buffer), skip as u64));
        let read = BufferRead {
            buffer,
            range: skip..skip + found,
            _share: share,
        };
        Chunk {
            offset,
            bytes: Bytes::from_owner(read),
            in_file,
        }
    }

    /// Where it lies in the file.
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.bytes.len() as u64
    }

    /// At most `length` bytes from `offset` of the file on.
    pub(super) fn part(&self, offset: u64, length: usize) -> Part<'_> {
        let bytes = self.from(offset);
        let file = self.in_file.as_ref().and_then(|(buffer, begin)| {
            let (file, _) = buffer.file()?;
            Some((file, begin + offset.checked_sub(self.offset)?))
        });
        Part {
            bytes: bytes.get(..length).unwrap_or(bytes),
            in_file: file,
        }
    }

    /// The bytes from `offset` of the file on.
    pub fn from(&self, offset: u64) -> &[u8] {
        let skipped = offset.checked_sub(self.offset);
        let skipped = skipped.and_then(|skipped| usize::try_from(skipped).ok());
        skipped
            .and_then(|skipped| self.bytes.get(skipped..))
            .unwrap_or_default()
    }
}

/// What may be sent of a chunk at once.
#[derive(Clone, Copy, Default)]
pub(super) struct Part<'a> {
    bytes: &'a [u8],
    /// The same in a file that lies in memory: where they begin.
    in_file: Option<(BorrowedFd<'a>, u64)>,
}

impl Part<'_> {
    /// Sends it behind `prefix`.
    pub fn send(
        self,
        transport: &mut Transport,
        prefix: &[u8],
        context: &mut Context<'_>,
    ) -> io::Result<Sent> {
        match self.in_file {
            None => write::send(transport, prefix, self.bytes, context),
            Some(_) if !prefix.is_empty() => {
                taken(linux_sendfile::send_held_back(transport, prefix, context))
            }
            Some((file, offset)) => {
                linux_sendfile::send_range(transport, file, offset, self.bytes.len(), context)
            }
        }
    }
}

/// Memory for a chunk, which counts for [`limits::READ_MEMORY_BYTES_MAX`] until nobody holds it.
pub(crate) struct Memory(Vec<u8>);

impl Memory {
    /// Room for `length` bytes.
    pub fn new(length: usize) -> Memory {
        IN_USE.fetch_add(length, Ordering::Relaxed);
        Memory(vec![0; length])
    }

    /// The room.
    pub fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    /// The first `length` bytes.
    pub fn into_bytes(self, length: usize) -> Bytes {
        Bytes::from_owner(self).slice(..length)
    }
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        IN_USE.fetch_sub(self.0.len(), Ordering::Relaxed);
    }
}

/// Memory of something else that counts for [`limits::READ_MEMORY_BYTES_MAX`] as long as this is there.
pub(crate) struct Share(usize);

impl Share {
    /// Counts `length` bytes.
    pub fn of(length: usize) -> Share {
        IN_USE.fetch_add(length, Ordering::Relaxed);
        Share(length)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        IN_USE.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// What a queue has read of a chunk.
struct BufferRead {
    buffer: Arc<Buffer>,
    range: Range<usize>,
    _share: Share,
}

impl AsRef<[u8]> for BufferRead {
    fn as_ref(&self) -> &[u8] {
        let read = self.buffer.as_slice(self.range.end);
        read.get(self.range.start..).unwrap_or_default()
    }
}

/// Whether there is memory for more than what is needed now.
pub(crate) fn has_memory() -> bool {
    IN_USE.load(Ordering::Relaxed) < limits::READ_MEMORY_BYTES_MAX
}

/// Bytes of files in memory that are being read or sent, of all workers together.
pub fn memory_in_use() -> usize {
    IN_USE.load(Ordering::Relaxed)
}

static IN_USE: AtomicUsize = AtomicUsize::new(0);

/// What a backend has read since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounts {
    /// Reads that another thread, or the kernel meanwhile, has done: the file was not in memory.
    pub async_reads: u64,
    /// Reads and sends that were done at once: it was.
    pub sync_reads: u64,
    /// Bytes of the first.
    pub async_bytes: u64,
    /// Bytes of the second.
    pub sync_bytes: u64,
}

/// The counts of `backend`.
pub fn io_counts(backend: NetworkBackend) -> IoCounts {
    let counters = &COUNTERS[backend as usize];
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    IoCounts {
        async_reads: read(&counters.async_reads),
        sync_reads: read(&counters.sync_reads),
        async_bytes: read(&counters.async_bytes),
        sync_bytes: read(&counters.sync_bytes),
    }
}

/// The kernel, or a thread, has read `bytes`.
pub(super) fn count_async(backend: NetworkBackend, bytes: usize) {
    let counters = &COUNTERS[backend as usize];
    counters.async_reads.fetch_add(1, Ordering::Relaxed);
    counters
        .async_bytes
        .fetch_add(bytes as u64, Ordering::Relaxed);
}

/// The worker has read or sent `bytes` itself.
pub(super) fn count_sync(backend: NetworkBackend, bytes: usize) {
    let counters = &COUNTERS[backend as usize];
    counters.sync_reads.fetch_add(1, Ordering::Relaxed);
    counters
        .sync_bytes
        .fetch_add(bytes as u64, Ordering::Relaxed);
}

struct Counters {
    async_reads: AtomicU64,
    sync_reads: AtomicU64,
    async_bytes: AtomicU64,
    sync_bytes: AtomicU64,
}

static COUNTERS: [Counters; NetworkBackend::ALL.len()] = [const {
    Counters {
        async_reads: AtomicU64::new(0),
        sync_reads: AtomicU64::new(0),
        async_bytes: AtomicU64::new(0),
        sync_bytes: AtomicU64::new(0),
    }
}; NetworkBackend::ALL.len()];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_knows_where_it_lies() {
        let chunk = Chunk::new(100, Bytes::from_static(b"abcdef"));
        assert_eq!(chunk.range(), 100..106);
        assert_eq!(chunk.from(102), b"cdef");
        assert_eq!(chunk.from(106), b"");
        assert_eq!(chunk.from(99), b"");
        assert_eq!(chunk.from(107), b"");
    }
}
