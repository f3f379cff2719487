//! Answers with a file whose fields are set: applies the request's preconditions and ranges.

use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::body::{Body, Piece};
use petrel_engine::cause::CauseCode;
use petrel_engine::file_cache::FileEntry;
use petrel_engine::proto::conditional::{Preconditions, Verdict, evaluate};
use petrel_engine::proto::date;
use petrel_engine::proto::request_head::KnownField;
use petrel_engine::proto::status::Status;
use petrel_engine::ranges::{self, AskedRange};

use super::{content_type, etag, last_modified, own_type};

/// Makes `file` the body of an answer whose status and fields a backend has made. The backend's Content-Type,
/// ETag and Last-Modified stay, and the request's conditions are compared with them. Missing fields are those
/// of the file, with a type by `path`: on a network file system the extended attribute is not read.
/// Conditions and ranges are only applied to a 200; with another status the file is sent whole.
pub(crate) fn for_backend(exchange: &mut Exchange, file: Rc<FileEntry>, path: &[u8]) {
    let settings = Rc::clone(&exchange.settings);
    let core = &settings.core;
    let keeps_error_status = exchange.keeps_error_status();
    forget_range(exchange);
    let clock = Rc::clone(exchange.worker.clock());
    let response = &mut exchange.response;
    response.is_final = true;
    if response.get("Content-Type").is_none() {
        let own = own_type::at_once(&file, core);
        response.set("Content-Type", &content_type(own, path, core));
    }
    if response.status != Status::OK || keeps_error_status {
        return whole(exchange, file);
    }
    if response.get("ETag").is_none()
        && let Some(etag) = etag(&file, None, core)
    {
        response.set("ETag", etag.as_bytes());
    }
    if response.get("Last-Modified").is_none() {
        response.set("Last-Modified", &last_modified(&file, &clock));
    }
    if core.range_requests {
        response.set("Accept-Ranges", b"bytes");
    }
    let modified_s = response.get("Last-Modified").and_then(date::parse);
    let modified_s = modified_s.unwrap_or(file.stat().modified_s);
    as_asked(exchange, piece_of(file), Some(modified_s));
}

/// Drops the range that a backend has said of its own body, because a file replaces that body: a 206 becomes
/// a 200, of which this server cuts the ranges.
pub(crate) fn forget_range(exchange: &mut Exchange) {
    let response = &mut exchange.response;
    response.remove("Content-Range");
    if response.status != Status::PARTIAL_CONTENT {
        return;
    }
    response.status = Status::OK;
    let content_type = response.get("Content-Type").unwrap_or_default();
    let start = content_type.get(..MULTIPART.len()).unwrap_or_default();
    if start.eq_ignore_ascii_case(MULTIPART) {
        response.remove("Content-Type");
    }
}

/// The type of a body with several ranges.
const MULTIPART: &[u8] = b"multipart/byteranges";

/// Answers with the whole `file`.
pub(super) fn whole(exchange: &mut Exchange, file: Rc<FileEntry>) {
    exchange.response.body = Body::Piece(piece_of(file));
}

/// A piece with the whole `file`.
pub(super) fn piece_of(file: Rc<FileEntry>) -> Piece {
    let range = 0..file.stat().size;
    Piece::File { file, range }
}

/// Answers with `whole` or a part of it, subject to the conditions of the request. They are compared with the
/// ETag of the response and with `modified_s`, when it was last changed.
pub(crate) fn as_asked(exchange: &mut Exchange, whole: Piece, modified_s: Option<u64>) {
    exchange.response.body = match ask(exchange, whole.length(), modified_s) {
        AskedRange::Nothing => return,
        AskedRange::Whole => Body::Piece(whole),
        AskedRange::Range(range) => Body::Piece(ranges::part(&whole, &range)),
        AskedRange::Ranges(ranges) => ranges::multiple(exchange, &whole, &ranges),
    };
}

/// Applies the conditions and the Range field of the request to an answer of `length` bytes. They are
/// compared with the ETag of the response and with `modified_s`, when it was last changed.
pub(crate) fn ask(exchange: &mut Exchange, length: u64, modified_s: Option<u64>) -> AskedRange {
    let head = &exchange.request.head;
    let preconditions = Preconditions {
        if_match: head.field(KnownField::IfMatch),
        if_none_match: head.field(KnownField::IfNoneMatch),
        if_modified_since: head.field(KnownField::IfModifiedSince),
        if_unmodified_since: head.field(KnownField::IfUnmodifiedSince),
        if_range: head.field(KnownField::IfRange),
    };
    if !preconditions.is_empty() {
        let etag = exchange.response.get("ETag");
        let is_get = exchange.request.method.is_get_or_head();
        match evaluate(&preconditions, is_get, etag, modified_s) {
            Verdict::Proceed { honour_range: true } => {}
            Verdict::Proceed { .. } => return AskedRange::Whole,
            Verdict::NotModified => {
                exchange.response.status = Status::NOT_MODIFIED;
                return AskedRange::Nothing;
            }
            Verdict::PreconditionFailed => {
                exchange.response.fail(CauseCode::PreconditionFailed);
                return AskedRange::Nothing;
            }
        }
    }
    ranges::asked(exchange, length)
}
