//! The stream of a client connection: a plain socket, or TLS over one.

mod client_socket;
mod tls_stream;

use petrel_sys::socket::TcpPath;
use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

pub(crate) use client_socket::{ClientSocket, FileSender};
pub(crate) use tls_stream::{HandshakeError, TlsStream};

/// A connected stream. Reads and writes are plaintext.
pub(crate) enum Transport {
    /// Without TLS.
    Plain(ClientSocket),
    /// With TLS, from the first byte of the connection or after a header of the PROXY protocol.
    Tls(Box<TlsStream>),
}

/// What there is to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peeked {
    /// Bytes have arrived.
    Bytes,
    /// The client has closed its sending side. It may still read.
    End,
    /// The connection is broken.
    Gone,
}

impl Transport {
    /// Reads into `buffer`, which is as large as that of the worker; 0 is the end. One system call, or none
    /// if nothing has arrived.
    ///
    /// # Errors
    /// Those of the socket; `InvalidData` for bytes that are not TLS, `UnexpectedEof` if the client closed
    /// without close_notify.
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

    /// Waits until there is something to read, and returns what it is without reading it.
    pub(crate) fn poll_peek(&mut self, context: &mut Context<'_>) -> Poll<Peeked> {
        match self {
            Transport::Plain(socket) => socket.poll_peek(context),
            Transport::Tls(stream) => stream.poll_peek(context),
        }
    }

    /// Whether neither bytes nor the end of the stream have arrived. Asks the kernel, because the runtime's
    /// knowledge may be outdated. One system call.
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

    /// Sends the concatenation of `slices`. TLS may have encrypted bytes that wait for
    /// [`Transport::poll_flush`].
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

    /// Waits until the kernel has taken all written bytes. Without TLS it always has.
    #[inline]
    pub(crate) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Transport::Plain(_) => Poll::Ready(Ok(())),
            Transport::Tls(stream) => stream.poll_flush(context),
        }
    }

    /// The socket, if files can be sent over it without encryption.
    #[inline]
    pub(crate) fn plain(&mut self) -> Option<&mut ClientSocket> {
        match self {
            Transport::Plain(socket) => Some(socket),
            Transport::Tls(_) => None,
        }
    }

    /// The TLS stream. `None` without TLS.
    pub(crate) fn tls(&mut self) -> Option<&mut TlsStream> {
        match self {
            Transport::Plain(_) => None,
            Transport::Tls(stream) => Some(stream),
        }
    }

    /// Whether TLS is used, or will be after the handshake.
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

    /// Whether no more bytes can be sent. One system call.
    pub(crate) fn is_broken(&self) -> bool {
        self.socket().is_broken()
    }

    /// How many sent bytes the client has not acknowledged; 0 if the kernel does not tell. One system call.
    pub(crate) fn unacknowledged(&self) -> u64 {
        match self {
            Transport::Plain(socket) => socket.unacknowledged(),
            Transport::Tls(stream) => stream.unacknowledged(),
        }
    }

    /// The way to the client, as the kernel knows it; `None` for a unix socket. One system call.
    pub(crate) fn tcp_path(&self) -> Option<TcpPath> {
        match self {
            Transport::Plain(socket) => socket.tcp_path(),
            Transport::Tls(stream) => stream.tcp_path(),
        }
    }

    /// How many bytes of TLS records the kernel has not taken yet.
    #[inline]
    pub(crate) fn unsent(&self) -> u64 {
        match self {
            Transport::Plain(_) => 0,
            Transport::Tls(stream) => stream.unsent(),
        }
    }

    /// The local address; `None` for a unix socket. One system call.
    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        self.socket().local_address()
    }

    /// The kernel may hold at most `bytes` unsent bytes; 0: as many as its buffers may grow to. The buffer of
    /// a unix socket does not grow.
    pub(crate) fn limit_unsent(&self, bytes: u32) {
        self.socket().limit_unsent(bytes);
    }

    /// Sends close_notify with TLS: without it the client would take the end for a truncation. Call it when
    /// everything was flushed, before the connection or its sending side is closed.
    pub(crate) fn say_end(&mut self) {
        if let Transport::Tls(stream) = self {
            stream.say_end();
        }
    }

    /// Closes the sending side.
    pub(crate) fn shutdown_write(&self) {
        self.socket().shutdown_write();
    }
}
