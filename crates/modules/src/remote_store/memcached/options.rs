//! Where memcached servers are, and how they are used.

use super::{Distribution, HashName, KeyForm};
use crate::remote_store::address::StoreAddress;
use crate::remote_store::limits;

/// Where the servers are, and how they are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemcachedOptions {
    /// Their addresses, at least one. The order matters for [`Distribution::Modula`].
    pub servers: Vec<StoreAddress>,
    /// How keys are distributed among them.
    pub distribution: Distribution,
    /// The hash for that; `None`: the default of the distribution.
    pub hash: Option<HashName>,
    /// Put before each key when it is sent. It has no influence on the choice of the server.
    pub namespace: Vec<u8>,
    /// Put before each key, and part of what chooses the server.
    pub prefix: Vec<u8>,
    /// What to do with keys that cannot be sent.
    pub key_form: KeyForm,
    /// The protocol.
    pub wire: Wire,
    /// The longest value that is sent, in bytes; a longer one is refused. It is at most
    /// [`limits::BULK_BYTES_MAX`], because a longer value could not be read again.
    pub value_bytes_max: usize,
    /// Milliseconds to connect.
    pub connect_timeout_ms: u64,
    /// Milliseconds for a whole operation, including the wait for a connection.
    pub timeout_ms: u64,
    /// The largest number of connections of one worker to each server.
    pub connections_max: usize,
}

/// A protocol of memcached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Wire {
    /// The text protocol.
    #[default]
    Text,
    /// The binary protocol.
    Binary,
}

impl MemcachedOptions {
    /// memcached's default port.
    pub(crate) const PORT_DEFAULT: u16 = 11211;

    /// Options for these servers; all others have their defaults.
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
