//! Why replies are refused.

use crate::crlf_line::LineError;
use crate::reasons::reasons;

reasons! {
    /// Why a server's reply is refused. The beginning of the next reply is unknown then, so the connection
    /// cannot be used any more.
    ReplyError {
        Unknown "a line that is no reply",
        LineEnd "a line or value does not end with CR LF",
        LineTooLong "a line is too long",
        Value "the line in front of a value is not sound",
        ValueTooLong "a value is longer than allowed",
        Magic "a packet that is no reply",
        Lengths "the lengths within a packet do not fit together",
        Operation "a reply to something else",
    }
}

impl From<LineError> for ReplyError {
    fn from(error: LineError) -> ReplyError {
        match error {
            LineError::TooLong => ReplyError::LineTooLong,
            LineError::End => ReplyError::LineEnd,
        }
    }
}
