//! The body of a reply whose protocol frames it: how much of it there is, and what of it goes on.
//!
//! What FastCGI, SCGI, uwsgi, AJP13 and CGI have in common once a head is complete. The protocol says
//! where the body ends; its head may have said so, too, and must not have lied.

use petrel_engine::proto::header_block::HeaderBlock;
use petrel_engine::proto::http1::{BodyDecoder, BodyLimits, Piece};
use petrel_engine::proto::method::Method;
use petrel_engine::proto::request_head::BodyFraming;
use petrel_engine::proto::status::Status;
use petrel_engine::proto::trailers;

use super::{Decoded, Outgoing, ReplyError, ReplyEvent};

/// What about a request matters for the body of its reply.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ExpectedReply {
    /// The request was HEAD: whatever the application sends as body is not wanted.
    is_head_request: bool,
    /// The protocol of the connection may be changed.
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

/// How much body there is, and what to do with it.
pub(super) enum Body {
    /// All there is until the reply ends.
    UntilEnd,
    /// That many bytes more; what comes behind them is dropped.
    Length(u64),
    /// In chunks that the application made itself.
    Chunked(BodyDecoder),
    /// The reply has none by its status or by the method; what comes is dropped.
    Dropped,
}

impl Body {
    /// The body behind a head with this status and Content-Length.
    ///
    /// # Errors
    /// The reply changes the protocol although the request did not ask for it.
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

    /// Takes the next event from the front of `input`, which is not empty and is body.
    /// [`ReplyEvent::NeedMore`] uses up all of it.
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

    /// The protocol says that the body is over.
    ///
    /// # Errors
    /// Something is missing.
    pub(super) fn finish(&self) -> Result<(), ReplyError> {
        match self {
            Body::Length(1..) => Err(ReplyError("the reply is shorter than its Content-Length")),
            Body::Chunked(decoder) if !decoder.is_end() => {
                Err(ReplyError("the reply ends before its last chunk"))
            }
            _ => Ok(()),
        }
    }

    /// Whether the body is known to be over, whatever the protocol says.
    pub(super) fn is_complete(&self) -> bool {
        match self {
            Body::Length(0) => true,
            Body::Chunked(decoder) => decoder.is_end(),
            _ => false,
        }
    }

    /// What stands behind the last chunk and may go on.
    pub(super) fn trailers(&self) -> HeaderBlock {
        match self {
            Body::Chunked(decoder) => trailers::of_reply(decoder.trailer_lines()),
            _ => HeaderBlock::new(),
        }
    }

    /// Bytes that are still to come, if the head told.
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
