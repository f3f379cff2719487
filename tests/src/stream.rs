//! One end of a TCP or unix connection, which scripts read and write as they please.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

use crate::PATIENCE;

/// The address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// TCP.
    Ip(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    pub(crate) fn connect(address: &Address) -> io::Result<Stream> {
        Ok(match address {
            Address::Ip(address) => {
                Stream::Tcp(TcpStream::connect_timeout(address, PATIENCE)?).without_delay()?
            }
            Address::Unix(path) => Stream::Unix(UnixStream::connect(path)?),
        })
    }

    /// Connects; waits as long as the kernel does.
    pub(crate) fn connect_from(from: Ipv4Addr, address: &Address) -> io::Result<Stream> {
        let Address::Ip(address) = address else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        bind(&socket, &SocketAddr::from((from, 0)))?;
        connect(&socket, address)?;
        Stream::Tcp(socket.into()).without_delay()
    }

    /// Disables Nagle's algorithm, so that small writes are sent at once.
    pub(crate) fn without_delay(self) -> io::Result<Stream> {
        if let Stream::Tcp(stream) = &self {
            stream.set_nodelay(true)?;
        }
        Ok(self)
    }

    /// A second handle of the same connection.
    pub(crate) fn try_clone(&self) -> io::Result<Stream> {
        Ok(match self {
            Stream::Tcp(stream) => Stream::Tcp(stream.try_clone()?),
            Stream::Unix(stream) => Stream::Unix(stream.try_clone()?),
        })
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.shutdown(how),
            Stream::Unix(stream) => stream.shutdown(how),
        }
    }

    /// Makes closing the connection a reset. A unix connection is reset if it is closed with unread bytes.
    pub(crate) fn reset_on_close(&self) {
        if let Stream::Tcp(stream) = self {
            let linger = Some(Duration::ZERO);
            rustix::net::sockopt::set_socket_linger(stream, linger).expect("a TCP socket");
        }
    }

    /// `limit` must not be zero.
    pub(crate) fn set_read_timeout(&self, limit: Duration) {
        match self {
            Stream::Tcp(stream) => stream.set_read_timeout(Some(limit)),
            Stream::Unix(stream) => stream.set_read_timeout(Some(limit)),
        }
        .expect("not zero");
    }

    /// The address of this end; none on a unix socket.
    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        match self {
            Stream::Tcp(stream) => stream.local_addr().ok(),
            Stream::Unix(_) => None,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

/// Whether a read failed because nothing arrived in time.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}
