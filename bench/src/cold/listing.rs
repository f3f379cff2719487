//! A typical run of each cell in the format of the articles: http_load's lines and iostat's columns.

use super::client::six_digits;
use super::report::label;
use super::results::{Cell, Crowd, Figures, Results};
use std::fmt::Write as _;

/// All cells.
pub fn text(results: &Results) -> String {
    let mut out = String::new();
    for cell in &results.cells {
        if let Some(figures) = cell.typical() {
            out.push_str(&one(cell, figures));
        }
    }
    out
}

fn one(cell: &Cell, figures: &Figures) -> String {
    let name = label(cell.server, &cell.way);
    let mut out = format!("=== {}, {name}\n", cell.workload);
    let clients = cell.clients;
    let _infallible = writeln!(out, "$ http_load -parallel {clients}");
    out.push_str(&http_load(&figures.cold, clients, figures.seconds));
    if let Some(beside) = &figures.beside {
        out.push_str("Beside them:\n");
        out.push_str(&http_load(beside, 64, figures.seconds));
        let times = [
            beside.latency.median,
            beside.latency.p99,
            beside.latency.max,
        ];
        let [median, p99, max] = times.map(six_digits);
        let _infallible = writeln!(
            out,
            "msecs/answer, from when it was due: {median} median, {p99} p99, {max} max"
        );
    }
    let _infallible = writeln!(out, "$ iostat -xm\n{}", figures.machine);
    out
}

fn http_load(crowd: &Crowd, clients: u16, seconds: f64) -> String {
    let Crowd {
        fetches,
        bytes,
        connect,
        first,
        lost,
        ..
    } = crowd;
    let each = *bytes as f64 / (*fetches).max(1) as f64;
    let [total, each, time, rate, speed] = [
        *bytes as f64,
        each,
        seconds,
        crowd.fetches_per_s,
        *bytes as f64 / seconds.max(1e-9),
    ]
    .map(six_digits);
    format!(
        "{fetches} fetches, {clients} max parallel, {total} bytes, in {time} seconds
{each} mean bytes/connection
{rate} fetches/sec, {speed} bytes/sec
msecs/connect: {connect}
msecs/first-response: {first}
{lost} without an answer
HTTP response codes:
  code 200 -- {fetches}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cold::testing::{figures, results};

    #[test]
    fn a_listing_reads_as_the_articles() {
        let mut run = figures(72.7004);
        run.seconds = 137.551;
        run.cold.fetches = 10_000;
        run.cold.bytes = 1_024_000_000;
        run.cold.connect.mean = 66.9088;
        let results = results(&[("small-cold", "petrel", "", Ok(run))]);
        let text = text(&results);
        for line in [
            "10000 fetches, 100 max parallel, 1.024e+09 bytes, in 137.551 seconds\n",
            "102400 mean bytes/connection\n",
            "72.7004 fetches/sec, 7.44451e+06 bytes/sec\n",
            "msecs/connect: 66.9088 mean, ",
            "  code 200 -- 10000\n",
            "avg-cpu:  %user",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
