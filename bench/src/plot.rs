//! Results as SVG: server CPU per request (or requests per second), with one panel per workload and one bar
//! per server.
//!
//! The CPU of workloads differs by a factor of a hundred, so each panel has its own scale, from zero. User
//! time is the darker part of a bar. The SVG is written directly, since it consists of a few rectangles and
//! texts.

use crate::gnuplot::Data;
use crate::report::{connections_title, number};
use crate::results::{Cell, Results, Summary};
use petrel_plot::svg::{COLOURS, rectangle, text};
use std::path::Path;
use std::{fs, io};

/// Writes `cpu-N.svg` for each number of connections, and the same for gnuplot.
pub fn write(results: &Results, directory: &Path) -> io::Result<()> {
    draw(results, directory, "cpu", &CPU)
}

/// Writes `rate-N.svg` for each number of connections, and the same for gnuplot.
pub fn write_rates(results: &Results, directory: &Path) -> io::Result<()> {
    draw(results, directory, "rate", &RATE)
}

fn draw(results: &Results, directory: &Path, name: &str, figure: &Figure) -> io::Result<()> {
    for connections in &results.connections {
        let name = format!("{name}-{connections}");
        let drawn = svg(results, *connections, figure);
        fs::write(directory.join(format!("{name}.svg")), drawn)?;
        data(results, *connections, figure).write(directory, &name)?;
    }
    Ok(())
}

/// A row for each workload, and a column for each server.
fn data(results: &Results, connections: u16, figure: &Figure) -> Data {
    let title = format!("{}, {}", figure.title, connections_title(connections));
    let mut data = Data::new(&title, results.servers.iter().copied());
    for workload in results.workloads_with(connections) {
        let bars = bars(results, workload.name, connections, figure).into_iter();
        data.row(
            workload.title,
            bars.map(|bar| bar.value.map(|(_, all)| all)),
        );
    }
    data
}

/// What is plotted.
struct Figure {
    title: &'static str,
    /// What the darker part of a bar and its lighter rest are.
    parts: Option<[&'static str; 2]>,
    note: &'static str,
    /// Whether bars of different panels can be compared.
    one_scale: bool,
    /// The darker part and the whole.
    value: fn(&Summary) -> (f64, f64),
}

const CPU: Figure = Figure {
    title: "Server CPU a request, µs",
    parts: Some(["user", "kernel"]),
    note: "median of the repeats, normalised · each panel has its own scale · less is better",
    one_scale: false,
    value: |summary| (summary.user_us, summary.cpu_us.median),
};
const RATE: Figure = Figure {
    title: "Requests a second",
    parts: None,
    note: "median of the repeats · more is better",
    one_scale: true,
    value: |summary| (summary.requests_per_s.median, summary.requests_per_s.median),
};

fn svg(results: &Results, connections: u16, figure: &Figure) -> String {
    let workloads: Vec<_> = results.workloads_with(connections).collect();
    let rows = workloads.len().div_ceil(COLUMNS);
    let panel_height = PANEL_TITLE + BAR_STEP * results.servers.len() as f64 + PANEL_GAP;
    let width = MARGIN + COLUMNS as f64 * (PANEL_WIDTH + MARGIN);
    let height = HEADER + rows as f64 * panel_height + FOOTER;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    header(&mut out, connections, figure);
    let of_workload = |name| bars(results, name, connections, figure);
    let panels: Vec<_> = workloads.iter().map(|one| of_workload(one.name)).collect();
    let largest_of_all = panels
        .iter()
        .map(|bars| largest(bars))
        .fold(f64::MIN_POSITIVE, f64::max);
    for (n, (workload, bars)) in workloads.iter().zip(&panels).enumerate() {
        let x = MARGIN + (n % COLUMNS) as f64 * (PANEL_WIDTH + MARGIN);
        let y = HEADER + (n / COLUMNS) as f64 * panel_height;
        text(
            &mut out,
            (x, y + 14.0),
            "font-weight=\"bold\"",
            workload.title,
        );
        let full = if figure.one_scale {
            largest_of_all
        } else {
            largest(bars)
        };
        panel(&mut out, (x, y + PANEL_TITLE), bars, full);
    }
    let machine = format!(
        "{}, {} cores, Linux {}",
        results.machine.processor, results.machine.cores, results.machine.kernel
    );
    text(
        &mut out,
        (MARGIN, height - 12.0),
        "fill=\"#666\" font-size=\"11\"",
        &machine,
    );
    out + "</svg>\n"
}

/// One bar: its darker part and its length; `None` if the cell failed or was not run.
struct Bar {
    server: &'static str,
    colour: &'static str,
    value: Option<(f64, f64)>,
}

fn bars(results: &Results, workload: &str, connections: u16, figure: &Figure) -> Vec<Bar> {
    let bar = |(n, server): (usize, &&'static str)| {
        let cell = results.cell(server, workload, connections);
        let summary = cell.and_then(Cell::summary);
        Bar {
            server,
            colour: COLOURS[n % COLOURS.len()],
            value: summary.map(figure.value),
        }
    };
    results.servers.iter().enumerate().map(bar).collect()
}

fn header(out: &mut String, connections: u16, figure: &Figure) {
    let title = format!("{}, {}", figure.title, connections_title(connections));
    text(
        out,
        (MARGIN, 28.0),
        "font-size=\"18\" font-weight=\"bold\"",
        &title,
    );
    let y = 42.0;
    let Some([dark, light]) = figure.parts else {
        text(out, (MARGIN, y + 11.0), "", figure.note);
        return;
    };
    rectangle(out, (MARGIN, y), (26.0, 12.0), "fill=\"#555\"");
    text(out, (MARGIN + 32.0, y + 11.0), "", dark);
    rectangle(
        out,
        (MARGIN + 78.0, y),
        (26.0, 12.0),
        "fill=\"#555\" fill-opacity=\"0.55\"",
    );
    let note = format!("{light} · {}", figure.note);
    text(out, (MARGIN + 110.0, y + 11.0), "", &note);
}

fn largest(bars: &[Bar]) -> f64 {
    let values = bars.iter().filter_map(|bar| bar.value.map(|(_, all)| all));
    values.fold(f64::MIN_POSITIVE, f64::max)
}

/// `full`: the value of a bar that fills the panel.
fn panel(out: &mut String, (x, y): (f64, f64), bars: &[Bar], full: f64) {
    let scale = (PANEL_WIDTH - LABEL_WIDTH - VALUE_WIDTH) / full;
    let zero = x + LABEL_WIDTH;
    for (n, bar) in bars.iter().enumerate() {
        let top = y + n as f64 * BAR_STEP;
        let base = top + BAR_HEIGHT - 4.0;
        text(out, (zero - 6.0, base), "text-anchor=\"end\"", bar.server);
        let Some((user, all)) = bar.value else {
            text(out, (zero + 6.0, base), "fill=\"#999\"", "no figure");
            continue;
        };
        let paint = format!("fill=\"{}\"", bar.colour);
        let light = format!("{paint} fill-opacity=\"0.55\"");
        rectangle(out, (zero, top), (user * scale, BAR_HEIGHT), &paint);
        rectangle(
            out,
            (zero + user * scale, top),
            ((all - user) * scale, BAR_HEIGHT),
            &light,
        );
        text(out, (zero + all * scale + 6.0, base), "", &number(all));
    }
    let height = bars.len() as f64 * BAR_STEP - (BAR_STEP - BAR_HEIGHT);
    rectangle(
        out,
        (zero - 1.0, y - 2.0),
        (1.0, height + 4.0),
        "fill=\"#333\"",
    );
}

const COLUMNS: usize = 2;
const MARGIN: f64 = 24.0;
const PANEL_WIDTH: f64 = 440.0;
const PANEL_TITLE: f64 = 26.0;
const PANEL_GAP: f64 = 22.0;
const LABEL_WIDTH: f64 = 120.0;
const VALUE_WIDTH: f64 = 50.0;
const BAR_HEIGHT: f64 = 16.0;
const BAR_STEP: f64 = 21.0;
const HEADER: f64 = 78.0;
const FOOTER: f64 = 30.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_fills_the_panel_and_a_failed_one_says_so() {
        let bar = |server, value| Bar {
            server,
            colour: "red",
            value,
        };
        let mut out = String::new();
        panel(
            &mut out,
            (0.0, 0.0),
            &[bar("one", Some((0.0, 8.0))), bar("two", None)],
            8.0,
        );
        let longest = PANEL_WIDTH - LABEL_WIDTH - VALUE_WIDTH;
        assert!(out.contains(&format!("width=\"{longest:.1}\"")), "{out}");
        assert!(out.contains("8.00") && out.contains("no figure"), "{out}");
    }
}
