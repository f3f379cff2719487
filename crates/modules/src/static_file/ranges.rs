//! Byte ranges of an answer that is known as a whole (RFC 9110 section 14).

use std::collections::VecDeque;
use std::ops::Range;

use petrel_engine::body::{Body, Piece};
use petrel_engine::proto::http1::{KnownField, Version};
use petrel_engine::proto::method::Method;
use petrel_engine::proto::range::{self, RangeLimits, RangeOutcome};
use petrel_engine::proto::status::Status;
use petrel_engine::{Exchange, limits};

/// Answers with the ranges of `whole` the request asks for. False: with none, send it whole.
pub(super) fn apply(exchange: &mut Exchange, whole: &Piece) -> bool {
    let Some(wanted) = exchange.request.head.field(KnownField::Range) else {
        return false;
    };
    let version_allows = exchange.request.head.version() == Version::Http11
        || exchange.worker.process().features.http10_range;
    // Ranges mean something for GET alone (RFC 9110 section 14.2).
    if exchange.request.method != Method::Get
        || !exchange.settings.core.range_requests
        || !version_allows
    {
        return false;
    }
    let size = whole.length();
    match range::parse(
        wanted,
        size,
        RangeLimits {
            ranges_max: limits::RANGES_MAX,
        },
    ) {
        RangeOutcome::Ignore => return false,
        RangeOutcome::Unsatisfiable => unsatisfiable(exchange, size),
        RangeOutcome::Single(range) => single(exchange, whole, range),
        RangeOutcome::Multiple(ranges) => multiple(exchange, whole, &ranges),
    }
    true
}

fn unsatisfiable(exchange: &mut Exchange, size: u64) {
    exchange.response.answer(Status::RANGE_NOT_SATISFIABLE);
    exchange
        .response
        .set("Content-Range", format!("bytes */{size}").as_bytes());
}

/// Bytes `range` of `whole`, which has them.
fn part(whole: &Piece, range: &Range<u64>) -> Piece {
    let mut part = whole.clone();
    part.advance(range.start);
    part.truncate(range.end - range.start);
    part
}

fn single(exchange: &mut Exchange, whole: &Piece, range: Range<u64>) {
    let mut content_range = Vec::new();
    range::write_content_range(&mut content_range, &range, whole.length());
    exchange.response.status = Status::PARTIAL_CONTENT;
    exchange.response.set("Content-Range", &content_range);
    exchange.response.body = Body::Piece(part(whole, &range));
}

fn multiple(exchange: &mut Exchange, whole: &Piece, ranges: &[Range<u64>]) {
    let size = whole.length();
    let boundary = boundary(exchange);
    let content_type = exchange
        .response
        .get("Content-Type")
        .unwrap_or_default()
        .to_vec();
    let mut pieces = VecDeque::with_capacity(2 * ranges.len() + 1);
    for range in ranges {
        let mut head = Vec::new();
        range::write_part_header(&mut head, &boundary, &content_type, range, size);
        pieces.push_back(Piece::Bytes(head.into()));
        pieces.push_back(part(whole, range));
    }
    let mut end = Vec::new();
    range::write_closing_boundary(&mut end, &boundary);
    pieces.push_back(Piece::Bytes(end.into()));
    exchange.response.status = Status::PARTIAL_CONTENT;
    let content_type = format!("multipart/byteranges; boundary={boundary}");
    exchange
        .response
        .set("Content-Type", content_type.as_bytes());
    exchange.response.body = Body::Pieces(pieces);
}

/// Differs from answer to answer, so that no file can contain it on purpose.
fn boundary(exchange: &Exchange) -> String {
    let now = exchange.worker.clock().now();
    format!(
        "petrel-{now:016x}{:08x}",
        exchange.connection.id.wrapping_mul(0x9e37_79b9) as u32
    )
}
