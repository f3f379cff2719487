//! Connections of proxies that name the client by the PROXY protocol.
//!
//! Only connections from addresses that the settings name get here. From such an address the header must
//! come: otherwise the connection is closed, because its requests would be taken for the proxy's own.

use std::ops::ControlFlow::{Break, Continue};
use std::rc::Rc;
use std::task::{Context, Poll};

use petrel_proto::proxy_protocol::{self, DecodedHeader, Endpoints, ProxyHeader};

use super::link::Link;
use super::{ConnectionState, Step, handshake};
use crate::exchange::{Peer, Proxied, Scheme};

/// Waits for the rest of the header; `input` is its beginning.
pub(super) fn poll_header(input: Box<[u8]>, link: &mut Link, context: &mut Context<'_>) -> Step {
    let mut input = input.into_vec();
    loop {
        let worker = Rc::clone(&link.worker);
        let mut buffer = worker.receive_buffer.borrow_mut();
        match link.transport.poll_read(context, &mut buffer) {
            Poll::Ready(Ok(count)) if count > 0 => input.extend_from_slice(&buffer[..count]),
            Poll::Ready(_) => return Continue(ConnectionState::Over(None)),
            Poll::Pending if input.is_empty() => {
                return link.rest(ConnectionState::ProxyHeader(input.into()));
            }
            Poll::Pending => return Break(ConnectionState::ProxyHeader(input.into())),
        }
        drop(buffer);
        match proxy_protocol::decode(&input) {
            Ok(DecodedHeader::NeedMore) => {}
            Ok(DecodedHeader::Complete(header)) => {
                input.drain(..header.length);
                take_header(*header, link);
                return Continue(handshake::begin(input, link));
            }
            Err(error) => {
                let log = &link.worker.base_settings().core.error_log;
                let client = link.facts.peer.without_port();
                log.error(format_args!("(read-head) {error} client={client}"));
                return Continue(ConnectionState::Over(None));
            }
        }
    }
}

/// From now on the client is the one that the proxy names.
fn take_header(header: ProxyHeader, link: &mut Link) {
    link.set_deadline(link.worker.base_settings().core.read_idle_s);
    let peer = match header.endpoints {
        Endpoints::Ip { source, .. } => Peer::Ip(source),
        Endpoints::Unix => Peer::Unix,
        Endpoints::Itself => return,
    };
    let scheme = match &header.extras.tls {
        Some(tls) if tls.is_used => Scheme::Https,
        _ => Scheme::Http,
    };
    let sender = link.facts.peer;
    let extras = header.extras;
    link.be_proxied(peer, scheme, Proxied { sender, extras });
}
