//! Traces of OpenTelemetry in the JSON of OTLP: spans to text.
//!
//! The text of [`ExportRequest`] is what an OTLP/HTTP receiver takes at `/v1/traces` with the type
//! `application/json` (OTLP specification, "JSON Protobuf Encoding": ids are hexadecimal, enums are numbers,
//! and 64-bit integers are strings). The encoder knows no clock and no socket, and makes no ids: all come in
//! as arguments.

use crate::escape;

/// The type of the request body.
pub const CONTENT_TYPE: &str = "application/json";

/// What a span stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// Work within one process.
    Internal,
    /// A request that was answered.
    Server,
    /// A request that was sent to another server.
    Client,
}

impl SpanKind {
    /// The number of the enum `Span.SpanKind`.
    fn number(self) -> u64 {
        match self {
            SpanKind::Internal => 1,
            SpanKind::Server => 2,
            SpanKind::Client => 3,
        }
    }
}

/// The value of an attribute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// Text. What is not UTF-8 becomes U+FFFD.
    Text(&'a [u8]),
    /// A whole number.
    Int(u64),
    /// A truth value.
    Bool(bool),
    /// A list of texts.
    Texts(&'a [&'a str]),
}

/// A name and its value.
pub type SpanAttribute<'a> = (&'a str, Value<'a>);

/// Something that happened at one time within a span.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// When, in nanoseconds since the epoch.
    pub at: u64,
    /// What.
    pub name: &'a str,
    /// More about it.
    pub attributes: &'a [SpanAttribute<'a>],
}

/// A span: one piece of work in a trace.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    /// The trace that it belongs to; not zero.
    pub trace_id: u128,
    /// Its own id; not zero.
    pub span_id: u64,
    /// The span that caused it; 0: none.
    pub parent_id: u64,
    /// The `tracestate` of W3C Trace Context; empty: none.
    pub trace_state: &'a [u8],
    /// What kind of work it was, with few different values.
    pub name: &'a str,
    /// What it stands for.
    pub kind: SpanKind,
    /// When it began, in nanoseconds since the epoch.
    pub begun: u64,
    /// When it ended, in nanoseconds since the epoch.
    pub ended: u64,
    /// More about it.
    pub attributes: &'a [SpanAttribute<'a>],
    /// What happened meanwhile.
    pub events: &'a [Event<'a>],
    /// The work failed, and why. The text may be empty.
    pub error: Option<&'a str>,
}

impl Span<'_> {
    /// Appends the span as a JSON object.
    pub fn write(&self, out: &mut Vec<u8>) {
        text(out, "{\"traceId\":\"");
        hexadecimal(out, self.trace_id, 32);
        text(out, "\",\"spanId\":\"");
        hexadecimal(out, self.span_id.into(), 16);
        if self.parent_id != 0 {
            text(out, "\",\"parentSpanId\":\"");
            hexadecimal(out, self.parent_id.into(), 16);
        }
        if !self.trace_state.is_empty() {
            text(out, "\",\"traceState\":\"");
            escape::json(out, self.trace_state);
        }
        text(out, "\",\"name\":\"");
        escape::json(out, self.name.as_bytes());
        text(out, "\",\"kind\":");
        number(out, self.kind.number());
        text(out, ",\"startTimeUnixNano\":\"");
        number(out, self.begun);
        text(out, "\",\"endTimeUnixNano\":\"");
        number(out, self.ended.max(self.begun));
        out.push(b'"');
        attributes(out, self.attributes);
        if !self.events.is_empty() {
            text(out, ",\"events\":");
            list(out, self.events, |out, event| {
                text(out, "{\"timeUnixNano\":\"");
                number(out, event.at);
                text(out, "\",\"name\":\"");
                escape::json(out, event.name.as_bytes());
                out.push(b'"');
                attributes(out, event.attributes);
                out.push(b'}');
            });
        }
        if let Some(error) = self.error {
            // 2 is STATUS_CODE_ERROR.
            text(out, ",\"status\":{\"code\":2");
            if !error.is_empty() {
                text(out, ",\"message\":\"");
                escape::json(out, error.as_bytes());
                out.push(b'"');
            }
            out.push(b'}');
        }
        out.push(b'}');
    }
}

/// Many spans of one service: `ExportTraceServiceRequest`, which is also what trace files contain.
#[derive(Debug)]
pub struct ExportRequest {
    out: Vec<u8>,
    spans: usize,
}

impl ExportRequest {
    /// A request without spans. `resource`: what made them, at least `service.name`. `scope`: name and
    /// version of the program.
    pub fn new(resource: &[SpanAttribute<'_>], scope: (&str, &str)) -> ExportRequest {
        let mut out = Vec::new();
        text(
            &mut out,
            "{\"resourceSpans\":[{\"resource\":{\"attributes\":",
        );
        list(&mut out, resource, write_attribute);
        text(&mut out, "},\"scopeSpans\":[{\"scope\":{\"name\":\"");
        escape::json(&mut out, scope.0.as_bytes());
        text(&mut out, "\",\"version\":\"");
        escape::json(&mut out, scope.1.as_bytes());
        text(&mut out, "\"},\"spans\":[");
        ExportRequest { out, spans: 0 }
    }

    /// Adds a span.
    pub fn add(&mut self, span: &Span<'_>) {
        self.separate();
        span.write(&mut self.out);
    }

    /// Adds a span that [`Span::write`] has written.
    pub fn add_written(&mut self, span: &[u8]) {
        self.separate();
        self.out.extend_from_slice(span);
    }

    fn separate(&mut self) {
        if self.spans > 0 {
            self.out.push(b',');
        }
        self.spans += 1;
    }

    /// The text.
    pub fn finish(mut self) -> Vec<u8> {
        text(&mut self.out, "]}]}]}");
        self.out
    }
}

fn attributes(out: &mut Vec<u8>, all: &[SpanAttribute<'_>]) {
    if !all.is_empty() {
        text(out, ",\"attributes\":");
        list(out, all, write_attribute);
    }
}

fn write_attribute(out: &mut Vec<u8>, (name, value): &SpanAttribute<'_>) {
    text(out, "{\"key\":\"");
    escape::json(out, name.as_bytes());
    text(out, "\",\"value\":{");
    match value {
        Value::Text(value) => text_value(out, value),
        Value::Int(value) => {
            text(out, "\"intValue\":\"");
            number(out, (*value).min(i64::MAX as u64));
            out.push(b'"');
        }
        Value::Bool(value) => {
            text(out, "\"boolValue\":");
            text(out, if *value { "true" } else { "false" });
        }
        Value::Texts(values) => {
            text(out, "\"arrayValue\":{\"values\":");
            list(out, values, |out, value| {
                out.push(b'{');
                text_value(out, value.as_bytes());
                out.push(b'}');
            });
            out.push(b'}');
        }
    }
    text(out, "}}");
}

fn text_value(out: &mut Vec<u8>, value: &[u8]) {
    text(out, "\"stringValue\":\"");
    escape::json(out, value);
    out.push(b'"');
}

fn list<T>(out: &mut Vec<u8>, all: &[T], write: impl Fn(&mut Vec<u8>, &T)) {
    out.push(b'[');
    for (n, one) in all.iter().enumerate() {
        if n > 0 {
            out.push(b',');
        }
        write(out, one);
    }
    out.push(b']');
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

fn number(out: &mut Vec<u8>, number: u64) {
    text(out, itoa::Buffer::new().format(number));
}

fn hexadecimal(out: &mut Vec<u8>, number: u128, digits: u32) {
    for place in (0..digits).rev() {
        let digit = (number >> (4 * place)) as u8 & 0xf;
        out.push(if digit < 10 {
            b'0' + digit
        } else {
            b'a' + digit - 10
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span() -> Span<'static> {
        Span {
            trace_id: 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736,
            span_id: 0x00f0_67aa_0ba9_02b7,
            parent_id: 0,
            trace_state: b"",
            name: "GET",
            kind: SpanKind::Server,
            begun: 1_700_000_000_000_000_001,
            ended: 1_700_000_000_000_000_009,
            attributes: &[],
            events: &[],
            error: None,
        }
    }

    fn written(span: &Span<'_>) -> String {
        let mut out = Vec::new();
        span.write(&mut out);
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn a_span_has_ids_in_hexadecimal_and_times_as_strings() {
        assert_eq!(
            written(&span()),
            "{\"traceId\":\"4bf92f3577b34da6a3ce929d0e0e4736\",\"spanId\":\"00f067aa0ba902b7\",\
             \"name\":\"GET\",\"kind\":2,\"startTimeUnixNano\":\"1700000000000000001\",\
             \"endTimeUnixNano\":\"1700000000000000009\"}"
        );
    }

    #[test]
    fn everything_that_a_span_may_have_is_written() {
        let values = ["one", "t\"wo"];
        let attributes = [
            ("url.path", Value::Text(b"/a\"\r\n\xff")),
            ("n", Value::Int(u64::MAX)),
            ("b", Value::Bool(true)),
            ("w", Value::Texts(&values)),
        ];
        let event = Event {
            at: 5,
            name: "e",
            attributes: &attributes[2..3],
        };
        let full = Span {
            parent_id: 1,
            trace_state: b"a=1",
            kind: SpanKind::Client,
            attributes: &attributes,
            events: &[event],
            error: Some("it \"broke\""),
            ended: 0,
            ..span()
        };
        assert_eq!(
            written(&full),
            "{\"traceId\":\"4bf92f3577b34da6a3ce929d0e0e4736\",\"spanId\":\"00f067aa0ba902b7\",\
             \"parentSpanId\":\"0000000000000001\",\"traceState\":\"a=1\",\
             \"name\":\"GET\",\"kind\":3,\"startTimeUnixNano\":\"1700000000000000001\",\
             \"endTimeUnixNano\":\"1700000000000000001\",\"attributes\":[\
             {\"key\":\"url.path\",\"value\":{\"stringValue\":\"/a\\\"\\r\\n\u{fffd}\"}},\
             {\"key\":\"n\",\"value\":{\"intValue\":\"9223372036854775807\"}},\
             {\"key\":\"b\",\"value\":{\"boolValue\":true}},\
             {\"key\":\"w\",\"value\":{\"arrayValue\":{\"values\":[\
             {\"stringValue\":\"one\"},{\"stringValue\":\"t\\\"wo\"}]}}}],\
             \"events\":[{\"timeUnixNano\":\"5\",\"name\":\"e\",\"attributes\":[\
             {\"key\":\"b\",\"value\":{\"boolValue\":true}}]}],\
             \"status\":{\"code\":2,\"message\":\"it \\\"broke\\\"\"}}"
        );
    }

    #[test]
    fn a_request_names_the_service_once() {
        let mut request =
            ExportRequest::new(&[("service.name", Value::Text(b"shop"))], ("petrel", "1.0"));
        request.add(&span());
        request.add_written(b"{}");
        assert_eq!(request.spans, 2);
        let text = String::from_utf8(request.finish()).expect("UTF-8");
        let one = written(&span());
        assert_eq!(
            text,
            format!(
                "{{\"resourceSpans\":[{{\"resource\":{{\"attributes\":[{{\"key\":\"service.name\",\
                 \"value\":{{\"stringValue\":\"shop\"}}}}]}},\"scopeSpans\":[{{\"scope\":{{\
                 \"name\":\"petrel\",\"version\":\"1.0\"}},\"spans\":[{one},{{}}]}}]}}]}}"
            )
        );
    }
}
