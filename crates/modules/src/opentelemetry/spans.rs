//! What the spans of a request say, in the words of OpenTelemetry's semantic conventions for HTTP.
//!
//! The query of the URL and all fields but User-Agent are left out: they may be secret.

use petrel_engine::Exchange;
use petrel_engine::exchange::Peer;
use petrel_engine::proto::otlp::{Span, SpanAttribute, SpanKind, Value};

use crate::request_trace::RequestTrace;

/// The spans of `exchange`, which is over, separated by commas, and how many they are.
pub(super) fn write(exchange: &Exchange, trace: &RequestTrace) -> (Vec<u8>, u64) {
    let mut out = Vec::with_capacity(2048);
    write_server(exchange, trace, &mut out);
    let mut count = 1;
    trace.each_try(|one| {
        let clock = exchange.worker.clock();
        let last = exchange.ledger.started() + exchange.ledger.total();
        let mut attributes = vec![
            (
                "http.request.method",
                Value::Text(exchange.request.method.as_str().as_bytes()),
            ),
            ("petrel.backend", Value::Text(one.backend.as_bytes())),
        ];
        if count > 1 {
            attributes.push(("http.request.resend_count", Value::Int(count - 1)));
        }
        out.push(b',');
        let span = Span {
            trace_id: trace.trace_id,
            span_id: one.span_id,
            parent_id: trace.span_id,
            trace_state: &trace.state,
            name: exchange.request.method.as_str(),
            kind: SpanKind::Client,
            begun: clock.wall_nanos_at(one.begun),
            ended: clock.wall_nanos_at(one.ended.unwrap_or(last)),
            attributes: &attributes,
            events: &[],
            error: one.failure.as_deref(),
        };
        span.write(&mut out);
        count += 1;
    });
    (out, count)
}

fn write_server(exchange: &Exchange, trace: &RequestTrace, out: &mut Vec<u8>) {
    let (head, ledger, clock) = (
        &exchange.request.head,
        &exchange.ledger,
        exchange.worker.clock(),
    );
    let method = head.method().as_str();
    let status = exchange.response.status.0;
    let id = exchange.id.digits();
    let version = head.version().as_str();
    let version = version.strip_prefix("HTTP/").unwrap_or(version);
    let client = match exchange.connection.peer {
        Peer::Ip(peer) => peer.ip().to_canonical().to_string(),
        Peer::Unix => "unix:".to_owned(),
    };
    let mut attributes: Vec<SpanAttribute<'_>> = vec![
        ("http.request.method", Value::Text(method.as_bytes())),
        (
            "url.scheme",
            Value::Text(exchange.scheme().as_str().as_bytes()),
        ),
        (
            "url.path",
            Value::Text(cut(exchange.request.url.path_raw(), PATH_BYTES_MAX)),
        ),
        (
            "server.address",
            Value::Text(cut(head.host_without_port(), HOST_BYTES_MAX)),
        ),
        ("network.protocol.version", Value::Text(version.as_bytes())),
        ("client.address", Value::Text(client.as_bytes())),
        ("http.response.status_code", Value::Int(status.into())),
        (
            "http.response.body.size",
            Value::Int(exchange.sent.body_bytes),
        ),
        ("petrel.request_id", Value::Text(&id)),
    ];
    if let Some(agent) = head.value_of("user-agent") {
        attributes.push((
            "user_agent.original",
            Value::Text(cut(agent, AGENT_BYTES_MAX)),
        ));
    }
    let names: Vec<_> = ledger
        .touched()
        .filter(|stage| ledger.stage(*stage) > 0)
        .map(|stage| {
            (
                format!("petrel.stage_ns.{}", stage.name()),
                ledger.stage(stage),
            )
        })
        .collect();
    attributes.extend(
        names
            .iter()
            .map(|(name, nanos)| (name.as_str(), Value::Int(*nanos))),
    );
    if ledger.in_kernel_max() > 0 {
        attributes.push((
            "petrel.in_kernel_max_ns",
            Value::Int(ledger.in_kernel_max()),
        ));
    }
    let waits: Vec<_> = exchange.waits().iter().map(ToString::to_string).collect();
    let waits: Vec<_> = waits.iter().map(String::as_str).collect();
    if !waits.is_empty() {
        attributes.push(("petrel.waits", Value::Texts(&waits)));
    }
    let span = Span {
        trace_id: trace.trace_id,
        span_id: trace.span_id,
        parent_id: trace.parent_id,
        trace_state: &trace.state,
        name: method,
        kind: SpanKind::Server,
        begun: clock.wall_nanos_at(ledger.started()),
        ended: clock.wall_nanos_at(ledger.started() + ledger.total()),
        attributes: &attributes,
        events: &[],
        // The conventions: errors of clients are none of the server.
        error: (status >= 500).then_some(""),
    };
    span.write(out);
}

/// At most the first `bytes_max` bytes of `text`.
fn cut(text: &[u8], bytes_max: usize) -> &[u8] {
    text.get(..bytes_max).unwrap_or(text)
}

const PATH_BYTES_MAX: usize = 1024;
const HOST_BYTES_MAX: usize = 255;
const AGENT_BYTES_MAX: usize = 256;
