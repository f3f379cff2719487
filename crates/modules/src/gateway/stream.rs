//! A connected socket to a backend, with TLS or without.

mod tls;

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use petrel_engine::socket::{self, Socket};
use petrel_engine::system_calls::made_if_ready;
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

/// Where a backend listens; nothing has to be looked up any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketAddress {
    /// The path of a unix socket.
    Unix(PathBuf),
    /// A TCP address.
    Ip(SocketAddr),
    /// A host with several TCP addresses.
    Several(InTurn),
}

/// The addresses of one host, which are tried one after the other.
#[derive(Clone, Debug)]
pub struct InTurn {
    name: String,
    addresses: Arc<[SocketAddr]>,
    /// The index of the address that worked last.
    first: Arc<AtomicUsize>,
}

/// A connected socket, or what stands in for it.
#[derive(Debug)]
pub enum BackendStream {
    /// TCP.
    Tcp(TcpStream),
    /// A unix socket.
    Unix(Socket),
    /// The pipes of a CGI program.
    Program(Pipes),
    /// TLS over TCP or a unix socket.
    Tls(Box<TlsStream>),
}

/// A connection attempt under way.
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
    /// Starts to connect.
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

    /// Starts to connect, with a TLS handshake if `server` is given. `prefix` is sent before the handshake,
    /// in the clear; without TLS the caller has to send it.
    pub(crate) fn connect_to(&self, server: Option<&TlsServer>, prefix: Vec<u8>) -> Connecting {
        self.connect_watched(server, prefix, None)
    }

    /// [`SocketAddress::connect_to`]; `shakes_hands` is set when the TLS handshake begins.
    pub(super) fn connect_watched(
        &self,
        server: Option<&TlsServer>,
        prefix: Vec<u8>,
        shakes_hands: Option<Rc<Cell<bool>>>,
    ) -> Connecting {
        let connecting = self.connect();
        let Some(server) = server.cloned() else {
            return connecting;
        };
        Box::pin(async move {
            let socket = connecting.await?;
            if let Some(shakes_hands) = shakes_hands {
                shakes_hands.set(true);
            }
            let stream = TlsStream::connect(socket, &server, prefix).await?;
            Ok(BackendStream::Tls(Box::new(stream)))
        })
    }
}

impl InTurn {
    /// The host `name`, with at least one address.
    pub fn new(name: String, addresses: Arc<[SocketAddr]>) -> InTurn {
        InTurn {
            name,
            addresses,
            first: Arc::default(),
        }
    }

    /// The address that worked last.
    pub(super) fn last_used(&self) -> Option<SocketAddr> {
        let first = self.first.load(Ordering::Relaxed);
        self.addresses.get(first).copied()
    }

    /// Tries the addresses in turn, beginning with the one that worked last. An address that does not answer
    /// delays the next one by [`limits::ADDRESS_CONNECT_MS`]. The last address has as long as the caller
    /// waits.
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

/// Compares name and addresses, but not which address is tried first.
impl PartialEq for InTurn {
    fn eq(&self, other: &InTurn) -> bool {
        self.name == other.name && self.addresses == other.addresses
    }
}

impl Eq for InTurn {}

async fn connect_to(address: SocketAddr) -> io::Result<BackendStream> {
    let connected = TcpStream::connect(address).await;
    let stream = connected.map_err(|error| explain(error, address))?;
    // A request is usually one write. The last part of a long one must not wait for an acknowledgement
    // (Nagle's algorithm).
    stream.set_nodelay(true)?;
    Ok(BackendStream::Tcp(stream))
}

/// Whether `error`, of [`SocketAddress::connect`], says that this server ran out of descriptors, memory or
/// local ports. It then says nothing about the backend.
pub(crate) fn is_own_shortage(error: &io::Error) -> bool {
    socket::is_own_shortage(error) || is_port_shortage(error)
}

/// Whether `error`, of [`SocketAddress::connect`], says that all local ports for that address are in use.
pub(crate) fn is_port_shortage(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::ADDRNOTAVAIL)
}

/// connect(2) fails with EADDRNOTAVAIL for two reasons: all local ports for `address` are in use, or this
/// machine has no address to connect from (`::1` where IPv6 is off). This function replaces the error in the
/// second case. To tell them apart it connects a UDP socket, which has ports of its own but needs the same
/// local address. Connecting it sends nothing.
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
    /// Starts TLS on this connection. All bytes that came in the clear must have been read.
    pub(crate) async fn start_tls(self, server: &TlsServer) -> io::Result<BackendStream> {
        let stream = TlsStream::connect(self, server, Vec::new()).await?;
        Ok(BackendStream::Tls(Box::new(stream)))
    }

    /// Reads into `buffer`; 0 is the end. Makes no system call when nothing has arrived.
    pub fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        made_if_ready(match self {
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
        })
    }

    /// Sends `bytes`, or as many as the socket takes. TLS may accept bytes that the socket has not taken yet;
    /// they are sent by [`BackendStream::poll_flush`] and while the reply is read.
    pub fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        made_if_ready(match self {
            BackendStream::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            BackendStream::Unix(socket) => socket.poll_write(context, bytes),
            BackendStream::Program(pipes) => pipes.poll_write(context, bytes),
            BackendStream::Tls(stream) => stream.poll_write(context, bytes),
        })
    }

    /// Sends the bytes that TLS has accepted.
    pub(crate) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            BackendStream::Tls(stream) => stream.poll_flush(context),
            _ => Poll::Ready(Ok(())),
        }
    }

    /// Bytes of TLS records that are not sent yet.
    pub(crate) fn unsent(&self) -> usize {
        match self {
            BackendStream::Tls(stream) => stream.unsent(),
            _ => 0,
        }
    }

    /// The whole request is sent: closes the input of a program. Other backends see the end by their
    /// protocol.
    pub(crate) fn request_is_sent(&self) {
        if let BackendStream::Program(pipes) = self {
            pipes.request_is_sent();
        }
    }

    /// Acknowledges at once what was read, instead of with the next data sent (TCP_QUICKACK, which the kernel
    /// switches off again by itself).
    pub(crate) fn acknowledge(&self) {
        match self {
            BackendStream::Tcp(stream) => {
                // An error is ignored: this is only about speed.
                let _ = set_tcp_quickack(stream, true);
            }
            BackendStream::Tls(stream) => stream.acknowledge(),
            BackendStream::Unix(_) | BackendStream::Program(_) => {}
        }
    }

    /// Says that nothing more will be sent.
    pub(crate) fn shutdown_write(&mut self) {
        match self {
            BackendStream::Tcp(_) | BackendStream::Unix(_) => {
                if let Some(socket) = self.descriptor() {
                    // The connection may be closed already; then the other side need not be told.
                    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Write);
                }
            }
            BackendStream::Program(pipes) => pipes.client_has_ended(),
            BackendStream::Tls(stream) => stream.shutdown_write(),
        }
    }

    /// Whether an idle connection cannot be used any more: the backend has closed it, or has sent bytes
    /// without a request. Makes no system call unless TLS records have arrived, which may be for TLS alone
    /// (session tickets).
    pub(crate) fn is_stale(&mut self) -> bool {
        match self {
            BackendStream::Tcp(stream) => {
                let mut context = Context::from_waker(Waker::noop());
                stream.poll_read_ready(&mut context).is_ready()
            }
            BackendStream::Unix(socket) => socket.has_arrived(),
            // A program answers one request.
            BackendStream::Program(_) => true,
            BackendStream::Tls(stream) => stream.is_stale(),
        }
    }

    /// As [`Self::is_stale`], but also asks the kernel for what has arrived since the worker last polled its
    /// sockets.
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

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            BackendStream::Tcp(stream) => Some(stream.as_fd()),
            BackendStream::Unix(socket) => socket.descriptor(),
            BackendStream::Program(_) => None,
            BackendStream::Tls(stream) => stream.descriptor(),
        }
    }

    /// Whether the stream uses TLS.
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
        // No process listens there: the port is bound on 127.0.0.1 only.
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

    /// With IPv6 the connection is refused. Without IPv6 there is no address to connect from, and the kernel
    /// gives the same error as when local ports run out.
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
