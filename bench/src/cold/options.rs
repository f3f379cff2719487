//! The options of `petrel-bench cold`.

use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// How cold files are measured.
#[derive(Debug, Args)]
pub struct ColdOptions {
    /// Servers to run, in this order
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAME,...",
        default_value = "petrel,nginx,nginx-aio,lighttpd,apache,caddy"
    )]
    pub servers: Vec<String>,
    /// Workloads to run; without it all
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    pub workloads: Vec<String>,
    /// Petrel's network backends to compare
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAME,...",
        default_value = "write,writev,linux-sendfile,gthread-aio,gthread-sendfile,posix-aio,linux-aio-sendfile,io_uring,auto"
    )]
    pub backends: Vec<String>,
    /// Clients that fetch at the same time; small files with each number, the others with the first
    #[arg(long, value_delimiter = ',', value_name = "N,...", default_value = "100,200", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub clients: Vec<u16>,
    /// Length of a measured run
    #[arg(long, value_name = "S", default_value_t = 20.0, value_parser = crate::cli::seconds)]
    seconds: f64,
    /// How often the whole round of servers is repeated
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: u32,
    /// One round of 5 s each: to see that everything works, not to quote
    #[arg(long, conflicts_with_all = ["repeats", "seconds"])]
    quick: bool,
    /// Use persistent connections for cold fetches, where http_load makes a new one for each
    #[arg(long)]
    pub keep_alive: bool,
    /// Small files on the disk; fewer are made sooner, and are closer to each other
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1000..=1_000_000))]
    pub files: u32,
    /// The petrel binary; without it the one next to this program
    #[arg(long, value_name = "FILE")]
    pub petrel: Option<PathBuf>,
    /// Where report.txt, listings.txt, results.json and plots go, in a directory `cold`
    #[arg(long, value_name = "DIR", default_value = "bench/results")]
    pub out: PathBuf,
    /// Install missing servers with apt-get first (as root)
    #[arg(long)]
    pub install: bool,
}

impl ColdOptions {
    /// How many rounds to run.
    pub fn rounds(&self) -> u32 {
        if self.quick { 1 } else { self.repeats }
    }

    /// How long a measured run lasts.
    pub fn run_length(&self) -> Duration {
        Duration::from_secs_f64(if self.quick { 5.0 } else { self.seconds })
    }

    /// How long clients run before they are counted, until as many fetches end as begin.
    pub fn settling(&self) -> Duration {
        Duration::from_secs(if self.quick { 1 } else { 3 })
    }
}
