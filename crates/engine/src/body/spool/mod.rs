//! Stores bytes until a consumer takes them: first in memory, then in a temporary file.
//!
//! A body is stored if it has to be complete before it is passed on, or if its consumer is slower than its
//! source. Bytes are appended at the end and read from the front. The temporary file never has a name
//! (O_TMPFILE), so nothing is left behind if the process ends. Request bodies and replies of backends use
//! spools. Knows nothing of sockets.
//!
//! No call here waits for the disk. [Disk threads](crate::blocking) create, write and close the file; bytes
//! that are not written yet are in memory, and can be read as if they were. Code that appends waits for
//! [`Spool::poll_room`] before it fetches more bytes. That is pending while the disk is behind by
//! [`limits::SPOOL_UNWRITTEN_BYTES_MAX`], and fails when the disk fails. After a failure no appended byte is
//! lost, but the spool takes no more. Dropping a spool removes its file, also one that a job creates just
//! then.

mod disk;
mod memory;
mod temporary;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::task::{Context, Poll};

use super::{Body, Piece};
#[cfg(doc)]
use crate::blocking::Origin;
#[cfg(doc)]
use crate::limits;
use disk::OnDisk;
use memory::SpoolMemory;

/// A queue of bytes in memory and, if that is not enough, in a file.
#[derive(Default)]
pub struct Spool {
    place: SpoolPlace,
    /// The offset of the first stored byte; all bytes before it were released.
    begin: u64,
    /// How many bytes were appended in all.
    end: u64,
}

enum SpoolPlace {
    /// All stored bytes, beginning with the one at `begin`.
    Memory(SpoolMemory),
    /// A file, and bytes that are going to be written to it.
    Disk(Box<OnDisk>),
}

impl Default for SpoolPlace {
    fn default() -> SpoolPlace {
        SpoolPlace::Memory(SpoolMemory::default())
    }
}

impl Spool {
    /// Forgets everything. Keeps the memory of small bodies; a file is removed.
    pub fn clear(&mut self) {
        let Spool { place, begin, end } = self;
        match place {
            SpoolPlace::Memory(memory) => memory.clear(),
            SpoolPlace::Disk(_) => *place = SpoolPlace::default(),
        }
        *begin = 0;
        *end = 0;
    }

    /// Appends `bytes`. What does not fit into memory goes to a file in the first of `directories` that takes
    /// one. The write jobs take the turn of `client` ([`Origin::client`]). They progress only while the
    /// caller polls [`Spool::poll_room`], [`Spool::poll_written`] or [`Spool::poll_read`].
    pub fn push(&mut self, bytes: &[u8], directories: &[PathBuf], client: u64) {
        match &mut self.place {
            SpoolPlace::Memory(memory) => {
                if memory.has_room_for(bytes.len()) {
                    memory.append(bytes);
                    self.end += bytes.len() as u64;
                    return;
                }
                let memory = std::mem::take(memory);
                let mut disk = OnDisk::new(memory, self.begin, directories, client);
                disk.push(bytes);
                self.place = SpoolPlace::Disk(Box::new(disk));
            }
            SpoolPlace::Disk(disk) => disk.push(bytes),
        }
        self.end += bytes.len() as u64;
    }

    /// Whether more bytes may be appended: they fit into memory, or the disk keeps up. Always false after a
    /// failure.
    pub fn has_room(&self) -> bool {
        match &self.place {
            SpoolPlace::Memory(_) => true,
            SpoolPlace::Disk(disk) => disk.has_room(),
        }
    }

    /// Ready when more bytes may be appended.
    ///
    /// # Errors
    /// Those of open(2) and pwrite(2), mostly `StorageFull`, again at each call; `TimedOut` if a job took
    /// longer than [`limits::SPOOL_JOB_S_MAX`].
    pub fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let SpoolPlace::Disk(disk) = &mut self.place else {
            return Poll::Ready(Ok(()));
        };
        disk.poll_write(self.begin, context);
        match disk.failure() {
            Some(failure) => Poll::Ready(Err(same(failure))),
            None if disk.has_room() => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    }

    /// Ready when no job is writing. Then at most [`limits::SPOOL_WRITE_BYTES`] of the bytes that belong into
    /// a file are in memory.
    ///
    /// # Errors
    /// Those of [`Spool::poll_room`].
    pub fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let SpoolPlace::Disk(disk) = &mut self.place else {
            return Poll::Ready(Ok(()));
        };
        disk.poll_write(self.begin, context);
        match disk.failure() {
            Some(failure) => Poll::Ready(Err(same(failure))),
            None if disk.is_writing() => Poll::Pending,
            None => Poll::Ready(Ok(())),
        }
    }

    /// How many bytes were appended since the last [`Spool::clear`].
    pub fn pushed(&self) -> u64 {
        self.end
    }

    /// How many bytes are stored.
    pub fn held(&self) -> u64 {
        self.end - self.begin
    }

    /// Whether no bytes are stored.
    pub fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    /// Whether the spool uses a file.
    pub fn is_on_disk(&self) -> bool {
        matches!(self.place, SpoolPlace::Disk(_))
    }

    /// The bytes from `offset` on, if all stored bytes are in memory.
    pub fn in_memory(&self, offset: u64) -> Option<&[u8]> {
        let SpoolPlace::Memory(memory) = &self.place else {
            return None;
        };
        let skipped = usize::try_from(offset.checked_sub(self.begin)?).ok()?;
        memory.get(skipped..)
    }

    /// At least one and at most `bytes_max` bytes from `offset` on; empty at the end of the spool. Bytes of
    /// the file are read at once if that does not wait, otherwise by a disk thread. Only one read can be
    /// under way, so there can be only one reader.
    ///
    /// # Errors
    /// Those of pread(2); `InvalidInput` for bytes that were released; `TimedOut` as for
    /// [`Spool::poll_room`].
    pub fn poll_read(
        &mut self,
        offset: u64,
        bytes_max: usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<&[u8]>> {
        if offset < self.begin {
            return Poll::Ready(Err(io::ErrorKind::InvalidInput.into()));
        }
        match &mut self.place {
            SpoolPlace::Memory(memory) => {
                let skipped = usize::try_from(offset - self.begin).unwrap_or(usize::MAX);
                let bytes = memory.get(skipped..).unwrap_or_default();
                Poll::Ready(Ok(bytes.get(..bytes_max).unwrap_or(bytes)))
            }
            SpoolPlace::Disk(disk) => {
                disk.poll_write(self.begin, context);
                disk.poll_read(offset, bytes_max, context)
            }
        }
    }

    /// Reads all stored bytes back into memory, for a consumer that needs them all at once and has checked
    /// [`Spool::held`].
    ///
    /// # Errors
    /// Those of [`Spool::poll_read`].
    pub fn poll_recall(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let (begin, end) = (self.begin, self.end);
            let SpoolPlace::Disk(disk) = &mut self.place else {
                return Poll::Ready(Ok(()));
            };
            let mut recalled = disk.take_recalled(begin);
            let offset = begin + recalled.len() as u64;
            if offset == end {
                self.place = SpoolPlace::Memory(recalled.into());
                return Poll::Ready(Ok(()));
            }
            let read = self.poll_read(offset, RECALL_BYTES, context);
            let is_pending = read.is_pending();
            if let Poll::Ready(bytes) = read {
                recalled.extend_from_slice(bytes?);
            }
            if let SpoolPlace::Disk(disk) = &mut self.place {
                disk.keep_recalled(begin, recalled);
            }
            if is_pending {
                return Poll::Pending;
            }
        }
    }

    /// Drops the bytes before `offset`.
    pub fn release(&mut self, offset: u64) {
        let offset = offset.clamp(self.begin, self.end);
        match &mut self.place {
            SpoolPlace::Memory(memory) => {
                memory.drain(usize::try_from(offset - self.begin).unwrap_or(usize::MAX));
            }
            SpoolPlace::Disk(disk) => disk.forget(offset),
        }
        self.begin = offset;
        self.forget_file();
    }

    /// Takes the next piece off the front: bytes in memory, or a part of the file, at most
    /// [`limits::SPOOL_PIECE_BYTES_MAX`].
    pub fn take(&mut self) -> Option<Piece> {
        if self.is_empty() {
            return None;
        }
        let piece = match &mut self.place {
            SpoolPlace::Memory(memory) => Piece::Bytes(std::mem::take(memory).into_bytes()),
            SpoolPlace::Disk(disk) => disk.take(self.begin),
        };
        self.begin += piece.length();
        self.forget_file();
        Some(piece)
    }

    /// All stored bytes, as a body.
    pub fn into_body(self) -> Body {
        match self.place {
            SpoolPlace::Memory(memory) if memory.is_empty() => Body::Empty,
            SpoolPlace::Memory(memory) => Body::Piece(Piece::Bytes(memory.into_bytes())),
            SpoolPlace::Disk(disk) => {
                let mut pieces = std::collections::VecDeque::new();
                disk.into_pieces(self.begin, self.end, |piece| pieces.push_back(piece));
                // A list even if it has a single piece: filters cache their output for bodies that are one
                // piece.
                Body::Pieces(pieces)
            }
        }
    }

    /// When all bytes were taken, the spool begins in memory again.
    fn forget_file(&mut self) {
        if self.is_empty() && self.is_on_disk() {
            self.place = SpoolPlace::default();
        }
    }
}

/// A copy of an error.
fn same(failure: &io::Error) -> io::Error {
    match failure.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(failure.kind(), failure.to_string()),
    }
}

/// How many bytes are read back at a time.
const RECALL_BYTES: usize = 256 * 1024;
