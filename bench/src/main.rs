//! The published numbers: Petrel, its peers and a floor under the same load, in turn.
//!
//! This file is the table of contents. A *workload* (`workload/`) says what is asked for and what
//! must come back; a *peer* (`peers/`) says how one server is configured and started; `schedule`
//! decides the order and takes one cell (server, workload, connections) at a time through `load`,
//! `measure`, `calibrate` and `syscalls`; `results` boils repeats down to medians; `report` and
//! `plot` only look at those. Nothing here knows how Petrel works: it is one more peer.
#![forbid(unsafe_code)]

mod backend;
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

use backend::Kind;
use std::process::ExitCode;
use workload::Service;

fn main() -> ExitCode {
    let done = match cli::parse() {
        cli::Command::Static(options) => compare(&options, workload::Suite::Static),
        cli::Command::Gateway(options) => compare(&options, workload::Suite::Gateway),
        cli::Command::Backend(options) => {
            backend::serve(&options).map_err(|error| error.to_string())
        }
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
    let out = options.out.join(suite.directory());
    std::fs::create_dir_all(&out)
        .map_err(|error| format!("cannot make {}: {error}", out.display()))?;
    let workloads = workload::choose(suite, &options.workloads)?;
    let services: Vec<_> = workloads.iter().map(|workload| workload.needs).collect();
    if options.install {
        let php = services.contains(&Service::Gateway(Kind::Php));
        let backends = php.then_some(backend::PHP_FPM.package());
        install::servers(&options.servers, backends.into_iter().collect())?;
    }
    let servers = peers::choose(&options.servers, options.petrel.as_deref(), &services)?;
    let machine = machine::facts(&servers);
    println!("{machine}");
    let runs = schedule::run(options, &servers, &workloads)?;
    let results = results::summarise(machine, &servers, &workloads, &runs);
    print!("{}", report::text(&results));
    let written = report::write(&results, &out)
        .and_then(|()| plot::write(&results, &out))
        .map_err(|error| format!("cannot write to {}: {error}", out.display()));
    written.map(|()| println!("Written to {}", out.display()))
}
