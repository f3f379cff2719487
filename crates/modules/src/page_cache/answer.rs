//! Answers a request with a stored answer.
//!
//! The stored fields are copied as they are, in wire form; only Age and Cache-Status are new. The body is
//! shared, not copied. The request's conditions and ranges are applied as for a file.

use petrel_engine::Exchange;
use petrel_engine::body::{Body, Piece};
use petrel_engine::module::Outcome;
use petrel_engine::proto::status::Status;
use petrel_engine::proto::stored_page::Freshness;
use petrel_engine::response::{KeptContent, Own};

use super::entry::CacheEntry;
use super::status::CacheStatus;
use crate::static_file;

/// How a stored answer came to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// It was stored.
    Hit,
    /// Another request was fetching it, and this one waited.
    Collapsed,
    /// The backend has confirmed it (304).
    Revalidation,
    /// The backend has failed; without the stored answer the client would have got this status.
    Failure(Status),
}

/// Answers with `entry`, subject to the conditions of the request.
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
