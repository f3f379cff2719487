//! AJP 1.3: requests to servlet containers, and their replies.
//!
//! [`RequestEncoder`] and [`write_body`] write the packets of a request; [`AjpDecoder`] reads those of a
//! reply. Containers fetch the body of a request themselves: the server sends its first piece, and each
//! further one when the container asks.
//!
//! ```text
//!   server                                    container
//!   FORWARD_REQUEST  ───────────────────────>
//!   first piece of the body, if any ────────>
//!                   <───────────────────────  GET_BODY_CHUNK (again and again)
//!   next piece, empty when there is none ───>
//!                   <───────────────────────  SEND_HEADERS
//!                   <───────────────────────  SEND_BODY_CHUNK (again and again)
//!                   <───────────────────────  END_RESPONSE
//! ```
//!
//! A packet consists of two bytes that tell its direction (`0x1234` or `AB`), the length of its content in
//! two bytes, and the content. All numbers are big-endian. A string has its length in two bytes in front and
//! a NUL at its end; frequent names are sent as numbers instead.

mod reply;
mod request;

pub use reply::{AjpDecoder, AjpEvent, DecodedPacket, ReplyError};
pub use request::{
    Attribute, AttributeEncoder, Request, RequestEncoder, RequestTooLong, write_body,
    write_end_of_body,
};

/// The longest packet in bytes, including its header of four bytes. Containers can be configured for longer
/// packets, but every container takes this length.
pub const PACKET_BYTES_MAX: usize = 8192;

/// The longest piece of a request body that fits into a packet.
pub const BODY_BYTES_MAX: usize = PACKET_BYTES_MAX - 6;

#[cfg(test)]
mod tests;
