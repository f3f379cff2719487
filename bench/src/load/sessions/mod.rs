//! The same closed loop for connections that need more than a request and a reply: TLS, HTTP/2, or both.
//!
//! It is written here rather than taken from elsewhere, because it must be the same load as the plain one.
//! Connections stay open through warming up, measuring and counting, so that only intended handshakes count.
//! Every reply's status and length are checked, and each has a latency. `wire` has the bytes, `http2` the
//! frames, `trust` what TLS offers and verifies.

mod http2;
#[cfg(test)]
mod tests;
mod trust;
mod wire;

use super::connection::{ENDED, registered};
use super::reply::{Expected, Reply, Wrong};
use super::{BUFFER_BYTES, EVENTS_MAX, Error, Outcome, Run, Until, wait};
use crate::certificate::{Certificate, HOST};
use crate::workload::{Aim, Handshake, Http, Reuse, Workload};
use http2::{Request, Session};
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustls::{ClientConfig, ClientConnection, HandshakeKind, StreamOwned};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trust::Tickets;
use wire::{Side, Wire};

/// What to send, where and how, and what the reply must be.
pub struct Target {
    address: SocketAddrV4,
    config: Option<Arc<ClientConfig>>,
    tickets: Arc<Tickets>,
    /// The kind that every handshake must be.
    handshake: Option<Handshake>,
    requests: Requests,
    expected: Expected,
    reuse: Reuse,
    aim: Aim,
}

/// A request, and the protocol.
enum Requests {
    One(Vec<u8>),
    Two(Request, u16),
}

/// N connections to one server, all of them idle between two calls of [`Client::run`].
pub struct Client<'a> {
    target: &'a Target,
    epoll: OwnedFd,
    connections: Vec<Connection>,
    /// Next source address for a connection; see [`super::Client::open`].
    source: u8,
    buffer: Vec<u8>,
    /// When the requests were due whose replies have just arrived.
    replies: Vec<Instant>,
    /// Whether handshakes must be of the wanted kind.
    is_strict: bool,
    /// How many tickets to collect.
    tickets_wanted: usize,
}

struct Connection {
    wire: Wire,
    http: Protocol,
    /// Complete replies so far.
    answered: u64,
}

enum Protocol {
    One {
        reply: Reply,
        due: Option<Instant>,
        is_sent: bool,
    },
    Two(Session),
}

impl Target {
    /// The requests of `workload` to a server on 127.0.0.1.
    pub fn new(workload: &Workload, port: u16, certificate: &Certificate) -> Result<Self, Error> {
        let protocol = workload.protocol;
        let (path, authority) = (&workload.paths()[0], format!("{HOST}:{port}"));
        let scheme = if protocol.tls.is_some() {
            "https"
        } else {
            "http"
        };
        let tickets = Arc::<Tickets>::default();
        let config = |tls| trust::config(tls, protocol.http, &certificate.der, tickets.clone());
        Ok(Self {
            address: SocketAddrV4::new(Ipv4Addr::LOCALHOST, port),
            config: protocol.tls.map(config).transpose()?,
            tickets,
            handshake: protocol.tls.map(|tls| tls.handshake),
            requests: match protocol.http {
                Http::One => Requests::One(super::plain_request(path, &authority, workload)),
                Http::Two { streams } => {
                    Requests::Two(Request::new(scheme, &authority, path), streams)
                }
            },
            expected: Expected {
                status: workload.status,
                body_bytes: workload.body_bytes(),
            },
            reuse: workload.reuse,
            aim: workload.aim,
        })
    }

    /// The length of a reply's head, and its body. `http1` speaks HTTP/1.1 on a stream.
    pub fn fetch(
        &self,
        http1: impl FnOnce(&mut dyn Stream) -> std::io::Result<(Vec<u8>, Vec<u8>)>,
    ) -> Result<(usize, Vec<u8>), String> {
        let (Requests::One(_), Some(config)) = (&self.requests, &self.config) else {
            return Client::fetch(self).map_err(|error| error.to_string());
        };
        let begun = ClientConnection::new(config.clone(), trust::server_name());
        let connection = begun.map_err(|error| error.to_string())?;
        let fetched = TcpStream::connect(self.address)
            .and_then(|socket| http1(&mut StreamOwned::new(connection, socket)));
        let (head, body) = fetched.map_err(|error| error.to_string())?;
        Ok((head.len(), body))
    }
}

/// A stream that can carry HTTP/1.1.
pub trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

impl<'a> Client<'a> {
    /// Opens `connections` connections. If idle ones are measured, each gets a reply before the next is
    /// opened, because the connections of many clients are never all busy at once.
    pub fn connect(target: &'a Target, connections: u16) -> Result<Self, Error> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|errno| Error::System("epoll_create", errno))?;
        let mut client = Self {
            target,
            epoll,
            connections: Vec::with_capacity(connections.into()),
            source: 0,
            buffer: vec![0; BUFFER_BYTES],
            replies: Vec::new(),
            is_strict: false,
            tickets_wanted: TICKETS,
        };
        for index in 0..usize::from(connections) {
            let connection = client.open(index)?;
            client.connections.push(connection);
            if target.aim == Aim::IdleConnections {
                client.run_from(index, ONE_REPLY)?;
            }
        }
        Ok(client)
    }

    /// Does what must precede the measurement: collects tickets, if they are wanted.
    pub fn prepare(&mut self) -> Result<(), Error> {
        if self.resumes() {
            self.is_strict = false;
            self.target.tickets.collect(true);
            self.open_all()?;
            while self.target.tickets.count() < self.tickets_wanted {
                let before = self.target.tickets.count();
                self.run_from(0, SOME_REPLIES)?;
                if self.target.tickets.count() == before {
                    return Err(Error::NoTickets);
                }
            }
            self.target.tickets.collect(false);
            self.open_all()?;
        }
        self.is_strict = true;
        Ok(())
    }

    /// Keeps as many requests open on every connection as it carries, until `until` says stop, or until there
    /// are no more tickets.
    pub fn run(&mut self, until: Until) -> Result<Outcome, Error> {
        self.run_from(0, until)
    }

    fn resumes(&self) -> bool {
        self.target.handshake == Some(Handshake::Resumed)
    }

    fn open_all(&mut self) -> Result<(), Error> {
        for index in 0..self.connections.len() {
            self.connections[index] = self.open(index)?;
        }
        Ok(())
    }

    /// The same on the connections from number `first` on.
    fn run_from(&mut self, first: usize, until: Until) -> Result<Outcome, Error> {
        let mut run = Run::new(until);
        for index in first..self.connections.len() {
            self.fill(index, &mut run)?;
        }
        let mut events = Vec::with_capacity(EVENTS_MAX);
        while run.under_way > 0 {
            wait(&self.epoll, &mut events)?;
            for event in events.drain(..) {
                let flags = event.flags;
                let ended = flags.intersects(ENDED);
                self.drive(event.data.u64() as usize, ended, &mut run)?;
            }
        }
        Ok(run.outcome())
    }

    /// The length of a reply's header block, and its body, by HTTP/2 on a new connection.
    fn fetch(target: &'a Target) -> Result<(usize, Vec<u8>), Error> {
        let mut client = Self::connect(target, 0)?;
        let mut connection = client.open(0)?;
        connection.http = Protocol::Two(Session::with_one_stream());
        client.connections.push(connection);
        client.run_from(0, ONE_REPLY)?;
        match &mut client.connections[0].http {
            Protocol::Two(session) => Ok((session.head_bytes, session.take_body())),
            Protocol::One { .. } => Err(Error::Closed),
        }
    }

    /// Reads what has arrived on a connection and sends what follows. `ended`: the server has closed its
    /// side, and no further event will report that.
    fn drive(&mut self, index: usize, ended: bool, run: &mut Run) -> Result<(), Error> {
        let connection = &mut self.connections[index];
        let (target, replies) = (self.target, &mut self.replies);
        let side = connection.receive(&mut self.buffer, ended, target, replies)?;
        if self.is_strict && !self.replies.is_empty() {
            connection.check_handshake(target)?;
        }
        connection.answered += self.replies.len() as u64;
        let is_over = side == Side::Closed
            || connection.has_ended()
            || (target.reuse == Reuse::Close && !self.replies.is_empty());
        if self.is_strict && self.resumes() && target.tickets.count() < self.connections.len() {
            run.stop();
        }
        let mut owed = 0;
        for due in self.replies.drain(..) {
            owed += usize::from(run.answered(due));
        }
        if is_over {
            self.replace(index, run)?;
        }
        for _ in 0..owed {
            self.connections[index].begin(target, run.now);
        }
        self.fill(index, run)
    }

    /// Reopens a connection, and repeats the requests that the old one has not answered. Servers may close
    /// persistent connections between requests (after a number of them, say), and HTTP/2 connections after
    /// they have announced it.
    fn replace(&mut self, index: usize, run: &mut Run) -> Result<(), Error> {
        let new = self.open(index)?;
        let old = std::mem::replace(&mut self.connections[index], new);
        if !old.may_be_closed() {
            return Err(Error::Closed);
        }
        run.reconnects += u64::from(self.target.reuse == Reuse::Keep);
        for due in old.unanswered() {
            self.connections[index].begin(self.target, due);
        }
        old.wire.close();
        Ok(())
    }

    /// Begins as many requests as a connection carries and the run wants.
    fn fill(&mut self, index: usize, run: &mut Run) -> Result<(), Error> {
        let connection = &mut self.connections[index];
        while connection.has_room() && run.begin() {
            connection.begin(self.target, run.now);
        }
        connection.flush(self.target)
    }

    fn open(&mut self, index: usize) -> Result<Connection, Error> {
        self.source = self.source % 250 + 1;
        let source = SocketAddrV4::new(Ipv4Addr::new(127, 0, 1, self.source), 0);
        let socket = registered(source, self.target.address, &self.epoll, index)?;
        Ok(Connection {
            wire: Wire::new(TcpStream::from(socket), self.target.config.as_ref())?,
            http: match &self.target.requests {
                Requests::One(_) => Protocol::One {
                    reply: Reply::default(),
                    due: None,
                    is_sent: false,
                },
                Requests::Two(_, streams) => Protocol::Two(Session::new(*streams)),
            },
            answered: 0,
        })
    }
}

impl Connection {
    fn receive(
        &mut self,
        buffer: &mut [u8],
        ended: bool,
        target: &Target,
        replies: &mut Vec<Instant>,
    ) -> Result<Side, Error> {
        let (http, expected) = (&mut self.http, &target.expected);
        self.wire.receive(buffer, ended, &mut |bytes| match http {
            Protocol::Two(session) => session.take(bytes, expected, replies),
            Protocol::One { reply, due, .. } => {
                if reply.take(bytes, expected)? {
                    *reply = Reply::default();
                    replies.push(due.take().ok_or(Wrong::TooMuch)?);
                }
                Ok(())
            }
        })
    }

    fn has_room(&self) -> bool {
        match &self.http {
            Protocol::One { due, .. } => due.is_none(),
            Protocol::Two(session) => session.has_room(),
        }
    }

    /// Begins a request. With HTTP/1.1 the next flush sends it.
    fn begin(&mut self, target: &Target, now: Instant) {
        match (&mut self.http, &target.requests) {
            (Protocol::Two(session), Requests::Two(request, _)) => session.request(request, now),
            (Protocol::One { due, is_sent, .. }, _) => (*due, *is_sent) = (Some(now), false),
            (Protocol::Two(_), Requests::One(_)) => {}
        }
    }

    fn flush(&mut self, target: &Target) -> Result<(), Error> {
        let sent = match (&mut self.http, &target.requests) {
            (Protocol::Two(session), _) => match session.take_output() {
                output if output.is_empty() => return Ok(()),
                output => self.wire.send(&output),
            },
            (Protocol::One { due, is_sent, .. }, Requests::One(request)) => {
                if due.is_none() || std::mem::replace(is_sent, true) {
                    return Ok(());
                }
                self.wire.send(request)
            }
            (Protocol::One { .. }, Requests::Two(..)) => Ok(()),
        };
        match sent {
            // If the server has just closed a persistent connection, the next receive notices it.
            Err(Error::Closed) if self.answered > 0 => Ok(()),
            other => other,
        }
    }

    fn has_ended(&self) -> bool {
        matches!(&self.http, Protocol::Two(session) if session.has_ended())
    }

    /// Whether the server may close the connection: between requests, or after it has announced it.
    fn may_be_closed(&self) -> bool {
        self.answered > 0
            && match &self.http {
                Protocol::One { reply, .. } => reply.nothing_came(),
                Protocol::Two(session) => session.is_ending() || session.unanswered().count() == 0,
            }
    }

    /// When the requests without a reply were due.
    fn unanswered(&self) -> Vec<Instant> {
        match &self.http {
            Protocol::One { due, .. } => due.iter().copied().collect(),
            Protocol::Two(session) => session.unanswered().collect(),
        }
    }

    fn check_handshake(&self, target: &Target) -> Result<(), Error> {
        let (kind, wanted) = (self.wire.handshake(), target.handshake);
        let is_right = match wanted {
            None => true,
            Some(Handshake::Resumed) => kind == Some(HandshakeKind::Resumed),
            Some(Handshake::Full) => kind == Some(HandshakeKind::Full),
        };
        is_right.then_some(()).ok_or(Error::Handshake(kind))
    }
}

/// The number of tickets for a run.
const TICKETS: usize = 6000;
/// How many replies pass between two checks of the number of tickets.
const SOME_REPLIES: Until = Until {
    requests: 100,
    ..ONE_REPLY
};
/// Enough to use a connection once.
const ONE_REPLY: Until = Until {
    time: Duration::ZERO,
    requests: 1,
    time_max: Duration::from_secs(10),
};
