//! What is known of a listening socket.

use std::net::SocketAddr;

/// What an exchange may know of the socket its connection came in by.
#[derive(Debug)]
pub struct ListenerFacts {
    /// The address in the canonical form that conditions compare.
    pub address: String,
    /// The TCP port; 0 for a unix socket.
    pub port: u16,
    /// The address as a number; `None` for a unix socket and for a wildcard, where every connection
    /// has its own.
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
