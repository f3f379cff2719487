//! AJP 1.3: requests to servlet containers, and their replies.
//!
//! [`RequestEncoder`] and [`write_body`] make the packets of a request, [`AjpDecoder`] takes
//! those of a reply apart. Containers fetch the body themselves: all of a request but the first
//! stretch of its body waits until it is asked for.
//!
//! ```text
//!   server                                    container
//!   FORWARD_REQUEST  ───────────────────────>
//!   first stretch of the body, if any ──────>
//!                   <───────────────────────  GET_BODY_CHUNK (again and again)
//!   next stretch, empty when there is none ─>
//!                   <───────────────────────  SEND_HEADERS
//!                   <───────────────────────  SEND_BODY_CHUNK (again and again)
//!                   <───────────────────────  END_RESPONSE
//! ```
//!
//! A packet is two bytes that say which way it goes (`0x1234` or `AB`), the length of what follows in
//! two bytes, and that. All numbers are big-endian. Strings have a length in two bytes in front and
//! a NUL behind; frequent names are numbers instead.

mod reply;
mod request;

pub use reply::{AjpDecoder, AjpEvent, DecodedPacket, ReplyError};
pub use request::{
    Attribute, AttributeEncoder, Request, RequestEncoder, RequestTooLong, write_body,
    write_end_of_body,
};

/// The longest packet in bytes, its four bytes of header included. Containers may be told to take
/// longer ones, but this is what all take.
pub const PACKET_BYTES_MAX: usize = 8192;

/// The longest stretch of a request body that fits into a packet.
pub const BODY_BYTES_MAX: usize = PACKET_BYTES_MAX - 6;

#[cfg(test)]
mod tests;
