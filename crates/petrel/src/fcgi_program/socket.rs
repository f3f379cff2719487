//! A connection's socket, watched for what arrives, and for room only when it is full.
//!
//! A web server that does without kept connections has sent its request before we accept: the first
//! read is tried at once, and a socket that never has to wait is never registered.

use std::io;
use std::os::fd::OwnedFd;
use std::task::{Context, Poll, ready};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use sys::readiness::{duplex, readable};
use tokio::io::unix::AsyncFd;

/// The socket.
#[derive(Debug)]
pub struct Socket {
    watch: Watch,
}

#[derive(Debug)]
enum Watch {
    /// Not at all yet.
    No(OwnedFd),
    /// For bytes that arrive. A unix socket reports room each time its other side reads, which
    /// would be an event for every answer.
    Reading(AsyncFd<OwnedFd>),
    /// And for room.
    Both(AsyncFd<OwnedFd>),
    /// On the way from one to the other an error came up.
    Lost,
}

impl Socket {
    /// Takes a connected socket.
    pub fn new(descriptor: OwnedFd) -> Socket {
        Socket {
            watch: Watch::No(descriptor),
        }
    }

    /// Reads into `buffer`; 0 is the end. No system call when nothing has arrived.
    pub fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if let Watch::No(descriptor) = &self.watch {
            match recv(descriptor, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((count, _)) => return Poll::Ready(Ok(count)),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
            self.watch_for(Direction::Reading)?;
        }
        match &self.watch {
            Watch::Reading(watched) | Watch::Both(watched) => poll_recv(watched, context, buffer),
            Watch::No(_) | Watch::Lost => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    /// Sends `bytes`, or as much of them as the socket takes.
    pub fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Watch::No(descriptor) = &self.watch {
            match send(descriptor, bytes, SEND_FLAGS) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return Poll::Ready(Ok(other?)),
            }
            self.watch_for(Direction::Both)?;
        } else if let Watch::Reading(watched) = &self.watch {
            match send(watched.get_ref(), bytes, SEND_FLAGS) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return Poll::Ready(Ok(other?)),
            }
            self.watch_for(Direction::Both)?;
        }
        match &self.watch {
            Watch::Both(watched) => poll_send(watched, context, bytes),
            Watch::No(_) | Watch::Reading(_) | Watch::Lost => {
                Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
            }
        }
    }

    /// The kernel reports at once what is there when a socket is registered, so nothing that arrived
    /// meanwhile is missed.
    fn watch_for(&mut self, direction: Direction) -> io::Result<()> {
        let descriptor = match std::mem::replace(&mut self.watch, Watch::Lost) {
            Watch::No(descriptor) => descriptor,
            Watch::Reading(watched) | Watch::Both(watched) => watched.into_inner(),
            Watch::Lost => return Err(io::ErrorKind::NotConnected.into()),
        };
        self.watch = match direction {
            Direction::Reading => Watch::Reading(readable(descriptor)?),
            Direction::Both => Watch::Both(duplex(descriptor)?),
        };
        Ok(())
    }
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

fn poll_send(
    watched: &AsyncFd<OwnedFd>,
    context: &mut Context<'_>,
    bytes: &[u8],
) -> Poll<io::Result<usize>> {
    loop {
        let mut guard = ready!(watched.poll_write_ready(context))?;
        match send(watched, bytes, SEND_FLAGS) {
            Ok(count) => return Poll::Ready(Ok(count)),
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

    use super::*;

    fn run(test: impl Future<Output = ()>) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder
            .enable_all()
            .build()
            .expect("a runtime")
            .block_on(test);
    }

    async fn read(socket: &mut Socket) -> Vec<u8> {
        let mut buffer = [0; 1000];
        let read = poll_fn(|context| socket.poll_read(context, &mut buffer)).await;
        buffer[..read.expect("read")].to_vec()
    }

    #[test]
    fn what_is_there_is_read_without_watching_for_it() {
        run(async {
            let (ours, mut theirs) = UnixStream::pair().expect("a pair");
            let mut socket = Socket::new(ours.into());
            theirs.write_all(b"one").expect("written");
            assert_eq!(read(&mut socket).await, b"one");
            let written = poll_fn(|context| socket.poll_write(context, b"two")).await;
            assert_eq!(written.expect("written"), 3);
            assert!(matches!(socket.watch, Watch::No(_)));
            theirs.read_exact(&mut [0; 3]).expect("read");
            let later = std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(20));
                theirs.write_all(b"three").expect("written");
            });
            assert_eq!(read(&mut socket).await, b"three");
            assert!(matches!(socket.watch, Watch::Reading(_)));
            later.join().expect("it ran");
            assert_eq!(read(&mut socket).await, b"");
        });
    }

    #[test]
    fn a_full_socket_is_waited_for_and_still_read() {
        run(async {
            let (ours, mut theirs) = UnixStream::pair().expect("a pair");
            let mut socket = Socket::new(ours.into());
            let much = vec![7; 4_000_000];
            let reader = std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_millis(20));
                let mut all = vec![0; 4_000_000];
                theirs.read_exact(&mut all).expect("read");
                theirs.write_all(b"late").expect("written");
                all
            });
            let mut sent = 0;
            while sent < much.len() {
                let written = poll_fn(|context| socket.poll_write(context, &much[sent..])).await;
                sent += written.expect("written");
            }
            assert_eq!(read(&mut socket).await, b"late");
            assert!(reader.join().expect("it ran") == much);
            let gone = poll_fn(|context| socket.poll_write(context, b"x")).await;
            assert!(gone.is_err());
        });
    }
}
