//! Recorded requests as traces of OpenTelemetry: one trace for each request, with a span for each of its
//! stages.
//!
//! Only the sums of the stages are recorded, so their spans follow one another in their usual order.

use engine::exchange::client_of_key;
use engine::proto::recording::{Record, RecordFlag, Recording};
use proto::otlp::{Event, ExportRequest, Span, SpanKind, Value};

use super::lines;

/// All records as the JSON of OTLP, which `/v1/traces` of a collector takes.
pub(crate) fn traces(recording: &Recording) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let resource = [
        ("service.name", Value::Text(b"petrel")),
        ("service.version", Value::Text(version.as_bytes())),
    ];
    let mut request = ExportRequest::new(&resource, ("petrel", version));
    for record in recording.all() {
        add(&mut request, record);
    }
    request.finish()
}

fn add(request: &mut ExportRequest, record: &Record) {
    let id = record.id.to_bits().max(1);
    // The id of the request ends the id of its trace, so that one is found by the other.
    let trace_id = u128::from(record.started.max(1)) << 64 | u128::from(id);
    let (client, text) = (client_of_key(record.client), record.id.to_string());
    let attributes = [
        (
            "http.request.method",
            Value::Text(record.method.as_str().as_bytes()),
        ),
        ("url.path", Value::Text(&record.path)),
        ("server.address", Value::Text(&record.host)),
        ("client.address", Value::Text(client.as_bytes())),
        (
            "http.response.status_code",
            Value::Int(record.status.into()),
        ),
        ("petrel.request.id", Value::Text(text.as_bytes())),
        ("petrel.worker", Value::Int(record.worker.into())),
        ("petrel.cause", Value::Text(lines::cause(record).as_bytes())),
        ("petrel.sent_bytes", Value::Int(record.sent_bytes)),
        (
            "petrel.subrequest",
            Value::Bool(record.is(RecordFlag::Subrequest)),
        ),
    ];
    let holders: Vec<_> = record
        .waits
        .iter()
        .map(|wait| {
            [
                ("petrel.stage", Value::Text(wait.stage.name().as_bytes())),
                ("petrel.waited_ns", Value::Int(wait.nanos)),
                ("petrel.holder", Value::Text(&wait.holder)),
            ]
        })
        .collect();
    let ended = record.started.saturating_add(record.total);
    let event = |attributes| Event {
        at: ended,
        name: "wait",
        attributes,
    };
    let events: Vec<Event<'_>> = holders.iter().map(|holder| event(holder)).collect();
    request.add(&Span {
        trace_id,
        span_id: id,
        parent_id: 0,
        trace_state: b"",
        name: record.method.as_str(),
        kind: SpanKind::Server,
        begun: record.started,
        ended,
        attributes: &attributes,
        events: &events,
        error: (record.status >= 500).then_some(""),
    });
    let mut at = record.started;
    for (stage, nanos) in &record.stages {
        let begun = at;
        at = at.saturating_add(*nanos);
        request.add(&Span {
            trace_id,
            // Other requests have other numbers above the lowest bits; a clash would be in another trace.
            span_id: id.wrapping_add(1 + *stage as u64).max(1),
            parent_id: id,
            trace_state: b"",
            name: stage.name(),
            kind: SpanKind::Internal,
            begun,
            ended: at,
            attributes: &[],
            events: &[],
            error: None,
        });
    }
}
