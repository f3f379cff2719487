//! Checks a frame against its header, and parses one that has come whole (RFC 9113 section 6).

use std::ops::Range;

use super::frame::{ErrorCode, FrameError, FrameEvent, FramePayload, PriorityField, Setting};
use super::{FRAME_HEADER_BYTES, SETTING_BYTES, flag, kind};

/// The header of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameHeader {
    pub(super) length: usize,
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

impl FrameHeader {
    #[inline]
    pub(super) fn read(bytes: &[u8; FRAME_HEADER_BYTES]) -> FrameHeader {
        let [a, b, c, kind, flags, d, e, f, g] = *bytes;
        FrameHeader {
            length: u32::from_be_bytes([0, a, b, c]) as usize,
            kind,
            flags,
            stream: stream_id([d, e, f, g]),
        }
    }

    #[inline]
    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Checks that the stream identifier is 0 or not, as the kind of the frame demands.
    #[inline]
    pub(super) fn check_stream(&self) -> Result<(), FrameError> {
        match self.kind {
            kind::DATA | kind::HEADERS | kind::PRIORITY | kind::RST_STREAM | kind::CONTINUATION
                if self.stream == 0 =>
            {
                Err(FrameError::NoStream)
            }
            kind::SETTINGS | kind::PING | kind::GOAWAY | kind::PRIORITY_UPDATE
                if self.stream != 0 =>
            {
                Err(FrameError::Stream)
            }
            kind::PUSH_PROMISE => Err(FrameError::Push),
            _ => Ok(()),
        }
    }

    /// Checks the length of the payload against the kind and the flags.
    #[inline]
    pub(super) fn has_sound_length(&self) -> bool {
        match self.kind {
            kind::HEADERS => self.length >= self.headers_prefix_length(),
            kind::PRIORITY => self.length == PRIORITY_BYTES,
            kind::RST_STREAM | kind::WINDOW_UPDATE => self.length == 4,
            kind::SETTINGS if self.has(flag::ACK) => self.length == 0,
            kind::SETTINGS => self.length.is_multiple_of(SETTING_BYTES),
            kind::PING => self.length == 8,
            kind::GOAWAY => self.length >= 8,
            kind::PRIORITY_UPDATE => self.length >= 4,
            _ => true,
        }
    }

    /// The number of bytes before the header block of HEADERS.
    #[inline]
    fn headers_prefix_length(&self) -> usize {
        usize::from(self.has(flag::PADDED))
            + match self.has(flag::PRIORITY) {
                true => PRIORITY_BYTES,
                false => 0,
            }
    }

    /// The event of a frame that has come whole. `piece` turns a range of the payload into a place that the
    /// caller can use.
    #[inline]
    pub(super) fn event(
        &self,
        payload: &[u8],
        piece: impl Fn(Range<usize>) -> FramePayload,
    ) -> Result<FrameEvent, FrameError> {
        let stream = self.stream;
        Ok(match (self.kind, payload) {
            (kind::HEADERS, _) => return self.headers(payload, piece),
            (kind::CONTINUATION, _) => FrameEvent::Continuation {
                stream,
                fragment: piece(0..payload.len()),
                ends_headers: self.has(flag::END_HEADERS),
            },
            (kind::PRIORITY, &[a, b, c, d, weight]) => {
                let priority = PriorityField::read([a, b, c, d, weight]);
                match priority.dependency == stream {
                    true => FrameEvent::StreamError {
                        stream,
                        error: FrameError::DependsOnItself,
                    },
                    false => FrameEvent::Priority { stream, priority },
                }
            }
            (kind::RST_STREAM, &[a, b, c, d]) => FrameEvent::Reset {
                stream,
                code: ErrorCode::from_number(u32::from_be_bytes([a, b, c, d])),
            },
            (kind::SETTINGS, _) if self.has(flag::ACK) => FrameEvent::SettingsAck,
            (kind::SETTINGS, _) => {
                let (settings, _) = payload.as_chunks::<SETTING_BYTES>();
                for setting in settings {
                    Setting::read(setting)?;
                }
                FrameEvent::Settings {
                    payload: piece(0..payload.len()),
                }
            }
            (kind::PING, &[a, b, c, d, e, f, g, h]) => {
                let bytes = [a, b, c, d, e, f, g, h];
                match self.has(flag::ACK) {
                    true => FrameEvent::PingAck(bytes),
                    false => FrameEvent::Ping(bytes),
                }
            }
            (kind::GOAWAY, &[a, b, c, d, e, f, g, h, ..]) => FrameEvent::GoAway {
                last_stream: stream_id([a, b, c, d]),
                code: ErrorCode::from_number(u32::from_be_bytes([e, f, g, h])),
                debug: piece(8..payload.len()),
            },
            (kind::WINDOW_UPDATE, &[a, b, c, d]) => match (stream_id([a, b, c, d]), stream) {
                (0, 0) => return Err(FrameError::Increment),
                (0, stream) => FrameEvent::StreamError {
                    stream,
                    error: FrameError::Increment,
                },
                (increment, stream) => FrameEvent::WindowUpdate { stream, increment },
            },
            (kind::PRIORITY_UPDATE, &[a, b, c, d, ..]) => match stream_id([a, b, c, d]) {
                0 => return Err(FrameError::NoStream),
                stream => FrameEvent::PriorityUpdate {
                    stream,
                    value: piece(4..payload.len()),
                },
            },
            _ => return Err(FrameError::Length),
        })
    }

    #[inline]
    fn headers(
        &self,
        payload: &[u8],
        piece: impl Fn(Range<usize>) -> FramePayload,
    ) -> Result<FrameEvent, FrameError> {
        let (padding, rest) = match payload {
            [padding, rest @ ..] if self.has(flag::PADDED) => (usize::from(*padding), rest),
            _ => (0, payload),
        };
        let priority = match rest.first_chunk() {
            Some(field) if self.has(flag::PRIORITY) => Some(PriorityField::read(*field)),
            _ => None,
        };
        let start = self.headers_prefix_length();
        let end = payload.len().checked_sub(padding);
        Ok(FrameEvent::Headers {
            stream: self.stream,
            fragment: match end {
                Some(end) if end >= start => piece(start..end),
                _ => return Err(FrameError::Padding),
            },
            ends_stream: self.has(flag::END_STREAM),
            ends_headers: self.has(flag::END_HEADERS),
            priority,
        })
    }
}

impl PriorityField {
    #[inline]
    fn read([a, b, c, d, weight]: [u8; PRIORITY_BYTES]) -> PriorityField {
        PriorityField {
            dependency: stream_id([a, b, c, d]),
            is_exclusive: a & 0x80 != 0,
            weight,
        }
    }
}

/// A number of 31 bits, such as a stream identifier. The highest bit is reserved.
#[inline]
fn stream_id(bytes: [u8; 4]) -> u32 {
    u32::from_be_bytes(bytes) & 0x7fff_ffff
}

const PRIORITY_BYTES: usize = 5;
