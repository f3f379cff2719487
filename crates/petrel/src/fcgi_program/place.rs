//! Where a program listens: on a socket of its own, or on descriptor 0, which its parent process passed to
//! it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::net::sockopt::{socket_acceptconn, socket_domain};

use super::limits::BACKLOG;
use crate::spawn::{ProgramSocket, UnixPlace};

/// Where the command line says that the program listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SocketPlace {
    /// On a unix socket.
    Unix {
        /// Its path.
        path: PathBuf,
        /// Its mode; with `None`, 0777 without the bits of the umask.
        mode: Option<u32>,
    },
    /// On a TCP socket.
    Tcp(SocketAddr),
    /// On descriptor 0, where spawn-fcgi and web servers put the listening socket.
    Inherited {
        /// The options that name another place. A message tells them to a user who started the program by
        /// hand.
        options: &'static str,
    },
}

/// A listening socket. Dropping an `Own` socket also removes its name.
pub(crate) enum ListeningSocket {
    Own(ProgramSocket),
    Inherited(OwnedFd),
}

impl SocketPlace {
    /// Whether the program opens the socket itself.
    pub(crate) fn is_own(&self) -> bool {
        !matches!(self, SocketPlace::Inherited { .. })
    }

    /// Opens the listening socket.
    ///
    /// # Errors
    /// The address or name is in use or not allowed, or descriptor 0 is no listening socket.
    pub(crate) fn open(&self) -> Result<ListeningSocket, String> {
        match self {
            SocketPlace::Unix { path, mode } => {
                let place = UnixPlace {
                    path,
                    root: None,
                    mode: *mode,
                    user: None,
                    group: None,
                    is_taken: false,
                };
                let socket = ProgramSocket::unix(&place, BACKLOG);
                socket
                    .map(ListeningSocket::Own)
                    .map_err(|error| format!("{}: {error}", path.display()))
            }
            SocketPlace::Tcp(address) => {
                let socket = ProgramSocket::tcp(*address, BACKLOG);
                socket
                    .map(ListeningSocket::Own)
                    .map_err(|error| format!("{address}: {error}"))
            }
            SocketPlace::Inherited { options } => {
                let socket = inherited(options).map_err(|error| error.to_string())?;
                Ok(ListeningSocket::Inherited(socket))
            }
        }
    }
}

impl ListeningSocket {
    /// A descriptor of the socket.
    ///
    /// # Errors
    /// The process has too many open files.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        match self {
            ListeningSocket::Own(socket) => socket.as_fd().try_clone_to_owned(),
            ListeningSocket::Inherited(socket) => socket.try_clone(),
        }
    }
}

/// Whether connections to it are TCP.
pub(crate) fn is_tcp(socket: &OwnedFd) -> bool {
    socket_domain(socket).is_ok_and(|domain| domain != rustix::net::AddressFamily::UNIX)
}

/// The addresses that may connect by TCP, from FCGI_WEB_SERVER_ADDRS (section 3.2 of the FastCGI
/// specification). If the list is empty, any may.
///
/// # Errors
/// The variable holds no list of addresses.
pub(crate) fn web_servers() -> Result<Vec<IpAddr>, String> {
    let name = "FCGI_WEB_SERVER_ADDRS";
    let list = match std::env::var(name) {
        Ok(list) => list,
        Err(std::env::VarError::NotPresent) => return Ok(Vec::new()),
        Err(error) => return Err(format!("{name}: {error}")),
    };
    let addresses = list.split(',').map(|address| {
        let parsed = address.trim().parse();
        parsed.map_err(|_| format!("{name}: \"{address}\" is no address"))
    });
    addresses.collect()
}

/// The socket on descriptor 0, where spawn-fcgi and web servers put it.
fn inherited(options: &str) -> io::Result<OwnedFd> {
    let stdin = rustix::stdio::stdin();
    if !socket_acceptconn(stdin).unwrap_or(false) {
        return Err(io::Error::other(format!(
            "standard input is no listening socket: start it by a web server or spawn-fcgi, or name \
             a place by {options}"
        )));
    }
    let socket = stdin.try_clone_to_owned()?;
    // Standard input becomes /dev/null, because scripts may read from it.
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    Ok(socket)
}
