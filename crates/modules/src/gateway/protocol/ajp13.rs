//! AJP 1.3, the protocol of servlet containers, which fetch the request body in packets.
//!
//! A container gets header fields instead of CGI variables. The first packet of a body is sent without being
//! asked for; each further packet answers a request for it. A container that asks after the end of the body
//! gets an empty packet.

use petrel_engine::exchange::Peer;
use petrel_engine::proto::ajp13::{
    self, AjpDecoder, Attribute, BODY_BYTES_MAX, Request, RequestEncoder, RequestTooLong,
};
use petrel_engine::proto::cgi::{HeadLimits, is_ambiguous};
use petrel_engine::proto::header_block::HeaderBlock;
use petrel_engine::proto::reply_head::ReplyHead;
use petrel_engine::proto::request_head::KnownField;

use super::reply_body::{Body, ExpectedReply};
use super::{BodyLength, Conversation, Decoded, Outgoing, ReplyError, ReplyEvent, RequestError};
use crate::gateway::limits;

/// Requests and replies over one AJP13 connection.
pub(crate) struct Ajp13Conversation {
    packets: AjpDecoder,
    head: ReplyHead,
    /// An interim head has been handed out and not been cleared yet.
    head_is_interim: bool,
    interim_heads: u32,
    expected: ExpectedReply,
    /// The body of the reply, once its head is complete.
    body: Option<Body>,
    /// How many bytes of the request body the next packet may have; 0 while the container has not asked for
    /// one.
    allowance: usize,
    /// The end of the request body has been encoded.
    is_sent: bool,
}

impl Ajp13Conversation {
    /// A conversation on a new connection.
    pub(crate) fn new() -> Ajp13Conversation {
        Ajp13Conversation {
            packets: AjpDecoder::new(HEAD_LIMITS),
            head: ReplyHead::new(),
            head_is_interim: false,
            interim_heads: 0,
            expected: ExpectedReply::default(),
            body: None,
            allowance: 0,
            is_sent: false,
        }
    }

    fn complete(&mut self) -> Result<ReplyEvent, ReplyError> {
        let (length, is_chunked) = (self.packets.content_length(), self.packets.is_chunked());
        let body = Body::new(self.head.status(), length, is_chunked, self.expected)?;
        self.body = Some(body);
        Ok(ReplyEvent::Head)
    }

    fn interim(&mut self) -> Result<ReplyEvent, ReplyError> {
        self.interim_heads += 1;
        if self.interim_heads > limits::INTERIM_HEADS_MAX {
            return Err(ReplyError("the reply has too many interim responses"));
        }
        self.head_is_interim = true;
        Ok(ReplyEvent::Interim)
    }

    fn finish(&self) -> Result<(), ReplyError> {
        match &self.body {
            Some(body) => body.finish(),
            None => Err(ReplyError("the backend sent no reply")),
        }
    }
}

impl Default for Ajp13Conversation {
    fn default() -> Ajp13Conversation {
        Ajp13Conversation::new()
    }
}

impl Conversation for Ajp13Conversation {
    fn begin(&mut self) {
        let Ajp13Conversation {
            packets,
            head,
            head_is_interim,
            interim_heads,
            expected,
            body,
            allowance,
            is_sent,
        } = self;
        packets.begin();
        head.clear();
        *head_is_interim = false;
        *interim_heads = 0;
        *expected = ExpectedReply::default();
        *body = None;
        *allowance = 0;
        *is_sent = false;
    }

    fn encode_head(
        &mut self,
        request: &Outgoing<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), RequestError> {
        self.expected = ExpectedReply::from(request);
        self.allowance = match request.body {
            BodyLength::Known(_) => BODY_BYTES_MAX,
            BodyLength::None | BodyLength::Unknown => 0,
        };
        write_request(request, out)
            .map_err(|RequestTooLong| RequestError("the request is too long for an AJP13 packet"))
    }

    fn encode_body(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        debug_assert!(bytes.len() <= self.allowance);
        ajp13::write_body(out, bytes);
        self.allowance = 0;
    }

    fn encode_end(&mut self, out: &mut Vec<u8>) {
        // Only a container that waits for a packet is told. Others know the end by the length.
        if self.allowance > 0 {
            ajp13::write_end_of_body(out);
            self.allowance = 0;
        }
        self.is_sent = true;
    }

    fn body_allowance(&self) -> usize {
        self.allowance
    }

    fn decode(&mut self, input: &[u8]) -> Result<Decoded, ReplyError> {
        if std::mem::take(&mut self.head_is_interim) {
            self.head.clear();
        }
        let mut position = 0;
        loop {
            let rest = &input[position..];
            let step = self.packets.decode(rest, &mut self.head)?;
            let begin = position;
            position += step.consumed;
            let event = match step.event {
                ajp13::AjpEvent::NeedMore => ReplyEvent::NeedMore,
                ajp13::AjpEvent::Head => self.complete()?,
                ajp13::AjpEvent::Interim => self.interim()?,
                ajp13::AjpEvent::Body(range) => {
                    let start = begin + range.start;
                    let Some(body) = &mut self.body else {
                        return Err(ajp13::ReplyError::Order.into());
                    };
                    let taken = body.take(&input[start..position])?;
                    let used = start + taken.consumed;
                    self.packets.give_back(position - used);
                    position = used;
                    match taken.event {
                        ReplyEvent::Body(range) => {
                            ReplyEvent::Body(start + range.start..start + range.end)
                        }
                        _ => continue,
                    }
                }
                ajp13::AjpEvent::GetBody(length) => {
                    // A container that asks for 0 bytes gets a packet all the same.
                    self.allowance = usize::from(length).clamp(1, BODY_BYTES_MAX);
                    ReplyEvent::WantsBody
                }
                ajp13::AjpEvent::Pong => continue,
                ajp13::AjpEvent::End { reuse } => {
                    self.finish()?;
                    let is_last = position == input.len();
                    ReplyEvent::End {
                        reusable: reuse && self.is_sent && is_last,
                    }
                }
            };
            return Ok(Decoded {
                consumed: position,
                event,
            });
        }
    }

    /// The connection was closed without END_RESPONSE: the reply is complete only if its head told its
    /// length.
    fn end_of_input(&mut self) -> Result<ReplyEvent, ReplyError> {
        self.finish()?;
        if !self.body.as_ref().is_some_and(Body::is_complete) {
            return Err(ReplyError(
                "the AJP13 container closed the connection inside its reply",
            ));
        }
        Ok(ReplyEvent::End { reusable: false })
    }

    fn head(&self) -> &ReplyHead {
        &self.head
    }

    fn take_trailers(&mut self) -> HeaderBlock {
        self.body.as_ref().map(Body::trailers).unwrap_or_default()
    }

    fn remaining(&self) -> Option<u64> {
        self.body.as_ref()?.remaining()
    }
}

fn write_request(request: &Outgoing<'_>, out: &mut Vec<u8>) -> Result<(), RequestTooLong> {
    let exchange = request.exchange;
    let (address, port) = match exchange.connection.peer {
        Peer::Ip(peer) => (peer.ip().to_canonical().to_string(), Some(peer.port())),
        Peer::Unix => (String::new(), None),
    };
    let fixed = Request {
        method: exchange.request.method.as_str().as_bytes(),
        protocol: exchange.request.head.version().as_str().as_bytes(),
        uri: exchange.request.url.path_raw(),
        remote_address: address.as_bytes(),
        server_name: exchange.server_name(),
        server_port: exchange.connection.listener.port,
        is_tls: exchange.scheme().as_str() == "https",
    };
    let mut fields = RequestEncoder::new(out, &fixed);
    write_fields(request, &mut fields);
    let mut attributes = fields.attributes();
    for (attribute, name) in [
        (Attribute::RemoteUser, "REMOTE_USER"),
        (Attribute::AuthType, "AUTH_TYPE"),
        (Attribute::Secret, "AJP13_SECRET"),
    ] {
        if let Some(value) = exchange.environment.get(name) {
            attributes.add(attribute, value);
        }
    }
    let query = exchange.request.url.query();
    if !query.is_empty() {
        attributes.add(Attribute::QueryString, query);
    }
    // Containers read these two attributes as facts about the connection, and refuse other names for them.
    if let Some(port) = port {
        attributes.add_named(
            b"AJP_REMOTE_PORT",
            itoa::Buffer::new().format(port).as_bytes(),
        );
    }
    if let Some(local) = exchange.local_address() {
        let local = local.ip().to_canonical().to_string();
        attributes.add_named(b"AJP_LOCAL_ADDR", local.as_bytes());
    }
    attributes.finish()
}

/// Writes the fields that describe the request, without those about the client's connection, and the length
/// of the body.
fn write_fields(request: &Outgoing<'_>, fields: &mut RequestEncoder<'_>) {
    let head = &request.exchange.request.head;
    match request.body {
        BodyLength::Known(length) => {
            let length = itoa::Buffer::new().format(length).to_owned();
            fields.field(b"Content-Length", length.as_bytes());
        }
        BodyLength::None if head.field(KnownField::ContentLength).is_some() => {
            fields.field(b"Content-Length", b"0");
        }
        BodyLength::None => {}
        // A container asks for packets until the end of such a body.
        BodyLength::Unknown => fields.field(b"Transfer-Encoding", b"chunked"),
    }
    for (name, value) in head.iter() {
        // A container that runs scripts would make the variable HTTP_PROXY of it.
        let is_proxy = name.eq_ignore_ascii_case(b"Proxy");
        let is_ours = KnownField::from_name(name).is_some_and(KnownField::is_written_by_sender);
        let is_named = || {
            let mut options = head.items(KnownField::Connection);
            options.any(|option| option.eq_ignore_ascii_case(name))
        };
        let is_unclear = is_ambiguous(name) && head.was_received(value);
        if !is_ours && !is_proxy && !is_unclear && !is_named() {
            fields.field(name, value);
        }
    }
}

impl From<ajp13::ReplyError> for ReplyError {
    fn from(error: ajp13::ReplyError) -> ReplyError {
        ReplyError(error.sentence())
    }
}

const HEAD_LIMITS: HeadLimits = HeadLimits {
    bytes_max: limits::REPLY_HEAD_BYTES_MAX,
    fields_max: limits::REPLY_FIELDS_MAX,
};

#[cfg(test)]
mod tests;
