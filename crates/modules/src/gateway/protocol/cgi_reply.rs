//! A CGI reply in a stream of bytes: heads, then a body that ends with the stream.
//!
//! FastCGI's STDOUT and the connections of SCGI and uwsgi carry such a stream. This module does not know the
//! carrier: the owner passes in pieces of the stream of any length, gets events out, and says when the stream
//! has ended.
//!
//! Many programs answer one request after another with the same head, byte for byte. Such a head is compared
//! with the one before and not decoded again.

use petrel_engine::proto::cgi::{HeadDecoder, HeadError, HeadKind, HeadLimits, ParsedCgiHead};
use petrel_engine::proto::header_block::HeaderBlock;
use petrel_engine::proto::http1::REPEATED_HEAD_BYTES_MAX;
use petrel_engine::proto::reply_head::ReplyHead;
use petrel_engine::proto::status::Status;

use super::reply_body::{Body, ExpectedReply};
use super::{Decoded, Outgoing, ReplyError, ReplyEvent};
use crate::gateway::limits;

/// Decodes one CGI reply after another. Allocates nothing once its buffers have grown.
pub(super) struct CgiReply {
    head: ReplyHead,
    decoder: HeadDecoder,
    /// The bytes of a head that has not arrived completely.
    held: Vec<u8>,
    /// Further replies may follow, so the head is kept for a comparison.
    repeats: bool,
    /// The head that `head` and `decoder` hold, as it was received; empty: none that can come again.
    last: Vec<u8>,
    last_kind: HeadKind,
    /// No byte of the next head was decoded yet, so `head` and `decoder` are those of the head before.
    is_outdated: bool,
    state: ReplyState,
    interim_heads: u32,
    expected: ExpectedReply,
    is_local_redirect: bool,
    headless: Headless,
}

/// Whether output that does not begin with a header field counts as a body, as lighttpd has it for CGI
/// programs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Headless {
    Refused,
    Allowed,
    /// Allowed, and the output has ended.
    AllowedAtEnd,
}

enum ReplyState {
    /// A head comes next, or the rest of one.
    Head,
    /// An interim head has been handed out; another head comes next.
    Interim,
    /// The body comes next.
    Body(Body),
}

impl CgiReply {
    pub(super) fn new() -> CgiReply {
        CgiReply {
            head: ReplyHead::new(),
            decoder: HeadDecoder::new(HEAD_LIMITS),
            held: Vec::new(),
            repeats: false,
            last: Vec::new(),
            last_kind: HeadKind::Final,
            is_outdated: false,
            state: ReplyState::Head,
            interim_heads: 0,
            expected: ExpectedReply::default(),
            is_local_redirect: false,
            headless: Headless::Refused,
        }
    }

    /// As [`Self::new`], for a connection that brings one reply after another.
    pub(super) fn of_kept_connection() -> CgiReply {
        CgiReply {
            repeats: true,
            ..CgiReply::new()
        }
    }

    /// As [`Self::new`], for a CGI program, whose output may have no head at all.
    pub(super) fn of_program() -> CgiReply {
        CgiReply {
            headless: Headless::Allowed,
            ..CgiReply::new()
        }
    }

    /// The output has ended.
    pub(super) fn input_ends(&mut self) {
        if self.headless == Headless::Allowed {
            self.headless = Headless::AllowedAtEnd;
        }
    }

    /// Forgets the previous reply.
    pub(super) fn begin(&mut self) {
        self.begin_head();
        let CgiReply {
            // `begin_head` has seen to these fields, which belong to one head.
            head: _,
            decoder: _,
            held: _,
            repeats: _,
            last: _,
            last_kind: _,
            is_outdated: _,
            state: _,
            interim_heads,
            expected,
            is_local_redirect,
            // A property of the program, not of the reply.
            headless: _,
        } = self;
        *interim_heads = 0;
        *expected = ExpectedReply::default();
        *is_local_redirect = false;
    }

    /// Notes what the request was, because the meaning of the reply depends on it.
    pub(super) fn expect(&mut self, request: &Outgoing<'_>) {
        self.expected = ExpectedReply::from(request);
    }

    /// Takes the next event from the front of `input`. [`ReplyEvent::NeedMore`] consumes all of it, unless it
    /// is not known yet whether the output has a head. [`ReplyEvent::End`] does not occur.
    pub(super) fn take(&mut self, input: &[u8]) -> Result<Decoded, ReplyError> {
        if matches!(self.state, ReplyState::Interim) {
            self.begin_head();
        }
        match &mut self.state {
            _ if input.is_empty() => Ok(all(input)),
            ReplyState::Head if self.headless != Headless::Refused && self.held.is_empty() => {
                match self.has_head(input) {
                    Some(true) => self.take_head(input),
                    Some(false) => self.begin_headless(),
                    None => Ok(Decoded {
                        consumed: 0,
                        event: ReplyEvent::NeedMore,
                    }),
                }
            }
            ReplyState::Head | ReplyState::Interim => self.take_head(input),
            ReplyState::Body(body) => body.take(input),
        }
    }

    /// The stream has ended.
    pub(super) fn finish(&mut self) -> Result<(), ReplyError> {
        match &self.state {
            ReplyState::Head if self.held.is_empty() && self.interim_heads == 0 => {
                Err(ReplyError("the backend sent no reply"))
            }
            ReplyState::Head | ReplyState::Interim => {
                Err(ReplyError("the reply ends before its head is complete"))
            }
            ReplyState::Body(body) => body.finish(),
        }
    }

    /// Whether the reply is known to be complete, even if the stream goes on.
    pub(super) fn is_complete(&self) -> bool {
        matches!(&self.state, ReplyState::Body(body) if body.is_complete())
    }

    /// Trailers that may be passed on to the client.
    pub(super) fn trailers(&self) -> HeaderBlock {
        match &self.state {
            ReplyState::Body(body) => body.trailers(),
            ReplyState::Head | ReplyState::Interim => HeaderBlock::new(),
        }
    }

    pub(super) fn head(&self) -> &ReplyHead {
        &self.head
    }

    /// Whether the head has a Location that is a path, and no status.
    pub(super) fn is_local_redirect(&self) -> bool {
        self.is_local_redirect
    }

    /// How many bytes of the body are still to come, if the head has said so.
    pub(super) fn remaining(&self) -> Option<u64> {
        match &self.state {
            ReplyState::Body(body) => body.remaining(),
            ReplyState::Head | ReplyState::Interim => None,
        }
    }

    fn begin_head(&mut self) {
        self.is_outdated = true;
        self.held.clear();
        self.state = ReplyState::Head;
    }

    fn forget_last(&mut self) {
        self.is_outdated = false;
        self.last.clear();
        self.head.clear();
        self.decoder.begin();
    }

    /// Whether output that begins with `input` has a head; `None`: not known before more of it arrives.
    fn has_head(&self, input: &[u8]) -> Option<bool> {
        if self.interim_heads > 0 || input.starts_with(b"HTTP/") {
            return Some(true);
        }
        match memchr::memchr2(b':', b'\n', input) {
            // An empty line at the beginning is a head without fields.
            Some(at) => Some(input[at] == b':' || input[..at].trim_ascii().is_empty()),
            None if self.headless == Headless::AllowedAtEnd => Some(false),
            None => (input.len() >= limits::REPLY_HEAD_BYTES_MAX).then_some(false),
        }
    }

    fn begin_headless(&mut self) -> Result<Decoded, ReplyError> {
        self.forget_last();
        self.head.set_status(Status::OK);
        let body = Body::new(Status::OK, None, false, self.expected)?;
        self.state = ReplyState::Body(body);
        Ok(Decoded {
            consumed: 0,
            event: ReplyEvent::Head,
        })
    }

    /// Parses the head in place if `input` has all of it, otherwise in a copy.
    fn take_head(&mut self, input: &[u8]) -> Result<Decoded, ReplyError> {
        if self.is_outdated {
            if !self.last.is_empty() && input.starts_with(&self.last) {
                self.is_outdated = false;
                return self.take_complete(self.last.len(), self.last_kind);
            }
            self.forget_last();
        }
        let held = self.held.len();
        let parsed = if held == 0 {
            self.decoder.decode(input, &mut self.head)?
        } else {
            self.held.extend_from_slice(input);
            self.decoder.decode(&self.held, &mut self.head)?
        };
        let ParsedCgiHead::Complete { length, kind } = parsed else {
            if held == 0 {
                self.held.extend_from_slice(input);
            }
            return Ok(all(input));
        };
        if self.repeats
            && held == 0
            && length <= REPEATED_HEAD_BYTES_MAX
            && kind != HeadKind::Interim
        {
            self.last
                .extend_from_slice(input.get(..length).unwrap_or_default());
            self.last_kind = kind;
        }
        self.held.clear();
        // The held bytes did not complete the head, so the head ends within this input.
        self.take_complete(length.saturating_sub(held), kind)
    }

    /// The head is complete; its last byte is in front of `consumed`.
    fn take_complete(&mut self, consumed: usize, kind: HeadKind) -> Result<Decoded, ReplyError> {
        self.is_local_redirect = kind == HeadKind::LocalRedirect;
        let event = match kind {
            HeadKind::Interim => self.interim()?,
            HeadKind::Final | HeadKind::LocalRedirect => self.complete()?,
        };
        Ok(Decoded { consumed, event })
    }

    fn interim(&mut self) -> Result<ReplyEvent, ReplyError> {
        self.interim_heads += 1;
        if self.interim_heads > limits::INTERIM_HEADS_MAX {
            return Err(ReplyError("the reply has too many interim responses"));
        }
        self.state = ReplyState::Interim;
        Ok(ReplyEvent::Interim)
    }

    fn complete(&mut self) -> Result<ReplyEvent, ReplyError> {
        let length = self.decoder.content_length();
        let is_chunked = self.decoder.is_chunked();
        let status = self.head.status();
        self.state = ReplyState::Body(Body::new(status, length, is_chunked, self.expected)?);
        Ok(ReplyEvent::Head)
    }
}

fn all(input: &[u8]) -> Decoded {
    Decoded {
        consumed: input.len(),
        event: ReplyEvent::NeedMore,
    }
}

impl From<HeadError> for ReplyError {
    fn from(error: HeadError) -> ReplyError {
        ReplyError(error.sentence())
    }
}

const HEAD_LIMITS: HeadLimits = HeadLimits {
    bytes_max: limits::REPLY_HEAD_BYTES_MAX,
    fields_max: limits::REPLY_FIELDS_MAX,
};
