//! Facts about a listening socket.

use std::net::SocketAddr;

/// What an exchange knows of the socket that accepted its connection.
#[derive(Debug)]
pub struct ListenerFacts {
    /// The address in the canonical form that conditions compare.
    pub address: String,
    /// The TCP port; 0 for a unix socket.
    pub port: u16,
    /// The address as a number; `None` for a unix socket, and for a wildcard, where the local address differs
    /// between connections.
    pub local_address: Option<SocketAddr>,
}

impl ListenerFacts {
    /// The facts of a socket bound to `address`.
    pub fn new(address: String, port: u16) -> ListenerFacts {
        let local_address = address.parse().ok();
        let is_one = |local: &SocketAddr| !local.ip().is_unspecified();
        ListenerFacts {
            local_address: local_address.filter(is_one),
            address,
            port,
        }
    }
}
