//! The protocols of memcached: encodes commands and decodes replies, in the text or the binary protocol.
//!
//! [`text::write`] or [`binary::write`] encodes a [`Command`]. The [`text::TextDecoder`] and the
//! [`binary::BinaryDecoder`] are fed bytes as they arrive and return the same [`Reply`]s: for
//! [`Command::Get`] a [`Reply::Value`] for each key that exists and then [`Reply::End`]; for all other
//! commands a single reply. This module knows nothing of sockets, nor which server has a key; the clients in
//! `modules/src/remote_store` drive it. The meta commands are left out: what they would add, such as stale
//! values, Petrel's caches do themselves.
//!
//! <https://github.com/memcached/memcached/blob/master/doc/protocol.txt>

pub mod binary;
mod command;
mod error;
mod reply;
pub mod text;

pub use command::{Command, Direction, Key, KeyError, Write};
pub use error::ReplyError;
pub use reply::{Item, MemcachedProgress, Reply};

#[cfg(test)]
mod tests;
