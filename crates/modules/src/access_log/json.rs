//! `accesslog.format = "json"`: one JSON object per line, with everything there is to log.
//!
//! All keys are in every line and always in the same order, so that they can become columns; a missing value
//! is an empty string. Times whose names end in `_ns` are nanoseconds.

use petrel_engine::proto::escape;
use petrel_engine::proto::request_head::KnownField;

use super::line::{decimal, each_stage, remote_address};
use super::record::Record;
use super::time::{CachedTime, Moment, Unit};

/// State that is kept between lines.
pub(super) struct JsonLine {
    date: CachedTime,
    zone: CachedTime,
}

impl JsonLine {
    pub(super) fn new() -> JsonLine {
        let time = |format| CachedTime::new(format).expect("a format that the tests check");
        JsonLine {
            date: time("%Y-%m-%dT%H:%M:%S"),
            zone: time("%:z"),
        }
    }

    /// Appends the object for `record`, without a line end.
    pub(super) fn write(&self, record: &Record<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"time\":\"");
        self.write_time(record.ended(), out);
        out.extend_from_slice(b"\",\"remote\":\"");
        remote_address(record, out);
        out.push(b'"');
        let field = |field| record.head.field(field).unwrap_or_default();
        text("host", record.head.host(), out);
        text(
            "user",
            record.environment.get("REMOTE_USER").unwrap_or_default(),
            out,
        );
        text("method", record.head.method_bytes(), out);
        text("target", record.original_target, out);
        text("protocol", record.protocol(), out);
        text("refused_line", record.refused_line, out);
        number("status", u64::from(record.response.status.0), out);
        number("bytes_received", record.bytes_received(), out);
        number("bytes_sent", record.sent.bytes, out);
        number("body_bytes_sent", record.sent.body_bytes, out);
        text("referer", field(KnownField::Referer), out);
        text("user_agent", field(KnownField::UserAgent), out);
        text("file", record.physical_path, out);
        number("request_number", u64::from(record.request_number), out);
        truth("keep_alive", record.sent.keep_alive, out);
        truth("complete", record.sent.is_complete, out);
        text("request_id", &record.id.digits(), out);
        cause(record, out);
        number("total_ns", record.ledger.total(), out);
        number("in_kernel_max_ns", record.ledger.in_kernel_max(), out);
        key("stages_ns", out);
        stages(record, out);
        key("waits", out);
        waits(record, out);
        out.push(b'}');
    }

    fn write_time(&self, nanos: u64, out: &mut Vec<u8>) {
        let seconds = Unit::Seconds.of_time(nanos);
        self.date.write(seconds, out);
        out.push(b'.');
        Moment::Fraction(Unit::Microseconds).write(nanos, out);
        self.zone.write(seconds, out);
    }
}

fn key(name: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
}

fn text(name: &str, value: &[u8], out: &mut Vec<u8>) {
    key(name, out);
    out.push(b'"');
    escape::json(out, value);
    out.push(b'"');
}

fn number(name: &str, value: u64, out: &mut Vec<u8>) {
    key(name, out);
    decimal(value, 0, out);
}

fn truth(name: &str, value: bool, out: &mut Vec<u8>) {
    key(name, out);
    out.extend_from_slice(if value { b"true" } else { b"false" });
}

/// The code, and an object with what is known besides; empty if there is no cause.
fn cause(record: &Record<'_>, out: &mut Vec<u8>) {
    let cause = record.response.cause();
    let code = cause.map_or("", |cause| cause.code.name());
    text("cause", code.as_bytes(), out);
    key("cause_details", out);
    out.extend_from_slice(b"{");
    if let Some(cause) = cause {
        out.extend_from_slice(b"\"stage\":\"");
        out.extend_from_slice(cause.code.stage().name().as_bytes());
        out.push(b'"');
        text("failed", cause.code.culprit().name().as_bytes(), out);
        number("errno", cause.errno.into(), out);
        number("attempts", cause.attempts.into(), out);
        truth("reused", cause.is_reused, out);
        number("bytes", cause.bytes, out);
    }
    out.push(b'}');
}

fn stages(record: &Record<'_>, out: &mut Vec<u8>) {
    out.push(b'{');
    let mut separator: &[u8] = b"\"";
    each_stage(record.ledger, |name, nanos| {
        out.extend_from_slice(separator);
        separator = b",\"";
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\":");
        decimal(nanos, 0, out);
    });
    out.push(b'}');
}

fn waits(record: &Record<'_>, out: &mut Vec<u8>) {
    out.push(b'[');
    for (n, wait) in record.waits.iter().enumerate() {
        let separator: &[u8] = if n > 0 { b"," } else { b"" };
        out.extend_from_slice(separator);
        out.extend_from_slice(b"{\"stage\":\"");
        out.extend_from_slice(wait.stage.name().as_bytes());
        out.push(b'"');
        number("ns", wait.nanos, out);
        text("holder", wait.holder.as_bytes(), out);
        out.push(b'}');
    }
    out.push(b']');
}

#[cfg(test)]
mod tests {
    use petrel_engine::cause::{CauseCode, ErrorCause};
    use petrel_engine::ledger::Stage;
    use petrel_engine::waits::Wait;

    use super::super::record::tests::Request;
    use super::*;

    #[test]
    fn a_line_is_one_object_with_all_keys() {
        let mut request = Request::new(
            b"GET /a?x=\"1\" HTTP/1.1\r\nHost: h\r\nUser-Agent: \xc3\xa9\xff\t\r\nReferer: r\r\n\r\n",
        );
        for (nanos, holder) in [(12_000_000, "a\"\n"), (10_000_000, "b")] {
            request.waits.push(Wait {
                stage: Stage::Stat,
                nanos,
                holder: holder.into(),
            });
        }
        let mut out = Vec::new();
        JsonLine::new().write(&request.record(), &mut out);
        let line = String::from_utf8(out).expect("UTF-8");
        let (time, rest) = line.split_once("\",\"remote\"").expect("two keys");
        let shape: String = time
            .chars()
            .map(|c| if c.is_ascii_digit() { '9' } else { c })
            .collect();
        assert_eq!(
            shape.replace('-', "+"),
            "{\"time\":\"9999+99+99T99:99:99.999999+99:99"
        );
        let length = request.head.head_length();
        assert_eq!(
            rest,
            format!(
                ":\"127.0.0.1\",\"host\":\"h\",\"user\":\"\",\"method\":\"GET\",\
                 \"target\":\"/a?x=\\\"1\\\"\",\"protocol\":\"HTTP/1.1\",\"refused_line\":\"\",\"status\":200,\
                 \"bytes_received\":{length},\"bytes_sent\":250,\"body_bytes_sent\":6,\
                 \"referer\":\"r\",\"user_agent\":\"\u{e9}\u{fffd}\",\"file\":\"\",\
                 \"request_number\":3,\"keep_alive\":true,\"complete\":true,\
                 \"request_id\":\"0123456789abcdef\",\"cause\":\"\",\"cause_details\":{{}},\
                 \"total_ns\":1234567,\
                 \"in_kernel_max_ns\":7001,\
                 \"stages_ns\":{{\"read-head\":1000,\"content\":33567,\"send\":1200000}},\
                 \"waits\":[{{\"stage\":\"stat\",\"ns\":12000000,\"holder\":\"a\\\"\\n\"}},\
                 {{\"stage\":\"stat\",\"ns\":10000000,\"holder\":\"b\"}}]}}"
            )
        );
    }

    #[test]
    fn an_error_has_its_cause() {
        let mut request = Request::new(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        let mut cause = ErrorCause::from(CauseCode::GwConnectRefused);
        cause.errno = 111;
        cause.attempts = 2;
        request.response.fail(cause);
        let mut out = Vec::new();
        JsonLine::new().write(&request.record(), &mut out);
        let line = String::from_utf8(out).expect("UTF-8");
        let expected = "\"cause\":\"gw-connect-refused\",\"cause_details\":{\"stage\":\"backend-connect\",\
            \"failed\":\"backend\",\"errno\":111,\"attempts\":2,\"reused\":false,\"bytes\":0},\"total_ns\":";
        assert!(line.contains(expected), "{line}");
    }
}
