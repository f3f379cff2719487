//! Connections of proxies that say first, by the PROXY protocol, whose connection it is.
//!
//! Only connections from addresses that the settings name get here. From such an address the header
//! must come: without it the connection is closed, as the request would be taken for the proxy's.

use std::rc::Rc;
use std::task::{Context, Poll};

use petrel_proto::proxy_protocol::{self, Decoded, Endpoints, Header};

use super::{Connection, State};
use crate::exchange::{Peer, Proxied, Scheme};

impl Connection {
    /// Waits for the header.
    pub(super) fn poll_proxy_header(&mut self, context: &mut Context<'_>) -> Poll<State> {
        let worker = Rc::clone(&self.worker);
        loop {
            let mut buffer = worker.receive_buffer.borrow_mut();
            match self.transport.poll_read(context, &mut buffer) {
                Poll::Ready(Ok(count)) if count > 0 => self.input.push(&buffer[..count]),
                Poll::Ready(_) => return Poll::Ready(State::Over),
                Poll::Pending if self.input.is_empty() => return self.poll_idle_drain(),
                Poll::Pending => return Poll::Pending,
            }
            match proxy_protocol::decode(&self.input) {
                Ok(Decoded::NeedMore) => {}
                Ok(Decoded::Complete(header)) => {
                    return Poll::Ready(self.take_proxy_header(*header));
                }
                Err(error) => {
                    let log = &worker.base_settings().core.error_log;
                    let client = self.peer.without_port();
                    log.error(format_args!("(receive) {error} client={client}"));
                    return Poll::Ready(State::Over);
                }
            }
        }
    }

    /// From now on the client is the one that the proxy names.
    fn take_proxy_header(&mut self, header: Header) -> State {
        self.input.used(header.length);
        if self.input.is_empty() {
            self.input.release();
        }
        self.set_deadline(self.worker.base_settings().core.read_idle_s);
        let sender = self.peer;
        match header.endpoints {
            Endpoints::Ip { source, .. } => self.peer = Peer::Ip(source),
            Endpoints::Unix => self.peer = Peer::Unix,
            Endpoints::Itself => return State::Head,
        }
        let scheme = match &header.extras.tls {
            Some(tls) if tls.is_used => Scheme::Https,
            _ => Scheme::Http,
        };
        self.scope = self.worker.settings_table().connection_scope_for(
            &self.listener.address,
            self.peer.ip(),
            scheme,
        );
        self.rare.get_or_insert_default().proxied = Some(Rc::new(Proxied {
            sender,
            scheme,
            extras: header.extras,
        }));
        State::Head
    }
}
