//! The tables of the article "Reducing the Number of stat() Calls Made by Apache", repeated.
//!
//! They are a comparison like any other, with 30 connections: Apache with mod_perl in the article's
//! configurations, and Petrel's counterparts. [`calls`] shows how often each looks at a path for one request,
//! and [`cost`] what one such look costs.

mod calls;
mod cost;

use crate::bars::{Chart, Column, Scale};
use crate::cli::Options;
use crate::report::{self, aligned, number};
use crate::results::{Results, Summary};
use crate::workload::Suite;
use crate::{Compared, measure_all, told};
use std::fmt::Write as _;

/// Measures, traces, prints and writes.
pub fn run(options: &Options) -> Result<(), String> {
    let Compared {
        results,
        servers,
        out,
    } = measure_all(options, Suite::Stat)?;
    let lines = lines(&results);
    let tables = tables(&lines);
    println!("{tables}");
    let calls = calls::text(options, &servers)?;
    println!("{calls}");
    let cost = cost::text(cost::CALLS)?;
    println!("{cost}");
    let text = format!("{}\n{tables}\n{calls}\n{cost}", report::text(&results));
    let chart = chart(&lines);
    let written = report::write(&results, &text, &out)
        .and_then(|()| chart.write(&results.machine, &out, "figure-11-2"));
    told(written, &out)
}

/// A line of the tables that was measured.
struct Line<'a> {
    workload: &'static str,
    name: String,
    summary: &'a Summary,
}

/// All lines, in the order of the workloads.
fn lines(results: &Results) -> Vec<Line<'_>> {
    let measured = results.cells.iter();
    let measured = measured.filter_map(|cell| Some((cell, cell.summary()?)));
    let title = |name: &str| results.workloads.iter().find(|one| one.name == name);
    measured
        .filter_map(|(cell, summary)| {
            Some(Line {
                workload: cell.workload,
                name: format!("{}: {}", cell.server, title(cell.workload)?.title),
                summary,
            })
        })
        .collect()
}

/// The article's two tables. The first is sorted by rate, as there.
fn tables(lines: &[Line<'_>]) -> String {
    let mut out = String::from(
        "\nThe article's tables: 30 connections, which are kept. avtime in ms; one wrong reply would void its line.\n\
         CPU is the server's, with the backend's of the FastCGI route, in µs a request, normalised.\n",
    );
    let mut options: Vec<_> = lines.iter().filter(|line| is_option(line)).collect();
    options.sort_by(|one, other| rate(other).total_cmp(&rate(one)));
    let sections: Vec<_> = lines.iter().filter(|line| has_sections(line)).collect();
    for (title, lines) in [("Options", options), ("Sections", sections)] {
        let head = [
            title,
            "avtime",
            "completed",
            "failed",
            "rps",
            "CPU",
            "ab: avtime",
            "rps",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        rows.extend(lines.into_iter().map(row));
        let _infallible = write!(out, "\n{}", aligned(&rows));
    }
    out
}

fn row(line: &Line<'_>) -> Vec<String> {
    let summary = line.summary;
    let mut row = vec![
        line.name.clone(),
        format!("{:.3}", summary.latency_ms.mean),
        summary.requests.to_string(),
        "0".to_owned(),
        format!("{:.0}", rate(line)),
        number(cpu(line)),
    ];
    row.extend(match &summary.ab {
        Some(Ok(ab)) => [
            format!("{:.3}", ab.mean_ms),
            format!("{:.0}", ab.requests_per_s),
        ],
        Some(Err(error)) => [error.clone(), String::new()],
        None => Default::default(),
    });
    row
}

/// Figure 11-2: the first table.
fn chart(lines: &[Line<'_>]) -> Chart {
    let lines: Vec<_> = lines.iter().filter(|line| is_option(line)).collect();
    let column = |title: &str, value: fn(&Line<'_>) -> f64| Column {
        title: title.to_owned(),
        scale: Scale::Linear,
        full: None,
        values: lines.iter().map(|line| Some(value(line))).collect(),
    };
    Chart {
        title: "Results of the solutions (figure 11-2)",
        note: "30 connections · median of the repeats · the FastCGI route with its backend's CPU",
        columns: vec![column("requests/s", rate), column("CPU a request, µs", cpu)],
        rows: lines.iter().map(|line| line.name.clone()).collect(),
    }
}

/// Whether it belongs to the first table: those with three sections do.
fn is_option(line: &Line<'_>) -> bool {
    !line.workload.ends_with("-1") && !line.workload.ends_with("-5")
}

/// Whether it belongs to the second table: whatever was run with 1, 3 and 5 sections does.
fn has_sections(line: &Line<'_>) -> bool {
    !line.workload.starts_with("stat-") || line.workload.starts_with("stat-default")
}

fn rate(line: &Line<'_>) -> f64 {
    line.summary.requests_per_s.median
}

fn cpu(line: &Line<'_>) -> f64 {
    let summary = line.summary;
    summary.both_cpu_us.unwrap_or(summary.cpu_us).median
}
