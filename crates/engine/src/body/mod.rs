//! Response bodies: pulled in pieces, one at a time.
//!
//! A [`Piece`] can always be read into memory, and one that is a stretch of a file may also
//! travel from the page cache to the socket without us (h2o's send vector). So a plain HTTP/1
//! connection sends files by sendfile, while a filter such as deflate, or TLS and HTTP/2 later,
//! read the same piece. Who pulls decides the pace: back-pressure lives in one place.

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
pub use in_memory::InMemory;
pub use request::{ReadAhead, RequestBody};
pub use spool::Spool;

/// A response body.
#[derive(Default)]
pub enum Body {
    /// No bytes at all.
    #[default]
    Empty,
    /// One piece: the common case, without an allocation.
    Piece(Piece),
    /// Several pieces whose lengths are all known (multipart ranges, joined files).
    Pieces(VecDeque<Piece>),
    /// Made while it is sent.
    Source(Box<dyn BodySource>),
}

/// A stretch of a body.
#[derive(Clone)]
pub enum Piece {
    /// Bytes in memory.
    Bytes(Bytes),
    /// Bytes `range` of an open file. The file's content may be in memory as well.
    File {
        /// The open file.
        file: Rc<FileEntry>,
        /// What is left to send of it.
        range: Range<u64>,
    },
}

/// A body that is made while it is sent: filters, backends, scripts.
pub trait BodySource {
    /// The next piece; `None` is the end. An error takes the place of the answer as long as nothing of that has been
    /// sent, and cuts the connection afterwards, so that the client sees that the body is incomplete. Pieces are
    /// not empty.
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>>;

    /// Bytes that are still to come, if known.
    fn remaining(&self) -> Option<u64>;

    /// The trailers behind the last piece, as [`trailers`](petrel_proto::trailers) lets them pass; none if the block is
    /// empty. Asked for once, at the end.
    fn take_trailers(&mut self) -> HeaderBlock {
        HeaderBlock::new()
    }

    /// What it does beside making pieces, called before every wait of the connection, also when the
    /// client takes nothing: passes on a streamed request body, reads ahead. Goes on after the
    /// last piece as long as the client sends.
    fn work(&mut self, request_body: &mut RequestBody, context: &mut Context<'_>) {
        let _ = (request_body, context);
    }

    /// The second of the worker's clock in which it wants to be called again at the latest.
    fn wake_at_s(&self) -> Option<u32> {
        None
    }

    /// Whether the next piece is still to be read from a disk, after [`BodySource::poll_piece`] was pending: the head
    /// of the answer does not go ahead of it, so that a disk that fails is an error still.
    fn waits_for_disk(&self) -> bool {
        false
    }

    /// The stage of the ledger that the last call of [`BodySource::poll_piece`] belongs to, and the wait after it if
    /// it was pending.
    fn stage(&self) -> Stage {
        Stage::Content
    }

    /// Whether nothing the client still sends can be passed on: the other end is gone, or silent
    /// for too long.
    fn has_failed(&self) -> bool {
        false
    }
}

impl Body {
    /// A body of bytes that live as long as the program.
    pub fn from_static(bytes: &'static [u8]) -> Body {
        Body::Piece(Piece::Bytes(Bytes::from_static(bytes)))
    }

    /// Bytes of the body, if that is known before it is sent.
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

    /// See [`BodySource::stage`]. Files of a body are read from the disk while they are sent.
    pub fn stage(&self) -> Stage {
        match self {
            Body::Source(source) => source.stage(),
            _ => Stage::Content,
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
    /// Bytes left in this piece.
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

    /// The same for a user that keeps them. They are not copied.
    pub(crate) fn share_bytes(&self) -> Option<Bytes> {
        match self {
            Piece::Bytes(bytes) => Some(bytes.clone()),
            Piece::File { file, .. } => {
                let bytes = self.in_memory()?;
                Some(file.share_content()?.slice_ref(bytes))
            }
        }
    }

    /// Forgets the first `count` bytes: they are sent, or read.
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

    /// Forgets what comes behind the first `length` bytes.
    pub fn truncate(&mut self, length: u64) {
        match self {
            Piece::Bytes(bytes) => bytes.truncate(usize::try_from(length).unwrap_or(usize::MAX)),
            Piece::File { range, .. } => {
                range.end = range.end.min(range.start.saturating_add(length));
            }
        }
    }

    /// Reads up to `buffer.len()` bytes from the front of the piece and forgets them; waits for the disk if
    /// it has to. Workers call [`Piece::poll_read`].
    ///
    /// # Errors
    /// The file could not be read, or ends before the piece does (it was truncated).
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
