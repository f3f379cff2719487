//! The published numbers: Petrel, its peers and a floor under the same load, in turn.
//!
//! This file is the table of contents. A *workload* (`workload/`) says what is asked for and what
//! must come back; a *peer* (`peers/`) says how one server is configured and started; `schedule`
//! decides the order and takes one cell (server, workload, connections) at a time through `load`,
//! `measure`, `calibrate` and `syscalls`; `results` boils repeats down to medians; `report` and
//! `plot` only look at those. Nothing here knows how Petrel works: it is one more peer.
#![forbid(unsafe_code)]

mod calibrate;
mod cli;
mod floor;
mod install;
mod interrupt;
mod load;
mod machine;
mod measure;
mod peers;
mod plot;
mod report;
mod results;
mod schedule;
mod syscalls;
mod workload;

use std::process::ExitCode;

fn main() -> ExitCode {
    let done = match cli::parse() {
        cli::Command::Static(options) => compare(&options, workload::Suite::Static),
        cli::Command::Floor(options) => floor::serve(&options).map_err(|error| error.to_string()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("petrel-bench: {message}");
            ExitCode::FAILURE
        }
    }
}

/// One whole comparison: measure, print, write. A slow server never fails it; a server that
/// answers wrongly, or not at all, shows as an error in its own cells.
fn compare(options: &cli::Options, suite: workload::Suite) -> Result<(), String> {
    interrupt::watch().map_err(|error| format!("cannot watch for signals: {error}"))?;
    // Better now than after an hour of measuring.
    std::fs::create_dir_all(&options.out)
        .map_err(|error| format!("cannot make {}: {error}", options.out.display()))?;
    if options.install {
        install::missing_packages(&options.servers)?;
    }
    let servers = peers::choose(options)?;
    let workloads = workload::choose(suite, &options.workloads)?;
    let machine = machine::facts(&servers);
    println!("{machine}");
    let runs = schedule::run(options, &servers, &workloads)?;
    let results = results::summarise(machine, &servers, &workloads, &runs);
    print!("{}", report::text(&results));
    let written = report::write(&results, &options.out)
        .and_then(|()| plot::write(&results, &options.out))
        .map_err(|error| format!("cannot write to {}: {error}", options.out.display()));
    written.map(|()| println!("Written to {}", options.out.display()))
}
