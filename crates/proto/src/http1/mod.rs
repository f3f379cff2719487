//! HTTP/1.0 and 1.1: decodes request heads and bodies, writes response heads; and decodes the responses of
//! backends.
//!
//! Knows nothing of sockets, timers or configuration; the engine's HTTP/1 connection drives it. It handles
//! one request at a time: [`RequestHead::parse`](crate::request_head::RequestHead::parse) until the head is
//! complete, then a [`BodyDecoder`] with the head's framing until the body ends, then the head is cleared for
//! the next request. A gateway writes the head of its request with a [`BackendHead`], and reads the
//! response with a [`ResponseDecoder`].

mod backend_head;
mod body;
mod encode;
mod parse;
mod response;
mod response_head;
mod usual_head;

pub use backend_head::{BackendHead, write_host};
pub use body::{BodyDecoder, BodyError, BodyLimits, DecodedPiece, Piece};
pub use encode::{
    CHUNK_END, CONTINUE, write_chunk, write_chunk_header, write_content_length, write_interim,
    write_last_chunk, write_status_line,
};
pub use parse::Parsed;
pub use response::{
    Asked, REPEATED_HEAD_BYTES_MAX, ResponseDecoded, ResponseDecoder, ResponseError, ResponseEvent,
    ResponseLimits,
};
