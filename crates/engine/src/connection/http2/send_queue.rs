//! The queue of frames to be sent.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use crate::body::Piece;
use crate::limits;
use crate::transport::Transport;
use crate::worker::Worker;

/// Bytes to be sent: those that were put together, and between them pieces of bodies that are not copied.
#[derive(Default)]
pub(super) struct SendQueue {
    /// What was put together. Public to the encoder, which appends.
    pub(super) bytes: Vec<u8>,
    /// Bytes at the front of `bytes` that are sent.
    sent: usize,
    /// Pieces that go out behind so many of `bytes`.
    pieces: VecDeque<(usize, Piece)>,
    /// Unsent bytes of the pieces.
    piece_bytes: usize,
    /// Bytes that the kernel has taken since the connection began to speak HTTP/2.
    sent_total: u64,
    /// Bytes of the largest piece that is copied into `bytes`.
    pub(super) copied_bytes_max: usize,
}

impl SendQueue {
    /// Borrows the worker's buffer, unless the queue holds a buffer with unsent bytes.
    pub(super) fn take_buffer(&mut self, worker: &Worker, is_tls: bool) {
        self.copied_bytes_max = match is_tls {
            true => limits::INLINED_PIECE_BYTES_MAX,
            false => COPIED_BYTES_MAX_IN_CLEAR,
        };
        if self.bytes.capacity() == 0 {
            self.bytes = worker.send_buffer.take();
        }
    }

    /// Gives the buffer back to the worker when everything is sent, so that an idle connection has none.
    pub(super) fn give_buffer(&mut self, worker: &Worker) {
        if self.is_empty() {
            let mut buffer = std::mem::take(&mut self.bytes);
            if buffer.capacity() <= SEND_BUFFER_BYTES_KEPT {
                buffer.clear();
                worker.send_buffer.set(buffer);
            }
        }
    }

    /// The number of unsent bytes.
    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.sent + self.piece_bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.left() == 0
    }

    /// Whether more frames may be added before some are sent.
    pub(super) fn has_room(&self) -> bool {
        self.left() < limits::HTTP2_SEND_BYTES && self.pieces.len() < PIECES_MAX
    }

    /// The position behind the last byte of the queue, counted from the beginning of the connection.
    pub(super) fn end(&self) -> u64 {
        self.sent_total + self.left() as u64
    }

    /// Bytes that the kernel has taken since the beginning of the connection.
    pub(super) fn sent_total(&self) -> u64 {
        self.sent_total
    }

    /// Appends a piece, without a copy.
    pub(super) fn push(&mut self, piece: Piece) {
        self.piece_bytes += piece.length() as usize;
        self.pieces.push_back((self.bytes.len(), piece));
    }

    /// Writes at most `allowed` bytes to the socket, in one call. The queue must not be empty.
    pub(super) fn poll_write(
        &mut self,
        transport: &mut Transport,
        allowed: usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let polled = match self.pieces.is_empty() {
            true => {
                let bytes = &self.bytes[self.sent..];
                transport.poll_write(context, &bytes[..bytes.len().min(allowed)])
            }
            false => self.poll_write_pieces(transport, allowed, context),
        };
        match polled {
            Poll::Ready(Ok(0)) => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Poll::Ready(Ok(count)) => {
                self.advance(count);
                Poll::Ready(Ok(count))
            }
            other => other,
        }
    }

    fn poll_write_pieces(
        &self,
        transport: &mut Transport,
        allowed: usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let (mut count, mut left, mut position) = (0, allowed, self.sent);
        let mut add = |bytes| {
            let bytes: &[u8] = bytes;
            let bytes = &bytes[..bytes.len().min(left)];
            if !bytes.is_empty() && count < SLICES_MAX {
                slices[count] = IoSlice::new(bytes);
                (count, left) = (count + 1, left - bytes.len());
            }
        };
        for (at, piece) in &self.pieces {
            add(&self.bytes[position..*at]);
            add(piece.in_memory().unwrap_or_default());
            position = *at;
        }
        add(&self.bytes[position..]);
        transport.poll_write_vectored(context, &slices[..count])
    }

    /// Forgets the first `count` bytes, which are sent.
    fn advance(&mut self, mut count: usize) {
        self.sent_total += count as u64;
        while let Some((at, piece)) = self.pieces.front_mut() {
            let between = (*at - self.sent).min(count);
            self.sent += between;
            count -= between;
            let of_piece = (piece.length() as usize).min(count);
            piece.advance(of_piece as u64);
            self.piece_bytes -= of_piece;
            count -= of_piece;
            if piece.length() > 0 {
                return;
            }
            self.pieces.pop_front();
        }
        self.sent += count;
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
        }
    }

    /// Frees the memory of an empty queue.
    pub(super) fn shrink(&mut self) {
        if self.pieces.is_empty() {
            self.pieces = VecDeque::new();
        }
    }

    /// Removes sent bytes from the front of the buffer. A slow client may never empty the queue, which would
    /// grow without end.
    pub(super) fn compact(&mut self) {
        if self.sent >= limits::HTTP2_SEND_BYTES {
            self.bytes.drain(..self.sent);
            for (at, _) in &mut self.pieces {
                *at -= self.sent;
            }
            self.sent = 0;
        }
    }
}

/// [`SendQueue::copied_bytes_max`] of a connection in the clear. The kernel reads longer pieces from where
/// they are, which is cheaper than a copy into a large buffer that the kernel reads afterwards: 2 % of a
/// request for a file of 4 KiB, with 16 of them in one write. On TLS, short pieces are joined into records
/// anyway.
const COPIED_BYTES_MAX_IN_CLEAR: usize = 1024;

/// The largest number of pieces in the queue.
const PIECES_MAX: usize = 30;

/// Slices of a write: each piece and the bytes before it, and the bytes behind the last one.
const SLICES_MAX: usize = 2 * PIECES_MAX + 4;

/// Bytes of the largest buffer that the worker keeps.
const SEND_BUFFER_BYTES_KEPT: usize = 2 * limits::HTTP2_SEND_BYTES;

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::task::Waker;

    use bytes::Bytes;

    use super::*;
    use crate::transport::ClientSocket;

    #[tokio::test(flavor = "local")]
    async fn what_is_sent_in_any_parts_is_what_was_queued() {
        let ours = [&b"head"[..], b"", b"between", b"tail"];
        let pieces = [&b"first piece"[..], b"second", b"third"];
        let expected = b"headfirst piecesecondbetweenthirdtail";
        for allowed in 1..=expected.len() + 1 {
            let (mut client, server) = std::os::unix::net::UnixStream::pair().expect("two sockets");
            server.set_nonblocking(true).expect("a socket");
            let server = tokio::net::UnixStream::from_std(server).expect("a socket");
            let mut transport = Transport::Plain(ClientSocket::unix(server));
            let mut queue = SendQueue::default();
            for (part, bytes) in ours.iter().enumerate() {
                queue.bytes.extend_from_slice(bytes);
                if let Some(piece) = pieces.get(part) {
                    queue.push(Piece::Bytes(Bytes::from_static(piece)));
                }
            }
            assert_eq!(queue.end(), expected.len() as u64);
            let mut context = Context::from_waker(Waker::noop());
            while !queue.is_empty() {
                match queue.poll_write(&mut transport, allowed, &mut context) {
                    Poll::Ready(count) => assert!(count.expect("it is open") <= allowed),
                    Poll::Pending => tokio::task::yield_now().await,
                }
                queue.compact();
            }
            drop(transport);
            let mut received = Vec::new();
            client.read_to_end(&mut received).expect("all of it");
            assert_eq!(received, expected, "{allowed}");
            assert_eq!(queue.sent_total(), expected.len() as u64);
        }
    }

    #[test]
    fn a_queue_that_is_never_empty_forgets_what_is_sent() {
        let mut queue = SendQueue::default();
        for _ in 0..100 {
            queue.bytes.extend_from_slice(&[0; 10_000]);
            queue.push(Piece::Bytes(Bytes::from_static(b"piece")));
            queue.bytes.extend_from_slice(b"x");
            queue.advance(10_005);
            queue.compact();
        }
        assert_eq!(queue.left(), 100);
        assert!(queue.bytes.len() < limits::HTTP2_SEND_BYTES + 20_000);
    }
}
