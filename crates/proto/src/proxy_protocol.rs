//! The PROXY protocol, versions 1 and 2: a proxy in front reports the client's address.
//!
//! The header precedes everything else on a connection. [`decode`] reads one from the bytes received so far;
//! [`encode_v1`] and [`encode_v2`] write one. Any client that can connect can send such a header, so the
//! caller must decide whether to trust the sender. This follows HAProxy's `proxy-protocol.txt`, revision 2.2
//! and later additions.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::reasons::reasons;

mod extras;

pub use extras::{Extras, Tls};

/// A header, and how much of the input it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    /// How many bytes of the input it took.
    pub length: usize,
    /// The addresses of the connection.
    pub endpoints: Endpoints,
    /// Further data of version 2.
    pub extras: Extras,
}

/// The two ends of the connection that the proxy accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoints {
    /// The proxy's own connection (LOCAL, as in health checks), or unknown (UNKNOWN, or an unsupported
    /// family): the addresses of the TCP connection itself apply.
    Itself,
    /// TCP.
    Ip {
        /// The client.
        source: SocketAddr,
        /// What it connected to.
        destination: SocketAddr,
    },
    /// A unix socket. Its names mean nothing on another machine and are left out.
    Unix,
}

/// The result of decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodedHeader {
    /// More bytes are needed. This is never the result for [`HEADER_BYTES_MAX`] bytes or more.
    NeedMore,
    /// The header is complete.
    Complete(Box<ProxyHeader>),
}

/// The longest header that is accepted: 16 bytes, two unix addresses and 4 KiB of extras.
pub const HEADER_BYTES_MAX: usize = V2_FIXED + V2_UNIX + EXTRAS_BYTES_MAX;

reasons! {
    /// Why a header is refused. The connection cannot be used, because what follows has no meaning.
    HeaderError {
        Missing "the connection does not begin with a PROXY protocol header",
        /// A line of version 1 that is malformed or longer than 107 bytes.
        Line "the PROXY protocol line is malformed",
        /// A version of the binary header that is not 2, or an unknown command.
        Version "the PROXY protocol header is of an unknown version",
        /// The binary header is too short for its addresses, or longer than [`HEADER_BYTES_MAX`].
        Length "the length of the PROXY protocol header cannot be right",
        /// What follows the addresses does not fit the lengths it announces.
        Extras "the extras of the PROXY protocol header are malformed",
        Checksum "the checksum of the PROXY protocol header is wrong",
    }
}

/// Reads a header from the beginning of `input`. Bytes that cannot become a header are refused as early as
/// possible.
///
/// # Errors
/// The connection must be closed.
pub fn decode(input: &[u8]) -> Result<DecodedHeader, HeaderError> {
    let begins = |with: &[u8]| {
        let length = with.len().min(input.len());
        input.get(..length) == with.get(..length)
    };
    if begins(V2_SIGNATURE) {
        return decode_v2(input);
    }
    if begins(V1_PREFIX) {
        return decode_v1(input);
    }
    Err(HeaderError::Missing)
}

/// Appends a line of version 1. Endpoints other than TCP become UNKNOWN.
pub fn encode_v1(endpoints: &Endpoints, out: &mut Vec<u8>) {
    let Endpoints::Ip {
        source,
        destination,
    } = endpoints
    else {
        return out.extend_from_slice(b"PROXY UNKNOWN\r\n");
    };
    let (family, from, to) = match one_family(source.ip(), destination.ip()) {
        OneFamily::V4(from, to) => ("TCP4", IpAddr::V4(from), IpAddr::V4(to)),
        OneFamily::V6(from, to) => ("TCP6", IpAddr::V6(from), IpAddr::V6(to)),
    };
    let (source_port, port) = (source.port(), destination.port());
    // Writing to a Vec cannot fail.
    let _ = write!(out, "PROXY {family} {from} {to} {source_port} {port}\r\n");
}

/// Appends a header of version 2, without extras.
pub fn encode_v2(endpoints: &Endpoints, out: &mut Vec<u8>) {
    out.extend_from_slice(V2_SIGNATURE);
    let Endpoints::Ip {
        source,
        destination,
    } = endpoints
    else {
        let command = match endpoints {
            Endpoints::Itself => V2_LOCAL,
            _ => V2_PROXY,
        };
        return out.extend_from_slice(&[command, V2_UNSPECIFIED, 0, 0]);
    };
    match one_family(source.ip(), destination.ip()) {
        OneFamily::V4(from, to) => {
            out.extend_from_slice(&[V2_PROXY, V2_TCP4, 0, V2_IP4 as u8]);
            out.extend_from_slice(&from.octets());
            out.extend_from_slice(&to.octets());
        }
        OneFamily::V6(from, to) => {
            out.extend_from_slice(&[V2_PROXY, V2_TCP6, 0, V2_IP6 as u8]);
            out.extend_from_slice(&from.octets());
            out.extend_from_slice(&to.octets());
        }
    }
    out.extend_from_slice(&source.port().to_be_bytes());
    out.extend_from_slice(&destination.port().to_be_bytes());
}

/// The longest line of version 1, its end included.
const V1_BYTES_MAX: usize = 107;
const V1_PREFIX: &[u8] = b"PROXY ";

const V2_SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family, length.
const V2_FIXED: usize = 16;
const V2_LOCAL: u8 = 0x20;
const V2_PROXY: u8 = 0x21;
const V2_UNSPECIFIED: u8 = 0x00;
const V2_TCP4: u8 = 0x11;
const V2_TCP6: u8 = 0x21;
const V2_UNIX_STREAM: u8 = 0x31;
/// Lengths of the addresses, in bytes.
const V2_IP4: usize = 12;
const V2_IP6: usize = 36;
const V2_UNIX: usize = 216;
const EXTRAS_BYTES_MAX: usize = 4096;

fn decode_v1(input: &[u8]) -> Result<DecodedHeader, HeaderError> {
    let within = input.get(..V1_BYTES_MAX).unwrap_or(input);
    let Some(end) = memchr::memchr(b'\n', within) else {
        return match within.len() {
            V1_BYTES_MAX => Err(HeaderError::Line),
            _ => Ok(DecodedHeader::NeedMore),
        };
    };
    let line = within.get(..end).unwrap_or_default();
    let endpoints = line
        .strip_suffix(b"\r")
        .and_then(|line| std::str::from_utf8(line).ok())
        .and_then(v1_endpoints)
        .ok_or(HeaderError::Line)?;
    Ok(DecodedHeader::Complete(Box::new(ProxyHeader {
        length: end + 1,
        endpoints,
        extras: Extras::default(),
    })))
}

fn v1_endpoints(line: &str) -> Option<Endpoints> {
    let mut words = line.split(' ');
    words.next()?;
    let family = words.next()?;
    if family == "UNKNOWN" {
        // The rest of such a line is to be ignored.
        return Some(Endpoints::Itself);
    }
    let (source, destination) = (words.next()?, words.next()?);
    let (source_port, port) = (words.next()?, words.next()?);
    let address = |text: &str| -> Option<IpAddr> {
        match family {
            "TCP4" => Some(IpAddr::V4(text.parse().ok()?)),
            "TCP6" => Some(IpAddr::V6(text.parse().ok()?)),
            _ => None,
        }
    };
    let endpoints = Endpoints::Ip {
        source: SocketAddr::new(address(source)?, v1_port(source_port)?),
        destination: SocketAddr::new(address(destination)?, v1_port(port)?),
    };
    words.next().is_none().then_some(endpoints)
}

/// Reads decimal digits without leading zeros.
fn v1_port(text: &str) -> Option<u16> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let is_short = text == "0" || !text.starts_with('0');
    (is_plain && is_short).then(|| text.parse().ok())?
}

fn decode_v2(input: &[u8]) -> Result<DecodedHeader, HeaderError> {
    let command = input.get(V2_SIGNATURE.len()).copied();
    if command.is_some_and(|command| !matches!(command, V2_LOCAL | V2_PROXY)) {
        return Err(HeaderError::Version);
    }
    let Some(fixed) = input.first_chunk::<V2_FIXED>() else {
        return Ok(DecodedHeader::NeedMore);
    };
    let [.., command, family, high, low] = *fixed;
    let length = V2_FIXED + usize::from(u16::from_be_bytes([high, low]));
    if length > HEADER_BYTES_MAX {
        return Err(HeaderError::Length);
    }
    let Some(header) = input.get(..length) else {
        return Ok(DecodedHeader::NeedMore);
    };
    let rest = header.get(V2_FIXED..).unwrap_or_default();
    let (mut endpoints, address_length) = v2_endpoints(family, rest)?;
    if command == V2_LOCAL {
        endpoints = Endpoints::Itself;
    }
    let extras = match command {
        // The content of a LOCAL header is to be skipped.
        V2_LOCAL => Extras::default(),
        _ => Extras::read(header, V2_FIXED + address_length)?,
    };
    Ok(DecodedHeader::Complete(Box::new(ProxyHeader {
        length,
        endpoints,
        extras,
    })))
}

/// Reads the addresses at the beginning of `bytes`. Returns them and their length.
fn v2_endpoints(family: u8, bytes: &[u8]) -> Result<(Endpoints, usize), HeaderError> {
    let (endpoints, length) = match family {
        V2_TCP4 => (v2_ip::<4, Ipv4Addr>(bytes), V2_IP4),
        V2_TCP6 => (v2_ip::<16, Ipv6Addr>(bytes), V2_IP6),
        V2_UNIX_STREAM => {
            let is_there = bytes.len() >= V2_UNIX;
            (is_there.then_some(Endpoints::Unix), V2_UNIX)
        }
        // The length of an unknown family's addresses is unknown, so everything is skipped.
        _ => (Some(Endpoints::Itself), bytes.len()),
    };
    Ok((endpoints.ok_or(HeaderError::Length)?, length))
}

fn v2_ip<const BYTES: usize, A>(bytes: &[u8]) -> Option<Endpoints>
where
    A: From<[u8; BYTES]> + Into<IpAddr>,
{
    let (source, rest) = bytes.split_first_chunk::<BYTES>()?;
    let (destination, rest) = rest.split_first_chunk::<BYTES>()?;
    let (source_port, rest) = rest.split_first_chunk::<2>()?;
    let (port, _) = rest.split_first_chunk::<2>()?;
    let address = |octets: &[u8; BYTES], port: &[u8; 2]| {
        SocketAddr::new(A::from(*octets).into(), u16::from_be_bytes(*port))
    };
    Some(Endpoints::Ip {
        source: address(source, source_port),
        destination: address(destination, port),
    })
}

/// Two addresses of the same family, since a header has only one.
enum OneFamily {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

fn one_family(source: IpAddr, destination: IpAddr) -> OneFamily {
    let as_v6 = |address: IpAddr| match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    match (source.to_canonical(), destination.to_canonical()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => OneFamily::V4(source, destination),
        (source, destination) => OneFamily::V6(as_v6(source), as_v6(destination)),
    }
}

#[cfg(test)]
mod tests;
