//! The command line: one block per option, from which the help is generated.

use crate::backend::{BODY_BYTES, SLOW_REDIS_DELAY};
use crate::cold::ColdOptions;
use crate::workload::{Suite, Workload};
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::time::Duration;

/// Parses the command line. Exits on `--help` or an error.
pub fn parse() -> Command {
    CommandLine::parse().command
}

#[derive(Debug, Parser)]
#[command(name = "petrel-bench", about, version)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

/// A suite of workloads to compare servers, or the floor server alone.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Compare servers by static files
    Static(Options),
    /// Compare gateways: FastCGI, PHP, HTTP
    Gateway(Options),
    /// Compare large answers that PHP sends itself or leaves to the server
    Tempfile(Options),
    /// The tables of the article "Reducing Requests-Setup-Costs", and what a request does
    Article(Options),
    /// The tables of the article "Reducing the Number of stat() Calls Made by Apache"
    Stat(Options),
    /// Compare servers by scripts that run in them
    Lua(Options),
    /// Compare Lua by FastCGI with PHP, the CPU time of both sides together
    FcgiMagnet(Options),
    /// Compare pages from the server's cache with files
    Cache(Options),
    /// Compare TLS and HTTP/2: files, handshakes, backends, memory of connections
    Tls(Options),
    /// Compare rules that rewrite URLs: 1, 50 and 10,000 of them
    Rewrite(Options),
    /// Compare Basic authentication: with log-ins that are remembered, and with a hash for each request
    Passwords(Options),
    /// Static files while a thousand requests wait for a slow Redis
    SlowRedis(SlowRedisOptions),
    /// Cold files on a modelled disk, and hot ones beside them
    Cold(ColdOptions),
    /// A small php-fpm behind two servers and many clients, slow ones among them
    Starvation(StarvationOptions),
    /// Clients that request a large file and do not read it
    Stalled(StalledOptions),
    /// Whether the ledger tells the truth: delays of known lengths, beside 99 other requests
    Ledger(LedgerOptions),
    /// What the modelled disk can do: the model alone, or threads that read from it
    Disk(DiskOptions),
    /// The file below a modelled disk (started by the benchmarks that use one)
    #[command(hide = true)]
    DiskFile(DiskFileOptions),
    /// Serve one canned response with the fewest system calls (started by the comparison)
    Floor(FloorOptions),
    /// Answer behind a gateway with the fewest instructions (started by the comparison)
    Backend(BackendOptions),
}

/// How a comparison is run.
#[derive(Debug, Args)]
pub struct Options {
    /// Servers to run, in this order; without it those of the suite that are installed
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    servers: Vec<String>,
    /// Workloads to run; without it all of the suite
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    pub workloads: Vec<String>,
    /// Numbers of client connections to run each workload with; without it the usual ones
    #[arg(long, value_delimiter = ',', value_name = "N,...", value_parser = clap::value_parser!(u16).range(1..=4096))]
    connections: Vec<u16>,
    /// How often the whole round of servers is repeated
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Length of a measured run
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// Requests in a measured run, instead of a length
    #[arg(long, value_name = "N", conflicts_with = "seconds")]
    pub requests: Option<u64>,
    /// One short repeat: to see that everything works, not to quote
    #[arg(long, conflicts_with_all = ["repeats", "seconds", "requests"])]
    quick: bool,
    /// Where results.json, report.txt and the plots go: static's there, others' in a directory each
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    pub out: PathBuf,
    /// The petrel binary; without it the one next to this program
    #[arg(long, value_name = "FILE")]
    pub petrel: Option<PathBuf>,
    /// Install missing servers and tools with apt-get first (as root)
    #[arg(long)]
    pub install: bool,
    /// Which cores client and server run on
    #[arg(long, value_enum, default_value_t = Placement::Apart)]
    pub placement: Placement,
    /// Run each workload once more on Petrel with an access log, and draw its stage times
    #[arg(long)]
    pub stages: bool,
}

impl Options {
    /// The servers to run: the named ones, or else the suite's.
    pub fn servers(&self, suite: Suite) -> Vec<String> {
        let usual = suite.servers().iter().copied().map(str::to_owned);
        if self.servers.is_empty() {
            usual.collect()
        } else {
            self.servers.clone()
        }
    }

    /// The numbers of connections for a workload.
    pub fn connections(&self, workload: &Workload) -> &[u16] {
        match self.connections.as_slice() {
            [] => workload.usual_connections(),
            named => named,
        }
    }

    /// How many rounds to run.
    pub fn rounds(&self) -> u32 {
        if self.quick { 1 } else { self.repeats }
    }

    /// The length of a measured run, unless it is given as a number of requests.
    pub fn run_length(&self) -> Duration {
        let seconds = if self.quick { 0.3 } else { self.seconds };
        Duration::from_secs_f64(seconds)
    }
}

/// How the starvation of backends is provoked.
#[derive(Debug, Args)]
pub struct StarvationOptions {
    /// Servers to run, in this order
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAME,...",
        default_value = "petrel,nginx"
    )]
    pub servers: Vec<String>,
    /// Length of each of the measured runs
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,
    /// Short runs: to see that everything works, not to quote
    #[arg(long, conflicts_with = "seconds")]
    quick: bool,
    /// Where report.txt and results.json go, in a directory `starvation`
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    pub out: PathBuf,
    /// The petrel binary; without it the one next to this program
    #[arg(long, value_name = "FILE")]
    pub petrel: Option<PathBuf>,
    /// Install what is missing with apt-get first (as root)
    #[arg(long)]
    pub install: bool,
    /// Which cores client and server run on
    #[arg(long, value_enum, default_value_t = Placement::Apart)]
    pub placement: Placement,
}

impl StarvationOptions {
    /// How long a measured run lasts.
    pub fn run_length(&self) -> Duration {
        Duration::from_secs_f64(if self.quick { 2.0 } else { self.seconds })
    }
}

/// How clients that do not read are measured.
#[derive(Debug, Args)]
pub struct StalledOptions {
    /// Servers to run, in this order
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAME,...",
        default_value = "petrel,lighttpd,nginx"
    )]
    pub servers: Vec<String>,
    /// They request it from an HTTP backend that sends as fast as it can, not a file
    #[arg(long)]
    pub backend: bool,
    /// Clients that do not read
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u16).range(1..=4000))]
    pub clients: u16,
    /// How often the whole round of servers is repeated
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: u32,
    /// One repeat: to see that everything works, not to quote
    #[arg(long, conflicts_with = "repeats")]
    quick: bool,
    /// Where report.txt and results.json go, in a directory `stalled`
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    pub out: PathBuf,
    /// The petrel binary; without it the one next to this program
    #[arg(long, value_name = "FILE")]
    pub petrel: Option<PathBuf>,
    /// Install missing servers with apt-get first (as root)
    #[arg(long)]
    pub install: bool,
    /// Which cores client and server run on
    #[arg(long, value_enum, default_value_t = Placement::Apart)]
    pub placement: Placement,
}

impl StalledOptions {
    /// How many rounds to run.
    pub fn rounds(&self) -> u32 {
        if self.quick { 1 } else { self.repeats }
    }
}

/// How the ledger is compared with delays.
#[derive(Debug, Args)]
pub struct LedgerOptions {
    /// How often each delay is made
    #[arg(long, value_name = "N", default_value_t = 21, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeats: u32,
    /// Three repeats: to see that everything works, not to quote
    #[arg(long, conflicts_with = "repeats")]
    quick: bool,
    /// Where report.txt and results.json go, in a directory `ledger`
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    pub out: PathBuf,
    /// The petrel binary; without it the one next to this program
    #[arg(long, value_name = "FILE")]
    pub petrel: Option<PathBuf>,
    /// Which cores client and server run on
    #[arg(long, value_enum, default_value_t = Placement::Apart)]
    pub placement: Placement,
}

impl LedgerOptions {
    /// How many rounds to run.
    pub fn rounds(&self) -> u32 {
        if self.quick { 3 } else { self.repeats }
    }
}

/// How static files beside waiting requests are measured.
#[derive(Debug, Args)]
pub struct SlowRedisOptions {
    /// Servers to run, in this order
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAME,...",
        default_value = "petrel,nginx"
    )]
    pub servers: Vec<String>,
    /// Requests that wait
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..=4000))]
    pub waiting: u16,
    /// Requests for a file per second
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: u32,
    /// How often both runs are made
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: u32,
    /// Length of each run
    #[arg(long, value_name = "S", default_value_t = 4.0, value_parser = seconds)]
    seconds: f64,
    /// One short repeat: to see that everything works, not to quote
    #[arg(long, conflicts_with_all = ["repeats", "seconds"])]
    quick: bool,
    /// Where report.txt and results.json go, in a directory `slow-redis`
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    pub out: PathBuf,
    /// The petrel binary; without it the one next to this program
    #[arg(long, value_name = "FILE")]
    pub petrel: Option<PathBuf>,
    /// Install what is missing with apt-get first (as root)
    #[arg(long)]
    pub install: bool,
    /// Which cores client and server run on
    #[arg(long, value_enum, default_value_t = Placement::Apart)]
    pub placement: Placement,
}

impl SlowRedisOptions {
    /// How many rounds to run.
    pub fn rounds(&self) -> u32 {
        if self.quick { 1 } else { self.repeats }
    }

    /// The length of a run. The requests that wait must outlast it.
    pub fn run_length(&self) -> Duration {
        let seconds = if self.quick { 1.0 } else { self.seconds };
        Duration::from_secs_f64(seconds).min(SLOW_REDIS_DELAY / 2)
    }
}

/// How the modelled disk is tried.
#[derive(Debug, Args)]
pub struct DiskOptions {
    /// Only print the limits that the model has, without a disk
    #[arg(long)]
    pub simulate: bool,
    /// Only try, on a small disk, whether everything about it works
    #[arg(long, conflicts_with = "simulate")]
    pub check: bool,
    /// Clients, or threads, each with one open file
    #[arg(long, value_delimiter = ',', value_name = "N,...", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub depth: Vec<u32>,
    /// Reads per fetch to simulate; threads count theirs
    #[arg(long, value_delimiter = ',', value_name = "N,...", default_value = "1,2,3", value_parser = reads)]
    pub operations: Vec<f64>,
    /// Length of each of the measured runs
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,
    /// Short runs on a small disk: to see that everything works, not to quote
    #[arg(long, conflicts_with_all = ["seconds", "simulate"])]
    quick: bool,
    /// Files of 100 kB on the disk, instead of all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    small_files: Option<u32>,
    /// Files of 10 MB on the disk, instead of all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    large_files: Option<u32>,
}

impl DiskOptions {
    /// The length of a run.
    pub fn run_length(&self) -> Duration {
        Duration::from_secs_f64(if self.quick { 2.0 } else { self.seconds })
    }

    /// Files of 100 kB on the disk; `None` is all.
    pub fn small_files(&self) -> Option<u32> {
        self.small_files.or(self.quick.then_some(10_000))
    }

    /// Files of 10 MB on the disk; `None` is all.
    pub fn large_files(&self) -> Option<u32> {
        self.large_files.or(self.quick.then_some(100))
    }
}

/// Parameters of the process that provides the file below a modelled disk.
#[derive(Debug, Args)]
pub struct DiskFileOptions {
    /// The directory of the disk
    pub directory: PathBuf,
    /// Length of the file
    #[arg(value_parser = clap::value_parser!(u64).range(4096..))]
    pub bytes: u64,
    /// Seed of the rotation
    pub seed: u64,
}

/// Which cores client and server run on. The same for every server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// The client on the last core, the server on all others: repeatable
    Apart,
    /// No affinity. The kernel moves both between cores, and a request takes a third of the time when client
    /// and server happen to share a core and its cache
    Shared,
}

/// The response of the floor server.
#[derive(Debug, Args)]
pub struct FloorOptions {
    /// Port on 127.0.0.1
    #[arg(long)]
    pub port: u16,
    /// Status code of every response
    #[arg(long, default_value_t = 200)]
    pub status: u16,
    /// File whose bytes are the body of every response; without it the body is empty
    #[arg(long)]
    pub file: Option<PathBuf>,
    /// File whose bytes are sent to the backend for every request
    #[arg(long, value_name = "FILE")]
    pub relay_request: Option<PathBuf>,
    /// Unix socket of the backend
    #[arg(long, value_name = "FILE", requires = "relay_request")]
    pub relay_socket: Option<PathBuf>,
    /// Port of the backend on 127.0.0.1
    #[arg(long, value_name = "PORT", requires = "relay_request")]
    pub relay_port: Option<u16>,
}

/// The protocol and address of a backend.
#[derive(Debug, Args)]
pub struct BackendOptions {
    /// The protocol
    #[arg(value_enum)]
    pub protocol: BackendProtocol,
    /// Unix socket to listen on
    #[arg(long, value_name = "FILE", required_unless_present = "port")]
    pub socket: Option<PathBuf>,
    /// Port on 127.0.0.1 to listen on
    #[arg(long, conflicts_with = "socket")]
    pub port: Option<u16>,
    /// Unix socket that reports the numbers of connections and requests so far
    #[arg(long, value_name = "FILE")]
    pub control: Option<PathBuf>,
    /// Length of every reply's body
    #[arg(long, value_name = "N", default_value_t = BODY_BYTES, value_parser = clap::value_parser!(u64).range(..=1 << 20))]
    pub bytes: u64,
    /// Seconds that caches may keep a reply (HTTP)
    #[arg(long, value_name = "S")]
    pub max_age: Option<u32>,
    /// Milliseconds that a reply takes (slow Redis)
    #[arg(long, value_name = "MS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=60_000))]
    pub delay_ms: u64,
}

impl BackendOptions {
    /// How long a reply is delayed.
    pub fn delay(&self) -> Duration {
        Duration::from_millis(self.delay_ms)
    }
}

/// The protocols of this program's own responders.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum BackendProtocol {
    /// FastCGI
    Fastcgi,
    /// HTTP/1.1
    Http,
    /// RESP, whose answers take their time
    SlowRedis,
}

/// A shorter run would measure start-up effects; a longer one would only take time.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (0.1..=600.0).contains(&value) => Ok(value),
        _ => Err("expected a number of seconds from 0.1 to 600".to_owned()),
    }
}

/// Reads per fetch: at least the one for the data.
fn reads(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if (1.0..=100.0).contains(&value) => Ok(value),
        _ => Err("expected a number of reads from 1 to 100".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        use clap::CommandFactory as _;
        CommandLine::command().debug_assert();
    }

    #[test]
    fn lengths_out_of_range_are_refused() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        assert!(seconds("0").is_err() && seconds("NaN").is_err() && seconds("x").is_err());
    }
}
