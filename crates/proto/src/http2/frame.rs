//! The frames of HTTP/2, as a server gets them from a client (RFC 9113 section 6, RFC 8441, RFC 9218).
//!
//! A frame is a header of nine bytes and up to 16 KiB of payload, or more if SETTINGS say so:
//!
//! ```text
//!   0  1  2      3      4       5  6  7  8
//!   length       kind   flags   stream, without its first bit
//! ```

use std::ops::{Range, RangeInclusive};

use super::{FRAME_BYTES_MAX, SETTING_BYTES, WINDOW_BYTES_MAX};
use crate::reasons::reasons;

/// One step of decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameDecoded {
    /// Input bytes that are done with, those of the event included.
    pub consumed: usize,
    /// What came out.
    pub event: FrameEvent,
}

/// What one step of decoding found. Every event but [`NeedMore`](FrameEvent::NeedMore) and
/// [`Data`](FrameEvent::Data) is one whole frame. Stream identifiers are not 0 unless said so; which of them exist is
/// the caller's knowledge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameEvent {
    /// Nothing more can be said before more bytes come.
    NeedMore,
    /// A part of a DATA frame, or all of it. An empty frame is an event, too.
    Data {
        /// The stream.
        stream: u32,
        /// Data: this range of the input. Empty for an empty frame, or where the padding comes later than the data.
        range: Range<usize>,
        /// Padding and its length byte that came since the last event. They count against the windows as `range` does.
        padding_consumed: u32,
        /// The frame ends here.
        is_frame_end: bool,
        /// The body ends here. Only at the end of a frame.
        ends_stream: bool,
    },
    /// HEADERS. If the block does not end, its CONTINUATION frames are the next events, and no others.
    Headers {
        /// The stream.
        stream: u32,
        /// The header block, or the first part of it.
        fragment: FramePayload,
        /// No body, or nothing more of it, follows.
        ends_stream: bool,
        /// The block ends here.
        ends_headers: bool,
        /// The priority in the manner of RFC 7540. It has no effect any more, but [`PriorityField::dependency`] that is
        /// `stream` itself is a stream error (PROTOCOL_ERROR), told here because the block has to be decoded all the same.
        priority: Option<PriorityField>,
    },
    /// CONTINUATION of the block of the HEADERS before it, which was of the same stream.
    Continuation {
        /// The stream.
        stream: u32,
        /// The next part of the block; may be empty.
        fragment: FramePayload,
        /// The block ends here.
        ends_headers: bool,
    },
    /// PRIORITY, which has no effect any more. May be of any stream, also an idle one.
    Priority {
        /// The stream.
        stream: u32,
        /// What it says.
        priority: PriorityField,
    },
    /// RST_STREAM.
    Reset {
        /// The stream.
        stream: u32,
        /// Why.
        code: ErrorCode,
    },
    /// SETTINGS of the peer; every value is within its bounds. It has to be acknowledged.
    Settings {
        /// [`Settings::new`] takes it apart. May be empty.
        payload: FramePayload,
    },
    /// The peer has taken our SETTINGS.
    SettingsAck,
    /// PING, which has to be answered with the same eight bytes.
    Ping([u8; 8]),
    /// The answer to a PING of ours.
    PingAck([u8; 8]),
    /// GOAWAY.
    GoAway {
        /// The last stream of ours that the peer has looked at; 0 if none.
        last_stream: u32,
        /// Why.
        code: ErrorCode,
        /// What the peer adds for a log: any bytes.
        debug: FramePayload,
    },
    /// WINDOW_UPDATE.
    WindowUpdate {
        /// The stream, or 0 for the connection.
        stream: u32,
        /// By how many bytes the window grows: never 0.
        increment: u32,
    },
    /// PRIORITY_UPDATE (RFC 9218 7.1).
    PriorityUpdate {
        /// The stream that is meant.
        stream: u32,
        /// A Priority field value: any bytes.
        value: FramePayload,
    },
    /// A frame of a kind that is not known. Told at its header; the decoder skips its payload.
    Unknown {
        /// Its kind.
        kind: u8,
        /// Bytes of its payload.
        length: u32,
    },
    /// A whole frame that is an error of its stream alone: RST_STREAM with [`FrameError::code`]. If the stream is idle, it
    /// is one of the connection (PROTOCOL_ERROR), unless the frame was PRIORITY.
    StreamError {
        /// The stream.
        stream: u32,
        /// What is wrong.
        error: FrameError,
    },
}

/// Where a piece of a frame's payload is: [`super::FrameDecoder::payload`] has its bytes, until the next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FramePayload {
    pub(super) place: PayloadPlace,
    pub(super) range: Range<usize>,
}

impl FramePayload {
    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PayloadPlace {
    /// In the input of the step.
    Input,
    /// In the decoder's own buffer, because the frame came in several pieces.
    Collected,
}

/// A priority in the manner of RFC 7540.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityField {
    /// The stream that this one depends on; 0 for none.
    pub dependency: u32,
    /// Whether it is the only one that depends on that.
    pub is_exclusive: bool,
    /// The weight, less one.
    pub weight: u8,
}

/// What follows a frame in its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterFrame {
    /// More frames of the message.
    More,
    /// Nothing: the message is complete (END_STREAM).
    EndOfStream,
}

/// One setting (RFC 9113 6.5.2, RFC 8441 3, RFC 9218 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The size of the decoder's dynamic table, in bytes.
    HeaderTableSize(u32),
    /// Whether the server may push.
    EnablePush(bool),
    /// How many streams the other side may have open.
    MaxConcurrentStreams(u32),
    /// The window of each new stream, in bytes; a change moves those of open ones. At most [`super::WINDOW_BYTES_MAX`].
    InitialWindowSize(u32),
    /// The longest payload of a frame: 16,384 to 16,777,215.
    MaxFrameSize(u32),
    /// The largest header list: the sum of [`crate::hpack::FieldLine::list_bytes`].
    MaxHeaderListSize(u32),
    /// Whether extended CONNECT is understood.
    EnableConnectProtocol(bool),
    /// Whether priorities in the manner of RFC 7540 have no meaning.
    NoRfc7540Priorities(bool),
}

impl Setting {
    /// The number and the value on the wire.
    pub(super) const fn to_wire(self) -> (u16, u32) {
        match self {
            Setting::HeaderTableSize(bytes) => (1, bytes),
            Setting::EnablePush(is_on) => (2, is_on as u32),
            Setting::MaxConcurrentStreams(count) => (3, count),
            Setting::InitialWindowSize(bytes) => (4, bytes),
            Setting::MaxFrameSize(bytes) => (5, bytes),
            Setting::MaxHeaderListSize(bytes) => (6, bytes),
            Setting::EnableConnectProtocol(is_on) => (8, is_on as u32),
            Setting::NoRfc7540Priorities(is_on) => (9, is_on as u32),
        }
    }

    /// The setting on the wire; `None` if it is not known.
    pub(super) fn read(bytes: &[u8; SETTING_BYTES]) -> Result<Option<Setting>, FrameError> {
        let [a, b, c, d, e, f] = *bytes;
        let value = u32::from_be_bytes([c, d, e, f]);
        let switch = || match value {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(FrameError::Switch),
        };
        Ok(Some(match u16::from_be_bytes([a, b]) {
            1 => Setting::HeaderTableSize(value),
            2 => Setting::EnablePush(switch()?),
            3 => Setting::MaxConcurrentStreams(value),
            4 if value > WINDOW_BYTES_MAX => return Err(FrameError::WindowSetting),
            4 => Setting::InitialWindowSize(value),
            5 if !FRAME_BYTES.contains(&value) => return Err(FrameError::FrameSizeSetting),
            5 => Setting::MaxFrameSize(value),
            6 => Setting::MaxHeaderListSize(value),
            8 => Setting::EnableConnectProtocol(switch()?),
            9 => Setting::NoRfc7540Priorities(switch()?),
            _ => return Ok(None),
        }))
    }
}

/// The settings in the payload of a SETTINGS frame, in their order. Those that are not known are left out.
#[derive(Clone, Debug)]
pub struct Settings<'p> {
    rest: std::slice::Iter<'p, [u8; SETTING_BYTES]>,
}

impl<'p> Settings<'p> {
    /// The settings in `payload`, which the decoder has handed out.
    pub fn new(payload: &'p [u8]) -> Settings<'p> {
        Settings {
            rest: payload.as_chunks().0.iter(),
        }
    }
}

impl Iterator for Settings<'_> {
    type Item = Setting;

    fn next(&mut self) -> Option<Setting> {
        // The decoder has refused what is an error.
        self.rest
            .find_map(|bytes| Setting::read(bytes).ok().flatten())
    }
}

macro_rules! error_codes {
    ($($(#[doc = $doc:literal])* $variant:ident $number:literal $name:literal,)*) => {
        /// Why a stream or a connection ends (RFC 9113 section 7).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ErrorCode {
            $($(#[doc = $doc])* $variant,)*
        }

        impl ErrorCode {
            /// Every code, in ascending order.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$variant,)*];

            /// The number on the wire.
            pub const fn number(self) -> u32 {
                match self {
                    $(ErrorCode::$variant => $number,)*
                }
            }

            /// The code of that number; one that is not known means [`ErrorCode::InternalError`].
            pub const fn from_number(number: u32) -> ErrorCode {
                match number {
                    $($number => ErrorCode::$variant,)*
                    _ => ErrorCode::InternalError,
                }
            }

            /// The name that the RFC gives it, for the log.
            pub const fn name(self) -> &'static str {
                match self {
                    $(ErrorCode::$variant => $name,)*
                }
            }
        }
    };
}

error_codes! {
    /// Nothing is wrong.
    NoError 0 "NO_ERROR",
    /// The other side does not keep to the protocol.
    ProtocolError 1 "PROTOCOL_ERROR",
    /// A fault of this side.
    InternalError 2 "INTERNAL_ERROR",
    /// The other side sent more than a window allows.
    FlowControlError 3 "FLOW_CONTROL_ERROR",
    /// SETTINGS were not acknowledged in time.
    SettingsTimeout 4 "SETTINGS_TIMEOUT",
    /// A frame came for a stream that was closed.
    StreamClosed 5 "STREAM_CLOSED",
    /// A frame has a length that it cannot have.
    FrameSizeError 6 "FRAME_SIZE_ERROR",
    /// The stream was refused before anything was done: it may be tried again.
    RefusedStream 7 "REFUSED_STREAM",
    /// The stream is of no use any more.
    Cancel 8 "CANCEL",
    /// A header block cannot be decoded.
    CompressionError 9 "COMPRESSION_ERROR",
    /// The connection of a CONNECT was reset.
    ConnectError 10 "CONNECT_ERROR",
    /// The other side makes too much work.
    EnhanceYourCalm 11 "ENHANCE_YOUR_CALM",
    /// The transport is not safe enough.
    InadequateSecurity 12 "INADEQUATE_SECURITY",
    /// The request wants HTTP/1.1.
    Http11Required 13 "HTTP_1_1_REQUIRED",
}

reasons! {
    /// Why a frame is refused. As `Err` of the decoder it ends the connection: GOAWAY with [`FrameError::code`].
    FrameError {
        TooLong "a frame is longer than SETTINGS_MAX_FRAME_SIZE",
        Length "a frame has a length that its kind does not allow",
        NoStream "a frame that belongs to a stream is of stream 0",
        Stream "a frame that belongs to the connection is of a stream",
        Padding "the padding of a frame is longer than the frame",
        Interrupted "a frame stands between the parts of a header block",
        Continuation "a CONTINUATION frame follows no header block that goes on",
        Push "a client sends PUSH_PROMISE",
        DependsOnItself "a stream depends on itself",
        Increment "a WINDOW_UPDATE frame adds nothing to a window",
        Switch "a setting that is a switch is neither 0 nor 1",
        WindowSetting "SETTINGS_INITIAL_WINDOW_SIZE is above 2,147,483,647",
        FrameSizeSetting "SETTINGS_MAX_FRAME_SIZE is not between 16,384 and 16,777,215",
    }
}

impl FrameError {
    /// The code of the GOAWAY or RST_STREAM that answers it.
    pub const fn code(self) -> ErrorCode {
        match self {
            FrameError::TooLong | FrameError::Length => ErrorCode::FrameSizeError,
            FrameError::WindowSetting => ErrorCode::FlowControlError,
            FrameError::NoStream
            | FrameError::Stream
            | FrameError::Padding
            | FrameError::Interrupted
            | FrameError::Continuation
            | FrameError::Push
            | FrameError::DependsOnItself
            | FrameError::Increment
            | FrameError::Switch
            | FrameError::FrameSizeSetting => ErrorCode::ProtocolError,
        }
    }
}

/// The payloads that a peer may declare to be its longest (RFC 9113 4.2).
const FRAME_BYTES: RangeInclusive<u32> = FRAME_BYTES_MAX..=0xff_ffff;
