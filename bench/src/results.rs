//! Reduces runs to results: normalised, with the medians of the repeats, per cell.

use crate::ab::Ab;
use crate::backend::Counts;
use crate::calibrate::{Distances, Sample};
use crate::machine::Machine;
use crate::peers::Chosen;
use crate::schedule::{Calls, Figures, Run};
use crate::syscalls::Tracer;
use crate::workload::Workload;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;

/// A whole comparison, as written to JSON.
#[derive(Debug, Serialize)]
pub struct Results {
    /// The machine and the versions.
    pub machine: Machine,
    /// The servers, in the order of the table of peers.
    pub servers: Vec<&'static str>,
    /// The workloads.
    pub workloads: Vec<Title>,
    /// Numbers of connections, in the order of the command line.
    pub connections: Vec<u16>,
    /// The usual time of the fixed work, to which figures are normalised.
    pub calibration: Sample,
    /// One per server, workload and number of connections.
    pub cells: Vec<Cell>,
}

/// A workload's two names.
#[derive(Debug, Serialize)]
pub struct Title {
    /// For the JSON and the command line.
    pub name: &'static str,
    /// For readers.
    pub title: &'static str,
}

/// The result of a server, a workload and a number of connections.
#[derive(Debug, Serialize)]
pub struct Cell {
    /// The server's name.
    pub server: &'static str,
    /// The workload's name.
    pub workload: &'static str,
    /// Client connections.
    pub connections: u16,
    /// The figures, or the first error of any repeat: one wrong response voids the cell.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Figures or error.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// All repeats succeeded.
    Figures(Box<Summary>),
    /// One failed.
    Error(String),
}

/// Figures over all repeats.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// Server CPU per request, µs, normalised.
    pub cpu_us: Spread,
    /// The share of its median spent in user mode, µs.
    pub user_us: f64,
    /// The share of its median spent in the kernel, µs.
    pub system_us: f64,
    /// Requests per second.
    pub requests_per_s: Spread,
    /// Median latency, µs.
    pub p50_us: Spread,
    /// 99th percentile of the latency, µs.
    pub p99_us: Spread,
    /// The longest latency, µs.
    pub max_us: Spread,
    /// Resident memory, MiB; pages shared between the server's processes count in each.
    pub resident_mib: Spread,
    /// Resident memory, MiB; shared pages are divided among the processes that share them.
    pub proportional_mib: Spread,
    /// The server's memory per idle connection, KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_kib: Option<Spread>,
    /// Client CPU per request, µs, normalised.
    pub client_cpu_us: Spread,
    /// Backend CPU per request, µs, normalised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_cpu_us: Option<Spread>,
    /// Server and backend CPU per request together, µs, normalised.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub both_cpu_us: Option<Spread>,
    /// Requests that reached the backend per request, if the backend counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passed_on: Option<f64>,
    /// Backend connections opened per request: as the backend counted them, or else by system calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connects: Option<f64>,
    /// The individual repeats. The other figures cover the sound ones or, if none is sound, all.
    pub repeats: Vec<Repeat>,
    /// How long a request occupied one of the backend's workers, µs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub occupied_us: Option<Spread>,
    /// Latencies as `ab` would report them.
    pub latency_ms: Latency,
    /// The figures of `ab`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ab: Option<Result<Ab, String>>,
    /// Replies in those repeats.
    pub requests: u64,
    /// Persistent connections that the server closed.
    pub reconnects: u64,
    /// Length of a reply's head.
    pub head_bytes: usize,
    /// System calls per request.
    pub system_calls: SystemCalls,
}

/// One repeat, and how reliable it is.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Repeat {
    /// Server CPU per request, µs, not normalised.
    pub cpu_us: f64,
    /// How much the machine was slowed down: the divisor of the normalisation.
    pub slowness: f64,
    /// The share of the machine that other programs used meanwhile.
    pub foreign_share: f64,
    /// The distance between the cores, before and after.
    pub distance_ns: [f64; 2],
    /// Whether the cores were at the usual distance.
    pub sound: bool,
    /// Whether other programs used so much that rates and latencies are doubtful.
    pub disturbed: bool,
}

/// Median and range of the repeats.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The lowest value.
    pub min: f64,
    /// The highest value.
    pub max: f64,
}

/// Latencies of all repeats together, ms: the columns of `ab`.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Latency {
    /// The shortest.
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub sd: f64,
    /// The median.
    pub median: f64,
    /// The longest.
    pub max: f64,
}

/// System calls a request.
#[derive(Debug, Default, Serialize)]
pub struct SystemCalls {
    /// The program that counted them; `None`: see `error`.
    pub tracer: Option<Tracer>,
    /// Of all kinds.
    pub total: f64,
    /// By name; those made at least once in a thousand requests.
    pub by_name: BTreeMap<String, f64>,
    /// Why they were not counted.
    pub error: Option<String>,
}

/// Reduces runs to results.
pub fn summarise(
    machine: Machine,
    servers: &[Chosen],
    workloads: &[&'static Workload],
    runs: &[Run],
) -> Results {
    let good = runs.iter().filter_map(|run| run.result.as_ref().ok());
    let samples = good.flat_map(|figures| figures.samples);
    let (calibration, distances) = (usual(samples.clone()), distances(samples));
    let mut connections = Vec::new();
    let mut cells: Vec<Cell> = Vec::new();
    for run in runs {
        if !connections.contains(&run.connections) {
            connections.push(run.connections);
        }
        let key = (run.server, run.workload, run.connections);
        if cells
            .iter()
            .all(|cell| (cell.server, cell.workload, cell.connections) != key)
        {
            let same = runs
                .iter()
                .filter(|run| (run.server, run.workload, run.connections) == key);
            let outcome = Outcome::of(same, calibration, &distances);
            let (server, workload, connections) = key;
            cells.push(Cell {
                server,
                workload,
                connections,
                outcome,
            });
        }
    }
    let title = |workload: &&'static Workload| Title {
        name: workload.name,
        title: workload.title,
    };
    Results {
        machine,
        servers: servers.iter().map(|chosen| chosen.peer.name).collect(),
        workloads: workloads.iter().map(title).collect(),
        connections,
        calibration,
        cells,
    }
}

impl Results {
    /// The workloads that were run with that number of connections.
    pub fn workloads_with(&self, connections: u16) -> impl Iterator<Item = &Title> {
        self.workloads.iter().filter(move |workload| {
            self.cells
                .iter()
                .any(|cell| cell.workload == workload.name && cell.connections == connections)
        })
    }

    /// The cell of a server, a workload and a number of connections, if it was run.
    pub fn cell(&self, server: &str, workload: &str, connections: u16) -> Option<&Cell> {
        self.cells.iter().find(|cell| {
            cell.server == server && cell.workload == workload && cell.connections == connections
        })
    }
}

impl Summary {
    /// How many repeats were sound.
    pub fn sound(&self) -> usize {
        self.repeats.iter().filter(|repeat| repeat.sound).count()
    }
}

impl Cell {
    /// The figures, unless the cell failed.
    pub fn summary(&self) -> Option<&Summary> {
        match &self.outcome {
            Outcome::Figures(summary) => Some(summary),
            Outcome::Error(_) => None,
        }
    }
}

impl Outcome {
    fn of<'a>(runs: impl Iterator<Item = &'a Run>, usual: Sample, distances: &Distances) -> Self {
        let figures: Result<Vec<_>, _> = runs.map(|run| run.result.as_ref()).collect();
        match figures {
            Ok(figures) => Self::Figures(Box::new(Summary::of(&figures, usual, distances))),
            Err(error) => Self::Error(error.clone()),
        }
    }
}

impl Summary {
    fn of(all: &[&Figures], usual: Sample, distances: &Distances) -> Self {
        let sound = |run: &&&Figures| run.is_sound(distances);
        let sound: Vec<_> = all.iter().filter(sound).copied().collect();
        let runs = if sound.is_empty() { all } else { &sound[..] };
        let repeat = |run: &&Figures| Repeat::of(run, usual, distances);
        let each = |figure: &dyn Fn(&Figures) -> f64| -> Spread {
            Spread::of(runs.iter().map(|run| figure(run)).collect())
        };
        let normalised = |figure: &dyn Fn(&Figures) -> f64| -> Spread {
            Spread::of(
                runs.iter()
                    .map(|run| figure(run) / run.slowness(usual))
                    .collect(),
            )
        };
        let requests = |run: &Figures| run.outcome.requests as f64;
        let latency = |run: &Figures, q| run.outcome.latency.value_at_quantile(q) as f64 / 1e3;
        let cpu_us = normalised(&Figures::cpu_us);
        let user_share = user_share(runs);
        let has_backend = runs.iter().any(|run| run.backend.is_some());
        let calls = SystemCalls::of(all);
        Self {
            cpu_us,
            user_us: cpu_us.median * user_share,
            system_us: cpu_us.median * (1.0 - user_share),
            requests_per_s: each(&|run| requests(run) / run.outcome.elapsed.as_secs_f64()),
            p50_us: each(&|run| latency(run, 0.5)),
            p99_us: each(&|run| latency(run, 0.99)),
            max_us: each(&|run| run.outcome.latency.max() as f64 / 1e3),
            resident_mib: each(&|run| run.memory.resident as f64 / MIB),
            proportional_mib: each(&|run| run.memory.proportional as f64 / MIB),
            connection_kib: runs
                .iter()
                .map(|run| Some(run.connection_bytes? / 1024.0))
                .collect::<Option<_>>()
                .map(Spread::of),
            client_cpu_us: normalised(&|run| run.client_cpu.as_secs_f64() * 1e6 / requests(run)),
            backend_cpu_us: has_backend.then(|| normalised(&Figures::backend_cpu_us)),
            both_cpu_us: has_backend
                .then(|| normalised(&|run| run.cpu_us() + run.backend_cpu_us())),
            passed_on: counted(runs, |counts| counts.requests),
            connects: counted(runs, |counts| counts.accepted)
                .or_else(|| calls.rate("connect").filter(|_| has_backend)),
            occupied_us: occupied(runs).map(Spread::of),
            latency_ms: Latency::of(runs),
            ab: all.iter().find_map(|run| run.ab.clone()),
            repeats: all.iter().map(repeat).collect(),
            requests: runs.iter().map(|run| run.outcome.requests).sum(),
            reconnects: runs.iter().map(|run| run.outcome.reconnects).sum(),
            head_bytes: runs.first().map_or(0, |run| run.head_bytes),
            system_calls: calls,
        }
    }
}

impl Repeat {
    fn of(run: &Figures, usual: Sample, distances: &Distances) -> Self {
        Self {
            cpu_us: run.cpu_us(),
            slowness: run.slowness(usual),
            foreign_share: run.foreign_share,
            distance_ns: run.samples.map(|sample| sample.distance_ns),
            sound: run.is_sound(distances),
            disturbed: run.is_disturbed(),
        }
    }
}

/// What the backend counted in all runs, per request; `None` if it does not count.
fn counted(runs: &[&Figures], which: fn(Counts) -> u64) -> Option<f64> {
    let requests: u64 = runs.iter().map(|run| run.outcome.requests).sum();
    let counts = runs
        .iter()
        .map(|run| run.backend.as_ref()?.counts.map(which));
    let all: Option<u64> = counts.sum();
    Some(all? as f64 / requests.max(1) as f64)
}

/// µs per request in each run; `None` if the backend does not record them.
fn occupied(runs: &[&Figures]) -> Option<Vec<f64>> {
    let each = |run: &&Figures| {
        let occupied = run.backend.as_ref()?.occupied?;
        Some(occupied.as_secs_f64() * 1e6 / run.outcome.requests as f64)
    };
    runs.iter().map(each).collect()
}

impl Latency {
    fn of(runs: &[&Figures]) -> Self {
        let mut all: Option<Histogram<u64>> = None;
        for run in runs {
            match &mut all {
                None => all = Some(run.outcome.latency.clone()),
                Some(all) => *all += &run.outcome.latency,
            }
        }
        let Some(all) = all else {
            return Self::default();
        };
        let ms = |nanoseconds: f64| nanoseconds / 1e6;
        Self {
            min: ms(all.min() as f64),
            mean: ms(all.mean()),
            sd: ms(all.stdev()),
            median: ms(all.value_at_quantile(0.5) as f64),
            max: ms(all.max() as f64),
        }
    }
}

/// The share of user time in the ticks of all repeats: a single run has too few of them.
fn user_share(runs: &[&Figures]) -> f64 {
    let user: u64 = runs.iter().map(|run| run.cpu.user_ticks).sum();
    let system: u64 = runs.iter().map(|run| run.cpu.system_ticks).sum();
    if user + system == 0 {
        0.0
    } else {
        user as f64 / (user + system) as f64
    }
}

impl SystemCalls {
    /// How many calls of this name a request takes, if they were counted.
    fn rate(&self, name: &str) -> Option<f64> {
        self.tracer?;
        Some(self.by_name.get(name).copied().unwrap_or(0.0))
    }

    fn of(runs: &[&Figures]) -> Self {
        match runs.iter().find_map(|run| run.calls.as_ref()) {
            Some(Ok(calls)) => Self::per_request(calls),
            Some(Err(error)) => Self {
                error: Some(error.clone()),
                ..Self::default()
            },
            None => Self::default(),
        }
    }

    fn per_request(calls: &Calls) -> Self {
        let each = |count: u64| count as f64 / calls.requests.max(1) as f64;
        let by_name = calls
            .counts
            .iter()
            .map(|(name, count)| (name.clone(), each(*count)));
        Self {
            tracer: Some(calls.tracer),
            total: each(calls.counts.values().sum()),
            by_name: by_name.filter(|(_, rate)| *rate >= 0.001).collect(),
            error: None,
        }
    }
}

impl Spread {
    /// Of at least one value; all zeros if there is none.
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let (min, max) = (values.first().copied(), values.last().copied());
        Self {
            median: median(&values),
            min: min.unwrap_or(0.0),
            max: max.unwrap_or(0.0),
        }
    }
}

/// The median times of the fixed work.
fn usual(samples: impl Iterator<Item = Sample> + Clone) -> Sample {
    let of = |part: fn(&Sample) -> f64| {
        let mut values: Vec<_> = samples.clone().map(|sample| part(&sample)).collect();
        values.sort_by(f64::total_cmp);
        median(&values)
    };
    Sample {
        network_ns: of(|sample| sample.network_ns),
        computing_ns: of(|sample| sample.computing_ns),
        distance_ns: of(|sample| sample.distance_ns),
    }
}

fn distances(samples: impl Iterator<Item = Sample>) -> Distances {
    let mut distances = Distances::default();
    samples.for_each(|sample| distances.add(sample.distance_ns));
    distances
}

/// The median of sorted values; zero if there are none.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        length if length % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

const MIB: f64 = (1 << 20) as f64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_numbers() {
        assert_eq!(
            Spread::of(vec![3.0, 1.0, 2.0]),
            Spread {
                median: 2.0,
                min: 1.0,
                max: 3.0
            }
        );
        assert_eq!(Spread::of(vec![4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(Spread::of(vec![]).median, 0.0);
    }

    #[test]
    fn calls_are_divided_by_requests_and_rare_ones_left_out() {
        let counts = [("recvfrom", 1000), ("times", 1), ("sendto", 1500)];
        let counts = counts.map(|(name, count)| (name.to_owned(), count)).into();
        let calls = Calls {
            tracer: Tracer::Perf,
            counts,
            requests: 2000,
        };
        let each = SystemCalls::per_request(&calls);
        assert_eq!(
            each.by_name.keys().collect::<Vec<_>>(),
            ["recvfrom", "sendto"]
        );
        assert!((each.total - 2501.0 / 2000.0).abs() < 1e-9);
    }
}
