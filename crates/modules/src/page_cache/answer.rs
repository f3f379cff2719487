//! A stored answer becomes the answer of a request.
//!
//! Its fields are copied as they are, in wire form; only Age and Cache-Status are written anew. The body
//! is shared, not copied. Conditions and ranges of the request are judged as for a file.

use petrel_engine::Exchange;
use petrel_engine::body::{Body, Piece};
use petrel_engine::module::Outcome;
use petrel_engine::proto::status::Status;
use petrel_engine::response::{KeptContent, Own};

use super::entry::{CacheEntry, Freshness};
use super::status::CacheStatus;
use crate::static_file;

/// How it came that a stored answer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// It was there.
    Hit,
    /// It was being fetched for somebody else.
    Collapsed,
    /// A backend has confirmed it.
    Revalidation,
    /// The backend has failed, with this status for its client.
    Failure(Status),
}

/// Answers with `entry`, as far as the conditions of the request allow.
pub fn send(exchange: &mut Exchange, entry: &CacheEntry, now_s: u64, by: By) -> Outcome {
    let page = &entry.page;
    let response = &mut exchange.response;
    response.answer(page.status);
    response.is_final = true;
    let own = Own {
        date: true,
        server: page.server.is_some(),
    };
    response.extend_from_wire_with(&entry.wire, own);
    let age = page.times.age(now_s);
    response.extend_from_wire(status_of(entry, now_s, by).with_age(age));
    response.kept = Some(KeptContent {
        number: entry.content,
        bytes: page.body.clone(),
    });
    let whole = Piece::Bytes(page.body.clone());
    match page.status == Status::OK && !exchange.handles_error() {
        true => static_file::answer_as_asked(exchange, whole, entry.modified_s),
        false => exchange.response.body = Body::Piece(whole),
    }
    entry.touch();
    Outcome::Answer
}

fn status_of(entry: &CacheEntry, now_s: u64, by: By) -> CacheStatus {
    let ttl = match entry.page.times.freshness(now_s) {
        Freshness::Fresh(left) => i64::from(left),
        Freshness::Stale(since) => -i64::from(since),
    };
    let mut status = CacheStatus::new();
    match by {
        By::Hit => status.word("hit"),
        By::Collapsed => {
            status.parameter("fwd", "uri-miss");
            status.word("collapsed");
        }
        By::Revalidation => {
            status.parameter("fwd", "stale");
            status.number("fwd-status", 304);
            status.word("stored");
        }
        By::Failure(failed) => {
            status.parameter("fwd", "stale");
            status.number("fwd-status", failed.0.into());
            status.parameter("detail", "stale-if-error");
        }
    }
    status.number("ttl", ttl);
    status
}
