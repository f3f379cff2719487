//! HTTP/2 (RFC 9113): bytes to frames, frames to bytes, and the server's side of a connection.
//!
//! | file | what it knows |
//! |---|---|
//! | `frame`, `frame_decode`, `frame_header`, `frame_encode` | the bytes of frames |
//! | `connection` | the state of the connection, and its steps |
//! | `control` | frames without a part of a message: SETTINGS, PING, GOAWAY, WINDOW_UPDATE, RST_STREAM, priorities |
//! | `requests` | the receiving side of streams: heads, bodies and trailers |
//! | `repeated_head` | the last head, for clients that send it again |
//! | `answers` | the sending side of streams: heads, DATA and trailers; what the owner is done with |
//! | `streams` | the open streams, and the latest ones that the server has reset |
//! | `flow` | flow-control windows |
//! | `priority`, `turns` | priorities (RFC 9218), and the order in which streams send |
//! | `upgrade` | the HTTP2-Settings field of a client that asks for `Upgrade: h2c` |
//! | `limits`, `error` | limits and errors, with their codes and texts |

mod answers;
mod connection;
mod control;
mod error;
mod flow;
mod frame;
mod frame_decode;
mod frame_encode;
mod frame_header;
mod limits;
mod priority;
mod repeated_head;
mod requests;
mod streams;
mod turns;
mod upgrade;

pub use answers::{WindowWait, Written};
pub use connection::{Http2Connection, Http2Decoded, Http2Event, Http2Options, Lent};
pub use error::{ConnectionError, Http2Error, StreamError};
pub use flow::{USEFUL_BYTES, WIDER_BYTES};
pub use frame::{
    AfterFrame, ErrorCode, FrameDecoded, FrameError, FrameEvent, FramePayload, PriorityField,
    Setting, Settings,
};
pub use frame_decode::FrameDecoder;
pub use frame_encode::{
    OpenHeaders, write_data_header, write_frame_header, write_go_away, write_headers, write_ping,
    write_ping_ack, write_reset, write_settings, write_settings_ack, write_window_update,
};
pub use limits::{Http2Limits, PERIOD_S, RESETS_EARNED_MAX, SMALL_DATA_BYTES, STREAMS_MAX};
pub use priority::Priority;
pub use streams::StreamKey;
pub use upgrade::settings_of_upgrade;

/// What a client sends before its first frame (RFC 9113 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The longest payload that every peer accepts: the initial SETTINGS_MAX_FRAME_SIZE.
pub const FRAME_BYTES_MAX: u32 = 16_384;

/// Length of a frame's header.
pub const FRAME_HEADER_BYTES: usize = 9;

/// The largest flow-control window, and the largest increment of a window.
pub const WINDOW_BYTES_MAX: u32 = 0x7fff_ffff;

/// Length of one setting in a SETTINGS frame.
const SETTING_BYTES: usize = 6;

/// Kinds of frames (RFC 9113 section 6).
pub mod kind {
    /// A part of a body.
    pub const DATA: u8 = 0;
    /// The beginning of a message, or its trailers.
    pub const HEADERS: u8 = 1;
    /// A priority of RFC 7540.
    pub const PRIORITY: u8 = 2;
    /// Ends a stream at once.
    pub const RST_STREAM: u8 = 3;
    /// Settings of the sender.
    pub const SETTINGS: u8 = 4;
    /// The beginning of an answer that the client has not asked for (server push).
    pub const PUSH_PROMISE: u8 = 5;
    /// Asks for an acknowledgement with the same payload.
    pub const PING: u8 = 6;
    /// The sender takes no more streams.
    pub const GOAWAY: u8 = 7;
    /// Widens a flow-control window.
    pub const WINDOW_UPDATE: u8 = 8;
    /// The next part of a header block.
    pub const CONTINUATION: u8 = 9;
    /// A priority of RFC 9218.
    pub const PRIORITY_UPDATE: u8 = 16;
}

/// Flags of frames. One bit means different things in different kinds.
pub mod flag {
    /// Of DATA and HEADERS: the message ends.
    pub const END_STREAM: u8 = 0x1;
    /// Of SETTINGS and PING: an acknowledgement.
    pub const ACK: u8 = 0x1;
    /// Of HEADERS and CONTINUATION: the header block ends.
    pub const END_HEADERS: u8 = 0x4;
    /// Of DATA and HEADERS: there is padding.
    pub const PADDED: u8 = 0x8;
    /// Of HEADERS: a priority of RFC 7540 is there.
    pub const PRIORITY: u8 = 0x20;
}

#[cfg(test)]
mod frame_tests;
#[cfg(test)]
mod tests;
