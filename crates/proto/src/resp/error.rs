//! Why replies are refused.

use std::fmt;

macro_rules! reasons {
    ($($variant:ident $sentence:literal,)*) => {
        /// Why a server's reply is refused. Where the next one begins is not known then: the
        /// connection is of no use any more.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum RespError {
            $(#[doc = concat!("Refused: ", $sentence, ".")] $variant,)*
        }

        impl RespError {
            /// A sentence without its full stop, for logs.
            pub const fn sentence(self) -> &'static str {
                match self {
                    $(RespError::$variant => $sentence,)*
                }
            }
        }
    };
}

reasons! {
    UnknownType "a value begins with no type that is known",
    LineEnd "a line or string does not end with CR LF",
    LineTooLong "a line is too long",
    Number "a number is none, or too large",
    Length "a length is none, or below zero",
    Streamed "a value of unknown length",
    Verbatim "a verbatim string without its format",
    TooDeep "values are nested too deeply",
    BulkTooLong "a string is longer than allowed",
    TooLarge "a reply is larger than allowed",
}

impl fmt::Display for RespError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sentence())
    }
}

impl std::error::Error for RespError {}
