//! HTTP/1.1 to backends, over persistent connections.
//!
//! The request is passed on as the client sent it, without the fields about the client's connection
//! ([`BackendHead`]) and with those that lighttpd adds: X-Forwarded-For, X-Forwarded-Proto, X-Forwarded-Host and X-Host.
//! [`header_map`](crate::gateway::header_map) makes the changes of `proxy.header`, `proxy.forwarded` and
//! their siblings. [`ResponseDecoder`] reads replies. lighttpd 1.4 closes the connection after every request;
//! here it stays open, so the request has no Connection field.

use std::rc::Rc;

use petrel_engine::proto::header_block::HeaderBlock;
use petrel_engine::proto::http1::{
    Asked, BackendHead, ResponseDecoder, ResponseError, ResponseEvent, ResponseLimits, write_chunk,
    write_host, write_last_chunk,
};
use petrel_engine::proto::method::Method;
use petrel_engine::proto::reply_head::ReplyHead;
use petrel_engine::proto::request_head::{BodyFraming, Version};
use petrel_engine::proto::status::Status;

use super::{
    BodyLength, Conversation, Decoded, Outgoing, Repeated, ReplyError, ReplyEvent, RequestError,
};
use crate::gateway::limits;
use crate::gateway::options::Extras;

/// Requests and replies of one connection, in HTTP/1.1.
pub(crate) struct HttpConversation {
    repeated: Rc<Repeated>,
    decoder: ResponseDecoder,
    /// The body is sent in chunks.
    is_chunked: bool,
    /// All of the request has been encoded.
    is_sent: bool,
    /// The request allows the connection to stay open.
    keep_alive: bool,
}

impl HttpConversation {
    /// A conversation on a new connection.
    pub(crate) fn new(repeated: &Rc<Repeated>) -> HttpConversation {
        HttpConversation {
            repeated: Rc::clone(repeated),
            decoder: ResponseDecoder::new(ResponseLimits {
                head_bytes_max: limits::REPLY_HEAD_BYTES_MAX,
                fields_max: limits::REPLY_FIELDS_MAX,
                interim_max: limits::INTERIM_HEADS_MAX,
                ..ResponseLimits::default()
            }),
            is_chunked: false,
            is_sent: false,
            keep_alive: false,
        }
    }

    /// Writes the fields but those about the connection. Without a body and without settings that change fields,
    /// they depend on the client only.
    fn write_description(&self, request: &Outgoing<'_>, head: &BackendHead<'_>, out: &mut Vec<u8>) {
        let Extras {
            header_map,
            rewriting,
            underscores,
            ..
        } = request.extras;
        let exchange = request.exchange;
        let is_plain = request.body == BodyLength::None
            && exchange.request.method.is_get_or_head()
            && !header_map.replace_http_host
            && !header_map.maps_requests()
            && !header_map.writes_forwarded()
            && rewriting.is_empty()
            && exchange.environment.iter().next().is_none()
            && !exchange.request.head.host().is_empty();
        if is_plain {
            let mut parts = self.repeated.of_http.borrow_mut();
            let options = u8::from(*underscores);
            let part = parts.of(exchange, options, |lines| describe(request, head, lines));
            if let Some(lines) = part {
                return out.extend_from_slice(lines);
            }
        }
        describe(request, head, out);
    }

    fn event(&mut self, event: ResponseEvent) -> ReplyEvent {
        match event {
            ResponseEvent::NeedMore => ReplyEvent::NeedMore,
            ResponseEvent::Interim => ReplyEvent::Interim,
            ResponseEvent::Head => {
                if self.decoder.head().status() == Status::SWITCHING_PROTOCOLS {
                    // Bytes of the tunnel are sent without chunks.
                    self.is_chunked = false;
                }
                ReplyEvent::Head
            }
            ResponseEvent::Body(range) => ReplyEvent::Body(range),
            ResponseEvent::End { reusable } => ReplyEvent::End {
                // If part of the request body is unsent, the backend would take the next request for the rest
                // of it.
                reusable: reusable && self.keep_alive && self.is_sent,
            },
        }
    }
}

impl Conversation for HttpConversation {
    fn begin(&mut self) {
        let HttpConversation {
            repeated: _,
            decoder,
            is_chunked,
            is_sent,
            keep_alive,
        } = self;
        decoder.begin(Asked {
            method: Method::Get,
            upgrade: false,
        });
        *is_chunked = false;
        *is_sent = false;
        *keep_alive = false;
    }

    fn encode_head(
        &mut self,
        request: &Outgoing<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), RequestError> {
        let head = backend_head(request);
        let is_current = head.version == Version::Http11;
        self.is_chunked = head.body == BodyFraming::Chunked;
        // Some applications send a body with their answer to HEAD. The next client must not get it as its
        // answer, so the connection is not reused.
        self.keep_alive = is_current && head.method != Method::Head;
        let upgrade = match is_current {
            true => request.host.upgrade.offered(request.exchange),
            false => None,
        };
        self.decoder.begin(Asked {
            method: head.method,
            upgrade: upgrade.is_some(),
        });
        head.write_request_line(out, |out| write_target(request, out));
        self.write_description(request, &head, out);
        head.write_connection(out, upgrade);
        out.extend_from_slice(b"\r\n");
        Ok(())
    }

    fn encode_body(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        if self.is_chunked {
            write_chunk(out, bytes);
        } else {
            out.extend_from_slice(bytes);
        }
    }

    fn encode_end(&mut self, out: &mut Vec<u8>) {
        self.encode_trailers(&HeaderBlock::new(), out);
    }

    fn encode_trailers(&mut self, trailers: &HeaderBlock, out: &mut Vec<u8>) {
        if self.is_chunked {
            write_last_chunk(out, trailers);
        }
        self.is_sent = true;
    }

    fn decode(&mut self, input: &[u8]) -> Result<Decoded, ReplyError> {
        let decoded = self.decoder.decode(input)?;
        Ok(Decoded {
            consumed: decoded.consumed,
            event: self.event(decoded.event),
        })
    }

    fn end_of_input(&mut self) -> Result<ReplyEvent, ReplyError> {
        let event = self.decoder.end_of_input()?;
        Ok(self.event(event))
    }

    fn head(&self) -> &ReplyHead {
        self.decoder.head()
    }

    fn take_trailers(&mut self) -> HeaderBlock {
        self.decoder.take_trailers()
    }

    fn remaining(&self) -> Option<u64> {
        self.decoder.remaining()
    }
}

impl From<ResponseError> for ReplyError {
    fn from(error: ResponseError) -> ReplyError {
        ReplyError(error.sentence())
    }
}

/// What a backend gets of the request, as far as it does not depend on the configuration's changes.
#[inline]
fn backend_head<'a>(request: &Outgoing<'a>) -> BackendHead<'a> {
    let map = &request.extras.header_map;
    BackendHead {
        head: &request.exchange.request.head,
        method: request.exchange.request.method,
        version: version(request),
        body: match request.body {
            BodyLength::None => BodyFraming::None,
            BodyLength::Known(length) => BodyFraming::Length(length),
            BodyLength::Unknown => BodyFraming::Chunked,
        },
        passes_ambiguous: request.extras.underscores,
        writes_forwarded: map.writes_forwarded(),
    }
}

/// HTTP/1.0 with `force-http10` in `proxy.header`. It cannot carry a body of unknown length, so such a request is
/// always HTTP/1.1.
#[inline]
fn version(request: &Outgoing<'_>) -> Version {
    let is_old = request.extras.header_map.force_http10;
    match request.body {
        BodyLength::None | BodyLength::Known(_) if is_old => Version::Http10,
        _ => Version::Http11,
    }
}

/// Writes Host, the client's other fields, the length of the body, and the fields about the client.
fn describe(request: &Outgoing<'_>, head: &BackendHead<'_>, out: &mut Vec<u8>) {
    choose_host(request, out);
    let Extras {
        header_map,
        rewriting,
        ..
    } = request.extras;
    let changes_fields = header_map.maps_requests() || !rewriting.is_empty();
    head.write_fields(out, |name, value| match changes_fields {
        true => changed_field(request, name, value),
        false => None,
    });
    head.write_body_length(out);
    header_map.write_forwarding(request.exchange, out);
}

fn write_target(request: &Outgoing<'_>, out: &mut Vec<u8>) {
    let (extras, exchange) = (request.extras, request.exchange);
    let target = exchange.request.url.target();
    match extras.rewriting.uri(exchange, target) {
        Some(rewritten) => extras.header_map.write_target(&rewritten, out),
        None => extras.header_map.write_target(target, out),
    }
}

/// Writes Host: the client's, normalised, or the one that the configuration sets instead. A client that sent
/// none (HTTP/1.0) counts as having asked for this server's own name.
fn choose_host(request: &Outgoing<'_>, out: &mut Vec<u8>) {
    let map = &request.extras.header_map;
    if map.replace_http_host {
        return write_host(out, request.host.label.as_bytes());
    }
    let exchange = request.exchange;
    let host = match exchange.request.head.host() {
        b"" => exchange.server_name(),
        host => host,
    };
    match request.extras.rewriting.field(exchange, "Host", host) {
        Some(rewritten) => write_host(out, &rewritten),
        None => write_host(out, map.request_host(host)),
    }
}

#[cold]
fn changed_field(request: &Outgoing<'_>, name: &[u8], value: &[u8]) -> Option<Vec<u8>> {
    let name = std::str::from_utf8(name).ok()?;
    let Extras {
        header_map,
        rewriting,
        ..
    } = request.extras;
    let rewritten = rewriting.field(request.exchange, name, value);
    let value = rewritten.as_deref().unwrap_or(value);
    header_map
        .request_field(request.exchange, name, value)
        .or(rewritten)
}

#[cfg(test)]
mod tests;
