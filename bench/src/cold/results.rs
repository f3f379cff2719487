//! The measurements by cell: all of them, their medians, and the typical one.

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
    /// The length of a run in seconds.
    pub seconds: f64,
    /// In the order in which they were run.
    pub cells: Vec<Cell>,
}

/// One contestant of one workload, with a number of clients.
#[derive(Debug, Serialize)]
pub struct Cell {
    /// The workload's name.
    pub workload: &'static str,
    /// The server's name.
    pub server: &'static str,
    /// How its configuration differs.
    pub way: String,
    /// How many clients fetch cold files.
    pub clients: u16,
    /// For each round, what was measured or what went wrong.
    pub runs: Vec<Result<Figures, String>>,
}

/// One measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Its length.
    pub seconds: f64,
    /// The clients that fetch cold files.
    pub cold: Crowd,
    /// The additional clients.
    pub beside: Option<Crowd>,
    /// Readings of the machine and the disk.
    pub machine: watch::Seen,
    /// Reads of the disk per file that the clients of cold files received.
    pub operations: f64,
    /// Fetches per second that the disk would have allowed.
    pub limit: f64,
    /// The share of that which was reached: for small files by complete responses, for large ones by bytes.
    pub of_limit: f64,
    /// Server CPU per such file, milliseconds.
    pub cpu_ms: f64,
    /// The server's memory, with shared pages divided.
    pub memory_mib: f64,
    /// How many attempts there were until the disk kept its times or the attempts ran out.
    pub attempts: u32,
}

/// What a group of clients measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Crowd {
    /// Complete and correct responses.
    pub fetches: u64,
    /// Bytes of bodies.
    pub bytes: u64,
    /// Complete responses per second.
    pub fetches_per_s: f64,
    /// Millions of bytes per second.
    pub mb_per_s: f64,
    /// From the first packet to an established connection.
    pub connect: Milliseconds,
    /// From the request to the first byte.
    pub first: Milliseconds,
    /// From the request to the first byte of the body.
    pub body: Milliseconds,
    /// From when the request was due to the last byte.
    pub latency: Milliseconds,
    /// How late the client itself was.
    pub late: Milliseconds,
    /// 99th percentiles of the latency, for each of the first seconds in which a fetch was due.
    pub p99_by_second: Vec<f64>,
    /// Connections that had to be reopened.
    pub reconnects: u64,
    /// Requests without a response.
    pub lost: u64,
    /// What happened to the first of those.
    pub lost_because: Option<String>,
}

impl Results {
    /// The cell of a contestant, created if there is none.
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

    /// The cell of a server in its usual configuration.
    pub fn cell(&self, workload: &str, server: &str, clients: u16) -> Option<&Cell> {
        let mut cells = self.cells.iter();
        cells.find(|cell| {
            (cell.workload, cell.server, cell.way.as_str(), cell.clients)
                == (workload, server, "", clients)
        })
    }

    /// The numbers of clients with which a workload was run.
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
    /// The median of a figure over sound runs, or over all runs if none is sound.
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

    /// The run with the median throughput (of two the better one), for figures without a median.
    pub fn typical(&self) -> Option<&Figures> {
        let mut runs: Vec<_> = self.counting().collect();
        runs.sort_by(|one, other| one.cold.mb_per_s.total_cmp(&other.cold.mb_per_s));
        runs.get(runs.len() / 2).copied()
    }

    /// Whether the disk kept its times in any of its runs.
    pub fn is_sound(&self) -> bool {
        self.measured().any(Figures::is_sound)
    }

    /// What went wrong, if nothing was measured.
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
