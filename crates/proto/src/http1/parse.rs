//! From bytes to a [`RequestHead`]: what httparse accepts, and the rules it does not know.
//!
//! The order matters for the cost: one vectored pass by httparse, one copy, then one look at each
//! field. Whatever is unusual (another version, repeated fields, many fields) leaves that path for
//! a cold function.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::body::BodyFraming;
use super::error::HeadErrorReason as Reason;
use super::field::KnownField;
use super::host;
use super::request_head::{Field, HeadOptions, Parsed, RequestHead, Version};
use crate::method::Method;
use crate::url::AbsoluteForm;

/// Empty lines that are tolerated before a request line.
const EMPTY_LINES_MAX: usize = 8;
/// Fields that most requests stay under; their places are on the stack.
const FIELDS_USUAL: usize = 64;
/// Fields at most.
const FIELDS_MAX: usize = 1024;

#[inline]
pub(super) fn parse(
    head: &mut RequestHead,
    input: &[u8],
    options: &HeadOptions,
) -> Result<Parsed, Reason> {
    if head.attempted != 0 && !is_worth_another_attempt(head, input, options)? {
        return Ok(Parsed::Partial);
    }
    let skipped = match input.first() {
        Some(b'\r' | b'\n') => skip_empty_lines(input, options)?,
        _ => 0,
    };
    match attempt(head, &input[skipped..], options)? {
        Some(length) if skipped + length > options.head_bytes_max => Err(too_large(input, options)),
        Some(length) => Ok(Parsed::Complete {
            length: skipped + length,
        }),
        None => {
            (head.attempted, head.searched) = (input.len(), input.len());
            refuse_too_long_partial(input, options)?;
            Ok(Parsed::Partial)
        }
    }
}

/// After a partial parse: whether the end of the head is now there, or the input has doubled.
fn is_worth_another_attempt(
    head: &mut RequestHead,
    input: &[u8],
    options: &HeadOptions,
) -> Result<bool, Reason> {
    // The empty line may have begun in bytes already searched: LF CR, then LF.
    let start = head.searched.saturating_sub(2).min(input.len());
    if input.len() >= head.attempted.saturating_mul(2) || has_empty_line(&input[start..]) {
        return Ok(true);
    }
    head.searched = input.len();
    refuse_too_long_partial(input, options)?;
    Ok(false)
}

/// Whether an empty line stands behind a line feed in `bytes`.
pub(super) fn has_empty_line(bytes: &[u8]) -> bool {
    memchr::memchr_iter(b'\n', bytes).any(|position| {
        matches!(
            bytes.get(position + 1..),
            Some([b'\n', ..] | [b'\r', b'\n', ..])
        )
    })
}

/// A head that is not complete within the limit cannot become one.
fn refuse_too_long_partial(input: &[u8], options: &HeadOptions) -> Result<(), Reason> {
    if input.len() < options.head_bytes_max {
        Ok(())
    } else {
        Err(too_large(input, options))
    }
}

#[cold]
fn too_large(input: &[u8], options: &HeadOptions) -> Reason {
    let within = &input[..input.len().min(options.head_bytes_max)];
    let line = within.trim_ascii_start();
    if line.contains(&b'\n') {
        Reason::HeadTooLarge
    } else {
        Reason::RequestLineTooLong
    }
}

#[cold]
fn skip_empty_lines(input: &[u8], options: &HeadOptions) -> Result<usize, Reason> {
    let mut skipped = 0;
    for _ in 0..=EMPTY_LINES_MAX {
        skipped += match &input[skipped..] {
            [b'\r', b'\n', ..] => 2,
            [b'\n', ..] if options.header_strict => return Err(Reason::LineEnd),
            [b'\n', ..] => 1,
            [b'\r', _, ..] => return Err(Reason::RequestLine),
            _ => return Ok(skipped),
        };
    }
    Err(Reason::TooManyEmptyLines)
}

/// Tries to read a head from the beginning of `input`. `None`: it is not complete.
fn attempt(
    head: &mut RequestHead,
    input: &[u8],
    options: &HeadOptions,
) -> Result<Option<usize>, Reason> {
    let length = match read::<FIELDS_USUAL>(head, input) {
        Ok(Some(length)) => length,
        Ok(None) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => match read_many(head, input)? {
            Some(length) => length,
            None => return Ok(None),
        },
        Err(httparse::Error::Version) => match read_other_version(head, input)? {
            Some(length) => length,
            None => return Ok(None),
        },
        Err(error) => return Err(reason(error)),
    };
    if options.header_strict {
        refuse_bare_line_feeds(head)?;
    }
    finish(head, options)?;
    Ok(Some(length))
}

/// One pass of httparse over `input`, and a copy of what it found. Only the places of method,
/// target and fields, and the version, are set; nothing is judged yet.
#[inline]
fn read<const FIELDS: usize>(
    head: &mut RequestHead,
    input: &[u8],
) -> Result<Option<usize>, httparse::Error> {
    let mut headers = [const { MaybeUninit::uninit() }; FIELDS];
    let mut request = httparse::Request::new(&mut []);
    let httparse::Status::Complete(length) =
        request.parse_with_uninit_headers(input, &mut headers)?
    else {
        return Ok(None);
    };
    let base = input.as_ptr() as usize;
    // httparse hands out subslices of `input`; only an empty one may lie elsewhere.
    let place = |part: &[u8]| -> Range<usize> {
        if part.is_empty() {
            return 0..0;
        }
        let start = part.as_ptr() as usize - base;
        start..start + part.len()
    };
    head.bytes.clear();
    head.bytes.extend_from_slice(&input[..length]);
    head.head_length = length;
    head.method_range = place(request.method.unwrap_or_default().as_bytes());
    head.target = place(request.path.unwrap_or_default().as_bytes());
    head.version = if request.version == Some(0) {
        Version::Http10
    } else {
        Version::Http11
    };
    head.index = [0; KnownField::COUNT];
    head.fields.clear();
    head.fields
        .extend(request.headers.iter().map(|header| Field {
            name: place(header.name.as_bytes()),
            value: place(header.value),
            known: KnownField::from_name(header.name.as_bytes()),
        }));
    Ok(Some(length))
}

#[cold]
fn read_many(head: &mut RequestHead, input: &[u8]) -> Result<Option<usize>, Reason> {
    read::<FIELDS_MAX>(head, input).map_err(reason)
}

/// httparse knows 1.0 and 1.1 only. A higher 1.x has the meaning of 1.1 (RFC 9110 2.5), so it is
/// read as such; the kept copy of the head shows what was sent.
#[cold]
fn read_other_version(head: &mut RequestHead, input: &[u8]) -> Result<Option<usize>, Reason> {
    let line = input
        .split(|&byte| byte == b'\n')
        .next()
        .unwrap_or_default();
    let is_whole = line.len() < input.len();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let version = line
        .splitn(3, |&byte| byte == b' ')
        .nth(2)
        .unwrap_or_default();
    let minor = match version {
        // "HTTP/1.1" is ten bytes with its CR LF: wait for the rest of a line that may be sound.
        _ if !is_whole && version.len() < 9 => return Ok(None),
        [
            b'H',
            b'T',
            b'T',
            b'P',
            b'/',
            b'1',
            b'.',
            minor @ b'2'..=b'9',
        ] => *minor,
        _ if line == b"PRI * HTTP/2.0" => return Err(Reason::Http2Preface),
        [
            b'H',
            b'T',
            b'T',
            b'P',
            b'/',
            b'0' | b'2'..=b'9',
            b'.',
            b'0'..=b'9',
        ] => {
            return Err(Reason::VersionUnsupported);
        }
        _ => return Err(Reason::RequestLine),
    };
    let position = line.len() - 1;
    let mut as_http11 = input.to_vec();
    as_http11[position] = b'1';
    let read = match read::<FIELDS_USUAL>(head, &as_http11) {
        Err(httparse::Error::TooManyHeaders) => read_many(head, &as_http11)?,
        other => other.map_err(reason)?,
    };
    if read.is_some() {
        head.bytes[position] = minor;
    }
    Ok(read)
}

#[cold]
fn reason(error: httparse::Error) -> Reason {
    match error {
        httparse::Error::HeaderName => Reason::FieldName,
        httparse::Error::HeaderValue => Reason::FieldValue,
        httparse::Error::NewLine => Reason::LineEnd,
        httparse::Error::TooManyHeaders => Reason::TooManyFields,
        httparse::Error::Token | httparse::Error::Status | httparse::Error::Version => {
            Reason::RequestLine
        }
    }
}

/// httparse lets a line end in LF alone. Every line but the first begins at a field name, so the
/// two bytes before each name, and the last four of the head, must be right.
fn refuse_bare_line_feeds(head: &RequestHead) -> Result<(), Reason> {
    let ends_in_crlf = |end: usize| end >= 2 && head.bytes[end - 2] == b'\r';
    let lines_end = head
        .fields
        .iter()
        .all(|field| ends_in_crlf(field.name.start));
    if lines_end && head.bytes[..head.head_length].ends_with(b"\r\n\r\n") {
        Ok(())
    } else {
        Err(Reason::LineEnd)
    }
}

/// What the fields mean for the message, once they are in place.
#[inline]
fn finish(head: &mut RequestHead, options: &HeadOptions) -> Result<(), Reason> {
    if index_fields(head) {
        head.merge_repeated()?;
    }
    head.method = Method::from_bytes(head.method_bytes()).ok_or(Reason::MethodUnknown)?;
    if head.method == Method::Connect {
        return Err(Reason::MethodConnect);
    }
    set_host(head, options)?;
    head.framing = framing(head, options)?;
    head.keep_alive = keep_alive(head);
    head.expects_continue = expects_continue(head);
    Ok(())
}

/// Fills the index; says whether a known field is repeated.
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

/// RFC 9112 3.2: the host comes from an absolute-form target if there is one, and then the Host
/// field is made to say the same, so that no backend sees another one.
#[inline]
fn set_host(head: &mut RequestHead, options: &HeadOptions) -> Result<(), Reason> {
    head.host.clear();
    let target = &head.bytes[head.target.clone()];
    if !matches!(target.first(), Some(b'/')) && target != b"*" {
        return set_host_from_target(head, options);
    }
    let Some(position) = head.index[KnownField::Host as usize].checked_sub(1) else {
        return match head.version {
            Version::Http10 => Ok(()),
            Version::Http11 => Err(Reason::HostMissing),
        };
    };
    let field = &head.fields[position as usize];
    if has_second(head, KnownField::Host, position) {
        return Err(Reason::HostRepeated);
    }
    let value = &head.bytes[field.value.clone()];
    if value.is_empty() && head.version == Version::Http10 {
        return Ok(());
    }
    let memo = &mut head.host_memo;
    memo.normalise(&mut head.host, value, options)
        .ok_or(Reason::HostInvalid)
}

#[cold]
fn set_host_from_target(head: &mut RequestHead, options: &HeadOptions) -> Result<(), Reason> {
    let target = &head.bytes[head.target.clone()];
    let authority = AbsoluteForm::split(target)
        .ok_or(Reason::RequestTarget)?
        .authority;
    host::normalise(&mut head.host, authority, options).ok_or(Reason::HostInvalid)?;
    let authority = authority.to_vec();
    if let Some(position) = head.index[KnownField::Host as usize].checked_sub(1)
        && has_second(head, KnownField::Host, position)
    {
        return Err(Reason::HostRepeated);
    }
    head.set_field("Host", &authority);
    Ok(())
}

/// Whether a field of this name stands behind the one at `position`.
fn has_second(head: &RequestHead, known: KnownField, position: u32) -> bool {
    head.fields[position as usize + 1..]
        .iter()
        .any(|field| field.known == Some(known))
}

/// RFC 9112 6.3, with nothing tolerated that two readers could take differently.
#[inline]
fn framing(head: &RequestHead, options: &HeadOptions) -> Result<BodyFraming, Reason> {
    let length = head.index[KnownField::ContentLength as usize].checked_sub(1);
    let framing = match (length, head.field(KnownField::TransferEncoding)) {
        (None, None) if head.method == Method::Post => return Err(Reason::LengthRequired),
        (None, None) => return Ok(BodyFraming::None),
        (Some(_), Some(_)) => return Err(Reason::ContentLengthWithTransferEncoding),
        (Some(position), None) => content_length(head, position, options)?,
        (None, Some(codings)) => {
            if head.version == Version::Http10 {
                return Err(Reason::TransferEncodingInHttp10);
            }
            transfer_encoding(codings)?
        }
    };
    if framing != BodyFraming::None && head.method.is_get_or_head() && !options.method_get_body {
        return Err(Reason::BodyUnexpected);
    }
    Ok(framing)
}

fn content_length(
    head: &RequestHead,
    position: u32,
    options: &HeadOptions,
) -> Result<BodyFraming, Reason> {
    let field = &head.fields[position as usize];
    let length = decimal(head.value(field)).ok_or(Reason::ContentLengthInvalid)?;
    if has_second(head, KnownField::ContentLength, position) {
        let mut values = head.fields_named(KnownField::ContentLength.name());
        if options.header_strict || values.any(|value| decimal(value) != Some(length)) {
            return Err(Reason::ContentLengthRepeated);
        }
    }
    Ok(if length == 0 {
        BodyFraming::None
    } else {
        BodyFraming::Length(length)
    })
}

/// Digits only, at most 63 bits: a length that also fits a file offset.
pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let mut value: u64 = 0;
    for &byte in text {
        let digit = byte.checked_sub(b'0').filter(|&digit| digit < 10)?;
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    (value <= i64::MAX as u64).then_some(value)
}

fn transfer_encoding(codings: &[u8]) -> Result<BodyFraming, Reason> {
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
            Err(Reason::TransferEncodingUnknown)
        }
        _ => Err(Reason::TransferEncodingInvalid),
    }
}

#[inline]
fn keep_alive(head: &RequestHead) -> bool {
    let by_default = head.version == Version::Http11;
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
    head.version == Version::Http11
        && head.framing != BodyFraming::None
        && list(expectation).any(|item| item.eq_ignore_ascii_case(b"100-continue"))
}

/// The items of a comma-separated list without the white space around them; empty ones are
/// skipped (RFC 9110 5.6.1.2). Quoted strings are not looked into.
pub(super) fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|&byte| byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests;
