//! Trailers: which of them are passed on to the other side (RFC 9110 6.5).
//!
//! Decoders provide trailers as lines, each `Name: value` and CR LF:
//! [`BodyDecoder`](crate::http1::BodyDecoder) for the chunked coding of requests and replies,
//! [`Http2Connection`](crate::http2::Http2Connection) for HTTP/2. Both limit their size. Only this module
//! makes a [`HeaderBlock`] of the lines that a gateway may send on. An empty block means that there are no
//! trailers.

use crate::header_block::{HeaderBlock, fields_of};
use crate::request_head::{KnownField, RequestHead};

/// The trailers of a request that may be passed on to a backend. Removed are those that the Connection field
/// of `head` names (RFC 9110 7.6.1), and those that an application which turns fields into variables could
/// take for other fields.
pub fn of_request(lines: &[u8], head: &RequestHead) -> HeaderBlock {
    passed_on(lines, |name| {
        let is_clear = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
        let mut options = head.items(KnownField::Connection);
        !name.iter().all(is_clear) || options.any(|option| option.eq_ignore_ascii_case(name))
    })
}

/// The trailers of a backend's reply that may be passed on to a client. Nearly all replies have none.
#[inline]
pub fn of_reply(lines: &[u8]) -> HeaderBlock {
    match lines.is_empty() {
        true => HeaderBlock::new(),
        false => passed_on(lines, |_| false),
    }
}

/// The fields among `lines`, without those that belong in a head and those for which `stays` returns true.
fn passed_on(lines: &[u8], stays: impl Fn(&[u8]) -> bool) -> HeaderBlock {
    let mut passed = HeaderBlock::new();
    for (name, value) in fields_of(lines) {
        if let Ok(text) = std::str::from_utf8(name)
            && !belongs_in_head(name)
            && !stays(name)
        {
            passed.append(text, value);
        }
    }
    passed
}

/// Whether a field has a meaning only before the body, or would be dangerous if an application merged
/// trailers with the head (RFC 9110 6.5.1): framing, routing, conditions, credentials, cookies, caching,
/// content. Names are compared as applications see them that turn fields into variables, so that
/// `X_Forwarded_For` is `X-Forwarded-For`.
fn belongs_in_head(name: &[u8]) -> bool {
    let dashed = |byte: &u8| match byte.is_ascii_alphanumeric() {
        true => byte.to_ascii_lowercase(),
        false => b'-',
    };
    let name: Vec<u8> = name.iter().map(dashed).collect();
    // RFC 9530 allows it in trailers.
    let is_allowed = name == b"content-digest";
    let has_prefix = PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    !is_allowed && (has_prefix || NAMES.iter().any(|known| name == known.as_bytes()))
}

const PREFIXES: [&[u8]; 4] = [b"content-", b"if-", b"proxy-", b"x-forwarded-"];

const NAMES: [&str; 29] = [
    "age",
    "authorization",
    "cache-control",
    "connection",
    "cookie",
    "date",
    "expect",
    "expires",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "location",
    "max-forwards",
    "pragma",
    "proxy",
    "range",
    "retry-after",
    "set-cookie",
    "status",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "x-host",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_head::HeadOptions;

    fn text(passed: &HeaderBlock) -> String {
        String::from_utf8(passed.as_bytes().to_vec()).expect("the test has text")
    }

    /// The trailers that are passed on, checked to be the same in both directions.
    fn passed(lines: &str) -> String {
        let passed = of_reply(lines.as_bytes());
        assert_eq!(of_request(lines.as_bytes(), &RequestHead::new()), passed);
        text(&passed)
    }

    #[test]
    fn what_applications_say_goes_on() {
        let lines = "Grpc-Status: 0\r\ngrpc-message:\r\nServer-Timing: db;dur=3\r\nContent-Digest: x\r\nX-Sum:  1 \r\n";
        assert_eq!(
            passed(lines),
            "Grpc-Status: 0\r\ngrpc-message: \r\nServer-Timing: db;dur=3\r\nContent-Digest: x\r\nX-Sum: 1\r\n"
        );
        assert_eq!(passed(""), "");
    }

    #[test]
    fn what_belongs_in_the_head_or_to_the_connection_stays() {
        for name in [
            "Content-Length",
            "content-type",
            "CONTENT_LENGTH",
            "Transfer-Encoding",
            "Host",
            "Set-Cookie",
            "Authorization",
            "Proxy-Authorization",
            "If-None-Match",
            "X-Forwarded-For",
            "x_forwarded_proto",
            "X.Host",
        ] {
            assert_eq!(passed(&format!("{name}: 1\r\nA: b\r\n")), "A: b\r\n");
        }
        for field in KnownField::ALL.iter().filter(|field| field.is_hop_by_hop()) {
            assert_eq!(passed(&format!("{}: 1\r\n", field.name())), "");
        }
    }

    #[test]
    fn what_a_client_may_not_say_stays() {
        let mut head = RequestHead::new();
        let bytes = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: x-hop, TE\r\n\r\n";
        let parsed = head.parse(bytes, &HeadOptions::default());
        assert!(parsed.is_ok(), "{parsed:?}");
        let lines = b"X-Hop: 1\r\nA: b\r\nRemote_User: c\r\n";
        assert_eq!(text(&of_request(lines, &head)), "A: b\r\n");
        let all = String::from_utf8_lossy(lines);
        assert_eq!(text(&of_reply(lines)), all);
    }

    #[test]
    fn no_line_becomes_two() {
        assert_eq!(
            passed("A: 1\rSet-Cookie: x\0\r\n"),
            "A: 1 Set-Cookie: x \r\n"
        );
        assert_eq!(passed("A B: 1\r\n: 2\r\n"), "");
    }
}
