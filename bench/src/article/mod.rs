//! The measurements of the article "Reducing Requests-Setup-Costs", repeated.
//!
//! They are a comparison like any other, with one connection. [`final_table`] and [`chart`] show the results,
//! [`table`] shows all figures with the article's columns, and [`listing`] shows the system calls of one
//! request.

mod chart;
mod final_table;
pub mod listing;

use crate::cli::Options;
use crate::peers::PEERS;
use crate::report::{self, aligned};
use crate::results::{Cell, Results, Summary};
use crate::workload::Suite;
use crate::{Compared, measure_all, plot, told};
use std::fmt::Write as _;

/// Measures, lists, prints and writes.
pub fn run(options: &Options) -> Result<(), String> {
    let compared = measure_all(options, Suite::Article)?;
    let table = final_table::text(&compared.results) + &table(&compared.results);
    println!("{table}");
    let listings = listing::all(options, &compared.servers)?;
    println!("{listings}");
    let Compared { results, out, .. } = compared;
    let text = format!("{}\n{table}\n{listings}", report::text(&results));
    let written = report::write(&results, &text, &out)
        .and_then(|()| plot::write(&results, &out))
        .and_then(|()| plot::write_rates(&results, &out))
        .and_then(|()| chart::write(&results, &out));
    told(written, &out)
}

/// One block per row of the article's table, with one line per server.
fn table(results: &Results) -> String {
    let mut out = String::from(
        "\nAll of its columns: one connection, one request at a time. Times in ms, of our client; beside them what ab\n\
         says (c: the server did not keep its HTTP/1.0 connections).\n",
    );
    let head = [
        "",
        "requests/s",
        "mean",
        "min",
        "mean",
        "+/-sd",
        "median",
        "max",
        "ab: requests/s",
        "mean",
        "min mean +/-sd median max",
    ];
    for workload in &results.workloads {
        let _infallible = writeln!(out, "\n{}", workload.title);
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for peer in PEERS {
            let cell = results.cell(peer.name, workload.name, 1);
            if let Some(summary) = cell.and_then(Cell::summary) {
                rows.push(row(peer.name, summary));
            }
        }
        out.push_str(&aligned(&rows));
    }
    out
}

fn row(server: &str, summary: &Summary) -> Vec<String> {
    let ms = summary.latency_ms;
    let rate = summary.requests_per_s.median;
    let mut row = vec![
        server.to_owned(),
        format!("{rate:.0}"),
        format!("{:.3}", 1e3 / rate),
    ];
    let times = [ms.min, ms.mean, ms.sd, ms.median, ms.max];
    row.extend(times.map(|time| format!("{time:.3}")));
    row.extend(match &summary.ab {
        Some(Ok(ab)) => {
            let mark = if ab.kept { "" } else { "c" };
            let total: Vec<_> = ab.total_ms.iter().map(f64::to_string).collect();
            [
                format!("{:.0}{mark}", ab.requests_per_s),
                format!("{:.3}", ab.mean_ms),
                total.join(" "),
            ]
        }
        Some(Err(error)) => [error.clone(), String::new(), String::new()],
        None => Default::default(),
    });
    row
}
