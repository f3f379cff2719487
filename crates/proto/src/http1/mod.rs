//! HTTP/1.0 and 1.1 framing: bytes to request heads and body pieces, response heads to bytes; and
//! the other way round for backends.
//!
//! Knows nothing of sockets, timers or configuration; the engine's HTTP/1 connection drives it.
//! One request at a time: [`RequestHead::parse`] until it is complete, then a [`BodyDecoder`] made
//! from [`RequestHead::framing`] until its end, then [`RequestHead::clear`] and the next head.
//! A gateway reads what an HTTP backend answers with a [`ResponseDecoder`].

mod body;
mod encode;
mod error;
mod field;
mod host;
mod parse;
mod request_head;
mod response;
mod response_head;

pub use body::{BodyDecoder, BodyError, BodyErrorReason, BodyFraming, BodyLimits, Decoded, Piece};
pub use encode::{
    CHUNK_END, CONTINUE, LAST_CHUNK, write_chunk, write_chunk_header, write_content_length,
    write_head, write_interim, write_status_line,
};
pub use error::{HeadError, HeadErrorReason};
pub use field::KnownField;
pub(crate) use request_head::is_token;
pub use request_head::{HeadOptions, Parsed, RequestHead, Version};
pub use response::{
    Asked, ResponseDecoded, ResponseDecoder, ResponseError, ResponseEvent, ResponseLimits,
};
