//! TLS on a socket to a backend, with the interface of the plain socket.

use std::io;
use std::os::fd::BorrowedFd;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use petrel_engine::tls::{TlsClient, TlsClientError, TlsServer};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::super::limits;
use super::BackendStream;

/// A connection whose TLS handshake is complete.
#[derive(Debug)]
pub struct TlsStream {
    socket: BackendStream,
    client: TlsClient,
}

/// Why the handshake failed: a sentence about the server, which it calls "it".
#[derive(Debug)]
pub(crate) struct HandshakeFailure(String);

impl std::fmt::Display for HandshakeFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for HandshakeFailure {}

impl HandshakeFailure {
    /// Whether `error`, of making a connection, is from its handshake.
    pub(crate) fn is(error: &io::Error) -> bool {
        let inner = error.get_ref();
        inner.is_some_and(<dyn std::error::Error + Send + Sync>::is::<HandshakeFailure>)
    }

    fn from_error(error: &io::Error) -> io::Error {
        let sentence = match error.kind() {
            io::ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
            _ => error.to_string(),
        };
        io::Error::other(HandshakeFailure(sentence))
    }
}

impl TlsStream {
    /// Does the handshake with `server` over `socket`. `prefix` is sent before it, in the clear.
    pub(super) async fn connect(
        socket: BackendStream,
        server: &TlsServer,
        prefix: Vec<u8>,
    ) -> io::Result<TlsStream> {
        let client = server.client(prefix);
        let client = client.map_err(|error| HandshakeFailure::from_error(&error.into()))?;
        let mut stream = TlsStream { socket, client };
        let time = Duration::from_secs(limits::TLS_HANDSHAKE_S_MAX);
        let handshake = std::future::poll_fn(|context| stream.poll_handshake(context));
        match tokio::time::timeout(time, handshake).await {
            Ok(Ok(())) => Ok(stream),
            Ok(Err(error)) => Err(HandshakeFailure::from_error(&error)),
            Err(_) => {
                let silent = HandshakeFailure("it does not answer".to_owned());
                Err(io::Error::other(silent))
            }
        }
    }

    /// The last message of the handshake is sent together with the first request.
    fn poll_handshake(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut buffer = [0; 4096];
        while self.client.is_handshaking() {
            if let Poll::Ready(Err(error)) = self.poll_flush(context) {
                return Poll::Ready(Err(error));
            }
            ready!(self.poll_fill(context, &mut buffer))?;
            // There is no plaintext before the end of the handshake, but the connection may end.
            if self.client.is_handshaking() && self.client.read(&mut [0])?.is_some() {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads plaintext into `buffer`; 0 is the end, which the server must have announced (close_notify).
    pub(super) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        for empty in 0..limits::TLS_EMPTY_READS_MAX {
            if let Some(count) = self.client.read(buffer)? {
                return Poll::Ready(Ok(count));
            }
            // What came was session tickets or other records of TLS itself. A server with Nagle's algorithm sends its
            // reply when they are acknowledged, which the kernel would do 40 ms later.
            if empty == 1 {
                self.acknowledge();
            }
            // The error is ignored: a server that reads no more may have answered all the same.
            let _ = self.poll_flush(context);
            ready!(self.poll_fill(context, buffer))?;
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Accepts a piece of plaintext. Its records may not be sent yet.
    pub(super) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.unsent() > limits::TLS_UNSENT_BYTES_MAX {
            ready!(self.poll_flush(context))?;
        }
        let count = self.client.write(bytes);
        match self.poll_flush(context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(count)),
        }
    }

    /// Sends the records of what was accepted.
    pub(super) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.client.unsent().is_empty() {
            let sent = self.socket.poll_write(context, self.client.unsent());
            match ready!(sent)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.client.sent(count),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Bytes of records that the socket has not taken yet.
    pub(super) fn unsent(&self) -> usize {
        self.client.unsent().len()
    }

    /// See [`BackendStream::is_stale`]. Reads records that yield no plaintext, such as session tickets.
    pub(super) fn is_stale(&mut self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        self.poll_read(&mut context, &mut [0; 1024]).is_ready()
    }

    /// See [`BackendStream::is_stale_now`].
    pub(super) fn is_stale_now(&mut self) -> bool {
        let mut buffer = [0; 1024];
        for _ in 0..limits::TLS_EMPTY_READS_MAX {
            if self.is_stale() {
                return true;
            }
            let Some(socket) = self.socket.descriptor() else {
                return true;
            };
            let count = match recv(socket, &mut buffer, RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN) => return false,
                Err(_) | Ok((0, _)) => return true,
                Ok((count, _)) => count,
            };
            if self
                .receive(buffer.get(..count).unwrap_or_default())
                .is_err()
            {
                return true;
            }
        }
        true
    }

    /// Says that nothing more will be sent.
    pub(super) fn shutdown_write(&mut self) {
        self.close();
        if self.unsent() == 0 {
            self.socket.shutdown_write();
        }
    }

    /// See [`BackendStream::acknowledge`].
    pub(super) fn acknowledge(&self) {
        self.socket.acknowledge();
    }

    /// The descriptor of the socket.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.socket.descriptor()
    }

    /// Reads records from the socket once, by way of `buffer`.
    fn poll_fill(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<()>> {
        let end = buffer.len().min(limits::TLS_READ_BYTES);
        let room = buffer.get_mut(..end).unwrap_or_default();
        let count = ready!(self.socket.poll_read(context, room))?;
        match count {
            0 => self.client.end_of_input(),
            _ => self.receive(room.get(..count).unwrap_or_default())?,
        }
        Poll::Ready(Ok(()))
    }

    fn receive(&mut self, records: &[u8]) -> Result<(), TlsClientError> {
        let received = self.client.receive(records);
        if received.is_err() {
            self.flush_now();
        }
        received
    }

    /// Sends close_notify, as far as the socket takes it at once.
    fn close(&mut self) {
        self.client.close();
        self.flush_now();
    }

    /// Sends what the socket takes without waiting.
    fn flush_now(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        // The error is ignored: a server that has gone need not be told.
        let _ = self.poll_flush(&mut context);
    }
}

impl Drop for TlsStream {
    fn drop(&mut self) {
        if !self.client.is_handshaking() {
            self.close();
        }
    }
}

#[cfg(test)]
mod tests;
