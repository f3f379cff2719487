//! Errors that end a connection or a stream, with their codes and texts.

use std::fmt;

use super::frame::{ErrorCode, FrameError};
use crate::hpack::HpackError;
use crate::reasons::reasons;

/// Why the connection ends. GOAWAY with [`Http2Error::code`] waits to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Http2Error {
    /// A frame is not well-formed.
    Frame(FrameError),
    /// A header block cannot be decoded.
    Block(HpackError),
    /// A frame is not allowed where it stands, or there are too many frames.
    Connection(ConnectionError),
}

impl Http2Error {
    /// The code of the GOAWAY.
    pub const fn code(self) -> ErrorCode {
        match self {
            Http2Error::Frame(error) => error.code(),
            Http2Error::Block(_) => ErrorCode::CompressionError,
            Http2Error::Connection(error) => error.code(),
        }
    }

    /// The error as a sentence, for the log.
    pub const fn sentence(self) -> &'static str {
        match self {
            Http2Error::Frame(error) => error.sentence(),
            Http2Error::Block(error) => error.sentence(),
            Http2Error::Connection(error) => error.sentence(),
        }
    }
}

impl fmt::Display for Http2Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.sentence())
    }
}

impl std::error::Error for Http2Error {}

impl From<FrameError> for Http2Error {
    fn from(error: FrameError) -> Http2Error {
        Http2Error::Frame(error)
    }
}

impl From<HpackError> for Http2Error {
    fn from(error: HpackError) -> Http2Error {
        Http2Error::Block(error)
    }
}

impl From<ConnectionError> for Http2Error {
    fn from(error: ConnectionError) -> Http2Error {
        Http2Error::Connection(error)
    }
}

reasons! {
    /// Why a connection ends although each of its frames is well-formed. The variants from `RapidReset` on
    /// are exceeded limits ([`super::Http2Limits`]).
    ConnectionError {
        Preface "the client did not begin with the HTTP/2 connection preface",
        FirstFrame "the client's first HTTP/2 frame was not SETTINGS",
        StreamIdentifier "the client began an HTTP/2 stream with an identifier that it may not use",
        IdleStream "the client sent a frame of an HTTP/2 stream that it has not begun",
        ClosedStream "the client sent a frame of an HTTP/2 stream that it had ended",
        Window "the client sent more than the HTTP/2 connection's window allows",
        WindowOverflow "the client opened an HTTP/2 window beyond 2,147,483,647 bytes",
        SettingsTimeout "the client did not acknowledge the HTTP/2 SETTINGS of the server in time",
        RapidReset "the client reset too many HTTP/2 streams before they were answered",
        PingFlood "the client sent too many HTTP/2 PING frames",
        SettingsFlood "the client sent too many HTTP/2 SETTINGS frames",
        EmptyFrames "the client sent too many empty HTTP/2 frames",
        SmallFrames "the client sent its request bodies in too many HTTP/2 frames of a few bytes",
        IdleFrames "the client sent too many HTTP/2 frames that change nothing",
        WindowTrickle "the client sent too many HTTP/2 WINDOW_UPDATE frames for what it was sent",
        ContinuationFlood "the client sent a header block in too many HTTP/2 CONTINUATION frames",
        BlockTooLong "the client sent a header block that is too long",
        HeaderBomb "the client sent a small header block that stands for too large a header list",
        BlockTooSlow "the client sent a header block too slowly",
        NotReading "the client sent requests for HTTP/2 control frames and does not read them",
    }
}

impl ConnectionError {
    /// The variants that mean too much or too late.
    pub const LIMITS: &'static [ConnectionError] = ConnectionError::ALL
        .split_at(ConnectionError::SettingsTimeout as usize)
        .1;

    /// The code of the GOAWAY.
    pub const fn code(self) -> ErrorCode {
        match self {
            ConnectionError::Preface
            | ConnectionError::FirstFrame
            | ConnectionError::StreamIdentifier
            | ConnectionError::IdleStream => ErrorCode::ProtocolError,
            ConnectionError::ClosedStream => ErrorCode::StreamClosed,
            ConnectionError::Window | ConnectionError::WindowOverflow => {
                ErrorCode::FlowControlError
            }
            ConnectionError::SettingsTimeout => ErrorCode::SettingsTimeout,
            ConnectionError::RapidReset
            | ConnectionError::PingFlood
            | ConnectionError::SettingsFlood
            | ConnectionError::EmptyFrames
            | ConnectionError::SmallFrames
            | ConnectionError::IdleFrames
            | ConnectionError::WindowTrickle
            | ConnectionError::ContinuationFlood
            | ConnectionError::BlockTooLong
            | ConnectionError::HeaderBomb
            | ConnectionError::BlockTooSlow
            | ConnectionError::NotReading => ErrorCode::EnhanceYourCalm,
        }
    }
}

reasons! {
    /// Why the server resets a stream, while the connection goes on.
    StreamError {
        TooMany "the client has as many HTTP/2 streams as it may have",
        Malformed "the fields of an HTTP/2 request are not well-formed",
        Increment "a WINDOW_UPDATE frame adds nothing to the window of its HTTP/2 stream",
        FrameLength "a frame of an HTTP/2 stream has a length that its kind does not allow",
        DependsOnItself "an HTTP/2 stream depends on itself",
        HalfClosed "the client sent more on an HTTP/2 stream that it had ended",
        Window "the client sent more than the window of its HTTP/2 stream allows",
        WindowOverflow "the client opened the window of its HTTP/2 stream beyond 2,147,483,647 bytes",
        BodyTooLong "the body of an HTTP/2 request is longer than its Content-Length",
        BodyTooShort "the body of an HTTP/2 request is shorter than its Content-Length",
        TrailersNotLast "an HTTP/2 request goes on behind its trailers",
        Trailers "the trailers of an HTTP/2 request are not well-formed",
        InTunnel "the client sent HEADERS in an HTTP/2 tunnel",
        TrailersTooLong "the trailers of an HTTP/2 request are too long",
    }
}

impl StreamError {
    /// The code of the RST_STREAM.
    pub const fn code(self) -> ErrorCode {
        match self {
            StreamError::TooMany => ErrorCode::RefusedStream,
            StreamError::FrameLength => ErrorCode::FrameSizeError,
            StreamError::HalfClosed => ErrorCode::StreamClosed,
            StreamError::Window | StreamError::WindowOverflow => ErrorCode::FlowControlError,
            StreamError::TrailersTooLong => ErrorCode::EnhanceYourCalm,
            StreamError::Malformed
            | StreamError::Increment
            | StreamError::DependsOnItself
            | StreamError::BodyTooLong
            | StreamError::BodyTooShort
            | StreamError::TrailersNotLast
            | StreamError::InTunnel
            | StreamError::Trailers => ErrorCode::ProtocolError,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_ask_for_calm() {
        let mut limits = ConnectionError::ALL.iter();
        let first = limits.position(|reason| *reason == ConnectionError::RapidReset);
        assert!(first.is_some());
        assert!(limits.all(|reason| reason.code() == ErrorCode::EnhanceYourCalm));
        for reason in StreamError::ALL {
            assert_ne!(reason.code(), ErrorCode::NoError);
        }
    }
}
