//! A unix socket to a backend that is watched for what arrives, and for room only when it is full.
//!
//! tokio's own stream is registered for both. A unix socket then reports room each time the other side
//! has read something: an event for each request that nobody waits for, and at low load a wake-up.
//! Here a socket becomes such a stream only when it takes no more bytes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use petrel_sys::readiness::readable;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recv, send,
};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

/// The socket.
#[derive(Debug)]
pub struct UnixSocket {
    watch: Watch,
}

#[derive(Debug)]
enum Watch {
    /// For bytes that arrive.
    Reading(AsyncFd<OwnedFd>),
    /// And for room.
    Both(UnixStream),
    /// On the way from one to the other an error came up.
    Lost,
}

impl UnixSocket {
    /// Connects to the socket at `path`, which a unix socket does at once or not at all.
    ///
    /// # Errors
    /// Those of connect(2); `WouldBlock` when the queue of the listening socket is full.
    pub fn connect(path: &Path) -> io::Result<UnixSocket> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        UnixSocket::new(socket)
    }

    /// Takes a connected socket that does not block.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn new(socket: OwnedFd) -> io::Result<UnixSocket> {
        let watch = Watch::Reading(readable(socket)?);
        Ok(UnixSocket { watch })
    }

    /// Reads into `buffer`; 0 is the end. No system call when nothing has arrived.
    pub fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.watch {
            Watch::Reading(socket) => poll_recv(socket, context, buffer),
            Watch::Both(stream) => {
                let mut buffer = ReadBuf::new(buffer);
                let polled = Pin::new(stream).poll_read(context, &mut buffer);
                polled.map_ok(|()| buffer.filled().len())
            }
            Watch::Lost => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    /// Sends `bytes`, or as much of them as the socket takes.
    pub fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Watch::Reading(socket) = &self.watch {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match send(socket, bytes, flags) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return Poll::Ready(Ok(other?)),
            }
            self.watch_for_room()?;
        }
        match &mut self.watch {
            Watch::Both(stream) => Pin::new(stream).poll_write(context, bytes),
            Watch::Reading(_) | Watch::Lost => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    /// Whether something has arrived, or the other side has closed. Makes no system call.
    pub fn has_arrived(&self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        match &self.watch {
            Watch::Reading(socket) => socket.poll_read_ready(&mut context).is_ready(),
            Watch::Both(stream) => stream.poll_read_ready(&mut context).is_ready(),
            Watch::Lost => true,
        }
    }

    /// The descriptor, while there is one.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.watch {
            Watch::Reading(socket) => Some(socket.get_ref().as_fd()),
            Watch::Both(stream) => Some(stream.as_fd()),
            Watch::Lost => None,
        }
    }

    /// The kernel reports at once what is there when the socket is registered anew, so nothing that
    /// arrived meanwhile is missed.
    fn watch_for_room(&mut self) -> io::Result<()> {
        if let Watch::Reading(socket) = std::mem::replace(&mut self.watch, Watch::Lost) {
            let socket = StdUnixStream::from(socket.into_inner());
            self.watch = Watch::Both(UnixStream::from_std(socket)?);
        }
        Ok(())
    }
}

fn poll_recv(
    socket: &AsyncFd<OwnedFd>,
    context: &mut Context<'_>,
    buffer: &mut [u8],
) -> Poll<io::Result<usize>> {
    loop {
        let mut guard = ready!(socket.poll_read_ready(context))?;
        match recv(socket, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((count, _)) => {
                if count > 0 && count < buffer.len() {
                    // That was all: the next event tells of more. The end stays known.
                    guard.clear_ready();
                }
                return Poll::Ready(Ok(count));
            }
            Err(Errno::AGAIN) => guard.clear_ready(),
            Err(Errno::INTR) => {}
            Err(error) => return Poll::Ready(Err(error.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::{Read, Write};

    use super::*;

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
            .block_on(test);
    }

    fn pair() -> (UnixSocket, StdUnixStream) {
        let (ours, theirs) = StdUnixStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("set");
        (UnixSocket::new(ours.into()).expect("registered"), theirs)
    }

    async fn read(socket: &mut UnixSocket) -> Vec<u8> {
        let mut buffer = [0; 1000];
        let count = poll_fn(|context| socket.poll_read(context, &mut buffer))
            .await
            .expect("read");
        buffer[..count].to_vec()
    }

    #[test]
    fn what_arrives_is_read_and_the_end_is_seen() {
        run(async {
            let (mut socket, mut backend) = pair();
            assert!(!socket.has_arrived());
            for text in [&b"one"[..], b"two"] {
                backend.write_all(text).expect("written");
                assert_eq!(read(&mut socket).await, text);
            }
            drop(backend);
            assert_eq!(read(&mut socket).await, b"");
            assert!(socket.has_arrived());
        });
    }

    #[test]
    fn a_full_socket_is_waited_for_and_still_read() {
        run(async {
            let (mut socket, mut backend) = pair();
            let much = vec![7; 4_000_000];
            let reader = std::thread::spawn(move || {
                backend.write_all(b"early").expect("written");
                std::thread::sleep(std::time::Duration::from_millis(20));
                let mut all = vec![0; 4_000_000];
                backend.read_exact(&mut all).expect("read");
                backend.write_all(b"late").expect("written");
                all
            });
            let mut sent = 0;
            while sent < much.len() {
                sent += poll_fn(|context| socket.poll_write(context, &much[sent..]))
                    .await
                    .expect("written");
            }
            let mut heard = read(&mut socket).await;
            while heard != b"earlylate" {
                heard.extend(read(&mut socket).await);
            }
            assert!(reader.join().expect("it ran") == much);
        });
    }

    #[test]
    fn a_reset_is_an_error_and_a_missing_socket_too() {
        run(async {
            let (mut socket, backend) = pair();
            drop(backend);
            let written = poll_fn(|context| socket.poll_write(context, b"x")).await;
            assert_eq!(
                written.expect_err("nobody reads").kind(),
                io::ErrorKind::BrokenPipe
            );
            let missing = UnixSocket::connect(Path::new("/nonexistent/socket"));
            assert_eq!(missing.expect_err("no").kind(), io::ErrorKind::NotFound);
        });
    }
}
