//! The frames of HTTP/2 that a server receives from a client (RFC 9113 section 6, RFC 8441, RFC 9218).
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

/// The result of one step of decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameDecoded {
    /// Input bytes that are consumed, those of the event included.
    pub consumed: usize,
    /// The event.
    pub event: FrameEvent,
}

/// An event of one step of decoding. Every event but [`NeedMore`](FrameEvent::NeedMore) and
/// [`Data`](FrameEvent::Data) is one whole frame. Stream identifiers are not 0 unless the event says so. The
/// caller knows which streams exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameEvent {
    /// More bytes are needed.
    NeedMore,
    /// A DATA frame, or a part of one. An empty frame is an event, too.
    Data {
        /// The stream.
        stream: u32,
        /// The data, as a range of the input. Empty for an empty frame, and when only padding came.
        range: Range<usize>,
        /// Bytes of padding since the last event, the length byte included. They count against the windows as
        /// `range` does.
        padding_consumed: u32,
        /// The frame ends here.
        is_frame_end: bool,
        /// The body ends here. Only at the end of a frame.
        ends_stream: bool,
    },
    /// HEADERS. If the block does not end, the next events are its CONTINUATION frames.
    Headers {
        /// The stream.
        stream: u32,
        /// The header block, or the first part of it.
        fragment: FramePayload,
        /// The message ends with this frame.
        ends_stream: bool,
        /// The block ends here.
        ends_headers: bool,
        /// A priority of RFC 7540. It has no effect any more, but a stream that depends on itself
        /// ([`PriorityField::dependency`]) is a stream error (PROTOCOL_ERROR). That is for the caller to
        /// find, because the block must be decoded all the same.
        priority: Option<PriorityField>,
    },
    /// CONTINUATION of the block of the HEADERS before it, on the same stream.
    Continuation {
        /// The stream.
        stream: u32,
        /// The next part of the block; may be empty.
        fragment: FramePayload,
        /// The block ends here.
        ends_headers: bool,
    },
    /// PRIORITY, which has no effect any more. Allowed for every stream, also an idle one.
    Priority {
        /// The stream.
        stream: u32,
        /// The priority.
        priority: PriorityField,
    },
    /// RST_STREAM.
    Reset {
        /// The stream.
        stream: u32,
        /// Why.
        code: ErrorCode,
    },
    /// SETTINGS of the peer. Every value is within its bounds. To be acknowledged.
    Settings {
        /// The settings, for [`Settings::new`]. May be empty.
        payload: FramePayload,
    },
    /// The peer has acknowledged our SETTINGS.
    SettingsAck,
    /// PING. To be acknowledged with the same eight bytes.
    Ping([u8; 8]),
    /// The acknowledgement of a PING of ours.
    PingAck([u8; 8]),
    /// GOAWAY.
    GoAway {
        /// The last stream of ours that the peer has handled; 0 if none.
        last_stream: u32,
        /// Why.
        code: ErrorCode,
        /// A text of the peer for the log: any bytes.
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
        /// The stream that gets the priority.
        stream: u32,
        /// A Priority field value: any bytes.
        value: FramePayload,
    },
    /// A frame of an unknown kind. The event comes with its header; the decoder skips its payload.
    Unknown {
        /// Its kind.
        kind: u8,
        /// Bytes of its payload.
        length: u32,
    },
    /// A frame that is a stream error: RST_STREAM with [`FrameError::code`]. If the stream is idle it is a
    /// connection error (PROTOCOL_ERROR), unless the frame is PRIORITY.
    StreamError {
        /// The stream.
        stream: u32,
        /// What is wrong.
        error: FrameError,
    },
}

/// The place of a part of a frame's payload. [`super::FrameDecoder::payload`] returns its bytes, until the
/// next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FramePayload {
    pub(super) place: PayloadPlace,
    pub(super) range: Range<usize>,
}

impl FramePayload {
    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PayloadPlace {
    /// In the input of the step.
    Input,
    /// In the decoder's buffer, because the frame came in several pieces.
    Collected,
}

/// A priority in the manner of RFC 7540.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityField {
    /// The stream that this one depends on; 0 for none.
    pub dependency: u32,
    /// Whether the dependency is exclusive.
    pub is_exclusive: bool,
    /// The weight minus one.
    pub weight: u8,
}

/// What follows a frame in its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterFrame {
    /// More frames of the same message.
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
    /// How many streams the receiver of the setting may have open.
    MaxConcurrentStreams(u32),
    /// The initial window of streams in bytes. A change adjusts the windows of open streams. At most
    /// [`super::WINDOW_BYTES_MAX`].
    InitialWindowSize(u32),
    /// The longest payload of a frame: 16,384 to 16,777,215.
    MaxFrameSize(u32),
    /// The largest header list: the sum of [`crate::hpack::FieldLine::list_bytes`].
    MaxHeaderListSize(u32),
    /// Whether extended CONNECT is allowed.
    EnableConnectProtocol(bool),
    /// Whether priorities of RFC 7540 have no effect.
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

    /// Reads a setting; `None` if its number is not known.
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

/// The settings in the payload of a SETTINGS frame, in their order, without unknown ones.
#[derive(Clone, Debug)]
pub struct Settings<'p> {
    rest: std::slice::Iter<'p, [u8; SETTING_BYTES]>,
}

impl<'p> Settings<'p> {
    /// The settings in `payload`, which the decoder has returned.
    pub fn new(payload: &'p [u8]) -> Settings<'p> {
        Settings {
            rest: payload.as_chunks().0.iter(),
        }
    }
}

impl Iterator for Settings<'_> {
    type Item = Setting;

    fn next(&mut self) -> Option<Setting> {
        // The decoder has already refused invalid values.
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

            /// The code with this number. An unknown number means [`ErrorCode::InternalError`].
            pub const fn from_number(number: u32) -> ErrorCode {
                match number {
                    $($number => ErrorCode::$variant,)*
                    _ => ErrorCode::InternalError,
                }
            }

            /// The name in the RFC, for the log.
            pub const fn name(self) -> &'static str {
                match self {
                    $(ErrorCode::$variant => $name,)*
                }
            }
        }
    };
}

error_codes! {
    /// No error.
    NoError 0 "NO_ERROR",
    /// The peer has broken the protocol.
    ProtocolError 1 "PROTOCOL_ERROR",
    /// A fault of this side.
    InternalError 2 "INTERNAL_ERROR",
    /// The peer has sent more than a window allows.
    FlowControlError 3 "FLOW_CONTROL_ERROR",
    /// SETTINGS were not acknowledged in time.
    SettingsTimeout 4 "SETTINGS_TIMEOUT",
    /// A frame came for a stream that was closed.
    StreamClosed 5 "STREAM_CLOSED",
    /// A frame has a length that it cannot have.
    FrameSizeError 6 "FRAME_SIZE_ERROR",
    /// The stream was refused before any work was done: the request may be sent again.
    RefusedStream 7 "REFUSED_STREAM",
    /// The stream is not needed any more.
    Cancel 8 "CANCEL",
    /// A header block cannot be decoded.
    CompressionError 9 "COMPRESSION_ERROR",
    /// The connection of a CONNECT was reset.
    ConnectError 10 "CONNECT_ERROR",
    /// The peer causes too much work.
    EnhanceYourCalm 11 "ENHANCE_YOUR_CALM",
    /// The transport is not safe enough.
    InadequateSecurity 12 "INADEQUATE_SECURITY",
    /// The request wants HTTP/1.1.
    Http11Required 13 "HTTP_1_1_REQUIRED",
}

reasons! {
    /// Why a frame is refused. As the `Err` of the decoder it ends the connection: GOAWAY with
    /// [`FrameError::code`].
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

/// The values that SETTINGS_MAX_FRAME_SIZE can have (RFC 9113 4.2).
const FRAME_BYTES: RangeInclusive<u32> = FRAME_BYTES_MAX..=0xff_ffff;
