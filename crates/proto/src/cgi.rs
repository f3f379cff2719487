//! Heads of CGI replies (RFC 3875 6): lines of `Name: value` up to an empty line.
//!
//! FastCGI, SCGI, uwsgi and CGI itself all reply in this form. A [`HeadDecoder`] gets the bytes of the reply
//! as they arrive and fills in a [`ReplyHead`] line by line; it looks at each line once. It does not know
//! which protocol carries the bytes, and of the body only the length that the head announces.
//!
//! It accepts everything that can be passed on safely. Lines may end in LF alone. A status line may stand in
//! place of the `Status` field of RFC 3875, as nph scripts and uwsgi applications write it. No field is
//! required: an empty line alone is a head, which PHP sends when a script has removed its Content-Type. But
//! names must be tokens, values must not hold control bytes, lines must not be folded, and lengths must not
//! contradict each other.
//!
//! Requests carry the fields of the client as variables; [`VARIABLE_BYTES`] are their names.

use crate::reasons::reasons;
use crate::reply_head::ReplyHead;
use crate::status::Status;
use crate::syntax::{decimal, is_name, is_token, is_value, is_value_byte, token_length, trimmed};

/// Limits on a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// The longest head in bytes, its last empty line included.
    pub bytes_max: usize,
    /// The most header fields, including those that are merged or removed.
    pub fields_max: usize,
}

impl Default for HeadLimits {
    /// 64 KiB and 1,024 fields.
    fn default() -> HeadLimits {
        HeadLimits {
            bytes_max: 64 * 1024,
            fields_max: 1024,
        }
    }
}

/// The result of decoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParsedCgiHead {
    /// The empty line that ends the head has not arrived yet.
    Partial,
    /// The head is complete. The body, or after an interim head the next head, begins `length` bytes into the
    /// input.
    Complete {
        /// Bytes of input that the head took.
        length: usize,
        /// What the head is.
        kind: HeadKind,
    },
}

/// The kind of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// The final head. If it has `Location` and no status, it got status 302.
    Final,
    /// The final head, and by RFC 3875 6.2.2 a local redirect: it has no status, and its `Location` is a
    /// path. It got status 302 as well: the caller may redirect internally, or pass it on.
    LocalRedirect,
    /// An interim response (1xx but 101): another head follows.
    Interim,
}

reasons! {
    /// Why a head is refused.
    HeadError {
        NoHead "the reply does not begin with header fields",
        TooLong "the head of the reply is too long",
        TooManyFields "the reply has too many header fields",
        FieldName "the reply has a header field without a sound name",
        FieldValue "the reply has a control character in a header field",
        FoldedLine "the reply has a folded header line",
        StatusLine "the status line of the reply is malformed",
        Status "the status of the reply is not a number from 100 to 999",
        StatusRepeated "the reply has two different statuses",
        ContentLength "the Content-Length of the reply is not a number",
        ContentLengthRepeated "the reply has two different Content-Lengths",
        ContentLengthWithTransferEncoding "the reply has both Content-Length and Transfer-Encoding",
        TransferEncoding "the reply has a Transfer-Encoding other than chunked",
    }
}

/// Decodes the heads of one reply, one after the other. Allocates nothing itself.
#[derive(Clone, Debug)]
pub struct HeadDecoder {
    limits: HeadLimits,
    /// Where the incomplete line begins.
    line_start: usize,
    /// How many input bytes were searched for the end of that line.
    searched: usize,
    fields: usize,
    status: Option<Status>,
    has_status_line: bool,
    location: Location,
    content_length: Option<u64>,
    is_chunked: bool,
    refused: Option<HeadError>,
}

/// The kind of Location field that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Location {
    Absent,
    Path,
    Url,
}

impl HeadDecoder {
    /// A decoder for the next head.
    pub fn new(limits: HeadLimits) -> HeadDecoder {
        HeadDecoder {
            limits,
            line_start: 0,
            searched: 0,
            fields: 0,
            status: None,
            has_status_line: false,
            location: Location::Absent,
            content_length: None,
            is_chunked: false,
            refused: None,
        }
    }

    /// Resets the decoder for the next head: that of the next reply, or the one that follows an interim head.
    /// The caller clears its [`ReplyHead`] as well.
    pub fn begin(&mut self) {
        *self = HeadDecoder::new(self.limits);
    }

    /// Continues to read `input`, which begins where the head begins and may extend beyond its end.
    ///
    /// After [`ParsedCgiHead::Partial`], call it again with the same bytes and more appended, and the same
    /// `head`. `head` holds the fields that were read so far. `Status` is removed from them, and of several
    /// equal `Content-Length` fields one remains. After [`ParsedCgiHead::Complete`], call
    /// [`HeadDecoder::begin`] next.
    ///
    /// # Errors
    /// The head must not be passed on. All further calls return the same error.
    pub fn decode(
        &mut self,
        input: &[u8],
        head: &mut ReplyHead,
    ) -> Result<ParsedCgiHead, HeadError> {
        match self.refused {
            Some(error) => Err(error),
            None => self
                .lines(input, head)
                .inspect_err(|&error| self.refused = Some(error)),
        }
    }

    /// Content-Length, once the head is complete.
    pub fn content_length(&self) -> Option<u64> {
        self.content_length
    }

    /// Whether the application used chunked framing (`Transfer-Encoding: chunked`), which it should leave to
    /// the server. The field is removed from the head.
    pub fn is_chunked(&self) -> bool {
        self.is_chunked
    }

    fn lines(&mut self, input: &[u8], head: &mut ReplyHead) -> Result<ParsedCgiHead, HeadError> {
        let within = &input[..input.len().min(self.limits.bytes_max)];
        loop {
            let rest = within.get(self.searched..).unwrap_or_default();
            let Some(position) = memchr::memchr(b'\n', rest) else {
                self.searched = within.len();
                return self.unfinished(within);
            };
            let end = self.searched + position;
            let line = within.get(self.line_start..end).unwrap_or_default();
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            (self.line_start, self.searched) = (end + 1, end + 1);
            if line.is_empty() {
                return self.complete(head);
            }
            self.line(line, head)?;
        }
    }

    /// The end of the line has not arrived. Input that cannot become a head is refused at once.
    fn unfinished(&self, within: &[u8]) -> Result<ParsedCgiHead, HeadError> {
        if within.len() < self.limits.bytes_max {
            return Ok(ParsedCgiHead::Partial);
        }
        Err(match memchr::memchr(b':', within) {
            None => HeadError::NoHead,
            Some(_) => HeadError::TooLong,
        })
    }

    #[inline]
    fn line(&mut self, line: &[u8], head: &mut ReplyHead) -> Result<(), HeadError> {
        // A colon is no byte of a token, so the first one is behind the name, if the name is sound.
        let (name, rest) = line.split_at(token_length(line));
        match rest {
            [b':', value @ ..] if !name.is_empty() => self.sound_field(name, value, head),
            _ => self.without_name(line),
        }
    }

    /// Adds a field from a protocol that does not use lines. Blanks around its value are removed.
    pub(crate) fn field(
        &mut self,
        name: &[u8],
        value: &[u8],
        head: &mut ReplyHead,
    ) -> Result<(), HeadError> {
        match is_token(name) {
            true => self.sound_field(name, value, head),
            false => Err(HeadError::FieldName),
        }
    }

    /// Adds a field whose name is a token.
    #[inline]
    fn sound_field(
        &mut self,
        name: &[u8],
        value: &[u8],
        head: &mut ReplyHead,
    ) -> Result<(), HeadError> {
        let value = trimmed(value);
        if !is_value(value) {
            return Err(HeadError::FieldValue);
        }
        self.fields += 1;
        if self.fields > self.limits.fields_max {
            return Err(HeadError::TooManyFields);
        }
        if self.look_at(name, value)? == Passing::On {
            head.push_token(name, value);
        }
        Ok(())
    }

    /// Sets the status, for a protocol that does not use lines.
    pub(crate) fn set_status(&mut self, status: u16) -> Result<(), HeadError> {
        if !(100..=999).contains(&status) {
            return Err(HeadError::Status);
        }
        self.status = Some(Status(status));
        Ok(())
    }

    /// All fields were added: determines the kind of the head.
    pub(crate) fn finish(&self, head: &mut ReplyHead) -> Result<HeadKind, HeadError> {
        if self.is_chunked && self.content_length.is_some() {
            return Err(HeadError::ContentLengthWithTransferEncoding);
        }
        let (status, kind) = match (self.status, self.location) {
            (None, Location::Absent) => (Status::OK, HeadKind::Final),
            (None, Location::Url) => (Status::FOUND, HeadKind::Final),
            (None, Location::Path) => (Status::FOUND, HeadKind::LocalRedirect),
            (Some(status), _) if is_interim(status) => (status, HeadKind::Interim),
            (Some(status), _) => (status, HeadKind::Final),
        };
        head.set_status(status);
        Ok(kind)
    }

    /// A line that does not begin with a sound name and a colon.
    #[cold]
    fn without_name(&mut self, line: &[u8]) -> Result<(), HeadError> {
        let is_first = self.fields == 0 && !self.has_status_line;
        if is_first && line.starts_with(b"HTTP/") {
            return self.status_line(line);
        }
        Err(match memchr::memchr(b':', line) {
            None => self.without_colon(line),
            Some(_) => self.bad_name(line),
        })
    }

    fn without_colon(&self, line: &[u8]) -> HeadError {
        match line.first() {
            Some(b' ' | b'\t') if self.fields > 0 => HeadError::FoldedLine,
            _ if self.fields > 0 || self.has_status_line => HeadError::FieldName,
            _ => HeadError::NoHead,
        }
    }

    fn bad_name(&self, line: &[u8]) -> HeadError {
        match line.first() {
            Some(b' ' | b'\t') if self.fields > 0 => HeadError::FoldedLine,
            _ => HeadError::FieldName,
        }
    }

    /// Reads a line such as `HTTP/1.1 200 OK`. The reason phrase is dropped.
    #[cold]
    fn status_line(&mut self, line: &[u8]) -> Result<(), HeadError> {
        let mut parts = line.splitn(2, |&byte| byte == b' ');
        let version = parts.next().unwrap_or_default();
        let version = version.strip_prefix(b"HTTP/").unwrap_or_default();
        if !matches!(version, [b'0'..=b'9'] | [b'0'..=b'9', b'.', b'0'..=b'9'])
            || !line.iter().copied().all(is_value_byte)
        {
            return Err(HeadError::StatusLine);
        }
        self.status = Some(status(parts.next().unwrap_or_default())?);
        self.has_status_line = true;
        Ok(())
    }

    /// Interprets the fields that this decoder needs.
    #[inline]
    fn look_at(&mut self, name: &[u8], value: &[u8]) -> Result<Passing, HeadError> {
        // Names are first compared by length, so that all other fields cost one comparison of numbers.
        match name.len() {
            6 if is_name(name, "Status") => {
                let status = status(value)?;
                if self
                    .status
                    .replace(status)
                    .is_some_and(|known| known != status)
                {
                    return Err(HeadError::StatusRepeated);
                }
                Ok(Passing::TakenOut)
            }
            8 if is_name(name, "Location") => {
                self.location = match value {
                    [b'/', b'/', ..] => Location::Url,
                    [b'/', ..] => Location::Path,
                    _ => Location::Url,
                };
                Ok(Passing::On)
            }
            14 if is_name(name, "Content-Length") => self.length(value),
            17 if is_name(name, "Transfer-Encoding") => {
                if !value.eq_ignore_ascii_case(b"chunked") || self.is_chunked {
                    return Err(HeadError::TransferEncoding);
                }
                self.is_chunked = true;
                Ok(Passing::TakenOut)
            }
            _ => Ok(Passing::On),
        }
    }

    fn length(&mut self, value: &[u8]) -> Result<Passing, HeadError> {
        let length = decimal(value).ok_or(HeadError::ContentLength)?;
        match self.content_length.replace(length) {
            None => Ok(Passing::On),
            Some(known) if known == length => Ok(Passing::TakenOut),
            Some(_) => Err(HeadError::ContentLengthRepeated),
        }
    }

    fn complete(&mut self, head: &mut ReplyHead) -> Result<ParsedCgiHead, HeadError> {
        let kind = self.finish(head)?;
        Ok(ParsedCgiHead::Complete {
            length: self.line_start,
            kind,
        })
    }
}

/// Whether a field is passed on to the client.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Passing {
    On,
    TakenOut,
}

/// 101 counts as final: after it the connection no longer carries HTTP.
fn is_interim(status: Status) -> bool {
    (100..200).contains(&status.0) && status != Status::SWITCHING_PROTOCOLS
}

/// Reads three digits, and optionally a space and any text.
fn status(value: &[u8]) -> Result<Status, HeadError> {
    match value {
        [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9']
        | [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', b' ', ..] => {
            let [a, b, c] = [a, b, c].map(|digit| u16::from(digit - b'0'));
            Ok(Status(a * 100 + b * 10 + c))
        }
        _ => Err(HeadError::Status),
    }
}

/// Whether a program that turns fields into variables would confuse this field with another one: `X_Foo` and
/// `X.Foo` with `X-Foo`.
#[inline]
pub fn is_ambiguous(name: &[u8]) -> bool {
    name.iter()
        .any(|byte| VARIABLE_BYTES[usize::from(*byte)] == 0)
}

/// The byte of a variable's name for each byte of a field name; 0 if a field with that byte gets no variable.
pub static VARIABLE_BYTES: [u8; 256] = variable_bytes();

const fn variable_bytes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let letter = (byte as u8).to_ascii_uppercase();
        if letter.is_ascii_alphanumeric() {
            table[byte] = letter;
        }
        byte += 1;
    }
    table[b'-' as usize] = b'_';
    table
}

#[cfg(test)]
mod tests;
