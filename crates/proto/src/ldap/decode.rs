//! Reads replies.

use std::fmt;

use super::ber::{self, ENUMERATED, INTEGER, OCTET_STRING, SEQUENCE, Unread};

/// Reads the replies to one request.
#[derive(Debug)]
pub struct LdapDecoder {
    /// The number of the request that is answered.
    id: u32,
    /// The first bytes of a message that is not complete yet.
    held: Vec<u8>,
}

/// The result of feeding a piece of input.
#[derive(Debug, PartialEq, Eq)]
pub struct LdapFed {
    /// Bytes of the input that were used. The caller feeds the others again.
    pub consumed: usize,
    /// The message that these bytes completed.
    pub reply: Option<LdapReply>,
}

/// One message of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LdapReply {
    /// The reply to a bind.
    Bind(LdapResult),
    /// The reply to StartTLS.
    Extended(LdapResult),
    /// The distinguished name of an entry that a search has found.
    Entry(Vec<u8>),
    /// A referral: another server may have entries.
    Reference,
    /// A search has ended.
    Done(LdapResult),
    /// The server closes the connection and says why (RFC 4511 section 4.4.1).
    Disconnection(LdapResult),
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LdapResult {
    /// RFC 4511 section 4.1.9; 0 is success.
    pub code: u32,
    /// The server's message for people.
    pub text: Vec<u8>,
}

/// Why input is no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LdapError {
    /// The bytes are no LDAP message.
    Malformed,
    /// A message has more than [`MESSAGE_BYTES_MAX`] bytes.
    TooLong,
    /// The message answers another request, or is of a kind that no request of ours gets.
    Unasked,
}

impl LdapError {
    /// The error as a sentence whose "it" is the server.
    pub fn text(self) -> &'static str {
        match self {
            LdapError::Malformed => "what it says is no LDAP",
            LdapError::TooLong => "it sends a message that is too long",
            LdapError::Unasked => "it answers what it was not asked",
        }
    }
}

impl fmt::Display for LdapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for LdapError {}

impl LdapDecoder {
    /// For the replies to the request with this number; those to another one are refused.
    pub fn for_request(id: u32) -> LdapDecoder {
        LdapDecoder {
            id,
            held: Vec::new(),
        }
    }

    /// Takes `input` up to the end of the next message, or all of it.
    ///
    /// # Errors
    /// The input is no reply to the request. The connection can be used no more.
    pub fn feed(&mut self, input: &[u8]) -> Result<LdapFed, LdapError> {
        let mut consumed = 0;
        loop {
            // The bytes behind the message stay with the caller: it may have sent the next request already.
            let missing = match message_bytes(&self.held)? {
                Length::Whole(bytes) if bytes == self.held.len() => {
                    let reply = read_message(self.id, &self.held)?;
                    self.held.clear();
                    let reply = Some(reply);
                    return Ok(LdapFed { consumed, reply });
                }
                Length::Whole(bytes) | Length::Head(bytes) => bytes - self.held.len(),
            };
            let rest = input.get(consumed..).unwrap_or_default();
            let piece = rest.get(..missing).unwrap_or(rest);
            if piece.is_empty() {
                return Ok(LdapFed {
                    consumed,
                    reply: None,
                });
            }
            self.held.extend_from_slice(piece);
            consumed += piece.len();
        }
    }

    /// How many bytes of an incomplete message are kept.
    pub fn held(&self) -> usize {
        self.held.len()
    }
}

/// The length of a message.
enum Length {
    /// The length of the whole message is known.
    Whole(usize),
    /// With so many bytes the length is known.
    Head(usize),
}

fn message_bytes(held: &[u8]) -> Result<Length, LdapError> {
    if held.first().is_some_and(|tag| *tag != SEQUENCE) {
        return Err(LdapError::Malformed);
    }
    let header_known = match held.get(1) {
        None => return Ok(Length::Head(2)),
        Some(first) if *first < 0x80 => 2,
        Some(first) => 2 + usize::from(first & 0x7f),
    };
    let bytes = match ber::read(held) {
        Ok((_, _, rest)) => held.len() - rest.len(),
        Err(Unread::Partial(bytes)) => bytes,
        Err(Unread::Malformed) => return Err(LdapError::Malformed),
    };
    if bytes > MESSAGE_BYTES_MAX {
        return Err(LdapError::TooLong);
    }
    Ok(match held.len() < header_known {
        true => Length::Head(header_known),
        false => Length::Whole(bytes),
    })
}

fn read_message(request: u32, message: &[u8]) -> Result<LdapReply, LdapError> {
    let read = || {
        let (content, _) = ber::read_as(SEQUENCE, message)?;
        let (id, rest) = ber::read_as(INTEGER, content)?;
        let (operation, content, _) = ber::read(rest).ok()?;
        Some((ber::number(id)?, operation, content))
    };
    let (id, operation, content) = read().ok_or(LdapError::Malformed)?;
    let result = || read_result(content).ok_or(LdapError::Malformed);
    match operation {
        EXTENDED_RESPONSE if id == 0 => result().map(LdapReply::Disconnection),
        _ if id != request => Err(LdapError::Unasked),
        BIND_RESPONSE => result().map(LdapReply::Bind),
        EXTENDED_RESPONSE => result().map(LdapReply::Extended),
        SEARCH_DONE => result().map(LdapReply::Done),
        SEARCH_ENTRY => {
            let (name, _) = ber::read_as(OCTET_STRING, content).ok_or(LdapError::Malformed)?;
            Ok(LdapReply::Entry(name.to_vec()))
        }
        SEARCH_REFERENCE => Ok(LdapReply::Reference),
        _ => Err(LdapError::Unasked),
    }
}

fn read_result(content: &[u8]) -> Option<LdapResult> {
    let (code, rest) = ber::read_as(ENUMERATED, content)?;
    let (_, rest) = ber::read_as(OCTET_STRING, rest)?;
    let (text, _) = ber::read_as(OCTET_STRING, rest)?;
    Some(LdapResult {
        code: ber::number(code)?,
        text: text.to_vec(),
    })
}

/// Entries without attributes are short, but some servers send attributes that were not asked for.
pub const MESSAGE_BYTES_MAX: usize = 256 << 10;

const BIND_RESPONSE: ber::Tag = 0x61;
const SEARCH_ENTRY: ber::Tag = 0x64;
const SEARCH_DONE: ber::Tag = 0x65;
const SEARCH_REFERENCE: ber::Tag = 0x73;
const EXTENDED_RESPONSE: ber::Tag = 0x78;
