//! The floor of a gateway: the cost of two receives and two sends in the kernel alone.
//!
//! Each client connection has its own backend connection, which stays open as long. It receives the client's
//! request and sends a prepared request to the backend. It receives from the backend until the reply is as
//! long as the first one was, and sends a prepared reply to the client. Both sockets are registered once,
//! edge-triggered, and no data is looked at.

use super::{Canned, EVENTS_MAX, LISTENER, listeners};
use crate::backend::Address;
use crate::cli::FloorOptions;
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendFlags, SocketFlags};
use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Starts the threads. Returns once all of them listen.
pub fn spawn(
    options: &FloorOptions,
    request: &Path,
) -> io::Result<Vec<JoinHandle<io::Result<()>>>> {
    let backend = match (&options.relay_socket, options.relay_port) {
        (Some(path), _) => Address::Unix(path.clone()),
        (None, Some(port)) => Address::Tcp(port),
        (None, None) => return Err(io::Error::other("nothing to relay to")),
    };
    let request = std::fs::read(request)?;
    let exchange = Arc::new(Exchange {
        reply: Canned::new(options)?.bytes,
        backend_reply_bytes: first_reply_length(&backend, &request)?,
        request,
        backend,
    });
    let threads = listeners(options.port)?.into_iter().map(|listener| {
        let exchange = Arc::clone(&exchange);
        std::thread::spawn(move || Relay::new(&exchange, listener)?.run())
    });
    Ok(threads.collect())
}

/// The prepared request and reply.
struct Exchange {
    backend: Address,
    request: Vec<u8>,
    reply: Vec<u8>,
    /// The length of a backend's complete reply.
    backend_reply_bytes: usize,
}

/// Sends one request and reads until the backend is silent. Returns the reply's length.
fn first_reply_length(backend: &Address, request: &[u8]) -> io::Result<usize> {
    let mut stream = backend.connect()?;
    stream.set_read_timeout(SILENCE)?;
    stream.write_all(request)?;
    let mut length = 0;
    loop {
        match stream.read(&mut [0; 4096]) {
            Ok(0) => return Err(io::Error::other("the backend does not keep connections")),
            Ok(got) => length += got,
            Err(_) if length > 0 => return Ok(length),
            Err(error) => return Err(error),
        }
    }
}

/// The state of one thread.
struct Relay<'a> {
    exchange: &'a Exchange,
    listener: OwnedFd,
    epoll: OwnedFd,
    pairs: HashMap<u64, Pair>,
    /// The key of the next pair; keys are never reused.
    key_next: u64,
}

/// A client connection and its backend connection.
struct Pair {
    client: OwnedFd,
    backend: OwnedFd,
    /// How much of the backend's reply was received.
    came: usize,
}

impl<'a> Relay<'a> {
    fn new(exchange: &'a Exchange, listener: OwnedFd) -> rustix::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let events = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(LISTENER);
        epoll::add(&epoll, &listener, data, events)?;
        Ok(Self {
            exchange,
            listener,
            epoll,
            pairs: HashMap::new(),
            key_next: LISTENER + 1,
        })
    }

    fn run(mut self) -> io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, room, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    LISTENER => self.accept()?,
                    key => self.drive(key, event.flags),
                }
            }
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        loop {
            let client = match net::accept_with(&self.listener, flags) {
                Ok(client) => client,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(errno) => return Err(errno.into()),
            };
            let backend = OwnedFd::from(self.exchange.backend.connect()?);
            rustix::io::ioctl_fionbio(&backend, true)?;
            let key = self.key_next;
            self.key_next += 1;
            for (socket, side) in [(&client, CLIENT), (&backend, BACKEND)] {
                let events =
                    epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
                let data = epoll::EventData::new_u64(key | side);
                epoll::add(&self.epoll, socket, data, events)?;
            }
            let pair = Pair {
                client,
                backend,
                came: 0,
            };
            self.pairs.insert(key, pair);
        }
    }

    fn drive(&mut self, key: u64, flags: epoll::EventFlags) {
        let over = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        let Some(pair) = self.pairs.get_mut(&(key & !BACKEND)) else {
            return;
        };
        let done = if key & BACKEND == 0 {
            pair.forward(self.exchange)
        } else {
            pair.answer(self.exchange)
        };
        if flags.intersects(over) || !matches!(done, Ok(()) | Err(Errno::AGAIN)) {
            self.pairs.remove(&(key & !BACKEND));
        }
    }
}

impl Pair {
    /// Takes the client's request, which counts as one receive regardless of its length, and sends the
    /// prepared one.
    fn forward(&self, exchange: &Exchange) -> rustix::io::Result<()> {
        receive(&self.client)?;
        send(&self.backend, &exchange.request)
    }

    fn answer(&mut self, exchange: &Exchange) -> rustix::io::Result<()> {
        self.came += receive(&self.backend)?;
        if self.came < exchange.backend_reply_bytes {
            return Ok(());
        }
        self.came = 0;
        send(&self.client, &exchange.reply)
    }
}

fn receive(socket: &OwnedFd) -> rustix::io::Result<usize> {
    match net::recv(socket, &mut [0; 4096][..], RecvFlags::empty())? {
        (_, 0) => Err(Errno::PIPE),
        (_, got) => Ok(got),
    }
}

/// Requests and replies are small: if they do not fit into the socket's buffer, something is wrong.
fn send(socket: &OwnedFd, bytes: &[u8]) -> rustix::io::Result<()> {
    match net::send(socket, bytes, SendFlags::NOSIGNAL)? {
        sent if sent == bytes.len() => Ok(()),
        _ => Err(Errno::PIPE),
    }
}

/// When a backend has sent nothing for this long, its reply is complete.
const SILENCE: Duration = Duration::from_millis(100);
/// Distinguishes the two sockets of a pair: the highest bit of their keys.
const BACKEND: u64 = 1 << 63;
const CLIENT: u64 = 0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{self, fastcgi_request};
    use crate::cli::{BackendOptions, BackendProtocol};
    use crate::load::{Client, Target, Until};
    use crate::workload::WORKLOADS;
    use std::os::unix::net::UnixStream;

    /// Client, relay and responder run in threads of this process.
    #[test]
    fn each_client_has_one_backend_connection_for_all_of_its_requests() {
        let directory = tempfile::tempdir().unwrap();
        let (socket, control) = (directory.path().join("b"), directory.path().join("c"));
        let responder = BackendOptions {
            protocol: BackendProtocol::Fastcgi,
            socket: Some(socket.clone()),
            port: None,
            control: Some(control.clone()),
            bytes: backend::BODY_BYTES,
            max_age: None,
            delay_ms: 0,
        };
        std::thread::spawn(move || backend::serve(&responder));
        let tally = || {
            let mut words = String::new();
            let told = UnixStream::connect(&control)?.read_to_string(&mut words);
            told.map(|_| {
                let connections = words.split(' ').next().unwrap_or_default();
                connections.parse::<u32>().unwrap()
            })
        };
        let before = (0..1000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(5));
            tally().ok()
        });
        assert_eq!(before, Some(0));

        let workload = WORKLOADS.iter().find(|one| one.name == "fastcgi").unwrap();
        let path = &workload.paths()[0];
        let (request, body) = (directory.path().join("r"), directory.path().join("a"));
        std::fs::write(&request, fastcgi_request(path, "/srv")).unwrap();
        std::fs::write(&body, workload.body(path).unwrap()).unwrap();
        let options = FloorOptions {
            port: crate::peers::free_port().unwrap(),
            status: 200,
            file: Some(body),
            relay_request: Some(request.clone()),
            relay_socket: Some(socket),
            relay_port: None,
        };
        spawn(&options, &request).unwrap();
        let target = Target::new(workload, options.port);
        let mut client = Client::connect(&target, 3).unwrap();
        let until = Until {
            time: Duration::ZERO,
            requests: 50,
            time_max: Duration::from_secs(20),
        };
        assert!(client.run(until).unwrap().requests >= 50);
        assert_eq!(
            tally().unwrap(),
            4,
            "three clients, and the first reply's length"
        );
    }
}
