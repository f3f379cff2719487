//! Why replies are refused.

use std::fmt;

use crate::crlf_line::LineError;

macro_rules! reasons {
    ($($variant:ident $sentence:literal,)*) => {
        /// Why a server's reply is refused. Where the next one begins is not known then: the
        /// connection is of no use any more.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ReplyError {
            $(#[doc = concat!("Refused: ", $sentence, ".")] $variant,)*
        }

        impl ReplyError {
            /// A sentence without its full stop, for logs.
            pub const fn sentence(self) -> &'static str {
                match self {
                    $(ReplyError::$variant => $sentence,)*
                }
            }
        }
    };
}

reasons! {
    Unknown "a line that is no reply",
    LineEnd "a line or value does not end with CR LF",
    LineTooLong "a line is too long",
    Value "the line in front of a value is not sound",
    ValueTooLong "a value is longer than allowed",
    Magic "a packet that is no reply",
    Lengths "the lengths within a packet do not fit together",
    Operation "a reply to something else",
}

impl fmt::Display for ReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sentence())
    }
}

impl std::error::Error for ReplyError {}

impl From<LineError> for ReplyError {
    fn from(error: LineError) -> ReplyError {
        match error {
            LineError::TooLong => ReplyError::LineTooLong,
            LineError::End => ReplyError::LineEnd,
        }
    }
}
