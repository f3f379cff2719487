//! Static files while a thousand requests wait for a Redis that takes ten seconds.
//!
//! An open loop requests a file at a fixed rate, first alone, then beside the waiting requests; a server
//! whose workers block while they wait answers late, or not at all. Both runs are made in turn, several
//! times, on one server. That all the requests wait is known from the Redis, which has received their
//! commands, and from the clients, none of which has a response when the run ends.

mod waiting;

use crate::backend::{Backend, SLOW_REDIS_DELAY};
use crate::cli::SlowRedisOptions;
use crate::load::{Client, Target};
use crate::peers::{self, Chosen};
use crate::report::aligned;
use crate::stage::{Place, Stage};
use crate::workload::{BESIDE_WAITING, Suite, WAITING, files};
use crate::{install, interrupt, machine, told};
use hdrhistogram::Histogram;
use serde::Serialize;
use std::time::{Duration, Instant};
use waiting::{Answers, Waiting};

/// Measures, prints and writes.
pub fn run(options: &SlowRedisOptions) -> Result<(), String> {
    interrupt::watch().map_err(|error| format!("cannot watch for signals: {error}"))?;
    let suite = Suite::SlowRedis;
    let out = options.out.join(suite.directory());
    std::fs::create_dir_all(&out)
        .map_err(|error| format!("cannot make {}: {error}", out.display()))?;
    let services = [WAITING.needs];
    if options.install {
        let peers = peers::able(&options.servers, &services)?;
        install::all(&peers, WAITING.backend.as_slice(), suite.tools())?;
    }
    let servers = peers::choose(&options.servers, options.petrel.as_deref(), &services)?;
    let machine = machine::facts(&servers);
    println!("{machine}");
    let place = Place::new(options.placement, options.petrel.as_deref())
        .map_err(|error| format!("cannot prepare: {error}"))?;
    files::make(&place.root, &[&BESIDE_WAITING])
        .map_err(|error| format!("cannot make files: {error}"))?;
    let found: Vec<_> = servers
        .iter()
        .map(|server| Found::of(options, &place, server))
        .collect();
    if interrupt::asked() {
        return Err("interrupted".to_owned());
    }
    let text = text(options, &found);
    print!("{text}");
    let json = serde_json::to_string_pretty(&found).map_err(|error| error.to_string())?;
    let written = std::fs::write(out.join("report.txt"), format!("{machine}\n{text}"))
        .and_then(|()| std::fs::write(out.join("results.json"), json + "\n"));
    told(written, &out)
}

/// The result of one server.
#[derive(Debug, Serialize)]
struct Found {
    server: &'static str,
    rounds: Result<Vec<Round>, String>,
}

/// A run alone and a run beside the waiting requests.
#[derive(Debug, Serialize)]
struct Round {
    alone: Latencies,
    beside: Latencies,
    /// The responses that the waiting requests got in the end.
    waited: Answers,
}

/// Latencies of a run, µs, from when each request was due.
#[derive(Clone, Copy, Debug, Serialize)]
struct Latencies {
    requests: u64,
    p50_us: f64,
    p99_us: f64,
    longest_us: f64,
}

impl Found {
    fn of(options: &SlowRedisOptions, place: &Place, server: &Chosen) -> Self {
        Self {
            server: server.peer.name,
            rounds: rounds(options, place, server),
        }
    }
}

fn rounds(
    options: &SlowRedisOptions,
    place: &Place,
    server: &Chosen,
) -> Result<Vec<Round>, String> {
    let stage = Stage::new(place, server, &WAITING)?;
    let redis = stage.backend.as_ref().ok_or("no Redis")?;
    let port = stage.served.port;
    let target = Target::new(&BESIDE_WAITING, port);
    let connections = Suite::SlowRedis.connections();
    let connections = connections.first().copied().unwrap_or(1);
    let mut client = Client::connect(&target, connections).map_err(|error| error.to_string())?;
    let mut load = |length| {
        let latency = client.run_open(options.rate, length);
        latency.map_err(|error| error.to_string())
    };
    load(WARM_UP)?;
    let mut rounds = Vec::new();
    for number in 1..=options.rounds() {
        let name = server.peer.name;
        eprintln!("{name}: round {number} of {}", options.rounds());
        let alone = Latencies::of(&load(options.run_length())?);
        let waiting = all_wait(options.waiting, port, redis)?;
        let beside = Latencies::of(&load(options.run_length())?);
        if waiting.answered() > 0 {
            let early = waiting.answered();
            return Err(format!(
                "{early} of those that wait were answered too early"
            ));
        }
        let waited = waiting.finish(SLOW_REDIS_DELAY + PATIENCE);
        rounds.push(Round {
            alone,
            beside,
            waited,
        });
    }
    Ok(rounds)
}

/// Starts the waiting requests, and returns when the Redis has received all of their commands.
fn all_wait(count: u16, port: u16, redis: &Backend) -> Result<Waiting, String> {
    let requests = || redis.counts().map_or(0, |counts| counts.requests);
    let before = requests();
    let path = &WAITING.paths()[0];
    let waiting =
        Waiting::start(port, path, count).map_err(|error| format!("those that wait: {error}"))?;
    let give_up = Instant::now() + PATIENCE;
    while requests() - before < u64::from(count) {
        if Instant::now() > give_up || interrupt::asked() {
            let (came, answered) = (requests() - before, waiting.answered());
            return Err(format!(
                "Redis got {came} of {count} commands, {answered} clients an answer"
            ));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(waiting)
}

impl Latencies {
    fn of(latency: &Histogram<u64>) -> Self {
        let us = |nanoseconds: u64| nanoseconds as f64 / 1e3;
        Self {
            requests: latency.len(),
            p50_us: us(latency.value_at_quantile(0.5)),
            p99_us: us(latency.value_at_quantile(0.99)),
            longest_us: us(latency.max()),
        }
    }

    fn cells(&self) -> [String; 3] {
        [self.p50_us, self.p99_us, self.longest_us].map(|us| format!("{us:.0}"))
    }
}

fn text(options: &SlowRedisOptions, found: &[Found]) -> String {
    let head = ["", "p50", "p99", "longest", "answers in the end"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut ratios = String::new();
    for Found { server, rounds } in found {
        let rounds = match rounds {
            Ok(rounds) => rounds,
            Err(error) => {
                ratios += &format!("  {server}: ERROR: {error}\n");
                continue;
            }
        };
        for round in rounds {
            let Answers { good, bad } = round.waited;
            let waited = format!("{good} good, {bad} bad");
            let alone = (format!("{server}, alone"), round.alone, String::new());
            let beside = (format!("{server}, beside them"), round.beside, waited);
            for (name, latencies, waited) in [alone, beside] {
                rows.push([vec![name], latencies.cells().to_vec(), vec![waited]].concat());
            }
        }
        let median = |which: fn(&Round) -> f64| {
            let mut values: Vec<_> = rounds.iter().map(which).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(0.0)
        };
        let alone = median(|round| round.alone.p99_us);
        let beside = median(|round| round.beside.p99_us);
        let ratio = beside / alone;
        let reached = if ratio <= RATIO_MAX { "" } else { ", MISSED" };
        ratios += &format!(
            "  {server}: p99 {beside:.0} µs beside them ÷ {alone:.0} µs alone = {ratio:.2} (at most {RATIO_MAX:.2}{reached})\n"
        );
    }
    format!(
        "\n{} requests a second for a file of 4 KiB, alone and beside {} requests that wait for Redis; µs from when\n\
         a request was due\n{}\nMedians of the rounds\n{ratios}",
        options.rate,
        options.waiting,
        aligned(&rows)
    )
}

/// How much the 99th percentile may grow.
const RATIO_MAX: f64 = 1.2;
const WARM_UP: Duration = Duration::from_millis(500);
/// The time limit for short steps.
const PATIENCE: Duration = Duration::from_secs(4);
