//! The response head: what the connection adds to what the modules made.

use petrel_proto::http1::{Version, write_content_length, write_status_line};
use petrel_proto::method::Method;

use super::send::Framing;
use crate::body::Body;
use crate::exchange::Exchange;
use crate::ledger::{Ledger, Nanos, Stage};
use crate::trace;

/// Writes the head of the exchange's response into its outgoing bytes and decides the framing.
pub(super) fn write(exchange: &mut Exchange, keep_alive: bool) {
    let status = exchange.response.status;
    let is_head_unread = !exchange.request.refused_line.is_empty();
    let version = match exchange.settings.core.http11 {
        // Its version is not known either; the answer then bears our own.
        true if is_head_unread => Version::Http11,
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
    let is_tunnel = exchange.receiving.is_tunnel();
    if (is_head || status.is_bodiless()) && !is_tunnel {
        exchange.response.body = Body::Empty;
    }
    let framing = match (length, version) {
        _ if is_head || status.is_bodiless() => Framing::Plain,
        (Some(_), _) => Framing::Plain,
        (None, Version::Http11) => Framing::Chunked,
        (None, Version::Http10) => Framing::UntilClose,
    };
    let keep_alive = keep_alive && framing != Framing::UntilClose;
    let out = exchange.sending.begin(framing, &mut exchange.interim);
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
        _ if is_tunnel => out.extend_from_slice(b"Connection: upgrade\r\n"),
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
        trace::response_header(exchange, exchange.sending.head());
    }
}

/// `Server-Timing: translate;dur=0.012345, ..., total;dur=0.050000` in milliseconds, to the
/// nanosecond so that the parts add up; stages in which no time was measured are left out.
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

fn write_duration(out: &mut Vec<u8>, name: &str, nanos: Nanos) {
    let millis = nanos / NANOS_PER_MILLI;
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(format!(";dur={millis}.{:06}", nanos % NANOS_PER_MILLI).as_bytes());
}

const NANOS_PER_MILLI: Nanos = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// The value as Server Timing (W3C) has it: `#server-timing-metric`, each a token with `dur`
    /// as its parameter. Answers with names and nanoseconds.
    fn metrics(line: &str) -> Vec<(String, Nanos)> {
        let value = line
            .strip_prefix("Server-Timing: ")
            .and_then(|rest| rest.strip_suffix("\r\n"))
            .expect("one field");
        let metric = |text: &str| {
            let (name, duration) = text.split_once(";dur=").expect("a parameter");
            let is_token = |c: char| c.is_ascii_alphanumeric() || c == '-';
            assert!(!name.is_empty() && name.chars().all(is_token), "{text}");
            let (millis, fraction) = duration.split_once('.').expect("a decimal number");
            assert_eq!(fraction.len(), 6, "{text}");
            let number = |digits: &str| digits.parse::<Nanos>().expect("digits");
            (
                name.to_owned(),
                number(millis) * NANOS_PER_MILLI + number(fraction),
            )
        };
        value.split(", ").map(metric).collect()
    }

    #[test]
    fn the_parts_of_server_timing_add_up_to_its_total() {
        let mut ledger = Ledger::default();
        ledger.start(1_000);
        ledger.stamp(Stage::Receive, 1_999);
        ledger.stamp(Stage::Map, 3_001_234_567);
        ledger.skip(3_001_300_001);
        ledger.stamp(Stage::Content, 3_001_300_003);
        let mut out = Vec::new();
        write_server_timing(&mut out, &ledger);
        let metrics = metrics(std::str::from_utf8(&out).expect("ASCII"));
        let names: Vec<&str> = metrics.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["receive", "map", "content", "unattributed", "total"]
        );
        let (total, parts) = metrics.split_last().expect("several");
        assert_eq!(parts.iter().map(|(_, nanos)| nanos).sum::<Nanos>(), total.1);
        assert_eq!(total.1, ledger.total());
        assert_eq!(metrics[0].1, 999);
    }
}
