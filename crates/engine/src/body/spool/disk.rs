//! The part of a spool that is not to stay in memory: a temporary file, and the bytes that are not in it yet.
//!
//! ```text
//!   base        written          tail_begin      end
//!    |  the file   |   the block     |   the tail  |
//! ```
//!
//! New bytes are appended to the *tail*. When the tail has [`limits::SPOOL_WRITE_BYTES`], it becomes the
//! *block*, and a job appends the block to the file; one job runs at a time, and the first one creates the
//! file. The block stays in memory until it is in the file. If it cannot be written, it stays for good: no
//! byte is lost, but the spool takes no more. This code does not store the begin and the end of the spool;
//! they are arguments.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;

use super::Piece;
use super::memory::{self, SpoolMemory};
use super::temporary::{self, Target};
use crate::file_cache::{FileEntry, Uncached};
use crate::limits;

/// A temporary file, and the bytes that have to be written to it.
pub(super) struct OnDisk {
    directories: Arc<[PathBuf]>,
    /// `None` until the first block is in the file.
    file: Option<Rc<FileEntry>>,
    /// The client whose turn at the disk the jobs take.
    client: u64,
    /// The offset in the spool of the first byte of the file.
    base: u64,
    /// Bytes before this offset are in the file, unless they were taken before they were written.
    written: u64,
    block: Option<Block>,
    tail: SpoolMemory,
    /// The offset of the first byte in `tail`.
    tail_begin: u64,
    /// The error because of which the spool takes no more bytes.
    failure: Option<io::Error>,
    /// The bytes that were last read from the file, and their offset.
    read: (u64, Vec<u8>),
    /// A job that reads from the file, and its offset.
    reading: Option<(u64, SpoolJob<Vec<u8>>)>,
    /// Bytes that were read back for [`Spool::poll_recall`](super::Spool::poll_recall), and their offset.
    recalled: (u64, Vec<u8>),
}

/// Bytes that a job writes.
struct Block {
    begin: u64,
    bytes: Bytes,
    /// `None`: the job has failed.
    job: Option<SpoolJob<Option<Uncached>>>,
}

type SpoolJob<T> = Pin<Box<dyn Future<Output = io::Result<T>>>>;

impl OnDisk {
    /// Takes over `memory`, which begins at offset `begin`, to write it to a file in one of `directories`.
    /// The jobs take the turn of `client`.
    pub(crate) fn new(
        memory: SpoolMemory,
        begin: u64,
        directories: &[PathBuf],
        client: u64,
    ) -> OnDisk {
        OnDisk {
            directories: directories.into(),
            file: None,
            client,
            base: begin,
            written: begin,
            block: None,
            tail: memory,
            tail_begin: begin,
            failure: None,
            read: (0, Vec::new()),
            reading: None,
            recalled: (0, Vec::new()),
        }
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.tail.append_all(bytes);
    }

    /// Whether the disk keeps up, so that more bytes can be pushed.
    pub(crate) fn has_room(&self) -> bool {
        let block = self.block.as_ref().map_or(0, |block| block.bytes.len());
        let unwritten = block + self.tail.len();
        self.failure.is_none()
            && (unwritten < 2 * limits::SPOOL_WRITE_BYTES
                || (unwritten < limits::SPOOL_UNWRITTEN_BYTES_MAX && memory::has_budget()))
    }

    /// Whether a job is writing a block.
    pub(crate) fn is_writing(&self) -> bool {
        self.block.as_ref().is_some_and(|block| block.job.is_some())
    }

    /// The error because of which no more can be written.
    pub(crate) fn failure(&self) -> Option<&io::Error> {
        self.failure.as_ref()
    }

    /// Continues to write. Bytes before `begin` need not be written.
    pub(crate) fn poll_write(&mut self, begin: u64, context: &mut Context<'_>) {
        loop {
            if let Some(block) = &mut self.block {
                let Some(job) = &mut block.job else { return };
                let Poll::Ready(written) = job.as_mut().poll(context) else {
                    return;
                };
                block.job = None;
                let end = block.end();
                match written {
                    Ok(Some(made)) => self.file = Some(FileEntry::from_uncached(made)),
                    Ok(None) => {}
                    Err(error) => {
                        self.failure = Some(error);
                        return;
                    }
                }
                self.written = end;
                self.block = None;
            }
            if !self.begin_block(begin) {
                return;
            }
        }
    }

    /// Turns the tail into a block and starts a job for it. Returns false if the tail is too short, or if an
    /// earlier job has failed.
    fn begin_block(&mut self, begin: u64) -> bool {
        self.forget(begin);
        if self.failure.is_some() || self.unreleased_tail(begin).len() < limits::SPOOL_WRITE_BYTES {
            return false;
        }
        self.drain_tail(begin);
        let opened = |file: &Rc<FileEntry>| {
            Some(Target::Open(
                file.share_descriptor()?,
                file.origin(self.client, 0),
            ))
        };
        let target = self.file.as_ref().and_then(opened);
        let target = target.unwrap_or_else(|| Target::New(Arc::clone(&self.directories)));
        let (bytes, to_write) = std::mem::take(&mut self.tail).into_shared();
        let begin = self.tail_begin;
        let job = temporary::write(target, to_write, begin - self.base, self.client);
        self.tail_begin += bytes.len() as u64;
        self.block = Some(Block {
            begin,
            bytes,
            job: Some(Box::pin(job)),
        });
        true
    }

    /// Frees the bytes before `begin`.
    pub(crate) fn forget(&mut self, begin: u64) {
        if let Some(block) = &self.block
            && block.job.is_none()
            && block.end() <= begin
        {
            self.block = None;
        }
        // Draining moves the rest of the tail, so it is done only when half of it can go.
        let released = self.tail.len() - self.unreleased_tail(begin).len();
        if released >= self.tail.len() / 2 {
            self.drain_tail(begin);
        }
    }

    fn drain_tail(&mut self, begin: u64) {
        let released = self.tail.len() - self.unreleased_tail(begin).len();
        self.tail.drain(released);
        self.tail_begin += released as u64;
    }

    fn unreleased_tail(&self, begin: u64) -> &[u8] {
        from_offset(&self.tail, self.tail_begin, begin.max(self.tail_begin)).unwrap_or_default()
    }

    /// The bytes from `offset` on that are contiguous in memory.
    pub(crate) fn in_memory(&self, offset: u64) -> Option<&[u8]> {
        let of_block = self
            .block
            .as_ref()
            .and_then(|block| from_offset(&block.bytes, block.begin, offset));
        of_block.or_else(|| from_offset(&self.tail, self.tail_begin, offset))
    }

    /// Takes the piece at `begin` off the spool, which is not empty.
    pub(crate) fn take(&mut self, begin: u64) -> Piece {
        if let Some(file) = &self.file
            && begin < self.written
        {
            let end = self.written.min(begin + limits::SPOOL_PIECE_BYTES_MAX);
            return Piece::File {
                file: Rc::clone(file),
                range: begin - self.base..end - self.base,
            };
        }
        if let Some(block) = &self.block
            && let Some(rest) = rest_from(&block.bytes, block.begin, begin)
        {
            return Piece::Bytes(rest);
        }
        self.drain_tail(begin);
        let tail = std::mem::take(&mut self.tail);
        self.tail_begin += tail.len() as u64;
        Piece::Bytes(tail.into_bytes())
    }

    /// At most `bytes_max` bytes from `offset` on, which is before the end of the spool.
    pub(crate) fn poll_read(
        &mut self,
        offset: u64,
        bytes_max: usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<&[u8]>> {
        let bytes = if offset >= self.written {
            // Frees what was read from the file: a backend may take its time with what it has got.
            self.read = (offset, Vec::new());
            self.in_memory(offset).unwrap_or_default()
        } else {
            if from_offset(&self.read.1, self.read.0, offset).is_none() {
                // A job for another offset is dropped.
                let mut job = match self.reading.take() {
                    Some((of, job)) if of == offset => job,
                    _ => self.read_at(offset, bytes_max)?,
                };
                let read = job.as_mut().poll(context);
                if read.is_pending() {
                    self.reading = Some((offset, job));
                }
                self.read = (offset, ready!(read)?);
            }
            // Nothing was read if another program has truncated the file.
            let read = from_offset(&self.read.1, self.read.0, offset);
            read.ok_or(io::ErrorKind::UnexpectedEof)?
        };
        Poll::Ready(Ok(bytes.get(..bytes_max).unwrap_or(bytes)))
    }

    /// Begins to read at most `bytes_max` bytes of the file from `offset` on.
    fn read_at(&mut self, offset: u64, bytes_max: usize) -> io::Result<SpoolJob<Vec<u8>>> {
        let file = self.file.clone().ok_or(io::ErrorKind::NotFound)?;
        let left = usize::try_from(self.written - offset).unwrap_or(usize::MAX);
        let mut buffer = std::mem::take(&mut self.read.1);
        buffer.resize(left.min(bytes_max), 0);
        let read = temporary::read(file, offset - self.base, buffer, self.client);
        Ok(Box::pin(read))
    }

    /// The bytes that [`OnDisk::keep_recalled`] has stored for the same `begin`.
    pub(crate) fn take_recalled(&mut self, begin: u64) -> Vec<u8> {
        match std::mem::take(&mut self.recalled) {
            (of, bytes) if of == begin => bytes,
            _ => Vec::new(),
        }
    }

    /// Stores bytes that were read back, which begin at `begin`.
    pub(crate) fn keep_recalled(&mut self, begin: u64, bytes: Vec<u8>) {
        self.recalled = (begin, bytes);
    }

    /// Passes all bytes from `begin` to `end` to `take`, in order.
    pub(crate) fn into_pieces(mut self, mut begin: u64, end: u64, mut take: impl FnMut(Piece)) {
        if let Some(file) = self.file.take()
            && begin < self.written
        {
            let range = begin - self.base..self.written - self.base;
            begin = self.written;
            take(Piece::File { file, range });
        }
        while begin < end {
            let piece = self.take(begin);
            begin += piece.length();
            if piece.length() == 0 {
                return;
            }
            take(piece);
        }
    }
}

impl Block {
    fn end(&self) -> u64 {
        self.begin + self.bytes.len() as u64
    }
}

/// The part of `bytes` from `offset` on; `bytes` begins at `begin`. `None` if that is empty.
fn from_offset(bytes: &[u8], begin: u64, offset: u64) -> Option<&[u8]> {
    let skipped = usize::try_from(offset.checked_sub(begin)?).ok()?;
    bytes.get(skipped..).filter(|rest| !rest.is_empty())
}

fn rest_from(bytes: &Bytes, begin: u64, offset: u64) -> Option<Bytes> {
    let rest = from_offset(bytes, begin, offset)?;
    Some(bytes.slice(bytes.len() - rest.len()..))
}
