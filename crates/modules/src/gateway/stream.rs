//! A connected socket to a backend, with TLS or without.

mod tls;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use petrel_engine::socket::{self, Socket};
use petrel_engine::tls::TlsServer;
use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_quickack;
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::cgi::Pipes;
use super::limits;

pub(crate) use tls::HandshakeFailure;
use tls::TlsStream;

/// Where a backend listens, when nothing is left to be looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketAddress {
    /// A unix socket.
    Unix(PathBuf),
    /// TCP.
    Ip(SocketAddr),
    /// TCP, to a host with several addresses.
    Several(InTurn),
}

/// The addresses of one host, of which one after the other is tried.
#[derive(Clone, Debug)]
pub struct InTurn {
    name: String,
    addresses: Arc<[SocketAddr]>,
    /// The one that worked last.
    first: Arc<AtomicUsize>,
}

/// The socket.
#[derive(Debug)]
pub enum BackendStream {
    /// TCP.
    Tcp(TcpStream),
    /// A unix socket.
    Unix(Socket),
    /// The pipes of a CGI program.
    Program(Pipes),
    /// TLS, on one of the first two.
    Tls(Box<TlsStream>),
}

/// A connection being made.
pub(crate) type Connecting = Pin<Box<dyn Future<Output = io::Result<BackendStream>>>>;

impl std::fmt::Display for SocketAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SocketAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            SocketAddress::Ip(address) => write!(f, "{address}"),
            SocketAddress::Several(host) => f.write_str(&host.name),
        }
    }
}

impl SocketAddress {
    /// Begins to connect.
    pub fn connect(&self) -> Connecting {
        match self.clone() {
            SocketAddress::Unix(path) => {
                let connected = Socket::connect(&path).map(BackendStream::Unix);
                Box::pin(std::future::ready(connected))
            }
            SocketAddress::Ip(address) => Box::pin(connect_to(address)),
            SocketAddress::Several(host) => Box::pin(async move { host.connect().await }),
        }
    }

    /// Begins to connect, and to speak TLS if the server does. `prefix` is sent in front of that, in the clear; without
    /// TLS it is the caller's to send.
    pub(crate) fn connect_to(&self, server: Option<&TlsServer>, prefix: Vec<u8>) -> Connecting {
        let connecting = self.connect();
        let Some(server) = server.cloned() else {
            return connecting;
        };
        Box::pin(async move {
            let stream = TlsStream::connect(connecting.await?, &server, prefix).await?;
            Ok(BackendStream::Tls(Box::new(stream)))
        })
    }
}

impl InTurn {
    /// The host `name` with these addresses, of which there is one at least.
    pub fn new(name: String, addresses: Arc<[SocketAddr]>) -> InTurn {
        InTurn {
            name,
            addresses,
            first: Arc::default(),
        }
    }

    /// Tries the addresses, beginning with the one that worked last. One that says nothing holds the
    /// others up for [`limits::ADDRESS_CONNECT_MS`]; the last one has the time that the caller gives.
    async fn connect(&self) -> io::Result<BackendStream> {
        let first = self.first.load(Ordering::Relaxed);
        let time = Duration::from_millis(limits::ADDRESS_CONNECT_MS);
        let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for turn in 0..self.addresses.len() {
            let index = (first + turn) % self.addresses.len();
            let Some(address) = self.addresses.get(index) else {
                break;
            };
            let connected = match turn + 1 == self.addresses.len() {
                true => connect_to(*address).await,
                false => match tokio::time::timeout(time, connect_to(*address)).await {
                    Ok(connected) => connected,
                    Err(_) => Err(io::ErrorKind::TimedOut.into()),
                },
            };
            match connected {
                Ok(stream) => {
                    self.first.store(index, Ordering::Relaxed);
                    return Ok(stream);
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

/// The same host with the same addresses, whichever is tried first.
impl PartialEq for InTurn {
    fn eq(&self, other: &InTurn) -> bool {
        self.name == other.name && self.addresses == other.addresses
    }
}

impl Eq for InTurn {}

async fn connect_to(address: SocketAddr) -> io::Result<BackendStream> {
    let connected = TcpStream::connect(address).await;
    let stream = connected.map_err(|error| explain(error, address))?;
    // Requests leave in one write; the last part of a long one must not wait.
    stream.set_nodelay(true)?;
    Ok(BackendStream::Tcp(stream))
}

/// Whether `error`, of [`SocketAddress::connect`], says that this server ran short of descriptors, memory or local
/// ports. It says nothing about the other side then.
pub(crate) fn is_own_shortage(error: &io::Error) -> bool {
    socket::is_own_shortage(error) || is_port_shortage(error)
}

/// Whether `error`, of [`SocketAddress::connect`], says that all local ports for that address are in use.
pub(crate) fn is_port_shortage(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::ADDRNOTAVAIL)
}

/// The kernel answers connect(2) with EADDRNOTAVAIL for two reasons: all local ports for `address` are in use, or
/// this machine has no address that it could connect from (`::1` where IPv6 is off). This makes another error of
/// the second one. A UDP socket tells them apart: it has ports of its own, but needs the same address. Connecting
/// it sends nothing.
fn explain(error: io::Error, address: SocketAddr) -> io::Error {
    if !is_port_shortage(&error) {
        return error;
    }
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let connected = UdpSocket::bind((any, 0)).and_then(|socket| socket.connect(address));
    match connected {
        Err(other) if is_port_shortage(&other) => io::Error::new(
            io::ErrorKind::NetworkUnreachable,
            format!("{error}: this machine has no address to connect from"),
        ),
        _ => error,
    }
}

impl BackendStream {
    /// Speaks TLS from now on. Nothing that was said in the clear may be left in it.
    pub(crate) async fn start_tls(self, server: &TlsServer) -> io::Result<BackendStream> {
        let stream = TlsStream::connect(self, server, Vec::new()).await?;
        Ok(BackendStream::Tls(Box::new(stream)))
    }

    /// Reads into `buffer`; 0 is the end. No system call when nothing has arrived.
    pub fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        match self {
            BackendStream::Unix(socket) => socket.poll_read(context, buffer),
            BackendStream::Tcp(stream) => {
                let mut buffer = ReadBuf::new(buffer);
                let polled = Pin::new(stream).poll_read(context, &mut buffer);
                polled.map_ok(|()| buffer.filled().len())
            }
            BackendStream::Program(pipes) => {
                let mut buffer = ReadBuf::new(buffer);
                let polled = pipes.poll_read(context, &mut buffer);
                polled.map_ok(|()| buffer.filled().len())
            }
            BackendStream::Tls(stream) => stream.poll_read(context, buffer),
        }
    }

    /// Sends `bytes`, or as much of them as the socket takes. TLS may have taken bytes that the socket has not; they
    /// leave with [`BackendStream::poll_flush`], and while the reply is read.
    pub fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self {
            BackendStream::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            BackendStream::Unix(socket) => socket.poll_write(context, bytes),
            BackendStream::Program(pipes) => pipes.poll_write(context, bytes),
            BackendStream::Tls(stream) => stream.poll_write(context, bytes),
        }
    }

    /// Sends what TLS has taken.
    pub(crate) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            BackendStream::Tls(stream) => stream.poll_flush(context),
            _ => Poll::Ready(Ok(())),
        }
    }

    /// Bytes that TLS has taken and not sent, with all that it puts around them.
    pub(crate) fn unsent(&self) -> usize {
        match self {
            BackendStream::Tls(stream) => stream.unsent(),
            _ => 0,
        }
    }

    /// The whole request is sent: a program sees the end of its input. Other backends know by the
    /// protocol.
    pub(crate) fn request_is_sent(&self) {
        if let BackendStream::Program(pipes) = self {
            pipes.request_is_sent();
        }
    }

    /// What was read is acknowledged at once instead of with the next request (TCP_QUICKACK, which lasts until
    /// the kernel thinks better of it).
    pub(crate) fn acknowledge(&self) {
        match self {
            BackendStream::Tcp(stream) => {
                // It is about speed only.
                let _ = set_tcp_quickack(stream, true);
            }
            BackendStream::Tls(stream) => stream.acknowledge(),
            BackendStream::Unix(_) | BackendStream::Program(_) => {}
        }
    }

    /// Nothing more will be sent.
    pub(crate) fn shutdown_write(&mut self) {
        match self {
            BackendStream::Tcp(_) | BackendStream::Unix(_) => {
                if let Some(socket) = self.descriptor() {
                    // It may be gone already; then there is nothing to tell.
                    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
                }
            }
            BackendStream::Program(pipes) => pipes.client_has_ended(),
            BackendStream::Tls(stream) => stream.shutdown_write(),
        }
    }

    /// Whether an idle connection is of no use any more: the backend has closed it, or said
    /// something no request asked for. Makes no system call unless something has arrived by TLS, which may be meant
    /// for TLS alone.
    pub(crate) fn is_stale(&mut self) -> bool {
        match self {
            BackendStream::Tcp(stream) => {
                let mut context = Context::from_waker(Waker::noop());
                stream.poll_read_ready(&mut context).is_ready()
            }
            BackendStream::Unix(socket) => socket.has_arrived(),
            // It answers one request.
            BackendStream::Program(_) => true,
            BackendStream::Tls(stream) => stream.is_stale(),
        }
    }

    /// The same, and asks the kernel for what has arrived since the worker last heard of its sockets.
    pub(crate) fn is_stale_now(&mut self) -> bool {
        if let BackendStream::Tls(stream) = self {
            return stream.is_stale_now();
        }
        if self.is_stale() {
            return true;
        }
        let Some(socket) = self.descriptor() else {
            return true;
        };
        let peeked = recv(socket, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        !matches!(peeked, Err(Errno::AGAIN))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            BackendStream::Tcp(stream) => Some(stream.as_fd()),
            BackendStream::Unix(socket) => socket.descriptor(),
            BackendStream::Program(_) => None,
            BackendStream::Tls(stream) => stream.descriptor(),
        }
    }

    /// Whether there is TLS.
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self, BackendStream::Tls(_))
    }

    /// Whether these are the pipes of a CGI program.
    pub(crate) fn is_program(&self) -> bool {
        matches!(self, BackendStream::Program(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn addresses_of_one_host_are_tried_in_turn() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let alive = listener.local_addr().expect("it is bound");
        // Nobody listens there: the port is of 127.0.0.1 only.
        let dead = SocketAddr::from(([127, 0, 0, 2], alive.port()));
        let host = InTurn::new("app:1".to_owned(), Arc::from([dead, alive]));
        let address = SocketAddress::Several(host.clone());
        assert_eq!(address.to_string(), "app:1");
        for _ in 0..2 {
            let connected = address.connect().await.expect("one of them listens");
            let BackendStream::Tcp(stream) = connected else {
                panic!("it is TCP")
            };
            assert_eq!(stream.peer_addr().expect("connected"), alive);
            assert_eq!(host.first.load(Ordering::Relaxed), 1, "it is remembered");
        }
        drop(listener);
        assert!(address.connect().await.is_err());
    }

    /// With IPv6 the connection is refused. Without it there is no address to connect from, and the kernel's
    /// error is that of a shortage of ports.
    #[tokio::test(flavor = "current_thread")]
    async fn a_backend_on_ipv6_is_no_shortage_where_ipv6_is_off() {
        let address = SocketAddress::Ip(SocketAddr::from((Ipv6Addr::LOCALHOST, 1)));
        let error = address.connect().await.expect_err("nothing listens there");
        assert!(!is_own_shortage(&error), "{error}");
        let text = error.to_string();
        let is_explained = text.ends_with("this machine has no address to connect from");
        assert_eq!(text.starts_with("Cannot assign"), is_explained, "{text}");
    }

    #[test]
    fn ports_have_run_out_if_there_is_an_address_to_connect_from() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let shortage = explain(Errno::ADDRNOTAVAIL.into(), address);
        assert!(is_port_shortage(&shortage) && is_own_shortage(&shortage));
        let refused = explain(Errno::CONNREFUSED.into(), address);
        assert!(!is_own_shortage(&refused));
        assert!(is_own_shortage(&Errno::MFILE.into()));
    }
}
