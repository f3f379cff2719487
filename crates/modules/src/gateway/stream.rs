//! A connected socket to a backend.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use super::cgi::Pipes;

/// Where a backend listens, when nothing is left to be looked up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SocketAddress {
    /// A unix socket.
    Unix(PathBuf),
    /// TCP.
    Ip(SocketAddr),
}

/// The socket.
#[derive(Debug)]
pub enum BackendStream {
    /// TCP.
    Tcp(TcpStream),
    /// A unix socket.
    Unix(UnixStream),
    /// The pipes of a CGI program.
    Program(Pipes),
}

/// A connection being made.
pub type Connecting = Pin<Box<dyn Future<Output = io::Result<BackendStream>>>>;

impl std::fmt::Display for SocketAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SocketAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            SocketAddress::Ip(address) => write!(f, "{address}"),
        }
    }
}

impl SocketAddress {
    /// Begins to connect.
    pub fn connect(&self) -> Connecting {
        match self.clone() {
            SocketAddress::Unix(path) => {
                Box::pin(async move { Ok(BackendStream::Unix(UnixStream::connect(path).await?)) })
            }
            SocketAddress::Ip(address) => Box::pin(async move {
                let stream = TcpStream::connect(address).await?;
                // Requests leave in one write; the last part of a long one must not wait.
                stream.set_nodelay(true)?;
                Ok(BackendStream::Tcp(stream))
            }),
        }
    }
}

impl BackendStream {
    /// Reads into `buffer`; 0 is the end. No system call when nothing has arrived.
    pub fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        let result = match self {
            BackendStream::Tcp(stream) => Pin::new(stream).poll_read(context, &mut buffer),
            BackendStream::Unix(stream) => Pin::new(stream).poll_read(context, &mut buffer),
            BackendStream::Program(pipes) => pipes.poll_read(context, &mut buffer),
        };
        result.map_ok(|()| buffer.filled().len())
    }

    /// Sends `bytes`, or as much of them as the socket takes.
    pub fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self {
            BackendStream::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            BackendStream::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
            BackendStream::Program(pipes) => pipes.poll_write(context, bytes),
        }
    }

    /// The whole request is sent: a program sees the end of its input. Other backends know by the
    /// protocol.
    pub fn request_is_sent(&self) {
        if let BackendStream::Program(pipes) = self {
            pipes.request_is_sent();
        }
    }

    /// Nothing more will be sent.
    pub fn shutdown_write(&self) {
        let how = rustix::net::Shutdown::Write;
        // It may be gone already; then there is nobody to tell.
        let _ = match self {
            BackendStream::Tcp(stream) => rustix::net::shutdown(stream, how),
            BackendStream::Unix(stream) => rustix::net::shutdown(stream, how),
            BackendStream::Program(pipes) => {
                pipes.client_has_ended();
                Ok(())
            }
        };
    }

    /// Whether an idle connection is of no use any more: the backend has closed it, or said
    /// something nobody asked for. Makes no system call.
    pub fn is_stale(&self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        let ready = match self {
            BackendStream::Tcp(stream) => stream.poll_read_ready(&mut context),
            BackendStream::Unix(stream) => stream.poll_read_ready(&mut context),
            // It answers one request.
            BackendStream::Program(_) => return true,
        };
        ready.is_ready()
    }

    /// Whether it is a unix socket, on which a reset tells that the request was not read.
    pub fn is_unix(&self) -> bool {
        matches!(self, BackendStream::Unix(_))
    }
}
