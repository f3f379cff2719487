//! What the backend protocols have in common: a conversation of requests and replies.
//!
//! A [`Conversation`] belongs to a connection to a backend and serves one request after the other. It has no
//! socket and no clock: the gateway sends the bytes that it encodes, and passes in the bytes that arrive. For
//! each request the calls are, in this order: `begin`; `encode_head`; `encode_body` for each piece of the
//! body as it arrives, and `encode_end`; meanwhile, from the first byte of the reply on, `decode` until it
//! returns [`ReplyEvent::End`], or `end_of_input` if the backend closes the connection first.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::proto::header_block::HeaderBlock;
use petrel_engine::proto::reply_head::ReplyHead;
use petrel_engine::proto::request_head::BodyFraming;

use super::options::{BackendHost, Extras, Mode, Protocol};
use client_part::ClientParts;

pub mod ajp13;
mod cgi_reply;
mod client_part;
pub mod fastcgi;
pub mod http;
pub(crate) mod proxy_header;
mod reply_body;
pub mod scgi;
#[cfg(test)]
mod testing;
pub(crate) mod until_close;
pub mod uwsgi;

/// Encoded parts of requests that occur again and again, for all conversations of a worker.
#[derive(Default)]
pub struct Repeated {
    constants: RefCell<fastcgi::EncodedConstants>,
    of_fastcgi: RefCell<ClientParts>,
    of_http: RefCell<ClientParts>,
}

/// A conversation for a new connection to a backend with this `protocol`. `repeated` belongs to the worker.
pub fn conversation(protocol: Protocol, repeated: &Rc<Repeated>) -> Box<dyn Conversation> {
    match protocol {
        Protocol::FastCgi => Box::new(fastcgi::FastCgiConversation::new(repeated)),
        Protocol::Scgi => Box::new(scgi::conversation()),
        Protocol::Uwsgi => Box::new(uwsgi::conversation()),
        Protocol::Ajp13 => Box::new(ajp13::Ajp13Conversation::new()),
        Protocol::Http => Box::new(http::HttpConversation::new(repeated)),
    }
}

/// One request and its reply, in one backend protocol.
pub trait Conversation {
    /// Forgets the previous request and reply, but keeps its buffers.
    fn begin(&mut self);

    /// Whether the backend is asked behind the end of the request when it has nothing to do any more. Only
    /// FastCGI can.
    fn ask(&mut self, behind: bool) {
        debug_assert!(!behind, "this protocol has no such question");
    }

    /// Appends everything that comes before the body.
    ///
    /// # Errors
    /// The protocol cannot carry this request. Nothing was appended, and the connection can still be used.
    fn encode_head(
        &mut self,
        request: &Outgoing<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), RequestError>;

    /// Appends a piece of the body in the protocol's framing. `bytes` is not empty and not longer than
    /// [`Conversation::body_allowance`].
    fn encode_body(&mut self, bytes: &[u8], out: &mut Vec<u8>);

    /// Appends the end of the body, even if the body was empty. Called again for each
    /// [`ReplyEvent::WantsBody`] that comes after it.
    fn encode_end(&mut self, out: &mut Vec<u8>);

    /// Appends the end of a body with `trailers`. Only HTTP/1.1 can carry them, after the last chunk.
    fn encode_trailers(&mut self, trailers: &HeaderBlock, out: &mut Vec<u8>) {
        let _ = trailers;
        self.encode_end(out);
    }

    /// How many bytes of the body may be encoded now. Only AJP13 sets a limit, because its backends ask for
    /// each packet.
    fn body_allowance(&self) -> usize {
        usize::MAX
    }

    /// Takes the next event from the front of `input`, which has all bytes that were received and not
    /// consumed. Called again until it returns [`ReplyEvent::NeedMore`].
    ///
    /// # Errors
    /// The backend violates the protocol: the connection cannot be used any more.
    fn decode(&mut self, input: &[u8]) -> Result<Decoded, ReplyError>;

    /// The backend has closed the connection. `decode` is then called once more with the bytes that were not
    /// consumed.
    fn input_ends(&mut self) {}

    /// The backend has closed the connection. Returns [`ReplyEvent::End`] if that completes the reply.
    ///
    /// # Errors
    /// The reply is cut off.
    fn end_of_input(&mut self) -> Result<ReplyEvent, ReplyError>;

    /// The head of the reply: complete after [`ReplyEvent::Head`]; after [`ReplyEvent::Interim`] it is the
    /// head of the interim response.
    fn head(&self) -> &ReplyHead;

    /// How many bytes of the reply's body are still to come, if the head has said so.
    fn remaining(&self) -> Option<u64>;

    /// Takes the trailers of a complete reply, as far as [`trailers`](petrel_engine::proto::trailers) lets
    /// them pass.
    fn take_trailers(&mut self) -> HeaderBlock {
        HeaderBlock::new()
    }

    /// Whether the head is a local redirect: a Location that is a path, and no status (RFC 3875
    /// 6.2.2).
    fn is_local_redirect(&self) -> bool {
        false
    }

    /// How many bytes for the error log were dropped because there were too many.
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

/// What is known about the length of a request body when the head is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyLength {
    /// There is no body.
    None,
    /// That many bytes, not 0.
    Known(u64),
    /// Unknown, so the body is sent in chunks; only HTTP/1.1 can do that.
    Unknown,
}

impl BodyLength {
    /// The length of the request body as `host` is told it. It is known if the body is complete or announced
    /// by Content-Length.
    pub(super) fn of(exchange: &Exchange, host: &BackendHost) -> BodyLength {
        let body = &exchange.request.body;
        let length = match (body.is_complete(), exchange.body_framing()) {
            // Trailers can only follow chunks.
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
            // An authorizer gets no body (FastCGI 1.0, section 6.3).
            _ if host.mode == Mode::Authorizer => BodyLength::None,
            Some(0) => BodyLength::None,
            Some(length) => BodyLength::Known(length),
            None => BodyLength::Unknown,
        }
    }
}

/// The result of decoding from the front of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// How many bytes of the input were consumed.
    pub consumed: usize,
    /// What they mean.
    pub event: ReplyEvent,
}

/// A part of a reply. Ranges refer to the input of `decode`, and end before `consumed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyEvent {
    /// More bytes are needed.
    NeedMore,
    /// An interim response (1xx, not 101): its head is in [`Conversation::head`].
    Interim,
    /// The head of the reply is complete. With status 101 every byte behind it is body.
    Head,
    /// A piece of the body; not empty.
    Body(Range<usize>),
    /// Text from the application for the error log (FastCGI's STDERR); not empty.
    Log(Range<usize>),
    /// More of the request body may be encoded ([`Conversation::body_allowance`]), or its end, even if the
    /// end was encoded before.
    WantsBody,
    /// The reply is complete.
    End {
        /// Whether another request may be sent on this connection.
        reusable: bool,
    },
}

/// Why this protocol cannot carry a request: a sentence for the log without a full stop. The client gets 431.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestError(pub(crate) &'static str);

/// What was wrong with a reply: a sentence for the log without a full stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyError(pub &'static str);
