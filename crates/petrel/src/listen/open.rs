//! Opens one address: socket, options, bind, and an error message that explains a failure.

use std::cell::Cell;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;
use std::{fs, process};

use config::ListenAddress;
use engine::settings::process::ListenerSettings;
use nix::unistd::{Gid, Group, Uid, User};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

use super::{ListenError, ListenSocket, OpenListener, SocketPath};

/// Opens the address that `wanted` names, for `workers` workers.
///
/// # Errors
/// Why the address cannot be opened, for the administrator.
pub(super) fn open(wanted: &ListenerSettings, workers: usize) -> Result<OpenListener, ListenError> {
    let opened = match &wanted.address {
        ListenAddress::Unix(path) => {
            bind_unix(path, wanted).map(|socket| (0, vec![Rc::new(socket)]))
        }
        _ => resolve(wanted)
            .and_then(|address| Ok((address.port(), bind_tcp(address, wanted, workers)?))),
    };
    let (port, sockets) = opened.map_err(|error| explain(wanted, &error))?;
    Ok(OpenListener {
        address: wanted.address.to_string(),
        port,
        backlog: wanted.backlog,
        sockets,
        inherited: false,
    })
}

/// Tries to bind the address and releases it again. An address in use is no error: the running server that is
/// about to get this configuration may be using it.
///
/// # Errors
/// Why the address can never be opened.
pub(crate) fn probe(wanted: &ListenerSettings) -> Result<(), ListenError> {
    let tried = match &wanted.address {
        ListenAddress::Unix(path) => match path.parent() {
            Some(directory) => fs::metadata(directory).map(drop),
            None => Ok(()),
        },
        _ => resolve(wanted).and_then(|address| bind_alone(address, wanted).map(drop)),
    };
    match tried {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => Err(explain(wanted, &error)),
        _ => Ok(()),
    }
}

/// Whether a server listens at the address.
pub(crate) fn is_in_use(wanted: &ListenerSettings) -> bool {
    match &wanted.address {
        ListenAddress::Unix(path) => match connect_at_once(path) {
            Ok(()) => true,
            // The listen queue is full.
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        },
        _ => resolve(wanted)
            .and_then(|address| bind_alone(address, wanted))
            .is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse),
    }
}

fn connect_at_once(path: &Path) -> io::Result<()> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    socket.connect(&SockAddr::unix(path)?)
}

/// Takes a listening socket that another process has opened.
pub(super) fn adopt(descriptor: OwnedFd) -> io::Result<OpenListener> {
    let socket = SockRef::from(&descriptor);
    if socket.r#type()? != Type::STREAM || !socket.is_listener()? {
        let message = "a descriptor of LISTEN_FDS is not a listening stream socket";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    socket.set_cloexec(true)?;
    socket.set_nonblocking(true)?;
    let local = socket.local_addr()?;
    let address = match (local.as_socket(), local.as_pathname()) {
        (Some(address), _) => {
            socket.set_tcp_nodelay(true)?;
            ListenAddress::Ip(address)
        }
        (None, Some(path)) => ListenAddress::Unix(path.to_owned()),
        (None, None) => {
            let message = "a socket of LISTEN_FDS has neither an IP address nor a path";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
    };
    let port = local.as_socket().map_or(0, |address| address.port());
    let bound = ListenSocket {
        descriptor,
        is_listening: Cell::new(true),
        bound_to: local.as_socket(),
        _path: None,
    };
    Ok(OpenListener {
        address: address.to_string(),
        port,
        backlog: 0,
        sockets: vec![Rc::new(bound)],
        inherited: true,
    })
}

/// Opens a further socket for an address that this process has bound.
pub(super) fn bind_beside(
    address: SocketAddr,
    wanted: &ListenerSettings,
) -> io::Result<ListenSocket> {
    let socket = tcp_socket(address, wanted)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    Ok(bound(socket, address))
}

/// Sets the options that may change while the socket listens.
pub(super) fn set_changeable_options(
    socket: BorrowedFd<'_>,
    wanted: &ListenerSettings,
) -> io::Result<()> {
    if matches!(wanted.address, ListenAddress::Unix(_)) {
        return Ok(());
    }
    let seconds = if wanted.defer_accept {
        DEFER_ACCEPT_S
    } else {
        0
    };
    sys::socket::set_tcp_defer_accept(socket, seconds)
}

/// The error for an address that cannot be opened.
pub(super) fn explain(wanted: &ListenerSettings, error: &io::Error) -> ListenError {
    ListenError {
        message: sentence(&wanted.address.to_string(), error),
        span: wanted.span,
    }
}

/// The error message for `address`, which is in canonical form.
pub(super) fn sentence(address: &str, error: &io::Error) -> String {
    let why = match error.kind() {
        io::ErrorKind::AddrInUse if is_answered(address) => {
            "it is in use, and something listens there".to_owned()
        }
        io::ErrorKind::AddrInUse => "it is in use".to_owned(),
        io::ErrorKind::PermissionDenied if is_reserved(address) => {
            format!("{error}; ports below 1024 are for root")
        }
        io::ErrorKind::AddrNotAvailable => "it is no address of this machine".to_owned(),
        _ => error.to_string(),
    };
    format!("cannot listen on {address}: {why}")
}

fn is_reserved(address: &str) -> bool {
    address
        .parse::<SocketAddr>()
        .is_ok_and(|address| address.port() < 1024)
}

/// Whether a server accepts a connection to the address.
fn is_answered(address: &str) -> bool {
    match address.parse::<SocketAddr>() {
        Ok(address) => TcpStream::connect_timeout(&address, PROBE_TIME).is_ok(),
        Err(_) => UnixStream::connect(address).is_ok(),
    }
}

fn resolve(wanted: &ListenerSettings) -> io::Result<SocketAddr> {
    let (host, port) = match &wanted.address {
        ListenAddress::Ip(address) => return Ok(*address),
        ListenAddress::Name { host, port } => (host.as_str(), *port),
        ListenAddress::Unix(_) => return Err(io::ErrorKind::InvalidInput.into()),
    };
    let mut found = (host, port).to_socket_addrs()?;
    found
        .find(|address| address.is_ipv6() == wanted.use_ipv6)
        .ok_or_else(|| {
            let family = if wanted.use_ipv6 { "IPv6" } else { "IPv4" };
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("the name has no {family} address"),
            )
        })
}

/// Opens the sockets of all workers. The first one is bound, and begins to listen, without SO_REUSEPORT: that
/// fails if any server listens there, even another Petrel of the same user.
fn bind_tcp(
    address: SocketAddr,
    wanted: &ListenerSettings,
    workers: usize,
) -> io::Result<Vec<Rc<ListenSocket>>> {
    let mut sockets = vec![Rc::new(bound(bind_alone(address, wanted)?, address))];
    for _ in 1..workers {
        sockets.push(Rc::new(bind_beside(address, wanted)?));
    }
    Ok(sockets)
}

fn bind_alone(address: SocketAddr, wanted: &ListenerSettings) -> io::Result<Socket> {
    let socket = tcp_socket(address, wanted)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn tcp_socket(address: SocketAddr, wanted: &ListenerSettings) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_nonblocking(true)?;
    // Connections in TIME_WAIT from before a restart must not block the address.
    socket.set_reuse_address(true)?;
    // Accepted sockets inherit TCP_NODELAY, which saves one system call per connection.
    socket.set_tcp_nodelay(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(wanted.v6only)?;
    }
    if wanted.ip_transparent {
        match address.is_ipv6() {
            true => socket.set_ip_transparent_v6(true)?,
            false => socket.set_ip_transparent_v4(true)?,
        }
    }
    set_changeable_options(socket.as_fd(), wanted)?;
    Ok(socket)
}

fn bound(socket: Socket, address: SocketAddr) -> ListenSocket {
    ListenSocket {
        descriptor: socket.into(),
        is_listening: Cell::new(false),
        bound_to: Some(address),
        _path: None,
    }
}

fn bind_unix(path: &Path, wanted: &ListenerSettings) -> io::Result<ListenSocket> {
    remove_stale(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let guard = SocketPath {
        path: path.to_owned(),
        owner: process::id(),
    };
    // Clients cannot connect before listen(2), so none connects while owner and mode are still the default.
    let (user, group) = (&wanted.socket_user, &wanted.socket_group);
    let has_owner = user.is_some() || group.is_some();
    if has_owner {
        let user = user.as_deref().map(user_named).transpose()?;
        let group = group.as_deref().map(group_named).transpose()?;
        // A symlink that took the socket's place meanwhile is not followed.
        let flags = nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW;
        nix::unistd::fchownat(nix::fcntl::AT_FDCWD, path, user, group, flags)?;
    }
    if let Some(mode) = wanted.socket_perms.or(has_owner.then_some(0o660)) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    Ok(ListenSocket {
        descriptor: socket.into(),
        is_listening: Cell::new(false),
        bound_to: None,
        _path: Some(guard),
    })
}

fn user_named(name: &str) -> io::Result<Uid> {
    let found = User::from_name(name)?.map(|user| user.uid);
    found.ok_or_else(|| {
        io::Error::other(format!("there is no user \"{name}\" (server.socket-user)"))
    })
}

fn group_named(name: &str) -> io::Result<Gid> {
    let found = Group::from_name(name)?.map(|group| group.gid);
    found.ok_or_else(|| {
        io::Error::other(format!(
            "there is no group \"{name}\" (server.socket-group)"
        ))
    })
}

/// Removes the socket that a server left behind when it died. A socket that accepts a connection stays, and
/// so does any other kind of file: bind(2) then reports that the address is in use.
fn remove_stale(path: &Path) -> io::Result<()> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket());
    if !is_socket {
        return Ok(());
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        _ => Ok(()),
    }
}

/// How long to wait for an existing unix socket to accept a connection.
const PROBE_TIME: Duration = Duration::from_millis(200);
/// Seconds that the kernel waits for a client's first byte with `server.defer-accept`.
const DEFER_ACCEPT_S: u16 = 5;
