//! What is drawn: throughput by network backend, chunk size and number of threads, latencies of hot files.

use super::report::label;
use super::results::{Cell, Results};
use crate::bars::{Chart, Column, LOGARITHM_FULL, Scale};
use std::io;
use std::path::Path;

/// Writes each chart whose data was measured, as `NAME.svg` and for gnuplot.
pub fn write(results: &Results, directory: &Path) -> io::Result<()> {
    for (name, chart) in [
        ("backends", backends(results)),
        ("chunks", chunks(results)),
        ("threads", threads(results)),
        ("hot", hot(results)),
    ] {
        chart.write(&results.machine, directory, name)?;
    }
    Ok(())
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

/// Throughput by how much is read at once.
fn chunks(results: &Results) -> Chart {
    by_way(
        results,
        "chunks",
        "10 MB files by chunk size",
        "100 clients · two modelled spindles of 60 MB/s · median of the rounds · one scale",
    )
}

/// Throughput by how many threads look files up, and as many read them.
fn threads(results: &Results) -> Chart {
    by_way(
        results,
        "threads",
        "100 kB files by number of threads",
        "200 clients · two modelled spindles of 60 MB/s · median of the rounds · one scale",
    )
}

/// Throughput with one column per server.
fn by_way(results: &Results, workload: &str, title: &'static str, note: &'static str) -> Chart {
    let cells = cells(results, workload);
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
        title,
        note,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cold::testing::{figures, results};

    #[test]
    fn what_was_measured_is_drawn_and_what_failed_says_so() {
        let results = results(&[
            ("backends", "petrel", "write", Ok(figures(100.0))),
            ("backends", "petrel", "auto", Err("no".to_owned())),
            ("chunks", "petrel", "128 KiB", Ok(figures(3.0))),
            ("threads", "petrel", "64 threads", Ok(figures(3.0))),
        ]);
        let chart = backends(&results);
        assert_eq!(chart.rows, ["write", "auto"]);
        assert_eq!(chunks(&results).columns.len(), 1);
        let directory = tempfile::tempdir().unwrap();
        write(&results, directory.path()).unwrap();
        let svg = std::fs::read_to_string(directory.path().join("backends.svg")).unwrap();
        assert!(
            svg.contains("no figure") && svg.contains(">write<"),
            "{svg}"
        );
        for name in ["chunks.svg", "chunks.dat", "chunks.gp", "threads.svg"] {
            assert!(directory.path().join(name).exists(), "{name}");
        }
        assert!(!directory.path().join("hot.svg").exists());
    }
}
