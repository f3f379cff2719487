//! The load generator: a closed loop over N connections in one thread.
//!
//! It is written so that the client costs little, and the same with every server. Requests are prepared.
//! Sockets are registered once and edge-triggered. A reply's head is searched for two things only. The kernel
//! drops bodies (`MSG_TRUNC`) instead of copying them, just as a client on another machine would not compete
//! for this machine's memory. It speaks just enough HTTP/1.1 for that: replies have a `Content-Length` or are
//! chunked, nothing is pipelined.
//!
//! Any reply that differs from what the workload expects ends the run with an error.

mod browser;
mod chunks;
mod connection;
mod open_loop;
mod reply;
mod sessions;
mod verify;

pub use browser::{Answer, Browser};
pub use reply::{Expected, Framing, Wrong, head_length, status};
pub use sessions::{Client as SessionClient, Target as SessionTarget};
pub use verify::{verify, verify_session};

use crate::interrupt;
use crate::workload::{Reuse, Workload};
use connection::{Connection, Progress};
use hdrhistogram::Histogram;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

/// What to send, where, and what the reply must be.
pub struct Target {
    address: SocketAddrV4,
    requests: Vec<Vec<u8>>,
    expected: Expected,
    reuse: Reuse,
}

/// N connections to one server, all of them idle between two calls of [`Client::run`].
pub struct Client<'a> {
    target: &'a Target,
    epoll: OwnedFd,
    connections: Vec<Connection>,
    order: Order,
    /// Next source address for a connection; see [`Client::open`].
    source: u8,
    buffer: Vec<u8>,
}

/// When a run stops sending. It always waits for replies to open requests.
#[derive(Clone, Copy, Debug)]
pub struct Until {
    /// Not before this,
    pub time: Duration,
    /// and not before this many replies,
    pub requests: u64,
    /// but no later than this.
    pub time_max: Duration,
}

/// What a run measured.
pub struct Outcome {
    /// The number of replies, all of them as expected.
    pub requests: u64,
    /// From the first request to the last reply.
    pub elapsed: Duration,
    /// Latencies in nanoseconds. If each request has a new connection, connecting is included.
    pub latency: Histogram<u64>,
    /// Persistent connections that the server closed and the client reopened.
    pub reconnects: u64,
}

/// Why a run is void.
#[derive(Debug)]
pub enum Error {
    /// The reply was not the expected one.
    Reply(reply::Wrong),
    /// The server refused a stream or the connection.
    Refused(Refused),
    /// A TLS error.
    Tls(rustls::Error),
    /// The server issues no tickets.
    NoTickets,
    /// A handshake was of the other kind.
    Handshake(Option<rustls::HandshakeKind>),
    /// A system call failed.
    System(&'static str, Errno),
    /// The server closed a connection before it had replied to anything on it.
    Closed,
    /// Nothing at all arrived for [`PATIENCE`].
    Stalled,
    /// A signal asked this program to stop.
    Interrupted,
}

/// A refusal by HTTP/2, with its error code.
#[derive(Clone, Copy, Debug)]
pub enum Refused {
    /// A stream.
    Stream(u32),
    /// The connection.
    Connection(u32),
}

impl Target {
    /// The requests of `workload` to a server on 127.0.0.1.
    pub fn new(workload: &Workload, port: u16) -> Self {
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        let host = address.to_string();
        let request = |path: &String| plain_request(path, &host, workload);
        Self {
            address,
            requests: workload.paths().iter().map(request).collect(),
            expected: Expected {
                status: workload.status,
                body_bytes: workload.body_bytes(),
            },
            reuse: workload.reuse,
        }
    }
}

impl<'a> Client<'a> {
    /// Opens `connections` connections.
    pub fn connect(target: &'a Target, connections: u16) -> Result<Self, Error> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|errno| Error::System("epoll_create", errno))?;
        let mut client = Self {
            target,
            epoll,
            connections: Vec::with_capacity(connections.into()),
            order: Order::new(target.requests.len()),
            source: 0,
            buffer: vec![0; BUFFER_BYTES],
        };
        for index in 0..usize::from(connections) {
            let connection = client.open(index)?;
            client.connections.push(connection);
        }
        Ok(client)
    }

    /// Keeps one request open on every connection until `until` says stop.
    pub fn run(&mut self, until: Until) -> Result<Outcome, Error> {
        let mut run = Run::new(until);
        for index in 0..self.connections.len() {
            self.send(index, run.now)?;
        }
        run.under_way = self.connections.len();
        let mut events = Vec::with_capacity(EVENTS_MAX);
        while run.under_way > 0 {
            wait(&self.epoll, &mut events)?;
            for event in events.drain(..) {
                let flags = event.flags;
                let ended = flags.intersects(connection::ENDED);
                self.drive(event.data.u64() as usize, ended, &mut run)?;
            }
        }
        Ok(run.outcome())
    }

    /// Reads what has arrived on a connection, and after a complete reply sends the next request. `ended`:
    /// the server has closed its side, and no further event will report that.
    fn drive(&mut self, index: usize, ended: bool, run: &mut Run) -> Result<(), Error> {
        let expected = &self.target.expected;
        match self.connections[index].receive(expected, &mut self.buffer, ended)? {
            Progress::More => Ok(()),
            Progress::Done => {
                let more = run.answered(self.connections[index].sent_at);
                let lost = ended && self.target.reuse == Reuse::Keep;
                run.reconnects += u64::from(lost);
                if lost || self.target.reuse == Reuse::Close {
                    self.connections[index] = self.open(index)?;
                }
                if more {
                    self.send(index, run.now)
                } else {
                    Ok(())
                }
            }
            Progress::Closed => {
                run.reconnects += 1;
                let sent_at = self.connections[index].sent_at;
                self.connections[index] = self.open(index)?;
                self.send(index, sent_at)
            }
        }
    }

    fn send(&mut self, index: usize, now: Instant) -> Result<(), Error> {
        let request = &self.target.requests[self.order.next()];
        self.connections[index].send(request, now)
    }

    /// Each connection has another source address in 127.0.0.0/8: the side that closes first keeps the
    /// address and port for a minute, and 28,000 ports last for one second of new connections.
    fn open(&mut self, index: usize) -> Result<Connection, Error> {
        self.source = self.source % 250 + 1;
        let source = SocketAddrV4::new(Ipv4Addr::new(127, 0, 1, self.source), 0);
        Connection::open(source, self.target.address, &self.epoll, index)
    }
}

/// A request of HTTP/1.1.
fn plain_request(path: &str, host: &str, workload: &Workload) -> Vec<u8> {
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: petrel-bench\r\nAccept: */*\r\n{}\r\n",
        workload.request_fields()
    );
    request.into_bytes()
}

fn wait(epoll: &OwnedFd, events: &mut Vec<epoll::Event>) -> Result<(), Error> {
    let timeout = Timespec {
        tv_sec: PATIENCE.as_secs() as i64,
        tv_nsec: 0,
    };
    let room = rustix::buffer::spare_capacity(events);
    match epoll::wait(epoll, room, Some(&timeout)) {
        _ if interrupt::asked() => Err(Error::Interrupted),
        Ok(0) => Err(Error::Stalled),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(Error::System("epoll_wait", errno)),
    }
}

/// The counters of a run.
struct Run {
    until: Until,
    started: Instant,
    /// The clock, read once per reply.
    now: Instant,
    requests: u64,
    under_way: usize,
    reconnects: u64,
    latency: Histogram<u64>,
}

impl Run {
    fn new(until: Until) -> Self {
        let now = Instant::now();
        let latency = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)
            .expect("the bounds are in order and three digits are allowed");
        Self {
            until,
            started: now,
            now,
            requests: 0,
            under_way: 0,
            reconnects: 0,
            latency,
        }
    }

    /// Begins a request that no reply precedes, unless there have been enough.
    fn begin(&mut self) -> bool {
        let more = self
            .until
            .more(self.now.duration_since(self.started), self.requests);
        self.under_way += usize::from(more);
        more
    }

    /// Sends no further requests, even if more were asked for.
    fn stop(&mut self) {
        self.until.time_max = Duration::ZERO;
    }

    /// Counts a reply. Returns whether another request follows.
    fn answered(&mut self, sent_at: Instant) -> bool {
        self.now = Instant::now();
        self.requests += 1;
        let nanoseconds = self.now.duration_since(sent_at).as_nanos();
        self.latency
            .saturating_record(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        let more = self
            .until
            .more(self.now.duration_since(self.started), self.requests);
        if !more {
            self.under_way -= 1;
        }
        more
    }

    fn outcome(self) -> Outcome {
        Outcome {
            requests: self.requests,
            elapsed: self.now.duration_since(self.started),
            latency: self.latency,
            reconnects: self.reconnects,
        }
    }
}

impl Until {
    fn more(&self, elapsed: Duration, requests: u64) -> bool {
        let enough = elapsed >= self.time && requests >= self.requests;
        !enough && elapsed < self.time_max
    }
}

/// Which request is next: random, but in the same sequence for every server and run.
struct Order {
    state: u64,
    choices: u64,
}

impl Order {
    fn new(choices: usize) -> Self {
        Self {
            state: 0x9e37_79b9_7f4a_7c15,
            choices: choices as u64,
        }
    }

    fn next(&mut self) -> usize {
        if self.choices == 1 {
            return 0;
        }
        // xorshift64: fast, and its period is far longer than any run.
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        ((u128::from(self.state) * u128::from(self.choices)) >> 64) as usize
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reply(wrong) => wrong.fmt(f),
            Self::Refused(Refused::Stream(code)) => write!(f, "the server reset a stream ({code})"),
            Self::Refused(Refused::Connection(code)) => {
                write!(f, "the server refused the connection ({code})")
            }
            Self::Tls(error) => error.fmt(f),
            Self::NoTickets => f.write_str("the server gives no tickets"),
            Self::Handshake(kind) => write!(f, "a handshake of another kind: {kind:?}"),
            Self::System(call, errno) => write!(f, "{call}: {errno}"),
            Self::Closed => f.write_str("connection closed before its first reply"),
            Self::Stalled => write!(f, "no reply for {} s", PATIENCE.as_secs()),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl From<rustls::Error> for Error {
    fn from(error: rustls::Error) -> Self {
        Self::Tls(error)
    }
}

impl From<reply::Wrong> for Error {
    fn from(wrong: reply::Wrong) -> Self {
        Self::Reply(wrong)
    }
}

/// A run without any reply for this long is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Higher latencies count as this.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Events that one wait takes from the kernel.
const EVENTS_MAX: usize = 512;
/// Bytes that one receive takes from a socket.
const BUFFER_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::FloorOptions;
    use crate::floor;
    use crate::workload::{WORKLOADS, files};

    fn workload(name: &str) -> &'static Workload {
        WORKLOADS
            .iter()
            .find(|workload| workload.name == name)
            .unwrap()
    }

    /// The floor server on a free port, in threads of this process, serving the workload `name`.
    fn floor_for(name: &str) -> (u16, tempfile::TempDir) {
        let root = tempfile::tempdir().unwrap();
        let workload = workload(name);
        files::make(root.path(), &[workload]).unwrap();
        let port = crate::peers::free_port().unwrap();
        let file = workload
            .body_bytes()
            .map(|_| root.path().join(&workload.paths()[0][1..]));
        let options = FloorOptions {
            port,
            status: workload.status,
            file,
            relay_request: None,
            relay_socket: None,
            relay_port: None,
        };
        floor::spawn(&options).unwrap();
        (port, root)
    }

    fn requests(requests: u64) -> Until {
        Until {
            time: Duration::ZERO,
            requests,
            time_max: Duration::from_secs(20),
        }
    }

    #[test]
    fn kept_connections_carry_many_requests() {
        for name in ["100b", "100k", "10m"] {
            let (port, _root) = floor_for(name);
            let target = Target::new(workload(name), port);
            let mut client = Client::connect(&target, 3).unwrap();
            for _ in 0..2 {
                let outcome = client.run(requests(20)).unwrap();
                assert!(
                    (20..=22).contains(&outcome.requests),
                    "{name}: {}",
                    outcome.requests
                );
                assert_eq!(outcome.latency.len(), outcome.requests);
                assert!((1_000..1_000_000_000).contains(&outcome.latency.value_at_quantile(0.5)));
                assert_eq!(outcome.reconnects, 0);
            }
        }
    }

    #[test]
    fn new_connections_are_opened_for_each_request() {
        let (port, _root) = floor_for("connect");
        let target = Target::new(workload("connect"), port);
        let mut client = Client::connect(&target, 2).unwrap();
        assert!(client.run(requests(50)).unwrap().requests >= 50);
        assert_eq!(
            client.source, 53,
            "two at first, 49 in between, two at rest"
        );
    }

    /// Servers close a persistent connection after a number of requests, together with the last reply or some
    /// time later.
    #[test]
    fn connections_that_the_server_closes_are_opened_again() {
        let port = server_that_closes_after(3);
        let target = Target::new(workload("404"), port);
        let mut client = Client::connect(&target, 2).unwrap();
        let outcome = client.run(requests(60)).unwrap();
        assert!((60..=61).contains(&outcome.requests));
        assert!(
            (18..=20).contains(&outcome.reconnects),
            "{}",
            outcome.reconnects
        );
    }

    fn server_that_closes_after(replies: usize) -> u16 {
        use std::io::{Read as _, Write as _};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let serve = move |mut stream: std::net::TcpStream| {
            for _ in 0..replies {
                if stream.read(&mut [0; 1024]).is_ok_and(|got| got > 0) {
                    let _ = stream.write_all(b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n");
                }
            }
        };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || serve(stream));
            }
        });
        port
    }

    #[test]
    fn a_reply_of_another_length_is_an_error() {
        let (port, _root) = floor_for("100b");
        let target = Target::new(workload("4k"), port);
        let error = Client::connect(&target, 1)
            .unwrap()
            .run(requests(1))
            .err()
            .unwrap();
        assert_eq!(error.to_string(), "body of 100 bytes instead of 4096");
    }

    #[test]
    fn a_reply_with_another_status_is_an_error() {
        let (port, _root) = floor_for("100b");
        let target = Target::new(workload("404"), port);
        let error = Client::connect(&target, 1)
            .unwrap()
            .run(requests(1))
            .err()
            .unwrap();
        assert_eq!(error.to_string(), "status 200 instead of 404");
    }

    #[test]
    fn the_random_order_is_repeatable_and_reaches_everything() {
        let (mut one, mut two) = (Order::new(100), Order::new(100));
        let drawn: Vec<_> = (0..2000).map(|_| one.next()).collect();
        assert!(drawn.iter().all(|n| *n == two.next()));
        assert!((0..100).all(|n| drawn.contains(&n)));
        assert!(drawn.iter().all(|n| *n < 100));
    }
}
