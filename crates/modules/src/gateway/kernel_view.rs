//! What the kernel says of the backend's end of a connection on this machine: whether a process has accepted
//! it, how many bytes that process has not read, and how many connections wait to be accepted.
//!
//! [`petrel_engine::proto::sock_diag`] encodes the questions. The kernel answers while it is asked: its answer is
//! there when send(2) returns, so nothing here waits. No privilege is needed. An answer takes some
//! microseconds; for unix sockets the kernel looks through all unix sockets of this network namespace, which
//! takes some ten microseconds for a thousand of them.
//!
//! What cannot be known is [`OtherEnd::Unknown`]: TCP to another machine or network namespace, a kernel
//! without `unix_diag` or `tcp_diag`, and a service manager or sandbox that forbids netlink sockets
//! (`RestrictAddressFamilies` without `AF_NETLINK`).

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use petrel_engine::proto::sock_diag::{
    SocketAnswer, SocketAnswers, SocketFile, SocketQuery, TcpEndpoint, UnixSocket,
};
use petrel_engine::system_calls;
use rustix::fs::{fstat, major, minor};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, getpeername, getsockname,
    netlink, recv, send, socket_with,
};

use super::stream::{BackendStream, SocketAddress};

/// The backend's end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OtherEnd {
    /// No process has accepted the connection yet.
    NotAccepted,
    /// A process has accepted the connection.
    Accepted {
        /// Bytes that were sent to it and that it has not read.
        unread: u32,
    },
    /// The connection was closed or reset.
    Gone,
    /// The kernel does not tell.
    Unknown,
}

/// A connected socket of ours, as the kernel knows it. It stands for this connection only as long as the
/// socket is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchedConnection {
    /// A unix socket.
    Unix {
        /// The inode of our socket.
        inode: u32,
    },
    /// TCP.
    Tcp {
        /// Our address.
        own: SocketAddr,
        /// The backend's address.
        backend: SocketAddr,
    },
}

/// A socket to the socket diagnostics of the kernel.
#[derive(Debug)]
pub(crate) struct KernelView {
    socket: io::Result<OwnedFd>,
    /// The number of the last query.
    sequence: Cell<u32>,
    /// Whether the kernel answers for unix sockets. Found out once: each question to a kernel that misses a
    /// module makes it look for that module, by a program.
    unix: OnceCell<io::Result<()>>,
    /// Whether it answers for TCP.
    tcp: OnceCell<io::Result<()>>,
    /// The listening sockets of backends, by path.
    listeners: RefCell<HashMap<PathBuf, KnownListener>>,
}

#[derive(Debug)]
struct KnownListener {
    /// What the file at the path was when the socket was looked for.
    file: FileVersion,
    /// The inode of the socket. `None`: no socket that listens belongs to the file. It may be one of another
    /// network namespace.
    inode: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileVersion {
    file: SocketFile,
    /// Seconds and nanoseconds of the last change. A file that replaces another may get its inode number.
    changed: (i64, i64),
}

impl Default for KernelView {
    fn default() -> KernelView {
        KernelView::open()
    }
}

impl KernelView {
    /// Opens the socket. Without netlink all answers are [`OtherEnd::Unknown`].
    pub(crate) fn open() -> KernelView {
        KernelView {
            socket: open_socket(),
            sequence: Cell::new(0),
            unix: OnceCell::new(),
            tcp: OnceCell::new(),
            listeners: RefCell::default(),
        }
    }

    /// Why the kernel tells nothing about unix sockets or about TCP; `None`: it tells about both.
    pub(crate) fn why_not(&self) -> Option<&io::Error> {
        self.answers_for_unix();
        self.answers_for_tcp();
        let support = [self.unix.get(), self.tcp.get()];
        support
            .into_iter()
            .flatten()
            .find_map(|known| known.as_ref().err())
    }

    /// What to give to [`Self::other_end`] for `socket`, which is connected to a backend. `None` if the kernel
    /// does not tell about sockets of this kind.
    pub(crate) fn watch(&self, socket: BorrowedFd<'_>) -> Option<WatchedConnection> {
        let own = getsockname(socket).ok()?;
        if own.address_family() == AddressFamily::UNIX {
            return self.watch_unix(socket);
        }
        let own = SocketAddr::try_from(own).ok()?;
        let backend = SocketAddr::try_from(getpeername(socket).ok()??).ok()?;
        self.answers_for_tcp()
            .then_some(WatchedConnection::Tcp { own, backend })
    }

    /// As [`Self::watch`], with one system call for a unix socket.
    pub(super) fn watch_stream(&self, stream: &BackendStream) -> Option<WatchedConnection> {
        match stream {
            BackendStream::Unix(socket) => self.watch_unix(socket.descriptor()?),
            _ => self.watch(stream.descriptor()?),
        }
    }

    fn watch_unix(&self, socket: BorrowedFd<'_>) -> Option<WatchedConnection> {
        let inode = fstat(socket).ok()?.st_ino as u32;
        self.answers_for_unix()
            .then_some(WatchedConnection::Unix { inode })
    }

    /// The backend's end of `connection` at this moment.
    pub(crate) fn other_end(&self, connection: &WatchedConnection) -> OtherEnd {
        match *connection {
            WatchedConnection::Unix { inode } => self.other_end_of_unix(inode),
            WatchedConnection::Tcp { own, backend } => self.other_end_of_tcp(own, backend),
        }
    }

    /// How many connections, of all programs, the listening socket at `address` holds that no process has
    /// accepted. `None` if the kernel does not tell.
    ///
    /// Ask this only for backends whose connections are not [`OtherEnd::Unknown`]: the kernel may pass TCP
    /// connections to another network namespace though a socket of this one listens at the address. If several
    /// sockets listen at one address (SO_REUSEPORT), the answer is for one of them.
    pub(crate) fn queue_length(&self, address: &SocketAddress) -> Option<u32> {
        match address {
            SocketAddress::Unix(path) => self.queue_length_of_unix(path),
            SocketAddress::Ip(address) => self.queue_length_of_tcp(*address),
            SocketAddress::Several(host) => self.queue_length_of_tcp(host.last_used()?),
        }
    }

    fn other_end_of_unix(&self, inode: u32) -> OtherEnd {
        let Some(own) = self.unix_socket(inode) else {
            return OtherEnd::Unknown;
        };
        match own.peer_inode {
            0 if own.is_shut_down => OtherEnd::Gone,
            0 => OtherEnd::NotAccepted,
            _ if own.send_queue == 0 => OtherEnd::Accepted { unread: 0 },
            peer => match self.unix_socket(peer) {
                Some(peer) => OtherEnd::Accepted {
                    unread: peer.receive_queue,
                },
                None => OtherEnd::Unknown,
            },
        }
    }

    fn other_end_of_tcp(&self, own: SocketAddr, backend: SocketAddr) -> OtherEnd {
        match self.tcp_connection(backend, own) {
            Ok(Some(end)) if end.inode != 0 => OtherEnd::Accepted {
                unread: end.receive_queue,
            },
            Ok(Some(end)) if end.has_ended => OtherEnd::Gone,
            Ok(Some(_)) => OtherEnd::NotAccepted,
            // The backend's end is on another machine or was reset. If it was reset, so was ours.
            Ok(None) => match self.tcp_connection(own, backend) {
                Ok(None) => OtherEnd::Gone,
                Ok(Some(_)) | Err(_) => OtherEnd::Unknown,
            },
            Err(_) => OtherEnd::Unknown,
        }
    }

    fn queue_length_of_unix(&self, path: &Path) -> Option<u32> {
        if !self.answers_for_unix() {
            return None;
        }
        system_calls::made();
        let file = FileVersion::of(path).ok()?;
        let mut listeners = self.listeners.borrow_mut();
        if let Some(known) = listeners.get(path).filter(|known| known.file == file) {
            let found = self.listening_unix_socket(known.inode?);
            if found.is_some() {
                return found.map(|socket| socket.receive_queue);
            }
        }
        let inode = find_listener(path, file.file).ok()?;
        listeners.insert(path.to_owned(), KnownListener { file, inode });
        let found = self.listening_unix_socket(inode?)?;
        Some(found.receive_queue)
    }

    fn queue_length_of_tcp(&self, address: SocketAddr) -> Option<u32> {
        if !self.answers_for_tcp() {
            return None;
        }
        let Ok(SocketAnswer::Tcp(found)) = self.ask(SocketQuery::TcpListener { address }) else {
            return None;
        };
        // A socket that listens at all addresses is also found for an address of another machine.
        let is_it = found.is_listening && (!found.is_unspecified || is_own_address(address.ip()));
        is_it.then_some(found.receive_queue)
    }

    fn answers_for_unix(&self) -> bool {
        let support = self
            .unix
            .get_or_init(|| self.ask(SocketQuery::UnixSupport).map(drop));
        support.is_ok()
    }

    fn answers_for_tcp(&self) -> bool {
        let support = self
            .tcp
            .get_or_init(|| self.ask(SocketQuery::TcpSupport).map(drop));
        support.is_ok()
    }

    fn unix_socket(&self, inode: u32) -> Option<UnixSocket> {
        match self.ask(SocketQuery::Unix { inode }) {
            Ok(SocketAnswer::Unix(socket)) => Some(socket),
            _ => None,
        }
    }

    fn listening_unix_socket(&self, inode: u32) -> Option<UnixSocket> {
        self.unix_socket(inode).filter(|socket| socket.is_listening)
    }

    /// One end of a connection. `None` if there is none with these addresses.
    fn tcp_connection(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> io::Result<Option<TcpEndpoint>> {
        match self.ask(SocketQuery::Tcp { local, remote }) {
            Ok(SocketAnswer::Tcp(end)) => Ok(Some(end).filter(|end| !end.is_listening)),
            Ok(_) => Err(io::ErrorKind::InvalidData.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The first answer to `query`.
    fn ask(&self, query: SocketQuery) -> io::Result<SocketAnswer> {
        let Ok(socket) = &self.socket else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let sequence = self.sequence.get().wrapping_add(1);
        self.sequence.set(sequence);
        let mut buffer = [0; ANSWER_BYTES_MAX];
        query_kernel(socket, query, sequence, &mut buffer, READS_MAX, Some)
    }
}

impl FileVersion {
    fn of(path: &Path) -> io::Result<FileVersion> {
        let metadata = fs::metadata(path)?;
        Ok(FileVersion {
            file: SocketFile {
                inode: metadata.ino() as u32,
                major: major(metadata.dev()),
                minor: minor(metadata.dev()),
            },
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

fn open_socket() -> io::Result<OwnedFd> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )?;
    Ok(socket)
}

/// The inode of the socket that listens at `path`, whose file is `file`.
///
/// This uses a socket of its own, which takes the answers that are not read with it.
fn find_listener(path: &Path, file: SocketFile) -> io::Result<Option<u32>> {
    let path = path.as_os_str().as_bytes();
    let mut buffer = vec![0; LISTENERS_BYTES_MAX];
    query_kernel(
        &open_socket()?,
        SocketQuery::UnixListeners,
        0,
        &mut buffer,
        LISTENERS_READS_MAX,
        |answer| match answer {
            SocketAnswer::Unix(socket) => {
                // Btrfs and overlayfs show programs another device than the kernel has. The name decides then.
                let is_it = socket.file.is_some_and(|found| {
                    found == file || found.inode == file.inode && socket.name == path
                });
                is_it.then_some(Some(socket.inode))
            }
            _ => Some(None),
        },
    )
}

/// Sends `query` and gives the answers to `take`, until that returns something.
fn query_kernel<T>(
    socket: &OwnedFd,
    query: SocketQuery,
    sequence: u32,
    buffer: &mut [u8],
    reads_max: usize,
    mut take: impl FnMut(SocketAnswer) -> Option<T>,
) -> io::Result<T> {
    system_calls::made();
    send(socket, &query.encode(sequence), SendFlags::empty())?;
    for _ in 0..reads_max {
        system_calls::made();
        let (length, _) = recv(socket, &mut *buffer, RecvFlags::DONTWAIT)?;
        for answer in SocketAnswers::new(buffer.get(..length).unwrap_or_default(), sequence) {
            match answer {
                Ok(SocketAnswer::Failed(errno)) => return Err(io::Error::from_raw_os_error(errno)),
                Ok(answer) => {
                    if let Some(taken) = take(answer) {
                        return Ok(taken);
                    }
                }
                Err(_) => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Whether `address` is known to belong to this network namespace. The kernel sends from the address itself
/// what goes to it; it need not do so for the second address of a network interface, so that one is not
/// recognised. Connecting a UDP socket sends nothing.
fn is_own_address(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((address, DISCARD_PORT))?;
        socket.local_addr()
    };
    address.is_loopback() || source().is_ok_and(|source| source.ip() == address)
}

/// More than one answer about one socket takes.
const ANSWER_BYTES_MAX: usize = 1024;

/// The answer to a query is read by the first read, unless answers to earlier queries were not read.
const READS_MAX: usize = 8;

/// The kernel answers in pieces of a page, or of 8 KiB.
const LISTENERS_BYTES_MAX: usize = 16 * 1024;

/// For more than ten thousand listening sockets.
const LISTENERS_READS_MAX: usize = 1000;

/// Any port will do.
const DISCARD_PORT: u16 = 9;

#[cfg(test)]
mod tests;
