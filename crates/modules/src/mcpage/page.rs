//! The answer with a stored page.

use petrel_engine::Exchange;
use petrel_engine::body::Piece;
use petrel_engine::module::Outcome;
use petrel_engine::proto::accept::{Coding, choose_coding};
use petrel_engine::proto::date;
use petrel_engine::proto::http1::KnownField;
use petrel_engine::proto::status::Status;

use super::gunzip::{gunzip, is_gzip};
use super::value::Value;
use crate::static_file;

/// Answers with `page`, as far as the conditions and ranges of the request allow. False: it cannot be
/// decompressed, and there is no answer.
pub(super) fn answer(exchange: &mut Exchange, page: &Value, announces: bool) -> Option<Outcome> {
    let has_coding = |coding: &[u8]| {
        coding.eq_ignore_ascii_case(b"gzip") || coding.eq_ignore_ascii_case(b"x-gzip")
    };
    let coding = field(page, "Content-Encoding");
    // Applications store no field that could say so.
    let is_gzip = match coding {
        Some(coding) => has_coding(coding),
        None => page.fields.is_empty() && is_gzip(&page.body),
    };
    let accepted = exchange.request.head.field(KnownField::AcceptEncoding);
    let is_decoded = is_gzip && choose_coding(accepted, &[Coding::Gzip]) != Some(Coding::Gzip);
    let body = match is_decoded {
        true => decoded(exchange, page)?.into(),
        false => page.body.clone(),
    };
    exchange.response.answer(Status::OK);
    for (name, value) in &page.fields {
        if let Ok(name) = std::str::from_utf8(name) {
            exchange.response.append(name, value);
        }
    }
    add_fields(exchange, is_gzip, is_decoded, announces);
    let modified_s = exchange.response.get("Last-Modified").and_then(date::parse);
    static_file::answer_as_asked(exchange, Piece::Bytes(body), modified_s);
    Some(Outcome::Answer)
}

fn decoded(exchange: &Exchange, page: &Value) -> Option<Vec<u8>> {
    let decoded = gunzip(&page.body);
    decoded
        .inspect_err(|why| {
            let cause = format_args!("mcpage: a stored page cannot be decompressed: {why}");
            exchange.log_error("content", cause);
        })
        .ok()
}

fn add_fields(exchange: &mut Exchange, is_gzip: bool, is_decoded: bool, announces: bool) {
    let settings = std::rc::Rc::clone(&exchange.settings);
    if exchange.response.get("Content-Type").is_none() {
        let types = &settings.core.mime_types;
        let of_url = types.content_type_of(exchange.request.url.path());
        exchange
            .response
            .set("Content-Type", of_url.unwrap_or(b"text/html"));
    }
    let response = &mut exchange.response;
    if is_decoded {
        response.remove("Content-Encoding");
        // It stands for other bytes.
        response.remove("ETag");
    } else if is_gzip {
        response.set("Content-Encoding", b"gzip");
    }
    if is_gzip && response.get("Vary").is_none() {
        response.set("Vary", b"Accept-Encoding");
    }
    if settings.core.range_requests {
        response.set("Accept-Ranges", b"bytes");
    }
    if announces {
        response.set("X-Served-by-memcached", b"yes");
    }
}

fn field<'p>(page: &'p Value, name: &str) -> Option<&'p [u8]> {
    let mut fields = page.fields.iter();
    let found = fields.find(|(known, _)| known.eq_ignore_ascii_case(name.as_bytes()));
    found.map(|(_, value)| value.as_slice())
}
