//! The fields that tell a backend about the client: X-Forwarded-For and its relatives, and Forwarded.
//!
//! Written as lighttpd 1.4.69 does: the addresses are those of connections. So a proxy that mod_extforward
//! trusts is listed by its own address, after the client that it named.

use std::io::Write;
use std::net::IpAddr;

use petrel_engine::Exchange;
use petrel_engine::proto::request_head::KnownField;

use super::HeaderMap;
use crate::extforward::{ACTUAL_FOR, ACTUAL_HOST, ACTUAL_PROTO};
use crate::gateway::environment::ip_text;

impl HeaderMap {
    /// Appends the fields that say who the client is and what it asked for.
    pub(in crate::gateway) fn write_forwarding(&self, exchange: &Exchange, out: &mut Vec<u8>) {
        if self.writes_forwarded() {
            self.write_forwarded(exchange, out);
        }
        write_forwarded_for(exchange, out);
        let host = host(exchange);
        if !host.is_empty() {
            for name in ["X-Host: ", "X-Forwarded-Host: "] {
                out.extend_from_slice(name.as_bytes());
                out.extend_from_slice(host);
                out.extend_from_slice(b"\r\n");
            }
        }
        out.extend_from_slice(b"X-Forwarded-Proto: ");
        out.extend_from_slice(exchange.scheme().as_str().as_bytes());
        out.extend_from_slice(b"\r\n");
    }

    /// Appends the Forwarded field: the client's own Forwarded, or its X-Forwarded-For if it sent none, and
    /// then this server's element (RFC 7239 4).
    #[cold]
    fn write_forwarded(&self, exchange: &Exchange, out: &mut Vec<u8>) {
        let head = &exchange.request.head;
        out.extend_from_slice(b"Forwarded: ");
        match head.field(KnownField::Forwarded) {
            Some(earlier) if !earlier.is_empty() => {
                out.extend_from_slice(earlier);
                out.extend_from_slice(b", ");
            }
            _ => {
                let earlier = head.field(KnownField::XForwardedFor).unwrap_or_default();
                write_earlier_hops(earlier, out);
            }
        }
        self.write_element(exchange, out);
        out.extend_from_slice(b"\r\n");
    }

    fn write_element(&self, exchange: &Exchange, out: &mut Vec<u8>) {
        let wanted = self.forwarded;
        let environment = &exchange.environment;
        let mut element = Element {
            out,
            is_empty: true,
        };
        if wanted.for_ {
            element.begin(b"for=");
            match (environment.get(ACTUAL_FOR), exchange.connection.peer.ip()) {
                (Some(proxy), _) => write_node(proxy, element.out),
                (None, Some(IpAddr::V4(address))) => display(address, element.out),
                (None, Some(IpAddr::V6(address))) => {
                    element.out.extend_from_slice(b"\"[");
                    display(address, element.out);
                    element.out.extend_from_slice(b"]\"");
                }
                // RFC 7239 6.2: the name of a node whose address is not known.
                (None, None) => element.out.extend_from_slice(b"unknown"),
            }
        }
        if wanted.by {
            element.begin(b"by=");
            match exchange.local_address() {
                Some(address) => {
                    element.out.push(b'"');
                    display(address, element.out);
                    element.out.push(b'"');
                }
                None => write_quoted(exchange.connection.listener.address.as_bytes(), element.out),
            }
        }
        if wanted.proto {
            element.begin(b"proto=");
            let scheme = exchange.scheme().as_str().as_bytes();
            let scheme = environment.get(ACTUAL_PROTO).unwrap_or(scheme);
            element.out.extend_from_slice(scheme);
        }
        let host = host(exchange);
        if wanted.host && !host.is_empty() {
            element.begin(b"host=");
            write_quoted(host, element.out);
        }
        if let Some(user) = environment
            .get("REMOTE_USER")
            .filter(|_| wanted.remote_user)
        {
            element.begin(b"remote_user=");
            write_quoted(user, element.out);
        }
    }
}

/// The host that the client asked for on this connection.
fn host(exchange: &Exchange) -> &[u8] {
    let actual = exchange.environment.get(ACTUAL_HOST);
    actual.unwrap_or(exchange.request.head.host())
}

/// Appends X-Forwarded-For: what the client sent, then the client's own address.
fn write_forwarded_for(exchange: &Exchange, out: &mut Vec<u8>) {
    let earlier = exchange.request.head.field(KnownField::XForwardedFor);
    let earlier = earlier.unwrap_or_default();
    let actual = exchange.environment.get(ACTUAL_FOR);
    let peer = exchange.connection.peer.ip();
    if earlier.is_empty() && actual.is_none() && peer.is_none() {
        return;
    }
    out.extend_from_slice(b"X-Forwarded-For: ");
    out.extend_from_slice(earlier);
    let separator: &[u8] = if earlier.is_empty() { b"" } else { b", " };
    match (actual, peer) {
        (Some(proxy), _) => {
            out.extend_from_slice(separator);
            out.extend_from_slice(proxy);
        }
        (None, Some(address)) => {
            out.extend_from_slice(separator);
            out.extend_from_slice(ip_text(address).as_bytes());
        }
        (None, None) => {}
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends the addresses of an X-Forwarded-For as elements of Forwarded, each followed by a comma. They are
/// quoted, because their syntax was never checked.
fn write_earlier_hops(field: &[u8], out: &mut Vec<u8>) {
    let hops = field.split(|byte| matches!(byte, b',' | b' ' | b'\t'));
    for hop in hops.filter(|hop| !hop.is_empty()) {
        out.extend_from_slice(b"for=");
        write_node(hop, out);
        out.extend_from_slice(b", ");
    }
}

/// Appends an address in quotes. If it is IPv6 without brackets, the brackets are added.
fn write_node(node: &[u8], out: &mut Vec<u8>) {
    let is_bare_ip6 =
        std::str::from_utf8(node).is_ok_and(|text| matches!(text.parse(), Ok(IpAddr::V6(_))));
    if is_bare_ip6 {
        out.extend_from_slice(b"\"[");
        out.extend_from_slice(node);
        out.extend_from_slice(b"]\"");
    } else {
        write_quoted(node, out);
    }
}

/// A quoted string (RFC 9110 5.6.4). Control characters become spaces.
fn write_quoted(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for &byte in text {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            _ if byte.is_ascii_control() => out.push(b' '),
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

fn display(what: impl std::fmt::Display, out: &mut Vec<u8>) {
    // Writing to a Vec cannot fail.
    let _ = write!(out, "{what}");
}

/// Writes one element of Forwarded.
struct Element<'o> {
    out: &'o mut Vec<u8>,
    is_empty: bool,
}

impl Element<'_> {
    fn begin(&mut self, name: &[u8]) {
        if !std::mem::take(&mut self.is_empty) {
            self.out.push(b';');
        }
        self.out.extend_from_slice(name);
    }
}
