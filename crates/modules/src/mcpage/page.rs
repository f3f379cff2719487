//! Answers with a stored page.

use std::rc::Rc;

use bytes::Bytes;
use petrel_engine::Exchange;
use petrel_engine::body::Piece;
use petrel_engine::module::Outcome;
use petrel_engine::proto::accept::{Coding, choose_coding};
use petrel_engine::proto::date;
use petrel_engine::proto::request_head::KnownField;
use petrel_engine::proto::status::Status;

use super::gunzip::{gunzip, is_gzip};
use super::value::Value;
use crate::static_file;

/// A stored page in the form for this client.
pub(super) struct MemcachedPage {
    fields: Vec<(Vec<u8>, Vec<u8>)>,
    body: Bytes,
    form: Form,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// As stored, uncompressed.
    Plain,
    /// As stored, compressed.
    Gzip,
    /// Stored compressed, and decompressed for this client.
    Decoded,
}

impl MemcachedPage {
    /// The page `value` for this request. `None`: it cannot be decompressed, which counts as a miss.
    pub(crate) fn new(exchange: &Exchange, value: Value) -> Option<MemcachedPage> {
        let accepted = exchange.request.head.field(KnownField::AcceptEncoding);
        let form = match is_compressed(&value) {
            false => Form::Plain,
            true if choose_coding(accepted, &[Coding::Gzip]) == Some(Coding::Gzip) => Form::Gzip,
            true => Form::Decoded,
        };
        let body = match form {
            Form::Plain | Form::Gzip => value.body,
            Form::Decoded => decoded(exchange, &value.body)?.into(),
        };
        Some(MemcachedPage {
            fields: value.fields,
            body,
            form,
        })
    }
}

/// Whether the page is compressed: by its fields, or, as applications store none, by its first bytes.
fn is_compressed(value: &Value) -> bool {
    let mut fields = value.fields.iter();
    let coding = fields.find(|(name, _)| name.eq_ignore_ascii_case(b"Content-Encoding"));
    match coding {
        Some((_, coding)) => coding.eq_ignore_ascii_case(b"gzip"),
        None => value.fields.is_empty() && is_gzip(&value.body),
    }
}

fn decoded(exchange: &Exchange, body: &[u8]) -> Option<Vec<u8>> {
    let decoded = gunzip(body);
    decoded
        .inspect_err(|why| {
            let cause = format_args!("mcpage: a stored page cannot be decompressed: {why}");
            exchange.log_error("content", cause);
        })
        .ok()
}

/// Answers with `page`, subject to the conditions and ranges of the request.
pub(super) fn answer(exchange: &mut Exchange, page: &MemcachedPage, announces: bool) -> Outcome {
    exchange.response.answer(Status::OK);
    for (name, value) in &page.fields {
        if let Ok(name) = std::str::from_utf8(name) {
            exchange.response.append(name, value);
        }
    }
    add_fields(exchange, page.form, announces);
    let modified_s = exchange.response.get("Last-Modified").and_then(date::parse);
    static_file::answer_as_asked(exchange, Piece::Bytes(page.body.clone()), modified_s);
    Outcome::Answer
}

fn add_fields(exchange: &mut Exchange, form: Form, announces: bool) {
    let settings = Rc::clone(&exchange.settings);
    if exchange.response.get("Content-Type").is_none() {
        let types = &settings.core.mime_types;
        let of_url = types.content_type_of(exchange.request.url.path());
        exchange
            .response
            .set("Content-Type", of_url.unwrap_or(b"text/html"));
    }
    let response = &mut exchange.response;
    match form {
        Form::Plain => {}
        Form::Gzip => response.set("Content-Encoding", b"gzip"),
        Form::Decoded => {
            response.remove("Content-Encoding");
            // The tag belongs to the compressed bytes.
            response.remove("ETag");
        }
    }
    if form != Form::Plain && response.get("Vary").is_none() {
        response.set("Vary", b"Accept-Encoding");
    }
    if settings.core.range_requests {
        response.set("Accept-Ranges", b"bytes");
    }
    if announces {
        response.set("X-Served-by-memcached", b"yes");
    }
}
