//! What `*.debug` has the error log tell about requests on their way to backends.
//!
//! 1: the backend chosen, and the status it answered. 2: also connections, queue and replays.
//! 3: also the heads of requests and replies; what gives access (credentials, cookies) is left
//! out of them.

use std::fmt;

use petrel_engine::Exchange;
use petrel_engine::proto::reply_head::ReplyHead;

use super::options::Gateway;

/// Which backend, and what it answered.
pub(crate) const CHOICES: u8 = 1;
/// Connections, the queue, replays.
pub(super) const CONNECTIONS: u8 = 2;
/// Heads.
const HEADS: u8 = 3;

/// Writes a line if `gateway` wants to hear of things of this `level`.
#[inline]
pub(super) fn say(gateway: &Gateway, level: u8, exchange: &Exchange, what: fmt::Arguments<'_>) {
    if gateway.debug >= level {
        exchange.log_error(gateway.directive, what);
    }
}

/// The head of the request, as the client sent it.
pub(super) fn request_head(gateway: &Gateway, exchange: &Exchange) {
    if gateway.debug >= HEADS {
        for (name, value) in exchange.request.head.iter() {
            field(gateway, exchange, "request", name, value);
        }
    }
}

/// The head of a reply.
pub(super) fn reply_head(gateway: &Gateway, exchange: &Exchange, backend: &str, head: &ReplyHead) {
    let status = head.status().0;
    say(
        gateway,
        CHOICES,
        exchange,
        format_args!("status={status} backend={backend}"),
    );
    if gateway.debug >= HEADS {
        for (name, value) in head.fields() {
            field(gateway, exchange, "reply", name.as_bytes(), value);
        }
    }
}

fn field(gateway: &Gateway, exchange: &Exchange, whose: &str, name: &[u8], value: &[u8]) {
    let is_secret = |secret: &&str| name.eq_ignore_ascii_case(secret.as_bytes());
    let value: &[u8] = match SECRETS.iter().any(is_secret) {
        true => b"(left out)",
        false => value,
    };
    exchange.log_error(
        gateway.directive,
        format_args!(
            "{whose}: {}: {};",
            name.escape_ascii(),
            value.escape_ascii()
        ),
    );
}

/// Fields whose values must not be in logs.
const SECRETS: &[&str] = &[
    "Authorization",
    "Cookie",
    "Proxy-Authorization",
    "Set-Cookie",
];
