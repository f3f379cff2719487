//! Where memcached servers are and how they are talked to.

use super::{Distribution, HashName, KeyForm};
use crate::remote_store::address::StoreAddress;
use crate::remote_store::limits;

/// Where the servers are and how they are talked to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemcachedOptions {
    /// Where they listen, one at least. The order matters to [`Distribution::Modula`].
    pub servers: Vec<StoreAddress>,
    /// How keys are spread over them.
    pub distribution: Distribution,
    /// The hash by which they are; `None`: the one that goes with the distribution.
    pub hash: Option<HashName>,
    /// Put before a key when it is sent. Has no part in where a key goes.
    pub namespace: Vec<u8>,
    /// Put before every key.
    pub prefix: Vec<u8>,
    /// What becomes of keys that cannot be sent.
    pub key_form: KeyForm,
    /// Which protocol is spoken.
    pub wire: Wire,
    /// The longest value that is sent, in bytes; a longer one is refused here. Not above
    /// [`limits::BULK_BYTES_MAX`], for it could not be read again.
    pub value_bytes_max: usize,
    /// Milliseconds to connect.
    pub connect_timeout_ms: u64,
    /// Milliseconds for a whole operation, the wait for a connection included.
    pub timeout_ms: u64,
    /// Connections that one worker may have to each server.
    pub connections_max: usize,
}

/// A protocol of memcached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Wire {
    /// Lines.
    #[default]
    Text,
    /// Packets.
    Binary,
}

impl MemcachedOptions {
    /// The port that a memcached has unless told otherwise.
    pub(crate) const PORT_DEFAULT: u16 = 11211;

    /// These servers, all else as usual.
    pub(crate) fn new(servers: Vec<StoreAddress>) -> MemcachedOptions {
        MemcachedOptions {
            servers,
            distribution: Distribution::default(),
            hash: None,
            namespace: Vec::new(),
            prefix: Vec::new(),
            key_form: KeyForm::default(),
            wire: Wire::default(),
            value_bytes_max: limits::MEMCACHED_VALUE_BYTES_MAX,
            connect_timeout_ms: limits::CONNECT_TIMEOUT_MS,
            timeout_ms: limits::TIMEOUT_MS,
            connections_max: limits::MEMCACHED_CONNECTIONS_MAX,
        }
    }
}
