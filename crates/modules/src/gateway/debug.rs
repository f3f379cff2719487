//! The lines that `*.debug` writes to the error log about requests to backends.
//!
//! Level 1: the chosen backend and the status that it answered with. Level 2: also connections, queueing and
//! repeated attempts. Level 3: also the heads of requests and replies, without fields that give access
//! (credentials, cookies).

use std::fmt;

use petrel_engine::Exchange;
use petrel_engine::proto::reply_head::ReplyHead;

use super::options::Gateway;

/// Level 1: which backend was chosen, and what it answered.
pub(crate) const CHOICES: u8 = 1;
/// Level 2: connections, the queue, repeated attempts.
pub(super) const CONNECTIONS: u8 = 2;
/// Level 3: heads.
const HEADS: u8 = 3;

/// Writes a line if the `*.debug` of `gateway` is at least `level`.
#[inline]
pub(super) fn say(gateway: &Gateway, level: u8, exchange: &Exchange, what: fmt::Arguments<'_>) {
    if gateway.debug >= level {
        exchange.log_error(gateway.directive, what);
    }
}

/// Writes the head of the request as the client sent it.
pub(super) fn request_head(gateway: &Gateway, exchange: &Exchange) {
    if gateway.debug >= HEADS {
        for (name, value) in exchange.request.head.iter() {
            field(gateway, exchange, "request", name, value);
        }
    }
}

/// Writes the head of a reply.
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

/// Fields whose values must not be in a log.
const SECRETS: &[&str] = &[
    "Authorization",
    "Cookie",
    "Proxy-Authorization",
    "Set-Cookie",
];
