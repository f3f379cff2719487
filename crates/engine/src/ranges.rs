//! Byte ranges of an answer whose whole body is known (RFC 9110 section 14).
//!
//! A module that answers with a file or a stored page calls [`asked`] before it chooses the body. The phase
//! loop calls [`cut`] behind the last filter, for all other answers: those of programs, scripts and listings.

use std::collections::VecDeque;
use std::ops::Range;

use petrel_proto::conditional::{Preconditions, Verdict, evaluate};
use petrel_proto::date;
use petrel_proto::method::Method;
use petrel_proto::range::{self, RangeLimits, RangeOutcome};
use petrel_proto::request_head::{KnownField, Version};
use petrel_proto::status::Status;

use crate::body::{Body, Piece};
use crate::cause::{CauseCode, StatusOrigin};
use crate::exchange::Exchange;
use crate::{error_page, limits};

/// What a request asks for of an answer that is known as a whole.
pub enum AskedRange {
    /// All of it.
    Whole,
    /// These bytes. Status and Content-Range of the response say so.
    Range(Range<u64>),
    /// Several ranges; the response does not say so yet.
    Ranges(Vec<Range<u64>>),
    /// Nothing: the response says why.
    Nothing,
}

/// The ranges that the request asks for of an answer of `size` bytes.
#[inline]
pub fn asked(exchange: &mut Exchange, size: u64) -> AskedRange {
    match exchange.request.head.field(KnownField::Range) {
        None => AskedRange::Whole,
        Some(_) => asked_by_field(exchange, size),
    }
}

#[cold]
fn asked_by_field(exchange: &mut Exchange, size: u64) -> AskedRange {
    match wanted(exchange, size) {
        RangeOutcome::Ignore => AskedRange::Whole,
        RangeOutcome::Multiple(ranges) => AskedRange::Ranges(ranges),
        RangeOutcome::Unsatisfiable => {
            exchange.response.fail(CauseCode::RangeUnsatisfiable);
            tell_size(exchange, size);
            AskedRange::Nothing
        }
        RangeOutcome::Single(range) => {
            tell_range(exchange, &range, size);
            AskedRange::Range(range)
        }
    }
}

/// Cuts an answer with status 200 to the ranges that the client asks for, as lighttpd does: if its body is
/// there as a whole, and no filter has encoded it. A body that is made while it is sent is sent whole, and so
/// is what a `server.error-handler` answers: a client that resumes a download must not append it to its file.
#[inline]
pub(crate) fn cut(exchange: &mut Exchange) {
    let has_field = exchange.request.head.field(KnownField::Range).is_some();
    if has_field && exchange.response.status == Status::OK && !exchange.keeps_error_status() {
        cut_whole(exchange);
    }
}

#[cold]
fn cut_whole(exchange: &mut Exchange) {
    let response = &exchange.response;
    let Some(size) = response.body.length() else {
        return;
    };
    if matches!(response.body, Body::Source(_)) || !may_be_cut(exchange) {
        return;
    }
    let ranges = match wanted(exchange, size) {
        RangeOutcome::Ignore => return,
        RangeOutcome::Unsatisfiable => return refuse(exchange, size),
        RangeOutcome::Single(range) => {
            tell_range(exchange, &range, size);
            vec![range]
        }
        RangeOutcome::Multiple(ranges) => ranges,
    };
    let whole = match std::mem::take(&mut exchange.response.body) {
        Body::Piece(piece) => VecDeque::from([piece]),
        Body::Pieces(pieces) => pieces,
        Body::Empty | Body::Source(_) => return,
    };
    // As for a file: the client learns that it may ask for more parts.
    exchange.response.set("Accept-Ranges", b"bytes");
    exchange.response.body = match &ranges[..] {
        [range] => {
            let mut pieces = VecDeque::new();
            add_part(&whole, range, &mut pieces);
            Body::Pieces(pieces)
        }
        _ => multiple_of(exchange, &whole, &ranges),
    };
}

/// Whether the fields of the answer allow it, and If-Range names this very answer.
fn may_be_cut(exchange: &Exchange) -> bool {
    let response = &exchange.response;
    let is_refused = response.get("Accept-Ranges") == Some(b"none");
    if is_refused
        || ["Content-Encoding", "Content-Range"]
            .iter()
            .any(|name| response.get(name).is_some())
    {
        return false;
    }
    let if_range = Preconditions {
        if_range: exchange.request.head.field(KnownField::IfRange),
        ..Preconditions::default()
    };
    let modified_s = response.get("Last-Modified").and_then(date::parse);
    let verdict = evaluate(&if_range, true, response.get("ETag"), modified_s);
    verdict == Verdict::Proceed { honour_range: true }
}

/// What the Range field comes to, if this request may have one.
fn wanted(exchange: &Exchange, size: u64) -> RangeOutcome {
    let Some(field) = exchange.request.head.field(KnownField::Range) else {
        return RangeOutcome::Ignore;
    };
    let version_allows = exchange.request.head.version() >= Version::Http11
        || exchange.worker.process().features.http10_range;
    // Ranges mean something for GET alone (RFC 9110 section 14.2).
    if exchange.request.method != Method::Get
        || !exchange.settings.core.range_requests
        || !version_allows
    {
        return RangeOutcome::Ignore;
    }
    let ranges_max = limits::RANGES_MAX;
    range::parse(field, size, RangeLimits { ranges_max })
}

fn tell_range(exchange: &mut Exchange, range: &Range<u64>, size: u64) {
    let mut content_range = Vec::new();
    range::write_content_range(&mut content_range, range, size);
    exchange.response.status = Status::PARTIAL_CONTENT;
    exchange.response.set("Content-Range", &content_range);
}

fn tell_size(exchange: &mut Exchange, size: u64) {
    let content_range = format!("bytes */{size}");
    exchange
        .response
        .set("Content-Range", content_range.as_bytes());
}

/// Answers 416. Fields that filters have added stay; those about the body go with it, and so does how long
/// the body may be cached: a shared cache would keep the error for clients that ask for the whole.
fn refuse(exchange: &mut Exchange, size: u64) {
    let response = &mut exchange.response;
    response.status = Status::RANGE_NOT_SATISFIABLE;
    response.origin = StatusOrigin::Own(CauseCode::RangeUnsatisfiable.into());
    for name in [
        "ETag",
        "Last-Modified",
        "Content-Language",
        "Content-Disposition",
        "Cache-Control",
        "Expires",
    ] {
        response.remove(name);
    }
    tell_size(exchange, size);
    error_page::put_page(exchange);
}

/// Bytes `range` of `whole`, which has them.
pub fn part(whole: &Piece, range: &Range<u64>) -> Piece {
    let mut part = whole.clone();
    part.advance(range.start);
    part.truncate(range.end - range.start);
    part
}

/// The same of a body in several pieces.
fn add_part(whole: &VecDeque<Piece>, range: &Range<u64>, pieces: &mut VecDeque<Piece>) {
    let mut begin = 0;
    for piece in whole {
        let end = begin + piece.length();
        let shared = range.start.max(begin)..range.end.min(end);
        if shared.start < shared.end {
            pieces.push_back(part(piece, &(shared.start - begin..shared.end - begin)));
        }
        begin = end;
    }
}

/// A body of several ranges, which the response tells of.
pub fn multiple(exchange: &mut Exchange, whole: &Piece, ranges: &[Range<u64>]) -> Body {
    multiple_of(exchange, &VecDeque::from([whole.clone()]), ranges)
}

fn multiple_of(exchange: &mut Exchange, whole: &VecDeque<Piece>, ranges: &[Range<u64>]) -> Body {
    let size = whole.iter().map(Piece::length).sum();
    let boundary = boundary(exchange);
    let response = &mut exchange.response;
    let content_type = response.get("Content-Type").unwrap_or_default().to_vec();
    let mut pieces = VecDeque::with_capacity(2 * ranges.len() + 1);
    for range in ranges {
        let mut head = Vec::new();
        range::write_part_header(&mut head, &boundary, &content_type, range, size);
        pieces.push_back(Piece::Bytes(head.into()));
        add_part(whole, range, &mut pieces);
    }
    let mut end = Vec::new();
    range::write_closing_boundary(&mut end, &boundary);
    pieces.push_back(Piece::Bytes(end.into()));
    response.status = Status::PARTIAL_CONTENT;
    let content_type = format!("multipart/byteranges; boundary={boundary}");
    response.set("Content-Type", content_type.as_bytes());
    Body::Pieces(pieces)
}

/// Differs from answer to answer, so that no file can contain it on purpose.
fn boundary(exchange: &Exchange) -> String {
    let now = exchange.worker.clock().now();
    format!(
        "petrel-{now:016x}{:08x}",
        exchange.connection.id.wrapping_mul(0x9e37_79b9) as u32
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_may_span_pieces() {
        let pieces = ["abc", "", "defg", "h"];
        let whole: VecDeque<Piece> = pieces
            .map(|text| Piece::Bytes(text.as_bytes().into()))
            .into();
        for (range, expected) in [
            (0..8, "abc|defg|h"),
            (0..1, "a"),
            (2..4, "c|d"),
            (3..7, "defg"),
            (4..6, "ef"),
            (7..8, "h"),
        ] {
            let mut parts = VecDeque::new();
            add_part(&whole, &range, &mut parts);
            let texts: Vec<&str> = parts
                .iter()
                .map(|part| {
                    std::str::from_utf8(part.in_memory().unwrap_or_default()).unwrap_or_default()
                })
                .collect();
            assert_eq!(texts.join("|"), expected, "{range:?}");
        }
    }
}
