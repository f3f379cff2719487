//! The part of a request that depends on its client and its fields only, kept for the client's next request.
//!
//! A client mostly sends the same fields again on its connection, and programs and proxies always do.
//! Comparing them costs a tenth of making variables or lines of them again. A worker keeps the parts of a
//! fixed number of connections, whose memory is limited; a connection has the place of its number modulo
//! that. A part is used only on the same connection, for the same peer, method and settings, and for fields
//! that are the same byte by byte.

use petrel_engine::Exchange;
use petrel_engine::exchange::Peer;
use petrel_engine::proto::method::Method;

use crate::gateway::environment::ConstantsKey;
use crate::gateway::limits;

/// The parts of the last requests of a worker's clients, in the form of one protocol.
#[derive(Default)]
pub(super) struct ClientParts(Vec<ClientPart>);

/// The part of one client.
#[derive(Default)]
struct ClientPart {
    basis: Option<PartBasis>,
    /// The fields as they were received.
    fields: Vec<u8>,
    host: Vec<u8>,
    server_name: Vec<u8>,
    encoded: Vec<u8>,
}

/// What a part depends on beside its texts.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PartBasis {
    connection: u64,
    peer: Peer,
    method: Method,
    constants: ConstantsKey,
    options: u8,
}

impl ClientParts {
    /// The part of `exchange` as `encode` writes it, which is called only if the client's last request had
    /// another one. `options` are choices of the configuration that it depends on. `None`: `encode` was not
    /// called, because no part is kept for fields that a module has changed, and for long ones.
    #[inline]
    pub(super) fn of(
        &mut self,
        exchange: &Exchange,
        options: u8,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Option<&[u8]> {
        let head = &exchange.request.head;
        let fields = head.received_fields()?;
        let server_name = &exchange.physical.server_name;
        if fields.len() + head.host().len() + server_name.len() > limits::CLIENT_FIELDS_BYTES_MAX {
            return None;
        }
        let basis = PartBasis {
            connection: exchange.connection.id,
            peer: exchange.connection.peer,
            method: exchange.request.method,
            constants: ConstantsKey::of(exchange),
            options,
        };
        if self.0.is_empty() {
            self.0
                .resize_with(limits::CLIENT_PARTS, ClientPart::default);
        }
        let place = exchange.connection.id as usize % limits::CLIENT_PARTS;
        let part = self.0.get_mut(place)?;
        let is_same = part.basis == Some(basis)
            && part.fields == fields
            && part.host == head.host()
            && part.server_name == *server_name;
        if !is_same {
            part.replace(basis, exchange, fields);
            encode(&mut part.encoded);
        }
        Some(&part.encoded)
    }
}

impl ClientPart {
    #[inline(never)]
    fn replace(&mut self, basis: PartBasis, exchange: &Exchange, fields: &[u8]) {
        self.basis = Some(basis);
        let texts = [
            (&mut self.fields, fields),
            (&mut self.host, exchange.request.head.host()),
            (&mut self.server_name, &exchange.physical.server_name),
        ];
        for (kept, text) in texts {
            kept.clear();
            kept.extend_from_slice(text);
        }
        self.encoded.clear();
    }
}
