//! The status as JSON, for the status page and `petrel top`. docs/status-json.md describes it.

use std::sync::Arc;

use petrel_engine::Exchange;
use petrel_engine::blocking::Counts;
use petrel_engine::cause::CauseCode;
use petrel_engine::exchange::client_of_key;
use petrel_engine::ledger::{Nanos, Stage, StageKind};
use petrel_engine::limits;
use petrel_engine::metrics::{
    LATENCY_BOUNDS, LatencyCounts, RouteCounts, Second, StatusClass, TopEntry, Totals, WorkerState,
};
use petrel_engine::module::Outcome;
use petrel_engine::proto::json::JsonWriter;
use petrel_engine::recorder::{NowRecord, Record, Recording};
use petrel_engine::shared::Shared;

use super::report::{DeviceReport, Report};
use super::{lighttpd, shared_page};
use crate::gateway::counters::BackendReport;

/// Answers with the status as JSON.
pub(super) fn answer(exchange: &mut Exchange) -> Outcome {
    shared_page::answer(
        exchange,
        |shared| Ok(page(shared)),
        "application/json",
        String::new(),
    )
}

/// The status as JSON.
pub(super) fn page(shared: &Arc<Shared>) -> Vec<u8> {
    text(
        &Report::new(shared),
        &shared.memory().slowest(),
        |_, _, _| {},
    )
}

/// The status as JSON, with lighttpd's fields at its beginning.
pub(super) fn page_of_lighttpd(shared: &Arc<Shared>) -> Vec<u8> {
    text(
        &Report::new(shared),
        &shared.memory().slowest(),
        lighttpd::fields,
    )
}

/// The whole object. It begins with the fields that `first` writes, which gets the counts of all routes.
fn text(
    report: &Report,
    recording: &Recording,
    first: fn(&Report, &RouteCounts, &mut JsonWriter),
) -> Vec<u8> {
    let mut json = JsonWriter::default();
    let wall_nanos = u64::try_from(report.wall.as_nanos()).unwrap_or(0);
    let all = report.totals();
    json.object(|json| {
        first(report, &all, json);
        json.number("format", FORMAT);
        json.key("server").object(|json| server(report, json));
        json.key("totals").object(|json| totals(report, &all, json));
        json.key("stages").list(Stage::ALL, |stage, json| {
            json.object(|json| {
                json.text("name", stage.name());
                json.text("kind", kind(*stage));
                json.text("meaning", stage.meaning());
            });
        });
        let bounds = LATENCY_BOUNDS.map(|bound| bound / MICRO);
        json.key("latency_bounds_us").numbers(bounds);
        json.key("seconds").object(|json| seconds(report, json));
        routes(report, json.key("routes"));
        tops("host", &report.requests.top_hosts, json.key("hosts"));
        tops("path", &report.requests.top_paths, json.key("paths"));
        json.key("backends")
            .list(&report.backends, |backend, json| {
                json.object(|json| self::backend(backend, report.now, json));
            });
        json.key("caches").object(|json| caches(report, json));
        json.key("disk").object(|json| disk(report, json));
        let workers: Vec<_> = report.requests.workers.iter().enumerate().collect();
        json.key("workers")
            .list(&workers, |(number, worker), json| {
                json.object(|json| {
                    self::worker(*number, worker, report.now, json);
                    works_for(
                        now_of(recording, *number),
                        wall_nanos,
                        json.key("works_for"),
                    );
                });
            });
        let mut slowest = recording.slowest(wall_nanos);
        slowest.truncate(SLOWEST_SHOWN);
        json.key("slowest")
            .list(&slowest, |(worker, record), json| {
                json.object(|json| request(*worker, record, json));
            });
        json.key("counters").object(|json| {
            json.number("cgi.programs", report.programs);
            for (name, count) in report.counters.iter().chain(&report.script_counters) {
                json.number(name, *count);
            }
        });
    });
    json.out.push(b'\n');
    json.out
}

fn kind(stage: Stage) -> &'static str {
    match stage.kind() {
        StageKind::Work => "work",
        StageKind::Wait => "wait",
    }
}

fn server(report: &Report, json: &mut JsonWriter) {
    let wall_ms = u64::try_from(report.wall.as_millis()).unwrap_or(0);
    let uptime_ms = u64::try_from(report.uptime.as_millis()).unwrap_or(0);
    let mut workers = report.requests.workers.iter();
    json.text("version", env!("CARGO_PKG_VERSION"));
    json.number("pid", std::process::id().into());
    json.number("generation", report.generation);
    json.number("started_ms", wall_ms.saturating_sub(uptime_ms));
    json.number("now_ms", wall_ms);
    json.number("uptime_s", report.uptime.as_secs());
    json.truth(
        "is_draining",
        workers.any(|worker| worker.gauges.is_draining),
    );
}

fn totals(report: &Report, all: &RouteCounts, json: &mut JsonWriter) {
    requests(all, json);
    json.number("open_requests", report.open_requests());
    json.number("connections", report.connections);
    json.number("connections_max", report.connections_max);
}

/// The fields that totals and routes have in common.
fn requests(counts: &RouteCounts, json: &mut JsonWriter) {
    let bytes = counts.classes.iter();
    json.number("requests", counts.requests());
    json.number("sent_bytes", counts.sent_bytes());
    json.number(
        "received_bytes",
        bytes.map(|class| class.received_bytes).sum(),
    );
    json.key("status").object(|json| {
        for (class, counts) in StatusClass::ALL.iter().zip(&counts.classes) {
            json.number(class.name(), counts.latency.requests());
        }
    });
    json.number("time_us", counts.latency().sum / MICRO);
}

fn seconds(report: &Report, json: &mut JsonWriter) {
    let all = &report.requests.seconds;
    let column = |name: &str, value: fn(&Second) -> u64, json: &mut JsonWriter| {
        json.key(name).numbers(all.iter().map(value));
    };
    let age_s = (report.now / SECOND).saturating_sub(report.requests.first_second.into());
    json.number("first_s", report.wall.as_secs().saturating_sub(age_s));
    column("requests", |second| second.totals.requests(), json);
    column("sent_bytes", |second| second.totals.sent_bytes, json);
    column(
        "received_bytes",
        |second| second.totals.received_bytes,
        json,
    );
    json.key("status").object(|json| {
        for class in StatusClass::ALL {
            let counts = all
                .iter()
                .map(|second| second.totals.classes[class as usize]);
            json.key(class.name()).numbers(counts);
        }
    });
    json.key("stage_us").object(|json| {
        for stage in Stage::ALL {
            let time = |totals: &Totals| totals.stages[*stage as usize];
            if all.iter().any(|second| time(&second.totals) > 0) {
                let times = all.iter().map(|second| time(&second.totals) / MICRO);
                json.key(stage.name()).numbers(times);
            }
        }
    });
    json.key("latency")
        .list(all, |second, json| histogram(&second.totals.latency, json));
    let lag = |second: &Second| second.totals.stages[Stage::Lag as usize] / MICRO;
    column("lag_us", lag, json);
    column("lag_max_us", |second| second.lag_max / MICRO, json);
    column("turn_max_us", |second| second.turn_max / MICRO, json);
    column("connections", |second| second.connections, json);
    column("open_requests", |second| second.open_requests, json);
}

/// A histogram without its empty buckets at the end.
fn histogram(counts: &LatencyCounts, json: &mut JsonWriter) {
    let empty = counts.buckets.iter().rev().take_while(|count| **count == 0);
    let used = counts.buckets.len() - empty.count();
    json.numbers(counts.buckets[..used].iter().copied());
}

fn routes(report: &Report, json: &mut JsonWriter) {
    let mut sorted: Vec<(&str, &RouteCounts, Nanos)> = report
        .requests
        .routes
        .iter()
        .map(|(name, counts)| (&**name, &**counts, counts.latency().sum))
        .collect();
    sorted.sort_by_key(|(.., time)| std::cmp::Reverse(*time));
    let shown = sorted.len().min(ROUTES_SHOWN);
    let mut others = RouteCounts::default();
    sorted[shown..]
        .iter()
        .for_each(|(_, counts, _)| others.add(counts));
    sorted.truncate(shown);
    if others.requests() > 0 {
        sorted.push((OTHERS, &others, 0));
    }
    json.list(&sorted, |(name, counts, _), json| {
        json.object(|json| route(name, counts, json));
    });
}

fn route(name: &str, counts: &RouteCounts, json: &mut JsonWriter) {
    let (module, detail) = match name.split_once(' ') {
        Some((module, detail)) => (module, Some(detail)),
        None => (name, None),
    };
    json.text("route", name);
    json.text("module", module);
    json.optional_text("detail", detail);
    requests(counts, json);
    histogram(&counts.latency(), json.key("latency"));
    json.key("stage_us").object(|json| {
        for (stage, nanos) in Stage::ALL.iter().zip(&counts.stages) {
            if *nanos > 0 {
                json.number(stage.name(), nanos / MICRO);
            }
        }
    });
}

fn tops(what: &str, entries: &[TopEntry], json: &mut JsonWriter) {
    json.list(entries, |entry, json| {
        json.object(|json| {
            json.bytes(what, &entry.name);
            json.number("requests", entry.requests);
            json.number("error_requests", entry.error);
            json.number("sent_bytes", entry.sent_bytes);
            json.number("time_us", entry.time / MICRO);
        });
    });
}

fn backend(backend: &BackendReport, now: Nanos, json: &mut JsonWriter) {
    json.text("label", &backend.label);
    json.text("address", &backend.address);
    json.text("route", &backend.route);
    json.text("protocol", backend.protocol);
    json.text("state", backend.state);
    json.number("connections", backend.connections);
    json.optional_number("limit", backend.limit);
    json.truth("limit_is_learned", backend.limit_is_learned);
    json.number("load", backend.load);
    json.number("waiting", backend.waiting);
    json.number("backlogged", backend.backlogged);
    json.number("requests", backend.requests);
    json.number("connected", backend.connected);
    json.number("died", backend.died);
    json.number("overloaded", backend.overloaded);
    histogram(&backend.first_bytes, json.key("first_byte"));
    json.number("first_byte_us", backend.first_bytes.sum / MICRO);
    json.key("holders").list(&backend.holders, |held, json| {
        json.object(|json| {
            json.bytes("path", held.path());
            json.text("client", &client_of_key(held.client));
            json.number("age_ms", now.saturating_sub(held.since) / MILLI);
        });
    });
}

fn caches(report: &Report, json: &mut JsonWriter) {
    let counter = |name: &str| report.counters.get(name).copied().unwrap_or(0);
    json.key("files").object(|json| {
        json.number("memory_bytes", counter("server.io.memory-bytes"));
        json.number("cached", counter("server.io.lookup.cached"));
        json.number("disk", counter("server.io.lookup.disk"));
    });
    let pages: Vec<_> = report
        .counters
        .iter()
        .filter(|(name, _)| name.starts_with("page-cache."))
        .collect();
    match pages.is_empty() {
        true => json.key("pages").null(),
        false => json.key("pages").object(|json| {
            pages
                .iter()
                .for_each(|(name, count)| json.number(name, **count));
        }),
    }
}

fn disk(report: &Report, json: &mut JsonWriter) {
    json.key("classes")
        .list(&report.classes, |(name, counts), json| {
            json.object(|json| class(name, counts, json));
        });
    json.key("devices").list(&report.devices, |device, json| {
        json.object(|json| self::device(device, json));
    });
}

fn class(name: &str, counts: &Counts, json: &mut JsonWriter) {
    json.text("name", name);
    json.number("threads", counts.threads as u64);
    json.number("running", counts.running as u64);
    json.number("queued", counts.queued as u64);
    json.number("stuck", counts.stuck as u64);
    json.number("jobs", counts.jobs);
    json.number("refused", counts.refused);
    json.number("wait_us", counts.wait_us);
    json.number("wait_max_us", counts.wait_us_max);
    json.number("run_us", counts.run_us);
    json.number("run_max_us", counts.run_us_max);
}

fn device(device: &DeviceReport, json: &mut JsonWriter) {
    let oldest = device.load.oldest;
    let oldest_ms = oldest.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
    json.text("device", &device.device);
    json.optional_text("mount", device.mount.as_deref());
    json.optional_text("type", device.kind.as_deref());
    json.truth("is_remote", device.is_remote);
    json.number("running", device.load.running as u64);
    json.number("queued", device.load.waiting as u64);
    json.optional_number("oldest_ms", oldest_ms);
}

fn worker(number: usize, worker: &WorkerState, now: Nanos, json: &mut JsonWriter) {
    let gauges = &worker.gauges;
    json.number("worker", number as u64);
    json.number("requests", worker.requests);
    json.number("requests_per_s", worker.requests_per_s);
    json.number("connections", gauges.connections);
    json.number("open_requests", gauges.open_requests);
    json.number("lag_us", worker.lag / MICRO);
    json.number("lag_max_us", worker.lag_max / MICRO);
    json.number("turn_max_us", gauges.turn_max / MICRO);
    match &gauges.hog {
        None => json.key("hog").null(),
        Some(hog) => json.key("hog").object(|json| {
            json.text("what", &hog.what);
            json.text("stage", hog.stage.map_or("", |stage| stage.name()));
            json.number("ran_us", hog.ran / MICRO);
            json.number("ago_ms", now.saturating_sub(hog.ended) / MILLI);
        }),
    }
}

/// The request for which worker `number` of this process works.
fn now_of(recording: &Recording, number: usize) -> Option<&NowRecord> {
    let is_it =
        |process: u32, worker: u16| process == std::process::id() && usize::from(worker) == number;
    let mut workers = recording.workers.iter();
    let worker = workers.find(|worker| is_it(worker.process, worker.worker));
    worker?.now.as_ref()
}

fn works_for(now: Option<&NowRecord>, wall_nanos: u64, json: &mut JsonWriter) {
    match now {
        None => json.null(),
        Some(now) => json.object(|json| {
            json.text("id", &now.id.to_string());
            json.bytes("path", &now.path);
            json.number("time_us", wall_nanos.saturating_sub(now.started) / MICRO);
        }),
    }
}

fn request(worker: u16, record: &Record, json: &mut JsonWriter) {
    let cause = CauseCode::of_number(record.cause).map(CauseCode::name);
    json.text("id", &record.id.to_string());
    json.number("worker", worker.into());
    json.text("method", record.method.as_str());
    json.bytes("host", &record.host);
    json.bytes("path", &record.path);
    json.text("client", &client_of_key(record.client));
    json.bytes("route", &record.answered_by);
    json.number("time_us", record.total / MICRO);
    json.number(
        "ended_ms",
        record.started.saturating_add(record.total) / MILLI,
    );
    json.number("status", record.status.into());
    json.optional_text("cause", cause);
    json.number("sent_bytes", record.sent_bytes);
    json.key("stage_us").object(|json| {
        for (stage, nanos) in &record.stages {
            json.number(stage.name(), nanos / MICRO);
        }
    });
    json.number("unattributed_us", record.unattributed() / MICRO);
    json.key("waits").list(&record.waits, |wait, json| {
        json.object(|json| {
            json.text("stage", wait.stage.name());
            json.number("time_us", wait.nanos / MICRO);
            json.bytes("holder", &wait.holder);
        });
    });
}

/// Rises when a field changes its meaning or goes.
const FORMAT: u64 = 1;

/// How many routes are listed one by one.
const ROUTES_SHOWN: usize = 200;

/// How many of the slowest requests are listed.
const SLOWEST_SHOWN: usize = 50;

/// The name of the rest of the routes.
const OTHERS: &str = "(others)";

const MICRO: Nanos = 1_000;
const MILLI: Nanos = 1_000_000;
const SECOND: Nanos = 1_000_000_000;

const _: () = assert!(limits::TOP_SHOWN <= 20, "docs/status-json.md says so");

#[cfg(test)]
mod tests;
