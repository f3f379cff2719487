//! Encodes frames. Everything is appended to the caller's buffer.

use super::frame::{AfterFrame, ErrorCode, Setting};
use super::{FRAME_HEADER_BYTES, SETTING_BYTES, flag, kind};

/// A header block that is being written into the caller's buffer, behind room for the header of its frame, so
/// that it is not copied.
#[derive(Debug)]
#[must_use = "the frame has no length yet"]
pub struct OpenHeaders {
    /// The place where the block begins. The header of the frame stands before it.
    block_start: usize,
}

impl OpenHeaders {
    /// Leaves room for the header of the frame. The caller appends the block to `out` next.
    #[inline]
    pub fn begin(out: &mut Vec<u8>) -> OpenHeaders {
        out.extend_from_slice(&[0; FRAME_HEADER_BYTES]);
        OpenHeaders {
            block_start: out.len(),
        }
    }

    /// Writes the header of the HEADERS frame in front of the block, which is everything appended to `out`
    /// since `begin`. If the block is longer than `frame_bytes_max`, the peer's SETTINGS_MAX_FRAME_SIZE, it
    /// is continued in CONTINUATION frames.
    #[inline]
    pub fn finish(self, out: &mut Vec<u8>, stream: u32, after: AfterFrame, frame_bytes_max: u32) {
        let length = out.len() - self.block_start;
        if length > frame_bytes_max as usize {
            let block = out.split_off(self.block_start);
            out.truncate(self.block_start - FRAME_HEADER_BYTES);
            return write_headers(out, stream, &block, after, frame_bytes_max);
        }
        let flags = flag::END_HEADERS | end_stream(after);
        let header = frame_header(length as u32, kind::HEADERS, flags, stream);
        out[self.block_start - FRAME_HEADER_BYTES..self.block_start].copy_from_slice(&header);
    }
}

/// Appends HEADERS with this block, and CONTINUATION where it is longer than `frame_bytes_max`, the peer's
/// SETTINGS_MAX_FRAME_SIZE.
pub fn write_headers(
    out: &mut Vec<u8>,
    stream: u32,
    block: &[u8],
    after: AfterFrame,
    frame_bytes_max: u32,
) {
    let (mut kind, mut flags) = (kind::HEADERS, end_stream(after));
    let mut rest = block;
    loop {
        let (now, later) = rest.split_at(rest.len().min(frame_bytes_max.max(1) as usize));
        if later.is_empty() {
            flags |= flag::END_HEADERS;
        }
        write_frame_header(out, now.len() as u32, kind, flags, stream);
        out.extend_from_slice(now);
        if later.is_empty() {
            return;
        }
        rest = later;
        (kind, flags) = (kind::CONTINUATION, 0);
    }
}

/// Appends the header of a DATA frame of `length` bytes, which follow: at most the peer's
/// SETTINGS_MAX_FRAME_SIZE.
#[inline]
pub fn write_data_header(out: &mut Vec<u8>, stream: u32, length: u32, after: AfterFrame) {
    write_frame_header(out, length, kind::DATA, end_stream(after), stream);
}

/// Appends SETTINGS.
pub fn write_settings(out: &mut Vec<u8>, settings: &[Setting]) {
    let length = settings.len() * SETTING_BYTES;
    write_frame_header(out, length as u32, kind::SETTINGS, 0, 0);
    for setting in settings {
        let (number, value) = setting.to_wire();
        out.extend_from_slice(&number.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends an acknowledgement of the peer's SETTINGS.
pub fn write_settings_ack(out: &mut Vec<u8>) {
    write_frame_header(out, 0, kind::SETTINGS, flag::ACK, 0);
}

/// Appends PING.
pub fn write_ping(out: &mut Vec<u8>, payload: [u8; 8]) {
    write_frame_header(out, 8, kind::PING, 0, 0);
    out.extend_from_slice(&payload);
}

/// Appends an acknowledgement of a PING.
pub fn write_ping_ack(out: &mut Vec<u8>, payload: [u8; 8]) {
    write_frame_header(out, 8, kind::PING, flag::ACK, 0);
    out.extend_from_slice(&payload);
}

/// Appends WINDOW_UPDATE for a stream, or, with 0, for the connection. Appends nothing if `increment` is 0.
#[inline]
pub fn write_window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    debug_assert!(increment <= super::WINDOW_BYTES_MAX);
    if increment > 0 {
        write_frame_header(out, 4, kind::WINDOW_UPDATE, 0, stream);
        out.extend_from_slice(&increment.to_be_bytes());
    }
}

/// Appends RST_STREAM.
pub fn write_reset(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
    write_frame_header(out, 4, kind::RST_STREAM, 0, stream);
    out.extend_from_slice(&code.number().to_be_bytes());
}

/// Appends GOAWAY: streams above `last_stream` were not handled. `debug` is a short text for the peer's log.
pub fn write_go_away(out: &mut Vec<u8>, last_stream: u32, code: ErrorCode, debug: &[u8]) {
    write_frame_header(out, 8 + debug.len() as u32, kind::GOAWAY, 0, 0);
    out.extend_from_slice(&last_stream.to_be_bytes());
    out.extend_from_slice(&code.number().to_be_bytes());
    out.extend_from_slice(debug);
}

/// Appends the header of a frame whose payload, of `length` bytes, follows.
#[inline]
pub fn write_frame_header(out: &mut Vec<u8>, length: u32, kind: u8, flags: u8, stream: u32) {
    out.extend_from_slice(&frame_header(length, kind, flags, stream));
}

#[inline]
fn frame_header(length: u32, kind: u8, flags: u8, stream: u32) -> [u8; FRAME_HEADER_BYTES] {
    debug_assert!(length < 1 << 24 && stream < 1 << 31);
    let [_, a, b, c] = length.to_be_bytes();
    let [d, e, f, g] = stream.to_be_bytes();
    [a, b, c, kind, flags, d, e, f, g]
}

#[inline]
fn end_stream(after: AfterFrame) -> u8 {
    match after {
        AfterFrame::More => 0,
        AfterFrame::EndOfStream => flag::END_STREAM,
    }
}
