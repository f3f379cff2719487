//! The floor server: the cost of a reply of a given size in the kernel alone.
//!
//! It has two threads (one, if there is only one core), each with its own `SO_REUSEPORT` listener and
//! edge-triggered epoll. A request is one `recv` whose data is ignored; the reply is one `send` of bytes that
//! were prepared; a large body is sent by `sendfile` after its head. A server that does any work for its
//! client costs more than this. It is not a web server: it sends the same reply after each receive,
//! regardless of the request.
//!
//! As a gateway it is a [`relay`].

mod relay;

use crate::cli::FloorOptions;
use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Serves until the process is ended.
pub fn serve(options: &FloorOptions) -> io::Result<()> {
    let threads = match &options.relay_request {
        Some(request) => relay::spawn(options, request)?,
        None => spawn(options)?,
    };
    for thread in threads {
        thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))?;
    }
    Ok(())
}

/// Starts the threads. Returns once all of them listen.
pub fn spawn(options: &FloorOptions) -> io::Result<Vec<JoinHandle<io::Result<()>>>> {
    let canned = Arc::new(Canned::new(options)?);
    let threads = listeners(options.port)?.into_iter().map(|listener| {
        let canned = Arc::clone(&canned);
        std::thread::spawn(move || Ok(Worker::new(&canned, listener)?.run()?))
    });
    Ok(threads.collect())
}

/// One listener per thread.
fn listeners(port: u16) -> io::Result<Vec<OwnedFd>> {
    let threads = std::thread::available_parallelism()?.get().min(THREADS_MAX);
    let listeners = (0..threads).map(|_| listen(port));
    Ok(listeners.collect::<rustix::io::Result<_>>()?)
}

/// The reply to every request.
struct Canned {
    /// The head, followed by the body if that is small.
    bytes: Vec<u8>,
    /// A large body and its length.
    file: Option<(File, u64)>,
}

impl Canned {
    fn new(options: &FloorOptions) -> io::Result<Self> {
        let Some(path) = &options.file else {
            return Ok(Self {
                bytes: head(options.status, 0),
                file: None,
            });
        };
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        let mut bytes = head(options.status, length);
        if length > SEND_BYTES_MAX {
            return Ok(Self {
                bytes,
                file: Some((file, length)),
            });
        }
        file.read_to_end(&mut bytes)?;
        Ok(Self { bytes, file: None })
    }

    fn length(&self) -> u64 {
        self.bytes.len() as u64 + self.file.as_ref().map_or(0, |(_, length)| *length)
    }
}

/// A head as long as a typical one of a file server: type, validators, length, date and name.
fn head(status: u16, body_bytes: u64) -> Vec<u8> {
    let mut head = format!(
        "HTTP/1.1 {status} Canned\r\nContent-Type: text/html\r\nContent-Length: {body_bytes}\r\n"
    );
    if body_bytes > 0 {
        head += "ETag: \"3141592653\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\
                 Accept-Ranges: bytes\r\n";
    }
    head += "Date: Thu, 01 Jan 2026 00:00:00 GMT\r\nServer: floor/0.1.0\r\n\r\n";
    head.into_bytes()
}

/// The state of one thread.
struct Worker<'a> {
    canned: &'a Canned,
    listener: OwnedFd,
    epoll: OwnedFd,
    connections: HashMap<u64, Connection>,
    /// The key of the next connection; keys are never reused.
    key_next: u64,
}

struct Connection {
    socket: OwnedFd,
    /// How much of the current reply was sent; its length if there is none.
    sent: u64,
}

impl<'a> Worker<'a> {
    fn new(canned: &'a Canned, listener: OwnedFd) -> rustix::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let events = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(
            &epoll,
            &listener,
            epoll::EventData::new_u64(LISTENER),
            events,
        )?;
        let connections = HashMap::new();
        Ok(Self {
            canned,
            listener,
            epoll,
            connections,
            key_next: LISTENER + 1,
        })
    }

    fn run(mut self) -> rustix::io::Result<()> {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                None,
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    LISTENER => self.accept()?,
                    key => self.drive(key, event.flags),
                }
            }
        }
    }

    /// Accepts all waiting connections. Each is registered once, for both directions: with edge triggering
    /// the direction that is not awaited costs nothing.
    fn accept(&mut self) -> rustix::io::Result<()> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        loop {
            let socket = match net::accept_with(&self.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(errno) => return Err(errno),
            };
            let key = self.key_next;
            self.key_next += 1;
            let events = epoll::EventFlags::IN
                | epoll::EventFlags::OUT
                | epoll::EventFlags::RDHUP
                | epoll::EventFlags::ET;
            epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(key), events)?;
            let sent = self.canned.length();
            self.connections.insert(key, Connection { socket, sent });
        }
    }

    fn drive(&mut self, key: u64, flags: epoll::EventFlags) {
        let over = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        if flags.intersects(over) || connection.drive(self.canned, flags).is_err() {
            self.connections.remove(&key);
        }
    }
}

impl Connection {
    /// Continues the current reply, or answers a request.
    fn drive(&mut self, canned: &Canned, flags: epoll::EventFlags) -> rustix::io::Result<()> {
        if self.sent == canned.length() {
            if !flags.contains(epoll::EventFlags::IN) {
                return Ok(());
            }
            let mut request = [0; 4096];
            match net::recv(&self.socket, &mut request[..], RecvFlags::empty()) {
                Ok((_, 0)) => return Err(Errno::PIPE),
                Ok(_) => self.sent = 0,
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
        match self.send(canned) {
            Err(Errno::AGAIN) => Ok(()),
            done => done,
        }
    }

    fn send(&mut self, canned: &Canned) -> rustix::io::Result<()> {
        let socket = self.socket.as_fd();
        let in_memory = canned.bytes.len() as u64;
        if self.sent < in_memory {
            self.sent += send_bytes(socket, canned, self.sent as usize)? as u64;
        }
        if let Some((file, length)) = &canned.file {
            while self.sent < in_memory + length {
                let mut offset = self.sent - in_memory;
                let left = (length - offset).min(SENDFILE_BYTES_MAX) as usize;
                self.sent += rustix::fs::sendfile(socket, file, Some(&mut offset), left)? as u64;
            }
        }
        Ok(())
    }
}

fn send_bytes(socket: BorrowedFd<'_>, canned: &Canned, from: usize) -> rustix::io::Result<usize> {
    let more = if canned.file.is_some() {
        SendFlags::MORE
    } else {
        SendFlags::empty()
    };
    net::send(socket, &canned.bytes[from..], more | SendFlags::NOSIGNAL)
}

fn listen(port: u16) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    // Accepted sockets inherit it.
    sockopt::set_tcp_nodelay(&socket, true)?;
    net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    net::listen(&socket, 4096)?;
    Ok(socket)
}

/// As many as the other servers have workers, but no more than there are cores: two threads on one core
/// interrupt each other's batches, which makes a new connection more expensive by a third.
const THREADS_MAX: usize = 2;
/// A body up to this length is sent from memory, together with its head.
const SEND_BYTES_MAX: u64 = 64 << 10;
/// The most bytes of one sendfile. During the call acknowledgements queue up behind the socket's lock: with 1
/// MiB a body of 10 MiB costs a quarter more.
const SENDFILE_BYTES_MAX: u64 = 256 << 10;
const EVENTS_MAX: usize = 512;
/// The listener's key among those of the connections.
const LISTENER: u64 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_as_long_as_a_file_servers() {
        let length = head(200, 4096).len();
        assert!((215..=245).contains(&length), "{length} bytes");
    }
}
