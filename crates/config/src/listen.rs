//! Addresses to listen on: `server.bind` with `server.port`, and the patterns of `$SERVER["socket"]`.
//!
//! Listeners and the conditions on them must spell an address in the same way. This is the canonical form
//! that `Display` writes here. Host names are not resolved; the listener does that.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

/// An address to listen on. `Display` writes its canonical form, which conditions compare.
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

/// What an address without a port or without a host means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenDefaults {
    /// The port: `server.port`.
    pub port: u16,
    /// `server.use-ipv6`: an address without a host is `[::]` instead of `0.0.0.0`.
    pub ipv6: bool,
}

/// Why a text is no valid address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenError {
    /// What is wrong, in a sentence without a full stop.
    pub message: String,
}

impl ListenAddress {
    /// Parses `:81`, `*:81`, `127.0.0.1`, `127.0.0.1:81`, `[::1]:81`, `::1`, `name`, `name:81`, `/path` or
    /// `unix:/path`. An empty text means all interfaces at the default port.
    ///
    /// # Errors
    /// The port is no number from 0 to 65535, the text in brackets is no IPv6 address, or the host is no
    /// valid name.
    pub fn parse(text: &str, defaults: ListenDefaults) -> Result<ListenAddress, ListenError> {
        let path = text.strip_prefix("unix:").unwrap_or(text);
        if path.starts_with('/') {
            return unix(path);
        }
        if let Ok(address) = text.parse::<Ipv6Addr>() {
            return Ok(ListenAddress::Ip(SocketAddr::new(
                address.into(),
                defaults.port,
            )));
        }
        let (host, port) = split(text)?;
        let port = port.map_or(Ok(defaults.port), |digits| port_in(digits, text))?;
        match address_of(host, defaults)? {
            Some(address) => Ok(ListenAddress::Ip(SocketAddr::new(address, port))),
            None => Ok(ListenAddress::Name {
                host: host.to_ascii_lowercase(),
                port,
            }),
        }
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

fn error(message: String) -> ListenError {
    ListenError { message }
}

/// The path of a unix socket. The kernel's `sockaddr_un` limits its length.
fn unix(path: &str) -> Result<ListenAddress, ListenError> {
    if path.len() > UNIX_PATH_BYTES_MAX {
        return Err(error(format!(
            "the path of a unix socket has at most {UNIX_PATH_BYTES_MAX} bytes, this one has {}",
            path.len()
        )));
    }
    if path.contains('\0') {
        return Err(error(
            "the path of a unix socket cannot contain a NUL".to_owned(),
        ));
    }
    Ok(ListenAddress::Unix(PathBuf::from(path)))
}

/// Splits a text that is neither a path nor a bare IPv6 address into host and port. The host keeps its
/// brackets.
fn split(text: &str) -> Result<(&str, Option<&str>), ListenError> {
    if !text.starts_with('[') {
        return Ok(text
            .split_once(':')
            .map_or((text, None), |(host, port)| (host, Some(port))));
    }
    let end = text
        .find(']')
        .ok_or_else(|| error(format!("\"{text}\" lacks its closing bracket")))?;
    let (host, rest) = text.split_at(end + 1);
    match rest.strip_prefix(':') {
        Some(port) => Ok((host, Some(port))),
        None if rest.is_empty() => Ok((host, None)),
        None => Err(error(format!(
            "\"{text}\" has something other than a port behind the bracket"
        ))),
    }
}

fn port_in(digits: &str, text: &str) -> Result<u16, ListenError> {
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let port = digits.parse().ok().filter(|_| plain);
    port.ok_or_else(|| {
        error(format!(
            "the port in \"{text}\" is no number from 0 to 65535"
        ))
    })
}

/// The address in `host`. `None`: it is a name.
fn address_of(host: &str, defaults: ListenDefaults) -> Result<Option<IpAddr>, ListenError> {
    if let Some(inner) = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
    {
        let address = inner
            .parse::<Ipv6Addr>()
            .map_err(|_| error(format!("\"{inner}\" is no IPv6 address")))?;
        return Ok(Some(address.into()));
    }
    match host {
        "" if defaults.ipv6 => Ok(Some(Ipv6Addr::UNSPECIFIED.into())),
        "" | "*" => Ok(Some(Ipv4Addr::UNSPECIFIED.into())),
        _ if host
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.') =>
        {
            host.parse::<Ipv4Addr>()
                .map(|address| Some(address.into()))
                .map_err(|_| error(format!("\"{host}\" is no IPv4 address")))
        }
        _ if host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_')) =>
        {
            Ok(None)
        }
        _ => Err(error(format!(
            "\"{}\" is no host name",
            host.escape_debug()
        ))),
    }
}

/// `sun_path` has 108 bytes, the last of them for the NUL.
const UNIX_PATH_BYTES_MAX: usize = 107;

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        ListenAddress::parse(
            text,
            ListenDefaults {
                port: 80,
                ipv6: false,
            },
        )
        .expect("an address")
        .to_string()
    }

    #[test]
    fn addresses_have_one_spelling() {
        for (text, expected) in [
            ("", "0.0.0.0:80"),
            (":81", "0.0.0.0:81"),
            ("*:81", "0.0.0.0:81"),
            ("*", "0.0.0.0:80"),
            ("0.0.0.0:81", "0.0.0.0:81"),
            ("127.0.0.1", "127.0.0.1:80"),
            ("127.0.0.1:0081", "127.0.0.1:81"),
            ("[::]:81", "[::]:81"),
            ("[0:0:0::1]:81", "[::1]:81"),
            ("[::1]", "[::1]:80"),
            ("::1", "[::1]:80"),
            ("::", "[::]:80"),
            ("LocalHost:84", "localhost:84"),
            ("www.example.com", "www.example.com:80"),
            ("/run/x.sock", "/run/x.sock"),
            ("unix:/run/x.sock", "/run/x.sock"),
        ] {
            assert_eq!(canonical(text), expected, "{text}");
        }
    }

    #[test]
    fn the_canonical_form_parses_to_itself() {
        for text in ["", ":81", "[::1]", "name:1", "/run/x.sock", "10.0.0.1"] {
            assert_eq!(canonical(&canonical(text)), canonical(text));
        }
    }

    #[test]
    fn use_ipv6_changes_what_no_host_means() {
        let parse = |text| {
            ListenAddress::parse(
                text,
                ListenDefaults {
                    port: 80,
                    ipv6: true,
                },
            )
            .expect("an address")
            .to_string()
        };
        assert_eq!(parse(":81"), "[::]:81");
        assert_eq!(parse(""), "[::]:80");
        assert_eq!(parse("0.0.0.0:81"), "0.0.0.0:81");
    }

    #[test]
    fn nonsense_is_refused_with_a_reason() {
        let defaults = ListenDefaults {
            port: 80,
            ipv6: false,
        };
        for (text, reason) in [
            (":65536", "0 to 65535"),
            (":", "0 to 65535"),
            (":+1", "0 to 65535"),
            ("name:http", "0 to 65535"),
            ("[::1", "closing bracket"),
            ("[::1]81", "behind the bracket"),
            ("[127.0.0.1]:81", "no IPv6 address"),
            ("300.1.1.1:81", "no IPv4 address"),
            ("85", "no IPv4 address"),
            ("a b:1", "no host name"),
            ("/\0", "NUL"),
        ] {
            let error = ListenAddress::parse(text, defaults).expect_err(text);
            assert!(error.message.contains(reason), "{text}: {}", error.message);
        }
        let long = format!("/{}", "x".repeat(107));
        assert!(
            ListenAddress::parse(&long, defaults)
                .expect_err("too long")
                .message
                .contains("107")
        );
    }
}
