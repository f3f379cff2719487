//! HTTP/1.1 to backends, over persistent connections.
//!
//! The request is passed on as the client sent it, without the fields about the client's connection (RFC 9110
//! 7.6.1) and with those that lighttpd adds: X-Forwarded-For, X-Forwarded-Proto, X-Forwarded-Host and X-Host.
//! [`header_map`](crate::gateway::header_map) makes the changes of `proxy.header`, `proxy.forwarded` and
//! their siblings. [`ResponseDecoder`] reads replies. lighttpd 1.4 closes the connection after every request;
//! here it stays open, so the request has no Connection field.

use std::rc::Rc;

use petrel_engine::exchange::Exchange;
use petrel_engine::proto::header_block::HeaderBlock;
use petrel_engine::proto::http1::{
    Asked, ResponseDecoder, ResponseError, ResponseEvent, ResponseLimits, write_chunk,
    write_content_length, write_last_chunk,
};
use petrel_engine::proto::method::Method;
use petrel_engine::proto::reply_head::ReplyHead;
use petrel_engine::proto::request_head::KnownField;
use petrel_engine::proto::status::Status;

use super::{
    BodyLength, Conversation, Decoded, Outgoing, Repeated, ReplyError, ReplyEvent, RequestError,
};
use crate::gateway::environment::is_ambiguous;
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
    fn write_description(&self, request: &Outgoing<'_>, out: &mut Vec<u8>) {
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
            let part = parts.of(exchange, options, |lines| describe(request, lines));
            if let Some(lines) = part {
                return out.extend_from_slice(lines);
            }
        }
        describe(request, out);
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
        let style = Style::of(request);
        self.is_chunked = request.body == BodyLength::Unknown;
        let method = request.exchange.request.method;
        // Some applications send a body with their answer to HEAD. The next client must not get it as its
        // answer, so the connection is not reused.
        self.keep_alive = style == Style::Http11 && method != Method::Head;
        self.decoder.begin(Asked {
            method,
            upgrade: style == Style::Http11
                && request.host.upgrade.offered(request.exchange).is_some(),
        });
        write_request_line(request, style, out);
        self.write_description(request, out);
        write_connection(request, style, out);
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

/// The version of HTTP in which a backend is sent the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Http11,
    /// `force-http10` in `proxy.header`: one request per connection, no chunks, no upgrade.
    Http10,
}

impl Style {
    /// HTTP/1.0 cannot carry a body of unknown length, so such a request is always HTTP/1.1.
    fn of(request: &Outgoing<'_>) -> Style {
        let is_old = request.extras.header_map.force_http10;
        match request.body {
            BodyLength::None | BodyLength::Known(_) if is_old => Style::Http10,
            _ => Style::Http11,
        }
    }
}

/// Writes Host, the client's other fields, the length of the body, and the fields about the client.
fn describe(request: &Outgoing<'_>, out: &mut Vec<u8>) {
    write_host(request, out);
    write_fields(request, out);
    write_body_length(request, out);
    let map = &request.extras.header_map;
    map.write_forwarding(request.exchange, out);
}

fn write_request_line(request: &Outgoing<'_>, style: Style, out: &mut Vec<u8>) {
    let exchange = request.exchange;
    out.extend_from_slice(exchange.request.method.as_str().as_bytes());
    out.push(b' ');
    write_target(request.extras, exchange, out);
    out.extend_from_slice(match style {
        Style::Http11 => b" HTTP/1.1\r\n",
        Style::Http10 => b" HTTP/1.0\r\n",
    });
}

fn write_target(extras: &Extras, exchange: &Exchange, out: &mut Vec<u8>) {
    let target = exchange.request.url.target();
    match extras.rewriting.uri(exchange, target) {
        Some(rewritten) => extras.header_map.write_target(&rewritten, out),
        None => extras.header_map.write_target(target, out),
    }
}

/// Writes Host: the client's, normalised, or the one that the configuration sets instead. A client that sent
/// none (HTTP/1.0) counts as having asked for this server's own name.
fn write_host(request: &Outgoing<'_>, out: &mut Vec<u8>) {
    let map = &request.extras.header_map;
    let exchange = request.exchange;
    out.extend_from_slice(b"Host: ");
    if map.replace_http_host {
        out.extend_from_slice(request.host.label.as_bytes());
    } else {
        let host = match exchange.request.head.host() {
            b"" => exchange.server_name(),
            host => host,
        };
        match request.extras.rewriting.field(exchange, "Host", host) {
            Some(rewritten) => out.extend_from_slice(&rewritten),
            None => out.extend_from_slice(map.request_host(host)),
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes the client's fields, without those about its connection and those that this server writes itself.
fn write_fields(request: &Outgoing<'_>, out: &mut Vec<u8>) {
    let head = &request.exchange.request.head;
    let extras = request.extras;
    let names_fields = head.connection_names_fields();
    let changes_fields = extras.header_map.maps_requests() || !extras.rewriting.is_empty();
    for (known, name, value) in head.iter_with_known() {
        if is_left_out(request, known, name, value)
            || (names_fields && is_named(request.exchange, name, value))
        {
            continue;
        }
        out.extend_from_slice(name);
        out.extend_from_slice(b": ");
        let changed = match changes_fields {
            true => changed_field(request, name, value),
            false => None,
        };
        out.extend_from_slice(changed.as_deref().unwrap_or(value));
        out.extend_from_slice(b"\r\n");
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

/// Whether the backend does not get this field of the client.
#[inline]
fn is_left_out(
    request: &Outgoing<'_>,
    known: Option<KnownField>,
    name: &[u8],
    value: &[u8],
) -> bool {
    match known {
        // It announces the fields after the last chunk, so it goes with chunks only.
        Some(KnownField::Trailer) => request.body != BodyLength::Unknown,
        Some(field) if field.is_written_by_sender() => true,
        Some(
            KnownField::Host
            | KnownField::XForwardedFor
            | KnownField::XForwardedProto
            | KnownField::XForwardedHost,
        ) => true,
        Some(KnownField::Forwarded) => request.extras.header_map.writes_forwarded(),
        Some(_) => false,
        // A backend that runs scripts would make the variable HTTP_PROXY of `Proxy`. `X-Host` is written by
        // this server.
        None => {
            name.eq_ignore_ascii_case(b"Proxy")
                || name.eq_ignore_ascii_case(b"X-Host")
                || (is_ambiguous(name) && is_refused(request, name, value))
        }
    }
}

/// Called for fields that a backend could confuse with others when it turns their names into variables. Such
/// a field of the client is dropped unless the configuration passes them on, and any such field is dropped if
/// it could be confused with a field that this server writes.
#[cold]
fn is_refused(request: &Outgoing<'_>, name: &[u8], value: &[u8]) -> bool {
    let ours: [&[u8]; 8] = [
        b"X-Forwarded-For",
        b"X-Forwarded-Proto",
        b"X-Forwarded-Host",
        b"X-Host",
        b"Content-Length",
        b"Transfer-Encoding",
        b"Upgrade",
        b"HTTP2-Settings",
    ];
    let dash = |byte: &u8| match byte.is_ascii_alphanumeric() {
        true => *byte,
        false => b'-',
    };
    let dashed: Vec<u8> = name.iter().map(dash).collect();
    ours.iter().any(|ours| ours.eq_ignore_ascii_case(&dashed))
        || (!request.extras.underscores && is_the_clients(request.exchange, value))
}

/// Whether the client's Connection names this field, so that it is not passed on. If a module has set its
/// value it is passed on: a client cannot take away what the configuration tells the backend.
#[cold]
fn is_named(exchange: &Exchange, name: &[u8], value: &[u8]) -> bool {
    let mut options = exchange.request.head.items(KnownField::Connection);
    is_the_clients(exchange, value) && options.any(|option| option.eq_ignore_ascii_case(name))
}

/// Whether the client sent this value. Values in the received head are the client's; others were set by
/// modules.
pub(super) fn is_the_clients(exchange: &Exchange, value: &[u8]) -> bool {
    let sent = exchange.request.head.head_bytes().as_ptr_range();
    sent.contains(&value.as_ptr())
}

/// Writes the length of the body. A method that usually has a body says so if there is none (RFC 9110 8.6).
fn write_body_length(request: &Outgoing<'_>, out: &mut Vec<u8>) {
    match request.body {
        BodyLength::Known(length) => write_content_length(out, length),
        BodyLength::Unknown => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        BodyLength::None if request.exchange.request.method.is_get_or_head() => {}
        BodyLength::None => write_content_length(out, 0),
    }
}

/// Writes Connection and the fields that belong to it: usually none, which keeps the connection open.
fn write_connection(request: &Outgoing<'_>, style: Style, out: &mut Vec<u8>) {
    if style == Style::Http10 {
        return out.extend_from_slice(b"Connection: close\r\n");
    }
    let exchange = request.exchange;
    // If the client accepts trailers, the backend may send them: they will reach the client (RFC 9110
    // 10.1.4).
    let wants_trailers = exchange.request.head.asks_for_trailers();
    let upgrade = request.host.upgrade.offered(exchange);
    match (wants_trailers, upgrade.is_some()) {
        (false, false) => return,
        (true, false) => out.extend_from_slice(b"Connection: TE\r\n"),
        (false, true) => out.extend_from_slice(b"Connection: upgrade\r\n"),
        (true, true) => out.extend_from_slice(b"Connection: upgrade, TE\r\n"),
    }
    if wants_trailers {
        out.extend_from_slice(b"TE: trailers\r\n");
    }
    if let Some(protocol) = upgrade {
        out.extend_from_slice(b"Upgrade: ");
        out.extend_from_slice(protocol);
        out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests;
