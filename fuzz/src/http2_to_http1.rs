//! Requests that arrive by HTTP/2 and go to a backend by HTTP/1. Whatever fields there are, the backend sees
//! one request, with the client's fields and a body as long as the client's (RFC 9113 8.2 and 10.3).
//!
//! The input is split at its line ends into fields, each a name and, after the first 0xff, a value. After an
//! empty line the rest is a header block in wire form.

use petrel_proto::header_block::HeaderBlock;
use petrel_proto::hpack::write_literal;
use petrel_proto::http1::{BackendHead, Parsed, write_host};
use petrel_proto::http2::{
    Http2Connection, Http2Event, Http2Options, Lent, PREFACE, flag, kind, write_frame_header,
};
use petrel_proto::request_head::{BodyFraming, HeadOptions, RequestHead, Version};
use petrel_proto::url::{Url, UrlOptions};

pub fn http2_to_http1(input: &[u8]) {
    let (fields, raw) = match input.windows(2).position(|two| two == b"\n\n") {
        Some(end) => (&input[..end], &input[end + 2..]),
        None => (input, &input[..0]),
    };
    let mut block = Vec::new();
    for field in fields.split(|&byte| byte == b'\n') {
        let cut = field.iter().position(|&byte| byte == 0xff);
        let (name, value) = field.split_at(cut.unwrap_or(field.len()));
        write_literal(&mut block, name, value.get(1..).unwrap_or_default());
    }
    block.extend_from_slice(raw);
    for has_body in [false, true] {
        let mut sent = RequestHead::new();
        if receive(&block, has_body, &mut sent)
            && let Some(encoded) = encode(&sent)
        {
            check(&encoded, &sent, has_body);
        }
    }
}

/// Decodes `block` into `head`. Returns whether it is the head of a request.
fn receive(block: &[u8], has_body: bool, head: &mut RequestHead) -> bool {
    let mut bytes = PREFACE.to_vec();
    write_frame_header(&mut bytes, 0, kind::SETTINGS, 0, 0);
    let last = if has_body { 0 } else { flag::END_STREAM };
    let flags = flag::END_HEADERS | last;
    let length = block.len().min(16_384);
    write_frame_header(&mut bytes, length as u32, kind::HEADERS, flags, 1);
    bytes.extend_from_slice(&block[..length]);
    let mut connection = Http2Connection::new(Http2Options::default());
    let (mut trailers, mut used) = (HeaderBlock::new(), 0);
    let head_options = HeadOptions::default();
    while used < bytes.len() {
        let mut lent = Lent {
            head,
            head_options: &head_options,
            trailers: &mut trailers,
            now_s: 0,
        };
        match connection.step(&bytes[used..], &mut lent) {
            Ok(decoded) => match decoded.event {
                // Extended CONNECT gets another form before it goes to a backend.
                Http2Event::Request { .. } => return head.protocol().is_none(),
                _ => used += decoded.consumed,
            },
            Err(_) => return false,
        }
    }
    false
}

/// The head as the gateway sends it to an HTTP backend. `None`: the server refuses the target.
fn encode(head: &RequestHead) -> Option<Vec<u8>> {
    let mut url = Url::new();
    url.parse(head.target(), head.method(), &UrlOptions::default())
        .ok()?;
    let request = BackendHead {
        head,
        method: head.method(),
        version: Version::Http11,
        body: head.framing(),
        passes_ambiguous: false,
        writes_forwarded: false,
    };
    let mut out = Vec::new();
    request.write_request_line(&mut out, |out| out.extend_from_slice(url.target()));
    write_host(&mut out, head.host());
    request.write_fields(&mut out, |_, _| None);
    request.write_body_length(&mut out);
    request.write_connection(&mut out, None);
    out.extend_from_slice(b"\r\n");
    Some(out)
}

/// Checks what the backend reads.
fn check(encoded: &[u8], sent: &RequestHead, has_body: bool) {
    let mut read = RequestHead::new();
    // Bytes that the client sent as they are, the gateway writes as %XX: a head gets up to three times as long.
    let options = HeadOptions {
        head_bytes_max: 4 * HeadOptions::default().head_bytes_max,
        ..HeadOptions::default()
    };
    let parsed = read.parse(encoded, &options);
    let length = encoded.len();
    let text = String::from_utf8_lossy(encoded);
    assert_eq!(parsed, Ok(Parsed::Complete { length }), "{text}");
    assert_eq!(read.version(), Version::Http11);
    assert_eq!(read.method(), sent.method(), "{text}");
    let is_empty = matches!(read.framing(), BodyFraming::None | BodyFraming::Length(0));
    match sent.framing() {
        // A GET that does not end with its head has no body either, unless it has a length.
        BodyFraming::None | BodyFraming::Length(0) => assert!(is_empty, "{text}"),
        _ if !has_body => assert!(is_empty, "{text}"),
        framing => assert_eq!(read.framing(), framing, "{text}"),
    }
    // Each line is a field of the client's, or one of those that are written for the backend.
    let own = [
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "te",
        "upgrade",
    ];
    // The gateway writes these behind the client's, so that no field of the client may be taken for one of them.
    let trusted = [
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-host",
    ];
    for (name, value) in read.iter() {
        let is_in = |names: &[&str], name: &[u8]| {
            let mut names = names.iter();
            names.any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
        };
        let same = |(other, theirs): (&[u8], &[u8])| {
            other.eq_ignore_ascii_case(name) && theirs.trim_ascii() == value
        };
        assert!(is_in(&own, name) || sent.iter().any(same), "{text}");
        let dash = |byte: &u8| match byte.is_ascii_alphanumeric() {
            true => *byte,
            false => b'-',
        };
        let as_variable: Vec<u8> = name.iter().map(dash).collect();
        assert!(!is_in(&trusted, &as_variable), "{text}");
        assert!(!name.eq_ignore_ascii_case(b"proxy"), "{text}");
    }
}
