//! What is measured: one table, and what its entries mean for clients and servers.
//!
//! A workload is run with several *contestants*: servers, or one server in several configurations. Knows
//! nothing of how they are run.

use super::options::ColdOptions;
use crate::peers::Chosen;
use std::fmt;

/// One table of the report.
#[derive(Debug)]
pub struct Workload {
    /// Name on the command line and in the JSON.
    pub name: &'static str,
    /// Name in tables.
    pub title: &'static str,
    /// The files that clients fetch, each once.
    pub files: Files,
    /// Whether the kernel has the files' metadata cached. Their data is never cached.
    pub metadata: Metadata,
    /// What is compared.
    pub contest: Contest,
    /// The number of clients.
    pub clients: Clients,
}

/// The length of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// 100 kB.
    Small,
    /// 10 MB.
    Large,
}

/// What the kernel has cached of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// Nothing: directories and inodes must be read, too.
    Cold,
    /// Directories and inodes.
    Warm,
}

/// What is compared in a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contest {
    /// The servers.
    Servers,
    /// The servers, while other clients fetch hot files.
    BesideHot,
    /// The same without warm-up: the kernel has the hot files cached, the server was just started, and all
    /// clients have one address, as behind a proxy.
    HotAtOnce,
    /// The servers, without and with a greedy client.
    Greed,
    /// Petrel's network backends.
    Backends,
    /// How much servers read at once.
    ChunkSizes,
    /// Ways to look files up.
    Stat,
    /// How many threads look files up, and as many read them.
    Threads,
}

/// The number of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clients {
    /// Each number on the command line.
    Each,
    /// The first number on the command line.
    First,
    /// This number.
    Fixed(u16),
}

/// A server in one configuration.
#[derive(Clone, Debug)]
pub struct Contestant {
    /// The server's index among the chosen ones.
    pub server: usize,
    /// Its name.
    pub name: &'static str,
    /// How its configuration differs.
    pub way: Way,
}

/// How a contestant differs from the usual configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// Not at all.
    Usual,
    /// Other clients fetch hot files from it.
    BesideHot,
    /// The same from the first second on, from the same address.
    HotAtOnce,
    /// Another client fetches as much as it can get.
    BesideGreed,
    /// Petrel with this network backend.
    Backend(String),
    /// It reads this many KiB at once.
    Chunk(u32),
    /// No program looks up files for it.
    NoStatAccelerator,
    /// A FastCGI program on a TCP port looks up files for it.
    AcceleratedByTcp,
    /// A FastCGI program on a unix socket looks up files for it.
    AcceleratedByUnix,
    /// It looks up files itself, in threads.
    ThreadedStat,
    /// It has this many threads that look files up, and as many that read.
    Threads(u16),
}

/// All workloads, in the order in which they run.
pub static WORKLOADS: &[Workload] = &[
    Workload {
        name: "small-cold",
        title: "100 kB files, metadata cold",
        files: Files::Small,
        metadata: Metadata::Cold,
        contest: Contest::Servers,
        clients: Clients::Each,
    },
    Workload {
        name: "small-warm",
        title: "100 kB files, metadata warm",
        files: Files::Small,
        metadata: Metadata::Warm,
        contest: Contest::Servers,
        clients: Clients::Each,
    },
    Workload {
        name: "hot-beside-cold",
        title: "Hot 4 KiB files at 900/s beside cold 100 kB files",
        files: Files::Small,
        metadata: Metadata::Cold,
        contest: Contest::BesideHot,
        clients: Clients::First,
    },
    Workload {
        name: "hot-at-once",
        title: "Hot 4 KiB files at 900/s beside cold 100 kB files, without warm-up, all clients with one address",
        files: Files::Small,
        metadata: Metadata::Cold,
        contest: Contest::HotAtOnce,
        clients: Clients::First,
    },
    Workload {
        name: "large",
        title: "10 MB files",
        files: Files::Large,
        metadata: Metadata::Cold,
        contest: Contest::Servers,
        clients: Clients::First,
    },
    Workload {
        name: "ranges",
        title: "100 kB files beside a client that fetches 64 ranges of large files at a time",
        files: Files::Small,
        metadata: Metadata::Warm,
        contest: Contest::Greed,
        clients: Clients::Fixed(20),
    },
    Workload {
        name: "chunks",
        title: "10 MB files by chunk size",
        files: Files::Large,
        metadata: Metadata::Cold,
        contest: Contest::ChunkSizes,
        clients: Clients::First,
    },
    Workload {
        name: "backends",
        title: "100 kB files by network backend",
        files: Files::Small,
        metadata: Metadata::Cold,
        contest: Contest::Backends,
        clients: Clients::First,
    },
    Workload {
        name: "backends-large",
        title: "10 MB files by network backend",
        files: Files::Large,
        metadata: Metadata::Cold,
        contest: Contest::Backends,
        clients: Clients::First,
    },
    Workload {
        name: "stat",
        title: "100 kB files by who looks them up",
        files: Files::Small,
        metadata: Metadata::Cold,
        contest: Contest::Stat,
        clients: Clients::Fixed(200),
    },
    Workload {
        name: "threads",
        title: "100 kB files by number of threads",
        files: Files::Small,
        metadata: Metadata::Cold,
        contest: Contest::Threads,
        clients: Clients::Fixed(200),
    },
];

/// The named workloads, or all.
pub fn choose(names: &[String]) -> Result<Vec<&'static Workload>, String> {
    if names.is_empty() {
        return Ok(WORKLOADS.iter().collect());
    }
    let find = |name: &String| {
        WORKLOADS
            .iter()
            .find(|one| one.name == name)
            .ok_or_else(|| {
                let all: Vec<_> = WORKLOADS.iter().map(|one| one.name).collect();
                format!("no workload {name}; there are {}", all.join(", "))
            })
    };
    names.iter().map(find).collect()
}

impl Workload {
    /// The contestants to run, from the available servers.
    pub fn contestants(&self, servers: &[Chosen], options: &ColdOptions) -> Vec<Contestant> {
        let of = |name: &str| servers.iter().position(|chosen| chosen.peer.name == name);
        let in_ways = |name, ways: Vec<Way>| {
            let contestant = |server| move |way| Contestant { server, name, way };
            let found = of(name).map(|server| ways.into_iter().map(contestant(server)));
            found.into_iter().flatten().collect::<Vec<_>>()
        };
        let all_in_ways = |ways: &[Way]| {
            let each = servers
                .iter()
                .flat_map(|chosen| in_ways(chosen.peer.name, ways.to_vec()));
            each.collect()
        };
        match self.contest {
            Contest::Servers => all_in_ways(&[Way::Usual]),
            Contest::BesideHot => all_in_ways(&[Way::BesideHot]),
            Contest::HotAtOnce => all_in_ways(&[Way::HotAtOnce]),
            Contest::Greed => all_in_ways(&[Way::Usual, Way::BesideGreed]),
            Contest::Backends => {
                let ways = options.backends.iter().cloned().map(Way::Backend);
                in_ways("petrel", ways.collect())
            }
            Contest::ChunkSizes => {
                let sizes = || CHUNKS_KIB.iter().copied().map(Way::Chunk).collect();
                [in_ways("petrel", sizes()), in_ways("nginx-aio", sizes())].concat()
            }
            Contest::Threads => {
                let numbers = || THREADS.iter().copied().map(Way::Threads).collect();
                [
                    in_ways("petrel", numbers()),
                    in_ways("nginx-aio", numbers()),
                ]
                .concat()
            }
            Contest::Stat => [
                in_ways(
                    "lighttpd",
                    vec![
                        Way::NoStatAccelerator,
                        Way::AcceleratedByTcp,
                        Way::AcceleratedByUnix,
                    ],
                ),
                in_ways(
                    "petrel",
                    vec![
                        Way::AcceleratedByTcp,
                        Way::AcceleratedByUnix,
                        Way::ThreadedStat,
                    ],
                ),
            ]
            .concat(),
        }
    }

    /// The numbers of clients to run it with.
    pub fn clients<'a>(&'a self, asked: &'a [u16]) -> &'a [u16] {
        match &self.clients {
            Clients::Each => asked,
            Clients::First => asked.get(..1).unwrap_or_default(),
            Clients::Fixed(number) => std::slice::from_ref(number),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Usual | Self::BesideHot | Self::HotAtOnce => "",
            Self::BesideGreed => "beside greed",
            Self::Backend(name) => name,
            Self::Chunk(kib) => return write!(f, "{kib} KiB"),
            Self::Threads(1) => "1 thread",
            Self::Threads(number) => return write!(f, "{number} threads"),
            Self::NoStatAccelerator => "no stat-accel",
            Self::AcceleratedByTcp => "stat-accel (tcp)",
            Self::AcceleratedByUnix => "stat-accel (unix)",
            Self::ThreadedStat => "threaded-stat",
        })
    }
}

/// The article's sizes, and four times the largest.
pub const CHUNKS_KIB: &[u32] = &[128, 256, 384, 512, 768, 1024, 2048];
/// Petrel uses 64 at most for one file system.
pub const THREADS: &[u16] = &[1, 2, 4, 8, 16, 32, 64, 128, 256];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::PEERS;
    use clap::Parser as _;
    use std::path::PathBuf;

    #[derive(Debug, clap::Parser)]
    struct CommandLine {
        #[command(flatten)]
        options: ColdOptions,
    }

    fn options(arguments: &[&str]) -> ColdOptions {
        let all = std::iter::once(&"cold").chain(arguments);
        CommandLine::try_parse_from(all).unwrap().options
    }

    fn servers(names: &[&str]) -> Vec<Chosen> {
        let chosen = |name: &&str| Chosen {
            peer: PEERS.iter().find(|peer| peer.name == *name).unwrap(),
            path: PathBuf::from("/bin/true"),
        };
        names.iter().map(chosen).collect()
    }

    fn labels(name: &str, servers: &[Chosen]) -> Vec<String> {
        let workload = WORKLOADS.iter().find(|one| one.name == name).unwrap();
        let contestants = workload.contestants(servers, &options(&[]));
        let label = |one: Contestant| format!("{} {}", one.name, one.way).trim_end().to_owned();
        contestants.into_iter().map(label).collect()
    }

    #[test]
    fn the_usual_servers_exist() {
        for name in &options(&[]).servers {
            assert!(PEERS.iter().any(|peer| peer.name == name), "{name}");
        }
    }

    #[test]
    fn contestants_are_servers_or_their_ways() {
        let servers = servers(&["nginx-aio", "petrel", "lighttpd"]);
        assert_eq!(
            labels("small-cold", &servers),
            ["nginx-aio", "petrel", "lighttpd"]
        );
        assert_eq!(labels("backends", &servers).len(), 9);
        assert_eq!(labels("chunks", &servers).len(), 2 * CHUNKS_KIB.len());
        assert_eq!(labels("chunks", &servers)[2], "petrel 384 KiB");
        assert_eq!(labels("threads", &servers).len(), 2 * THREADS.len());
        assert_eq!(labels("threads", &servers)[0], "petrel 1 thread");
        let stat = labels("stat", &servers);
        assert_eq!(stat[0], "lighttpd no stat-accel");
        assert_eq!(stat[5], "petrel threaded-stat");
        assert_eq!(labels("ranges", &servers)[1], "nginx-aio beside greed");
    }

    #[test]
    fn without_petrel_its_backends_are_left_out() {
        assert!(labels("backends", &servers(&["nginx"])).is_empty());
    }

    #[test]
    fn small_files_run_with_each_number_of_clients() {
        let asked = options(&["--clients", "7,9"]).clients;
        let clients = |name| {
            let one = WORKLOADS.iter().find(|one| one.name == name).unwrap();
            one.clients(&asked).to_vec()
        };
        assert_eq!(clients("small-cold"), [7, 9]);
        assert_eq!(clients("large"), [7]);
        assert_eq!(clients("ranges"), [20]);
    }

    #[test]
    fn an_unknown_workload_is_an_error_that_lists_the_known_ones() {
        let error = choose(&["x".to_owned()]).unwrap_err();
        assert!(error.contains("no workload x") && error.contains("small-cold"));
    }
}
