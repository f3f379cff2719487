//! TLS over a client's socket. The [`TlsSession`] does no I/O; this file does it.
//!
//! The session stores encrypted bytes that the socket has not taken yet. They are sent before the bytes of
//! the next write, while the owner waits for bytes to read, or by [`TlsStream::poll_flush`]. So the session
//! tickets of a handshake are sent with the first response, if its request arrived with the end of the
//! handshake.

use petrel_sys::socket::TcpPath;
use std::cell::RefCell;
use std::fmt;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use petrel_proto::client_hello::{ClientHello, HelloError};
use rustls::{AlertDescription, ServerConfig};

use super::{ClientSocket, Peeked};
use crate::clock::Clock;
use crate::limits;
use crate::tls::{ChooseConfig, TlsBuffers, TlsError, TlsFacts, TlsSession};

/// A socket with TLS on it.
pub(crate) struct TlsStream {
    socket: ClientSocket,
    /// `None`: TLS has not begun, or the client does not use it.
    session: Option<TlsSession>,
    /// The buffers of the worker.
    buffers: Rc<RefCell<TlsBuffers>>,
    clock: Rc<Clock>,
    /// Before the handshake: bytes that arrived with a header of the PROXY protocol. Afterwards: bytes that a
    /// peek has decrypted.
    ahead: Vec<u8>,
    /// The session has ended; the next read returns why.
    is_over: bool,
    /// The last write was taken only in part, so less is encrypted in advance.
    is_full: bool,
}

/// Why a handshake has failed.
#[derive(Debug)]
pub(crate) enum HandshakeError {
    /// The client has closed the connection.
    Left,
    /// The socket has failed.
    Socket(io::Error),
    /// TLS has failed. An alert was sent, if there is one for the error.
    Tls(TlsError),
}

impl fmt::Display for HandshakeError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HandshakeError::Left => formatter.write_str("the client left"),
            HandshakeError::Socket(error) => error.fmt(formatter),
            HandshakeError::Tls(error) => error.fmt(formatter),
        }
    }
}

impl TlsStream {
    /// A stream on which TLS has not begun: reads and writes are not encrypted.
    pub(crate) fn new(
        socket: ClientSocket,
        buffers: Rc<RefCell<TlsBuffers>>,
        clock: Rc<Clock>,
    ) -> TlsStream {
        TlsStream {
            socket,
            session: None,
            buffers,
            clock,
            ahead: Vec::new(),
            is_over: false,
            is_full: false,
        }
    }

    /// Begins TLS. `ahead` are bytes that arrived before those on the socket.
    pub(crate) fn begin(&mut self, ahead: Vec<u8>) {
        self.session = Some(TlsSession::default());
        self.ahead = ahead;
    }

    /// Ends TLS for a client that speaks plain HTTP, so that the response is not encrypted. Returns the last
    /// bytes that the client has sent.
    pub(crate) fn end_before_it_began(&mut self) -> Vec<u8> {
        self.session = None;
        std::mem::take(&mut self.ahead)
    }

    /// Whether any byte of the handshake has arrived.
    pub(crate) fn has_begun(&self) -> bool {
        self.session.as_ref().is_some_and(TlsSession::has_begun)
    }

    pub(super) fn socket(&self) -> &ClientSocket {
        &self.socket
    }

    /// Continues the handshake until it is complete. Returns how many bytes of plaintext arrived with its
    /// end; they are in `plain`.
    ///
    /// # Errors
    /// These are final. An alert for the client was written as far as the socket took it.
    pub(crate) fn poll_handshake(
        &mut self,
        context: &mut Context<'_>,
        plain: &mut [u8],
        choose: &ChooseConfig<'_>,
    ) -> Poll<Result<usize, HandshakeError>> {
        let polled = self.poll_hands(context, plain, choose);
        match &polled {
            // With plaintext a response will follow, which takes the session tickets along.
            Poll::Ready(Ok(1..)) => {}
            _ => {
                // The next read finds an error of the socket.
                let _ = self.poll_flush(context);
            }
        }
        polled
    }

    fn poll_hands(
        &mut self,
        context: &mut Context<'_>,
        plain: &mut [u8],
        choose: &ChooseConfig<'_>,
    ) -> Poll<Result<usize, HandshakeError>> {
        let Some(session) = &mut self.session else {
            return Poll::Ready(Err(HandshakeError::Left));
        };
        loop {
            let mut buffers = self.buffers.borrow_mut();
            let room = session.read_room(&mut buffers);
            let read = match self.ahead.is_empty() {
                true => self.socket.poll_read(context, room),
                false => {
                    let count = self.ahead.len().min(room.len());
                    room[..count].copy_from_slice(&self.ahead[..count]);
                    self.ahead.drain(..count);
                    self.ahead.shrink_to_fit();
                    Poll::Ready(Ok(count))
                }
            };
            let received = match read {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(HandshakeError::Left)),
                Poll::Ready(Ok(count)) => {
                    let received = session.receive(count, &mut buffers, plain, choose);
                    if let Err(TlsError::Hello(HelloError::PlainHttp)) = received {
                        self.ahead = buffers.received(count).to_vec();
                    }
                    received
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(HandshakeError::Socket(error))),
            };
            drop(buffers);
            let received = match received {
                Ok(received) => received,
                Err(error) => return Poll::Ready(Err(HandshakeError::Tls(error))),
            };
            self.is_over = received.is_over;
            if session.is_established() || received.is_over {
                return Poll::Ready(Ok(received.bytes));
            }
            if received.is_end {
                return Poll::Ready(Err(HandshakeError::Left));
            }
            // The client waits for these bytes. If the socket is full, the write wakes the task later;
            // reading continues meanwhile.
            let _ = write_out(session, &mut self.socket, &self.buffers, context);
        }
    }

    /// The parameters of the session, once the handshake is complete.
    pub(crate) fn facts(&self) -> Option<TlsFacts<'_>> {
        self.session.as_ref()?.facts()
    }

    /// See [`Transport::poll_read`](super::Transport::poll_read).
    pub(super) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if !self.ahead.is_empty() {
            let count = self.ahead.len().min(buffer.len());
            buffer[..count].copy_from_slice(&self.ahead[..count]);
            self.ahead.drain(..count);
            self.ahead.shrink_to_fit();
            return Poll::Ready(Ok(count));
        }
        let Some(session) = &mut self.session else {
            return self.socket.poll_read(context, buffer);
        };
        loop {
            if session.is_ended() {
                return Poll::Ready(Ok(0));
            }
            let mut buffers = self.buffers.borrow_mut();
            let mut count = 0;
            if !self.is_over {
                let room = session.read_room(&mut buffers);
                let Poll::Ready(read) = self.socket.poll_read(context, room) else {
                    drop(buffers);
                    if session.has_unsent() {
                        let _ = write_out(session, &mut self.socket, &self.buffers, context);
                    }
                    return Poll::Pending;
                };
                count = read?;
                if count == 0 {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
            }
            let received = session.receive(count, &mut buffers, buffer, &refuse);
            drop(buffers);
            let received = match received {
                Ok(received) => received,
                Err(error) => {
                    // Sends the alert.
                    let _ = write_out(session, &mut self.socket, &self.buffers, context);
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
                }
            };
            if received.bytes > 0 {
                self.is_over = received.is_over;
                return Poll::Ready(Ok(received.bytes));
            }
            if received.is_over {
                return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
            }
        }
    }

    /// See [`Transport::poll_peek`](super::Transport::poll_peek). Decrypts and stores the bytes that have
    /// arrived, because only that shows whether they are plaintext or a close_notify.
    pub(super) fn poll_peek(&mut self, context: &mut Context<'_>) -> Poll<Peeked> {
        if !self.ahead.is_empty() {
            return Poll::Ready(Peeked::Bytes);
        }
        if self.session.is_none() {
            return self.socket.poll_peek(context);
        }
        if ready!(self.socket.poll_read_ready(context)).is_err() {
            return Poll::Ready(Peeked::Gone);
        }
        let mut plain = vec![0; limits::RECEIVE_BUFFER_BYTES];
        Poll::Ready(match ready!(self.poll_read(context, &mut plain)) {
            Ok(0) => Peeked::End,
            Ok(count) => {
                plain.truncate(count);
                plain.shrink_to_fit();
                self.ahead = plain;
                Peeked::Bytes
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Peeked::End,
            Err(_) => Peeked::Gone,
        })
    }

    /// See [`Transport::is_silent`](super::Transport::is_silent). The beginning of a record does not count: a
    /// client that never sends the rest would keep an idle connection open forever.
    pub(super) fn is_silent(&self) -> bool {
        self.ahead.is_empty() && self.socket.is_silent()
    }

    /// Encrypts as much of `slices` as one write should send, and writes it. The returned number of bytes was
    /// taken, and what the socket did not take is stored.
    pub(super) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Some(session) = &mut self.session else {
            return self.socket.poll_write_vectored(context, slices);
        };
        let mut buffers = self.buffers.borrow_mut();
        loop {
            let budget = match self.is_full {
                true => limits::TLS_RECORD_BYTES_MAX,
                false => usize::MAX,
            };
            let now_s = self.clock.seconds();
            let outgoing = session
                .encrypt(slices, budget, now_s, &mut buffers)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let taken = outgoing.taken();
            if outgoing.bytes().is_empty() {
                // Nothing was to be written, or the session takes no more.
                return Poll::Ready(Ok(taken));
            }
            match self.socket.poll_write(context, outgoing.bytes()) {
                Poll::Ready(written) => {
                    let written = written?;
                    self.is_full = written < outgoing.bytes().len();
                    outgoing.wrote(written);
                }
                Poll::Pending => {
                    self.is_full = true;
                    drop(outgoing);
                    if taken == 0 {
                        return Poll::Pending;
                    }
                }
            }
            if taken > 0 {
                return Poll::Ready(Ok(taken));
            }
        }
    }

    /// See [`Transport::poll_flush`](super::Transport::poll_flush).
    pub(super) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.session {
            Some(session) => write_out(session, &mut self.socket, &self.buffers, context),
            None => Poll::Ready(Ok(())),
        }
    }

    /// See [`Transport::unacknowledged`](super::Transport::unacknowledged). Counts bytes of records.
    pub(super) fn unacknowledged(&self) -> u64 {
        self.socket.unacknowledged() + self.unsent()
    }

    /// See [`Transport::tcp_path`](super::Transport::tcp_path).
    pub(super) fn tcp_path(&self) -> Option<TcpPath> {
        self.socket.tcp_path()
    }

    /// See [`Transport::unsent`](super::Transport::unsent).
    pub(super) fn unsent(&self) -> u64 {
        let unsent = self.session.as_ref().map_or(0, TlsSession::unsent_bytes);
        unsent as u64
    }

    /// See [`Transport::say_end`](super::Transport::say_end). If the socket is full, the client does not
    /// receive it; the connection is closed anyway.
    pub(super) fn say_end(&mut self) {
        if let Some(session) = &mut self.session {
            session.say_end();
            let mut context = Context::from_waker(Waker::noop());
            let _ = write_out(session, &mut self.socket, &self.buffers, &mut context);
        }
    }
}

/// Writes the encrypted bytes that were not sent yet.
fn write_out(
    session: &mut TlsSession,
    socket: &mut ClientSocket,
    buffers: &RefCell<TlsBuffers>,
    context: &mut Context<'_>,
) -> Poll<io::Result<()>> {
    let mut buffers = buffers.borrow_mut();
    while session.has_unsent() {
        let outgoing = session.outgoing(&mut buffers);
        match ready!(socket.poll_write(context, outgoing.bytes()))? {
            0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            count => outgoing.wrote(count),
        }
    }
    Poll::Ready(Ok(()))
}

/// For sessions that have their configuration already.
fn refuse(_: &ClientHello) -> Result<Arc<ServerConfig>, AlertDescription> {
    Err(AlertDescription::InternalError)
}
