//! Replies that name a file or a URL instead of bringing a body: X-Sendfile and its relatives.
//!
//! [`offload`] is asked when the head of a reply is complete. What it answers makes the backend's
//! body worthless, so its connection is free from then on, however slowly the client reads. The
//! fields count only where the host's options say so (`x-sendfile`); what they may name is decided by
//! directories ([`sendfile`], [`tempfile`]), as text and again as the file system resolves it
//! ([`beneath`]). Fields that are instructions to a server are never passed on to clients
//! ([`is_withheld`]), whether they are followed or not; lighttpd does the same.
//!
//! What the disk has to be asked for is waited for by an [`Opening`], when the backend's connection has
//! been given back.
//!
//! Knows neither protocols nor connections: it sees the finished head and the exchange.

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

/// What a reply head means for the body behind it.
pub(crate) enum Offload {
    /// Nothing: the backend's body is the answer's.
    None,
    /// The exchange goes on with this. The backend's body is not needed.
    Answered(Outcome),
    /// The reply asks for what it must not have. The log has been told; the answer is 502, without
    /// any field of the reply.
    Refused,
    /// The disk has to be asked first. The backend's body is not needed.
    Opening(Box<Opening>),
}

/// Follows the instructions in `head`, if there are any and `host` may give them.
///
/// Expects that the reply's status and fields are in `exchange.response` already, but for those that
/// are [withheld](is_withheld): Content-Type, ETag, Last-Modified and Cache-Control of the backend
/// win over those of a file. A temporary file is unlinked when there is an answer, unless it is refused.
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

/// Removes the temporary file that a reply names whose client has gone, or that cannot be an answer
/// for another reason; a thread does it. Files outside the directories of `host` stay.
pub(crate) fn discard(host: &BackendHost, head: &ReplyHead) {
    if host.x_sendfile
        && let Some(value) = head.get(TEMPFILE)
    {
        tempfile::discard(host, value);
    }
}

/// Whether the reply field `name` is for the server alone, so that no client sees it. Without
/// `x-sendfile`, X-Accel-Redirect is passed on: to an nginx in front of this server, perhaps.
pub(crate) fn is_withheld(name: &str, host: &BackendHost) -> bool {
    let is = |other: &str| name.eq_ignore_ascii_case(other);
    let is_of_lighttpd = name
        .get(..OF_LIGHTTPD.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(OF_LIGHTTPD));
    is_of_lighttpd || is(SENDFILE) || is(SENDFILE2) || (host.x_sendfile && is(REDIRECT))
}

/// Makes an answer out of the value of a field, or says why not. Called again when what it waited for
/// is known.
type Follow =
    fn(&mut Exchange, &BackendHost, &[u8], &mut OpeningFacts) -> Result<Step, &'static str>;

/// A field that is followed.
#[derive(Clone, Copy)]
struct Instruction {
    name: &'static str,
    follow: Follow,
}

/// The instructions; where a reply has several, the first of these counts.
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

/// The limit of this answer. What is no number, or 0, is no limit.
fn limit_bandwidth(exchange: &mut Exchange, value: &[u8]) {
    let kbytes = std::str::from_utf8(value)
        .map(str::trim)
        .unwrap_or_default();
    let kbytes: u64 = kbytes.parse().unwrap_or(0);
    exchange.response.bytes_per_second_max = kbytes.saturating_mul(1024);
}

#[cfg(test)]
mod tests;
