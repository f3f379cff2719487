//! RESP, the protocol of Redis: encodes commands and decodes replies.
//!
//! A client writes commands with [`write_command`] and decodes replies with a [`RespDecoder`], which is fed
//! bytes as they arrive and returns one [`Value`] after another. Petrel speaks RESP2. It also understands the
//! types that RESP3 adds, because a server behind a proxy may have been switched to RESP3. This module does
//! not know what a command means or which reply belongs to it; the clients in `modules/src/remote_store`
//! drive it.
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
//! Strings and aggregates of unknown length (`$?`, `*?`) are refused: no server sends them unless it is asked
//! to.
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
