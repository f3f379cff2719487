//! The socket of a client connection.

use petrel_sys::socket::TcpPath;

use crate::system_calls::{made, made_if_ready};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::sendfile;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use super::Peeked;

/// A connected TCP or unix socket.
pub(crate) enum ClientSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl ClientSocket {
    /// Reads into `buffer`; 0 is the end. One system call, or none if nothing has arrived.
    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        let result = match self {
            ClientSocket::Tcp(stream) => Pin::new(stream).poll_read(context, &mut buffer),
            ClientSocket::Unix(stream) => Pin::new(stream).poll_read(context, &mut buffer),
        };
        made_if_ready(result).map_ok(|()| buffer.filled().len())
    }

    /// Waits until there is something to read, and returns what it is without reading it.
    pub(crate) fn poll_peek(&mut self, context: &mut Context<'_>) -> Poll<Peeked> {
        if std::task::ready!(self.poll_read_ready(context)).is_err() {
            return Poll::Ready(Peeked::Gone);
        }
        Poll::Ready(match self.peek() {
            Ok(0) => Peeked::End,
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Peeked::Bytes,
            Err(_) => Peeked::Gone,
        })
    }

    /// Waits until there is something to read, as far as the runtime knows.
    pub(crate) fn poll_read_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            ClientSocket::Tcp(stream) => stream.poll_read_ready(context),
            ClientSocket::Unix(stream) => stream.poll_read_ready(context),
        }
    }

    /// Whether neither bytes nor the end of the stream have arrived. Asks the kernel, because the runtime's
    /// knowledge may be outdated. One system call.
    pub(crate) fn is_silent(&self) -> bool {
        matches!(self.peek(), Err(rustix::io::Errno::AGAIN))
    }

    fn peek(&self) -> rustix::io::Result<usize> {
        let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        made();
        let mut buffer = [0; 1];
        let (_, count) = match self {
            ClientSocket::Tcp(stream) => rustix::net::recv(stream, &mut buffer, flags),
            ClientSocket::Unix(stream) => rustix::net::recv(stream, &mut buffer, flags),
        }?;
        Ok(count)
    }

    /// Sends `bytes`.
    pub(crate) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        made_if_ready(match self {
            ClientSocket::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            ClientSocket::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        })
    }

    /// Sends the concatenation of `slices`.
    pub(crate) fn poll_write_vectored(
        &mut self,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        made_if_ready(match self {
            ClientSocket::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            ClientSocket::Unix(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        })
    }

    /// Sends `bytes`; the kernel may hold them back until more follows.
    pub(crate) fn poll_write_ahead(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let flags = rustix::net::SendFlags::MORE | rustix::net::SendFlags::NOSIGNAL;
        self.poll_send_with(context, |socket| {
            Ok(rustix::net::send(socket, bytes, flags)?)
        })
    }

    /// Sends `count` bytes of `file` from `offset` with sendfile(2); 0 is the end of the file.
    pub(crate) fn poll_send_file(
        &mut self,
        context: &mut Context<'_>,
        file: BorrowedFd<'_>,
        offset: u64,
        count: usize,
    ) -> Poll<io::Result<usize>> {
        self.poll_send_with(context, |socket| {
            let mut offset = offset;
            Ok(sendfile(socket, file, Some(&mut offset), count)?)
        })
    }

    /// Calls `send` when the socket is writable, and again when it was not writable after all.
    fn poll_send_with(
        &mut self,
        context: &mut Context<'_>,
        mut call: impl FnMut(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            std::task::ready!(self.poll_write_ready(context))?;
            made();
            let result = match self {
                ClientSocket::Tcp(stream) => {
                    stream.try_io(Interest::WRITABLE, || call(stream.as_fd()))
                }
                ClientSocket::Unix(stream) => {
                    stream.try_io(Interest::WRITABLE, || call(stream.as_fd()))
                }
            };
            match result {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                other => return Poll::Ready(other),
            }
        }
    }

    /// Whether no more bytes can be sent. One system call.
    pub(crate) fn is_broken(&self) -> bool {
        let socket = match self {
            ClientSocket::Tcp(stream) => stream.as_fd(),
            ClientSocket::Unix(stream) => stream.as_fd(),
        };
        made();
        // poll(2) reports both flags without being asked for them.
        let mut watched = [PollFd::new(&socket, PollFlags::empty())];
        let looked = poll(&mut watched, Some(&NOT_AT_ALL));
        let broken = PollFlags::HUP | PollFlags::ERR;
        looked.is_err() || watched[0].revents().intersects(broken)
    }

    /// How many sent bytes the client has not acknowledged; 0 if the kernel does not tell. One system call.
    pub(crate) fn unacknowledged(&self) -> u64 {
        made();
        let queued = match self {
            ClientSocket::Tcp(stream) => petrel_sys::socket::unacknowledged(stream),
            ClientSocket::Unix(stream) => petrel_sys::socket::unacknowledged(stream),
        };
        queued.unwrap_or(0)
    }

    /// The way to the client; `None` for a unix socket. One system call.
    pub(crate) fn tcp_path(&self) -> Option<TcpPath> {
        made();
        match self {
            ClientSocket::Tcp(stream) => petrel_sys::socket::tcp_path(stream).ok(),
            ClientSocket::Unix(_) => None,
        }
    }

    /// The local address; `None` for a unix socket. One system call.
    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        match self {
            ClientSocket::Tcp(stream) => stream.local_addr().ok(),
            ClientSocket::Unix(_) => None,
        }
    }

    /// The kernel may hold at most `bytes` unsent bytes; 0: as many as its buffers may grow to. The buffer of
    /// a unix socket does not grow.
    pub(crate) fn limit_unsent(&self, bytes: u32) {
        if let ClientSocket::Tcp(stream) = self {
            // If a kernel or a sandbox refuses this, nothing changes.
            let _ = petrel_sys::socket::set_tcp_unsent_max(stream, bytes);
        }
    }

    /// Closes the sending side.
    pub(crate) fn shutdown_write(&self) {
        let how = rustix::net::Shutdown::Write;
        // The connection may be gone already, which is fine.
        let _ = match self {
            ClientSocket::Tcp(stream) => rustix::net::shutdown(stream, how),
            ClientSocket::Unix(stream) => rustix::net::shutdown(stream, how),
        };
    }

    /// A sender for a disk thread, which sends from files to this socket and may wait for them.
    pub(crate) fn file_sender(&self) -> io::Result<FileSender> {
        let socket = match self {
            ClientSocket::Tcp(stream) => stream.as_fd().try_clone_to_owned(),
            ClientSocket::Unix(stream) => stream.as_fd().try_clone_to_owned(),
        };
        socket.map(FileSender)
    }

    /// Another thread has found the socket full, so the next wait is for room. Asks the socket itself, in
    /// case there is room by now. That also makes the kernel report when there will be: what it has reported
    /// earlier is lost.
    pub(crate) fn clear_write_ready(&self) {
        // The error is the `WouldBlock` of `has_room`.
        let _ = match self {
            ClientSocket::Tcp(stream) => stream.try_io(Interest::WRITABLE, || has_room(stream)),
            ClientSocket::Unix(stream) => stream.try_io(Interest::WRITABLE, || has_room(stream)),
        };
    }

    /// Waits until the socket is writable, as far as the runtime knows.
    pub(crate) fn poll_write_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            ClientSocket::Tcp(stream) => stream.poll_write_ready(context),
            ClientSocket::Unix(stream) => stream.poll_write_ready(context),
        }
    }
}

/// A duplicate of the socket for a thread, so that the connection may end while the thread sends.
pub(crate) struct FileSender(OwnedFd);

impl FileSender {
    /// Sends `count` bytes of `file` from `offset` with sendfile(2); 0 is the end of the file. May wait for
    /// the disk.
    ///
    /// # Errors
    /// `WouldBlock` if the socket is full, and those of sendfile(2).
    pub(crate) fn send(&self, file: impl AsFd, mut offset: u64, count: usize) -> io::Result<usize> {
        Ok(sendfile(&self.0, file, Some(&mut offset), count)?)
    }

    /// Shuts the socket down in both directions, even while the thread is in a call.
    pub(crate) fn shut_down(&self) {
        // The client may have closed already.
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }
}

/// Whether a socket is writable now; `WouldBlock` if not.
fn has_room(socket: &impl AsFd) -> io::Result<()> {
    let mut watched = [PollFd::new(socket, PollFlags::OUT)];
    match poll(&mut watched, Some(&NOT_AT_ALL)) {
        Ok(0) => Err(io::ErrorKind::WouldBlock.into()),
        // The next call finds an error of the socket.
        _ => Ok(()),
    }
}

/// The timeout of poll(2).
const NOT_AT_ALL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};
