//! A CGI reply in a stream of bytes: heads, then a body that ends with the stream.
//!
//! What FastCGI's STDOUT, and the connections of SCGI and uwsgi, carry. It knows nothing of what
//! carries it: the bytes of the stream come in, in stretches of any length, events about them come
//! out, and the owner says when the stream is over.

use petrel_engine::proto::cgi::{HeadDecoder, HeadError, HeadLimits, Kind, Parsed};
use petrel_engine::proto::http1::{BodyDecoder, BodyFraming, BodyLimits, Piece};
use petrel_engine::proto::method::Method;
use petrel_engine::proto::reply_head::ReplyHead;
use petrel_engine::proto::status::Status;

use super::{Decoded, Outgoing, ReplyError, ReplyEvent};
use crate::gateway::limits;

/// One CGI reply after the other. Allocates nothing when its buffers have grown.
pub(super) struct CgiReply {
    head: ReplyHead,
    decoder: HeadDecoder,
    /// The bytes of a head of which only a part has arrived.
    held: Vec<u8>,
    state: State,
    interim_heads: u32,
    /// The request was HEAD: whatever the application sends as body is not wanted.
    is_head_request: bool,
    may_upgrade: bool,
}

enum State {
    /// A head comes next, or the rest of it.
    Head,
    /// An interim head is handed out; another one comes next.
    Interim,
    /// The body comes next.
    Body(Body),
}

/// How much body there is, and what to do with it.
enum Body {
    /// All there is until the stream ends.
    UntilEnd,
    /// That many bytes more; what comes behind them is dropped.
    Length(u64),
    /// In chunks that the application made itself.
    Chunked(BodyDecoder),
    /// The reply has none by its status or by the method; what comes is dropped.
    Dropped,
}

impl CgiReply {
    pub(super) fn new() -> CgiReply {
        CgiReply {
            head: ReplyHead::new(),
            decoder: HeadDecoder::new(HEAD_LIMITS),
            held: Vec::new(),
            state: State::Head,
            interim_heads: 0,
            is_head_request: false,
            may_upgrade: false,
        }
    }

    /// Forgets the last reply.
    pub(super) fn begin(&mut self) {
        self.begin_head();
        self.interim_heads = 0;
        self.is_head_request = false;
        self.may_upgrade = false;
    }

    /// Learns what the reply depends on.
    pub(super) fn expect(&mut self, request: &Outgoing<'_>) {
        self.is_head_request = request.exchange.request.method == Method::Head;
        self.may_upgrade = request.upgrade;
    }

    /// Takes the next event from the front of `input`. [`ReplyEvent::NeedMore`] uses up all of it,
    /// and [`ReplyEvent::End`] does not occur.
    pub(super) fn take(&mut self, input: &[u8]) -> Result<Decoded, ReplyError> {
        if matches!(self.state, State::Interim) {
            self.begin_head();
        }
        match &mut self.state {
            _ if input.is_empty() => Ok(all(input)),
            State::Head | State::Interim => self.take_head(input),
            State::Body(body) => body.take(input),
        }
    }

    /// The stream is over.
    pub(super) fn finish(&mut self) -> Result<(), ReplyError> {
        match &self.state {
            State::Head if self.held.is_empty() && self.interim_heads == 0 => {
                Err(ReplyError("the backend sent no reply"))
            }
            State::Head | State::Interim => {
                Err(ReplyError("the reply ends before its head is complete"))
            }
            State::Body(Body::Length(1..)) => {
                Err(ReplyError("the reply is shorter than its Content-Length"))
            }
            State::Body(Body::Chunked(decoder)) if !decoder.is_end() => {
                Err(ReplyError("the reply ends before its last chunk"))
            }
            State::Body(_) => Ok(()),
        }
    }

    /// Whether the reply is known to be complete although the stream may go on.
    pub(super) fn is_complete(&self) -> bool {
        match &self.state {
            State::Body(Body::Length(0)) => true,
            State::Body(Body::Chunked(decoder)) => decoder.is_end(),
            _ => false,
        }
    }

    pub(super) fn head(&self) -> &ReplyHead {
        &self.head
    }

    /// Bytes of body that are still to come, if the head told.
    pub(super) fn remaining(&self) -> Option<u64> {
        match &self.state {
            State::Body(Body::Length(remaining)) => Some(*remaining),
            State::Body(Body::Dropped) => Some(0),
            _ => None,
        }
    }

    fn begin_head(&mut self) {
        self.head.clear();
        self.decoder.begin();
        self.held.clear();
        self.state = State::Head;
    }

    /// The head is read where it lies if it lies there in one piece, else from a copy.
    fn take_head(&mut self, input: &[u8]) -> Result<Decoded, ReplyError> {
        let held = self.held.len();
        let parsed = if held == 0 {
            self.decoder.decode(input, &mut self.head)?
        } else {
            self.held.extend_from_slice(input);
            self.decoder.decode(&self.held, &mut self.head)?
        };
        let Parsed::Complete { length, kind } = parsed else {
            if held == 0 {
                self.held.extend_from_slice(input);
            }
            return Ok(all(input));
        };
        self.held.clear();
        let event = match kind {
            Kind::Interim => self.interim()?,
            Kind::Final | Kind::LocalRedirect => self.complete()?,
        };
        // What was held did not end the head, so the head ends in this input.
        let consumed = length.saturating_sub(held);
        Ok(Decoded { consumed, event })
    }

    fn interim(&mut self) -> Result<ReplyEvent, ReplyError> {
        self.interim_heads += 1;
        if self.interim_heads > limits::INTERIM_HEADS_MAX {
            return Err(ReplyError("the reply has too many interim responses"));
        }
        self.state = State::Interim;
        Ok(ReplyEvent::Interim)
    }

    /// The head is complete: what body does it have?
    fn complete(&mut self) -> Result<ReplyEvent, ReplyError> {
        let status = self.head.status();
        let length = self.decoder.content_length();
        self.state = State::Body(match status {
            Status::SWITCHING_PROTOCOLS if !self.may_upgrade => {
                return Err(ReplyError("the reply changes the protocol unasked"));
            }
            Status::SWITCHING_PROTOCOLS => Body::UntilEnd,
            Status::NO_CONTENT | Status::NOT_MODIFIED => Body::Dropped,
            _ if self.is_head_request => Body::Dropped,
            _ if self.decoder.is_chunked() => Body::Chunked(BodyDecoder::new(
                BodyFraming::Chunked,
                BodyLimits::default(),
            )),
            _ => length.map_or(Body::UntilEnd, Body::Length),
        });
        Ok(ReplyEvent::Head)
    }
}

impl Body {
    /// `input` is not empty.
    fn take(&mut self, input: &[u8]) -> Result<Decoded, ReplyError> {
        match self {
            Body::UntilEnd => Ok(body(0, input.len())),
            Body::Dropped | Body::Length(0) => Ok(all(input)),
            Body::Length(remaining) => {
                let wanted = usize::try_from(*remaining).unwrap_or(usize::MAX);
                let taken = wanted.min(input.len());
                *remaining -= taken as u64;
                Ok(body(0, taken))
            }
            Body::Chunked(decoder) => {
                let step = decoder
                    .decode(input)
                    .map_err(|error| ReplyError(error.reason.sentence()))?;
                Ok(match step.piece {
                    Piece::Data(range) => Decoded {
                        consumed: step.consumed,
                        event: ReplyEvent::Body(range),
                    },
                    Piece::NeedMore | Piece::End => all(input),
                })
            }
        }
    }
}

fn all(input: &[u8]) -> Decoded {
    Decoded {
        consumed: input.len(),
        event: ReplyEvent::NeedMore,
    }
}

fn body(start: usize, end: usize) -> Decoded {
    Decoded {
        consumed: end,
        event: ReplyEvent::Body(start..end),
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
