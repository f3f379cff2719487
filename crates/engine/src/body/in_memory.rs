//! Reads the pieces of a body into memory, for code that needs the bytes: filters, caches, scripts,
//! connections that encrypt.
//!
//! Bytes in memory or in the page cache are available at once. Others are read by the same [`FileReader`]
//! that connections use, which reads ahead. Connections without encryption do not come here: their network
//! backend sends from the file.

use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;

use super::{Body, Piece};
use crate::file_cache::FileEntry;
use crate::file_cache::read::read_at_once;
use crate::limits;
use crate::network_backend::{FileReader, Next};

impl Piece {
    /// Reads up to `buffer.len()` bytes from the front of the piece and removes them from it, without waiting
    /// for the disk. `reader` can read one piece at a time.
    ///
    /// # Errors
    /// The file cannot be read, or is shorter than the piece because it was truncated; `TimedOut` if the disk
    /// did not answer for `server.max-file-wait`. The error names the file.
    pub fn poll_read(
        &mut self,
        buffer: &mut [u8],
        reader: &mut FileReader,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let wanted = self.wanted(buffer.len());
        let Some((file, range)) = self.on_disk().filter(|_| wanted > 0) else {
            return Poll::Ready(self.read(buffer));
        };
        let look = || read_at_once(file, &mut buffer[..wanted], range.start);
        let next = ready!(reader.poll_next(file, range, wanted, look, context));
        let read = next.map(|next| match next {
            Next::There(count) => count,
            Next::Chunk(part) => {
                buffer[..part.bytes.len()].copy_from_slice(&part.bytes);
                part.bytes.len()
            }
        });
        Poll::Ready(self.took_from(reader, read, |count| *count))
    }

    /// Like [`Piece::poll_read`], for bytes that can be read at once. `None`: the disk has to be read.
    ///
    /// # Errors
    /// Those of [`Piece::poll_read`].
    pub fn read_now(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let wanted = self.wanted(buffer.len());
        let Some((file, range)) = self.on_disk().filter(|_| wanted > 0) else {
            return self.read(buffer).map(Some);
        };
        match read_at_once(file, &mut buffer[..wanted], range.start) {
            Ok(None) => Ok(None),
            Ok(Some(count)) => self.took(Ok(count), |count| *count).map(Some),
            Err(error) => self.took(Err(error), |count| *count).map(Some),
        }
    }

    /// The next bytes, at most `bytes_max`, or as many as a chunk has, which are not copied.
    fn poll_in_memory(
        &mut self,
        reader: &mut FileReader,
        bytes_max: usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Bytes>> {
        let wanted = self.wanted(bytes_max);
        let Some((file, range)) = self.on_disk() else {
            return Poll::Ready(Err(io::ErrorKind::InvalidInput.into()));
        };
        let readers = Rc::clone(reader.readers());
        let look = || {
            let mut memory = readers.memory(wanted);
            let count = read_at_once(file, memory.as_mut(), range.start)?;
            Ok(count.map(|count| memory.into_bytes(count)))
        };
        let next = ready!(reader.poll_next(file, range, wanted, look, context));
        let read = next.map(|next| match next {
            Next::There(bytes) => bytes,
            Next::Chunk(part) => part.bytes,
        });
        Poll::Ready(self.took_from(reader, read, Bytes::len))
    }

    /// The file and its range, if this piece is a part of a file that is not in memory.
    fn on_disk(&self) -> Option<(&Rc<FileEntry>, &Range<u64>)> {
        match self {
            Piece::File { file, range } if file.content().is_none() => Some((file, range)),
            _ => None,
        }
    }

    fn wanted(&self, bytes_max: usize) -> usize {
        usize::try_from(self.length()).map_or(bytes_max, |length| length.min(bytes_max))
    }

    /// Removes the bytes that were read from the front of the piece. `length` tells how many; 0 is the end of
    /// the file.
    fn took<T>(&mut self, read: io::Result<T>, length: impl FnOnce(&T) -> usize) -> io::Result<T> {
        let error = match read {
            Ok(read) => match length(&read) {
                0 => io::ErrorKind::UnexpectedEof.into(),
                count => {
                    self.advance(count as u64);
                    return Ok(read);
                }
            },
            Err(error) => error,
        };
        let Piece::File { file, .. } = self else {
            return Err(error);
        };
        let path = file.path();
        let words = format!("{error} path={:?}", String::from_utf8_lossy(&path));
        Err(io::Error::new(error.kind(), words))
    }

    /// Like [`Piece::took`]; `reader` also frees a chunk that was used up.
    fn took_from<T>(
        &mut self,
        reader: &mut FileReader,
        read: io::Result<T>,
        length: impl FnOnce(&T) -> usize,
    ) -> io::Result<T> {
        let taken = self.took(read, length);
        if let Some((file, range)) = self.on_disk() {
            reader.drop_chunk_without(file, range.start);
        }
        taken
    }
}

/// Turns the pieces of a body into pieces that are in memory.
pub struct InMemory {
    /// The piece of the body that is being read.
    piece: Option<Piece>,
    reader: FileReader,
    /// Bytes that are read at a time.
    bytes_max: usize,
}

impl InMemory {
    /// Reads files of a body with `reader`.
    pub fn new(reader: FileReader) -> InMemory {
        InMemory {
            piece: None,
            reader,
            bytes_max: limits::CHUNK_BYTES_FIRST,
        }
    }

    /// Like [`InMemory::new`], beginning with `piece`, which was taken from the body already.
    pub fn beginning_with(piece: Piece, reader: FileReader) -> InMemory {
        InMemory {
            piece: Some(piece),
            ..InMemory::new(reader)
        }
    }

    /// Sets how many bytes are read at a time: by default [`limits::CHUNK_BYTES_FIRST`].
    pub fn read_at_most(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// Whether the last call is waiting for the disk.
    pub fn is_waiting(&self) -> bool {
        self.reader.is_waiting()
    }

    /// How many bytes are left of the piece that is being read. The body does not count them any more.
    pub fn remaining(&self) -> u64 {
        self.piece.as_ref().map_or(0, Piece::length)
    }

    /// The rest of the piece that is being read, as it is; after that the next pieces of the body.
    pub fn poll_rest(
        &mut self,
        body: &mut Body,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Piece>>> {
        match self.piece.take() {
            Some(piece) => {
                // The piece begins where the bytes end that were returned last.
                self.reader.clear();
                Poll::Ready(Some(Ok(piece)))
            }
            None => body.poll_piece(context),
        }
    }
}

impl Body {
    /// The next piece, in memory. Parts of files are read, as long as [`InMemory::read_at_most`] says.
    pub fn poll_in_memory(
        &mut self,
        memory: &mut InMemory,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Piece>>> {
        let piece = match &mut memory.piece {
            Some(piece) => piece,
            none => match ready!(self.poll_piece(context)) {
                Some(Ok(piece)) if piece.on_disk().is_some() => none.insert(piece),
                other => return Poll::Ready(other),
            },
        };
        let read = ready!(piece.poll_in_memory(&mut memory.reader, memory.bytes_max, context));
        if piece.length() == 0 || read.is_err() {
            memory.piece = None;
        }
        Poll::Ready(Some(read.map(Piece::Bytes)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Waker;

    use super::*;
    use crate::file_cache::FileEntry;
    use crate::network_backend::NetworkBackend;
    use crate::testing::Site;

    /// A piece of a file that has `bytes` now, while the piece covers `range`.
    fn piece(bytes: &[u8], range: std::ops::Range<u64>) -> Piece {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("petrel-cold-read-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, bytes).expect("write");
        let file = std::fs::File::open(&path).expect("it is there");
        std::fs::remove_file(&path).expect("remove");
        let file = FileEntry::from_file(file, b"/test").expect("a regular file");
        Piece::File { file, range }
    }

    fn read_all(site: &Site, piece: &mut Piece, is_cold: bool) -> io::Result<Vec<u8>> {
        let mut reader = site
            .worker()
            .file_reader(&site.worker().base_settings().core, 0);
        let (mut all, mut buffer) = (Vec::new(), [0; 1000]);
        if is_cold && let Some((file, range)) = piece.on_disk() {
            reader.begin(file, range.clone());
        }
        while piece.length() > 0 {
            let mut context = Context::from_waker(Waker::noop());
            match piece.poll_read(&mut buffer, &mut reader, &mut context) {
                Poll::Ready(count) => all.extend_from_slice(&buffer[..count?]),
                Poll::Pending => std::thread::yield_now(),
            }
        }
        Ok(all)
    }

    #[test]
    fn what_threads_read_is_what_is_read_at_once() {
        let site = Site::new("", &[]);
        let accounts = site.worker().shared().accounts();
        let bytes: Vec<u8> = (0..400_000_u32).map(|number| number as u8).collect();
        for range in [0..400_000, 5..6, 100_000..399_999, 131_072..262_144] {
            let expected = &bytes[range.start as usize..range.end as usize];
            for is_cold in [false, true] {
                let mut piece = piece(&bytes, range.clone());
                let counted = || accounts.io_counts(NetworkBackend::GthreadAio).async_bytes;
                let before = counted();
                let all = read_all(&site, &mut piece, is_cold).expect("it can be read");
                assert!(all == expected, "{range:?} {is_cold}");
                let by_thread = expected.len().min(limits::CHUNK_BYTES_FIRST) as u64;
                assert!(!is_cold || counted() - before >= by_thread, "{range:?}");
            }
        }
        assert_eq!(accounts.memory_in_use(), 0);
    }

    #[test]
    fn a_file_that_ends_early_is_an_error() {
        for is_cold in [false, true] {
            let mut piece = piece(b"short", 0..10);
            let error = read_all(&Site::new("", &[]), &mut piece, is_cold)
                .expect_err("five bytes are missing");
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{is_cold}");
        }
    }
}
