//! HTTP/1.0 and 1.1 framing: bytes to request heads and body pieces, response heads to bytes; and
//! the other way round for backends.
//!
//! Knows nothing of sockets, timers or configuration; the engine's HTTP/1 connection drives it.
//! One request at a time: [`RequestHead::parse`](crate::request_head::RequestHead::parse) until it is complete, then
//! a [`BodyDecoder`] made from the head's framing until its end, then the head is cleared for the next one.
//! A gateway reads what an HTTP backend answers with a [`ResponseDecoder`].

mod body;
mod encode;
mod parse;
mod response;
mod response_head;

pub use body::{BodyDecoder, BodyError, BodyLimits, DecodedPiece, Piece};
pub use encode::{
    CHUNK_END, CONTINUE, write_chunk, write_chunk_header, write_content_length, write_interim,
    write_last_chunk, write_status_line,
};
pub use parse::Parsed;
pub use response::{
    Asked, ResponseDecoded, ResponseDecoder, ResponseError, ResponseEvent, ResponseLimits,
};
