//! The socket of a client connection.

use petrel_sys::socket::TcpPath;

use crate::system_calls::{made, made_if_ready};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::sendfile;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::{AsyncWrite, Interest};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::coop;

use super::Peeked;

/// A connected TCP or unix socket.
pub(crate) enum ClientSocket {
    Tcp(Exhausted, TcpStream),
    Unix(Exhausted, UnixStream),
}

/// What the last calls have shown. The functions of tokio's streams first make sure that the task would be
/// woken, which takes more instructions than the call itself. These here call first, and ask the runtime when
/// they have to wait.
#[derive(Clone, Copy, Default)]
pub(crate) struct Exhausted {
    /// The last read has taken all that had arrived.
    reads: bool,
    /// The last write has filled the socket.
    writes: bool,
}

impl ClientSocket {
    /// A TCP socket.
    pub(crate) fn tcp(stream: TcpStream) -> ClientSocket {
        ClientSocket::Tcp(Exhausted::default(), stream)
    }

    /// A unix socket.
    pub(crate) fn unix(stream: UnixStream) -> ClientSocket {
        ClientSocket::Unix(Exhausted::default(), stream)
    }

    #[inline]
    fn exhausted(&mut self) -> &mut Exhausted {
        let (ClientSocket::Tcp(exhausted, _) | ClientSocket::Unix(exhausted, _)) = self;
        exhausted
    }

    #[inline]
    fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            ClientSocket::Tcp(_, stream) => stream.as_fd(),
            ClientSocket::Unix(_, stream) => stream.as_fd(),
        }
    }

    /// Like [`TcpStream::try_io`].
    #[inline]
    fn try_io<T>(&self, interest: Interest, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        match self {
            ClientSocket::Tcp(_, stream) => stream.try_io(interest, call),
            ClientSocket::Unix(_, stream) => stream.try_io(interest, call),
        }
    }

    /// Reads into `buffer`; 0 is the end. One system call, or none if nothing has arrived.
    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let is_exhausted = std::mem::take(&mut self.exhausted().reads);
        if is_exhausted || !coop::has_budget_remaining() {
            ready!(self.poll_read_ready(context))?;
        }
        loop {
            let mut received = None;
            // The error says only that nothing has arrived, or no more than was received.
            let _ = self.try_io(Interest::READABLE, || {
                let room = buffer.len();
                let result = rustix::net::recv(self.descriptor(), &mut *buffer, RecvFlags::empty());
                let result = result.map(|(_, count)| count);
                if result != Err(Errno::AGAIN) {
                    received = Some(result);
                }
                match result {
                    Err(Errno::AGAIN) => not_ready(),
                    Ok(count) if count > 0 && count < room => not_ready(),
                    _ => Ok(()),
                }
            });
            if let Some(received) = received {
                made();
                match received {
                    Ok(count) if count == buffer.len() => use_budget(context),
                    Ok(count) => self.exhausted().reads = count > 0,
                    Err(_) => {}
                }
                return Poll::Ready(Ok(received?));
            }
            ready!(self.poll_read_ready(context))?;
        }
    }

    /// Waits until there is something to read, and returns what it is without reading it.
    pub(crate) fn poll_peek(&mut self, context: &mut Context<'_>) -> Poll<Peeked> {
        if ready!(self.poll_read_ready(context)).is_err() {
            return Poll::Ready(Peeked::Gone);
        }
        Poll::Ready(match self.peek() {
            Ok(0) => Peeked::End,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Peeked::Bytes,
            Err(_) => Peeked::Gone,
        })
    }

    /// Waits until there is something to read, as far as the runtime knows.
    pub(crate) fn poll_read_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            ClientSocket::Tcp(_, stream) => stream.poll_read_ready(context),
            ClientSocket::Unix(_, stream) => stream.poll_read_ready(context),
        }
    }

    /// Whether neither bytes nor the end of the stream have arrived. Asks the kernel, because the runtime's
    /// knowledge may be outdated. One system call.
    pub(crate) fn is_silent(&self) -> bool {
        matches!(self.peek(), Err(Errno::AGAIN))
    }

    fn peek(&self) -> rustix::io::Result<usize> {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        made();
        let mut buffer = [0; 1];
        let (_, count) = rustix::net::recv(self.descriptor(), &mut buffer, flags)?;
        Ok(count)
    }

    /// Sends `bytes`.
    pub(crate) fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            if self.exhausted().writes {
                ready!(self.poll_write_ready(context))?;
                self.exhausted().writes = false;
            }
            match rustix::net::send(self.descriptor(), bytes, SendFlags::NOSIGNAL) {
                Err(Errno::AGAIN) => self.note_full(),
                sent => {
                    made();
                    if sent.is_ok_and(|count| count < bytes.len()) {
                        self.note_full();
                    }
                    return Poll::Ready(Ok(sent?));
                }
            }
        }
    }

    /// The socket takes no more bytes: the next write waits for the event that says otherwise. That event
    /// cannot have come since the send, because this thread fetches events.
    #[cold]
    fn note_full(&mut self) {
        // The error is `WouldBlock`.
        let _ = self.try_io(Interest::WRITABLE, not_ready);
        self.exhausted().writes = true;
    }

    /// Sends the concatenation of `slices`.
    pub(crate) fn poll_write_vectored(
        &mut self,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        made_if_ready(match self {
            ClientSocket::Tcp(_, stream) => Pin::new(stream).poll_write_vectored(context, slices),
            ClientSocket::Unix(_, stream) => Pin::new(stream).poll_write_vectored(context, slices),
        })
    }

    /// Sends `bytes`; the kernel may hold them back until more follows.
    pub(crate) fn poll_write_ahead(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let flags = SendFlags::MORE | SendFlags::NOSIGNAL;
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
            ready!(self.poll_write_ready(context))?;
            made();
            match self.try_io(Interest::WRITABLE, || call(self.descriptor())) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                other => return Poll::Ready(other),
            }
        }
    }

    /// Whether no more bytes can be sent. One system call.
    pub(crate) fn is_broken(&self) -> bool {
        let socket = self.descriptor();
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
        petrel_sys::socket::unacknowledged(self.descriptor()).unwrap_or(0)
    }

    /// The way to the client; `None` for a unix socket. One system call.
    pub(crate) fn tcp_path(&self) -> Option<TcpPath> {
        made();
        match self {
            ClientSocket::Tcp(_, stream) => petrel_sys::socket::tcp_path(stream).ok(),
            ClientSocket::Unix(..) => None,
        }
    }

    /// The local address; `None` for a unix socket. One system call.
    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        match self {
            ClientSocket::Tcp(_, stream) => stream.local_addr().ok(),
            ClientSocket::Unix(..) => None,
        }
    }

    /// The kernel may hold at most `bytes` unsent bytes; 0: as many as its buffers may grow to. The buffer of
    /// a unix socket does not grow.
    pub(crate) fn limit_unsent(&self, bytes: u32) {
        if let ClientSocket::Tcp(_, stream) = self {
            // If a kernel or a sandbox refuses this, nothing changes.
            let _ = petrel_sys::socket::set_tcp_unsent_max(stream, bytes);
        }
    }

    /// Closes the sending side.
    pub(crate) fn shutdown_write(&self) {
        let how = rustix::net::Shutdown::Write;
        // The connection may be gone already, which is fine.
        let _ = rustix::net::shutdown(self.descriptor(), how);
    }

    /// A sender for a disk thread, which sends from files to this socket and may wait for them.
    pub(crate) fn file_sender(&self) -> io::Result<FileSender> {
        self.descriptor().try_clone_to_owned().map(FileSender)
    }

    /// Another thread has found the socket full, so the next wait is for room. Asks the socket itself, in
    /// case there is room by now. That also makes the kernel report when there will be: what it has reported
    /// earlier is lost.
    pub(crate) fn clear_write_ready(&self) {
        // The error is the `WouldBlock` of `has_room`.
        let _ = self.try_io(Interest::WRITABLE, || has_room(&self.descriptor()));
    }

    /// Waits until the socket is writable, as far as the runtime knows.
    pub(crate) fn poll_write_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            ClientSocket::Tcp(_, stream) => stream.poll_write_ready(context),
            ClientSocket::Unix(_, stream) => stream.poll_write_ready(context),
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

/// Tells tokio that a call would have to wait.
#[inline]
fn not_ready() -> io::Result<()> {
    Err(io::ErrorKind::WouldBlock.into())
}

/// A task that reads much lets others run after a while.
#[cold]
fn use_budget(context: &mut Context<'_>) {
    if let Poll::Ready(budget) = coop::poll_proceed(context) {
        budget.made_progress();
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
