//! The small languages of header fields: dates, entity tags, conditions, content codings, trace contexts; and
//! the escaping of output.
//!
//! The input is the value of any field.

use petrel_proto::accept::{Coding, choose_coding};
use petrel_proto::conditional::{Preconditions, Verdict, evaluate};
use petrel_proto::trace_context::{TraceParent, trace_state};
use petrel_proto::{date, escape, etag};

pub fn fields(field: &[u8]) {
    dates(field);
    codings(field);
    conditions(field);
    traces(field);
    escapes(field);
}

/// A date that can be parsed is formatted as the same second.
fn dates(field: &[u8]) {
    let Some(seconds) = date::parse(field) else {
        return;
    };
    let mut text = [0; 29];
    date::format_imf(seconds, &mut text);
    assert_eq!(date::parse(&text), Some(seconds));
}

/// A trace context that was read is written as one that says the same.
fn traces(field: &[u8]) {
    if let Some(parent) = TraceParent::parse(field) {
        assert_eq!(TraceParent::parse(parent.value().as_bytes()), Some(parent));
    }
    if let Some(state) = trace_state([field].into_iter()) {
        assert!(!state.iter().any(u8::is_ascii_control));
        assert_eq!(trace_state([&*state].into_iter()), Some(state.clone()));
    }
}

/// The chosen coding was offered.
fn codings(field: &[u8]) {
    let offered = [Coding::Brotli, Coding::Gzip, Coding::Identity];
    for offer in [&offered[..], &offered[..1], &[]] {
        if let Some(chosen) = choose_coding(Some(field), offer) {
            assert!(offer.contains(&chosen));
        }
    }
    let _ = Coding::from_name(field);
}

/// Each condition by itself. What If-Match selects, If-None-Match names, because strong comparison is
/// stricter.
fn conditions(field: &[u8]) {
    const ETAG: &[u8] = b"\"a,b\"";
    let some = Some(field);
    let each = [
        Preconditions {
            if_match: some,
            ..Preconditions::default()
        },
        Preconditions {
            if_none_match: some,
            ..Preconditions::default()
        },
        Preconditions {
            if_modified_since: some,
            ..Preconditions::default()
        },
        Preconditions {
            if_unmodified_since: some,
            ..Preconditions::default()
        },
        Preconditions {
            if_range: some,
            ..Preconditions::default()
        },
    ];
    for preconditions in &each {
        for is_get in [true, false] {
            let verdict = evaluate(preconditions, is_get, Some(ETAG), Some(784_111_777));
            assert!(is_get || verdict != Verdict::NotModified);
            let _ = evaluate(preconditions, is_get, None, None);
        }
    }
    let matches = etag::if_match(field, Some(ETAG));
    assert!(!matches || etag::if_none_match(field, Some(ETAG)));
    assert!(!etag::strong_eq(field, ETAG) || etag::weak_eq(field, ETAG));
}

/// Escaped text contains nothing that ends its context.
fn escapes(text: &[u8]) {
    let escaped = |escape: fn(&mut Vec<u8>, &[u8])| {
        let mut out = Vec::new();
        escape(&mut out, text);
        out
    };
    let html = escaped(escape::html);
    assert!(!html.iter().any(|byte| b"<>\"'".contains(byte)));
    let json = String::from_utf8(escaped(escape::json)).expect("JSON is UTF-8");
    assert!(!json.chars().any(|character| character < ' '));
    assert_eq!((json.len() - json.trim_end_matches('\\').len()) & 1, 0);
    let log = escaped(escape::log);
    assert!(log.iter().all(|byte| (b' '..=b'~').contains(byte)));
    let path = escaped(escape::percent_encode_path);
    assert!(
        !path
            .iter()
            .any(|byte| b"?#<>&\"' ".contains(byte) || !byte.is_ascii_graphic())
    );
}
