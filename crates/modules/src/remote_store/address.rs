//! The address of a store.

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use petrel_engine::log::LogHandle;
use petrel_engine::tls::TlsServer;

use crate::gateway::limits::QUEUE_FULL_PAUSE_MS;
use crate::gateway::options::HostAddress;
use crate::gateway::resolve::{self, FollowedNames, Resolved};
use crate::gateway::stream::{BackendStream, InTurn, SocketAddress, is_own_shortage};

use super::error::Kind;

/// The address of a server as it was configured.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StoreAddress {
    address: HostAddress,
}

impl StoreAddress {
    /// Parses `host:port`, `[address]:port`, `unix:/path` or `/path`. A host, or an IPv6 address, may be
    /// without a port.
    ///
    /// # Errors
    /// The text is none of these: a sentence without its full stop.
    pub(crate) fn parse(text: &str, port_default: u16) -> Result<StoreAddress, String> {
        let wrong =
            || format!("{text:?} is no address: it takes host:port, [address]:port or unix:/path");
        let path = text.strip_prefix("unix:").unwrap_or(text);
        if path.starts_with('/') {
            if path.len() > SOCKET_PATH_BYTES_MAX || path.contains('\0') {
                return Err(format!("{path:?} is longer than the path of a unix socket"));
            }
            let address = HostAddress::Unix(path.as_bytes().to_vec());
            return Ok(StoreAddress { address });
        }
        if let Ok(ip) = text.parse::<IpAddr>() {
            let address = HostAddress::Tcp(ip.to_string(), port_default);
            return Ok(StoreAddress { address });
        }
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (ip, behind) = rest.split_once(']').ok_or_else(wrong)?;
                let ip: std::net::Ipv6Addr = ip.parse().map_err(|_| wrong())?;
                let port = match behind {
                    "" => None,
                    _ => Some(behind.strip_prefix(':').ok_or_else(wrong)?),
                };
                (ip.to_string(), port)
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host.to_owned(), Some(port)),
                None => (text.to_owned(), None),
            },
        };
        let port = match port {
            None => port_default,
            Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
                port.parse().map_err(|_| wrong())?
            }
            Some(_) => return Err(wrong()),
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte);
        if host.is_empty() || host.len() > NAME_BYTES_MAX || port == 0 || !host.bytes().all(is_name)
        {
            return Err(wrong());
        }
        let address = HostAddress::Tcp(host, port);
        Ok(StoreAddress { address })
    }

    /// Host and port, if the address has them.
    pub(crate) fn host_and_port(&self) -> Option<(&str, u16)> {
        match &self.address {
            HostAddress::Tcp(host, port) => Some((host, *port)),
            _ => None,
        }
    }

    /// The place to connect to. If the address is a name, the resolver's thread looks it up from now on.
    pub(crate) fn place(&self, names: &FollowedNames, log: &LogHandle) -> io::Result<StorePlace> {
        Ok(match resolve::fixed(&self.address) {
            Some(address) => StorePlace::Fixed(address),
            None => StorePlace::Named {
                name: self.to_string(),
                resolved: names.watch(&self.address, log)?,
                latest: RefCell::default(),
            },
        })
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            HostAddress::Unix(path) => write!(f, "unix:{}", String::from_utf8_lossy(path)),
            HostAddress::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            HostAddress::Tcp(host, port) => write!(f, "{host}:{port}"),
            HostAddress::Srv(name) => f.write_str(name),
        }
    }
}

/// A place to connect to.
pub(crate) enum StorePlace {
    /// An address that does not change.
    Fixed(SocketAddress),
    /// A host name, and the address it resolves to at present.
    Named {
        name: String,
        resolved: Arc<Resolved>,
        /// The address, with the generation of the resolver's answer that it was taken from.
        latest: RefCell<Option<(u64, SocketAddress)>>,
    },
}

impl StorePlace {
    /// Connects, with a TLS handshake if `tls` is given.
    ///
    /// # Errors
    /// The kind of failure, and a sentence about it.
    pub(crate) async fn connect(
        &self,
        tls: Option<&TlsServer>,
    ) -> Result<BackendStream, (Kind, String)> {
        let address = match self {
            StorePlace::Fixed(address) => address.clone(),
            StorePlace::Named {
                name,
                resolved,
                latest,
            } => {
                poll_fn(|context| resolved.poll_answered(context)).await;
                current(name, resolved, &mut latest.borrow_mut())
                    .map_err(|text| (Kind::Unreachable, text))?
            }
        };
        loop {
            match address.connect_to(tls, Vec::new()).await {
                // The queue of the server's unix socket is full, so the server is there.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(Duration::from_millis(QUEUE_FULL_PAUSE_MS)).await;
                }
                Err(error) if is_own_shortage(&error) => {
                    let text = format!(
                        "this server, not the other one, has no descriptors, memory or ports left: {error}"
                    );
                    return Err((Kind::Busy, text));
                }
                connected => {
                    return connected.map_err(|error| (Kind::Unreachable, error.to_string()));
                }
            }
        }
    }
}

/// The present address of `name`, if it resolves to any.
fn current(
    name: &str,
    resolved: &Resolved,
    latest: &mut Option<(u64, SocketAddress)>,
) -> Result<SocketAddress, String> {
    let generation = resolved.generation();
    if let Some((known, address)) = latest
        && *known == generation
    {
        return Ok(address.clone());
    }
    let endpoints = resolved.current();
    let addresses: Vec<SocketAddr> = endpoints.iter().map(|endpoint| endpoint.address).collect();
    if addresses.is_empty() {
        return Err("its name cannot be resolved".to_owned());
    }
    let address = SocketAddress::Several(InTurn::new(name.to_owned(), addresses.into()));
    *latest = Some((generation, address.clone()));
    Ok(address)
}

/// See unix(7): 108 bytes including the zero at the end.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// RFC 1035 section 2.3.4.
const NAME_BYTES_MAX: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_one_form_each() {
        for (text, shown) in [
            ("127.0.0.1:6380", "127.0.0.1:6380"),
            ("127.0.0.1", "127.0.0.1:6379"),
            ("localhost", "localhost:6379"),
            ("cache-1.example.org:1", "cache-1.example.org:1"),
            ("[::1]:6380", "[::1]:6380"),
            ("[::1]", "[::1]:6379"),
            ("::1", "[::1]:6379"),
            ("unix:/run/redis.sock", "unix:/run/redis.sock"),
            ("/run/redis.sock", "unix:/run/redis.sock"),
        ] {
            let address = StoreAddress::parse(text, 6379).expect(text);
            assert_eq!(address.to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        let long = format!("/{}", "a".repeat(107));
        for text in [
            "",
            ":1",
            "a:",
            "a:0",
            "a:65536",
            "a:+1",
            "a:b",
            "a b:1",
            "[::1",
            "[::1]6380",
            "[a]:1",
            "unix:run",
            "::1:x",
            "a:1:2",
            "a\r\n:1",
            &long,
        ] {
            assert!(StoreAddress::parse(text, 6379).is_err(), "{text:?}");
        }
    }
}
