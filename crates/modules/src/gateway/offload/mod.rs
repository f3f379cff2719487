//! Replies that name a file or a URL instead of having a body: X-Sendfile and its relatives.
//!
//! [`offload`] is called when the head of a reply is complete. If it finds such a field, the backend's body
//! is not needed, and its connection is free from then on, however slowly the client reads. The fields only
//! count if the host's options say so (`x-sendfile`). Which files they may name is decided by directories
//! ([`sendfile`], [`tempfile`]): first as text, then again with symlinks resolved ([`beneath`]). Fields that
//! instruct a server are never passed on to clients ([`is_withheld`]), even when they are not followed, as in
//! lighttpd.
//!
//! If a disk has to be waited for, an [`Opening`] does so, after the backend's connection was given back.
//!
//! This module knows neither protocols nor connections: it sees the complete head and the exchange.

mod beneath;
mod opening;
mod redirect;
mod sendfile;
mod tempfile;

use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::module::Outcome;
use petrel_engine::proto::reply_head::ReplyHead;

use super::options::BackendHost;
pub(crate) use opening::Opening;
use opening::{OpeningFacts, Step};
pub(crate) use redirect::local_redirect;

/// What the head of a reply says about its body.
pub(crate) enum Offload {
    /// Nothing: the backend's body is the answer's body.
    None,
    /// The exchange goes on with this outcome. The backend's body is not needed.
    Answered(Outcome),
    /// The reply names something that it may not. This was logged; the answer is 502, without any field of
    /// the reply.
    Refused,
    /// The disk has to be waited for. The backend's body is not needed.
    Opening(Box<Opening>),
}

/// Follows the instructions in `head`, if there are any and `host` may give them.
///
/// Expects the status and fields of the reply in `exchange.response`, except for fields that are
/// [withheld](is_withheld): the backend's Content-Type, ETag, Last-Modified and Cache-Control take precedence
/// over those of a file. A temporary file is unlinked when the answer is made; a refused one is not.
pub(crate) fn offload(
    exchange: &mut Exchange,
    host: &Rc<BackendHost>,
    head: &ReplyHead,
) -> Offload {
    if let Some(value) = head.get(BANDWIDTH) {
        limit_bandwidth(exchange, value);
    }
    if !host.x_sendfile {
        return Offload::None;
    }
    for (name, follow) in INSTRUCTIONS {
        if let Some(value) = head.get(name) {
            let instruction = Instruction {
                name,
                follow: *follow,
            };
            return Opening::begin(exchange, host, instruction, value);
        }
    }
    Offload::None
}

/// Has a thread remove the temporary file that a reply names, when its client has left or it cannot be the
/// answer for another reason. Files outside the directories of `host` stay.
pub(crate) fn discard(host: &BackendHost, head: &ReplyHead) {
    if host.x_sendfile
        && let Some(value) = head.get(TEMPFILE)
    {
        tempfile::discard(host, value);
    }
}

/// Whether the reply field `name` is for the server only, so that no client sees it. Without `x-sendfile`,
/// X-Accel-Redirect is passed on, because there may be an nginx in front of this server.
pub(crate) fn is_withheld(name: &str, host: &BackendHost) -> bool {
    let is = |other: &str| name.eq_ignore_ascii_case(other);
    let is_of_lighttpd = name
        .get(..OF_LIGHTTPD.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(OF_LIGHTTPD));
    is_of_lighttpd || is(SENDFILE) || is(SENDFILE2) || (host.x_sendfile && is(REDIRECT))
}

/// Makes an answer out of the value of a field, or says why it cannot. If it has to wait, it is called again
/// when the result is known.
type Follow =
    fn(&mut Exchange, &BackendHost, &[u8], &mut OpeningFacts) -> Result<Step, &'static str>;

/// An instruction: a field, and the function that follows it.
#[derive(Clone, Copy)]
struct Instruction {
    name: &'static str,
    follow: Follow,
}

/// All instructions. If a reply has several, the first of these counts.
const INSTRUCTIONS: &[(&str, Follow)] = &[
    (TEMPFILE, tempfile::send),
    (SENDFILE2, sendfile::send_ranges),
    (SENDFILE, sendfile::send),
    ("X-LIGHTTPD-send-file", sendfile::send),
    (REDIRECT, redirect::go),
];

const TEMPFILE: &str = "X-LIGHTTPD-send-tempfile";
const SENDFILE: &str = "X-Sendfile";
const SENDFILE2: &str = "X-Sendfile2";
const REDIRECT: &str = "X-Accel-Redirect";
const BANDWIDTH: &str = "X-LIGHTTPD-KBytes-per-second";
const OF_LIGHTTPD: &str = "X-LIGHTTPD-";

/// Sets the bandwidth limit of this answer. 0, or a value that is no number, means no limit.
fn limit_bandwidth(exchange: &mut Exchange, value: &[u8]) {
    let kbytes = std::str::from_utf8(value)
        .map(str::trim)
        .unwrap_or_default();
    let kbytes: u64 = kbytes.parse().unwrap_or(0);
    exchange.response.bytes_per_second_max = kbytes.saturating_mul(1024);
}

#[cfg(test)]
mod tests;
