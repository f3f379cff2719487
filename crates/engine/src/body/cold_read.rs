//! Reading pieces into memory for those who need the bytes themselves: filters, caches, scripts.
//!
//! What is in memory or in the page cache is read at once; what is not is read by a thread, and the
//! reader waits. Plain connections do not come here: they send files by a network backend.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep};

use super::{Body, Piece};
use crate::blocking::{self, Class, Running};
use crate::exchange::Exchange;
use crate::file_cache::read::{read_at_once, read_full};
use crate::limits;
use crate::network_backend::{Memory, NetworkBackend, count_async, within_memory};

/// What a reader of pieces keeps from one call to the next, and for whom it reads.
pub struct ColdRead {
    running: Option<Running<io::Result<Bytes>>>,
    /// The disk has so long. There is none without a runtime, in tests.
    patience: Option<Pin<Box<Sleep>>>,
    /// What was read and not taken yet: the next bytes of the piece.
    bytes: Bytes,
    /// [`Origin::client`](crate::blocking::Origin::client).
    client: u64,
    /// `server.max-file-wait`.
    wait_s: u32,
}

impl ColdRead {
    /// For what `exchange` is answered with: by its client's share of the disk, and under its settings.
    pub fn of(exchange: &Exchange) -> ColdRead {
        let client = exchange.connection.client_key();
        ColdRead::new(client, exchange.settings.core.file_wait_s)
    }

    /// For `client`, who waits at most `wait_s` seconds each time.
    pub fn new(client: u64, wait_s: u32) -> ColdRead {
        ColdRead {
            running: None,
            patience: None,
            bytes: Bytes::new(),
            client,
            wait_s,
        }
    }

    /// Whether a thread reads.
    pub fn is_reading(&self) -> bool {
        self.running.is_some()
    }

    /// Forgets the piece.
    fn clear(&mut self) {
        *self = ColdRead::new(self.client, self.wait_s);
    }

    /// The time that the disk has from now on.
    fn begin_to_wait(&mut self) {
        // As everywhere: the second in which a wait begins is not counted.
        let time = Duration::from_secs(u64::from(self.wait_s) + 1);
        self.patience = Handle::try_current().ok().map(|_| Box::pin(sleep(time)));
    }

    fn late(&self) -> io::Error {
        let wait_s = self.wait_s;
        let words =
            format!("the file system has not answered for {wait_s} s (server.max-file-wait)");
        io::Error::new(io::ErrorKind::TimedOut, words)
    }

    /// Whether nothing is under way or at hand.
    fn is_unused(&self) -> bool {
        self.running.is_none() && self.bytes.is_empty()
    }
}

impl Piece {
    /// Reads up to `buffer.len()` bytes from the front of the piece and forgets them, without waiting for
    /// the disk. `cold` belongs to the reader, and to one piece at a time.
    ///
    /// # Errors
    /// The file could not be read, or ends before the piece does (it was truncated); `TimedOut` when the disk
    /// has not answered for `server.max-file-wait`. The error names the file.
    pub fn poll_read(
        &mut self,
        buffer: &mut [u8],
        cold: &mut ColdRead,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if cold.is_unused()
            && let Some(count) = self.read_now(buffer)?
        {
            return Poll::Ready(Ok(count));
        }
        let bytes = ready!(self.poll_bytes(cold, buffer.len(), context))?;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    /// What is at hand already, or the next bytes, read into memory of their own: so many at most.
    fn poll_in_memory(
        &mut self,
        cold: &mut ColdRead,
        bytes_max: usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Bytes>> {
        if cold.is_unused() {
            let length = usize::try_from(self.length()).unwrap_or(usize::MAX);
            let mut memory = Memory::new(within_memory(length.min(bytes_max)));
            if let Some(count) = self.read_now(memory.as_mut())? {
                return Poll::Ready(Ok(memory.into_bytes(count)));
            }
        }
        self.poll_bytes(cold, bytes_max, context)
    }

    /// The next bytes, which a thread has read or is to read: so many at most.
    fn poll_bytes(
        &mut self,
        cold: &mut ColdRead,
        bytes_max: usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Bytes>> {
        if cold.bytes.is_empty() {
            let fetched = ready!(self.poll_fetch(cold, context));
            fetched.map_err(|error| self.named(&error))?;
        }
        let wanted = usize::try_from(self.length()).unwrap_or(usize::MAX);
        let count = wanted.min(bytes_max).min(cold.bytes.len());
        self.advance(count as u64);
        Poll::Ready(Ok(cold.bytes.split_to(count)))
    }

    /// The same for what is there at once. `None`: the disk has to be asked.
    ///
    /// # Errors
    /// Those of [`Piece::poll_read`].
    pub fn read_now(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let wanted = usize::try_from(self.length()).unwrap_or(usize::MAX);
        let wanted = wanted.min(buffer.len());
        let buffer = &mut buffer[..wanted];
        let count = match (self.in_memory(), &*self) {
            (Some(_), _) | (_, Piece::Bytes(_)) => return self.read(buffer).map(Some),
            (None, Piece::File { file, range }) => read_at_once(file, buffer, range.start),
        };
        match count.map_err(|error| self.named(&error))? {
            Some(0) if wanted > 0 => Err(self.named(&io::ErrorKind::UnexpectedEof.into())),
            Some(count) => {
                self.advance(count as u64);
                Ok(Some(count))
            }
            None => Ok(None),
        }
    }

    /// Has a thread read the next bytes.
    fn poll_fetch(&self, cold: &mut ColdRead, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if cold.running.is_none() {
            cold.begin_to_wait();
        }
        let running = match &mut cold.running {
            Some(running) => running,
            none => none.insert(self.fetch(cold.client)?),
        };
        let read = match (Pin::new(running).poll(context), &mut cold.patience) {
            (Poll::Ready(read), _) => read,
            (Poll::Pending, Some(patience)) => {
                ready!(patience.as_mut().poll(context));
                return Poll::Ready(Err(cold.late()));
            }
            (Poll::Pending, None) => return Poll::Pending,
        };
        cold.running = None;
        cold.patience = None;
        let bytes = read.unwrap_or_else(|lost| Err(lost.into()))?;
        if bytes.is_empty() {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        cold.bytes = bytes;
        Poll::Ready(Ok(()))
    }

    fn fetch(&self, client: u64) -> io::Result<Running<io::Result<Bytes>>> {
        let Piece::File { file, range } = self else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let descriptor = file.share_descriptor().ok_or(io::ErrorKind::NotFound)?;
        let left = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let (offset, length) = (range.start, left.min(limits::CHUNK_BYTES_FIRST));
        let origin = file.origin(client, length);
        Ok(blocking::run_for(Class::Read, origin, move || {
            let mut memory = Memory::new(within_memory(length));
            let count = read_full(&*descriptor, memory.as_mut(), offset)?;
            count_async(NetworkBackend::GthreadAio, count);
            Ok(memory.into_bytes(count))
        }))
    }
}

impl Piece {
    /// The error with the file it is about.
    fn named(&self, error: &io::Error) -> io::Error {
        let Piece::File { file, .. } = self else {
            return error.kind().into();
        };
        let path = file.path();
        let words = format!("{error} path={:?}", String::from_utf8_lossy(&path));
        io::Error::new(error.kind(), words)
    }
}

/// Turns the pieces of a body into pieces of memory.
pub struct InMemory {
    /// What is being read of the body.
    piece: Option<Piece>,
    cold: ColdRead,
}

impl InMemory {
    /// As [`ColdRead::of`].
    pub fn of(exchange: &Exchange) -> InMemory {
        InMemory {
            piece: None,
            cold: ColdRead::of(exchange),
        }
    }

    /// Whether a thread reads.
    pub fn is_reading(&self) -> bool {
        self.cold.is_reading()
    }

    /// Bytes of the piece that is being read, which the body does not count any more.
    pub fn remaining(&self) -> u64 {
        self.piece.as_ref().map_or(0, Piece::length)
    }

    /// The next piece as it is, behind what is still to be read.
    pub fn poll_rest(
        &mut self,
        body: &mut Body,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Piece>>> {
        match self.piece.take() {
            Some(piece) => {
                // It begins where the bytes end that were handed on.
                self.cold.clear();
                Poll::Ready(Some(Ok(piece)))
            }
            None => body.poll_piece(context),
        }
    }
}

impl Body {
    /// The next piece in memory: stretches of files are read, [`limits::CHUNK_BYTES_FIRST`] at a time.
    pub fn poll_in_memory(
        &mut self,
        reader: &mut InMemory,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Piece>>> {
        let piece = match &mut reader.piece {
            Some(piece) => piece,
            none => match ready!(self.poll_piece(context)) {
                Some(Ok(piece)) if piece.in_memory().is_none() => none.insert(piece),
                other => return Poll::Ready(other),
            },
        };
        let read =
            ready!(piece.poll_in_memory(&mut reader.cold, limits::CHUNK_BYTES_FIRST, context));
        if piece.length() == 0 || read.is_err() {
            reader.piece = None;
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
    use crate::network_backend::io_counts;

    /// A piece of `bytes`, and what has been cut off its file meanwhile.
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

    fn read_all(piece: &mut Piece, is_cold: bool) -> io::Result<Vec<u8>> {
        let (mut cold, mut all, mut buffer) = (ColdRead::new(0, 60), Vec::new(), [0; 1000]);
        if is_cold {
            cold.running = Some(piece.fetch(0)?);
        }
        while piece.length() > 0 {
            let mut context = Context::from_waker(Waker::noop());
            match piece.poll_read(&mut buffer, &mut cold, &mut context) {
                Poll::Ready(count) => all.extend_from_slice(&buffer[..count?]),
                Poll::Pending => std::thread::yield_now(),
            }
        }
        Ok(all)
    }

    #[test]
    fn what_threads_read_is_what_is_read_at_once() {
        let bytes: Vec<u8> = (0..400_000_u32).map(|number| number as u8).collect();
        for range in [0..400_000, 5..6, 100_000..399_999, 131_072..262_144] {
            let expected = &bytes[range.start as usize..range.end as usize];
            for is_cold in [false, true] {
                let mut piece = piece(&bytes, range.clone());
                let counted = || io_counts(NetworkBackend::GthreadAio).async_bytes;
                let before = counted();
                let all = read_all(&mut piece, is_cold).expect("it can be read");
                assert!(all == expected, "{range:?} {is_cold}");
                let by_thread = expected.len().min(limits::CHUNK_BYTES_FIRST) as u64;
                assert!(!is_cold || counted() - before >= by_thread, "{range:?}");
            }
        }
    }

    #[test]
    fn a_file_that_ends_early_is_an_error() {
        for is_cold in [false, true] {
            let mut piece = piece(b"short", 0..10);
            let error = read_all(&mut piece, is_cold).expect_err("five bytes are missing");
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{is_cold}");
        }
    }
}
