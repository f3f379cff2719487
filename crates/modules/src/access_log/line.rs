//! Writes a line in a compiled format.

use std::io::Write as _;
use std::net::IpAddr;

use petrel_engine::ledger::{Ledger, Stage};
use petrel_engine::proto::escape;
use petrel_engine::waits::Wait;

use super::format::{Field, FormatPart, LineFormat, Port, Span};
use super::record::{Record, ResponseField};
use super::time::{End, Unit};

/// How values that the client has chosen are escaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Escaping {
    /// As lighttpd does: `\"`, `\\`, `\n`, `\xHH`.
    Log,
    /// For the inside of a JSON string.
    Json,
}

impl Escaping {
    fn write(self, text: &[u8], out: &mut Vec<u8>) {
        // The common case, nothing to escape: a single copy.
        let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
        if text.iter().all(is_plain) {
            return out.extend_from_slice(text);
        }
        match self {
            Escaping::Log => escape::log(out, text),
            Escaping::Json => escape::json(out, text),
        }
    }

    /// Writes a value, or `-` if it is missing or empty.
    fn write_or_dash(self, text: Option<&[u8]>, out: &mut Vec<u8>) {
        match text {
            None | Some([]) => out.push(b'-'),
            Some(text) => self.write(text, out),
        }
    }
}

/// Appends the line that `format` makes of `record`, without a line end.
pub(super) fn write(
    format: &LineFormat,
    escaping: Escaping,
    record: &Record<'_>,
    out: &mut Vec<u8>,
) {
    for part in &format.parts {
        match part {
            FormatPart::Text(text) => out.extend_from_slice(text),
            FormatPart::Field(field) => write_field(field, escaping, record, out),
        }
    }
}

fn write_field(field: &Field, escaping: Escaping, record: &Record<'_>, out: &mut Vec<u8>) {
    match field {
        Field::RemoteAddress => remote_address(record, out),
        Field::LocalAddress => ip_or_dash(record.local_ip(), out),
        Field::BodyBytes if record.sent.bytes > 0 => decimal(record.sent.body_bytes, 0, out),
        Field::BytesSent if record.sent.bytes > 0 => decimal(record.sent.bytes, 0, out),
        Field::BodyBytes | Field::BytesSent => out.push(b'-'),
        // A missing cookie is empty and not a dash, as in lighttpd.
        Field::Cookie(name) => {
            escaping.write(record.cookie(name.as_bytes()).unwrap_or_default(), out);
        }
        Field::Duration(unit) => decimal(unit.of_duration(record.ledger.total()), 0, out),
        Field::Environment(name) => escaping.write_or_dash(record.environment.get(name), out),
        Field::FileName => escaping.write_or_dash(Some(record.physical_path), out),
        Field::Protocol => out.extend_from_slice(record.protocol()),
        Field::RequestHeader(name) => escaping.write_or_dash(record.head.value_of(name), out),
        Field::BytesReceived => decimal(record.bytes_received(), 0, out),
        Field::KeepAliveRequests => {
            decimal(u64::from(record.request_number.saturating_sub(1)), 0, out);
        }
        Field::Method => escaping.write(record.head.method_bytes(), out),
        Field::ResponseHeader(name) => match record.response_field(name) {
            Some(ResponseField::Number(number)) => decimal(number, 0, out),
            Some(ResponseField::Text(text)) => escaping.write_or_dash(Some(text), out),
            None => out.push(b'-'),
        },
        Field::Port(port) => write_port(*port, record, out),
        Field::Query => escaping.write(record.url.query(), out),
        Field::RequestLine => request_line(escaping, record, out),
        Field::Status => decimal(u64::from(record.response.status.0), 0, out),
        Field::Time(End::Begin, moment) => moment.write(record.begun(), out),
        Field::Time(End::End, moment) => moment.write(record.ended(), out),
        Field::UrlPath => escaping.write(record.url.path_raw(), out),
        Field::ServerName => escaping.write_or_dash(Some(record.server_name()), out),
        Field::Host => escaping.write_or_dash(Some(record.head.host()), out),
        Field::ConnectionState => out.push(connection_state(record)),
        Field::Stage(span, unit) => {
            decimal(unit.of_duration(nanos_of(*span, record.ledger)), 0, out);
        }
        Field::Stages => stages(record.ledger, out),
        Field::Waits => waits(record.waits, escaping, out),
        Field::InKernel(unit) => decimal(unit.of_duration(record.ledger.in_kernel_max()), 0, out),
        Field::RequestId => out.extend_from_slice(&record.id.digits()),
        Field::Cause => match record.response.cause() {
            Some(cause) => out.extend_from_slice(cause.code.name().as_bytes()),
            None => out.push(b'-'),
        },
    }
}

/// The client's address; `-` for a unix socket.
pub(super) fn remote_address(record: &Record<'_>, out: &mut Vec<u8>) {
    ip_or_dash(record.remote_ip(), out);
}

fn ip_or_dash(ip: Option<IpAddr>, out: &mut Vec<u8>) {
    match ip {
        Some(IpAddr::V4(ip)) => {
            let [a, b, c, d] = ip.octets();
            decimal(u64::from(a), 0, out);
            for octet in [b, c, d] {
                out.push(b'.');
                decimal(u64::from(octet), 0, out);
            }
        }
        // Writing to a vector cannot fail.
        Some(IpAddr::V6(ip)) => drop(write!(out, "{ip}")),
        None => out.push(b'-'),
    }
}

fn write_port(port: Port, record: &Record<'_>, out: &mut Vec<u8>) {
    let number = match port {
        Port::Canonical => Some(record.server_port),
        Port::Local => Some(record.listener_port),
        Port::Remote => record.remote_port(),
    };
    match number {
        Some(number) => decimal(u64::from(number), 0, out),
        None => out.push(b'-'),
    }
}

fn request_line(escaping: Escaping, record: &Record<'_>, out: &mut Vec<u8>) {
    if !record.refused_line.is_empty() {
        return escaping.write(record.refused_line, out);
    }
    escaping.write(record.head.method_bytes(), out);
    out.push(b' ');
    escaping.write(record.request_target(), out);
    out.push(b' ');
    out.extend_from_slice(record.protocol());
}

/// As in Apache: `X` the answer was cut off, `+` the connection stays open, `-` it was closed after the
/// answer.
fn connection_state(record: &Record<'_>) -> u8 {
    match (record.sent.is_complete, record.sent.keep_alive) {
        (false, _) => b'X',
        (true, true) => b'+',
        (true, false) => b'-',
    }
}

fn nanos_of(span: Span, ledger: &Ledger) -> u64 {
    match span {
        Span::Of(stage) => ledger.stage(stage),
        Span::Total => ledger.total(),
        Span::Unattributed => ledger.unattributed(),
    }
}

/// `read-head=1,content=34,send=1200,total=1235`, in microseconds.
fn stages(ledger: &Ledger, out: &mut Vec<u8>) {
    each_stage(ledger, |name, nanos| {
        out.extend_from_slice(name.as_bytes());
        out.push(b'=');
        decimal(Unit::Microseconds.of_duration(nanos), 0, out);
        out.push(b',');
    });
    out.extend_from_slice(b"total=");
    decimal(Unit::Microseconds.of_duration(ledger.total()), 0, out);
}

/// `backend-queue 412 ms: …; stat 2.1 s: …`, or a dash. A holder may contain what clients have sent, such as
/// the path of another request.
fn waits(waits: &[Wait], escaping: Escaping, out: &mut Vec<u8>) {
    if waits.is_empty() {
        out.push(b'-');
    }
    for (n, wait) in waits.iter().enumerate() {
        if n > 0 {
            out.extend_from_slice(b"; ");
        }
        escaping.write(wait.to_string().as_bytes(), out);
    }
}

/// Calls `tell` with every stage that took time, and with the time that belongs to no stage.
pub(super) fn each_stage(ledger: &Ledger, mut tell: impl FnMut(&str, u64)) {
    for &stage in Stage::ALL {
        let nanos = ledger.stage(stage);
        if nanos > 0 {
            tell(stage.name(), nanos);
        }
    }
    if ledger.unattributed() > 0 {
        tell("unattributed", ledger.unattributed());
    }
}

/// Appends `number` with at least `digits` digits.
pub(super) fn decimal(number: u64, digits: usize, out: &mut Vec<u8>) {
    let mut text = [b'0'; 20];
    let mut rest = number;
    let mut used = 0;
    for place in text.iter_mut().rev() {
        if rest == 0 && used >= digits.max(1) {
            break;
        }
        *place = b'0' + (rest % 10) as u8;
        rest /= 10;
        used += 1;
    }
    out.extend_from_slice(text.get(text.len() - used..).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use petrel_engine::cause::CauseCode;
    use petrel_engine::exchange::Peer;
    use petrel_engine::proto::status::Status;

    use super::super::record::tests::Request;
    use super::*;

    const HEAD: &[u8] = b"GET /a.txt?x=1&y=%20+b HTTP/1.1\r\nHost: Example.COM:18471\r\n\
        Referer: http://x/\"q\"\\b\r\nCookie: a=1; ck=yum; b=2\r\n\
        User-Agent: caf\xc3\xa9\tz\xff|\r\n\r\n";

    fn line(format: &str, request: &Request) -> String {
        escaped_line(format, Escaping::Log, request)
    }

    fn escaped_line(format: &str, escaping: Escaping, request: &Request) -> String {
        let format = LineFormat::parse(format).expect("a sound format");
        let mut out = Vec::new();
        write(&format, escaping, &request.record(), &mut out);
        String::from_utf8(out).expect("UTF-8")
    }

    /// The expected lines are what lighttpd 1.4.69 wrote for the same request.
    #[test]
    fn every_code_says_what_lighttpd_says() {
        let mut request = Request::new(HEAD);
        request.path = b"/srv/a.txt".to_vec();
        request.server_name = Some(b"srvname".to_vec());
        request.response.append("X-R", b"resp");
        request.environment.set("FOO", b"bar\"x");
        for (format, expected) in [
            ("%a|%h|%A", "127.0.0.1|127.0.0.1|127.0.0.1"),
            ("%b|%B|%O", "6|6|250"),
            ("%{ck}C|%{none}C|", "yum||"),
            ("%{FOO}e|%{FOO}n|%{NOPE}e", "bar\\\"x|bar\\\"x|-"),
            ("%f", "/srv/a.txt"),
            ("%H|%m|%r", "HTTP/1.1|GET|GET /a.txt?x=1&y=%20+b HTTP/1.1"),
            ("%{Referer}i", "http://x/\\\"q\\\"\\\\b"),
            ("%{user-agent}i", "caf\\xC3\\xA9\\tz\\xFF|"),
            ("%{X-None}i", "-"),
            ("%k|%l|%u", "2|-|-"),
            (
                "%{X-R}o|%{Content-Type}o|%{Content-Length}o",
                "resp|text/plain|6",
            ),
            ("%{Date}o|%{Connection}o", "-|-"),
            ("%p|%{canonical}p|%{local}p|%{remote}p", "80|80|18471|42168"),
            ("%q|%U", "x=1&y=%20+b|/a.txt"),
            ("%s|%>s|%<s", "200|200|200"),
            (
                "%v|%V|%{Host}i",
                "srvname|example.com:18471|example.com:18471",
            ),
            ("%X|%%", "+|%"),
        ] {
            assert_eq!(line(format, &request), expected, "{format}");
        }
        assert_eq!(line("%I", &request), HEAD.len().to_string());
    }

    #[test]
    fn what_is_not_there_is_a_dash() {
        let mut request = Request::new(b"GET / HTTP/1.0\r\nReferer:\r\n\r\n");
        request.sent = Default::default();
        request.peer = Peer::Unix;
        assert_eq!(
            line(
                "%h|%A|%b|%B|%O|%f|%v|%V|%{Referer}i|%{remote}p|%u",
                &request
            ),
            "-|-|-|-|-|-|-|-|-|-|-"
        );
        assert_eq!(
            line("%q|%X|%{Connection}o|%{Content-Length}o", &request),
            "|X|close|-"
        );
    }

    #[test]
    fn a_head_request_tells_the_length_it_announced() {
        let mut request = Request::new(b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n");
        request.sent.body_bytes = 0;
        request.response.announced_length = Some(6);
        assert_eq!(line("%{Content-Length}o|%b", &request), "6|0");
    }

    #[test]
    fn the_user_is_who_was_authenticated() {
        let mut request = Request::new(HEAD);
        request
            .environment
            .set("REMOTE_USER", b"jan\n127.0.0.1 - root");
        assert_eq!(line("%u", &request), "jan\\n127.0.0.1 - root");
    }

    #[test]
    fn an_absolute_target_is_told_without_its_host() {
        let request = Request::new(b"GET http://abs/a.txt?q HTTP/1.1\r\nHost: abs\r\n\r\n");
        assert_eq!(line("%r|%V", &request), "GET /a.txt?q HTTP/1.1|abs");
        let request = Request::new(b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(line("%r|%U", &request), "OPTIONS * HTTP/1.1|*");
    }

    #[test]
    fn a_refused_head_is_told_by_its_first_line() {
        let mut request = Request::new(HEAD);
        request.refused_line = b"GE T /\"\xff HTTP/9".to_vec();
        assert_eq!(line("\"%r\"", &request), r#""GE T /\"\xFF HTTP/9""#);
    }

    #[test]
    fn durations_have_their_units() {
        let request = Request::new(HEAD);
        assert_eq!(line("%D|%{us}D|%{ms}D|%{s}D", &request), "1235|1235|2|0");
        assert_eq!(
            line("%T|%{ms}T|%{us}T|%{ns}T|%{sec}T", &request),
            "0|2|1235|1234567|0"
        );
    }

    #[test]
    fn stages_come_from_the_ledger() {
        let request = Request::new(HEAD);
        assert_eq!(
            line(
                "%{stage:read-head}x|%{stage:content:ns}x|%{stage:parse}x|%{stage:total:ms}x",
                &request
            ),
            "1|33567|0|2"
        );
        assert_eq!(
            line("%{stages}x", &request),
            "read-head=1,content=34,send=1200,total=1235"
        );
        assert_eq!(line("%{in-kernel}x|%{in-kernel:ns}x", &request), "8|7001");
    }

    /// The only stages that a format can name are those of the table.
    #[test]
    fn every_stage_has_a_code() {
        let request = Request::new(HEAD);
        for stage in Stage::ALL {
            let told = line(&format!("%{{stage:{}:ns}}x", stage.name()), &request);
            let expected = request.record().ledger.stage(*stage);
            assert_eq!(told, expected.to_string(), "{stage:?}");
        }
    }

    #[test]
    fn waits_are_told_and_cannot_forge_a_line() {
        let mut request = Request::new(HEAD);
        assert_eq!(line("%{waits}x", &request), "-");
        for holder in ["pool \"www\" full", "/a\r\nb\u{e9}\\"] {
            request.waits.push(Wait {
                stage: Stage::BackendQueue,
                nanos: 412_000_000,
                holder: holder.into(),
            });
        }
        assert_eq!(
            line("%{waits}x", &request),
            "backend-queue 412 ms: pool \\\"www\\\" full; \
             backend-queue 412 ms: /a\\r\\nb\\xC3\\xA9\\\\"
        );
        assert_eq!(
            escaped_line("%{waits}x", Escaping::Json, &request),
            "backend-queue 412 ms: pool \\\"www\\\" full; \
             backend-queue 412 ms: /a\\r\\nb\u{e9}\\\\"
        );
    }

    #[test]
    fn the_id_of_the_request_is_told() {
        let request = Request::new(HEAD);
        assert_eq!(line("%{request-id}x|%s", &request), "0123456789abcdef|200");
    }

    #[test]
    fn the_cause_of_an_error_is_told() {
        let mut request = Request::new(HEAD);
        assert_eq!(line("%{cause}x", &request), "-");
        request.response.fail(CauseCode::GwClosed);
        assert_eq!(line("%s %{cause}x", &request), "502 gw-closed");
        request.response.answer_as_told(Status::BAD_GATEWAY);
        assert_eq!(line("%s %{cause}x", &request), "502 -");
    }

    #[test]
    fn times_are_of_begin_or_end() {
        let request = Request::new(HEAD);
        let (begun, ended) = (request.record().begun(), request.record().ended());
        assert_eq!(ended - begun, 1_234_567);
        assert_eq!(
            line("%{begin:nsec}t|%{nsec}t", &request),
            format!("{begun}|{ended}")
        );
        assert_eq!(line("%{usec}t|%{end:msec}t|%{sec}t", &request), {
            format!(
                "{}|{}|{}",
                ended / 1_000,
                ended / 1_000_000,
                ended / 1_000_000_000
            )
        });
        let part = ended % 1_000_000_000;
        assert_eq!(
            line("%{msec_frac}t|%{usec_frac}t|%{nsec_frac}t", &request),
            format!("{:03}|{:06}|{part:09}", part / 1_000_000, part / 1_000)
        );
        assert_eq!(
            line("%{begin:%s}t", &request),
            (begun / 1_000_000_000).to_string()
        );
        let shape: String = line("%t", &request)
            .chars()
            .map(|c| {
                if c.is_ascii_digit() {
                    '9'
                } else if c.is_alphabetic() {
                    'a'
                } else {
                    c
                }
            })
            .collect();
        assert_eq!(shape.replace('-', "+"), "[99/aaa/9999:99:99:99 +9999]");
    }

    #[test]
    fn no_value_can_end_a_line_or_a_string() {
        let mut request = Request::new(HEAD);
        request
            .environment
            .set("ALL", &(0..=255).collect::<Vec<u8>>());
        for escaping in [Escaping::Log, Escaping::Json] {
            let line = escaped_line("%{ALL}e", escaping, &request);
            assert!(line.chars().all(|c| c >= ' '), "{line}");
            let quotes = line.matches('"').count();
            assert_eq!((quotes, line.matches("\\\"").count()), (1, 1), "{line}");
        }
    }

    #[test]
    fn json_escaping_makes_sound_strings() {
        let request = Request::new(HEAD);
        assert_eq!(
            escaped_line(
                "\"%{User-Agent}i\",\"%{Referer}i\"",
                Escaping::Json,
                &request
            ),
            "\"caf\u{e9}\\tz\u{fffd}|\",\"http://x/\\\"q\\\"\\\\b\""
        );
    }

    #[test]
    fn numbers_are_decimal() {
        let text = |number, digits| {
            let mut out = Vec::new();
            decimal(number, digits, &mut out);
            String::from_utf8(out).expect("digits")
        };
        assert_eq!(text(0, 0), "0");
        assert_eq!(text(7, 3), "007");
        assert_eq!(text(12345, 3), "12345");
        assert_eq!(text(u64::MAX, 0), u64::MAX.to_string());
    }
}
