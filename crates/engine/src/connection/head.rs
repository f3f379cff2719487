//! The response head: what the connection adds to what the modules made.

use petrel_proto::http1::{Version, write_content_length, write_status_line};
use petrel_proto::method::Method;

use super::send::Framing;
use crate::body::Body;
use crate::exchange::Exchange;
use crate::ledger::{Ledger, Stage};

/// Writes the head of the exchange's response into its outgoing bytes and decides the framing.
pub(super) fn write(exchange: &mut Exchange, keep_alive: bool) {
    let status = exchange.response.status;
    let version = match exchange.settings.core.http11 {
        true => exchange.request.head.version(),
        false => Version::Http10,
    };
    let is_head = exchange.request.head.method() == Method::Head;
    let length = match exchange.response.announced_length {
        Some(length) => Some(length),
        None => exchange.response.body.length(),
    };
    if is_head {
        // The access log tells it, when the body that had it is gone.
        exchange.response.announced_length = length;
    }
    if is_head || status.is_bodiless() {
        exchange.response.body = Body::Empty;
    }
    let framing = match (length, version) {
        _ if is_head || status.is_bodiless() => Framing::Plain,
        (Some(_), _) => Framing::Plain,
        (None, Version::Http11) => Framing::Chunked,
        (None, Version::Http10) => Framing::UntilClose,
    };
    let keep_alive = keep_alive && framing != Framing::UntilClose;
    let out = exchange.sending.begin(framing);
    write_status_line(out, version, status);
    let own = exchange.response.own();
    if !own.date {
        exchange.worker.clock().write_date_line(out);
    }
    if !own.server {
        out.extend_from_slice(&exchange.settings.core.server_line);
    }
    out.extend_from_slice(exchange.response.fields().as_bytes());
    match (length, framing) {
        (_, Framing::Chunked) => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        (Some(length), _) if !status.is_bodiless() => write_content_length(out, length),
        _ => {}
    }
    match (keep_alive, version) {
        (true, Version::Http10) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
        (false, Version::Http11) => out.extend_from_slice(b"Connection: close\r\n"),
        _ => {}
    }
    if exchange.settings.core.server_timing {
        exchange
            .ledger
            .stamp(Stage::Transform, exchange.worker.clock().now());
        write_server_timing(out, &exchange.ledger);
    }
    out.extend_from_slice(b"\r\n");
    exchange.sent.head_bytes = out.len() as u64;
    exchange.sent.keep_alive = keep_alive;
    if exchange.settings.core.debug.response_header {
        exchange.settings.core.error_log.error(format_args!(
            "(response-header) {}",
            String::from_utf8_lossy(exchange.sending.head())
                .trim_end()
                .escape_debug()
        ));
    }
}

/// `Server-Timing: translate;dur=0.012, ..., total;dur=0.050` in milliseconds; stages in which
/// no time was measured are left out.
fn write_server_timing(out: &mut Vec<u8>, ledger: &Ledger) {
    out.extend_from_slice(b"Server-Timing: ");
    for stage in Stage::ALL.iter().filter(|stage| ledger.stage(**stage) > 0) {
        write_duration(out, stage.name(), ledger.stage(*stage));
        out.extend_from_slice(b", ");
    }
    write_duration(out, "unattributed", ledger.unattributed());
    out.extend_from_slice(b", ");
    write_duration(out, "total", ledger.total());
    out.extend_from_slice(b"\r\n");
}

fn write_duration(out: &mut Vec<u8>, name: &str, nanos: u64) {
    let micros = nanos / 1000;
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b";dur=");
    out.extend_from_slice(format!("{}.{:03}", micros / 1000, micros % 1000).as_bytes());
}
