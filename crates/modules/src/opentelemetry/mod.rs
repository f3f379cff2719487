//! mod_opentelemetry: a span for each request and for each try at a backend, sent to a collector by
//! OTLP/HTTP.
//!
//! The first hook decides whether the request is traced: as a trusted proxy says in `traceparent`, else by
//! chance. From then on the request's own `traceparent` is what backends get, in any protocol. The last hook
//! writes the spans ([`mod@spans`]) and hands them to the thread that sends them ([`mod@exporter`]); if its queue
//! is full, they are dropped and counted, and no request waits. Without `otel.endpoint` there are no hooks.

mod endpoint;
mod exporter;
mod spans;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use petrel_engine::Exchange;
use petrel_engine::config::{Config, Diagnostic, Effect};
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase, Purpose};
use petrel_engine::proto::syntax::is_token;
use petrel_engine::proto::trace_context::{self, TRACEPARENT, TRACESTATE, TraceParent};
use petrel_engine::settings::Values;
use petrel_engine::shared::Shared;

use crate::extforward::{ACTUAL_FOR, Trust};
use crate::gateway::trust::LoadedTrusts;
use crate::request_trace::{RequestTrace, SpanIds};
use endpoint::Collector;
use exporter::Destination;
pub use exporter::Exporter;

const NAME: &str = "mod_opentelemetry";

/// mod_opentelemetry.
pub(crate) static MODULE: ModuleSpec = ModuleSpec {
    name: NAME,
    doc: "Sends traces of requests to a collector of OpenTelemetry.",
    loaded: Loaded::Listed,
    directives: petrel_engine::directives! {
        "otel.endpoint", String, Server, "unset", Effect::Works,
            "Where traces are sent, by OTLP/HTTP in JSON: http://host:4318 or https://host:4318. Unless the URL has a \
             path, it is /v1/traces. Unset, nothing is traced.";
        "otel.service-name", String, Server, "\"petrel\"", Effect::Works,
            "The service.name of all spans.";
        "otel.headers", StringMap, Server, "()", Effect::Works,
            "Fields of the requests to the collector, such as ( \"Authorization\" => \"Bearer …\" ). Their values are \
             in no log.";
        "otel.sample-rate", String, Request, "\"1\"", Effect::Works,
            "Which share of the requests is traced, from \"0\" to \"1\". If a proxy that extforward.forwarder trusts \
             has sent a traceparent, what that says counts instead.";
        "otel.always-errors", Bool, Request, "disable", Effect::Works,
            "Also sends the spans of requests that were not chosen, if they end with status 500 or more. Backends \
             do not know then that the trace is recorded.";
        "otel.always-slower-than", Int, Request, "0", Effect::Works,
            "The same for requests that take at least this number of milliseconds. 0: for none.";
    },
    configure,
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let values = configure.values;
    let destination = destination(values)?;
    let sampling = Sampling::of(values)?;
    let Some(destination) = destination else {
        return Ok(());
    };
    if configure.purpose == Purpose::Check {
        return Ok(());
    }
    let destination = Arc::new(destination);
    configure.add_early(
        Phase::Translate,
        BeginTrace {
            trust: Trust::parse(values),
            sampling,
        },
    );
    configure.add(
        Phase::Log,
        EndTrace {
            destination,
            sampling,
        },
    );
    Ok(())
}

/// Where to send traces. `None`: nowhere.
fn destination(values: &Values<'_>) -> Result<Option<Destination>, Diagnostic> {
    let mut fields = Vec::new();
    for element in values.array("otel.headers").into_iter().flatten() {
        let (name, value) = (element.key().unwrap_or_default(), element.value.as_str());
        let value = value.unwrap_or_default();
        let is_sound =
            is_token(name.as_bytes()) && !value.bytes().any(|byte| byte.is_ascii_control());
        if !is_sound {
            // The value may be a secret, so the message does not show it.
            let message = format!("otel.headers: {name:?} is no field of a request");
            return Err(Diagnostic::error(message, element.span).with_hint(
                "names are made of letters, digits and hyphens; values have no line ends",
            ));
        }
        fields.push((name.to_owned(), value.to_owned()));
    }
    let Some(url) = values.string("otel.endpoint") else {
        return Ok(None);
    };
    let endpoint = Collector::parse(url).map_err(|message| {
        values
            .error("otel.endpoint", message)
            .with_hint("write http://127.0.0.1:4318 or https://collector.example.org:4318")
    })?;
    Ok(Some(Destination {
        endpoint,
        fields,
        service: values
            .string("otel.service-name")
            .unwrap_or("petrel")
            .to_owned(),
    }))
}

/// Reads the certificates that the system trusts, if the collector speaks TLS.
///
/// # Errors
/// There are none.
pub fn load_authorities(
    config: &Config,
    modules: &[&'static ModuleSpec],
    trusts: &mut LoadedTrusts,
) -> Result<(), Diagnostic> {
    let entry = config.global().entry("otel.endpoint");
    let is_tls = |text: &str| {
        text.get(..6)
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"))
    };
    let Some(entry) = entry.filter(|entry| entry.value.as_str().is_some_and(is_tls)) else {
        return Ok(());
    };
    if !modules.iter().any(|module| module.name == NAME) {
        return Ok(());
    }
    trusts.add_authorities(None).map_err(|message| {
        Diagnostic::error(message, entry.value_span)
            .with_hint("install the package ca-certificates, or set SSL_CERT_FILE")
    })
}

/// The exporter of the server process, to let it finish at the end.
pub fn exporter(shared: &Shared) -> Arc<Exporter> {
    shared.belonging(Exporter::default)
}

/// Adds the numbers of spans that were sent and dropped.
pub(crate) fn read_counters(shared: &Shared, counters: &mut BTreeMap<String, u64>) {
    let exporter = exporter(shared);
    if exporter.is_used() {
        counters.insert("otel.spans-sent".to_owned(), exporter.spans_sent());
        counters.insert("otel.spans-dropped".to_owned(), exporter.spans_dropped());
    }
}

/// Which requests are traced.
#[derive(Clone, Copy, Debug)]
struct Sampling {
    /// A request is chosen if a random number is below this.
    below: u64,
    always_errors: bool,
    /// Nanoseconds; `u64::MAX`: none.
    always_slower_than: u64,
}

impl Sampling {
    fn of(values: &Values<'_>) -> Result<Sampling, Diagnostic> {
        let rate = values.string("otel.sample-rate").unwrap_or("1");
        let parsed = rate
            .parse::<f64>()
            .ok()
            .filter(|rate| (0.0..=1.0).contains(rate));
        let Some(rate) = parsed else {
            let message = format!("otel.sample-rate: {rate:?} is not from 0 to 1");
            return Err(values.error("otel.sample-rate", message));
        };
        let slower_ms = u64::from(values.unsigned("otel.always-slower-than", 0));
        Ok(Sampling {
            // 1 is 2^64, which becomes the largest number.
            below: (rate * 2_f64.powi(64)) as u64,
            always_errors: values.bool("otel.always-errors").unwrap_or(false),
            always_slower_than: match slower_ms {
                0 => u64::MAX,
                slower_ms => slower_ms * 1_000_000,
            },
        })
    }

    fn chooses(self, random: u64) -> bool {
        random < self.below || self.below == u64::MAX
    }

    /// Whether a request is sent away although it was not chosen.
    fn wants(self, exchange: &Exchange) -> bool {
        let is_error = self.always_errors && exchange.response.status.0 >= 500;
        is_error || exchange.ledger.total() >= self.always_slower_than
    }
}

/// What a worker needs for traces.
struct WorkerTraces {
    ids: Rc<SpanIds>,
    exporter: Arc<Exporter>,
}

impl WorkerTraces {
    fn of(exchange: &Exchange) -> Rc<WorkerTraces> {
        let worker = &exchange.worker;
        worker.belonging(|| WorkerTraces {
            ids: Rc::new(SpanIds::new()),
            exporter: exporter(worker.shared()),
        })
    }
}

struct BeginTrace {
    /// Whose `traceparent` counts.
    trust: Trust,
    sampling: Sampling,
}

impl Hook for BeginTrace {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        // A subrequest is a part of its client's request. A request that begins again has its trace.
        if exchange.is_subrequest() || RequestTrace::of(exchange).is_some() {
            return Outcome::Next;
        }
        let (parent, state) = match self.is_trusted(exchange) {
            true => received(exchange),
            false => (None, Vec::new()),
        };
        let head = &mut exchange.request.head;
        if state.is_empty() {
            head.remove_field(TRACESTATE);
        } else {
            head.set_field(TRACESTATE, &state);
        }
        let traces = WorkerTraces::of(exchange);
        let is_sampled = match parent {
            Some(parent) => parent.is_sampled,
            None => self.sampling.chooses(traces.ids.next()),
        };
        RequestTrace::new(Rc::clone(&traces.ids), parent, state, is_sampled).keep(exchange);
        Outcome::Next
    }
}

impl BeginTrace {
    /// Whether the sender of the request is a trusted proxy: one that mod_extforward has believed already, so
    /// that the request has the client's address now, or one that named no client.
    fn is_trusted(&self, exchange: &Exchange) -> bool {
        exchange.environment.get(ACTUAL_FOR).is_some()
            || self.trust.includes(exchange.connection.peer.ip())
    }
}

/// The trace that the sender names. A `traceparent` that is malformed, or is not the only one, counts as
/// none; then there is no `tracestate` either.
fn received(exchange: &Exchange) -> (Option<TraceParent>, Vec<u8>) {
    let head = &exchange.request.head;
    let mut values = head.fields_named(TRACEPARENT);
    let parent = match (values.next(), values.next()) {
        (Some(value), None) => TraceParent::parse(value),
        _ => None,
    };
    let state = match parent {
        Some(_) => trace_context::trace_state(head.fields_named(TRACESTATE)),
        None => None,
    };
    (parent, state.unwrap_or_default())
}

struct EndTrace {
    destination: Arc<Destination>,
    sampling: Sampling,
}

impl Hook for EndTrace {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        // A request whose head was refused has no trace.
        let Some(trace) = RequestTrace::of(exchange) else {
            return Outcome::Next;
        };
        if trace.is_sampled || self.sampling.wants(exchange) {
            let (written, count) = spans::write(exchange, &trace);
            let exporter = &WorkerTraces::of(exchange).exporter;
            exporter.send(written, count, exchange, &self.destination);
        }
        Outcome::Next
    }
}

#[cfg(test)]
mod tests;
