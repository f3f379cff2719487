//! Results as text and JSON. It computes no more than ratios.

use crate::goals;
use crate::results::{Cell, Outcome, Repeat, Results, Summary};
use crate::syscalls::Tracer;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

/// The whole report: one block per number of connections.
pub fn text(results: &Results) -> String {
    let mut out = String::new();
    for connections in &results.connections {
        let view = View {
            results,
            connections: *connections,
        };
        let _infallible = writeln!(out, "\n=== {} ===", connections_title(*connections));
        view.figures(&mut out);
        view.waiting(&mut out);
        view.ratios(&mut out);
        view.backends(&mut out);
        view.system_calls(&mut out);
    }
    out.push_str(&goals::text(results));
    soundness(results, &mut out);
    errors(results, &mut out);
    out
}

/// Writes `results.json` and `report.txt`.
pub fn write(results: &Results, text: &str, directory: &Path) -> io::Result<()> {
    let json = serde_json::to_string_pretty(results)?;
    fs::write(directory.join("results.json"), json + "\n")?;
    fs::write(
        directory.join("report.txt"),
        format!("{}\n{text}", results.machine),
    )
}

/// `1 connection`, `64 connections`.
pub fn connections_title(connections: u16) -> String {
    format!(
        "{connections} connection{}",
        if connections == 1 { "" } else { "s" }
    )
}

/// Three significant digits, as far as they are decimals.
pub fn number(value: f64) -> String {
    match value {
        _ if value < 10.0 => format!("{value:.2}"),
        _ if value < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// The results for one number of connections.
struct View<'a> {
    results: &'a Results,
    connections: u16,
}

impl View<'_> {
    fn figures(&self, out: &mut String) {
        self.table(
            out,
            "Server CPU a request, µs, normalised (user + system)",
            &|summary| {
                let [all, user, system] =
                    [summary.cpu_us.median, summary.user_us, summary.system_us];
                let doubt = if summary.sound() == 0 { "~" } else { "" };
                format!(
                    "{doubt}{} ({} + {})",
                    number(all),
                    brief(user),
                    brief(system)
                )
            },
        );
        self.table(out, "  the same, lowest–highest repeat", &|summary| {
            format!(
                "{}–{}",
                number(summary.cpu_us.min),
                number(summary.cpu_us.max)
            )
        });
        self.table(out, "Requests a second", &|summary| {
            format!("{:.0}", summary.requests_per_s.median)
        });
        self.table(out, "Latency, µs: p50 / p99 / longest", &|summary| {
            format!(
                "{} / {} / {}",
                brief(summary.p50_us.median),
                brief(summary.p99_us.median),
                brief(summary.max_us.median)
            )
        });
        self.table(
            out,
            "Resident memory, MiB: sum / shared pages divided",
            &|summary| {
                let (sum, divided) = (summary.resident_mib.median, summary.proportional_mib.median);
                format!("{} / {}", brief(sum), brief(divided))
            },
        );
    }

    /// Only if idle connections were measured.
    fn waiting(&self, out: &mut String) {
        let mut here = self.results.cells.iter();
        let waits = |cell: &Cell| {
            cell.connections == self.connections
                && cell
                    .summary()
                    .is_some_and(|summary| summary.connection_kib.is_some())
        };
        if here.any(waits) {
            self.table(
                out,
                "Memory of a connection that waits for its next request, KiB",
                &|summary| match summary.connection_kib {
                    Some(spread) => number(spread.median),
                    None => "–".to_owned(),
                },
            );
        }
    }

    /// Only if there are backends.
    fn backends(&self, out: &mut String) {
        let summaries = self.results.cells.iter().filter_map(Cell::summary);
        if !summaries
            .into_iter()
            .any(|summary| summary.backend_cpu_us.is_some())
        {
            return;
        }
        let show = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
        self.table(out, "Backend CPU a request, µs, normalised", &|summary| {
            show(summary.backend_cpu_us.map(|spread| number(spread.median)))
        });
        self.table(
            out,
            "Server and backend CPU a request, µs, normalised",
            &|summary| show(summary.both_cpu_us.map(|spread| number(spread.median))),
        );
        self.table(
            out,
            "Requests that got to the backend, for a request",
            &|summary| show(summary.passed_on.map(|rate| format!("{rate:.4}"))),
        );
        self.table(out, "Backend connections made for a request", &|summary| {
            show(summary.connects.map(|rate| format!("{rate:.4}")))
        });
        let mut summaries = self.results.cells.iter().filter_map(Cell::summary);
        if summaries.any(|summary| summary.occupied_us.is_some()) {
            self.table(
                out,
                "Time a request occupied a backend's worker, µs",
                &|summary| show(summary.occupied_us.map(|spread| number(spread.median))),
            );
        }
    }

    /// Petrel's CPU relative to each server's, and every server's relative to the floor's, as far as they
    /// were run.
    fn ratios(&self, out: &mut String) {
        let cpu = |server: &str, workload: &str| {
            Some(
                self.results
                    .cell(server, workload, self.connections)?
                    .summary()?
                    .cpu_us
                    .median,
            )
        };
        let servers = &self.results.servers;
        if servers.contains(&PETREL) {
            self.ratio_table(out, "Petrel's CPU ÷ the server's", &|workload, server| {
                Some(cpu(PETREL, workload)? / cpu(server, workload)?)
            });
        }
        if servers.contains(&FLOOR) {
            self.ratio_table(
                out,
                "The server's CPU ÷ the floor's",
                &|workload, server| Some(cpu(server, workload)? / cpu(FLOOR, workload)?),
            );
        }
    }

    fn system_calls(&self, out: &mut String) {
        self.table(out, "System calls a request", &|summary| {
            let calls = &summary.system_calls;
            let mark = if calls.tracer == Some(Tracer::Strace) {
                "*"
            } else {
                ""
            };
            calls
                .tracer
                .map_or("?".to_owned(), |_| format!("{:.2}{mark}", calls.total))
        });
        let by_strace = |cell: &Cell| {
            cell.summary()
                .is_some_and(|s| s.system_calls.tracer == Some(Tracer::Strace))
        };
        if self.results.cells.iter().any(by_strace) {
            out.push_str("  * counted by strace, which slows the server: fewer waits than usual\n");
        }
        for workload in self.results.workloads_with(self.connections) {
            let _infallible = writeln!(out, "  by name, {}:", workload.title);
            for server in &self.results.servers {
                let cell = self.results.cell(server, workload.name, self.connections);
                if let Some(summary) = cell.and_then(Cell::summary) {
                    let _infallible = writeln!(out, "    {server:<17} {}", by_name(summary));
                }
            }
        }
    }

    /// A row per workload, a column per server.
    fn table(&self, out: &mut String, title: &str, show: &dyn Fn(&Summary) -> String) {
        self.grid(out, title, &|workload, server| match self.results.cell(
            server,
            workload,
            self.connections,
        ) {
            Some(Cell {
                outcome: Outcome::Figures(summary),
                ..
            }) => show(summary),
            Some(Cell {
                outcome: Outcome::Error(_),
                ..
            }) => "ERROR".to_owned(),
            None => "–".to_owned(),
        });
    }

    fn ratio_table(
        &self,
        out: &mut String,
        title: &str,
        ratio: &dyn Fn(&str, &str) -> Option<f64>,
    ) {
        self.grid(out, title, &|workload, server| {
            ratio(workload, server).map_or("–".to_owned(), |ratio| format!("{ratio:.2}"))
        });
    }

    fn grid(&self, out: &mut String, title: &str, show: &dyn Fn(&str, &str) -> String) {
        let mut rows = vec![vec![String::new()]];
        rows[0].extend(
            self.results
                .servers
                .iter()
                .map(|server| (*server).to_owned()),
        );
        for workload in self.results.workloads_with(self.connections) {
            let mut row = vec![workload.title.to_owned()];
            row.extend(
                self.results
                    .servers
                    .iter()
                    .map(|server| show(workload.name, server)),
            );
            rows.push(row);
        }
        let _infallible = write!(out, "\n{title}\n{}", aligned(&rows));
    }
}

/// The first column is left-aligned, the others right-aligned. All rows (at least one) have the same length.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows[0].len();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<_> = (0..columns)
        .map(|column| width(column).unwrap_or(0))
        .collect();
    let mut out = String::new();
    for row in rows {
        let mut line = format!("  {:<1$}", row[0], widths[0]);
        for (text, width) in row.iter().zip(&widths).skip(1) {
            let _infallible = write!(line, "  {text:>width$}");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// `recvfrom 1.00, sendto 1.00, epoll_wait 0.11`, the most frequent first.
fn by_name(summary: &Summary) -> String {
    if let Some(error) = &summary.system_calls.error {
        return error.clone();
    }
    let mut calls: Vec<_> = summary.system_calls.by_name.iter().collect();
    calls.sort_by(|one, other| other.1.total_cmp(one.1));
    calls.retain(|(_, rate)| **rate >= 0.005);
    calls
        .iter()
        .map(|(name, rate)| format!("{name} {rate:.2}"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// How reliable the figures are.
fn soundness(results: &Results, out: &mut String) {
    let summaries = || results.cells.iter().filter_map(Cell::summary);
    let repeats = || summaries().flat_map(|summary| &summary.repeats);
    let count = |which: fn(&Repeat) -> bool| repeats().filter(|repeat| which(repeat)).count();
    let (sound, disturbed) = (
        count(|repeat| repeat.sound),
        count(|repeat| repeat.disturbed),
    );
    let doubtful = summaries().filter(|summary| summary.sound() == 0).count();
    let _infallible = writeln!(
        out,
        "\nOf {} runs {sound} had the cores at the usual distance; only those count. During \
         {disturbed} other\nprograms used the machine: rates and latencies suffer, CPU times hardly.",
        repeats().count()
    );
    if doubtful > 0 {
        let _infallible = writeln!(out, "{doubtful} figures without a sound run are marked ~.");
    }
}

/// Each error once: a server that does not start fails with every number of connections.
fn errors(results: &Results, out: &mut String) {
    let mut told = BTreeSet::new();
    for Cell {
        server,
        workload,
        outcome,
        ..
    } in &results.cells
    {
        let Outcome::Error(error) = outcome else {
            continue;
        };
        if told.insert((server, workload, error)) {
            let _infallible = writeln!(out, "\nERROR: {server}, {workload}: {error}");
        }
    }
}

/// Two significant digits, which are enough for the parts of a figure.
fn brief(value: f64) -> String {
    if value < 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

const PETREL: &str = "petrel";
const FLOOR: &str = "floor";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!(
            [4.5678, 45.678, 456.78].map(number),
            ["4.57", "45.7", "457"]
        );
    }

    #[test]
    fn columns_are_aligned_by_characters_not_bytes() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let text = aligned(&[row(["", "µs"]), row(["a", "1–2"]), row(["bb", "10–20"])]);
        assert_eq!(text, "         µs\n  a     1–2\n  bb  10–20\n");
    }
}
