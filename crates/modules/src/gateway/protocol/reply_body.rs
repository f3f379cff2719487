//! The body of a reply whose protocol marks its end: how long it is, and how much of it is passed on.
//!
//! FastCGI, SCGI, uwsgi, AJP13 and CGI use this once a head is complete. The protocol says where the body
//! ends. The head may have told its length as well; then both must agree.

use petrel_engine::proto::header_block::HeaderBlock;
use petrel_engine::proto::http1::{BodyDecoder, BodyLimits, Piece};
use petrel_engine::proto::method::Method;
use petrel_engine::proto::request_head::BodyFraming;
use petrel_engine::proto::status::Status;
use petrel_engine::proto::trailers;

use super::{Decoded, Outgoing, ReplyError, ReplyEvent};

/// What the body of a reply depends on in its request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExpectedReply {
    /// The request was a HEAD: a body that the application sends is dropped.
    is_head_request: bool,
    /// The reply may change the protocol of the connection.
    may_upgrade: bool,
}

impl From<&Outgoing<'_>> for ExpectedReply {
    fn from(request: &Outgoing<'_>) -> ExpectedReply {
        ExpectedReply {
            is_head_request: request.exchange.request.method == Method::Head,
            may_upgrade: request.host.upgrade.offered(request.exchange).is_some(),
        }
    }
}

/// How long the body is, and what to do with it.
pub(super) enum Body {
    /// Everything up to the end of the reply.
    UntilEnd,
    /// This many more bytes; what follows them is dropped.
    Length(u64),
    /// Chunks that the application made itself.
    Chunked(BodyDecoder),
    /// None, because of the status or the method; what arrives is dropped.
    Dropped,
}

impl Body {
    /// The body that follows a head with this status and Content-Length.
    ///
    /// # Errors
    /// The reply changes the protocol although the request did not ask for that.
    pub(super) fn new(
        status: Status,
        length: Option<u64>,
        is_chunked: bool,
        expected: ExpectedReply,
    ) -> Result<Body, ReplyError> {
        Ok(match status {
            Status::SWITCHING_PROTOCOLS if !expected.may_upgrade => {
                return Err(ReplyError("the reply changes the protocol unasked"));
            }
            Status::SWITCHING_PROTOCOLS => Body::UntilEnd,
            Status::NO_CONTENT | Status::NOT_MODIFIED => Body::Dropped,
            _ if expected.is_head_request => Body::Dropped,
            _ if is_chunked => {
                let limits = BodyLimits::default();
                Body::Chunked(BodyDecoder::of_reply(BodyFraming::Chunked, limits))
            }
            _ => length.map_or(Body::UntilEnd, Body::Length),
        })
    }

    /// Takes the next event from the front of `input`, which is part of the body and not empty.
    /// [`ReplyEvent::NeedMore`] consumes all of it.
    pub(super) fn take(&mut self, input: &[u8]) -> Result<Decoded, ReplyError> {
        match self {
            Body::UntilEnd => Ok(body(input.len())),
            Body::Dropped | Body::Length(0) => Ok(dropped(input)),
            Body::Length(remaining) => {
                let wanted = usize::try_from(*remaining).unwrap_or(usize::MAX);
                let taken = wanted.min(input.len());
                *remaining -= taken as u64;
                Ok(body(taken))
            }
            Body::Chunked(decoder) => {
                let step = decoder
                    .decode(input)
                    .map_err(|error| ReplyError(error.sentence().trim_end_matches('.')))?;
                Ok(match step.piece {
                    Piece::Data(range) => Decoded {
                        consumed: step.consumed,
                        event: ReplyEvent::Body(range),
                    },
                    Piece::NeedMore | Piece::End => dropped(input),
                })
            }
        }
    }

    /// The protocol says that the body has ended.
    ///
    /// # Errors
    /// Part of the body is missing.
    pub(super) fn finish(&self) -> Result<(), ReplyError> {
        match self {
            Body::Length(1..) => Err(ReplyError("the reply is shorter than its Content-Length")),
            Body::Chunked(decoder) if !decoder.is_end() => {
                Err(ReplyError("the reply ends before its last chunk"))
            }
            _ => Ok(()),
        }
    }

    /// Whether the body is known to be complete, before the protocol says so.
    pub(super) fn is_complete(&self) -> bool {
        match self {
            Body::Length(0) => true,
            Body::Chunked(decoder) => decoder.is_end(),
            _ => false,
        }
    }

    /// Trailers that may be passed on to the client.
    pub(super) fn trailers(&self) -> HeaderBlock {
        match self {
            Body::Chunked(decoder) => trailers::of_reply(decoder.trailer_lines()),
            _ => HeaderBlock::new(),
        }
    }

    /// How many bytes are still to come, if the head has said so.
    pub(super) fn remaining(&self) -> Option<u64> {
        match self {
            Body::Length(remaining) => Some(*remaining),
            Body::Dropped => Some(0),
            Body::UntilEnd | Body::Chunked(_) => None,
        }
    }
}

fn body(length: usize) -> Decoded {
    Decoded {
        consumed: length,
        event: ReplyEvent::Body(0..length),
    }
}

fn dropped(input: &[u8]) -> Decoded {
    Decoded {
        consumed: input.len(),
        event: ReplyEvent::NeedMore,
    }
}
