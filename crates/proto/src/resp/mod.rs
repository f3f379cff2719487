//! RESP, the protocol of Redis: commands written, replies read.
//!
//! A client writes commands with [`write_command`] and takes replies apart with a [`RespDecoder`], which
//! is fed bytes as they come and hands out one [`Value`] after the other. RESP2 is what we speak; the
//! types that RESP3 adds are understood as well, because a server behind a proxy may have been told to
//! use them. Knows nothing of what a command means or which reply belongs to which; the clients in
//! `modules/src/remote_store` drive it.
//!
//! Every value begins with a byte for its type and a line:
//!
//! ```text
//!   +OK\r\n             -ERR no such key\r\n    :42\r\n
//!   $5\r\nhello\r\n     $-1\r\n (nil)           *2\r\n:1\r\n:2\r\n
//!   RESP3:  _ nil   # boolean   , double   ( big number   = verbatim string   ! error
//!           % map   ~ set       > push     | attributes, which are read and dropped
//! ```
//!
//! Strings and aggregates of unknown length (`$?`, `*?`) are refused: no server sends them unasked.
//!
//! <https://redis.io/docs/latest/develop/reference/protocol-spec/>

mod decode;
mod encode;
mod error;
mod grammar;
mod value;

pub use decode::{ReplyLimits, RespDecoder, RespProgress};
pub use encode::write_command;
pub use error::RespError;
pub use value::Value;

#[cfg(test)]
mod tests;
