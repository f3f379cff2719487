//! Bytes of a file that were read to be sent, and how much memory they take up.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Context;

use bytes::Bytes;
use petrel_sys::read_queue::Buffer;

use super::write::{self, taken};
use super::{Sent, linux_sendfile};
use crate::limits;
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

/// How much may be read of `length` bytes that are needed now: little when memory is short. To be asked when
/// the read begins; many may have been wanted while there was memory.
pub(crate) fn within_memory(length: usize) -> usize {
    match has_memory() {
        true => length,
        false => length.min(limits::CHUNK_BYTES_MIN),
    }
}

/// Whether there is memory for more than what is needed now.
pub(crate) fn has_memory() -> bool {
    #[cfg(test)]
    if IS_SHORT.get() {
        return false;
    }
    IN_USE.load(Ordering::Relaxed) < limits::READ_MEMORY_BYTES_MAX
}

/// Bytes of files in memory that are being read or sent, of all workers together.
pub fn memory_in_use() -> usize {
    IN_USE.load(Ordering::Relaxed)
}

static IN_USE: AtomicUsize = AtomicUsize::new(0);

#[cfg(test)]
thread_local! {
    /// Makes memory short for this thread, and not for the tests beside it.
    pub(super) static IS_SHORT: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

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

    #[test]
    fn when_memory_is_short_little_is_read() {
        let min = limits::CHUNK_BYTES_MIN;
        assert_eq!(within_memory(10 * min), 10 * min);
        IS_SHORT.set(true);
        assert_eq!(within_memory(10 * min), min);
        assert_eq!(within_memory(7), 7);
    }
}
