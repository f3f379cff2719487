//! Cold files: how servers behave while a disk takes its time.
//!
//! The tables of the articles on asynchronous I/O, threaded stat and stat accelerators, repeated on a
//! modelled disk (`disk/`). `workload` defines what is compared. `cell` makes one measurement with the
//! clients in `client/` and the readings of `watch`. `results` stores the measurements; `report`, `goals` and
//! `charts` only read them. Every measurement begins with a freshly mounted disk and a freshly started
//! server.

mod cell;
mod charts;
mod client;
mod goals;
mod listing;
mod options;
mod report;
mod results;
#[cfg(test)]
mod testing;
mod watch;
mod workload;

pub use options::ColdOptions;

use crate::disk::{self, Disk, Plan};
use crate::peers::{self, Chosen};
use crate::workload::Service;
use crate::{install, interrupt, machine, told};
use cell::{Bench, Cell};
use results::Results;
use std::path::Path;
use workload::Workload;

/// Measures, prints and writes. If a modelled disk is not possible here, it prints why.
pub fn run(options: &ColdOptions) -> Result<(), String> {
    let workloads = workload::choose(&options.workloads)?;
    if let Err(why) = disk::available() {
        println!("Cold files are not measured: {why}");
        return Ok(());
    }
    interrupt::watch().map_err(|error| format!("cannot watch for signals: {error}"))?;
    let out = options.out.join("cold");
    std::fs::create_dir_all(&out)
        .map_err(|error| format!("cannot make {}: {error}", out.display()))?;
    let services = [Service::Files];
    if options.install {
        install::all(&peers::able(&options.servers, &services)?, &[], &[])?;
    }
    let servers = peers::choose(&options.servers, options.petrel.as_deref(), &services)?;
    let machine = machine::facts(&servers);
    println!("{machine}");
    let mut results = Results {
        machine,
        seconds: options.run_length().as_secs_f64(),
        cells: Vec::new(),
    };
    let measured = measure(options, &servers, &workloads, &mut results);
    if results.cells.is_empty() {
        return measured;
    }
    // Also after an interruption, because what was measured took its time.
    let text = report::text(&results, &workloads);
    print!("{text}");
    told(write(&results, &text, &out), &out)?;
    measured
}

/// Makes the disk and measures all rounds. Neighbours in a table are measured one after the other.
fn measure(
    options: &ColdOptions,
    servers: &[Chosen],
    workloads: &[&'static Workload],
    results: &mut Results,
) -> Result<(), String> {
    eprintln!("making the disk");
    let mut disk =
        Disk::build(&plan(options)).map_err(|error| format!("no modelled disk: {error}"))?;
    let mut bench = Bench {
        disk: &mut disk,
        options,
        servers,
        memory: cell::limited_memory(),
    };
    for round in 0..bench.options.rounds() {
        for workload in workloads {
            let contestants = workload.contestants(bench.servers, bench.options);
            if contestants.is_empty() {
                eprintln!("without {}: no server here can run it", workload.title);
            }
            for clients in workload.clients(&bench.options.clients) {
                let (number, rounds) = (round + 1, bench.options.rounds());
                let title = workload.title;
                eprintln!("round {number} of {rounds}: {title}, {clients} clients");
                for contestant in &contestants {
                    let cell = Cell {
                        workload,
                        contestant,
                        clients: *clients,
                        round,
                    };
                    one(&mut bench, cell, results)?;
                }
            }
        }
    }
    Ok(())
}

/// Makes one measurement. The only error is an interruption.
fn one(bench: &mut Bench<'_>, cell: Cell<'_>, results: &mut Results) -> Result<(), String> {
    let run = bench.measure(cell);
    if interrupt::asked() {
        return Err("interrupted".to_owned());
    }
    let name = report::label(cell.contestant.name, &cell.contestant.way.to_string());
    match &run {
        Ok(figures) => eprintln!("  {name}: {}", report::brief(figures)),
        Err(error) => eprintln!("  {name}: {error}"),
    }
    if let Some(kept) = results.cell_mut(cell.workload, cell.contestant, cell.clients) {
        kept.runs.push(run);
    }
    Ok(())
}

/// The published disk, or a smaller one.
fn plan(options: &ColdOptions) -> Plan {
    let published = Plan::published();
    let share = published.small_files / options.files.max(1);
    Plan {
        small_files: options.files,
        large_files: (published.large_files / share.max(1)).max(LARGE_FILES_MIN),
        ..published
    }
}

fn write(results: &Results, text: &str, out: &Path) -> std::io::Result<()> {
    let json = serde_json::to_string_pretty(results)?;
    std::fs::write(out.join("results.json"), json + "\n")?;
    let report = format!("{}\n{text}", results.machine);
    std::fs::write(out.join("report.txt"), report)?;
    std::fs::write(out.join("listings.txt"), listing::text(results))?;
    charts::write(results, out)
}

/// Enough that a hundred clients have something to fetch.
const LARGE_FILES_MIN: u32 = 150;
