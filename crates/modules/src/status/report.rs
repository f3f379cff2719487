//! Everything that the metrics and the status page show, read at one time.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use petrel_engine::blocking::{self, Class, Counts, DeviceLoad};
use petrel_engine::clock::thread_now;
use petrel_engine::io_counters;
use petrel_engine::ledger::Nanos;
use petrel_engine::metrics::{Metrics, WorkerState};
use petrel_engine::mounts::{self, Storage};
use petrel_engine::shared::Shared;

use super::COUNTERS;
use crate::gateway::counters::BackendReport;
use crate::{gateway, magnet};

/// The state of a server process, with the counts `R` of its requests.
pub(super) struct Report<R> {
    /// The monotonic clock.
    pub(super) now: Nanos,
    /// The wall clock, since 1970.
    pub(super) wall: Duration,
    pub(super) uptime: Duration,
    pub(super) generation: u64,
    pub(super) connections: u64,
    pub(super) connections_max: u64,
    pub(super) workers: Vec<WorkerState>,
    pub(super) requests: R,
    /// Those of `status.statistics-url`, without the counters of gateways and scripts.
    pub(super) counters: BTreeMap<String, u64>,
    /// Those that scripts have made.
    pub(super) script_counters: BTreeMap<String, u64>,
    pub(super) backends: Vec<BackendReport>,
    /// CGI programs that run.
    pub(super) programs: u64,
    pub(super) classes: Vec<(&'static str, Counts)>,
    pub(super) devices: Vec<DeviceReport>,
}

/// A file system that has work.
pub(super) struct DeviceReport {
    /// Its number: `8:1`.
    pub(super) device: String,
    /// The directory on which it is mounted.
    pub(super) mount: Option<String>,
    /// Its type: `ext4`.
    pub(super) kind: Option<String>,
    pub(super) is_remote: bool,
    pub(super) load: DeviceLoad,
}

impl<R> Report<R> {
    /// Reads everything, and the counts of requests with `read`.
    #[expect(clippy::disallowed_methods, reason = "a thread without a worker asks")]
    pub(super) fn new(shared: &Shared, read: impl FnOnce(&Metrics, Nanos) -> R) -> Report<R> {
        let now = thread_now();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut counters = BTreeMap::new();
        for read in COUNTERS {
            read(shared, &mut counters);
        }
        counters.extend(io_counters::read_shared(shared));
        let mut script_counters = BTreeMap::new();
        magnet::read_counters(shared, &mut script_counters);
        Report {
            now,
            wall: wall.unwrap_or_default(),
            uptime: shared.uptime(),
            generation: shared.metrics().generation(),
            connections: shared.connections() as u64,
            connections_max: shared.connections_max() as u64,
            workers: shared.metrics().workers(),
            requests: read(shared.metrics(), now),
            counters,
            script_counters,
            backends: gateway::counters::report(shared),
            programs: gateway::counters::programs(shared),
            classes: Class::ALL
                .map(|class| (class.name(), blocking::counts(class)))
                .into(),
            devices: devices(shared),
        }
    }

    /// The wall-clock time, since 1970, at a time of the monotonic clock.
    pub(super) fn wall_at(&self, at: Nanos) -> Duration {
        self.wall
            .saturating_sub(Duration::from_nanos(self.now.saturating_sub(at)))
    }
}

/// Requests that are being received or answered.
pub(super) fn open_requests(workers: &[WorkerState]) -> u64 {
    let open = workers.iter().map(|worker| worker.gauges.open_requests);
    open.sum()
}

fn devices(shared: &Shared) -> Vec<DeviceReport> {
    let report = |(device, load): (String, DeviceLoad)| {
        let mount = mounts::of_device(load.device);
        DeviceReport {
            device,
            is_remote: mount
                .as_ref()
                .is_some_and(|(_, _, storage)| *storage == Storage::Remote),
            kind: mount.as_ref().map(|(_, kind, _)| kind.clone()),
            mount: mount.map(|(point, ..)| String::from_utf8_lossy(&point).into_owned()),
            load,
        }
    };
    io_counters::devices(shared)
        .into_iter()
        .map(report)
        .collect()
}
