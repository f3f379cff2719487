//! Parses bytes into a [`RequestHead`].
//!
//! Nearly all heads are read by [`usual_head`]. All others are left to httparse, and to the rules that
//! httparse lacks.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::usual_head;
use crate::request_head::{FieldRange, HeadError, HeadOptions, KnownField, RequestHead, Version};

/// The most empty lines before a request line that are tolerated.
const EMPTY_LINES_MAX: usize = 2;
/// Most requests have fewer fields than this. Their positions fit on the stack.
const FIELDS_USUAL: usize = 64;

/// The result of parsing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The empty line that ends the head has not arrived yet.
    Partial,
    /// The head is complete. The body or the next request begins `length` bytes into the input.
    Complete {
        /// How many bytes of input the head took, including leading empty lines.
        length: usize,
    },
}

impl RequestHead {
    /// Parses a head at the beginning of `input`, which may extend beyond its end.
    ///
    /// After [`Parsed::Partial`], call it again with the same bytes and more appended. Only the new bytes are
    /// searched for the end of the head. A full parse is tried when the end was found, or when the input has
    /// doubled in length: so a head that arrives byte by byte costs linear time, and an invalid one is still
    /// refused early. An error is final. Call [`RequestHead::clear`] before the next
    /// request.
    ///
    /// Up to two empty lines before the request line are skipped (RFC 9112 2.2).
    #[inline]
    pub fn parse(&mut self, input: &[u8], options: &HeadOptions) -> Result<Parsed, HeadError> {
        if self.attempted != 0 && !is_worth_another_attempt(self, input, options)? {
            return Ok(Parsed::Partial);
        }
        let skipped = match input.first() {
            Some(b'\r' | b'\n') => skip_empty_lines(input, options)?,
            _ => 0,
        };
        match attempt(self, &input[skipped..], options)? {
            Some(length) if skipped + length > options.head_bytes_max => {
                Err(too_large(input, options))
            }
            Some(length) => Ok(Parsed::Complete {
                length: skipped + length,
            }),
            None => {
                (self.attempted, self.searched) = (input.len(), input.len());
                refuse_too_long_partial(input, options)?;
                Ok(Parsed::Partial)
            }
        }
    }
}

/// After a partial parse: whether the end of the head was found, or the input has doubled.
fn is_worth_another_attempt(
    head: &mut RequestHead,
    input: &[u8],
    options: &HeadOptions,
) -> Result<bool, HeadError> {
    // The empty line may begin in bytes that were searched before.
    let start = head.searched.saturating_sub(2).min(input.len());
    if input.len() >= head.attempted.saturating_mul(2) || has_empty_line(&input[start..]) {
        return Ok(true);
    }
    head.searched = input.len();
    refuse_too_long_partial(input, options)?;
    Ok(false)
}

/// Whether an empty line follows a line feed in `bytes`.
pub(super) fn has_empty_line(bytes: &[u8]) -> bool {
    memchr::memchr_iter(b'\n', bytes).any(|position| {
        matches!(
            bytes.get(position + 1..),
            Some([b'\n', ..] | [b'\r', b'\n', ..])
        )
    })
}

/// Refuses a head that is still incomplete at the limit.
fn refuse_too_long_partial(input: &[u8], options: &HeadOptions) -> Result<(), HeadError> {
    if input.len() < options.head_bytes_max {
        Ok(())
    } else {
        Err(too_large(input, options))
    }
}

#[cold]
fn too_large(input: &[u8], options: &HeadOptions) -> HeadError {
    let within = &input[..input.len().min(options.head_bytes_max)];
    let line = within.trim_ascii_start();
    if line.contains(&b'\n') {
        HeadError::HeadTooLarge
    } else if line.contains(&b' ') {
        HeadError::RequestLineTooLong
    } else {
        // No method is that long.
        HeadError::RequestLine
    }
}

#[cold]
fn skip_empty_lines(input: &[u8], options: &HeadOptions) -> Result<usize, HeadError> {
    let mut skipped = 0;
    for _ in 0..=EMPTY_LINES_MAX {
        skipped += match &input[skipped..] {
            [b'\r', b'\n', ..] => 2,
            [b'\n', ..] if options.header_strict => return Err(HeadError::LineEnd),
            [b'\n', ..] => 1,
            [b'\r', _, ..] => return Err(HeadError::RequestLine),
            _ => return Ok(skipped),
        };
    }
    Err(HeadError::TooManyEmptyLines)
}

/// Tries to parse a head at the beginning of `input`. `None` if it is incomplete.
fn attempt(
    head: &mut RequestHead,
    input: &[u8],
    options: &HeadOptions,
) -> Result<Option<usize>, HeadError> {
    let length = match usual_head::read(head, input) {
        Some(length) => length,
        None => match read_other(head, input, options)? {
            Some(length) => length,
            None => return Ok(None),
        },
    };
    head.finish(options)?;
    Ok(Some(length))
}

/// Reads a head of any form. `None` if it is incomplete.
#[cold]
fn read_other(
    head: &mut RequestHead,
    input: &[u8],
    options: &HeadOptions,
) -> Result<Option<usize>, HeadError> {
    let length = match read::<FIELDS_USUAL>(head, input) {
        Err(httparse::Error::TooManyHeaders) => read_many(head, input)?,
        Err(httparse::Error::Version) => read_other_version(head, input)?,
        Err(httparse::Error::Token) => read_raw_target(head, input)?,
        read => read.map_err(reason)?,
    };
    if options.header_strict && length.is_some() {
        refuse_bare_line_feeds(head)?;
    }
    Ok(length)
}

/// What httparse reads.
#[cfg(test)]
pub(super) fn read_any(head: &mut RequestHead, input: &[u8]) -> Option<usize> {
    let length = read::<FIELDS_USUAL>(head, input);
    length.ok().flatten()
}

/// Runs httparse over `input` and copies what it found. This only sets the version and the positions of
/// method, target and fields; it checks nothing yet.
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
    // httparse returns subslices of `input`; only an empty one may lie elsewhere.
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
        .extend(request.headers.iter().map(|header| FieldRange {
            name: place(header.name.as_bytes()),
            value: place(header.value),
            known: KnownField::from_name(header.name.as_bytes()),
        }));
    Ok(Some(length))
}

#[cold]
fn read_many(head: &mut RequestHead, input: &[u8]) -> Result<Option<usize>, HeadError> {
    read::<{ RequestHead::FIELDS_MAX }>(head, input).map_err(reason)
}

/// httparse knows 1.0 and 1.1 only. A higher 1.x has the meaning of 1.1 (RFC 9110 2.5), so it is parsed as
/// such; the stored copy of the head keeps what was sent.
#[cold]
fn read_other_version(head: &mut RequestHead, input: &[u8]) -> Result<Option<usize>, HeadError> {
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
        // "HTTP/1.1" has ten bytes with its CR LF. An incomplete line may still become valid.
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
        _ if line == b"PRI * HTTP/2.0" => return Err(HeadError::Http2Preface),
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
            return Err(HeadError::VersionUnsupported);
        }
        // "HTTP/1", "HTTP/01.1" and "HTTP/a.b" are no versions (RFC 9112 section 2.3).
        _ => return Err(HeadError::RequestLine),
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

/// httparse wants UTF-8 in a target. Browsers of old and scripts send other encodings, and other servers take
/// them, so the bytes above 0x7f are read as letters and put back.
#[cold]
fn read_raw_target(head: &mut RequestHead, input: &[u8]) -> Result<Option<usize>, HeadError> {
    let line_end = memchr::memchr(b'\n', input).unwrap_or(input.len());
    let Some(method_end) = memchr::memchr(b' ', &input[..line_end]) else {
        return Err(HeadError::RequestLine);
    };
    let mut plain = input.to_vec();
    for byte in &mut plain[method_end..line_end] {
        *byte = if byte.is_ascii() { *byte } else { b'x' };
    }
    let read = match read::<FIELDS_USUAL>(head, &plain) {
        Err(httparse::Error::TooManyHeaders) => read_many(head, &plain)?,
        other => other.map_err(reason)?,
    };
    if read.is_some() {
        let target = head.target.clone();
        head.bytes[target.clone()].copy_from_slice(&input[target]);
    }
    Ok(read)
}

#[cold]
fn reason(error: httparse::Error) -> HeadError {
    match error {
        httparse::Error::HeaderName => HeadError::FieldName,
        httparse::Error::HeaderValue => HeadError::FieldValue,
        httparse::Error::NewLine => HeadError::LineEnd,
        httparse::Error::TooManyHeaders => HeadError::TooManyFields,
        httparse::Error::Token | httparse::Error::Status | httparse::Error::Version => {
            HeadError::RequestLine
        }
    }
}

/// Refuses lines that end in LF alone, which httparse accepts. Every line but the first begins with a field
/// name, so it is enough to check the two bytes before each name, and the last four of the head.
fn refuse_bare_line_feeds(head: &RequestHead) -> Result<(), HeadError> {
    let ends_in_crlf = |end: usize| end >= 2 && head.bytes[end - 2] == b'\r';
    let lines_end = head
        .fields
        .iter()
        .all(|field| ends_in_crlf(field.name.start));
    if lines_end && head.bytes[..head.head_length].ends_with(b"\r\n\r\n") {
        Ok(())
    } else {
        Err(HeadError::LineEnd)
    }
}

#[cfg(test)]
mod tests;
