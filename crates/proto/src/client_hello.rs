//! Parses the ClientHello, the first message of a TLS client, before there is a key or a configuration.
//!
//! The server chooses certificates, versions and rules by the ClientHello, so it reads the message before its
//! TLS library does. [`ClientHelloDecoder`] takes the bytes in any pieces and any records, and holds one
//! message at most. [`ClientHello::write_record`] writes the message as one record for the library, however
//! many records it came in: the transcript of a handshake is made of messages, not of records. Follows RFC
//! 8446 sections 4.1.2 and 5.1, RFC 6066 section 3 and RFC 7301. Knows no cryptography. Lists are returned as
//! the client sent them, GREASE values (RFC 8701) included.

use std::ops::Range;

use crate::method::Method;
use crate::reasons::reasons;

/// Bytes of the longest ClientHello that is accepted, its header included: what fits into one record, as in
/// BoringSSL. Browsers send 500 to 2,000 bytes. The longest known ones carry two tickets, each with a chain
/// of client certificates.
pub const MESSAGE_BYTES_MAX: usize = RECORD_BYTES_MAX;

/// Records that one ClientHello may come in: enough for a usual one with one byte in each record.
pub const RECORDS_MAX: u16 = 2048;

/// The numbers of TLS versions in messages.
pub mod version {
    /// TLS 1.2.
    pub const TLS12: u16 = 0x0303;
    /// TLS 1.3.
    pub const TLS13: u16 = 0x0304;
}

/// Reads the ClientHello at the beginning of a connection.
#[derive(Debug, Default)]
pub struct ClientHelloDecoder {
    /// The header of the present record, as far as it has come.
    header: [u8; RECORD_HEADER],
    header_bytes: usize,
    /// Bytes of the present record's payload that have not come.
    record_left: usize,
    records: u16,
    /// The message with its own header, without record headers.
    message: Vec<u8>,
}

/// The result of [`ClientHelloDecoder::decode`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodedHello {
    /// All of the input is consumed, and more is needed.
    NeedMore,
    /// The message is complete.
    Complete {
        /// What the client asks for.
        hello: Box<ClientHello>,
        /// Bytes of the last input that belong to the message.
        consumed: usize,
    },
}

/// A complete ClientHello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello {
    message: Vec<u8>,
    legacy_version: u16,
    server_name: Option<Box<str>>,
    // The places of the lists in the message. A list that the client has not sent is empty.
    cipher_suites: Range<usize>,
    alpn: Range<usize>,
    versions: Range<usize>,
    signature_schemes: Range<usize>,
    has_session_id: bool,
    has_ticket: bool,
}

reasons! {
    /// Why the beginning of a connection is refused.
    HelloError {
        PlainHttp "the client speaks plain HTTP to a TLS port",
        NotTls "the client speaks neither TLS nor HTTP",
        /// A record of an alert, of data, or of anything else before the ClientHello is complete.
        UnexpectedRecord "the connection does not begin with a TLS handshake",
        RecordVersion "the client speaks a version of TLS or SSL that is too old",
        RecordLength "a TLS record has a length that is not allowed",
        /// More than [`RECORDS_MAX`].
        TooManyRecords "the ClientHello comes in too many TLS records",
        NotClientHello "the first TLS message is no ClientHello",
        /// Longer than [`MESSAGE_BYTES_MAX`].
        TooLong "the ClientHello is too long",
        /// Bytes follow the ClientHello in its record. The client cannot have anything to send before the
        /// server has answered.
        BytesBehind "there are bytes behind the ClientHello in its TLS record",
        Malformed "the ClientHello is malformed",
        DuplicateExtension "the ClientHello has an extension twice",
        ServerName "the server name in the ClientHello is no DNS name",
        /// An address in a form that only inet_aton(3) reads.
        ServerAddress "the server name in the ClientHello is an IP address",
    }
}

impl HelloError {
    /// The alert to close the connection with (RFC 8446 section 6); `None` for clients that do not speak TLS.
    pub const fn alert(self) -> Option<u8> {
        Some(match self {
            HelloError::PlainHttp | HelloError::NotTls => return None,
            HelloError::UnexpectedRecord
            | HelloError::NotClientHello
            | HelloError::TooManyRecords
            | HelloError::BytesBehind => alert::UNEXPECTED_MESSAGE,
            HelloError::RecordLength => alert::RECORD_OVERFLOW,
            HelloError::RecordVersion => alert::PROTOCOL_VERSION,
            HelloError::Malformed => alert::DECODE_ERROR,
            HelloError::TooLong
            | HelloError::DuplicateExtension
            | HelloError::ServerName
            | HelloError::ServerAddress => alert::ILLEGAL_PARAMETER,
        })
    }
}

impl ClientHelloDecoder {
    /// Takes the next bytes of the connection.
    ///
    /// # Errors
    /// Final: the connection is to be closed, with [`HelloError::alert`] if there is one.
    pub fn decode(&mut self, input: &[u8]) -> Result<DecodedHello, HelloError> {
        let mut rest = input;
        while !rest.is_empty() {
            if self.record_left == 0 {
                self.take_header(&mut rest)?;
            } else if self.take_payload(&mut rest)? {
                let message = std::mem::take(&mut self.message);
                return Ok(DecodedHello::Complete {
                    hello: Box::new(ClientHello::parse(message)?),
                    consumed: input.len() - rest.len(),
                });
            }
        }
        Ok(DecodedHello::NeedMore)
    }

    /// Whether a byte has come.
    pub fn has_begun(&self) -> bool {
        self.header_bytes > 0 || self.records > 0
    }

    /// Takes bytes of a record's header from the front of `rest`.
    fn take_header(&mut self, rest: &mut &[u8]) -> Result<(), HelloError> {
        let header = self.header.get_mut(self.header_bytes..);
        self.header_bytes += move_bytes(rest, header.unwrap_or_default());
        let begun = self.header.get(..self.header_bytes).unwrap_or_default();
        if self.records == 0 {
            refuse_other_protocols(begun)?;
        }
        if begun.len() < RECORD_HEADER {
            return Ok(());
        }
        let [content, major, _, high, low] = self.header;
        if content != HANDSHAKE {
            return Err(HelloError::UnexpectedRecord);
        }
        if major != VERSION_MAJOR {
            return Err(HelloError::RecordVersion);
        }
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length == 0 || length > RECORD_BYTES_MAX {
            return Err(HelloError::RecordLength);
        }
        if self.records == RECORDS_MAX {
            return Err(HelloError::TooManyRecords);
        }
        self.records += 1;
        self.header_bytes = 0;
        self.record_left = length;
        Ok(())
    }

    /// Takes bytes of a record's payload from the front of `rest`. Returns whether the message is complete.
    fn take_payload(&mut self, rest: &mut &[u8]) -> Result<bool, HelloError> {
        let wanted = self.message_length()? - self.message.len();
        let count = wanted.min(self.record_left).min(rest.len());
        let (taken, left) = rest.split_at(count);
        self.message.extend_from_slice(taken);
        self.record_left -= count;
        *rest = left;
        let is_complete = self.message.len() == self.message_length()?;
        match is_complete && self.record_left > 0 {
            true => Err(HelloError::BytesBehind),
            false => Ok(is_complete),
        }
    }

    /// The length of the message, its header included. As long as that is not known: one byte more than has
    /// come.
    fn message_length(&self) -> Result<usize, HelloError> {
        match *self.message.as_slice() {
            [] => Ok(1),
            [CLIENT_HELLO, high, middle, low, ..] => {
                let length = u32::from_be_bytes([0, high, middle, low]) as usize;
                match length > MESSAGE_BYTES_MAX - MESSAGE_HEADER {
                    true => Err(HelloError::TooLong),
                    false => Ok(MESSAGE_HEADER + length),
                }
            }
            [CLIENT_HELLO, ..] => Ok(self.message.len() + 1),
            [..] => Err(HelloError::NotClientHello),
        }
    }
}

impl ClientHello {
    /// Reads a complete message.
    fn parse(message: Vec<u8>) -> Result<ClientHello, HelloError> {
        let mut input = HelloReader {
            message: &message,
            position: MESSAGE_HEADER,
            end: message.len(),
        };
        let legacy_version = input.u16()?;
        input.take(RANDOM)?;
        let session_id = input.list8()?;
        let mut hello = ClientHello {
            legacy_version,
            server_name: None,
            cipher_suites: input.list16()?.non_empty()?.of_u16()?,
            alpn: 0..0,
            versions: 0..0,
            signature_schemes: 0..0,
            has_session_id: !session_id.is_empty(),
            has_ticket: false,
            message: Vec::new(),
        };
        input.list8()?.non_empty()?; // Compression methods.
        if !input.is_empty() {
            let extensions = input.list16()?;
            input.finish()?;
            hello.parse_extensions(extensions)?;
        }
        hello.message = message;
        Ok(hello)
    }

    fn parse_extensions(&mut self, mut extensions: HelloReader<'_>) -> Result<(), HelloError> {
        // One for each extension that is read here. The TLS library refuses other extensions that come twice.
        let mut seen = [false; 6];
        while !extensions.is_empty() {
            let kind = extensions.u16()?;
            let mut body = extensions.list16()?;
            let index = match kind {
                extension::SERVER_NAME => 0,
                extension::SIGNATURE_ALGORITHMS => 1,
                extension::ALPN => 2,
                extension::SESSION_TICKET => 3,
                extension::PRE_SHARED_KEY => 4,
                extension::SUPPORTED_VERSIONS => 5,
                _ => continue,
            };
            if std::mem::replace(&mut seen[index], true) {
                return Err(HelloError::DuplicateExtension);
            }
            match kind {
                extension::SERVER_NAME => self.server_name = server_name(body)?,
                extension::SIGNATURE_ALGORITHMS => {
                    self.signature_schemes = body.list16()?.non_empty()?.of_u16()?;
                    body.finish()?;
                }
                extension::ALPN => {
                    let names = body.list16()?.non_empty()?;
                    body.finish()?;
                    self.alpn = names.range();
                    let mut names = names;
                    while !names.is_empty() {
                        names.list8()?.non_empty()?;
                    }
                }
                extension::SUPPORTED_VERSIONS => {
                    self.versions = body.list8()?.non_empty()?.of_u16()?;
                    body.finish()?;
                }
                // An empty extension only asks for a ticket.
                _ => self.has_ticket |= !body.is_empty(),
            }
        }
        Ok(())
    }

    /// Appends the message in one record.
    pub fn write_record(&self, out: &mut Vec<u8>) {
        // The length fits: see `MESSAGE_BYTES_MAX`.
        let length = u16::try_from(self.message.len()).unwrap_or(u16::MAX);
        let [high, low] = length.to_be_bytes();
        out.extend_from_slice(&[HANDSHAKE, VERSION_MAJOR, 1, high, low]);
        out.extend_from_slice(&self.message);
    }

    /// The DNS name that the client asks for, in lower case and without a dot at its end. `None` also if the
    /// client has sent an IP address instead.
    pub fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// The ALPN protocols that the client offers, its favourite first.
    pub fn alpn(&self) -> impl Iterator<Item = &[u8]> {
        let mut names = self.message.get(self.alpn.clone()).unwrap_or_default();
        std::iter::from_fn(move || {
            let (&length, rest) = names.split_first()?;
            let (name, rest) = rest.split_at_checked(length.into())?;
            names = rest;
            Some(name)
        })
    }

    /// The TLS versions that the client offers, its favourite first.
    pub fn versions(&self) -> impl Iterator<Item = u16> {
        let alone = self.versions.is_empty().then_some(self.legacy_version);
        alone.into_iter().chain(self.u16_list(&self.versions))
    }

    /// The signature schemes that the client can verify, its favourite first. RSA and ECDSA certificates have
    /// different ones.
    pub fn signature_schemes(&self) -> impl Iterator<Item = u16> {
        self.u16_list(&self.signature_schemes)
    }

    /// The cipher suites that the client offers, its favourite first.
    pub fn cipher_suites(&self) -> impl Iterator<Item = u16> {
        self.u16_list(&self.cipher_suites)
    }

    /// Whether the client sends a session ID. TLS 1.3 clients do so for the sake of old middle boxes.
    pub fn has_session_id(&self) -> bool {
        self.has_session_id
    }

    /// Whether the client brings a ticket of an earlier session.
    pub fn has_ticket(&self) -> bool {
        self.has_ticket
    }

    fn u16_list(&self, range: &Range<usize>) -> impl Iterator<Item = u16> {
        let list = self.message.get(range.clone()).unwrap_or_default();
        list.as_chunks().0.iter().copied().map(u16::from_be_bytes)
    }
}

/// Refuses a connection that is not TLS as soon as its first bytes, `begun`, show it.
fn refuse_other_protocols(begun: &[u8]) -> Result<(), HelloError> {
    match *begun {
        [20..=23, ..] => Ok(()),
        [b'\r' | b'\n' | b'A'..=b'Z', ..] if begun.len() < RECORD_HEADER => Ok(()),
        [b'\r' | b'\n' | b'A'..=b'Z', ..] if is_http(begun) => Err(HelloError::PlainHttp),
        _ => Err(HelloError::NotTls),
    }
}

/// Whether `begun` may be the beginning of an HTTP/1 request, also behind empty lines (RFC 9112 section 2.2),
/// or of the HTTP/2 preface (RFC 9113 section 3.4).
fn is_http(begun: &[u8]) -> bool {
    let Some(first) = begun.iter().position(|byte| !matches!(byte, b'\r' | b'\n')) else {
        return false;
    };
    let begun = begun.get(first..).unwrap_or_default();
    let mut methods = Method::ALL.iter().map(|method| method.as_str());
    methods.any(|method| match memchr::memchr(b' ', begun) {
        Some(space) => begun.get(..space) == Some(method.as_bytes()),
        None => method.as_bytes().starts_with(begun),
    }) || begun == b"PRI *"
}

/// The host name in `body`, the extension. RFC 6066 defines no other kind of name, and says nothing of how to
/// skip one. `None`: the client has sent an IP address, which RFC 6066 forbids; such clients are treated like
/// those that send no name.
fn server_name(mut body: HelloReader<'_>) -> Result<Option<Box<str>>, HelloError> {
    let mut names = body.list16()?.non_empty()?;
    body.finish()?;
    if names.u8()? != HOST_NAME {
        return Err(HelloError::ServerName);
    }
    let name = names.list16()?.non_empty()?;
    names.finish()?;
    dns_name(name.bytes())
}

fn dns_name(name: &[u8]) -> Result<Option<Box<str>>, HelloError> {
    let text = std::str::from_utf8(name).map_err(|_| HelloError::ServerName)?;
    if text.parse::<std::net::IpAddr>().is_ok() {
        return Ok(None);
    }
    let text = text.strip_suffix('.').unwrap_or(text);
    let last = text.rsplit('.').next().unwrap_or_default();
    // A name whose last part is a number may be an address in another form of inet_aton(3). Hexadecimal forms
    // are not caught.
    if last.bytes().all(|byte| byte.is_ascii_digit()) && !last.is_empty() {
        return Err(HelloError::ServerAddress);
    }
    match text.len() <= NAME_BYTES_MAX && text.split('.').all(is_label) {
        true => Ok(Some(text.to_ascii_lowercase().into())),
        false => Err(HelloError::ServerName),
    }
}

/// Whether `label` has only letters, digits, underscores, and hyphens that are not at its ends. Underscores
/// are not allowed in host names, but are in use.
fn is_label(label: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=LABEL_BYTES_MAX).contains(&label.len())
        && label.bytes().all(is_allowed)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// Moves as many bytes as fit from the front of `from` into `to`, and returns how many.
fn move_bytes(from: &mut &[u8], to: &mut [u8]) -> usize {
    let count = from.len().min(to.len());
    let (moved, rest) = from.split_at(count);
    if let Some(place) = to.get_mut(..count) {
        place.copy_from_slice(moved);
    }
    *from = rest;
    count
}

/// A part of a message that is read from its front.
#[derive(Clone)]
struct HelloReader<'a> {
    message: &'a [u8],
    position: usize,
    end: usize,
}

impl<'a> HelloReader<'a> {
    fn is_empty(&self) -> bool {
        self.position == self.end
    }

    fn range(&self) -> Range<usize> {
        self.position..self.end
    }

    fn bytes(&self) -> &'a [u8] {
        self.message.get(self.range()).unwrap_or_default()
    }

    /// The next `count` bytes.
    fn take(&mut self, count: usize) -> Result<HelloReader<'a>, HelloError> {
        if count > self.end - self.position {
            return Err(HelloError::Malformed);
        }
        let begin = self.position;
        self.position += count;
        Ok(HelloReader {
            message: self.message,
            position: begin,
            end: self.position,
        })
    }

    fn u8(&mut self) -> Result<u8, HelloError> {
        match *self.take(1)?.bytes() {
            [byte] => Ok(byte),
            _ => Err(HelloError::Malformed),
        }
    }

    fn u16(&mut self) -> Result<u16, HelloError> {
        Ok(u16::from_be_bytes([self.u8()?, self.u8()?]))
    }

    /// A list whose length is in one byte in front of it.
    fn list8(&mut self) -> Result<HelloReader<'a>, HelloError> {
        let length = self.u8()?;
        self.take(length.into())
    }

    /// A list whose length is in two bytes in front of it.
    fn list16(&mut self) -> Result<HelloReader<'a>, HelloError> {
        let length = self.u16()?;
        self.take(length.into())
    }

    fn non_empty(self) -> Result<HelloReader<'a>, HelloError> {
        match self.is_empty() {
            true => Err(HelloError::Malformed),
            false => Ok(self),
        }
    }

    /// The place of the rest in the message, which must be a list of two-byte numbers.
    fn of_u16(self) -> Result<Range<usize>, HelloError> {
        match self.range().len().is_multiple_of(2) {
            true => Ok(self.range()),
            false => Err(HelloError::Malformed),
        }
    }

    /// An error if anything is left.
    fn finish(&self) -> Result<(), HelloError> {
        match self.is_empty() {
            true => Ok(()),
            false => Err(HelloError::Malformed),
        }
    }
}

/// Bytes of a record's header: type, version, length.
const RECORD_HEADER: usize = 5;
/// Bytes of the longest payload of an unencrypted record.
const RECORD_BYTES_MAX: usize = 16 * 1024;
const HANDSHAKE: u8 = 22;
/// The major version of SSL 3 and of every TLS version.
const VERSION_MAJOR: u8 = 3;

/// Bytes of a message's header: type and length.
const MESSAGE_HEADER: usize = 4;
const CLIENT_HELLO: u8 = 1;
const RANDOM: usize = 32;
const HOST_NAME: u8 = 0;
const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

mod extension {
    pub(super) const SERVER_NAME: u16 = 0;
    pub(super) const SIGNATURE_ALGORITHMS: u16 = 13;
    pub(super) const ALPN: u16 = 16;
    pub(super) const SESSION_TICKET: u16 = 35;
    pub(super) const PRE_SHARED_KEY: u16 = 41;
    pub(super) const SUPPORTED_VERSIONS: u16 = 43;
}

mod alert {
    pub(super) const UNEXPECTED_MESSAGE: u8 = 10;
    pub(super) const RECORD_OVERFLOW: u8 = 22;
    pub(super) const ILLEGAL_PARAMETER: u8 = 47;
    pub(super) const DECODE_ERROR: u8 = 50;
    pub(super) const PROTOCOL_VERSION: u8 = 70;
}

#[cfg(test)]
mod tests;
