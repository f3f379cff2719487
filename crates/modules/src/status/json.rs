//! The status of this server process: as JSON, and as what the status page is made of. docs/status-json.md
//! describes it.

use std::collections::BTreeMap;
use std::sync::Arc;

use petrel_engine::Exchange;
use petrel_engine::blocking::Counts;
use petrel_engine::cause::CauseCode;
use petrel_engine::exchange::client_of_key;
use petrel_engine::ledger::{Nanos, Stage, StageKind};
use petrel_engine::limits;
use petrel_engine::metrics::{
    FineCounts, LATENCY_BOUNDS, Metrics, Second, Snapshot, TopEntry, Totals as RequestCounts,
    WorkerState,
};
use petrel_engine::module::Outcome;
use petrel_engine::proto::recording::{NowRecord, Record, RecordFlag, Recording};
use petrel_engine::shared::Shared;
use serde::Serialize;

use super::model::{
    BackendStatus, COLUMN_S, Caches, CurrentRequest, DiskClass, DiskDevice, DiskStatus,
    FileCacheStatus, Hog, Holder, NotedWait, Percentiles, RecentLatency, RequestStatus,
    RouteStatus, Seconds, ServerInfo, StageInfo, Status, StatusClasses, Top, Totals, WorkerStatus,
};
use super::report::{DeviceReport, Report, open_requests};
use super::{fpm, lighttpd, shared_page};
use crate::gateway::counters::BackendReport;

/// Answers with the status as JSON.
pub(super) fn answer(exchange: &mut Exchange) -> Outcome {
    shared_page::answer(exchange, page, "application/json", String::new())
}

/// The status as JSON.
pub(super) fn page(shared: &Arc<Shared>) -> Result<Vec<u8>, String> {
    text(&status(shared))
}

/// The status as JSON, with lighttpd's fields at its beginning.
pub(super) fn page_of_lighttpd(shared: &Arc<Shared>) -> Result<Vec<u8>, String> {
    text(&lighttpd::fields(&status(shared)))
}

fn text(value: &impl Serialize) -> Result<Vec<u8>, String> {
    let mut text = Vec::with_capacity(JSON_BYTES);
    serde_json::to_writer(&mut text, value).map_err(|error| error.to_string())?;
    text.push(b'\n');
    Ok(text)
}

/// The status.
pub(super) fn status(shared: &Shared) -> Status {
    of(shared, Report::new(shared, Metrics::snapshot))
}

fn of(shared: &Shared, report: Report<Snapshot>) -> Status {
    let recording = shared.memory().slowest();
    let wall_nanos = u64::try_from(report.wall.as_nanos()).unwrap_or(0);
    let now = report.now;
    let workers = report.workers.iter().enumerate();
    let slowest = recording.slowest(wall_nanos);
    let tops = |entries: &[TopEntry], top: fn(String) -> Top| {
        let tops = entries.iter().map(|entry| self::top(entry, top));
        tops.collect()
    };
    Status {
        format: FORMAT,
        server: server(&report),
        totals: totals(shared, &report.workers, &report.requests.routes),
        stages: Stage::ALL.iter().map(|stage| self::stage(*stage)).collect(),
        latency_bounds_us: LATENCY_BOUNDS.map(|bound| bound / MICRO).into(),
        seconds: seconds(&report),
        latency: recent_latency(&report.requests.seconds),
        routes: routes(&report.requests.routes),
        hosts: tops(&report.requests.top_hosts, |host| Top {
            host: Some(host),
            ..Top::default()
        }),
        paths: tops(&report.requests.top_paths, |path| Top {
            path: Some(path),
            ..Top::default()
        }),
        workers: workers
            .map(|(number, state)| {
                let works_for = now_of(&recording, number);
                worker(number, state, now, works_for, wall_nanos)
            })
            .collect(),
        slowest: slowest
            .into_iter()
            .take(SLOWEST_SHOWN)
            .map(|(worker, record)| request(worker, record))
            .collect(),
        caches: caches(&report.counters),
        disk: DiskStatus {
            classes: report.classes.iter().map(class).collect(),
            devices: report.devices.into_iter().map(device).collect(),
        },
        backends: report
            .backends
            .into_iter()
            .map(|report| backend(report, now))
            .collect(),
        counters: std::iter::once(("cgi.programs".to_owned(), report.programs))
            .chain(report.counters)
            .chain(report.script_counters)
            .collect(),
    }
}

fn stage(stage: Stage) -> StageInfo {
    let kind = match stage.kind() {
        StageKind::Work => "work",
        StageKind::Wait => "wait",
    };
    StageInfo {
        name: stage.name().to_owned(),
        kind: kind.to_owned(),
        meaning: stage.meaning().to_owned(),
    }
}

fn server(report: &Report<Snapshot>) -> ServerInfo {
    let wall_ms = u64::try_from(report.wall.as_millis()).unwrap_or(0);
    let uptime_ms = u64::try_from(report.uptime.as_millis()).unwrap_or(0);
    let mut workers = report.workers.iter();
    ServerInfo {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        generation: report.generation,
        started_ms: wall_ms.saturating_sub(uptime_ms),
        now_ms: wall_ms,
        uptime_s: report.uptime.as_secs(),
        is_draining: workers.any(|worker| worker.gauges.is_draining),
    }
}

/// Counts since the start: the sums over `routes`, and what `workers` have open.
pub(super) fn totals(
    shared: &Shared,
    workers: &[WorkerState],
    routes: &[(String, RequestCounts)],
) -> Totals {
    let mut all = RequestCounts::default();
    routes.iter().for_each(|(_, counts)| all.add(counts));
    Totals {
        requests: all.requests(),
        sent_bytes: all.sent_bytes,
        received_bytes: all.received_bytes,
        status: StatusClasses::of(|class| all.classes[class as usize]),
        time_us: all.latency.sum / MICRO,
        open_requests: open_requests(workers),
        connections: shared.connections() as u64,
        connections_max: shared.connections_max() as u64,
    }
}

fn seconds(report: &Report<Snapshot>) -> Seconds {
    let all = &report.requests.seconds;
    let column = |value: fn(&Second) -> u64| all.iter().map(value).collect();
    let of_totals = |value: &dyn Fn(&RequestCounts) -> u64| -> Vec<u64> {
        all.iter().map(|second| value(&second.totals)).collect()
    };
    let stage_us = Stage::ALL.iter().filter_map(|stage| {
        let nanos = of_totals(&|totals| totals.stages[*stage as usize]);
        let has_time = nanos.iter().any(|nanos| *nanos > 0);
        let micros = || nanos.iter().map(|nanos| nanos / MICRO).collect();
        has_time.then(|| (stage.name().to_owned(), micros()))
    });
    let age_s = (report.now / SECOND).saturating_sub(report.requests.first_second.into());
    Seconds {
        first_s: report.wall.as_secs().saturating_sub(age_s),
        requests: column(|second| second.totals.requests()),
        begun: column(|second| second.begun),
        sent_bytes: column(|second| second.totals.sent_bytes),
        received_bytes: column(|second| second.totals.received_bytes),
        status: StatusClasses::of(|class| of_totals(&|totals| totals.classes[class as usize])),
        stage_us: stage_us.collect(),
        latency: all
            .iter()
            .map(|second| histogram(&second.totals.latency))
            .collect(),
        p99_us: column(|second| {
            let time = second.totals.latency.percentile(99);
            time.unwrap_or(0) / MICRO
        }),
        max_us: column(|second| second.totals.latency.max / MICRO),
        lag_us: column(|second| second.totals.stages[Stage::Lag as usize] / MICRO),
        lag_max_us: column(|second| second.lag_max / MICRO),
        turn_max_us: column(|second| second.turn_max / MICRO),
        connections: column(|second| second.connections),
        open_requests: column(|second| second.open_requests),
    }
}

fn recent_latency(seconds: &[Second]) -> RecentLatency {
    let of = |seconds: &[Second]| {
        let mut sum = FineCounts::default();
        let counts = seconds.iter().map(|second| &second.totals.latency);
        counts.for_each(|counts| sum.add(counts));
        percentiles(&sum)
    };
    let mut columns: Vec<_> = seconds.rchunks(COLUMN_S).map(of).collect();
    columns.reverse();
    RecentLatency {
        minute: of(&seconds[seconds.len().saturating_sub(60)..]),
        columns,
    }
}

/// A histogram without its empty buckets at the end.
fn histogram(counts: &FineCounts) -> Vec<u64> {
    let buckets = counts.exported().buckets;
    let empty = buckets.iter().rev().take_while(|count| **count == 0);
    let used = buckets.len() - empty.count();
    buckets[..used].to_vec()
}

fn percentiles(counts: &FineCounts) -> Option<Percentiles> {
    Some(Percentiles {
        p50_us: counts.percentile(50)? / MICRO,
        p99_us: counts.percentile(99)? / MICRO,
        max_us: counts.percentile(100)? / MICRO,
    })
}

fn routes(all: &[(String, RequestCounts)]) -> Vec<RouteStatus> {
    let mut sorted: Vec<_> = all.iter().map(|(name, counts)| (&**name, counts)).collect();
    sorted.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.latency.sum));
    let (first, rest) = sorted.split_at(sorted.len().min(ROUTES_SHOWN));
    let mut others = RequestCounts::default();
    rest.iter().for_each(|(_, counts)| others.add(counts));
    let others = (!rest.is_empty()).then_some((OTHERS, &others));
    let shown = first.iter().copied().chain(others);
    shown.map(|(name, counts)| route(name, counts)).collect()
}

fn route(name: &str, counts: &RequestCounts) -> RouteStatus {
    let (module, detail) = match name.split_once(' ') {
        Some((module, detail)) => (module, Some(detail.to_owned())),
        None => (name, None),
    };
    RouteStatus {
        route: name.to_owned(),
        module: module.to_owned(),
        detail,
        requests: counts.requests(),
        sent_bytes: counts.sent_bytes,
        received_bytes: counts.received_bytes,
        status: StatusClasses::of(|class| counts.classes[class as usize]),
        time_us: counts.latency.sum / MICRO,
        latency: histogram(&counts.latency),
        percentiles: percentiles(&counts.latency),
        stage_us: Stage::ALL.iter().copied().zip(counts.stages).collect(),
    }
}

/// `of` makes it from the name.
fn top(entry: &TopEntry, of: fn(String) -> Top) -> Top {
    Top {
        requests: entry.requests,
        error_requests: entry.error,
        sent_bytes: entry.sent_bytes,
        time_us: entry.time / MICRO,
        ..of(shown(&entry.name))
    }
}

/// Text for the JSON. Bytes that are not UTF-8 become U+FFFD.
fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn backend(backend: BackendReport, now: Nanos) -> BackendStatus {
    let holders = backend.holders.iter().map(|held| Holder {
        path: shown(held.path()),
        client: client_of_key(held.client),
        age_ms: now.saturating_sub(held.since) / MILLI,
    });
    BackendStatus {
        holders: holders.collect(),
        fpm: backend.fpm.map(fpm::status),
        label: backend.label,
        address: backend.address,
        route: backend.route,
        protocol: backend.protocol.to_owned(),
        state: backend.state.to_owned(),
        connections: backend.connections,
        limit: backend.limit,
        load: backend.load,
        waiting: backend.waiting,
        backlogged: backend.backlogged,
        requests: backend.requests,
        connected: backend.connected,
        died: backend.died,
        overloaded: backend.overloaded,
        first_byte: histogram(&backend.first_bytes),
        first_byte_percentiles: percentiles(&backend.first_bytes),
        first_byte_us: backend.first_bytes.sum / MICRO,
    }
}

fn caches(counters: &BTreeMap<String, u64>) -> Caches {
    let counter = |name: &str| counters.get(name).copied().unwrap_or(0);
    let pages = counters.iter();
    let pages = pages.filter(|(name, _)| name.starts_with("page-cache."));
    let pages: BTreeMap<_, _> = pages.map(|(name, count)| (name.clone(), *count)).collect();
    Caches {
        files: FileCacheStatus {
            memory_bytes: counter("server.io.memory-bytes"),
            cached: counter("server.io.lookup.cached"),
            disk: counter("server.io.lookup.disk"),
        },
        pages: (!pages.is_empty()).then_some(pages),
    }
}

fn class((name, counts): &(&'static str, Counts)) -> DiskClass {
    DiskClass {
        name: (*name).to_owned(),
        threads: counts.threads as u64,
        running: counts.running as u64,
        queued: counts.queued as u64,
        stuck: counts.stuck as u64,
        jobs: counts.jobs,
        refused: counts.refused,
        wait_us: counts.wait_us,
        wait_max_us: counts.wait_us_max,
        run_us: counts.run_us,
        run_max_us: counts.run_us_max,
    }
}

fn device(device: DeviceReport) -> DiskDevice {
    let oldest = device.load.oldest;
    DiskDevice {
        device: device.device,
        mount: device.mount,
        kind: device.kind,
        is_remote: device.is_remote,
        running: device.load.running as u64,
        queued: device.load.waiting as u64,
        oldest_ms: oldest.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
    }
}

fn worker(
    number: usize,
    worker: &WorkerState,
    now: Nanos,
    works_for: Option<&NowRecord>,
    wall_nanos: u64,
) -> WorkerStatus {
    let gauges = &worker.gauges;
    WorkerStatus {
        worker: number as u64,
        requests: worker.requests,
        requests_per_s: worker.requests_per_s,
        begun_per_s: gauges.begun_per_s,
        connections: gauges.connections,
        open_requests: gauges.open_requests,
        lag_us: worker.lag / MICRO,
        lag_max_us: worker.lag_max / MICRO,
        turn_max_us: gauges.turn_max / MICRO,
        hog: gauges.hog.as_ref().map(|hog| Hog {
            what: hog.what.clone(),
            stage: hog.stage.map_or("", |stage| stage.name()).to_owned(),
            ran_us: hog.ran / MICRO,
            ago_ms: now.saturating_sub(hog.ended) / MILLI,
        }),
        works_for: works_for.map(|record| CurrentRequest {
            id: record.id.to_string(),
            path: shown(&record.path),
            time_us: wall_nanos.saturating_sub(record.started) / MICRO,
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

fn request(worker: u16, record: &Record) -> RequestStatus {
    let cause = CauseCode::of_number(record.cause).map(CauseCode::name);
    let waits = record.waits.iter().map(|wait| NotedWait {
        stage: wait.stage.name().to_owned(),
        time_us: wait.nanos / MICRO,
        holder: shown(&wait.holder),
    });
    RequestStatus {
        id: record.id.to_string(),
        worker: worker.into(),
        method: record.method.as_str().to_owned(),
        host: shown(&record.host),
        path: shown(&record.path),
        client: client_of_key(record.client),
        route: shown(&record.answered_by),
        time_us: record.total / MICRO,
        ended_ms: record.started.saturating_add(record.total) / MILLI,
        status: record.status,
        is_aborted: !record.is(RecordFlag::Complete),
        cause: cause.map(str::to_owned),
        sent_bytes: record.sent_bytes,
        stage_us: record.stages.iter().copied().collect(),
        unattributed_us: record.unattributed() / MICRO,
        waits: waits.collect(),
    }
}

/// The value of the field `format`.
const FORMAT: u64 = 1;

/// Room for the JSON of a usual server.
const JSON_BYTES: usize = 128 * 1024;

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
