//! Made-up results for tests.

use super::client::Milliseconds;
use super::results::{Cell, Crowd, Figures, Results};
use super::watch::{Reading, Row};
use crate::disk::Counters;
use crate::machine::Machine;
use std::collections::BTreeMap;

/// A measurement with this many fetches per second of 100 kB.
pub fn figures(fetches_per_s: f64) -> Figures {
    let reading = || Reading::new(Counters::default());
    let mut machine = reading().until(&reading());
    machine.spindles = vec![Row::default(); 2];
    let times = Milliseconds {
        count: 10,
        mean: 20.0,
        median: 15.0,
        p99: 40.0,
        max: 50.0,
        min: 1.0,
    };
    Figures {
        seconds: 10.0,
        cold: Crowd {
            fetches: (10.0 * fetches_per_s) as u64,
            bytes: (1e6 * fetches_per_s) as u64,
            fetches_per_s,
            mb_per_s: fetches_per_s / 10.0,
            connect: times,
            first: times,
            body: times,
            latency: times,
            late: times,
            p99_by_second: vec![times.p99; 2],
            reconnects: 0,
            lost: 0,
            lost_because: None,
        },
        beside: None,
        machine,
        operations: 3.0,
        limit: 105.0,
        of_limit: fetches_per_s / 105.0,
        cpu_ms: 0.5,
        memory_mib: 20.0,
        attempts: 1,
    }
}

/// Workload, server, way and result, with 100 clients.
pub type Made = (
    &'static str,
    &'static str,
    &'static str,
    Result<Figures, String>,
);

/// Results with one round of each.
pub fn results(made: &[Made]) -> Results {
    let cell = |(workload, server, way, run): &Made| Cell {
        workload,
        server,
        way: (*way).to_owned(),
        clients: 100,
        runs: vec![run.clone()],
    };
    Results {
        machine: Machine {
            processor: "none".to_owned(),
            cores: 2,
            kernel: "6".to_owned(),
            versions: BTreeMap::new(),
        },
        seconds: 10.0,
        cells: made.iter().map(cell).collect(),
    }
}
