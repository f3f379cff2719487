//! Response bodies, which their consumer takes piece by piece.
//!
//! Every [`Piece`] can be read into memory. A piece that is a part of a file can also go from the page cache
//! to the socket without a copy (h2o's send vector). So an HTTP/1 connection without TLS sends files with
//! sendfile, while filters such as deflate, TLS and HTTP/2 read the same piece. A body makes its next piece
//! only when its consumer asks for it, so a slow client slows the source down.

mod in_memory;
mod request;
mod spool;

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use petrel_proto::header_block::HeaderBlock;

use crate::file_cache::FileEntry;
use crate::ledger::Stage;
use crate::waits::HolderText;
pub use in_memory::InMemory;
pub use request::{ReadAhead, RequestBody};
pub use spool::Spool;

/// A response body.
#[derive(Default)]
pub enum Body {
    /// No bytes.
    #[default]
    Empty,
    /// One piece. This is the common case, and allocates nothing.
    Piece(Piece),
    /// Several pieces whose lengths are all known (multipart ranges, joined files).
    Pieces(VecDeque<Piece>),
    /// A source that makes pieces while the body is sent.
    Source(Box<dyn BodySource>),
}

/// A part of a body.
#[derive(Clone)]
pub enum Piece {
    /// Bytes in memory.
    Bytes(Bytes),
    /// A part of an open file. The file's content may be in memory as well.
    File {
        /// The open file.
        file: Rc<FileEntry>,
        /// The range that is still to be sent.
        range: Range<u64>,
    },
}

/// A body that is made while it is sent, by a filter, a backend or a script.
pub trait BodySource {
    /// The next piece, which is not empty; `None` is the end. If the source returns an error before anything
    /// of the response was sent, the error's status replaces the response. Later the connection is cut, so
    /// that the client sees that the body is incomplete.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>>;

    /// How many bytes are still to come, if that is known.
    fn remaining(&self) -> Option<u64>;

    /// The trailers after the last piece, as [`trailers`](petrel_proto::trailers) lets them pass; an empty
    /// block if there are none. Called once, at the end.
    fn take_trailers(&mut self) -> HeaderBlock {
        HeaderBlock::new()
    }

    /// Does work besides making pieces: passes on a streamed request body, reads ahead. The connection calls
    /// this before each of its waits, also while the client takes nothing, and after the last piece as long
    /// as the client sends.
    fn work(&mut self, request_body: &mut RequestBody, context: &mut Context<'_>) {
        let _ = (request_body, context);
    }

    /// The second of the worker's clock in which the source has to be polled again at the latest.
    fn wake_at_s(&self) -> Option<u32> {
        None
    }

    /// After [`BodySource::poll_piece`] was pending: whether the source waits for a disk. Then the connection
    /// does not send the response head yet, so that a disk error can still become an error response.
    fn waits_for_disk(&self) -> bool {
        false
    }

    /// The stage of the ledger for the last call of [`BodySource::poll_piece`] and, if it was pending, for
    /// the wait after it.
    fn stage(&self) -> Stage {
        Stage::Content
    }

    /// After [`BodySource::poll_piece`] was pending: says what the source waited for, as the holder of
    /// [`BodySource::stage`]. Writes nothing where nothing is late.
    fn tell_wait(&self, text: &mut HolderText<'_>) {
        text.write_str("the source of the response had no more bytes");
    }

    /// Whether a processor works to make each piece, so that the time of each counts for [`BodySource::stage`] and not
    /// for sending.
    fn is_work(&self) -> bool {
        false
    }

    /// Whether no more bytes of the client can be passed on, because the other end is gone or did not answer
    /// for too long.
    fn has_failed(&self) -> bool {
        false
    }
}

impl Body {
    /// A body of static bytes.
    pub fn from_static(bytes: &'static [u8]) -> Body {
        Body::Piece(Piece::Bytes(Bytes::from_static(bytes)))
    }

    /// The length of the body, if it is known before the body is sent.
    pub fn length(&self) -> Option<u64> {
        match self {
            Body::Empty => Some(0),
            Body::Piece(piece) => Some(piece.length()),
            Body::Pieces(pieces) => Some(pieces.iter().map(Piece::length).sum()),
            Body::Source(source) => source.remaining(),
        }
    }

    /// See [`BodySource::take_trailers`].
    pub fn take_trailers(&mut self) -> HeaderBlock {
        match self {
            Body::Source(source) => source.take_trailers(),
            _ => HeaderBlock::new(),
        }
    }

    /// See [`BodySource::work`].
    #[inline]
    pub fn work(&mut self, request_body: &mut RequestBody, context: &mut Context<'_>) {
        if let Body::Source(source) = self {
            source.work(request_body, context);
        }
    }

    /// See [`BodySource::wake_at_s`].
    pub fn wake_at_s(&self) -> Option<u32> {
        match self {
            Body::Source(source) => source.wake_at_s(),
            _ => None,
        }
    }

    /// See [`BodySource::waits_for_disk`].
    pub fn waits_for_disk(&self) -> bool {
        match self {
            Body::Source(source) => source.waits_for_disk(),
            _ => false,
        }
    }

    /// See [`BodySource::stage`]. Parts of files are read while they are sent.
    pub fn stage(&self) -> Stage {
        match self {
            Body::Source(source) => source.stage(),
            _ => Stage::ReadFile,
        }
    }

    /// See [`BodySource::tell_wait`].
    pub fn tell_wait(&self, text: &mut HolderText<'_>) {
        match self {
            Body::Source(source) => source.tell_wait(text),
            _ => text.write_str("the disk with the body had not answered"),
        }
    }

    /// See [`BodySource::has_failed`].
    pub fn has_failed(&self) -> bool {
        match self {
            Body::Source(source) => source.has_failed(),
            _ => true,
        }
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.length() == Some(0)
    }

    /// Takes the next piece out of the body.
    #[inline]
    pub fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>> {
        match self {
            Body::Empty => Poll::Ready(None),
            Body::Piece(_) => match std::mem::take(self) {
                Body::Piece(piece) if piece.length() > 0 => Poll::Ready(Some(Ok(piece))),
                _ => Poll::Ready(None),
            },
            Body::Pieces(pieces) => loop {
                match pieces.pop_front() {
                    Some(piece) if piece.length() == 0 => continue,
                    next => break Poll::Ready(next.map(Ok)),
                }
            },
            Body::Source(source) => source.poll_piece(context),
        }
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Body {
        if bytes.is_empty() {
            Body::Empty
        } else {
            Body::Piece(Piece::Bytes(bytes.into()))
        }
    }
}

impl Piece {
    /// How many bytes are left in this piece.
    pub fn length(&self) -> u64 {
        match self {
            Piece::Bytes(bytes) => bytes.len() as u64,
            Piece::File { range, .. } => range.end - range.start,
        }
    }

    /// The bytes, if they are in memory.
    pub fn in_memory(&self) -> Option<&[u8]> {
        match self {
            Piece::Bytes(bytes) => Some(bytes),
            Piece::File { file, range } => {
                let start = usize::try_from(range.start).ok()?;
                let end = usize::try_from(range.end).ok()?;
                file.content()?.get(start..end)
            }
        }
    }

    /// Like [`Piece::in_memory`], for a consumer that keeps the bytes. They are not copied.
    pub(crate) fn share_bytes(&self) -> Option<Bytes> {
        match self {
            Piece::Bytes(bytes) => Some(bytes.clone()),
            Piece::File { file, .. } => {
                let bytes = self.in_memory()?;
                Some(file.share_content()?.slice_ref(bytes))
            }
        }
    }

    /// Removes the first `count` bytes, which were sent or read.
    pub fn advance(&mut self, count: u64) {
        match self {
            Piece::Bytes(bytes) => {
                let count = usize::try_from(count)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                let _ = bytes.split_to(count);
            }
            Piece::File { range, .. } => range.start = (range.start + count).min(range.end),
        }
    }

    /// Removes all bytes after the first `length`.
    pub fn truncate(&mut self, length: u64) {
        match self {
            Piece::Bytes(bytes) => bytes.truncate(usize::try_from(length).unwrap_or(usize::MAX)),
            Piece::File { range, .. } => {
                range.end = range.end.min(range.start.saturating_add(length));
            }
        }
    }

    /// Reads up to `buffer.len()` bytes from the front of the piece and removes them from it. May wait for
    /// the disk, so workers call [`Piece::poll_read`] instead.
    ///
    /// # Errors
    /// The file cannot be read, or is shorter than the piece because it was truncated.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = usize::try_from(self.length())
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let buffer = &mut buffer[..wanted];
        let count = match (self.in_memory(), &*self) {
            (Some(bytes), _) => {
                buffer.copy_from_slice(&bytes[..wanted]);
                wanted
            }
            (None, Piece::File { file, range }) => file.read_at(buffer, range.start)?,
            (None, Piece::Bytes(_)) => 0,
        };
        if count == 0 && wanted > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.advance(count as u64);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    fn next(body: &mut Body) -> Option<Vec<u8>> {
        match body.poll_piece(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Some(Ok(piece))) => piece.in_memory().map(<[u8]>::to_vec),
            _ => None,
        }
    }

    #[test]
    fn one_piece_comes_out_once() {
        let mut body = Body::from(b"abc".to_vec());
        assert_eq!(body.length(), Some(3));
        assert_eq!(next(&mut body), Some(b"abc".to_vec()));
        assert_eq!(next(&mut body), None);
    }

    #[test]
    fn empty_pieces_are_skipped() {
        let pieces =
            [&b""[..], b"a", b"", b"bc"].map(|part| Piece::Bytes(Bytes::from_static(part)));
        let mut body = Body::Pieces(pieces.into());
        assert_eq!(body.length(), Some(3));
        assert_eq!(next(&mut body), Some(b"a".to_vec()));
        assert_eq!(next(&mut body), Some(b"bc".to_vec()));
        assert_eq!(next(&mut body), None);
    }

    #[test]
    fn reading_a_piece_moves_its_start() {
        let mut piece = Piece::Bytes(Bytes::from_static(b"hello"));
        let mut buffer = [0; 3];
        assert_eq!(piece.read(&mut buffer).expect("memory"), 3);
        assert_eq!(&buffer, b"hel");
        assert_eq!(piece.read(&mut buffer).expect("memory"), 2);
        assert_eq!(piece.length(), 0);
        let mut piece = Piece::Bytes(Bytes::from_static(b"hello"));
        piece.truncate(9);
        assert_eq!(piece.in_memory(), Some(&b"hello"[..]));
        piece.truncate(2);
        assert_eq!(piece.in_memory(), Some(&b"he"[..]));
    }
}
