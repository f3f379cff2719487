//! The PROXY protocol towards backends: a header before the first request that names the client.
//!
//! The header is for the whole connection. So a connection that begins with one serves a single request and
//! is then closed, because the next request may be from another client.

use std::net::{IpAddr, SocketAddr};

use petrel_engine::Exchange;
use petrel_engine::exchange::Peer;
use petrel_engine::proto::proxy_protocol::{Endpoints, encode_v1, encode_v2};

/// Appends the header for the client of `exchange` in this version of the protocol; 0 is none. The client's
/// address is the one in conditions and logs. A client on a unix socket has no address.
pub(crate) fn write(version: u8, exchange: &Exchange, out: &mut Vec<u8>) {
    match version {
        0 => {}
        1 => encode_v1(&endpoints(exchange), out),
        _ => encode_v2(&endpoints(exchange), out),
    }
}

fn endpoints(exchange: &Exchange) -> Endpoints {
    match exchange.connection.peer {
        Peer::Unix => Endpoints::Unix,
        Peer::Ip(source) => Endpoints::Ip {
            source,
            destination: destination(exchange, source.ip()),
        },
    }
}

/// The address that the client connected to. If it is not known, the port of the listener and no address.
fn destination(exchange: &Exchange, source: IpAddr) -> SocketAddr {
    exchange.local_address().unwrap_or_else(|| {
        let nowhere: IpAddr = match source.to_canonical() {
            IpAddr::V4(_) => [0; 4].into(),
            IpAddr::V6(_) => [0; 16].into(),
        };
        SocketAddr::new(nowhere, exchange.connection.listener.port)
    })
}

#[cfg(test)]
mod tests {
    use petrel_engine::testing::Site;

    use super::*;

    fn written(version: u8, fields: &str) -> Vec<u8> {
        let config = "server.document-root = \"/nonexistent\"\n\
                      extforward.forwarder = ( \"all\" => \"trust\" )";
        let site = Site::new(config, &[&crate::extforward::MODULE]);
        let answer = site.request(&format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n"));
        let mut out = Vec::new();
        write(version, answer.exchange(), &mut out);
        out
    }

    #[test]
    fn the_client_is_told_in_the_version_that_is_wanted() {
        assert_eq!(written(0, ""), b"");
        assert_eq!(
            written(1, ""),
            b"PROXY TCP4 127.0.0.1 127.0.0.1 40000 80\r\n"
        );
        assert_eq!(
            written(2, ""),
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x7f\0\0\x01\x7f\0\0\x01\x9c\x40\0\x50"
        );
    }

    #[test]
    fn the_client_is_the_one_that_a_trusted_proxy_names() {
        assert_eq!(
            written(1, "X-Forwarded-For: 2001:db8::1\r\n"),
            b"PROXY TCP6 2001:db8::1 ::ffff:127.0.0.1 0 80\r\n"
        );
    }
}
