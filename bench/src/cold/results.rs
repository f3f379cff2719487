//! Measurements in their cells: every one of them, their medians, and the one that is typical.

use super::client::Milliseconds;
use super::watch;
use super::workload::{Contestant, Workload};
use crate::machine::Machine;
use serde::Serialize;

/// A whole comparison.
#[derive(Debug, Serialize)]
pub struct Results {
    /// Where it ran.
    pub machine: Machine,
    /// Seconds that were asked for.
    pub seconds: f64,
    /// In the order in which they were run.
    pub cells: Vec<Cell>,
}

/// One contestant of one workload with a number of clients.
#[derive(Debug, Serialize)]
pub struct Cell {
    /// The workload's name.
    pub workload: &'static str,
    /// The server's name.
    pub server: &'static str,
    /// What is special about it.
    pub way: String,
    /// How many clients fetch cold files.
    pub clients: u16,
    /// Of each round what was measured, or what was wrong.
    pub runs: Vec<Result<Figures, String>>,
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// How long it was.
    pub seconds: f64,
    /// Those who fetch cold files.
    pub cold: Crowd,
    /// Those beside them.
    pub beside: Option<Crowd>,
    /// The machine and the disk.
    pub machine: watch::Seen,
    /// Reads of the disk for a file that those who fetch cold files got.
    pub operations: f64,
    /// Fetches a second that the disk could have done.
    pub limit: f64,
    /// Which share of that it did: of small files by complete answers, of large ones by bytes.
    pub of_limit: f64,
    /// Server CPU for such a file, milliseconds.
    pub cpu_ms: f64,
    /// Of the server, with shared pages divided.
    pub memory_mib: f64,
    /// How often it was measured until the disk kept its times, or nobody hoped any more.
    pub attempts: u32,
}

/// What some clients saw.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Crowd {
    /// Complete and right answers.
    pub fetches: u64,
    /// Bytes of bodies.
    pub bytes: u64,
    /// Complete answers a second.
    pub fetches_per_s: f64,
    /// Millions of bytes a second.
    pub mb_per_s: f64,
    /// From the first packet to a connection.
    pub connect: Milliseconds,
    /// From the request to the first byte.
    pub first: Milliseconds,
    /// From the request to the first byte of the body.
    pub body: Milliseconds,
    /// From when it was due to the last byte.
    pub latency: Milliseconds,
    /// By how much the client itself was late.
    pub late: Milliseconds,
    /// Of the latencies, for each of the first seconds in which a fetch was due.
    pub p99_by_second: Vec<f64>,
    /// Connections that had to be made again.
    pub reconnects: u64,
    /// Requests without an answer.
    pub lost: u64,
    /// What became of the first of those.
    pub lost_because: Option<String>,
}

impl Results {
    /// The cell of a contestant, new if there is none.
    pub fn cell_mut(
        &mut self,
        workload: &Workload,
        contestant: &Contestant,
        clients: u16,
    ) -> Option<&mut Cell> {
        let way = contestant.way.to_string();
        let is_it = |cell: &Cell| {
            (cell.workload, cell.server, cell.way.as_str(), cell.clients)
                == (workload.name, contestant.name, way.as_str(), clients)
        };
        let place = self.cells.iter().position(is_it).unwrap_or_else(|| {
            self.cells.push(Cell {
                workload: workload.name,
                server: contestant.name,
                way: way.clone(),
                clients,
                runs: Vec::new(),
            });
            self.cells.len() - 1
        });
        self.cells.get_mut(place)
    }

    /// The cells of a workload with a number of clients.
    pub fn of<'a>(
        &'a self,
        workload: &'a str,
        clients: u16,
    ) -> impl Iterator<Item = &'a Cell> + 'a {
        let is_of = move |cell: &&Cell| cell.workload == workload && cell.clients == clients;
        self.cells.iter().filter(is_of)
    }

    /// The cell of a server in its usual way.
    pub fn cell(&self, workload: &str, server: &str, clients: u16) -> Option<&Cell> {
        let mut cells = self.cells.iter();
        cells.find(|cell| {
            (cell.workload, cell.server, cell.way.as_str(), cell.clients)
                == (workload, server, "", clients)
        })
    }

    /// Numbers of clients that a workload was run with.
    pub fn clients(&self, workload: &str) -> Vec<u16> {
        let mut clients: Vec<_> = self
            .cells
            .iter()
            .filter(|cell| cell.workload == workload)
            .map(|cell| cell.clients)
            .collect();
        clients.sort_unstable();
        clients.dedup();
        clients
    }
}

impl Cell {
    /// The median of a figure: of sound runs, or of all if there are none.
    pub fn median(&self, of: impl Fn(&Figures) -> f64) -> Option<f64> {
        let mut values: Vec<_> = self.counting().map(of).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let upper = values.get(middle)?;
        if values.len() % 2 == 1 {
            return Some(*upper);
        }
        Some(f64::midpoint(*values.get(middle.checked_sub(1)?)?, *upper))
    }

    /// The run with the median throughput (of two the better one), for what has no median.
    pub fn typical(&self) -> Option<&Figures> {
        let mut runs: Vec<_> = self.counting().collect();
        runs.sort_by(|one, other| one.cold.mb_per_s.total_cmp(&other.cold.mb_per_s));
        runs.get(runs.len() / 2).copied()
    }

    /// Whether any of its runs is one in which the disk kept its times.
    pub fn is_sound(&self) -> bool {
        self.measured().any(Figures::is_sound)
    }

    /// What was wrong, if nothing was measured.
    pub fn error(&self) -> Option<&str> {
        match self.measured().next() {
            Some(_) => None,
            None => self
                .runs
                .iter()
                .find_map(|run| run.as_ref().err())
                .map(String::as_str),
        }
    }

    fn measured(&self) -> impl Iterator<Item = &Figures> {
        self.runs.iter().filter_map(|run| run.as_ref().ok())
    }

    fn counting(&self) -> impl Iterator<Item = &Figures> {
        let only_sound = self.is_sound();
        self.measured()
            .filter(move |figures| !only_sound || figures.is_sound())
    }
}

impl Figures {
    /// Whether the disk kept its times.
    pub fn is_sound(&self) -> bool {
        self.machine.disk.on_time()
    }
}
