//! Why replies are refused.

use crate::reasons::reasons;

reasons! {
    /// Why a server's reply is refused. The beginning of the next reply is unknown then, so the connection
    /// cannot be used any more.
    RespError {
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
}
