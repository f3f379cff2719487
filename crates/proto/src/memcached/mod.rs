//! The protocols of memcached: commands written, replies read, as text or binary.
//!
//! A [`Command`] is written by [`text::write`] or [`binary::write`]; the [`text::TextDecoder`] and the
//! [`binary::BinaryDecoder`] are fed bytes as they come and hand out the same [`Reply`]s: for
//! [`Command::Get`] a [`Reply::Value`] for each key that is there and [`Reply::End`], for all others
//! one. Knows nothing of sockets or of which server has a key; the clients in
//! `modules/src/remote_store` drive it. The meta commands are left out: what they add to these, such as
//! stale values, the caches in front do themselves.
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
