//! The table of all metrics.

use std::collections::BTreeMap;

use petrel_engine::blocking::Counts;
use petrel_engine::ledger::{Nanos, Stage};
use petrel_engine::metrics::{
    Exemplar, Histograms, LATENCY_BOUNDS, STAGE_BOUNDS, StatusClass, WorkerState,
};

use super::super::report::{DeviceReport, Report, open_requests};
use super::write::{Bounds, MetricKind, Number, ShownExemplar, Writer};
use crate::gateway::counters::BackendReport;
use crate::gateway::fpm::FpmPool;
use MetricKind::{Counter, Gauge, Histogram};
use Number::{Count, Time};

/// What the samples are made of.
pub(super) type MetricsReport = Report<Histograms>;

/// A family of metrics: samples of one name that differ in their labels.
pub struct MetricFamily {
    /// The name, without the suffix that counters and histograms have.
    pub name: &'static str,
    /// What it is.
    pub kind: MetricKind,
    /// `seconds`, `bytes` or nothing. The name ends with it.
    pub unit: &'static str,
    /// The names of the labels.
    pub labels: &'static [&'static str],
    /// What it counts, in a sentence.
    pub help: &'static str,
    pub(super) write: fn(&MetricsReport, &MetricFamily, &mut Writer),
}

impl MetricFamily {
    fn begin(&self, writer: &mut Writer) {
        writer.begin(self.name, self.kind, self.unit, self.help);
    }
}

/// Every family, in the order of the text.
pub static FAMILIES: &[MetricFamily] = &[
    MetricFamily {
        name: "petrel_build_info",
        kind: Gauge,
        unit: "",
        labels: &["version"],
        help: "1, with the version of the server.",
        write: |_, family, writer| {
            family.begin(writer);
            writer.sample(&[("version", env!("CARGO_PKG_VERSION"))], Count(1));
        },
    },
    MetricFamily {
        name: "petrel_start_time_seconds",
        kind: Gauge,
        unit: "seconds",
        labels: &[],
        help: "When this server process was started, in seconds since 1970.",
        write: |report, family, writer| {
            let started = report.wall.saturating_sub(report.uptime);
            value(family, writer, Time(nanos(started)));
        },
    },
    MetricFamily {
        name: "petrel_config_generation",
        kind: Gauge,
        unit: "",
        labels: &[],
        help: "How often the configuration was loaded: 1 at the start, one more with each reload.",
        write: |report, family, writer| value(family, writer, Count(report.generation)),
    },
    MetricFamily {
        name: "petrel_request_duration_seconds",
        kind: Histogram,
        unit: "seconds",
        labels: &["route", "code"],
        help: "The time of requests from their first byte to the last byte of the response, by what answered and by status class.",
        write: request_durations,
    },
    MetricFamily {
        name: "petrel_stage_duration_seconds",
        kind: Histogram,
        unit: "seconds",
        labels: &["stage"],
        help: "The time that requests spent in each stage that they were in.",
        write: stage_durations,
    },
    MetricFamily {
        name: "petrel_route_stage_seconds",
        kind: Counter,
        unit: "seconds",
        labels: &["route", "stage"],
        help: "The time that requests spent in each stage, by what answered.",
        write: route_stages,
    },
    MetricFamily {
        name: "petrel_sent_bytes",
        kind: Counter,
        unit: "bytes",
        labels: &["route"],
        help: "Bytes of responses with their heads.",
        write: |report, family, writer| {
            by_route(report, family, writer, |class| class.sent_bytes);
        },
    },
    MetricFamily {
        name: "petrel_received_bytes",
        kind: Counter,
        unit: "bytes",
        labels: &["route"],
        help: "Bytes of request bodies.",
        write: |report, family, writer| {
            by_route(report, family, writer, |class| class.received_bytes);
        },
    },
    MetricFamily {
        name: "petrel_host_requests",
        kind: Counter,
        unit: "",
        labels: &["host", "code"],
        help: "Requests by host, for the hosts that conditions of the configuration name.",
        write: |report, family, writer| {
            family.begin(writer);
            for (host, counts) in &report.requests.hosts {
                for (class, count) in StatusClass::ALL.iter().zip(counts.classes) {
                    if count > 0 {
                        let labels = [("host", &**host), ("code", class.name())];
                        writer.sample(&labels, Count(count));
                    }
                }
            }
        },
    },
    MetricFamily {
        name: "petrel_host_sent_bytes",
        kind: Counter,
        unit: "bytes",
        labels: &["host"],
        help: "Bytes of responses by host, for the hosts that conditions of the configuration name.",
        write: |report, family, writer| {
            family.begin(writer);
            for (host, counts) in &report.requests.hosts {
                writer.sample(&[("host", &**host)], Count(counts.sent_bytes));
            }
        },
    },
    MetricFamily {
        name: "petrel_open_requests",
        kind: Gauge,
        unit: "",
        labels: &[],
        help: "Requests that are being received or answered.",
        write: |report, family, writer| {
            value(family, writer, Count(open_requests(&report.workers)))
        },
    },
    MetricFamily {
        name: "petrel_connections",
        kind: Gauge,
        unit: "",
        labels: &[],
        help: "Open connections of clients.",
        write: |report, family, writer| value(family, writer, Count(report.connections)),
    },
    MetricFamily {
        name: "petrel_connections_max",
        kind: Gauge,
        unit: "",
        labels: &[],
        help: "How many connections of clients there may be (server.max-connections).",
        write: |report, family, writer| value(family, writer, Count(report.connections_max)),
    },
    MetricFamily {
        name: "petrel_worker_requests",
        kind: Counter,
        unit: "",
        labels: &["worker"],
        help: "Requests by worker.",
        write: |report, family, writer| {
            by_worker(report, family, writer, |worker| Count(worker.requests));
        },
    },
    MetricFamily {
        name: "petrel_worker_connections",
        kind: Gauge,
        unit: "",
        labels: &["worker"],
        help: "Open connections of clients by worker.",
        write: |report, family, writer| {
            by_worker(report, family, writer, |worker| {
                Count(worker.gauges.connections)
            });
        },
    },
    MetricFamily {
        name: "petrel_worker_lag_max_seconds",
        kind: Gauge,
        unit: "seconds",
        labels: &["worker"],
        help: "The longest time in the last second that a request was ready and its worker ran other tasks.",
        write: |report, family, writer| {
            by_worker(report, family, writer, |worker| Time(worker.lag_max));
        },
    },
    MetricFamily {
        name: "petrel_worker_turn_max_seconds",
        kind: Gauge,
        unit: "seconds",
        labels: &["worker"],
        help: "The longest time in the last second that a worker ran without asking for new events.",
        write: |report, family, writer| {
            by_worker(report, family, writer, |worker| {
                Time(worker.gauges.turn_max)
            });
        },
    },
    MetricFamily {
        name: "petrel_backend_up",
        kind: Gauge,
        unit: "",
        labels: BACKEND,
        help: "1 if the backend gets requests, 0 if it is out of service.",
        write: |report, family, writer| {
            by_backend(report, family, writer, |backend| {
                Some(Count(u64::from(backend.state != "down")))
            });
        },
    },
    MetricFamily {
        name: "petrel_backend_first_byte_seconds",
        kind: Histogram,
        unit: "seconds",
        labels: BACKEND,
        help: "The time from the end of a request to the first byte of the backend's reply.",
        write: |report, family, writer| {
            family.begin(writer);
            let bounds = Bounds::new(&LATENCY_BOUNDS);
            for backend in &report.backends {
                let counts = backend.first_bytes.exported();
                let labels = [("backend", &*backend.label), ("address", &*backend.address)];
                writer.histogram(&labels, &bounds, &counts.buckets, counts.sum, None);
            }
        },
    },
    MetricFamily {
        name: "petrel_backend_requests",
        kind: Counter,
        unit: "",
        labels: BACKEND,
        help: "Requests that were sent to the backend.",
        write: |report, family, writer| {
            by_backend(report, family, writer, |backend| {
                Some(Count(backend.requests))
            });
        },
    },
    MetricFamily {
        name: "petrel_backend_failures",
        kind: Counter,
        unit: "",
        labels: BACKEND,
        help: "Requests that the backend failed.",
        write: |report, family, writer| {
            by_backend(report, family, writer, |backend| Some(Count(backend.died)));
        },
    },
    MetricFamily {
        name: "petrel_backend_overloads",
        kind: Counter,
        unit: "",
        labels: BACKEND,
        help: "Requests that the backend had no room for.",
        write: |report, family, writer| {
            by_backend(report, family, writer, |backend| {
                Some(Count(backend.overloaded))
            });
        },
    },
    MetricFamily {
        name: "petrel_backend_active_requests",
        kind: Gauge,
        unit: "",
        labels: BACKEND,
        help: "Requests under way to the backend, those that wait for a connection included.",
        write: |report, family, writer| {
            by_backend(report, family, writer, |backend| Some(Count(backend.load)));
        },
    },
    MetricFamily {
        name: "petrel_pool_connections",
        kind: Gauge,
        unit: "",
        labels: BACKEND,
        help: "Open connections to the backend.",
        write: |report, family, writer| {
            by_backend(report, family, writer, |backend| {
                Some(Count(backend.connections))
            });
        },
    },
    MetricFamily {
        name: "petrel_pool_connections_max",
        kind: Gauge,
        unit: "",
        labels: BACKEND,
        help: "How many connections to the backend there may be, as configured. Without a limit there is no sample.",
        write: |report, family, writer| {
            by_backend(report, family, writer, |backend| backend.limit.map(Count));
        },
    },
    MetricFamily {
        name: "petrel_pool_opened_connections",
        kind: Counter,
        unit: "",
        labels: BACKEND,
        help: "Connections that were made to the backend.",
        write: |report, family, writer| {
            by_backend(report, family, writer, |backend| {
                Some(Count(backend.connected))
            });
        },
    },
    MetricFamily {
        name: "petrel_pool_waiting_requests",
        kind: Gauge,
        unit: "",
        labels: BACKEND,
        help: "Requests that wait for a connection to the backend, or for a process of it.",
        write: |report, family, writer| {
            by_backend(report, family, writer, |backend| {
                Some(Count(backend.waiting))
            });
        },
    },
    MetricFamily {
        name: "petrel_pool_queued_requests",
        kind: Counter,
        unit: "",
        labels: BACKEND,
        help: "Requests that found the limit of connections reached, or waited for 5 ms or longer for a process of the backend.",
        write: |report, family, writer| {
            by_backend(report, family, writer, |backend| {
                Some(Count(backend.backlogged))
            });
        },
    },
    MetricFamily {
        name: "petrel_fpm_children",
        kind: Gauge,
        unit: "",
        labels: &["backend", "address", "state"],
        help: "Children of php-fpm that work on a request (working), wait for one on a persistent connection (reading) or wait for a connection (idle). Without status-path there is no sample.",
        write: fpm_children,
    },
    MetricFamily {
        name: "petrel_fpm_listen_queue",
        kind: Gauge,
        unit: "",
        labels: BACKEND,
        help: "Connections that no child of php-fpm has accepted yet. Linux tells it for TCP only.",
        write: |report, family, writer| {
            by_backend(report, family, writer, |backend| {
                Some(Count(fpm_pool(backend)?.listen_queue))
            });
        },
    },
    MetricFamily {
        name: "petrel_fpm_max_children_reached",
        kind: Counter,
        unit: "",
        labels: BACKEND,
        help: "How often php-fpm started no further child because of pm.max_children.",
        write: |report, family, writer| {
            by_backend(report, family, writer, |backend| {
                Some(Count(fpm_pool(backend)?.max_children_reached))
            });
        },
    },
    MetricFamily {
        name: "petrel_fpm_memory_bytes",
        kind: Gauge,
        unit: "bytes",
        labels: BACKEND,
        help: "The mean memory of the last requests of php-fpm's children.",
        write: |report, family, writer| {
            by_backend(report, family, writer, |backend| {
                Some(Count(fpm_pool(backend)?.memory?.mean_bytes))
            });
        },
    },
    MetricFamily {
        name: "petrel_file_lookups",
        kind: Counter,
        unit: "",
        labels: &["source"],
        help: "Look-ups of files that no worker had in memory, by what answered: the kernel's caches (cached) or a disk.",
        write: |report, family, writer| {
            by_prefix(
                report,
                family,
                writer,
                "server.io.lookup.",
                |rest| match rest {
                    "cached" | "disk" => Some(vec![rest]),
                    _ => None,
                },
            );
        },
    },
    MetricFamily {
        name: "petrel_file_reads",
        kind: Counter,
        unit: "",
        labels: &["backend", "mode"],
        help: "Reads of files by network backend; async if a thread or the kernel did them because the file was not in memory.",
        write: |report, family, writer| {
            by_prefix(report, family, writer, "server.io.", |rest| {
                file_read(rest, "-read")
            });
        },
    },
    MetricFamily {
        name: "petrel_file_read_bytes",
        kind: Counter,
        unit: "bytes",
        labels: &["backend", "mode"],
        help: "Bytes of these reads.",
        write: |report, family, writer| {
            by_prefix(report, family, writer, "server.io.", |rest| {
                file_read(rest, "-bytes")
            });
        },
    },
    MetricFamily {
        name: "petrel_file_memory_bytes",
        kind: Gauge,
        unit: "bytes",
        labels: &[],
        help: "Memory for contents of files.",
        write: |report, family, writer| {
            let bytes = report.counters.get("server.io.memory-bytes");
            value(family, writer, Count(bytes.copied().unwrap_or(0)));
        },
    },
    MetricFamily {
        name: "petrel_disk_jobs",
        kind: Counter,
        unit: "",
        labels: CLASS,
        help: "Jobs that disk threads have done, by kind of work.",
        write: |report, family, writer| {
            by_class(report, family, writer, |counts| Count(counts.jobs))
        },
    },
    MetricFamily {
        name: "petrel_disk_refused_jobs",
        kind: Counter,
        unit: "",
        labels: CLASS,
        help: "Jobs that were refused because too many waited.",
        write: |report, family, writer| {
            by_class(report, family, writer, |counts| Count(counts.refused));
        },
    },
    MetricFamily {
        name: "petrel_disk_wait_seconds",
        kind: Counter,
        unit: "seconds",
        labels: CLASS,
        help: "The time that jobs waited for a disk thread.",
        write: |report, family, writer| {
            by_class(report, family, writer, |counts| Time(counts.wait_us * 1000));
        },
    },
    MetricFamily {
        name: "petrel_disk_run_seconds",
        kind: Counter,
        unit: "seconds",
        labels: CLASS,
        help: "The time that jobs ran.",
        write: |report, family, writer| {
            by_class(report, family, writer, |counts| Time(counts.run_us * 1000));
        },
    },
    MetricFamily {
        name: "petrel_disk_waiting_jobs",
        kind: Gauge,
        unit: "",
        labels: CLASS,
        help: "Jobs that wait for a disk thread.",
        write: |report, family, writer| {
            by_class(report, family, writer, |counts| Count(counts.queued as u64));
        },
    },
    MetricFamily {
        name: "petrel_disk_running_jobs",
        kind: Gauge,
        unit: "",
        labels: CLASS,
        help: "Jobs that run.",
        write: |report, family, writer| {
            by_class(report, family, writer, |counts| {
                Count(counts.running as u64)
            });
        },
    },
    MetricFamily {
        name: "petrel_disk_stuck_jobs",
        kind: Gauge,
        unit: "",
        labels: CLASS,
        help: "Jobs that have run for more than a second.",
        write: |report, family, writer| {
            by_class(report, family, writer, |counts| Count(counts.stuck as u64));
        },
    },
    MetricFamily {
        name: "petrel_disk_threads",
        kind: Gauge,
        unit: "",
        labels: CLASS,
        help: "Disk threads.",
        write: |report, family, writer| {
            by_class(report, family, writer, |counts| {
                Count(counts.threads as u64)
            });
        },
    },
    MetricFamily {
        name: "petrel_device_waiting_jobs",
        kind: Gauge,
        unit: "",
        labels: DEVICE,
        help: "Jobs that wait for a file system. File systems without work have no sample.",
        write: |report, family, writer| {
            by_device(report, family, writer, |device| {
                Count(device.load.waiting as u64)
            });
        },
    },
    MetricFamily {
        name: "petrel_device_running_jobs",
        kind: Gauge,
        unit: "",
        labels: DEVICE,
        help: "Jobs that run on a file system.",
        write: |report, family, writer| {
            by_device(report, family, writer, |device| {
                Count(device.load.running as u64)
            });
        },
    },
    MetricFamily {
        name: "petrel_device_oldest_job_seconds",
        kind: Gauge,
        unit: "seconds",
        labels: DEVICE,
        help: "For how long the oldest job on a file system has been running.",
        write: |report, family, writer| {
            by_device(report, family, writer, |device| {
                Time(nanos(device.load.oldest.unwrap_or_default()))
            });
        },
    },
    MetricFamily {
        name: "petrel_page_cache_events",
        kind: Counter,
        unit: "",
        labels: &["event"],
        help: "What happened in the page cache: hits, stale, misses, bypassed, waits, stores and so on.",
        write: |report, family, writer| {
            by_prefix(report, family, writer, "page-cache.", |rest| {
                let is_size = rest.ends_with("entries") || rest.ends_with("bytes");
                (!is_size && rest != "backend-ms-saved").then(|| vec![rest])
            });
        },
    },
    MetricFamily {
        name: "petrel_page_cache_saved_seconds",
        kind: Counter,
        unit: "seconds",
        labels: &[],
        help: "The time that backends would have taken for the pages that came from the cache.",
        write: |report, family, writer| {
            if let Some(ms) = report.counters.get("page-cache.backend-ms-saved") {
                value(family, writer, Time(ms.saturating_mul(1_000_000)));
            }
        },
    },
    MetricFamily {
        name: "petrel_page_cache_entries",
        kind: Gauge,
        unit: "",
        labels: &["store"],
        help: "Pages in the cache: in memory, on disk, and fragments of pages.",
        write: |report, family, writer| {
            by_prefix(report, family, writer, "page-cache.", |rest| {
                store(rest, "entries")
            });
        },
    },
    MetricFamily {
        name: "petrel_page_cache_bytes",
        kind: Gauge,
        unit: "bytes",
        labels: &["store"],
        help: "Bytes of these pages.",
        write: |report, family, writer| {
            by_prefix(report, family, writer, "page-cache.", |rest| {
                store(rest, "bytes")
            });
        },
    },
    MetricFamily {
        name: "petrel_tls_handshakes",
        kind: Counter,
        unit: "",
        labels: &["result"],
        help: "TLS handshakes: full, resumed or failed.",
        write: |report, family, writer| {
            by_prefix(report, family, writer, "tls.handshakes-", |rest| {
                Some(vec![rest])
            });
        },
    },
    MetricFamily {
        name: "petrel_tls_misdirected_requests",
        kind: Counter,
        unit: "",
        labels: &[],
        help: "Requests that got 421, because their TLS session was for another host.",
        write: |report, family, writer| {
            let count = report.counters.get("tls.misdirected-requests");
            value(family, writer, Count(count.copied().unwrap_or(0)));
        },
    },
    MetricFamily {
        name: "petrel_http2_ended_connections",
        kind: Counter,
        unit: "",
        labels: &["limit"],
        help: "HTTP/2 connections that were ended because of a limit.",
        write: |report, family, writer| {
            by_prefix(report, family, writer, "server.http2.ended.", |rest| {
                Some(vec![rest])
            });
        },
    },
    MetricFamily {
        name: "petrel_limit_refused_requests",
        kind: Counter,
        unit: "",
        labels: &["rule", "reason"],
        help: "Requests that a rule of limit.rules refused.",
        write: |report, family, writer| {
            by_prefix(report, family, writer, "limit.", |rest| {
                let (rule, what) = rest.rsplit_once('.')?;
                Some(vec![rule, what.strip_prefix("refused-")?])
            });
        },
    },
    MetricFamily {
        name: "petrel_limit_forgotten_keys",
        kind: Counter,
        unit: "",
        labels: &["rule"],
        help: "Keys that a rule of limit.rules forgot because its table was full.",
        write: |report, family, writer| {
            by_prefix(report, family, writer, "limit.", |rest| {
                Some(vec![rest.strip_suffix(".keys-forgotten")?])
            });
        },
    },
    MetricFamily {
        name: "petrel_limit_uncounted_requests",
        kind: Counter,
        unit: "",
        labels: &["rule"],
        help: "Requests that a rule of limit.rules could not count.",
        write: |report, family, writer| {
            by_prefix(report, family, writer, "limit.", |rest| {
                Some(vec![rest.strip_suffix(".uncounted")?])
            });
        },
    },
    MetricFamily {
        name: "petrel_auth_lockout_events",
        kind: Counter,
        unit: "",
        labels: &["event"],
        help: "Wrong passwords that were counted (failures), lock-outs that have begun, requests that were refused.",
        write: |report, family, writer| {
            by_prefix(report, family, writer, "auth.lockout.", |rest| {
                Some(vec![rest])
            });
        },
    },
    MetricFamily {
        name: "petrel_cgi_programs",
        kind: Gauge,
        unit: "",
        labels: &[],
        help: "CGI programs that run.",
        write: |report, family, writer| value(family, writer, Count(report.programs)),
    },
    MetricFamily {
        name: "petrel_store_events",
        kind: Counter,
        unit: "",
        labels: &["store", "event"],
        help: "Operations on Redis, memcached and LDAP servers, and what became of them.",
        write: |report, family, writer| {
            by_prefix(report, family, writer, "store.", |rest| {
                let (store, event) = rest.rsplit_once('.')?;
                (event != "waited-us").then(|| vec![store, event])
            });
        },
    },
    MetricFamily {
        name: "petrel_store_wait_seconds",
        kind: Counter,
        unit: "seconds",
        labels: &["store"],
        help: "The time that these operations have waited.",
        write: |report, family, writer| {
            family.begin(writer);
            for (rest, count) in with_prefix(&report.counters, "store.") {
                if let Some(store) = rest.strip_suffix(".waited-us") {
                    writer.sample(&[("store", store)], Time(count.saturating_mul(1000)));
                }
            }
        },
    },
    MetricFamily {
        name: "petrel_lua_dict_entries",
        kind: Gauge,
        unit: "",
        labels: &["dict"],
        help: "Entries of the dictionaries of scripts.",
        write: |report, family, writer| {
            by_prefix(report, family, writer, "lua.dict.", |rest| {
                Some(vec![rest.strip_suffix(".entries")?])
            });
        },
    },
    MetricFamily {
        name: "petrel_lua_dict_bytes",
        kind: Gauge,
        unit: "bytes",
        labels: &["dict"],
        help: "Bytes of the dictionaries of scripts.",
        write: |report, family, writer| {
            by_prefix(report, family, writer, "lua.dict.", |rest| {
                Some(vec![rest.strip_suffix(".bytes")?])
            });
        },
    },
    MetricFamily {
        name: "petrel_lua_dict_events",
        kind: Counter,
        unit: "",
        labels: &["dict", "event"],
        help: "What happened in the dictionaries of scripts: hits, misses, expired, evicted, refused.",
        write: |report, family, writer| {
            by_prefix(report, family, writer, "lua.dict.", |rest| {
                let (dict, event) = rest.rsplit_once('.')?;
                (!matches!(event, "entries" | "bytes")).then(|| vec![dict, event])
            });
        },
    },
    MetricFamily {
        name: "petrel_script_value",
        kind: Gauge,
        unit: "",
        labels: &["name"],
        help: "Counters that scripts have made (lighty.status).",
        write: |report, family, writer| {
            family.begin(writer);
            for (name, count) in &report.script_counters {
                writer.sample(&[("name", name)], Count(*count));
            }
        },
    },
];

const BACKEND: &[&str] = &["backend", "address"];
const CLASS: &[&str] = &["class"];
const DEVICE: &[&str] = &["device", "mount"];

fn request_durations(report: &MetricsReport, family: &MetricFamily, writer: &mut Writer) {
    family.begin(writer);
    let bounds = Bounds::new(&LATENCY_BOUNDS);
    for (route, counts) in &report.requests.routes {
        for counts in &counts.classes {
            let latency = &counts.latency;
            let exemplar = counts.exemplar.map(|exemplar| shown(report, exemplar));
            let labels = [("route", &**route), ("code", counts.class.name())];
            writer.histogram(
                &labels,
                &bounds,
                &latency.buckets,
                latency.sum,
                exemplar.as_ref(),
            );
        }
    }
}

fn shown(report: &MetricsReport, exemplar: Exemplar) -> ShownExemplar {
    ShownExemplar {
        bucket: exemplar.bucket(),
        request_id: exemplar.id.to_string(),
        time: exemplar.nanos,
        ended: report.wall_at(exemplar.ended),
    }
}

/// One histogram a stage, not one a stage and route: with a thousand routes those would be 91,000 series.
fn stage_durations(report: &MetricsReport, family: &MetricFamily, writer: &mut Writer) {
    family.begin(writer);
    let bounds = Bounds::new(&STAGE_BOUNDS);
    for (stage, counts) in Stage::ALL.iter().zip(&report.requests.stages) {
        if counts.requests() > 0 {
            let labels = [("stage", stage.name())];
            writer.histogram(&labels, &bounds, &counts.buckets, counts.sum, None);
        }
    }
}

fn route_stages(report: &MetricsReport, family: &MetricFamily, writer: &mut Writer) {
    family.begin(writer);
    for (route, counts) in &report.requests.routes {
        for (stage, nanos) in Stage::ALL.iter().zip(&counts.stages) {
            if *nanos > 0 {
                let labels = [("route", &**route), ("stage", stage.name())];
                writer.sample(&labels, Time(*nanos));
            }
        }
    }
}

fn value(family: &MetricFamily, writer: &mut Writer, value: Number) {
    family.begin(writer);
    writer.sample(&[], value);
}

fn by_route(
    report: &MetricsReport,
    family: &MetricFamily,
    writer: &mut Writer,
    count: fn(&petrel_engine::metrics::ClassCounts) -> u64,
) {
    family.begin(writer);
    for (route, counts) in &report.requests.routes {
        let sum = counts.classes.iter().map(count).sum();
        writer.sample(&[("route", &**route)], Count(sum));
    }
}

fn by_worker(
    report: &MetricsReport,
    family: &MetricFamily,
    writer: &mut Writer,
    number: fn(&WorkerState) -> Number,
) {
    family.begin(writer);
    for (worker, state) in report.workers.iter().enumerate() {
        writer.sample(&[("worker", &worker.to_string())], number(state));
    }
}

fn by_backend(
    report: &MetricsReport,
    family: &MetricFamily,
    writer: &mut Writer,
    number: fn(&BackendReport) -> Option<Number>,
) {
    family.begin(writer);
    for backend in &report.backends {
        if let Some(number) = number(backend) {
            let labels = [("backend", &*backend.label), ("address", &*backend.address)];
            writer.sample(&labels, number);
        }
    }
}

fn fpm_pool(backend: &BackendReport) -> Option<&FpmPool> {
    backend.fpm.as_ref()?.result.as_ref()?.as_ref().ok()
}

fn fpm_children(report: &MetricsReport, family: &MetricFamily, writer: &mut Writer) {
    family.begin(writer);
    for backend in &report.backends {
        let Some(pool) = fpm_pool(backend) else {
            continue;
        };
        for (state, count) in [
            ("working", pool.working),
            ("reading", pool.reading),
            ("idle", pool.idle),
        ] {
            let labels = [
                ("backend", &*backend.label),
                ("address", &*backend.address),
                ("state", state),
            ];
            writer.sample(&labels, Count(count));
        }
    }
}

fn by_class(
    report: &MetricsReport,
    family: &MetricFamily,
    writer: &mut Writer,
    number: fn(&Counts) -> Number,
) {
    family.begin(writer);
    for (class, counts) in &report.classes {
        writer.sample(&[("class", class)], number(counts));
    }
}

fn by_device(
    report: &MetricsReport,
    family: &MetricFamily,
    writer: &mut Writer,
    number: fn(&DeviceReport) -> Number,
) {
    family.begin(writer);
    for device in &report.devices {
        let mount = device.mount.as_deref().unwrap_or_default();
        let labels = [("device", &*device.device), ("mount", mount)];
        writer.sample(&labels, number(device));
    }
}

/// Samples of the counters whose names begin with `prefix`. `values` makes the labels' values of the rest of
/// the name; `None`: the counter belongs to another family.
fn by_prefix<'r>(
    report: &'r MetricsReport,
    family: &MetricFamily,
    writer: &mut Writer,
    prefix: &str,
    values: fn(&'r str) -> Option<Vec<&'r str>>,
) {
    family.begin(writer);
    for (rest, count) in with_prefix(&report.counters, prefix) {
        if let Some(values) = values(rest) {
            let names = family.labels.iter().copied();
            let labels: Vec<_> = names.zip(values).collect();
            writer.sample(&labels, Count(count));
        }
    }
}

fn with_prefix<'c>(
    counters: &'c BTreeMap<String, u64>,
    prefix: &str,
) -> impl Iterator<Item = (&'c str, u64)> {
    let from = counters.range(prefix.to_owned()..);
    let rests = from.map_while(move |(name, count)| Some((name.strip_prefix(prefix)?, *count)));
    rests.collect::<Vec<_>>().into_iter()
}

/// Network backend and mode of a counter such as `writev.async-read`. The short name of one backend is left
/// out, since it has another name as well.
fn file_read<'c>(rest: &'c str, what: &str) -> Option<Vec<&'c str>> {
    let (backend, mode) = rest.strip_suffix(what)?.split_once('.')?;
    (backend != "linux-aio").then(|| vec![backend, mode])
}

/// The store that a size of the page cache is about: `entries` is that of the memory.
fn store<'c>(rest: &'c str, what: &str) -> Option<Vec<&'c str>> {
    let store = rest.strip_suffix(what)?;
    Some(vec![match store {
        "" => "memory",
        store => store.strip_suffix('.')?,
    }])
}

fn nanos(duration: std::time::Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
