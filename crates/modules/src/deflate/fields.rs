//! The header fields of a compressed answer.

use petrel_engine::Exchange;
use petrel_engine::proto::accept::Coding;
use petrel_engine::proto::etag;
use petrel_engine::proto::header_block::HeaderBlock;
use petrel_engine::proto::request_head::KnownField;
use petrel_engine::response::Response;

/// Adds Accept-Encoding to Vary.
pub(super) fn add_vary(response: &mut Response) {
    let mut merged = Vec::new();
    for (_, value) in response
        .fields()
        .iter()
        .filter(|(name, _)| name.eq_ignore_ascii_case(b"vary"))
    {
        let says_enough = |name: &[u8]| {
            let name = name.trim_ascii();
            name == b"*" || name.eq_ignore_ascii_case(b"accept-encoding")
        };
        if value.split(|byte| *byte == b',').any(says_enough) {
            return;
        }
        if !value.is_empty() {
            merged.extend_from_slice(value);
            merged.extend_from_slice(b", ");
        }
    }
    merged.extend_from_slice(b"Accept-Encoding");
    response.set("Vary", &merged);
}

/// Sets Content-Encoding, and removes the fields that are only true for the uncompressed content.
pub(super) fn set_coding(response: &mut Response, coding: Coding) {
    for name in UNTRUE {
        if response.fields().contains(name) {
            response.remove(name);
        }
    }
    set_etag(response, coding);
    response.append("Content-Encoding", coding.name().as_bytes());
}

/// Removes the trailers that are only true for the uncompressed content.
pub(super) fn remove_untrue(trailers: &mut HeaderBlock) {
    for name in UNTRUE {
        trailers.remove(name);
    }
}

/// Gives the coded answer an entity tag of its own.
pub(super) fn set_etag(response: &mut Response, coding: Coding) {
    if let Some(tag) = coded_etag(response, coding) {
        response.set("ETag", &tag);
    }
}

/// Whether If-None-Match names the coded answer. `*` is about the answer in any form, and is handled by the
/// module that made the answer.
pub(super) fn client_has_it(exchange: &Exchange, coding: Coding) -> bool {
    let status = exchange.response.status.0;
    let Some(list) = exchange.request.head.field(KnownField::IfNoneMatch) else {
        return false;
    };
    (200..300).contains(&status)
        && exchange.request.method.is_get_or_head()
        && list.trim_ascii() != b"*"
        && coded_etag(&exchange.response, coding)
            .is_some_and(|tag| etag::if_none_match(list, Some(&tag)))
}

/// The entity tag of the coded answer in lighttpd's form: `"abc-gzip"`.
pub(super) fn coded_etag(response: &Response, coding: Coding) -> Option<Vec<u8>> {
    let tag = response.get("ETag")?;
    let open = tag
        .strip_suffix(b"\"")
        .filter(|open| open.contains(&b'"'))?;
    let mut coded = open.to_vec();
    coded.push(b'-');
    coded.extend_from_slice(coding.name().as_bytes());
    coded.push(b'"');
    Some(coded)
}

/// Fields that describe the uncompressed bytes.
const UNTRUE: [&str; 5] = [
    "Accept-Ranges",
    "Content-MD5",
    "Digest",
    "Content-Digest",
    "Repr-Digest",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn vary(values: &[&str]) -> Vec<String> {
        let mut response = Response::default();
        for value in values {
            response.append("Vary", value.as_bytes());
        }
        add_vary(&mut response);
        let fields = response.fields().iter();
        fields
            .map(|(_, value)| String::from_utf8_lossy(value).into_owned())
            .collect()
    }

    #[test]
    fn vary_is_merged() {
        assert_eq!(vary(&[]), ["Accept-Encoding"]);
        assert_eq!(
            vary(&["Accept", "Cookie"]),
            ["Accept, Cookie, Accept-Encoding"]
        );
        assert_eq!(vary(&["x, accept-encoding"]), ["x, accept-encoding"]);
        assert_eq!(vary(&["Accept", "*"]), ["Accept", "*"]);
    }

    #[test]
    fn tags_get_the_coding_inside_their_quotes() {
        let coded = |tag: &str| {
            let mut response = Response::default();
            response.set("ETag", tag.as_bytes());
            coded_etag(&response, Coding::Brotli)
                .map(|tag| String::from_utf8_lossy(&tag).into_owned())
        };
        assert_eq!(coded("\"a\"").as_deref(), Some("\"a-br\""));
        assert_eq!(coded("W/\"a\"").as_deref(), Some("W/\"a-br\""));
        assert_eq!(coded("\""), None);
        assert_eq!(coded("a"), None);
    }
}
