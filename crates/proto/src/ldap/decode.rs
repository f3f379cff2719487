//! Replies.

use std::fmt;

use super::ber::{self, ENUMERATED, INTEGER, OCTET_STRING, SEQUENCE, Unread};

/// Takes replies apart.
#[derive(Debug)]
pub struct LdapDecoder {
    /// The number of the request that is answered.
    id: u32,
    /// The beginning of a message.
    held: Vec<u8>,
}

/// What a piece of input has brought.
#[derive(Debug, PartialEq, Eq)]
pub struct LdapFed {
    /// So much of it was taken. The rest is to be fed again.
    pub consumed: usize,
    /// A message that is complete now.
    pub reply: Option<LdapReply>,
}

/// One message of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LdapReply {
    /// To a bind.
    Bind(LdapResult),
    /// To StartTLS.
    Extended(LdapResult),
    /// An entry that a search has found: its distinguished name.
    Entry(Vec<u8>),
    /// Entries may be at another server.
    Reference,
    /// A search has ended.
    Done(LdapResult),
    /// The server ends the connection, and says why (RFC 4511 section 4.4.1).
    Disconnection(LdapResult),
}

/// How a request has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LdapResult {
    /// RFC 4511 section 4.1.9; 0 is success.
    pub code: u32,
    /// What the server says to a person.
    pub text: Vec<u8>,
}

/// Why input is no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LdapError {
    /// It is not encoded as LDAP's messages are.
    Malformed,
    /// A message has more than [`MESSAGE_BYTES_MAX`] bytes.
    TooLong,
    /// It answers another request than the one that was sent.
    Unasked,
}

impl LdapError {
    /// A sentence about the server, which is "it".
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
    /// It is no reply to a request of ours. Nothing can be read any more.
    pub fn feed(&mut self, input: &[u8]) -> Result<LdapFed, LdapError> {
        let mut consumed = 0;
        loop {
            // Never more than the message needs: what follows is not ours.
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

    /// Bytes of a message that is not complete.
    pub fn held(&self) -> usize {
        self.held.len()
    }
}

/// How long a message is.
enum Length {
    /// All of it.
    Whole(usize),
    /// So many bytes tell more.
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

/// Entries without attributes are short. Servers may send attributes all the same.
pub const MESSAGE_BYTES_MAX: usize = 256 << 10;

const BIND_RESPONSE: ber::Tag = 0x61;
const SEARCH_ENTRY: ber::Tag = 0x64;
const SEARCH_DONE: ber::Tag = 0x65;
const SEARCH_REFERENCE: ber::Tag = 0x73;
const EXTENDED_RESPONSE: ber::Tag = 0x78;
