//! One client: at most one open fetch, on a persistent connection or a new one each time.
//!
//! Sockets are non-blocking, registered once and edge-triggered. Every piece of a body is compared with the
//! file's expected content. Knows nothing of other clients, nor when the next fetch is due.

use super::figures::Seen;
use super::{Ask, Error};
use crate::load::{Expected, Framing, Wrong, head_length};
use crate::workload::Reuse;
use nix::sys::socket::sockopt::IpBindAddressNoPort;
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Instant;

/// The server's address, and the epoll descriptor for connections to it.
pub struct Door {
    /// The server.
    pub address: SocketAddrV4,
    /// The epoll descriptor in which connections are registered.
    pub epoll: OwnedFd,
}

/// A client.
pub struct Flow {
    /// Its number, which epoll returns.
    index: u64,
    source: Ipv4Addr,
    reuse: Reuse,
    connection: Option<Connection>,
    fetch: Option<Fetch>,
}

/// The result of handling an event.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// The response is incomplete, or none is expected.
    More,
    /// The response was complete and correct; the client is idle.
    Done,
}

struct Connection {
    socket: OwnedFd,
    /// Whether the handshake is over.
    stands: bool,
    /// Complete responses so far.
    answered: u64,
}

struct Fetch {
    ask: Ask,
    /// When the fetch should have begun.
    due: Instant,
    /// When connecting began.
    began: Instant,
    /// When the request was sent.
    sent: Option<Instant>,
    /// Whether any byte of the response has arrived.
    answered: bool,
    stage: Stage,
}

enum Stage {
    /// The part of the head that has arrived.
    Head(Vec<u8>),
    /// How many bytes of the body have arrived.
    Body(u64),
}

impl Flow {
    /// A client without a connection.
    pub fn new(index: u64, source: Ipv4Addr, reuse: Reuse) -> Self {
        Self {
            index,
            source,
            reuse,
            connection: None,
            fetch: None,
        }
    }

    /// Whether it can begin a fetch.
    pub fn is_idle(&self) -> bool {
        self.fetch.is_none()
    }

    /// When the current fetch was due.
    pub fn due(&self) -> Option<Instant> {
        self.fetch.as_ref().map(|fetch| fetch.due)
    }

    /// Since when the client has been waiting for the first byte of a body, if it is waiting.
    pub fn waiting_since(&self) -> Option<Instant> {
        let fetch = self.fetch.as_ref()?;
        if fetch.has_body() { None } else { fetch.sent }
    }

    /// Whether any byte of the response has arrived.
    pub fn is_answered(&self) -> bool {
        self.fetch.as_ref().is_some_and(|fetch| fetch.answered)
    }

    /// Begins a fetch.
    pub fn begin(&mut self, ask: Ask, due: Instant, door: &Door) -> Result<(), Error> {
        let began = Instant::now();
        self.fetch = Some(Fetch {
            ask,
            due,
            began,
            sent: None,
            answered: false,
            stage: Stage::Head(Vec::new()),
        });
        self.send_or_connect(door)
    }

    /// Gives up the current fetch and closes its connection.
    pub fn abandon(&mut self) {
        self.fetch = None;
        self.connection = None;
    }

    /// Handles an event on the connection. `seen`: where to count the fetch, if it counts, and since when
    /// fetches are counted.
    pub fn work(
        &mut self,
        door: &Door,
        buffer: &mut [u8],
        seen: &mut Option<&mut Seen>,
        counted_from: Instant,
    ) -> Result<Progress, Error> {
        let Some(connection) = self.connection.as_mut() else {
            return Ok(Progress::More);
        };
        if !connection.stands {
            match handshake(&connection.socket)? {
                false => return Ok(Progress::More),
                true => connection.stands = true,
            }
            if let (Some(fetch), Some(seen)) = (&self.fetch, seen.as_mut()) {
                seen.connect.add(fetch.began.elapsed());
            }
            self.send_or_connect(door)?;
        }
        self.receive(door, buffer, seen, counted_from)
    }

    fn send_or_connect(&mut self, door: &Door) -> Result<(), Error> {
        let Some(fetch) = self.fetch.as_mut() else {
            return Ok(());
        };
        let Some(connection) = &self.connection else {
            self.connection = Some(Connection::open(self.source, door, self.index)?);
            return Ok(());
        };
        if !connection.stands {
            return Ok(());
        }
        let request = fetch.ask.request(door.address, self.reuse);
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        fetch.sent = Some(Instant::now());
        match net::send(&connection.socket, &request, flags) {
            Ok(sent) if sent == request.len() => Ok(()),
            Ok(_) => Err(Error::System("send", Errno::AGAIN)),
            // If the server has just closed a persistent connection, the next receive notices it.
            Err(Errno::PIPE | Errno::CONNRESET) if connection.answered > 0 => Ok(()),
            Err(errno) => Err(Error::System("send", errno)),
        }
    }

    fn receive(
        &mut self,
        door: &Door,
        buffer: &mut [u8],
        seen: &mut Option<&mut Seen>,
        counted_from: Instant,
    ) -> Result<Progress, Error> {
        loop {
            let Some(connection) = self.connection.as_mut() else {
                return Ok(Progress::More);
            };
            let got = match net::recv(&connection.socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((_, 0)) | Err(Errno::CONNRESET | Errno::PIPE) => {
                    return self.closed(door, seen);
                }
                Ok((_, got)) => got,
                Err(Errno::AGAIN) => return Ok(Progress::More),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(Error::System("recv", errno)),
            };
            let Some(fetch) = self.fetch.as_mut() else {
                return Err(Error::Unasked);
            };
            fetch.note_the_first(seen);
            let had_body = fetch.has_body();
            let (bytes, whole) = fetch.take(buffer.get(..got).unwrap_or_default())?;
            if let Some(seen) = seen.as_mut() {
                seen.bytes += bytes;
                if let (false, 1.., Some(sent)) = (had_body, bytes, fetch.sent) {
                    seen.body.add(sent.elapsed());
                }
                if whole {
                    seen.fetches += 1;
                    let due_after = fetch.due.saturating_duration_since(counted_from);
                    seen.add_latency(due_after, fetch.due.elapsed());
                }
            }
            if whole {
                self.fetch = None;
                connection.answered += 1;
                if self.reuse == Reuse::Close {
                    self.connection = None;
                }
                return Ok(Progress::Done);
            }
        }
    }

    /// Handles that the server has closed its side. It may do so between two requests, or instead of the
    /// first byte of a response on a persistent connection.
    fn closed(&mut self, door: &Door, seen: &mut Option<&mut Seen>) -> Result<Progress, Error> {
        let was_used = self.connection.take().is_some_and(|one| one.answered > 0);
        let Some(fetch) = &self.fetch else {
            return Ok(Progress::More);
        };
        if !was_used || fetch.answered {
            return Err(Error::Closed(fetch.ask.path()));
        }
        if let Some(seen) = seen.as_mut() {
            seen.reconnects += 1;
        }
        self.send_or_connect(door)?;
        Ok(Progress::More)
    }
}

impl Fetch {
    fn has_body(&self) -> bool {
        matches!(self.stage, Stage::Body(1..))
    }

    fn note_the_first(&mut self, seen: &mut Option<&mut Seen>) {
        if self.answered {
            return;
        }
        self.answered = true;
        if let (Some(seen), Some(sent)) = (seen.as_mut(), self.sent) {
            seen.first.add(sent.elapsed());
        }
    }

    /// Takes received bytes. Returns how many of them belong to the body, and whether the body is complete.
    fn take(&mut self, bytes: &[u8]) -> Result<(u64, bool), Error> {
        let Stage::Head(came) = &mut self.stage else {
            return self.take_body(bytes);
        };
        // A head usually arrives in one piece; some servers write it in several.
        let more = came.len();
        came.extend_from_slice(bytes);
        let Some(end) = head_length(came) else {
            return if came.len() > HEAD_BYTES_MAX {
                Err(self.wrong(Wrong::Malformed))
            } else {
                Ok((0, false))
            };
        };
        let expected = Expected {
            status: self.ask.status(),
            body_bytes: Some(self.ask.bytes()),
        };
        match expected.check(came.get(..end).unwrap_or_default()) {
            Ok(Framing::Length(_)) => {
                self.stage = Stage::Body(0);
                self.take_body(bytes.get(end.saturating_sub(more)..).unwrap_or_default())
            }
            Ok(Framing::Chunked) => Err(self.wrong(Wrong::NoLength)),
            Err(wrong) => Err(self.wrong(wrong)),
        }
    }

    fn take_body(&mut self, bytes: &[u8]) -> Result<(u64, bool), Error> {
        let Stage::Body(came) = &mut self.stage else {
            return Ok((0, false));
        };
        let offset = self.ask.offset() + *came;
        *came += bytes.len() as u64;
        if *came > self.ask.bytes() {
            return Err(self.wrong(Wrong::TooMuch));
        }
        if !self.ask.file.matches(offset, bytes) {
            return Err(Error::Content(self.ask.path()));
        }
        Ok((bytes.len() as u64, *came == self.ask.bytes()))
    }

    fn wrong(&self, wrong: Wrong) -> Error {
        Error::Reply(self.ask.path(), wrong)
    }
}

impl Connection {
    fn open(source: Ipv4Addr, door: &Door, index: u64) -> Result<Self, Error> {
        let socket =
            connect(source, door.address).map_err(|errno| Error::System("connect", errno))?;
        let flags = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(index);
        epoll::add(&door.epoll, socket.as_fd(), data, flags)
            .map_err(|errno| Error::System("epoll_ctl", errno))?;
        Ok(Self {
            socket,
            stands: false,
            answered: 0,
        })
    }
}

/// Begins to connect without waiting: if the listen queue is full, the server causes that wait, and it is
/// measured.
fn connect(source: Ipv4Addr, address: SocketAddrV4) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    // connect chooses the port, so a port that is in use with one source address is still free with another.
    nix::sys::socket::setsockopt(&socket, IpBindAddressNoPort, &true)
        .map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
    net::bind(&socket, &SocketAddrV4::new(source, 0))?;
    match net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno),
    }
}

/// Whether the handshake is over; an error if it failed.
fn handshake(socket: &OwnedFd) -> Result<bool, Error> {
    let failed = |errno| Error::System("connect", errno);
    sockopt::socket_error(socket)
        .map_err(failed)?
        .map_err(failed)?;
    Ok(net::getpeername(socket).is_ok())
}

/// A longer head is an error.
const HEAD_BYTES_MAX: usize = 16 << 10;
