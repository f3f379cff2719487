//! The tables, and the goals below them. It computes no more than ratios.

use super::client::Milliseconds;
use super::goals;
use super::results::{Cell, Figures, Results};
use super::workload::{Contest, Workload};
use crate::report::{aligned, number};
use std::fmt::Write as _;

/// The whole report.
pub fn text(results: &Results, workloads: &[&Workload]) -> String {
    let mut out = String::new();
    for workload in workloads {
        for clients in results.clients(workload.name) {
            let cells: Vec<_> = results.of(workload.name, clients).collect();
            let _infallible = writeln!(out, "\n=== {}, {clients} clients ===", workload.title);
            for (title, columns) in tables(workload.contest) {
                let _infallible = write!(out, "\n{title}\n{}", table(&cells, columns));
            }
        }
    }
    out.push_str(&goals::text(results));
    out.push_str(&doubts(results));
    out
}

/// A server and how its configuration differs.
pub fn label(server: &str, way: &str) -> String {
    match way {
        "" => server.to_owned(),
        _ => format!("{server}, {way}"),
    }
}

/// A line about one measurement, printed while the others still run.
pub fn brief(figures: &Figures) -> String {
    let cold = &figures.cold;
    let mut text = format!(
        "{:.1} fetches/s, {:.2} MB/s, {:.2} of the limit, {:.2} reads a fetch, disk late {:.2} ms, {}",
        cold.fetches_per_s,
        cold.mb_per_s,
        figures.of_limit,
        figures.operations,
        figures.machine.disk.late_ms_max,
        match figures.attempts {
            1 => "once".to_owned(),
            more => format!("{more} times"),
        }
    );
    if let Some(beside) = &figures.beside {
        let _infallible = write!(
            text,
            "; beside: {} fetches, p99 {} ms, {} lost",
            beside.fetches,
            number(beside.latency.p99),
            beside.lost
        );
    }
    text
}

/// A column: its title, and the text for a cell.
type Column = (&'static str, fn(&Cell) -> String);

fn tables(contest: Contest) -> Vec<(&'static str, &'static [Column])> {
    match contest {
        Contest::Servers | Contest::Backends => {
            vec![(THROUGHPUT, DISK), (TIMES, CLIENT), (COST, SERVER)]
        }
        Contest::HotAtOnce => vec![
            ("Hot files, ms from when they were due", HOT),
            (
                "The same: 99th percentile of each of the first seconds",
                HOT_BY_SECOND,
            ),
            ("The cold files beside them", DISK),
            (COST, SERVER),
        ],
        Contest::BesideHot => vec![
            ("Hot files, ms from when they were due", HOT),
            ("The cold files beside them", DISK),
            (TIMES, CLIENT),
            (COST, SERVER),
        ],
        Contest::Greed => vec![(THROUGHPUT, GREED), (TIMES, CLIENT)],
        Contest::Threads => vec![(THROUGHPUT, DISK), (TIMES, CLIENT)],
        Contest::ChunkSizes => vec![(THROUGHPUT, CHUNKS), (TIMES, CLIENT)],
        Contest::Stat => vec![(THROUGHPUT, STAT), (TIMES, CLIENT), (COST, SERVER)],
    }
}

fn table(cells: &[&Cell], columns: &[Column]) -> String {
    let head = std::iter::once("").chain(columns.iter().map(|(title, _)| *title));
    let mut rows = vec![head.map(str::to_owned).collect::<Vec<_>>()];
    for cell in cells {
        let name = label(cell.server, &cell.way);
        let doubt = if cell.error().is_none() && !cell.is_sound() {
            "~"
        } else {
            ""
        };
        let mut row = vec![format!("{doubt}{name}")];
        match cell.error() {
            Some(_) => {
                row.push("ERROR".to_owned());
                row.resize(columns.len() + 1, String::new());
            }
            None => row.extend(columns.iter().map(|(_, value)| value(cell))),
        }
        rows.push(row);
    }
    aligned(&rows)
}

const THROUGHPUT: &str = "Throughput and disk";
const TIMES: &str = "Times of clients, ms: to connect, until the first response, until the body begins, until it is complete";
const COST: &str = "Server";

const DISK: &[Column] = &[
    ("fetches/s", |cell| {
        median(cell, |one| one.cold.fetches_per_s)
    }),
    ("MB/s", |cell| median(cell, |one| one.cold.mb_per_s)),
    ("limit/s", |cell| median(cell, |one| one.limit)),
    ("of limit", |cell| ratio(cell, |one| one.of_limit)),
    ("reads/fetch", |cell| ratio(cell, |one| one.operations)),
    ("util%", utilisation),
    ("iowait%", |cell| {
        median(cell, |one| one.machine.processors.iowait)
    }),
    ("await ms", |cell| median(cell, |one| one.machine.waited())),
    ("queue", |cell| median(cell, |one| one.machine.queue())),
    ("rMB/s", read_mb),
];
const CLIENT: &[Column] = &[
    ("connect mean", |cell| {
        ratio(cell, |one| one.cold.connect.or_nothing(|it| it.mean))
    }),
    ("max", |cell| {
        median(cell, |one| one.cold.connect.or_nothing(|it| it.max))
    }),
    ("first response mean", |cell| {
        median(cell, |one| one.cold.first.mean)
    }),
    ("max", |cell| median(cell, |one| one.cold.first.max)),
    ("min", |cell| median(cell, |one| one.cold.first.min)),
    ("body mean", |cell| median(cell, |one| one.cold.body.mean)),
    ("median", |cell| median(cell, |one| one.cold.body.median)),
    ("max", |cell| median(cell, |one| one.cold.body.max)),
    ("all mean", |cell| {
        median(cell, |one| one.cold.latency.or_nothing(|it| it.mean))
    }),
    ("median", |cell| {
        median(cell, |one| one.cold.latency.or_nothing(|it| it.median))
    }),
    ("p99", |cell| {
        median(cell, |one| one.cold.latency.or_nothing(|it| it.p99))
    }),
    ("max", |cell| {
        median(cell, |one| one.cold.latency.or_nothing(|it| it.max))
    }),
];
const SERVER: &[Column] = &[
    ("CPU ms/fetch", |cell| median(cell, |one| one.cpu_ms)),
    ("memory MiB", |cell| median(cell, |one| one.memory_mib)),
    ("user%", |cell| {
        median(cell, |one| one.machine.processors.user)
    }),
    ("system%", |cell| {
        median(cell, |one| one.machine.processors.system)
    }),
    ("iowait%", |cell| {
        median(cell, |one| one.machine.processors.iowait)
    }),
    ("idle%", |cell| {
        median(cell, |one| one.machine.processors.idle)
    }),
];
const HOT: &[Column] = &[
    ("due and answered/s", |cell| {
        of_others(cell, |one| one.fetches_per_s)
    }),
    ("mean", |cell| of_others(cell, |one| one.latency.mean)),
    ("median", |cell| of_others(cell, |one| one.latency.median)),
    ("p99", |cell| of_others(cell, |one| one.latency.p99)),
    ("max", |cell| of_others(cell, |one| one.latency.max)),
    ("lost", |cell| of_others(cell, |one| one.lost as f64)),
    ("client late p99", |cell| {
        of_others(cell, |one| one.late.p99)
    }),
    ("cold body's first byte: max/mean", |cell| {
        ratio(cell, |one| one.cold.body.max / one.cold.body.mean.max(1e-9))
    }),
];
const HOT_BY_SECOND: &[Column] = &[
    ("1st s", |cell| of_others(cell, |one| in_second(one, 0))),
    ("2nd", |cell| of_others(cell, |one| in_second(one, 1))),
    ("3rd", |cell| of_others(cell, |one| in_second(one, 2))),
    ("4th", |cell| of_others(cell, |one| in_second(one, 3))),
    ("5th", |cell| of_others(cell, |one| in_second(one, 4))),
];
const GREED: &[Column] = &[
    ("fetches/s", |cell| {
        median(cell, |one| one.cold.fetches_per_s)
    }),
    ("MB/s", |cell| median(cell, |one| one.cold.mb_per_s)),
    ("greedy MB/s", |cell| of_others(cell, |one| one.mb_per_s)),
    ("util%", utilisation),
    ("iowait%", |cell| {
        median(cell, |one| one.machine.processors.iowait)
    }),
    ("await ms", |cell| median(cell, |one| one.machine.waited())),
    ("queue", |cell| median(cell, |one| one.machine.queue())),
];
const CHUNKS: &[Column] = &[
    ("MB/s", |cell| median(cell, |one| one.cold.mb_per_s)),
    ("of limit", |cell| ratio(cell, |one| one.of_limit)),
    ("util%", utilisation),
    ("kB/read", |cell| {
        median(cell, |one| {
            one.machine.disk.bytes as f64 / 1e3 / one.machine.disk.operations.max(1) as f64
        })
    }),
    ("%user", |cell| {
        median(cell, |one| one.machine.processors.user)
    }),
    ("%system", |cell| {
        median(cell, |one| one.machine.processors.system)
    }),
    ("%iowait", |cell| {
        median(cell, |one| one.machine.processors.iowait)
    }),
    ("%idle", |cell| {
        median(cell, |one| one.machine.processors.idle)
    }),
    ("memory MiB", |cell| median(cell, |one| one.memory_mib)),
];
const STAT: &[Column] = &[
    ("Throughput", |cell| {
        cell.median(|one| one.cold.mb_per_s)
            .map_or_else(nothing, |value| format!("{value:.2}MByte/s"))
    }),
    ("util%", utilisation),
    ("iowait%", |cell| {
        median(cell, |one| one.machine.processors.iowait)
    }),
    ("fetches/s", |cell| {
        median(cell, |one| one.cold.fetches_per_s)
    }),
    ("of limit", |cell| ratio(cell, |one| one.of_limit)),
    ("reads/fetch", |cell| ratio(cell, |one| one.operations)),
];

fn median(cell: &Cell, of: fn(&Figures) -> f64) -> String {
    let value = cell.median(of).filter(|value| value.is_finite());
    value.map_or_else(nothing, number)
}

/// A figure with two decimals.
fn ratio(cell: &Cell, of: fn(&Figures) -> f64) -> String {
    let value = cell.median(of).filter(|value| value.is_finite());
    value.map_or_else(nothing, |value| format!("{value:.2}"))
}

impl Milliseconds {
    /// The figure, or NaN if there were no times.
    fn or_nothing(&self, of: fn(&Self) -> f64) -> f64 {
        if self.count == 0 { f64::NAN } else { of(self) }
    }
}

fn of_others(cell: &Cell, of: fn(&super::results::Crowd) -> f64) -> String {
    match cell.typical() {
        Some(figures) if figures.beside.is_some() => cell
            .median(|one| one.beside.as_ref().map_or(0.0, of))
            .map_or_else(nothing, number),
        _ => nothing(),
    }
}

/// Infinite for a second in which no fetch that was due ever completed.
pub fn in_second(crowd: &super::results::Crowd, second: usize) -> f64 {
    crowd
        .p99_by_second
        .get(second)
        .copied()
        .unwrap_or(f64::INFINITY)
}

/// The utilisation of both spindles in a typical run.
fn utilisation(cell: &Cell) -> String {
    let rows = cell
        .typical()
        .map(|figures| figures.machine.spindles.iter());
    let each = rows.into_iter().flatten();
    let each = each.map(|row| format!("{:.0}", row.utilisation));
    each.collect::<Vec<_>>().join(" ")
}

/// The data read from the spindles: more than clients received, if the kernel read ahead in vain.
fn read_mb(cell: &Cell) -> String {
    median(cell, |one| {
        one.machine.disk.bytes as f64 / 1e6 / one.machine.disk.seconds.max(1e-9)
    })
}

fn nothing() -> String {
    "–".to_owned()
}

/// Cells whose figures are doubtful, and why.
fn doubts(results: &Results) -> String {
    let mut out = String::new();
    for cell in &results.cells {
        let name = label(cell.server, &cell.way);
        let place = format!("{}, {name}, {} clients", cell.workload, cell.clients);
        for error in cell.runs.iter().filter_map(|run| run.as_ref().err()) {
            let _infallible = writeln!(out, "ERROR {place}: {error}");
        }
        let beside = cell.typical().and_then(|one| one.beside.as_ref());
        if let Some(why) = beside.and_then(|beside| beside.lost_because.as_ref()) {
            let _infallible = writeln!(out, "LOST  {place}, first of them: {why}");
        }
        if cell.error().is_none() && !cell.is_sound() {
            let late = cell.median(|one| one.machine.disk.late_ms_max);
            let late = late.unwrap_or_default();
            let _infallible = writeln!(
                out,
                "~ {place}: the disk was {late:.2} ms late, more than {} ms",
                crate::disk::LATE_MS_LIMIT
            );
        }
    }
    if out.is_empty() {
        out
    } else {
        format!("\nDoubts\n{out}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cold::testing::{figures, results};
    use crate::cold::workload::WORKLOADS;

    #[test]
    fn a_server_that_failed_is_named_in_table_and_list() {
        let results = results(&[
            ("small-cold", "petrel", "", Ok(figures(100.0))),
            ("small-cold", "nginx", "", Err("it fell over".to_owned())),
        ]);
        let workloads: Vec<_> = WORKLOADS.iter().collect();
        let text = text(&results, &workloads);
        assert!(
            text.contains("100 kB files, metadata cold, 100 clients"),
            "{text}"
        );
        let line = |name| text.lines().find(|line| line.contains(name)).unwrap();
        assert!(line("nginx").contains("ERROR"), "{text}");
        assert!(text.contains("ERROR small-cold, nginx, 100 clients: it fell over"));
        assert!(line("petrel").contains("100"), "{text}");
    }

    #[test]
    fn a_run_in_which_the_disk_was_late_is_doubted() {
        let mut late = figures(50.0);
        late.machine.disk.late_ms_max = 3.0;
        let results = results(&[("large", "petrel", "", Ok(late))]);
        let workloads: Vec<_> = WORKLOADS.iter().collect();
        let text = text(&results, &workloads);
        assert!(text.contains("~petrel"), "{text}");
        assert!(text.contains("the disk was 3.00 ms late"), "{text}");
    }

    #[test]
    fn tables_of_all_contests_have_a_row_for_each_cell() {
        for workload in WORKLOADS {
            let mut with_others = figures(10.0);
            with_others.beside = Some(with_others.cold.clone());
            let results = results(&[(workload.name, "petrel", "x", Ok(with_others))]);
            let text = text(&results, &[workload]);
            let rows = text.lines().filter(|line| line.contains("petrel, x"));
            assert_eq!(rows.count(), tables(workload.contest).len(), "{text}");
        }
    }
}
