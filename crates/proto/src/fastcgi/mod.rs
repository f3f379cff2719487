//! FastCGI 1.0 records, for web servers and for applications.
//!
//! A web server writes requests with [`ParamsEncoder`], [`write_begin_request`] and [`write_stream`], and
//! decodes replies with [`FastCgiDecoder`]. An application decodes requests with [`RequestDecoder`] and
//! writes replies with [`write_stream`] and [`write_end_request`]. Decoders hand out contents as ranges of
//! the input, without a copy, and as they arrive, without waiting for the end of a record. [`crate::cgi`]
//! decodes what is in a STDOUT stream.
//!
//! A record is a header of eight bytes, up to 65,535 bytes of content, and padding:
//!
//! ```text
//!   0        1      2    3      4       5        6         7
//!   version  kind   request id  content length   padding   0
//! ```
//!
//! A stream (PARAMS, STDIN, STDOUT, STDERR) is the contents of its records in order; a record without content
//! ends it. The boundaries of records have no meaning. Records of the request id 0 are about the connection.

mod encode;
mod records;
mod reply;
mod request;

pub use encode::{
    ParamsEncoder, write_begin_request, write_end_of_stream, write_end_request, write_get_values,
    write_pair, write_stream, write_unknown_type, write_values_result,
};
pub use records::{RecordError, Stream};
pub use reply::{
    FastCgiDecoder, FastCgiEvent, ReplyDecoded, WholeReply, values_answer, whole_reply,
};
pub use request::{Pairs, RequestDecoded, RequestDecoder, RequestEvent, VALUES_BYTES_MAX};

/// The longest content that is written into one record. Content and padding together stay below 64 KiB, as
/// php-fpm requires, and a full record needs no padding.
pub const CONTENT_BYTES_MAX: usize = 65_528;

/// Length of a record's header.
pub(crate) const HEADER_BYTES: usize = 8;

/// The version in every record.
pub const VERSION: u8 = 1;

/// Kinds of records (section 8 of the specification).
pub mod kind {
    /// Begins a request.
    pub const BEGIN_REQUEST: u8 = 1;
    /// The web server does not need the reply any more.
    pub const ABORT_REQUEST: u8 = 2;
    /// Ends a request.
    pub const END_REQUEST: u8 = 3;
    /// Stream of name-value pairs.
    pub const PARAMS: u8 = 4;
    /// Stream of the request body.
    pub const STDIN: u8 = 5;
    /// Stream of the reply.
    pub const STDOUT: u8 = 6;
    /// Stream of messages for the log.
    pub const STDERR: u8 = 7;
    /// Stream of a file, for filters.
    pub(crate) const DATA: u8 = 8;
    /// Asks for properties of the application.
    pub const GET_VALUES: u8 = 9;
    /// The reply to GET_VALUES.
    pub const GET_VALUES_RESULT: u8 = 10;
    /// The reply to a management record of an unknown kind.
    pub const UNKNOWN_TYPE: u8 = 11;
}

/// What the web server wants the application to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Make the response.
    Responder,
    /// Decide whether the request may continue.
    Authorizer,
    /// Make the response from a file that the web server sends.
    Filter,
}

impl Role {
    /// The number on the wire.
    pub const fn number(self) -> u16 {
        match self {
            Role::Responder => 1,
            Role::Authorizer => 2,
            Role::Filter => 3,
        }
    }

    /// The role of that number.
    pub(crate) const fn from_number(number: u16) -> Option<Role> {
        match number {
            1 => Some(Role::Responder),
            2 => Some(Role::Authorizer),
            3 => Some(Role::Filter),
            _ => None,
        }
    }
}

/// What happens to the connection after END_REQUEST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterRequest {
    /// It stays open for the next request (FCGI_KEEP_CONN).
    Keep,
    /// The application closes it.
    Close,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolStatus {
    /// The request is complete.
    RequestComplete,
    /// Refused: only one request at a time.
    CannotMultiplex,
    /// Refused: out of resources.
    Overloaded,
    /// Refused: the application does not have this role.
    UnknownRole,
}

impl ProtocolStatus {
    /// The number on the wire.
    pub const fn number(self) -> u8 {
        match self {
            ProtocolStatus::RequestComplete => 0,
            ProtocolStatus::CannotMultiplex => 1,
            ProtocolStatus::Overloaded => 2,
            ProtocolStatus::UnknownRole => 3,
        }
    }

    /// The status of that number.
    pub(crate) const fn from_number(number: u8) -> Option<ProtocolStatus> {
        match number {
            0 => Some(ProtocolStatus::RequestComplete),
            1 => Some(ProtocolStatus::CannotMultiplex),
            2 => Some(ProtocolStatus::Overloaded),
            3 => Some(ProtocolStatus::UnknownRole),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
