//! One client connection: sends a request, and reads until its reply is complete.
//!
//! Sockets stay in blocking mode, because a blocking `connect` over loopback returns at once with the
//! connection established; sends and receives use `MSG_DONTWAIT` instead. The connection is registered with
//! epoll once, edge-triggered.

use super::Error;
use super::reply::{Expected, Reply};
use nix::sys::socket::sockopt::IpBindAddressNoPort;
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

/// Events of a connection whose other side sends no more.
pub const ENDED: epoll::EventFlags = epoll::EventFlags::RDHUP
    .union(epoll::EventFlags::HUP)
    .union(epoll::EventFlags::ERR);

/// A connection with at most one open request.
pub struct Connection {
    socket: OwnedFd,
    reply: Reply,
    /// Complete replies so far.
    answered: u64,
    /// When the open request was due to be sent.
    pub sent_at: Instant,
}

/// The result of a receive.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// The reply is incomplete.
    More,
    /// The reply is complete.
    Done,
    /// The server closed a persistent connection instead of replying: the request may be sent again.
    Closed,
}

impl Connection {
    /// Connects, and registers with `epoll` under `index`.
    pub fn open(
        source: SocketAddrV4,
        address: SocketAddrV4,
        epoll: &OwnedFd,
        index: usize,
    ) -> Result<Self, Error> {
        Ok(Self {
            socket: registered(source, address, epoll, index)?,
            reply: Reply::default(),
            answered: 0,
            sent_at: Instant::now(),
        })
    }

    /// Sends a request whose latency counts from `due`. If the server has just closed a persistent
    /// connection, the next receive notices it.
    pub fn send(&mut self, request: &[u8], due: Instant) -> Result<(), Error> {
        self.sent_at = due;
        match net::send(
            &self.socket,
            request,
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        ) {
            Ok(sent) if sent == request.len() => Ok(()),
            Ok(_) => Err(Error::System("send", Errno::AGAIN)),
            Err(Errno::PIPE | Errno::CONNRESET) if self.answered > 0 => Ok(()),
            Err(errno) => Err(Error::System("send", errno)),
        }
    }

    /// Takes what has arrived. Stops at the end of the reply or when the socket is drained: a receive that
    /// returned less than the buffer holds has drained it, and later data is a new edge, unless the server's
    /// side has `ended`.
    pub fn receive(
        &mut self,
        expected: &Expected,
        buffer: &mut [u8],
        ended: bool,
    ) -> Result<Progress, Error> {
        loop {
            let dropped = self.reply.only_body_is_missing();
            let flags = if dropped {
                RecvFlags::TRUNC
            } else {
                RecvFlags::empty()
            };
            let got = match net::recv(&self.socket, &mut *buffer, flags | RecvFlags::DONTWAIT) {
                Ok((_, 0)) | Err(Errno::CONNRESET | Errno::PIPE) => return self.closed(),
                Ok((_, got)) => got,
                Err(Errno::AGAIN) => return Ok(Progress::More),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(Error::System("recv", errno)),
            };
            let whole = if dropped {
                self.reply.skip(got as u64)?
            } else {
                self.reply.take(&buffer[..got], expected)?
            };
            if whole {
                self.reply = Reply::default();
                self.answered += 1;
                return Ok(Progress::Done);
            }
            if got < buffer.len() && !ended {
                return Ok(Progress::More);
            }
        }
    }

    /// Servers may close persistent connections between requests (after a number of them, say), but not
    /// within a reply, and not before the first one.
    fn closed(&self) -> Result<Progress, Error> {
        if self.answered > 0 && self.reply.nothing_came() {
            Ok(Progress::Closed)
        } else {
            Err(Error::Closed)
        }
    }
}

/// A new connection, registered with `epoll` under `index`.
pub fn registered(
    source: SocketAddrV4,
    address: SocketAddrV4,
    epoll: &OwnedFd,
    index: usize,
) -> Result<OwnedFd, Error> {
    let socket = connect(source, address).map_err(|errno| Error::System("connect", errno))?;
    let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
    let data = epoll::EventData::new_u64(index as u64);
    epoll::add(epoll, socket.as_fd(), data, flags)
        .map_err(|errno| Error::System("epoll_ctl", errno))?;
    Ok(socket)
}

fn connect(source: SocketAddrV4, address: SocketAddrV4) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(CONNECT_TIMEOUT))?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    // connect chooses the port, so a port that is in use with one source address is still free with another.
    nix::sys::socket::setsockopt(&socket, IpBindAddressNoPort, &true)
        .map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
    net::bind(&socket, &source)?;
    net::connect(&socket, &address)?;
    Ok(socket)
}

/// A full listen queue drops the attempt to connect; this limits the wait.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
