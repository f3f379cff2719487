//! The published numbers: Petrel, its peers and a floor server under the same load, in turn.
//!
//! A *workload* (`workload/`) says what is requested and what the response must be. A *peer* (`peers/`) says
//! how one server is configured and started. `schedule` decides the order and measures one cell (server,
//! workload, connections) at a time, using `load`, `measure`, `calibrate` and `syscalls`. `results` reduces
//! repeats to medians; `report` and `plot` only read those. Nothing here knows how Petrel works: it is a peer
//! like the others.
#![forbid(unsafe_code)]

mod ab;
mod article;
mod backend;
mod bars;
mod calibrate;
mod certificate;
mod cli;
mod cold;
mod disk;
mod floor;
mod gnuplot;
mod goals;
mod install;
mod interrupt;
mod ledger;
mod load;
mod machine;
mod measure;
mod occupation;
mod peers;
mod plot;
mod report;
mod results;
mod schedule;
mod slow_redis;
mod stage;
mod stalled;
mod starvation;
mod stat;
mod syscalls;
mod workload;

use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let begin = Instant::now();
    let done = match cli::parse() {
        cli::Command::Static(options) => compare(&options, workload::Suite::Static),
        cli::Command::Gateway(options) => compare(&options, workload::Suite::Gateway),
        cli::Command::Tempfile(options) => occupation::run(&options),
        cli::Command::Starvation(options) => starvation::run(&options),
        cli::Command::Stalled(options) => stalled::run(&options),
        cli::Command::Ledger(options) => ledger::run(&options),
        cli::Command::Article(options) => article::run(&options),
        cli::Command::Stat(options) => stat::run(&options),
        cli::Command::Lua(options) => compare(&options, workload::Suite::Lua),
        cli::Command::FcgiMagnet(options) => compare(&options, workload::Suite::FcgiMagnet),
        cli::Command::Cache(options) => compare(&options, workload::Suite::Cache),
        cli::Command::Tls(options) => compare(&options, workload::Suite::Tls),
        cli::Command::Rewrite(options) => compare(&options, workload::Suite::Rewrite),
        cli::Command::Passwords(options) => compare(&options, workload::Suite::Passwords),
        cli::Command::SlowRedis(options) => slow_redis::run(&options),
        cli::Command::Cold(options) => cold::run(&options),
        cli::Command::Backend(options) => {
            backend::serve(&options).map_err(|error| error.to_string())
        }
        cli::Command::Disk(options) => disk::run(&options),
        cli::Command::DiskFile(options) => disk::serve(&options).map_err(|error| error.to_string()),
        cli::Command::Floor(options) => floor::serve(&options).map_err(|error| error.to_string()),
    };
    match done {
        Ok(()) => {
            // bench/README.md says how long each comparison takes.
            eprintln!("Took {:.1} minutes", begin.elapsed().as_secs_f64() / 60.0);
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("petrel-bench: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Makes one comparison: measures, prints, writes. It succeeds even with a slow server; a server with wrong
/// or missing responses shows as an error in its own cells.
fn compare(options: &cli::Options, suite: workload::Suite) -> Result<(), String> {
    let Compared { results, out, .. } = measure_all(options, suite)?;
    let written = report::write(&results, &report::text(&results), &out)
        .and_then(|()| plot::write(&results, &out));
    told(written, &out)
}

/// The results, how they were measured, and where they go.
struct Compared {
    results: results::Results,
    servers: Vec<peers::Chosen>,
    out: std::path::PathBuf,
}

/// Measures and prints.
fn measure_all(options: &cli::Options, suite: workload::Suite) -> Result<Compared, String> {
    interrupt::watch().map_err(|error| format!("cannot watch for signals: {error}"))?;
    // Failing now is better than after an hour of measuring.
    let out = options.out.join(suite.directory());
    std::fs::create_dir_all(&out)
        .map_err(|error| format!("cannot make {}: {error}", out.display()))?;
    let workloads = workload::choose(suite, &options.workloads)?;
    let services: Vec<_> = workloads.iter().map(|workload| workload.needs).collect();
    let names = options.servers(suite);
    if options.install {
        let kinds: Vec<_> = workloads
            .iter()
            .filter_map(|workload| workload.backend)
            .collect();
        let peers = peers::able(&names, &services)?;
        install::all(&peers, &kinds, suite.tools())?;
    }
    let servers = peers::choose(&names, options.petrel.as_deref(), &services)?;
    let machine = machine::facts(&servers);
    println!("{machine}");
    let runs = schedule::run(options, &servers, &workloads)?;
    let results = results::summarise(machine, &servers, &workloads, &runs);
    print!("{}", report::text(&results));
    Ok(Compared {
        results,
        servers,
        out,
    })
}

/// Prints where the results were written.
fn told(written: std::io::Result<()>, out: &std::path::Path) -> Result<(), String> {
    written.map_err(|error| format!("cannot write to {}: {error}", out.display()))?;
    println!("Written to {}", out.display());
    Ok(())
}
