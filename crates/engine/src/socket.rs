//! A stream socket that is registered for reading, and for writing only while it is full.
//!
//! tokio registers its own streams for both. A unix socket then reports that it is writable each time the
//! other side has read something: an event for each message that no task waits for and, at low load, a
//! wake-up. This socket is registered for writing only when it takes no more bytes.
//!
//! Used by gateways for their backends, and by the FastCGI programs of this project for web servers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::task::{Context, Poll, ready};

use petrel_sys::readiness::{duplex, readable};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recv, send,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The socket. It works with a blocking or a non-blocking descriptor.
#[derive(Debug)]
pub struct Socket {
    watch: SocketWatch,
}

#[derive(Debug)]
enum SocketWatch {
    /// Not registered yet.
    No(OwnedFd),
    /// Registered for reading.
    Reading(AsyncFd<OwnedFd>),
    /// Registered for reading and writing.
    Both(AsyncFd<OwnedFd>),
    /// An error has occurred while the registration was changed.
    Lost,
}

impl Socket {
    /// Takes a connected socket. It is registered when it first has to wait; that saves a registration if its
    /// data is there already.
    pub fn new(descriptor: OwnedFd) -> Socket {
        Socket {
            watch: SocketWatch::No(descriptor),
        }
    }

    /// Takes a connected socket and registers it at once. That saves a read if the data is not there yet.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn watched(descriptor: OwnedFd) -> io::Result<Socket> {
        let watch = SocketWatch::Reading(readable(descriptor)?);
        Ok(Socket { watch })
    }

    /// Connects to the unix socket at `path`, which succeeds or fails without waiting, and registers the
    /// socket.
    ///
    /// # Errors
    /// Those of connect(2); `WouldBlock` if the queue of the listening socket is full.
    pub fn connect(path: &Path) -> io::Result<Socket> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Socket::watched(socket)
    }

    /// Reads into `buffer`; 0 is the end. Makes no system call if the socket is registered and nothing has
    /// arrived.
    pub fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if let SocketWatch::No(descriptor) = &self.watch {
            match recv(descriptor, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((count, _)) => return Poll::Ready(Ok(count)),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
            self.watch_for(Direction::Reading)?;
        }
        match &self.watch {
            SocketWatch::Reading(watched) | SocketWatch::Both(watched) => {
                poll_recv(watched, context, buffer)
            }
            SocketWatch::No(_) | SocketWatch::Lost => {
                Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
            }
        }
    }

    /// Sends `bytes`, or as many of them as the socket takes.
    pub fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let unwatched = match &self.watch {
            SocketWatch::No(descriptor) => Some(descriptor),
            SocketWatch::Reading(watched) => Some(watched.get_ref()),
            SocketWatch::Both(_) | SocketWatch::Lost => None,
        };
        if let Some(descriptor) = unwatched {
            match send(descriptor, bytes, SEND_FLAGS) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return Poll::Ready(Ok(other?)),
            }
            self.watch_for(Direction::Both)?;
        }
        match &self.watch {
            SocketWatch::Both(watched) => poll_send(watched, context, bytes),
            SocketWatch::No(_) | SocketWatch::Reading(_) | SocketWatch::Lost => {
                Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
            }
        }
    }

    /// Whether something has arrived or the other side has closed, as far as the events tell. Makes no system
    /// call.
    pub fn has_arrived(&self) -> bool {
        match &self.watch {
            SocketWatch::No(_) => false,
            SocketWatch::Reading(watched) | SocketWatch::Both(watched) => {
                // Without an event the closure is not called.
                watched.try_io(Interest::READABLE, |_| Ok(())).is_ok()
            }
            SocketWatch::Lost => true,
        }
    }

    /// The descriptor. `None` after an error.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.watch {
            SocketWatch::No(descriptor) => Some(descriptor.as_fd()),
            SocketWatch::Reading(watched) | SocketWatch::Both(watched) => {
                Some(watched.get_ref().as_fd())
            }
            SocketWatch::Lost => None,
        }
    }

    /// Changes the registration. The kernel reports at once what is there when a socket is registered, so no
    /// event is lost.
    fn watch_for(&mut self, direction: Direction) -> io::Result<()> {
        let descriptor = match std::mem::replace(&mut self.watch, SocketWatch::Lost) {
            SocketWatch::No(descriptor) => descriptor,
            SocketWatch::Reading(watched) | SocketWatch::Both(watched) => watched.into_inner(),
            SocketWatch::Lost => return Err(io::ErrorKind::NotConnected.into()),
        };
        self.watch = match direction {
            Direction::Reading => SocketWatch::Reading(readable(descriptor)?),
            Direction::Both => SocketWatch::Both(duplex(descriptor)?),
        };
        Ok(())
    }
}

/// Whether `error`, of a call that creates a descriptor, says that this server has run out of descriptors or
/// memory. Then it tells nothing about the other side.
pub fn is_own_shortage(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)
    )
}

enum Direction {
    Reading,
    Both,
}

const SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

fn poll_recv(
    watched: &AsyncFd<OwnedFd>,
    context: &mut Context<'_>,
    buffer: &mut [u8],
) -> Poll<io::Result<usize>> {
    loop {
        let mut guard = ready!(watched.poll_read_ready(context))?;
        match recv(watched, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((count, _)) => {
                if count > 0 && count < buffer.len() {
                    // All data was read: the next event tells of more. The end of the stream stays known.
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

fn poll_send(
    watched: &AsyncFd<OwnedFd>,
    context: &mut Context<'_>,
    bytes: &[u8],
) -> Poll<io::Result<usize>> {
    loop {
        let mut guard = ready!(watched.poll_write_ready(context))?;
        match send(watched, bytes, SEND_FLAGS) {
            Ok(count) => {
                if count > 0 && count < bytes.len() {
                    // The socket is full: the next event tells of room.
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
    use std::os::unix::net::UnixStream;
    use std::pin::pin;

    use super::*;

    fn run(test: impl Future<Output = ()>) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().expect("a runtime");
        runtime.block_on(test);
    }

    fn unwatched() -> (Socket, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        (Socket::new(ours.into()), theirs)
    }

    fn watched() -> (Socket, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        (Socket::watched(ours.into()).expect("registered"), theirs)
    }

    async fn read(socket: &mut Socket) -> Vec<u8> {
        let mut buffer = [0; 1000];
        let read = poll_fn(|context| socket.poll_read(context, &mut buffer)).await;
        buffer[..read.expect("read")].to_vec()
    }

    async fn write(socket: &mut Socket, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|context| socket.poll_write(context, bytes)).await
    }

    #[test]
    fn what_is_there_is_read_without_watching_for_it() {
        run(async {
            let (mut socket, mut theirs) = unwatched();
            theirs.write_all(b"one").expect("written");
            assert_eq!(read(&mut socket).await, b"one");
            assert_eq!(write(&mut socket, b"two").await.expect("written"), 3);
            assert!(matches!(socket.watch, SocketWatch::No(_)));
            theirs.read_exact(&mut [0; 3]).expect("read");
            {
                let mut next = pin!(read(&mut socket));
                let first = poll_fn(|context| Poll::Ready(next.as_mut().poll(context))).await;
                assert!(first.is_pending());
                theirs.write_all(b"three").expect("written");
                assert_eq!(next.await, b"three");
            }
            assert!(matches!(socket.watch, SocketWatch::Reading(_)));
            drop(theirs);
            assert_eq!(read(&mut socket).await, b"");
        });
    }

    #[test]
    fn what_arrives_is_read_and_the_end_is_seen() {
        run(async {
            let (mut socket, mut theirs) = watched();
            assert!(!socket.has_arrived());
            for text in [&b"one"[..], b"two"] {
                theirs.write_all(text).expect("written");
                assert_eq!(read(&mut socket).await, text);
            }
            drop(theirs);
            assert_eq!(read(&mut socket).await, b"");
            assert!(socket.has_arrived());
        });
    }

    #[test]
    fn a_full_socket_is_waited_for_and_still_read() {
        for pair in [unwatched, watched] {
            run(async {
                let (mut socket, mut theirs) = pair();
                let much = vec![7; 4_000_000];
                let (full, is_full) = std::sync::mpsc::channel::<()>();
                let reader = std::thread::spawn(move || {
                    theirs.write_all(b"early").expect("written");
                    assert!(is_full.recv().is_err(), "the sender is dropped");
                    let mut all = vec![0; 4_000_000];
                    theirs.read_exact(&mut all).expect("read");
                    theirs.write_all(b"late").expect("written");
                    (all, theirs)
                });
                let (mut sent, mut full) = (0, Some(full));
                while sent < much.len() {
                    let written = poll_fn(|context| {
                        let written = socket.poll_write(context, &much[sent..]);
                        if written.is_pending() {
                            full = None;
                        }
                        written
                    });
                    sent += written.await.expect("written");
                }
                assert!(matches!(socket.watch, SocketWatch::Both(_)));
                let mut heard = read(&mut socket).await;
                while heard != b"earlylate" {
                    heard.extend(read(&mut socket).await);
                }
                let (all, theirs) = reader.join().expect("it ran");
                assert!(all == much);
                assert!(!socket.has_arrived());
                drop(theirs);
                assert!(write(&mut socket, b"x").await.is_err());
            });
        }
    }

    #[test]
    fn a_reset_is_an_error_and_a_missing_socket_too() {
        run(async {
            for (mut socket, theirs) in [unwatched(), watched()] {
                drop(theirs);
                let error = write(&mut socket, b"x")
                    .await
                    .expect_err("the other end is closed");
                assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
            }
            let missing = Socket::connect(Path::new("/nonexistent/socket"));
            assert_eq!(missing.expect_err("no").kind(), io::ErrorKind::NotFound);
        });
    }
}
