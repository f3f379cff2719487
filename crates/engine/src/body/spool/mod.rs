//! Bytes that are kept until somebody takes them: in memory first, then in a temporary file.
//!
//! A body that must be whole before it goes on, or whose taker is slower than its maker, is pushed
//! in at the end and read from the front. The temporary file has no name from the beginning
//! (O_TMPFILE), so nothing is left behind whatever happens. Knows nothing of sockets; the request
//! body and the replies of backends are kept in it.
//!
//! Nobody waits for the disk here. Files are made, written and closed by [blocking](crate::blocking)
//! threads; what is not written yet is in memory and can be taken as if it was. Whoever pushes asks
//! [`Spool::poll_room`] before it fetches more: it is pending as long as the disk is behind by
//! [`limits::SPOOL_UNWRITTEN_BYTES_MAX`], and fails when the disk does. Then no byte that was pushed is
//! lost, but there is no room for another. A spool that is dropped takes its file along, and what a job
//! has done for it meanwhile.

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

/// A queue of bytes with a place in memory and, beyond it, one on disk.
#[derive(Default)]
pub struct Spool {
    place: SpoolPlace,
    /// Offset of the first byte that is still held; all before were released.
    begin: u64,
    /// Bytes that were pushed in all.
    end: u64,
}

enum SpoolPlace {
    /// Everything that is held; the first byte is that at `begin`.
    Memory(SpoolMemory),
    /// What is not in the file is going there.
    Disk(Box<OnDisk>),
}

impl Default for SpoolPlace {
    fn default() -> SpoolPlace {
        SpoolPlace::Memory(SpoolMemory::default())
    }
}

impl Spool {
    /// Forgets everything. Memory for small bodies stays, a file does not.
    pub fn clear(&mut self) {
        let Spool { place, begin, end } = self;
        match place {
            SpoolPlace::Memory(memory) => memory.clear(),
            SpoolPlace::Disk(_) => *place = SpoolPlace::default(),
        }
        *begin = 0;
        *end = 0;
    }

    /// Appends `bytes`. What memory has no room for will go to a file in one of `directories`, the first
    /// in which one can be made, in the turn of `client` ([`Origin::client`]). It is written while somebody polls: [`Spool::poll_room`],
    /// [`Spool::poll_written`] or [`Spool::poll_read`].
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

    /// Whether more may be pushed: memory is enough, or the disk keeps up. False for good after a failure.
    pub fn has_room(&self) -> bool {
        match &self.place {
            SpoolPlace::Memory(_) => true,
            SpoolPlace::Disk(disk) => disk.has_room(),
        }
    }

    /// Ready when more may be pushed.
    ///
    /// # Errors
    /// Those of open(2) and pwrite(2), `StorageFull` above all, each time; `TimedOut` when the disk has done
    /// nothing for [`limits::SPOOL_JOB_S_MAX`].
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

    /// Ready when nothing is being written, so that no more than [`limits::SPOOL_WRITE_BYTES`] are in
    /// memory unless that is their place.
    ///
    /// # Errors
    /// As with [`Spool::poll_room`].
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

    /// Bytes pushed since the last [`Spool::clear`].
    pub fn pushed(&self) -> u64 {
        self.end
    }

    /// Bytes that are held.
    pub fn held(&self) -> u64 {
        self.end - self.begin
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    /// Whether memory was not enough.
    pub fn is_on_disk(&self) -> bool {
        matches!(self.place, SpoolPlace::Disk(_))
    }

    /// The bytes from `offset` on, if all that is held is in memory; otherwise nothing.
    pub fn in_memory(&self, offset: u64) -> Option<&[u8]> {
        let SpoolPlace::Memory(memory) = &self.place else {
            return None;
        };
        let skipped = usize::try_from(offset.checked_sub(self.begin)?).ok()?;
        memory.get(skipped..)
    }

    /// Bytes from `offset` on, at most `bytes_max` and at least one unless it is the end of what is held.
    /// What is in the file is read at once if that does not wait for the disk, otherwise by a thread
    /// that may: one stretch at a time, so one reader at a time.
    ///
    /// # Errors
    /// Those of pread(2); `InvalidInput` for bytes that were released, `TimedOut` as with writing.
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

    /// Brings everything that is held back to memory, for somebody who needs all of it at once and has
    /// looked at [`Spool::held`].
    ///
    /// # Errors
    /// As with [`Spool::poll_read`].
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

    /// Gives up the bytes in front of `offset`.
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

    /// Takes the next stretch off the front: a piece of memory, or of the file, of at most
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

    /// Everything that is held, as a body.
    pub fn into_body(self) -> Body {
        let mut pieces = std::collections::VecDeque::new();
        match self.place {
            SpoolPlace::Memory(memory) if memory.is_empty() => return Body::Empty,
            SpoolPlace::Memory(memory) => return Body::Piece(Piece::Bytes(memory.into_bytes())),
            SpoolPlace::Disk(disk) => {
                disk.into_pieces(self.begin, self.end, |piece| pieces.push_back(piece));
            }
        }
        // Not a lone piece: filters keep what they make of those for the next request.
        Body::Pieces(pieces)
    }

    /// When everything is taken, memory is enough again.
    fn forget_file(&mut self) {
        if self.is_empty() && self.is_on_disk() {
            self.place = SpoolPlace::default();
        }
    }
}

/// A failure, to be told once more.
fn same(failure: &io::Error) -> io::Error {
    match failure.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(failure.kind(), failure.to_string()),
    }
}

/// Bytes that are brought back to memory at a time.
const RECALL_BYTES: usize = 256 * 1024;
