//! The stream under a connection: a socket in the clear, or TLS over one.

mod client_socket;
mod tls_stream;

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

pub(crate) use client_socket::{ClientSocket, FileSender};
pub(crate) use tls_stream::{HandshakeError, TlsStream};

/// A connected stream. Reads and writes are plaintext.
pub(crate) enum Transport {
    /// In the clear.
    Plain(ClientSocket),
    /// TLS, from the connection's first byte on or behind a header of the PROXY protocol.
    Tls(Box<TlsStream>),
}

/// What a look at the reading side of a stream has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peeked {
    /// There is something to read.
    Bytes,
    /// The other side sends nothing more; it may still read.
    End,
    /// The connection is broken.
    Gone,
}

impl Transport {
    /// Reads into `buffer`, which is as large as the worker's; 0 is the end. One system call, none when nothing has
    /// arrived.
    ///
    /// # Errors
    /// Those of the socket; `InvalidData` for what is no TLS, `UnexpectedEof` if the client has left without a word.
    #[inline]
    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        match self {
            Transport::Plain(socket) => socket.poll_read(context, buffer),
            Transport::Tls(stream) => stream.poll_read(context, buffer),
        }
    }

    /// Waits until something happens on the reading side, and says what, leaving it there.
    pub(crate) fn poll_peek(&mut self, context: &mut Context<'_>) -> Poll<Peeked> {
        match self {
            Transport::Plain(socket) => socket.poll_peek(context),
            Transport::Tls(stream) => stream.poll_peek(context),
        }
    }

    /// Whether nothing has arrived, no end either: asks the kernel itself, as what the runtime knows may be a turn
    /// old. One system call.
    pub(crate) fn is_silent(&self) -> bool {
        match self {
            Transport::Plain(socket) => socket.is_silent(),
            Transport::Tls(stream) => stream.is_silent(),
        }
    }

    /// Sends `bytes`.
    #[inline]
    pub(crate) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self {
            Transport::Plain(socket) => socket.poll_write(context, bytes),
            Transport::Tls(stream) => stream.poll_write(context, &[io::IoSlice::new(bytes)]),
        }
    }

    /// Sends the concatenation of `slices`. What TLS has taken may wait for [`Transport::poll_flush`].
    #[inline]
    pub(crate) fn poll_write_vectored(
        &mut self,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Transport::Plain(socket) => socket.poll_write_vectored(context, slices),
            Transport::Tls(stream) => stream.poll_write(context, slices),
        }
    }

    /// Waits until the kernel has all that was written. In the clear it always has.
    #[inline]
    pub(crate) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Transport::Plain(_) => Poll::Ready(Ok(())),
            Transport::Tls(stream) => stream.poll_flush(context),
        }
    }

    /// The socket, if files can be sent by it as they are.
    #[inline]
    pub(crate) fn plain(&mut self) -> Option<&mut ClientSocket> {
        match self {
            Transport::Plain(socket) => Some(socket),
            Transport::Tls(_) => None,
        }
    }

    /// The stream of TLS.
    pub(crate) fn tls(&mut self) -> Option<&mut TlsStream> {
        match self {
            Transport::Plain(_) => None,
            Transport::Tls(stream) => Some(stream),
        }
    }

    /// Whether what is sent is encrypted, or will be.
    #[inline]
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self, Transport::Tls(_))
    }

    fn socket(&self) -> &ClientSocket {
        match self {
            Transport::Plain(socket) => socket,
            Transport::Tls(stream) => stream.socket(),
        }
    }

    /// Whether nothing can be sent any more. One system call.
    pub(crate) fn is_broken(&self) -> bool {
        self.socket().is_broken()
    }

    /// Bytes that were sent and that the client has not taken yet; 0 where the kernel does not tell. One system call.
    pub(crate) fn unacknowledged(&self) -> u64 {
        match self {
            Transport::Plain(socket) => socket.unacknowledged(),
            Transport::Tls(stream) => stream.unacknowledged(),
        }
    }

    /// Bytes of records that were made of what was written, and that the kernel has not taken.
    #[inline]
    pub(crate) fn unsent(&self) -> u64 {
        match self {
            Transport::Plain(_) => 0,
            Transport::Tls(stream) => stream.unsent(),
        }
    }

    /// The address the client connected to; `None` for a unix socket. One system call.
    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        self.socket().local_address()
    }

    /// Lets the kernel hold at most `bytes` that it has not sent yet; 0: as many as its buffers may grow to. The
    /// buffer of a unix socket does not grow.
    pub(crate) fn limit_unsent(&self, bytes: u32) {
        self.socket().limit_unsent(bytes);
    }

    /// All was said: TLS tells the client so (close_notify), who would take the end for a cut otherwise. To be called
    /// when everything is flushed; the connection is closed next, or its side of it.
    pub(crate) fn say_end(&mut self) {
        if let Transport::Tls(stream) = self {
            stream.say_end();
        }
    }

    /// No more bytes from us.
    pub(crate) fn shutdown_write(&self) {
        self.socket().shutdown_write();
    }
}
