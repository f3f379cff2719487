//! What the backend protocols have in common: a conversation of one request and its reply.
//!
//! A [`Conversation`] belongs to a backend connection and serves one request after the other. It
//! sees no socket and no clock: the gateway sends what it encodes and feeds it what arrives. The
//! calls of one request are, in this order: `encode_head`; `encode_body` for each stretch of the
//! body as it comes, and `encode_end`; meanwhile, from the first reply byte on, `decode` until it
//! says [`ReplyEvent::End`], and `end_of_input` if the backend closed before. `begin` makes it ready
//! for the next request.

use std::ops::Range;
use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::proto::header_block::HeaderBlock;
use petrel_engine::proto::reply_head::ReplyHead;
use petrel_engine::proto::request_head::BodyFraming;

use super::options::{BackendHost, Extras, Mode, Protocol};

pub mod ajp13;
mod cgi_reply;
pub mod fastcgi;
pub mod http;
pub(crate) mod proxy_header;
mod reply_body;
#[cfg(any(test, feature = "testing"))]
pub mod sample;
pub mod scgi;
#[cfg(test)]
mod testing;
pub(crate) mod until_close;
pub mod uwsgi;

/// A conversation on a new connection to a backend that speaks `protocol`. `constants` are those of the worker.
pub fn conversation(
    protocol: Protocol,
    constants: &Rc<fastcgi::FastCgiConstants>,
) -> Box<dyn Conversation> {
    match protocol {
        Protocol::FastCgi => Box::new(fastcgi::FastCgiConversation::new(constants)),
        Protocol::Scgi => Box::new(scgi::conversation()),
        Protocol::Uwsgi => Box::new(uwsgi::conversation()),
        Protocol::Ajp13 => Box::new(ajp13::Ajp13Conversation::new()),
        Protocol::Http => Box::new(http::HttpConversation::new()),
    }
}

/// One request and its reply, in one backend protocol.
pub trait Conversation {
    /// Forgets the last request and its reply, keeping buffers.
    fn begin(&mut self);

    /// Appends everything that goes before the body.
    ///
    /// # Errors
    /// The protocol cannot carry this request. Nothing is appended, and the connection is as good as
    /// before.
    fn encode_head(
        &mut self,
        request: &Outgoing<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), RequestError>;

    /// Appends a stretch of the body in the protocol's framing. `bytes` is not empty, and not longer
    /// than [`Conversation::body_allowance`].
    fn encode_body(&mut self, bytes: &[u8], out: &mut Vec<u8>);

    /// Appends what marks the end of the body, also of one that has no bytes. Called again for every
    /// [`ReplyEvent::WantsBody`] that comes after it.
    fn encode_end(&mut self, out: &mut Vec<u8>);

    /// The same for a body that ends with `trailers`. Only HTTP/1.1 has a place for them, behind chunks.
    fn encode_trailers(&mut self, trailers: &HeaderBlock, out: &mut Vec<u8>) {
        let _ = trailers;
        self.encode_end(out);
    }

    /// Bytes of the body that may be encoded now. Only AJP13, whose backends ask for them,
    /// says less than everything.
    fn body_allowance(&self) -> usize {
        usize::MAX
    }

    /// Takes the next event from the front of `input`, which holds all bytes received and not
    /// consumed so far. Called again and again until it says [`ReplyEvent::NeedMore`].
    ///
    /// # Errors
    /// The backend does not keep to the protocol: the connection is of no use any more.
    fn decode(&mut self, input: &[u8]) -> Result<Decoded, ReplyError>;

    /// The backend closed the connection. What it sent before and no event has used up comes once more.
    fn input_ends(&mut self) {}

    /// The backend closed the connection. [`ReplyEvent::End`] if the reply is complete by that.
    ///
    /// # Errors
    /// The reply is cut off.
    fn end_of_input(&mut self) -> Result<ReplyEvent, ReplyError>;

    /// The head of the reply; complete from [`ReplyEvent::Head`] on, and during
    /// [`ReplyEvent::Interim`] that of the interim response.
    fn head(&self) -> &ReplyHead;

    /// Bytes of reply body that are still to come, if the head told.
    fn remaining(&self) -> Option<u64>;

    /// Takes the trailers of a reply that is complete, as [`trailers`](petrel_engine::proto::trailers) lets them pass.
    fn take_trailers(&mut self) -> HeaderBlock {
        HeaderBlock::new()
    }

    /// Whether the head is a local redirect: a Location that is a path, and no status (RFC 3875
    /// 6.2.2).
    fn is_local_redirect(&self) -> bool {
        false
    }

    /// Bytes for the error log that were not handed out, because there were too many.
    fn log_bytes_dropped(&self) -> u64 {
        0
    }
}

/// A request on its way to a backend.
pub struct Outgoing<'a> {
    /// The request, with URL, physical path, environment and client.
    pub exchange: &'a Exchange,
    /// The backend's options.
    pub host: &'a BackendHost,
    /// What the directives of this scope change about the request and its fields.
    pub extras: &'a Extras,
    /// The body's length.
    pub body: BodyLength,
}

/// What is known of a request body's length when its head is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// There is no body.
    None,
    /// That many bytes, not 0.
    Known(u64),
    /// Only HTTP/1.1 can do that: sent in chunks.
    Unknown,
}

impl BodyLength {
    /// What `host` is told of the body of a request. Only what is complete, or announced, has a length.
    pub(super) fn of(exchange: &Exchange, host: &BackendHost) -> BodyLength {
        let body = &exchange.request.body;
        let length = match (body.is_complete(), exchange.body_framing()) {
            // They stand behind chunks.
            (true, BodyFraming::Chunked)
                if host.protocol == Protocol::Http && !body.trailers().is_empty() =>
            {
                None
            }
            (true, _) => Some(body.received()),
            (false, BodyFraming::Length(length)) => Some(length),
            (false, _) => None,
        };
        match length {
            // FastCGI 1.0, section 6.3.
            _ if host.mode == Mode::Authorizer => BodyLength::None,
            Some(0) => BodyLength::None,
            Some(length) => BodyLength::Known(length),
            None => BodyLength::Unknown,
        }
    }
}

/// What came out of the front of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// Bytes of the input that are used up.
    pub consumed: usize,
    /// What they meant.
    pub event: ReplyEvent,
}

/// What a reply consists of. Ranges are in the input given to `decode`, in front of `consumed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyEvent {
    /// Nothing more can be said before more bytes come.
    NeedMore,
    /// An interim response (1xx, not 101): its head is in [`Conversation::head`].
    Interim,
    /// The head of the reply is complete. With status 101 every byte behind it is body.
    Head,
    /// A stretch of the body; not empty.
    Body(Range<usize>),
    /// What the application said for the error log (FastCGI's STDERR); not empty.
    Log(Range<usize>),
    /// More of the request body may be encoded ([`Conversation::body_allowance`]), or its end, also
    /// if the end was encoded before.
    WantsBody,
    /// The reply is complete.
    End {
        /// Another request may be sent on this connection.
        reusable: bool,
    },
}

/// Why a request cannot be sent in this protocol: a sentence for the log without a full stop.
/// The client made it too long (431).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestError(pub(crate) &'static str);

/// What was wrong with a reply: a sentence for the log without a full stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyError(pub &'static str);
