//! Builds request heads that did not arrive as HTTP/1 text, field by field, with the checks of the parser.
//!
//! The decoders of HTTP/2 and HTTP/3 provide pseudo-fields and fields one by one, and so do the server's own
//! subrequests. The head is stored as HTTP/1 would write it, so lengths, limits and logs mean the same for
//! every version. The caller knows where the body ends; fields about an HTTP/1 connection are refused.

use std::ops::Range;

use super::message::Host;
use super::{BodyFraming, FieldRange, HeadError, HeadOptions, KnownField, RequestHead, Version};
use crate::syntax::{is_lower_token, is_token, is_value, trimmed};

/// Builds one [`RequestHead`]; see [`RequestHead::build`]. After an error it must not be used any more.
#[derive(Debug)]
pub struct HeadBuilder<'h> {
    head: &'h mut RequestHead,
    options: &'h HeadOptions,
    pseudo: PseudoFields,
    host: Host,
    is_line_written: bool,
}

/// The positions of the pseudo-fields' values until the request line is written.
#[derive(Debug, Default)]
struct PseudoFields {
    method: Option<Range<usize>>,
    scheme: Option<Range<usize>>,
    authority: Option<Range<usize>>,
    path: Option<Range<usize>>,
    protocol: Option<Range<usize>>,
}

impl RequestHead {
    /// Begins to build a head. Previous content is forgotten.
    pub fn build<'h>(&'h mut self, version: Version, options: &'h HeadOptions) -> HeadBuilder<'h> {
        self.clear();
        self.version = version;
        HeadBuilder {
            head: self,
            options,
            pseudo: PseudoFields::default(),
            host: Host::Required,
            is_line_written: false,
        }
    }
}

impl HeadBuilder<'_> {
    /// Adds a pseudo-field, named without its colon: `method`, `scheme`, `path` and, unless there is a Host
    /// field, `authority` (RFC 9113 8.3.1), which becomes the Host field. An extended CONNECT also has
    /// `protocol` (RFC 8441 4), which becomes the Upgrade field.
    ///
    /// # Errors
    /// The pseudo-field is unknown, repeated, or follows a field, or its value is not allowed in a request
    /// line or Host.
    pub fn pseudo_field(&mut self, name: &[u8], value: &[u8]) -> Result<(), HeadError> {
        let is_text = self.head.version < Version::Http2;
        let (place, is_sound) = match name {
            b"method" => (&mut self.pseudo.method, is_token(value)),
            b"scheme" => (&mut self.pseudo.scheme, is_http(value)),
            b"authority" => {
                let is_sound = match is_text {
                    true => is_value(value),
                    false => is_plain_authority(value),
                };
                (&mut self.pseudo.authority, is_sound)
            }
            b"path" => (&mut self.pseudo.path, is_path(value)),
            b"protocol" => (&mut self.pseudo.protocol, is_protocol(value)),
            _ => return Err(HeadError::PseudoField),
        };
        if place.is_some() || self.is_line_written {
            return Err(HeadError::PseudoField);
        }
        if !is_sound {
            return Err(HeadError::RequestTarget);
        }
        *place = Some(append(&mut self.head.bytes, trimmed(value)));
        self.refuse_too_long(HeadError::RequestLineTooLong)
    }

    /// Adds a field.
    ///
    /// # Errors
    /// The reasons for which the parser refuses a field in HTTP/1: names, values, lengths, counts. Also
    /// fields about the connection (RFC 9113 8.2.2), and a Host that contradicts `authority`.
    pub fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), HeadError> {
        self.write_line()?;
        let is_text = self.head.version < Version::Http2;
        let (is_name, known) = match is_text {
            true => (is_token(name), KnownField::from_name(name)),
            false => (is_lower_token(name), KnownField::from_lower_name(name)),
        };
        if !is_name {
            return Err(HeadError::FieldName);
        }
        let trimmed = trimmed(value);
        if !is_value(value) || !is_text && trimmed.len() != value.len() {
            return Err(HeadError::FieldValue);
        }
        match known {
            // TE: trailers and Trailer have the same meaning in every version, so they are allowed.
            Some(KnownField::Te) if trimmed.eq_ignore_ascii_case(b"trailers") => {}
            Some(KnownField::Trailer) => {}
            Some(known) if known.is_hop_by_hop() => return Err(HeadError::FieldOfConnection),
            Some(KnownField::Host) if let Some(host) = self.head.field(KnownField::Host) => {
                return match host.eq_ignore_ascii_case(trimmed) {
                    true => Ok(()),
                    false => Err(HeadError::HostRepeated),
                };
            }
            _ => {}
        }
        self.push_field(name, trimmed, known)
    }

    /// Allows a head without a host: for a subrequest of a request without one.
    pub fn needs_no_host(&mut self) {
        self.host = Host::Optional;
    }

    /// Ends the head. `body` says what follows: nothing; a body of this length, which becomes the
    /// Content-Length field if there is none; or, as [`BodyFraming::Chunked`], a body whose length is in
    /// Content-Length or unknown.
    ///
    /// # Errors
    /// The reasons for which the parser refuses a head in HTTP/1: missing pseudo-fields, methods, hosts,
    /// repeated fields, a Content-Length that is no number or does not fit the body.
    pub fn finish(mut self, body: BodyFraming) -> Result<(), HeadError> {
        self.write_line()?;
        if let BodyFraming::Length(length) = body
            && self.head.field(KnownField::ContentLength).is_none()
        {
            let known = KnownField::ContentLength;
            self.push_field(
                known.name().as_bytes(),
                itoa::Buffer::new().format(length).as_bytes(),
                Some(known),
            )?;
        }
        self.head.bytes.extend_from_slice(b"\r\n");
        self.head.head_length = self.head.bytes.len();
        self.head.finish_built(body, self.host, self.options)
    }

    /// Writes the request line and Host, which are known when the first field is added.
    fn write_line(&mut self) -> Result<(), HeadError> {
        if std::mem::replace(&mut self.is_line_written, true) {
            return Ok(());
        }
        let PseudoFields {
            method,
            scheme,
            authority,
            path,
            protocol,
        } = std::mem::take(&mut self.pseudo);
        let is = |range: &Range<usize>| &self.head.bytes[range.clone()] == b"CONNECT";
        match (method.as_ref().is_some_and(is), &protocol) {
            (true, None) => return Err(HeadError::MethodConnect),
            (false, Some(_)) => return Err(HeadError::PseudoField),
            _ => {}
        }
        let (Some(method), Some(_), Some(path)) = (method, scheme, path) else {
            return Err(HeadError::PseudoField);
        };
        let head = &mut *self.head;
        let pseudo_length = head.bytes.len();
        head.bytes.extend_from_within(method.clone());
        head.bytes.push(b' ');
        head.bytes.extend_from_within(path.clone());
        head.bytes.push(b' ');
        head.bytes
            .extend_from_slice(head.version.as_str().as_bytes());
        head.bytes.extend_from_slice(b"\r\n");
        head.method_range = 0..method.len();
        head.target = method.len() + 1..method.len() + 1 + path.len();
        let fields = [
            (KnownField::Host, authority),
            (KnownField::Upgrade, protocol),
        ];
        for (known, value) in fields {
            let Some(value) = value else { continue };
            let place =
                |range: Range<usize>| range.start - pseudo_length..range.end - pseudo_length;
            let name = place(append(&mut head.bytes, known.name().as_bytes()));
            head.bytes.extend_from_slice(b": ");
            let start = head.bytes.len();
            head.bytes.extend_from_within(value);
            let value = place(start..head.bytes.len());
            head.bytes.extend_from_slice(b"\r\n");
            head.fields.push(FieldRange {
                name,
                value,
                known: Some(known),
            });
            head.note(known);
        }
        head.bytes.drain(..pseudo_length);
        self.refuse_too_long(HeadError::HeadTooLarge)
    }

    fn push_field(
        &mut self,
        name: &[u8],
        value: &[u8],
        known: Option<KnownField>,
    ) -> Result<(), HeadError> {
        let head = &mut *self.head;
        if head.fields.len() >= RequestHead::FIELDS_MAX {
            return Err(HeadError::TooManyFields);
        }
        let name = append(&mut head.bytes, name);
        head.bytes.extend_from_slice(b": ");
        let value = append(&mut head.bytes, value);
        head.bytes.extend_from_slice(b"\r\n");
        head.fields.push(FieldRange { name, value, known });
        if let Some(known) = known {
            head.note(known);
        }
        self.refuse_too_long(HeadError::HeadTooLarge)
    }

    /// Counts the empty line that will follow.
    fn refuse_too_long(&self, reason: HeadError) -> Result<(), HeadError> {
        match self.head.bytes.len() + b"\r\n".len() > self.options.head_bytes_max {
            true => Err(reason),
            false => Ok(()),
        }
    }
}

fn append(bytes: &mut Vec<u8>, part: &[u8]) -> Range<usize> {
    let start = bytes.len();
    bytes.extend_from_slice(part);
    start..bytes.len()
}

fn is_http(scheme: &[u8]) -> bool {
    matches!(scheme, b"http" | b"https")
        || scheme.eq_ignore_ascii_case(b"http")
        || scheme.eq_ignore_ascii_case(b"https")
}

/// Whether it is a token, with an optional version (RFC 9110 7.8).
fn is_protocol(protocol: &[u8]) -> bool {
    protocol.split(|&byte| byte == b'/').all(is_token)
}

/// Whether it is a field value without blanks and without user information (RFC 9113 8.3.1).
fn is_plain_authority(authority: &[u8]) -> bool {
    // A fold without an early exit lets the compiler check several bytes at once.
    let is_plain =
        |plain: bool, &byte: &u8| plain & (byte > b' ') & (byte != 0x7f) & (byte != b'@');
    authority.iter().fold(true, is_plain)
}

/// Whether it has one of the two forms of a path (RFC 9113 8.3.1), with bytes that an HTTP/1 request line may
/// have.
fn is_path(path: &[u8]) -> bool {
    let is_plain = |plain: bool, &byte: &u8| plain & (byte > b' ') & (byte != 0x7f);
    let has_form = path.first() == Some(&b'/') || path == b"*";
    has_form && path.iter().fold(true, is_plain)
}

#[cfg(test)]
mod tests;
