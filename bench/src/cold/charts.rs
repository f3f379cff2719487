//! Plots: tables with bars. Each column has its own scale, from zero (or logarithmic).

use super::report::label;
use super::results::{Cell, Results};
use crate::report::number;
use petrel_plot::svg::{COLOURS, rectangle, text};
use std::fs;
use std::io;
use std::path::Path;

/// Writes `backends.svg`, `chunks.svg` and `hot.svg`, as far as their data was measured.
pub fn write(results: &Results, directory: &Path) -> io::Result<()> {
    for (name, chart) in [
        ("backends.svg", backends(results)),
        ("chunks.svg", chunks(results)),
        ("hot.svg", hot(results)),
    ] {
        if !chart.rows.is_empty() {
            fs::write(directory.join(name), chart.svg(results))?;
        }
    }
    Ok(())
}

struct Chart {
    title: &'static str,
    note: &'static str,
    columns: Vec<Column>,
    rows: Vec<String>,
}

struct Column {
    title: String,
    scale: Scale,
    /// The value of a bar that fills the column; `None` for that of the longest bar.
    full: Option<f64>,
    /// One value per row.
    values: Vec<Option<f64>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scale {
    Linear,
    /// From [`LOGARITHM_ZERO`].
    Logarithmic,
}

/// Throughput and utilisation of each network backend, for both lengths of files.
fn backends(results: &Results) -> Chart {
    let small: Vec<_> = cells(results, "backends");
    let large: Vec<_> = cells(results, "backends-large");
    let longer = if small.len() >= large.len() {
        &small
    } else {
        &large
    };
    let mut columns = Vec::new();
    for (words, cells) in [("100 kB", &small), ("10 MB", &large)] {
        if cells.is_empty() {
            continue;
        }
        columns.push(Column {
            title: format!("{words} files: MB/s"),
            scale: Scale::Linear,
            full: None,
            values: cells
                .iter()
                .map(|cell| cell.median(|one| one.cold.mb_per_s))
                .collect(),
        });
        columns.push(Column {
            title: format!("{words} files: disk utilisation, %"),
            scale: Scale::Linear,
            full: Some(100.0),
            values: cells
                .iter()
                .map(|cell| cell.median(|one| one.machine.utilisation()))
                .collect(),
        });
    }
    Chart {
        title: "Throughput and disk utilisation by network backend",
        note: "Petrel · 100 clients · two modelled spindles · median of the rounds",
        rows: longer.iter().map(|cell| cell.way.clone()).collect(),
        columns,
    }
}

/// Throughput by how much is read at once, with one column per server.
fn chunks(results: &Results) -> Chart {
    let cells = cells(results, "chunks");
    let (mut servers, mut ways): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for cell in &cells {
        if !servers.contains(&cell.server) {
            servers.push(cell.server);
        }
        if !ways.contains(&cell.way.as_str()) {
            ways.push(&cell.way);
        }
    }
    let value = |server: &str, way: &str| {
        let cell = cells
            .iter()
            .find(|cell| cell.server == server && cell.way == way)?;
        cell.median(|one| one.cold.mb_per_s)
    };
    let all = cells
        .iter()
        .filter_map(|cell| cell.median(|one| one.cold.mb_per_s));
    let full = all.fold(f64::MIN_POSITIVE, f64::max);
    let column = |server: &&str| Column {
        title: format!("{server}: MB/s"),
        scale: Scale::Linear,
        full: Some(full),
        values: ways.iter().map(|way| value(server, way)).collect(),
    };
    Chart {
        title: "10 MB files by chunk size",
        note: "100 clients · two modelled spindles of 60 MB/s · median of the rounds · one scale",
        columns: servers.iter().map(column).collect(),
        rows: ways.iter().map(|way| (*way).to_owned()).collect(),
    }
}

/// Latencies of hot files.
fn hot(results: &Results) -> Chart {
    let cells = cells(results, "hot-beside-cold");
    let column = |title: &str, of: fn(&super::client::Milliseconds) -> f64| Column {
        title: format!("{title}, ms"),
        scale: Scale::Logarithmic,
        full: Some(LOGARITHM_FULL),
        values: cells
            .iter()
            .map(|cell| {
                let beside = cell.typical()?.beside.is_some();
                let median =
                    cell.median(|one| one.beside.as_ref().map_or(0.0, |it| of(&it.latency)));
                median.filter(|_| beside)
            })
            .collect(),
    };
    Chart {
        title: "Hot 4 KiB files, 900/s, while 100 clients fetch cold ones",
        note: "time from when a request was due · logarithmic · median of the rounds",
        columns: vec![
            column("mean", |times| times.mean),
            column("99th percentile", |times| times.p99),
            column("longest", |times| times.max),
        ],
        rows: cells.iter().map(|cell| label(cell.server, "")).collect(),
    }
}

/// The cells of a workload, with the fewest clients it was run with.
fn cells<'a>(results: &'a Results, workload: &'a str) -> Vec<&'a Cell> {
    let clients = results.clients(workload).first().copied();
    let of = clients.map(|clients| results.of(workload, clients));
    of.into_iter().flatten().collect()
}

impl Chart {
    fn svg(&self, results: &Results) -> String {
        let width = MARGIN + LABEL_WIDTH + self.columns.len() as f64 * COLUMN_WIDTH;
        let height = HEADER + BAR_STEP * self.rows.len() as f64 + FOOTER;
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        );
        let bold = "font-size=\"18\" font-weight=\"bold\"";
        text(&mut out, (MARGIN, 28.0), bold, self.title);
        text(&mut out, (MARGIN, 47.0), "fill=\"#666\"", self.note);
        for (n, row) in self.rows.iter().enumerate() {
            let base = HEADER + BAR_STEP * n as f64 + BAR_HEIGHT - 4.0;
            let place = (MARGIN + LABEL_WIDTH - 10.0, base);
            text(&mut out, place, "text-anchor=\"end\"", row);
        }
        for (n, column) in self.columns.iter().enumerate() {
            let x = MARGIN + LABEL_WIDTH + n as f64 * COLUMN_WIDTH;
            let colour = COLOURS.get(n % COLOURS.len()).copied().unwrap_or("#000");
            column.draw(&mut out, x, colour);
        }
        let machine = &results.machine;
        let words = format!(
            "{}, {} cores, Linux {}",
            machine.processor, machine.cores, machine.kernel
        );
        let style = "fill=\"#666\" font-size=\"11\"";
        text(&mut out, (MARGIN, height - 12.0), style, &words);
        out + "</svg>\n"
    }
}

impl Column {
    fn draw(&self, out: &mut String, x: f64, colour: &str) {
        let bold = "font-weight=\"bold\"";
        text(out, (x, HEADER - 10.0), bold, &self.title);
        let longest = self.values.iter().flatten().copied();
        let longest = longest.fold(f64::MIN_POSITIVE, f64::max);
        let full = self.full.unwrap_or(longest).max(f64::MIN_POSITIVE);
        for (n, value) in self.values.iter().enumerate() {
            let y = HEADER + BAR_STEP * n as f64;
            let base = y + BAR_HEIGHT - 4.0;
            let Some(value) = value else {
                text(out, (x + 6.0, base), "fill=\"#999\"", "no figure");
                continue;
            };
            let length = BAR_LENGTH * self.scale.share(*value, full);
            let paint = format!("fill=\"{colour}\"");
            rectangle(out, (x, y), (length, BAR_HEIGHT), &paint);
            text(out, (x + length + 6.0, base), "", &number(*value));
        }
        let height = BAR_STEP * self.values.len() as f64;
        rectangle(out, (x - 1.0, HEADER - 3.0), (1.0, height), "fill=\"#333\"");
    }
}

impl Scale {
    /// The share of the column that a bar fills, from 0 to 1.
    fn share(self, value: f64, full: f64) -> f64 {
        let share = match self {
            Self::Linear => value / full,
            Self::Logarithmic => {
                let decades = (value.max(LOGARITHM_ZERO) / LOGARITHM_ZERO).log10();
                decades / (full / LOGARITHM_ZERO).log10()
            }
        };
        share.clamp(0.0, 1.0)
    }
}

const MARGIN: f64 = 24.0;
const LABEL_WIDTH: f64 = 140.0;
const COLUMN_WIDTH: f64 = 240.0;
/// Leaves room for the figure after a bar.
const BAR_LENGTH: f64 = 170.0;
const BAR_HEIGHT: f64 = 16.0;
const BAR_STEP: f64 = 22.0;
const HEADER: f64 = 92.0;
const FOOTER: f64 = 34.0;
/// Milliseconds: less than any latency.
const LOGARITHM_ZERO: f64 = 0.01;
/// Milliseconds: the time that a client waits at most.
const LOGARITHM_FULL: f64 = 100_000.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cold::testing::{figures, results};

    #[test]
    fn bars_are_as_long_as_their_scale_says() {
        assert_eq!(Scale::Linear.share(5.0, 10.0), 0.5);
        assert_eq!(Scale::Linear.share(20.0, 10.0), 1.0);
        assert_eq!(Scale::Logarithmic.share(0.0, LOGARITHM_FULL), 0.0);
        let middle = Scale::Logarithmic.share(31.622_776_6, LOGARITHM_FULL);
        assert!((middle - 0.5).abs() < 1e-6, "{middle}");
    }

    #[test]
    fn what_was_measured_is_drawn_and_what_failed_says_so() {
        let results = results(&[
            ("backends", "petrel", "write", Ok(figures(100.0))),
            ("backends", "petrel", "auto", Err("no".to_owned())),
            ("chunks", "petrel", "128 KiB", Ok(figures(3.0))),
        ]);
        let chart = backends(&results);
        assert_eq!(chart.rows, ["write", "auto"]);
        let svg = chart.svg(&results);
        assert!(
            svg.contains("no figure") && svg.contains(">write<"),
            "{svg}"
        );
        assert_eq!(chunks(&results).columns.len(), 1);
        let directory = tempfile::tempdir().unwrap();
        write(&results, directory.path()).unwrap();
        assert!(directory.path().join("chunks.svg").exists());
        assert!(!directory.path().join("hot.svg").exists());
    }
}
