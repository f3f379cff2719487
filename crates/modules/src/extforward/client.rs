//! Finds the client in the fields of a request: goes over the trusted proxies, from the nearest to the
//! farthest.

use std::net::SocketAddr;

use petrel_engine::exchange::Scheme;
use petrel_engine::proto::forwarded::{self, ForwardedError, Hop, Node};

use super::trust::Trust;
use super::{ForwardedParams, scheme};

/// What a trusted proxy says about the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Client {
    /// The client's address; port 0 if the proxy does not say.
    pub(super) address: SocketAddr,
    pub(super) scheme: Option<Scheme>,
    pub(super) host: Option<Vec<u8>>,
    pub(super) remote_user: Option<Vec<u8>>,
}

/// The client according to X-Forwarded-For or a similar field: the last address that does not belong to a
/// trusted proxy. `None`, as in lighttpd, if all of them do, or if an entry is no address.
pub(super) fn of_addresses(field: &[u8], proto: Option<&[u8]>, trust: &Trust) -> Option<Client> {
    for text in forwarded::addresses(field).rev() {
        let Node::Address(address) = Node::parse(text) else {
            return None;
        };
        if !trust.names(address.ip()) {
            return Some(Client {
                address,
                scheme: proto.and_then(scheme),
                host: None,
                remote_user: None,
            });
        }
    }
    None
}

/// The client according to Forwarded: that of the last element whose `for` is not a trusted proxy, or of the
/// first element if all are. `None` if the proxy hides the client.
pub(super) fn of_forwarded(
    field: &[u8],
    trust: &Trust,
    params: ForwardedParams,
) -> Result<Option<Client>, ForwardedError> {
    let hops = forwarded::parse(field)?;
    let mut client = None;
    for hop in hops.iter().rev() {
        let text = hop.for_.as_deref().unwrap_or_default();
        let Node::Address(address) = Node::parse(text) else {
            return Ok(None);
        };
        client = Some(said_by(hop, address, params));
        if !trust.names(address.ip()) {
            break;
        }
    }
    Ok(client)
}

fn said_by(hop: &Hop<'_>, address: SocketAddr, params: ForwardedParams) -> Client {
    let host = hop.host.as_deref().filter(|_| params.host);
    let user = hop.remote_user.as_deref().filter(|_| params.remote_user);
    Client {
        address,
        scheme: hop.proto.as_deref().and_then(scheme),
        host: host.map(<[u8]>::to_vec),
        remote_user: user.map(<[u8]>::to_vec),
    }
}
