//! Bytes of a file that were read for sending.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Context;

use bytes::Bytes;
use petrel_sys::read_queue::Buffer;

use super::write::{self, taken};
use super::{SendResult, linux_sendfile};
use crate::file_accounts::MemoryShare;
use crate::transport::ClientSocket;

/// A part of a file, in memory.
pub(crate) struct Chunk {
    /// The offset of the first byte in the file.
    pub(crate) offset: u64,
    /// The bytes.
    pub(crate) bytes: Bytes,
    /// If sendfile(2) can send the bytes from a file in memory: that file, and the offset of the bytes in it.
    pub(crate) in_file: Option<(Arc<Buffer>, u64)>,
}

impl Chunk {
    /// A chunk with `bytes` in ordinary memory.
    pub(crate) fn new(offset: u64, bytes: Bytes) -> Chunk {
        Chunk {
            offset,
            bytes,
            in_file: None,
        }
    }

    /// A chunk of `found` bytes that a read queue has read into `buffer`, after the first `skip` bytes.
    pub(crate) fn in_buffer(
        offset: u64,
        buffer: Buffer,
        skip: usize,
        found: usize,
        share: MemoryShare,
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

    /// The range of the file that the chunk covers.
    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.bytes.len() as u64
    }

    /// At most `length` bytes of the chunk, from `offset` of the file.
    pub(super) fn part(&self, offset: u64, length: usize) -> Part<'_> {
        let from = self.from(offset);
        let bytes = self.bytes.slice_ref(from.get(..length).unwrap_or(from));
        let file = self.in_file.as_ref().and_then(|(buffer, begin)| {
            let (file, _) = buffer.file()?;
            Some((file, begin + offset.checked_sub(self.offset)?))
        });
        Part {
            bytes,
            in_file: file,
        }
    }

    /// The bytes of the chunk from `offset` of the file.
    pub(crate) fn from(&self, offset: u64) -> &[u8] {
        let skipped = offset.checked_sub(self.offset);
        let skipped = skipped.and_then(|skipped| usize::try_from(skipped).ok());
        skipped
            .and_then(|skipped| self.bytes.get(skipped..))
            .unwrap_or_default()
    }
}

/// The part of a chunk that may be sent now.
#[derive(Default)]
pub(crate) struct Part<'a> {
    /// The bytes; empty at the end of the file.
    pub(crate) bytes: Bytes,
    /// The file in memory that has the same bytes, and their offset in it.
    in_file: Option<(BorrowedFd<'a>, u64)>,
}

impl Part<'_> {
    /// Sends the part after `prefix`.
    pub(super) fn send(
        self,
        socket: &mut ClientSocket,
        prefix: &[u8],
        context: &mut Context<'_>,
    ) -> io::Result<SendResult> {
        match self.in_file {
            None => write::send(socket, prefix, &self.bytes, context),
            Some(_) if !prefix.is_empty() => taken(socket.poll_write_ahead(context, prefix)),
            Some((file, offset)) => {
                linux_sendfile::send_range(socket, file, offset, self.bytes.len(), context)
            }
        }
    }
}

/// Bytes in a buffer that a read queue has filled.
struct BufferRead {
    buffer: Arc<Buffer>,
    range: Range<usize>,
    _share: MemoryShare,
}

impl AsRef<[u8]> for BufferRead {
    fn as_ref(&self) -> &[u8] {
        let read = self.buffer.as_slice(self.range.end);
        read.get(self.range.start..).unwrap_or_default()
    }
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
}
