//! Parses one response head: httparse does the syntax, and this module applies the rules that httparse lacks.
//!
//! Only [`ResponseDecoder`](super::ResponseDecoder) calls it, and decides when to try.

use std::mem::MaybeUninit;

use super::response::{Asked, ResponseError as Error};
use crate::method::Method;
use crate::reply_head::{self, ReplyHead};
use crate::request_head::{BodyFraming, KnownField};
use crate::status::Status;
use crate::syntax::{decimal, list};

/// What a head says about its message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    /// How many bytes of input it took.
    pub(crate) length: usize,
    /// The number of its fields, including those that are not passed on.
    pub(crate) fields: usize,
    /// Where the body ends; `None` if that is the end of the connection.
    pub(crate) framing: Option<BodyFraming>,
    /// Whether the backend keeps the connection open.
    pub(crate) keep_alive: bool,
    /// Whether Connection names fields that must not be passed on.
    pub(crate) names_fields: bool,
}

/// Most responses have fewer fields than this. Their positions fit on the stack.
const FIELDS_USUAL: usize = 64;
/// The most fields, even if the limit is higher.
const FIELDS_MAX: usize = 4096;

/// Parses a head at the beginning of `input` into `reply`. `None` if it is incomplete.
pub(super) fn parse(
    input: &[u8],
    asked: Asked,
    reply: &mut ReplyHead,
) -> Result<Option<Head>, Error> {
    // httparse would skip empty lines, but nothing is allowed between two responses.
    let start = input.get(..VERSION.len()).unwrap_or(input);
    if !VERSION.starts_with(start) {
        return Err(Error::NotHttp);
    }
    match read::<FIELDS_USUAL>(input, asked, reply) {
        Err(Error::TooManyFields) => read_many(input, asked, reply),
        other => other,
    }
}

/// What every response begins with.
const VERSION: &[u8] = b"HTTP/1.";

#[cold]
fn read_many(input: &[u8], asked: Asked, reply: &mut ReplyHead) -> Result<Option<Head>, Error> {
    read::<FIELDS_MAX>(input, asked, reply)
}

#[inline]
fn read<const FIELDS: usize>(
    input: &[u8],
    asked: Asked,
    reply: &mut ReplyHead,
) -> Result<Option<Head>, Error> {
    let mut fields = [const { MaybeUninit::uninit() }; FIELDS];
    let mut response = httparse::Response::new(&mut []);
    // A proxy must remove white space before a colon instead of passing it on (RFC 9112 5.1).
    let mut config = httparse::ParserConfig::default();
    config.allow_spaces_after_header_name_in_responses(true);
    let parsed = config.parse_response_with_uninit_headers(&mut response, input, &mut fields);
    let httparse::Status::Complete(length) = parsed.map_err(reason)? else {
        return Ok(None);
    };
    let status = match response.code {
        Some(code @ 100..=999) => Status(code),
        _ => return Err(Error::StatusInvalid),
    };
    let is_http11 = response.version == Some(1);
    let message = Message::read(response.headers, is_http11)?;
    reply.clear();
    reply.set_status(status);
    message.keep_fields(response.headers, reply);
    let framing = message.framing(asked, status);
    Ok(Some(Head {
        length,
        fields: response.headers.len(),
        framing,
        keep_alive: message.keep_alive && framing.is_some() && !message.is_suspect(status),
        names_fields: message.names_fields,
    }))
}

#[cold]
fn reason(error: httparse::Error) -> Error {
    match error {
        httparse::Error::Version => Error::NotHttp,
        httparse::Error::Token => Error::StatusLine,
        httparse::Error::Status => Error::StatusInvalid,
        httparse::Error::HeaderName => Error::FieldName,
        httparse::Error::HeaderValue => Error::FieldValue,
        httparse::Error::NewLine => Error::LineEnd,
        httparse::Error::TooManyHeaders => Error::TooManyFields,
    }
}

/// What the fields say about framing and connection.
struct Message {
    content_length: Option<u64>,
    is_chunked: bool,
    keep_alive: bool,
    /// Whether Connection names fields that must not be passed on.
    names_fields: bool,
}

impl Message {
    fn read(fields: &[httparse::Header<'_>], is_http11: bool) -> Result<Message, Error> {
        let mut message = Message {
            content_length: None,
            is_chunked: false,
            keep_alive: is_http11,
            names_fields: false,
        };
        let mut closes = false;
        for field in fields {
            match FieldKind::of(field.name) {
                FieldKind::ContentLength => message.content_length(field.value)?,
                FieldKind::TransferEncoding if !is_http11 => {
                    return Err(Error::TransferEncodingInHttp10);
                }
                FieldKind::TransferEncoding => message.transfer_encoding(field.value)?,
                FieldKind::Connection => closes |= message.connection(field.value),
                FieldKind::Upgrade | FieldKind::OfConnection | FieldKind::EndToEnd => {}
            }
        }
        if message.is_chunked && message.content_length.is_some() {
            return Err(Error::ContentLengthWithTransferEncoding);
        }
        message.keep_alive &= !closes;
        Ok(message)
    }

    /// The same length may occur twice, in several fields or in a list (RFC 9112 6.3).
    fn content_length(&mut self, value: &[u8]) -> Result<(), Error> {
        for item in value.split(|&byte| byte == b',') {
            let length = decimal(item.trim_ascii()).ok_or(Error::ContentLengthInvalid)?;
            if self.content_length.is_some_and(|other| other != length) {
                return Err(Error::ContentLengthDiffers);
            }
            self.content_length = Some(length);
        }
        Ok(())
    }

    fn transfer_encoding(&mut self, value: &[u8]) -> Result<(), Error> {
        if self.is_chunked || !value.eq_ignore_ascii_case(b"chunked") {
            return Err(Error::TransferEncodingUnknown);
        }
        self.is_chunked = true;
        Ok(())
    }

    /// Whether the connection is to be closed.
    fn connection(&mut self, value: &[u8]) -> bool {
        let mut closes = false;
        for option in list(value) {
            if option.eq_ignore_ascii_case(b"close") {
                closes = true;
            } else if option.eq_ignore_ascii_case(b"keep-alive") {
                self.keep_alive = true;
            } else if !option.eq_ignore_ascii_case(b"upgrade") {
                self.names_fields = true;
            }
        }
        closes
    }

    /// The body's framing by RFC 9112 6.3. CONNECT is never sent.
    fn framing(&self, asked: Asked, status: Status) -> Option<BodyFraming> {
        if status == Status::SWITCHING_PROTOCOLS {
            return None;
        }
        if asked.method == Method::Head || status.is_bodiless() {
            return Some(BodyFraming::None);
        }
        match self.content_length {
            _ if self.is_chunked => Some(BodyFraming::Chunked),
            Some(0) => Some(BodyFraming::None),
            Some(length) => Some(BodyFraming::Length(length)),
            None => None,
        }
    }

    /// Whether the head is 204 and announces a body, which may or may not follow. With 304 and HEAD the same
    /// fields are about the body that was left out, which is allowed.
    fn is_suspect(&self, status: Status) -> bool {
        let announces = self.is_chunked || self.content_length.is_some_and(|length| length > 0);
        status == Status::NO_CONTENT && announces
    }

    /// Keeps the fields that are not about the connection (RFC 9110 7.6.1).
    fn keep_fields(&self, fields: &[httparse::Header<'_>], reply: &mut ReplyHead) {
        let status = reply.status();
        // RFC 9110 8.6: neither 1xx nor 204 may have a Content-Length.
        let mut length = self
            .content_length
            .filter(|_| !status.is_interim() && status != Status::NO_CONTENT);
        for field in fields {
            match FieldKind::of(field.name) {
                FieldKind::ContentLength => {
                    if let Some(length) = length.take() {
                        reply.push(field.name, itoa::Buffer::new().format(length).as_bytes());
                    }
                }
                FieldKind::Upgrade if !tells_protocols(status) => {}
                FieldKind::TransferEncoding | FieldKind::Connection | FieldKind::OfConnection => {}
                FieldKind::EndToEnd if self.names_fields && is_named(fields, field.name) => {}
                FieldKind::Upgrade | FieldKind::EndToEnd => reply.push(field.name, field.value),
            }
        }
    }
}

/// Whether Upgrade, with this status, says which protocol was or must be switched to.
fn tells_protocols(status: Status) -> bool {
    matches!(
        status,
        Status::SWITCHING_PROTOCOLS | Status::UPGRADE_REQUIRED
    )
}

#[cold]
fn is_named(fields: &[httparse::Header<'_>], name: &str) -> bool {
    let connection = fields
        .iter()
        .filter(|field| matches!(FieldKind::of(field.name), FieldKind::Connection));
    connection
        .flat_map(|field| list(field.value))
        .any(|option| option.eq_ignore_ascii_case(name.as_bytes()))
}

/// What a response field is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldKind {
    ContentLength,
    TransferEncoding,
    Connection,
    Upgrade,
    /// Another field about this connection.
    OfConnection,
    EndToEnd,
}

impl FieldKind {
    #[inline]
    fn of(name: &str) -> FieldKind {
        if reply_head::is_plain(name) {
            return FieldKind::EndToEnd;
        }
        let matters =
            |field: KnownField| field.is_hop_by_hop() || field == KnownField::ContentLength;
        match KnownField::from_name_if(name.as_bytes(), matters) {
            Some(KnownField::ContentLength) => FieldKind::ContentLength,
            Some(KnownField::TransferEncoding) => FieldKind::TransferEncoding,
            Some(KnownField::Connection) => FieldKind::Connection,
            Some(KnownField::Upgrade) => FieldKind::Upgrade,
            // Trailer announces the trailers of the body to each recipient on the way (RFC 9110 6.6.2).
            Some(KnownField::Trailer) => FieldKind::EndToEnd,
            Some(_) => FieldKind::OfConnection,
            None => FieldKind::EndToEnd,
        }
    }
}
