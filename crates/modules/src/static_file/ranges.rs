//! Byte ranges of a complete answer (RFC 9110 section 14).

use std::collections::VecDeque;
use std::ops::Range;

use petrel_engine::body::{Body, Piece};
use petrel_engine::proto::method::Method;
use petrel_engine::proto::range::{self, RangeLimits, RangeOutcome};
use petrel_engine::proto::request_head::{KnownField, Version};
use petrel_engine::proto::status::Status;
use petrel_engine::{Exchange, limits};

use super::answer::Asked;

/// The ranges that the request asks for in an answer of `size` bytes.
pub(super) fn asked(exchange: &mut Exchange, size: u64) -> Asked {
    let Some(wanted) = exchange.request.head.field(KnownField::Range) else {
        return Asked::Whole;
    };
    let version_allows = exchange.request.head.version() >= Version::Http11
        || exchange.worker.process().features.http10_range;
    // Ranges only apply to GET (RFC 9110 section 14.2).
    if exchange.request.method != Method::Get
        || !exchange.settings.core.range_requests
        || !version_allows
    {
        return Asked::Whole;
    }
    let ranges_max = limits::RANGES_MAX;
    let response = &mut exchange.response;
    match range::parse(wanted, size, RangeLimits { ranges_max }) {
        RangeOutcome::Ignore => Asked::Whole,
        RangeOutcome::Multiple(ranges) => Asked::Ranges(ranges),
        RangeOutcome::Unsatisfiable => {
            response.answer(Status::RANGE_NOT_SATISFIABLE);
            response.set("Content-Range", format!("bytes */{size}").as_bytes());
            Asked::Nothing
        }
        RangeOutcome::Single(range) => {
            let mut content_range = Vec::new();
            range::write_content_range(&mut content_range, &range, size);
            response.status = Status::PARTIAL_CONTENT;
            response.set("Content-Range", &content_range);
            Asked::Range(range)
        }
    }
}

/// The bytes `range` of `whole`, within which they must be.
pub(super) fn part(whole: &Piece, range: &Range<u64>) -> Piece {
    let mut part = whole.clone();
    part.advance(range.start);
    part.truncate(range.end - range.start);
    part
}

/// A body of several ranges, for which the response is set.
pub(super) fn multiple(exchange: &mut Exchange, whole: &Piece, ranges: &[Range<u64>]) -> Body {
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
    Body::Pieces(pieces)
}

/// Different for each answer, so that no file can contain it on purpose.
fn boundary(exchange: &Exchange) -> String {
    let now = exchange.worker.clock().now();
    format!(
        "petrel-{now:016x}{:08x}",
        exchange.connection.id.wrapping_mul(0x9e37_79b9) as u32
    )
}
