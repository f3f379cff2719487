//! What the fields of a head mean for the message: its host, where it ends, and whether the connection stays
//! open.
//!
//! The same rules apply to heads that were parsed and to those that were built.

use super::error::HeadError;
use super::field::KnownField;
use super::host;
use super::{BodyFraming, HeadOptions, RequestHead, Version};
use crate::method::Method;
use crate::syntax::{decimal, list};
use crate::url::AbsoluteForm;

impl RequestHead {
    /// Interprets the fields, once all are there.
    #[inline]
    pub(crate) fn finish(&mut self, options: &HeadOptions) -> Result<(), HeadError> {
        if index_fields(self) {
            self.merge_repeated()?;
        }
        self.method = known_method(self)?;
        set_host(self, options)?;
        self.framing = framing(self, options)?;
        self.keep_alive = keep_alive(self);
        self.expects_continue = expects_continue(self);
        Ok(())
    }

    /// The same for a head that was built. `body` says what follows it, regardless of its fields.
    pub(super) fn finish_built(
        &mut self,
        body: BodyFraming,
        host: Host,
        options: &HeadOptions,
    ) -> Result<(), HeadError> {
        self.index = [0; KnownField::COUNT];
        if index_fields(self) {
            self.merge_repeated()?;
        }
        self.method = match known_method(self) {
            // The builder refuses an Upgrade field, so this one comes from the `protocol` of an extended
            // CONNECT.
            Err(HeadError::MethodConnect) if self.field(KnownField::Upgrade).is_some() => {
                Method::Connect
            }
            method => method?,
        };
        if host == Host::Required || self.field(KnownField::Host).is_some() {
            set_host(self, options)?;
        }
        self.framing = built_framing(self, body, options)?;
        self.keep_alive = keep_alive(self);
        self.expects_continue = expects_continue(self);
        Ok(())
    }
}

/// Whether a request must name its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Host {
    Required,
    Optional,
}

#[inline]
fn known_method(head: &RequestHead) -> Result<Method, HeadError> {
    match Method::from_bytes(head.method_bytes()) {
        Some(Method::Connect) => Err(HeadError::MethodConnect),
        Some(method) => Ok(method),
        None => Err(HeadError::MethodUnknown),
    }
}

/// Fills the index. Returns whether a known field is repeated.
#[inline]
fn index_fields(head: &mut RequestHead) -> bool {
    let mut repeated = false;
    for (number, field) in (1u32..).zip(&head.fields) {
        let Some(known) = field.known else { continue };
        let entry = &mut head.index[known as usize];
        if *entry == 0 {
            *entry = number;
        } else {
            repeated = true;
        }
    }
    repeated
}

/// RFC 9112 3.2: the host comes from an absolute-form target if there is one. Then the Host field is changed
/// to the same value, so that no backend sees another host.
#[inline]
fn set_host(head: &mut RequestHead, options: &HeadOptions) -> Result<(), HeadError> {
    head.host.clear();
    let target = &head.bytes[head.target.clone()];
    if !matches!(target.first(), Some(b'/')) && target != b"*" {
        return set_host_from_target(head, options);
    }
    let Some(position) = head.index[KnownField::Host as usize].checked_sub(1) else {
        return match head.version {
            Version::Http10 => Ok(()),
            _ => Err(HeadError::HostMissing),
        };
    };
    let field = &head.fields[position as usize];
    if has_second(head, KnownField::Host, position) {
        return Err(HeadError::HostRepeated);
    }
    let value = &head.bytes[field.value.clone()];
    if value.is_empty() && head.version == Version::Http10 {
        return Ok(());
    }
    let memo = &mut head.host_memo;
    memo.normalise(&mut head.host, value, options)
        .ok_or(HeadError::HostInvalid)
}

#[cold]
fn set_host_from_target(head: &mut RequestHead, options: &HeadOptions) -> Result<(), HeadError> {
    let target = &head.bytes[head.target.clone()];
    let authority = AbsoluteForm::split(target)
        .ok_or(HeadError::RequestTarget)?
        .authority;
    host::normalise(&mut head.host, authority, options).ok_or(HeadError::HostInvalid)?;
    let authority = authority.to_vec();
    if let Some(position) = head.index[KnownField::Host as usize].checked_sub(1)
        && has_second(head, KnownField::Host, position)
    {
        return Err(HeadError::HostRepeated);
    }
    head.set_field("Host", &authority);
    Ok(())
}

/// Whether there is another field of this name after the one at `position`.
fn has_second(head: &RequestHead, known: KnownField, position: u32) -> bool {
    head.fields[position as usize + 1..]
        .iter()
        .any(|field| field.known == Some(known))
}

/// The framing by RFC 9112 6.3. Everything that two readers could understand differently is refused.
#[inline]
fn framing(head: &RequestHead, options: &HeadOptions) -> Result<BodyFraming, HeadError> {
    let length = head.index[KnownField::ContentLength as usize].checked_sub(1);
    let framing = match (length, head.field(KnownField::TransferEncoding)) {
        (None, None) if head.method == Method::Post => return Err(HeadError::LengthRequired),
        (None, None) => return Ok(BodyFraming::None),
        (Some(_), Some(_)) => return Err(HeadError::ContentLengthWithTransferEncoding),
        (Some(position), None) => content_length(head, position, options)?,
        (None, Some(codings)) => {
            if head.version == Version::Http10 {
                return Err(HeadError::TransferEncodingInHttp10);
            }
            transfer_encoding(codings)?
        }
    };
    refuse_unexpected(head, framing, options)
}

#[inline]
fn refuse_unexpected(
    head: &RequestHead,
    framing: BodyFraming,
    options: &HeadOptions,
) -> Result<BodyFraming, HeadError> {
    if framing != BodyFraming::None && head.method.is_get_or_head() && !options.method_get_body {
        return Err(HeadError::BodyUnexpected);
    }
    Ok(framing)
}

/// The framing of a built head: Content-Length must agree with what follows (RFC 9113 8.1.1).
fn built_framing(
    head: &RequestHead,
    body: BodyFraming,
    options: &HeadOptions,
) -> Result<BodyFraming, HeadError> {
    let body = match body {
        BodyFraming::Length(0) => BodyFraming::None,
        body => body,
    };
    let Some(position) = head.index[KnownField::ContentLength as usize].checked_sub(1) else {
        return match (head.method, body) {
            (Method::Post, BodyFraming::None) if head.version < Version::Http2 => {
                Err(HeadError::LengthRequired)
            }
            (Method::Connect, _) => Ok(BodyFraming::None),
            // The frames that follow may show that there is no body. If there is one, a decoder refuses its
            // first byte.
            (method, BodyFraming::Chunked)
                if method.is_get_or_head()
                    && !options.method_get_body
                    && head.version >= Version::Http2 =>
            {
                Ok(BodyFraming::None)
            }
            _ => refuse_unexpected(head, body, options),
        };
    };
    // The data of a tunnel has no length (RFC 9110 9.3.6).
    if head.method == Method::Connect {
        return Err(HeadError::BodyUnexpected);
    }
    let announced = content_length(head, position, options)?;
    match body {
        BodyFraming::None | BodyFraming::Length(_) if announced != body => {
            Err(HeadError::ContentLengthInvalid)
        }
        _ => refuse_unexpected(head, announced, options),
    }
}

fn content_length(
    head: &RequestHead,
    position: u32,
    options: &HeadOptions,
) -> Result<BodyFraming, HeadError> {
    let field = &head.fields[position as usize];
    // lighttpd treats an empty field as a missing one. It is no number (RFC 9112 section 6.3).
    let length = decimal(head.value(field)).ok_or(HeadError::ContentLengthInvalid)?;
    if has_second(head, KnownField::ContentLength, position) {
        let mut values = head.fields_named(KnownField::ContentLength.name());
        if options.header_strict || values.any(|value| decimal(value) != Some(length)) {
            return Err(HeadError::ContentLengthRepeated);
        }
    }
    Ok(if length == 0 {
        BodyFraming::None
    } else {
        BodyFraming::Length(length)
    })
}

fn transfer_encoding(codings: &[u8]) -> Result<BodyFraming, HeadError> {
    let is_chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
    if is_chunked(codings) {
        return Ok(BodyFraming::Chunked);
    }
    let mut chunked_count = 0;
    let mut unknown_count = 0;
    let mut ends_in_chunked = false;
    for coding in list(codings) {
        ends_in_chunked = is_chunked(coding);
        chunked_count += usize::from(ends_in_chunked);
        unknown_count += usize::from(!ends_in_chunked);
    }
    match (chunked_count, unknown_count) {
        (1, 0) => Ok(BodyFraming::Chunked),
        (0 | 1, 1..) if chunked_count == usize::from(ends_in_chunked) => {
            Err(HeadError::TransferEncodingUnknown)
        }
        _ => Err(HeadError::TransferEncodingInvalid),
    }
}

#[inline]
fn keep_alive(head: &RequestHead) -> bool {
    let by_default = head.version >= Version::Http11;
    let Some(options) = head.field(KnownField::Connection) else {
        return by_default;
    };
    let mut keeps = by_default;
    for option in list(options) {
        if option.eq_ignore_ascii_case(b"close") {
            return false;
        }
        keeps |= option.eq_ignore_ascii_case(b"keep-alive");
    }
    keeps
}

#[inline]
fn expects_continue(head: &RequestHead) -> bool {
    let Some(expectation) = head.field(KnownField::Expect) else {
        return false;
    };
    head.version >= Version::Http11
        && head.framing != BodyFraming::None
        && list(expectation).any(|item| item.eq_ignore_ascii_case(b"100-continue"))
}
