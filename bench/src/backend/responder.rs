//! The event loop of this program's own responders: one thread, edge-triggered epoll, one receive and one
//! send per request.
//!
//! It handles connections and leaves protocols to [`Answers`]. A reply always fits into the socket's buffer,
//! because a gateway has one open request per connection.

use super::{body, fastcgi::FastCgi, http::Http, slow_redis};
use crate::cli::{BackendOptions, BackendProtocol};
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

/// A protocol of a responder.
pub trait Answers {
    /// Answers the complete requests at the start of `bytes`.
    fn take(&self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Taken, Malformed>;
}

/// What was answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// The length of the complete requests.
    pub used: usize,
    /// The number of those requests.
    pub requests: u64,
    /// Whether to close the connection after the reply.
    pub close: bool,
}

/// The bytes violate the protocol; the connection is closed.
#[derive(Debug)]
pub struct Malformed;

/// Answers until the process is ended.
pub fn serve(options: &BackendOptions) -> io::Result<()> {
    let listener = match (&options.socket, options.port) {
        (Some(path), _) => listen_unix(path)?,
        (None, Some(port)) => listen_tcp(port)?,
        (None, None) => return Err(io::Error::other("neither --socket nor --port")),
    };
    let control = options.control.as_deref().map(listen_unix).transpose()?;
    let body = body(options.bytes);
    match options.protocol {
        BackendProtocol::Fastcgi => Responder::new(FastCgi::new(&body), listener, control)?.run(),
        BackendProtocol::Http => {
            // A large reply must fit into the buffer; accepted sockets inherit its size.
            sockopt::set_socket_send_buffer_size(&listener, SEND_BUFFER_BYTES + body.len())?;
            let http = Http::new(&body, options.max_age);
            Responder::new(http, listener, control)?.run()
        }
        BackendProtocol::SlowRedis => {
            slow_redis::serve(&listener, control.as_ref(), options.delay())
        }
    }?;
    Ok(())
}

struct Responder<A> {
    answers: A,
    listener: OwnedFd,
    /// Each connection to this socket gets the counts.
    control: Option<OwnedFd>,
    epoll: OwnedFd,
    connections: HashMap<u64, Connection>,
    /// The key of the next connection; keys are never reused.
    key_next: u64,
    /// Requests answered.
    requests: u64,
    buffer: Vec<u8>,
    out: Vec<u8>,
}

struct Connection {
    socket: OwnedFd,
    /// The beginning of an incomplete request.
    pending: Vec<u8>,
}

impl<A: Answers> Responder<A> {
    fn new(answers: A, listener: OwnedFd, control: Option<OwnedFd>) -> rustix::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let events = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64;
        epoll::add(&epoll, &listener, data(LISTENER), events)?;
        if let Some(control) = &control {
            epoll::add(&epoll, control, data(CONTROL), events)?;
        }
        Ok(Self {
            answers,
            listener,
            control,
            epoll,
            connections: HashMap::new(),
            key_next: CONNECTION_FIRST,
            requests: 0,
            buffer: vec![0; BUFFER_BYTES],
            out: Vec::new(),
        })
    }

    fn run(mut self) -> rustix::io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, room, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
            for event in events.drain(..) {
                let (flags, over) = (
                    event.flags,
                    epoll::EventFlags::RDHUP | epoll::EventFlags::HUP,
                );
                match event.data.u64() {
                    LISTENER => self.accept()?,
                    CONTROL => self.tell()?,
                    key => self.drive(key, flags.intersects(over)),
                }
            }
        }
    }

    fn accept(&mut self) -> rustix::io::Result<()> {
        while let Some(socket) = accept_one(&self.listener)? {
            let key = self.key_next;
            self.key_next += 1;
            let events = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
            epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(key), events)?;
            let pending = Vec::new();
            self.connections.insert(key, Connection { socket, pending });
        }
        Ok(())
    }

    fn tell(&self) -> rustix::io::Result<()> {
        let connections = self.key_next - CONNECTION_FIRST;
        tell(self.control.as_ref(), connections, self.requests)
    }

    fn drive(&mut self, key: u64, ended: bool) {
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        let (buffer, out) = (&mut self.buffer, &mut self.out);
        let (requests, kept) = connection
            .drive(&self.answers, buffer, out)
            .unwrap_or((0, false));
        self.requests += requests;
        if ended || !kept {
            self.connections.remove(&key);
        }
    }
}

impl Connection {
    /// Receives once and answers the complete requests. Returns how many there were and whether the
    /// connection stays open. A receive that returns less than the buffer holds has drained the socket, and
    /// no request fills the buffer.
    fn drive<A: Answers>(
        &mut self,
        answers: &A,
        buffer: &mut [u8],
        out: &mut Vec<u8>,
    ) -> rustix::io::Result<(u64, bool)> {
        let got = match net::recv(&self.socket, &mut *buffer, RecvFlags::empty()) {
            Ok((_, 0)) => return Ok((0, false)),
            Ok((_, got)) => got,
            Err(Errno::AGAIN) => return Ok((0, true)),
            Err(errno) => return Err(errno),
        };
        out.clear();
        let taken = if self.pending.is_empty() {
            let taken = answers.take(&buffer[..got], out);
            if let Ok(taken) = &taken {
                self.pending.extend_from_slice(&buffer[taken.used..got]);
            }
            taken
        } else {
            self.pending.extend_from_slice(&buffer[..got]);
            let taken = answers.take(&self.pending, out);
            if let Ok(taken) = &taken {
                self.pending.drain(..taken.used);
            }
            taken
        };
        let Ok(Taken {
            requests, close, ..
        }) = taken
        else {
            return Ok((0, false));
        };
        if !out.is_empty() && net::send(&self.socket, out, SendFlags::NOSIGNAL)? < out.len() {
            return Ok((requests, false));
        }
        let kept = !close && self.pending.len() < PENDING_BYTES_MAX;
        Ok((requests, kept))
    }
}

/// Writes the numbers of accepted connections and answered requests to each connection on `control`.
pub fn tell(control: Option<&OwnedFd>, connections: u64, requests: u64) -> rustix::io::Result<()> {
    let Some(control) = control else {
        return Ok(());
    };
    while let Some(socket) = accept_one(control)? {
        let words = format!("{connections} {requests}\n");
        let _asker_left = net::send(&socket, words.as_bytes(), SendFlags::NOSIGNAL);
    }
    Ok(())
}

/// Accepts the next waiting connection.
pub fn accept_one(listener: &OwnedFd) -> rustix::io::Result<Option<OwnedFd>> {
    loop {
        match net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok(socket) => return Ok(Some(socket)),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// The socket may be used by every user, because servers run as several users.
fn listen_unix(path: &Path) -> rustix::io::Result<OwnedFd> {
    use rustix::fs::{CWD, Mode, chmodat};
    let socket = socket(AddressFamily::UNIX)?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    chmodat(
        CWD,
        path,
        Mode::from_raw_mode(0o666),
        rustix::fs::AtFlags::empty(),
    )?;
    net::listen(socket.as_fd(), BACKLOG)?;
    Ok(socket)
}

/// A listening socket in blocking mode, for programs that accept themselves.
pub fn listen_unix_blocking(path: &Path) -> rustix::io::Result<OwnedFd> {
    let socket = listen_unix(path)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket)
}

/// A listening socket on 127.0.0.1.
pub fn listen_tcp(port: u16) -> rustix::io::Result<OwnedFd> {
    let socket = socket(AddressFamily::INET)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    // Accepted sockets inherit it.
    sockopt::set_tcp_nodelay(&socket, true)?;
    net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn socket(family: AddressFamily) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    net::socket_with(family, SocketType::STREAM, flags, None)
}

const LISTENER: u64 = 0;
const CONTROL: u64 = 1;
const CONNECTION_FIRST: u64 = 2;
const BACKLOG: i32 = 4096;
const EVENTS_MAX: usize = 512;
/// Space for the head of a reply, and for what the kernel adds to each piece.
const SEND_BUFFER_BYTES: usize = 256 << 10;
/// Bytes that one receive takes from a socket.
const BUFFER_BYTES: usize = 64 << 10;
/// A longer incomplete request is an error.
const PENDING_BYTES_MAX: usize = 256 << 10;
