//! CGI variables until `gateway::environment` is there.

use petrel_engine::Exchange;

use super::BodyLength;
use crate::gateway::options::Host;

pub(super) fn build(
    exchange: &Exchange,
    _host: &Host,
    body: BodyLength,
    add: &mut impl FnMut(&[u8], &[u8]),
) {
    let length = match body {
        BodyLength::Known(length) => length,
        _ => 0,
    };
    let head = &exchange.request.head;
    add(b"CONTENT_LENGTH", length.to_string().as_bytes());
    add(b"REQUEST_METHOD", head.method_bytes());
    add(b"SCRIPT_FILENAME", &exchange.physical.path);
    add(b"SCRIPT_NAME", exchange.request.url.path());
    add(b"QUERY_STRING", exchange.request.url.query());
    add(b"REQUEST_URI", head.target());
    add(b"SERVER_PROTOCOL", b"HTTP/1.1");
    add(b"GATEWAY_INTERFACE", b"CGI/1.1");
    add(b"REDIRECT_STATUS", b"200");
    add(b"DOCUMENT_ROOT", &exchange.physical.document_root);
    add(b"HTTP_HOST", head.host());
}
