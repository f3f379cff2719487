//! Makes the head of a backend's reply the head of the answer.

use std::fmt;
use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::ledger::Stage;
use petrel_engine::module::Outcome;
use petrel_engine::proto::header_block::HeaderBlock;
use petrel_engine::proto::method::Method;
use petrel_engine::proto::reply_head::ReplyHead;
use petrel_engine::proto::request_head::{KnownField, Version};
use petrel_engine::proto::status::Status;
use petrel_engine::response::Own;
use petrel_engine::settings::ReplyStreaming;

use super::offload::{self, Offload, Opening};
use super::options::{BackendHost, Gateway, Mode};
use super::protocol::Conversation;
use super::reroute;

/// What to do with the body that follows a head.
pub(super) enum ReplyVerdict {
    /// Collect it; the answer is sent when it is complete.
    Collect,
    /// Collect it; the answer is sent when it is complete, long, or late.
    CollectBriefly,
    /// Send it to the client piece by piece as it arrives.
    Stream,
    /// Turn the connection into a tunnel.
    Tunnel,
    /// Discard it; the exchange goes on with this outcome.
    Discard(Outcome),
    /// Discard it; the answer is a file that a disk thread has to open.
    Open(Box<Opening>),
    /// Discard the reply, which is invalid: the answer is 502.
    Refuse,
}

/// Copies the head of a reply into `exchange.response`.
pub(super) fn accept(
    exchange: &mut Exchange,
    gateway: &Gateway,
    host: &Rc<BackendHost>,
    conversation: &dyn Conversation,
) -> ReplyVerdict {
    let head = conversation.head();
    let (fields, fields_max) = (head.len(), exchange.settings.core.reply_fields_max);
    if fields > fields_max {
        let why = format_args!(
            "its reply has {fields} header fields, more than server.max-response-fields ({fields_max})"
        );
        return refuse(exchange, host, why);
    }
    // Any other reply of an authorizer is the answer.
    if host.mode == Mode::Authorizer && head.status() == Status::OK {
        authorize(exchange, head);
        return ReplyVerdict::Discard(Outcome::Next);
    }
    if gateway.extras.x_rewrite
        && let Some(begun) = reroute::follow(exchange, head)
    {
        return match begun {
            Ok(outcome) => ReplyVerdict::Discard(outcome),
            Err(reason) => refuse(exchange, host, format_args!("{reason}")),
        };
    }
    if gateway.extras.local_redirect
        && conversation.is_local_redirect()
        && let Some(outcome) = offload::local_redirect(exchange, head)
    {
        return ReplyVerdict::Discard(outcome);
    }
    let is_tunnel = head.status() == Status::SWITCHING_PROTOCOLS;
    if is_tunnel && !host.upgrade.opens_tunnel(exchange, head) {
        let why = format_args!("its 101 does not name the protocol that the client asked for");
        return refuse(exchange, host, why);
    }
    copy(exchange, gateway, host, head);
    if is_tunnel {
        return ReplyVerdict::Tunnel;
    }
    match offload::offload(exchange, host, head) {
        Offload::None => {}
        Offload::Answered(outcome) => return ReplyVerdict::Discard(outcome),
        Offload::Opening(opening) => return ReplyVerdict::Open(opening),
        Offload::Refused => return ReplyVerdict::Refuse,
    }
    if exchange.request.head.method() == Method::Head {
        let length = announced_length(head);
        exchange.response.announced_length = length;
        exchange.response.is_length_unknown = length.is_none();
    }
    match exchange.settings.core.stream_response_body {
        ReplyStreaming::AtOnce | ReplyStreaming::Bounded => ReplyVerdict::Stream,
        _ if wants_streaming(head) => ReplyVerdict::Stream,
        ReplyStreaming::Soon if is_needed_whole(exchange, conversation) => ReplyVerdict::Collect,
        ReplyStreaming::Soon => ReplyVerdict::CollectBriefly,
        ReplyStreaming::WhenComplete => ReplyVerdict::Collect,
    }
}

/// Whether the reply is completed before it is sent, although it could be sent in pieces.
fn is_needed_whole(exchange: &Exchange, conversation: &dyn Conversation) -> bool {
    let is_cut = conversation.head().status() == Status::OK && asks_for_part(exchange);
    // Where the end of the connection is the end of the body, the client cannot see that something is missing.
    let ends_with_connection = speaks_http10(exchange) && conversation.remaining().is_none();
    is_cut || ends_with_connection || has_whole_reader(exchange)
}

/// Whether [`is_needed_whole`] may be true for a reply to this request.
pub(super) fn may_be_needed_whole(exchange: &Exchange) -> bool {
    asks_for_part(exchange) || speaks_http10(exchange) || has_whole_reader(exchange)
}

/// Whether the client asks for a part of the body. Petrel can cut it only from a body that is complete.
fn asks_for_part(exchange: &Exchange) -> bool {
    exchange.settings.core.range_requests
        && exchange.request.head.field(KnownField::Range).is_some()
}

fn speaks_http10(exchange: &Exchange) -> bool {
    exchange.request.head.version() < Version::Http11 || !exchange.settings.core.http11
}

/// Whether a script or a module of this server reads the reply, and expects it to be whole or an error.
fn has_whole_reader(exchange: &Exchange) -> bool {
    exchange.is_subrequest() || exchange.settings.wants_whole_replies
}

/// Logs why the configuration does not let the client have this reply.
fn refuse(exchange: &Exchange, host: &BackendHost, why: fmt::Arguments<'_>) -> ReplyVerdict {
    let stage = Stage::BackendBody.name();
    exchange.log_error(stage, format_args!("{why} backend={}", host.label));
    ReplyVerdict::Refuse
}

/// Sends an interim response (1xx) to the client.
pub(crate) fn inform(exchange: &mut Exchange, head: &ReplyHead) {
    let mut fields = HeaderBlock::new();
    for (name, value) in head.fields().filter(|(name, _)| !is_of_connection(name)) {
        fields.append(name, value);
    }
    exchange.inform(head.status(), fields);
}

fn copy(exchange: &mut Exchange, gateway: &Gateway, host: &BackendHost, head: &ReplyHead) {
    exchange.response.answer(head.status());
    // The answer is the application's, even an error without a body: no error page replaces it.
    exchange.response.is_final = true;
    let extras = &gateway.extras;
    if extras.rewriting.maps_replies() || extras.header_map.maps_replies() {
        for (name, value) in head.fields() {
            if is_passed_on(exchange, host, head, name) {
                let mapped = mapped(exchange, gateway, host, name, value);
                let value = mapped.as_deref().unwrap_or(value);
                exchange.response.append(name, value);
            }
        }
        return;
    }
    let own = Own {
        date: head.has_date(),
        server: head.has_server(),
    };
    let plain = |exchange: &mut Exchange, lines: &[u8]| {
        exchange.response.extend_from_wire_with(lines, own);
    };
    head.hand_out(exchange, plain, |exchange, name, value| {
        if is_passed_on(exchange, host, head, name) {
            exchange.response.append(name, value);
        }
    });
}

/// Whether the client gets the field `name` of the reply `head`.
fn is_passed_on(exchange: &Exchange, host: &BackendHost, head: &ReplyHead, name: &str) -> bool {
    let is_wanted = || match name {
        _ if name.eq_ignore_ascii_case("upgrade") => head.status() == Status::SWITCHING_PROTOCOLS,
        _ if name.eq_ignore_ascii_case("trailer") => exchange.request.head.takes_trailers(),
        _ => false,
    };
    (!is_of_connection(name) || is_wanted()) && !offload::is_withheld(name, host)
}

/// The field's value as the configuration changes it; `None` if it does not.
fn mapped(
    exchange: &Exchange,
    gateway: &Gateway,
    host: &BackendHost,
    name: &str,
    value: &[u8],
) -> Option<Vec<u8>> {
    let extras = &gateway.extras;
    let rewritten = extras.rewriting.map_reply(exchange, name, value);
    let value = rewritten.as_deref().unwrap_or(value);
    extras
        .header_map
        .map_reply(exchange, host, name, value)
        .or(rewritten)
}

/// A reply field `Variable-NAME` of an authorizer becomes the environment variable NAME of the request
/// (FastCGI 1.0, section 6.3).
fn authorize(exchange: &mut Exchange, head: &ReplyHead) {
    for (name, value) in head.fields() {
        let variable = name
            .split_at_checked(VARIABLE.len())
            .filter(|(prefix, _)| prefix.eq_ignore_ascii_case(VARIABLE));
        if let Some((_, name)) = variable {
            exchange.environment.set(name, value);
            exchange.keep(AUTHORIZED, Rc::new(()));
        }
    }
}

/// The key under which an exchange records that an authorizer has set variables about its client.
pub(crate) const AUTHORIZED: &str = "authorizer";

/// Whether the answer makes sense only when it is streamed, such as server-sent events, even if
/// `server.stream-response-body` says not to.
fn wants_streaming(head: &ReplyHead) -> bool {
    head.is_event_stream() || head.get("X-Accel-Buffering") == Some(b"no")
}

fn announced_length(head: &ReplyHead) -> Option<u64> {
    std::str::from_utf8(head.get("Content-Length")?)
        .ok()?
        .parse()
        .ok()
}

/// Fields about the connection to the backend (RFC 9110 7.6.1), and fields that this server writes for the
/// client's connection.
fn is_of_connection(name: &str) -> bool {
    let is_wanted = |field: KnownField| field.is_hop_by_hop() || field == KnownField::ContentLength;
    KnownField::from_name_if(name.as_bytes(), is_wanted).is_some()
        || name.eq_ignore_ascii_case("Status")
        || name.eq_ignore_ascii_case("X-Accel-Buffering")
}

const VARIABLE: &str = "Variable-";
