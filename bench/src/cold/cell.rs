//! One measurement: a cold disk, a freshly started server, clients, and readings before and after.
//!
//! The server and, if there is one, the accelerator run in a memory cgroup of their own, which is smaller
//! than the data on the disk. Clients begin some seconds before they are counted.

use super::client::{Ask, Client, Ended, Group, Pace, Seen, Sources};
use super::options::ColdOptions;
use super::results::{Crowd, Figures};
use super::watch::Reading;
use super::workload::{Contestant, Files, Metadata, Way, Workload};
use crate::backend::Address;
use crate::disk::{self, Cgroup, Disk, Plan};
use crate::measure::{self, Memory, Snapshot};
use crate::peers::process::Running;
use crate::peers::{self, Chosen, FileReading, Logging, Program, Site, TEMPORARY};
use crate::stage::open_directory;
use crate::workload::{self, Reuse};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// What every measurement needs.
pub struct Bench<'a> {
    /// The disk.
    pub disk: &'a mut Disk,
    /// The command-line options.
    pub options: &'a ColdOptions,
    /// The available servers.
    pub servers: &'a [Chosen],
    /// Whether the servers' memory can be limited.
    pub memory: LimitedMemory,
}

/// Whether servers run in a memory cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitedMemory {
    /// Each server runs in a cgroup of its own.
    Yes,
    /// This process cannot make cgroups on this machine.
    No,
}

/// Finds out whether memory can be limited, and prints a message if not.
pub fn limited_memory() -> LimitedMemory {
    match Cgroup::new(MEMORY_BYTES) {
        Ok(_) => LimitedMemory::Yes,
        Err(error) => {
            eprintln!("petrel-bench: servers may use all memory: no memory cgroup: {error}");
            LimitedMemory::No
        }
    }
}

/// What to measure.
#[derive(Clone, Copy)]
pub struct Cell<'a> {
    /// The workload.
    pub workload: &'static Workload,
    /// The server and its configuration.
    pub contestant: &'a Contestant,
    /// The number of clients.
    pub clients: u16,
    /// The round. Each round requests the files in a different order.
    pub round: u32,
}

impl Bench<'_> {
    /// Measures, and repeats if the disk did not keep its times; returns the run that came closest to them.
    /// The error says what went wrong.
    pub fn measure(&mut self, cell: Cell<'_>) -> Result<Figures, String> {
        let mut best: Option<Figures> = None;
        for attempt in 1..=ATTEMPTS {
            let mut figures = self.measure_once(cell)?;
            figures.attempts = attempt;
            let late = |figures: &Figures| figures.machine.disk.late_ms_max;
            let is_better = best.as_ref().is_none_or(|best| late(&figures) < late(best));
            if is_better {
                best = Some(figures);
            } else if let Some(best) = &mut best {
                best.attempts = attempt;
            }
            if best.as_ref().is_some_and(Figures::is_sound) {
                break;
            }
        }
        best.ok_or_else(|| "not measured".to_owned())
    }

    fn measure_once(&mut self, cell: Cell<'_>) -> Result<Figures, String> {
        let told = |error: std::io::Error| error.to_string();
        make_cold(self.disk)?;
        if cell.workload.metadata == Metadata::Warm {
            self.disk.warm_metadata().map_err(told)?;
        }
        if cell.contestant.way == Way::HotAtOnce {
            self.disk.warm_hot_files().map_err(told)?;
        }
        let chosen = self
            .servers
            .get(cell.contestant.server)
            .ok_or("no such server")?;
        let petrel = self.options.petrel.as_deref();
        let cgroup = match self.memory {
            LimitedMemory::Yes => Some(Cgroup::new(MEMORY_BYTES).map_err(told)?),
            LimitedMemory::No => None,
        };
        let stage = Stage::new(chosen, cell, self.disk.root(), petrel, cgroup)?;
        self.run(cell, &stage)
    }

    /// Runs clients against the started server.
    fn run(&mut self, cell: Cell<'_>, stage: &Stage) -> Result<Figures, String> {
        let told = |error: std::io::Error| error.to_string();
        let plan = self.disk.plan().clone();
        let groups = groups(cell, &plan, self.options.keep_alive);
        let mut client = Client::new(stage.port, groups).map_err(|error| error.to_string())?;
        let run = |client: &mut Client<'_>, length| match client.run(length) {
            Ok(ended) => Ok(ended),
            Err(error) => Err(error.to_string()),
        };
        let is_settled = cell.contestant.way != Way::HotAtOnce;
        if is_settled && run(&mut client, self.options.settling())? == Ended::Files {
            return Err("there are too few files to begin with".to_owned());
        }
        let before = Reading::new(self.disk.counters().map_err(told)?);
        let used_before = stage.cpu();
        client.count();
        // On a large disk this ends when all files were read.
        run(&mut client, self.options.run_length())?;
        client.stop_counting();
        let after = Reading::new(self.disk.counters().map_err(told)?);
        let used = stage.cpu_since(&used_before);
        let memory = stage.memory();
        client.drain(PATIENCE).map_err(|error| error.to_string())?;
        let machine = before.until(&after);
        let seconds = machine.disk.seconds;
        let mut seen = client.seen().into_iter().map(|seen| crowd(&seen, seconds));
        let cold = seen.next().ok_or("no client asked")?;
        let beside = seen.next();
        let bytes = match cell.workload.files {
            Files::Small => plan.small_bytes,
            Files::Large => plan.large_bytes,
        };
        let files = cold.bytes as f64 / bytes.max(1) as f64;
        let operations = machine.disk.operations as f64 / files.max(1e-9);
        let limit = limit(cell, operations, bytes);
        // At the end each client has received a part of a large file, so bytes count.
        let rate = match cell.workload.files {
            Files::Small => cold.fetches_per_s,
            Files::Large => files / seconds.max(1e-9),
        };
        Ok(Figures {
            seconds,
            operations,
            limit,
            of_limit: rate / limit.max(1e-9),
            cpu_ms: used.as_secs_f64() * 1e3 / files.max(1e-9),
            memory_mib: memory.proportional as f64 / f64::from(1 << 20),
            machine,
            cold,
            beside,
            attempts: 1,
        })
    }
}

/// A process that has just ended may still have a file open, so unmounting is tried again.
fn make_cold(disk: &mut Disk) -> Result<(), String> {
    let mut tried = 1;
    loop {
        match disk.make_cold() {
            Ok(()) => return Ok(()),
            Err(error) if tried == UNMOUNT_ATTEMPTS => return Err(error.to_string()),
            Err(_) => std::thread::sleep(UNMOUNT_PAUSE),
        }
        tried += 1;
    }
}

/// A running server and what belongs to it. Dropping it ends the parts in this order.
struct Stage {
    server: Running,
    accelerator: Option<Running>,
    port: u16,
    cgroup: Option<Cgroup>,
    _directory: TempDir,
    _memory: TempDir,
}

impl Stage {
    fn new(
        chosen: &Chosen,
        cell: Cell<'_>,
        root: &Path,
        petrel: Option<&Path>,
        cgroup: Option<Cgroup>,
    ) -> Result<Self, String> {
        let told = |error: std::io::Error| error.to_string();
        let directory = open_directory(&std::env::temp_dir()).map_err(told)?;
        let memory = open_directory(Path::new(TEMPORARY)).map_err(told)?;
        let way = &cell.contestant.way;
        let address = match way {
            Way::AcceleratedByTcp => Some(Address::Tcp(peers::free_port().map_err(told)?)),
            Way::AcceleratedByUnix => Some(Address::Unix(directory.path().join("stat.sock"))),
            _ => None,
        };
        let accelerator = address
            .as_ref()
            .map(|address| accelerate(address, petrel, directory.path()));
        let port = peers::free_port().map_err(told)?;
        let site = Site {
            logging: Logging::Off,
            root,
            pem: None,
            directory: directory.path(),
            port,
            workload: &workload::BESIDE_WAITING,
            memory: memory.path(),
            upstream: None,
            store: None,
            reading: FileReading {
                clients: cell.clients + others(&cell.contestant.way),
                backend: match way {
                    Way::Backend(name) => Some(name),
                    _ => None,
                },
                chunk_kib: match way {
                    Way::Chunk(kib) => Some(*kib),
                    _ => None,
                },
                threads: match way {
                    Way::Threads(number) => Some(*number),
                    _ => None,
                },
                stat_accelerator: address.as_ref().map(|address| (ACCELERATED, address)),
            },
        };
        let stage = Self {
            accelerator: accelerator.transpose()?,
            server: Running::start(chosen, &site)?,
            port,
            cgroup,
            _directory: directory,
            _memory: memory,
        };
        if let Some(cgroup) = &stage.cgroup {
            let processes = stage.all().flat_map(Running::processes);
            for process in processes {
                cgroup.add(process.pid.unsigned_abs()).map_err(told)?;
            }
        }
        Ok(stage)
    }

    fn all(&self) -> impl Iterator<Item = &Running> {
        std::iter::once(&self.server).chain(&self.accelerator)
    }

    fn cpu(&self) -> Vec<Snapshot> {
        self.all().map(Snapshot::take).collect()
    }

    fn cpu_since(&self, before: &[Snapshot]) -> Duration {
        let now = self.cpu();
        let used = before.iter().zip(&now);
        used.map(|(before, now)| before.used_until(now).total).sum()
    }

    fn memory(&self) -> Memory {
        let mut all = Memory::default();
        for one in self.all().map(measure::memory) {
            all.resident += one.resident;
            all.proportional += one.proportional;
        }
        all
    }
}

/// The connections of the additional clients.
fn others(way: &Way) -> u16 {
    match way {
        Way::BesideHot | Way::HotAtOnce => HOT_CONNECTIONS,
        Way::BesideGreed => GREEDY_CONNECTIONS,
        _ => 0,
    }
}

/// Starts `petrel fcgi-stat-accel`, with as many threads as the article has connections to it.
fn accelerate(
    address: &Address,
    petrel: Option<&Path>,
    directory: &Path,
) -> Result<Running, String> {
    let mut command = Command::new(Program::Petrel.find(petrel)?);
    command.arg("fcgi-stat-accel");
    match address {
        Address::Tcp(port) => command.arg("--port").arg(port.to_string()),
        Address::Unix(path) => command.arg("--socket").arg(path),
    };
    command.args(["--threads", ACCELERATOR_THREADS]);
    command.stdin(Stdio::null());
    Running::launch(&mut command, &directory.join("stat.log"), address)
        .map_err(|error| format!("fcgi-stat-accel: {error}"))
}

/// The clients of a measurement. The first group is the one that is measured.
fn groups(cell: Cell<'_>, plan: &Plan, keep_alive: bool) -> Vec<Group<'static>> {
    let reuse = if keep_alive {
        Reuse::Keep
    } else {
        Reuse::Close
    };
    let sources = match cell.contestant.way {
        Way::HotAtOnce => Sources::Shared(GREEDY_ADDRESS),
        _ => Sources::Own,
    };
    let cold = Group {
        clients: cell.clients,
        pace: Pace::Closed,
        reuse,
        sources,
        next: each_once(cell.workload.files, plan, cell.round),
    };
    let beside = match cell.contestant.way {
        Way::BesideHot | Way::HotAtOnce => Some(Group {
            clients: HOT_CONNECTIONS,
            pace: Pace::Open(HOT_RATE),
            reuse: Reuse::Keep,
            sources,
            next: hot(plan),
        }),
        Way::BesideGreed => Some(Group {
            clients: GREEDY_CONNECTIONS,
            pace: Pace::Closed,
            reuse: Reuse::Keep,
            sources: Sources::Shared(GREEDY_ADDRESS),
            next: ranges(plan, cell.round),
        }),
        _ => None,
    };
    std::iter::once(cold).chain(beside).collect()
}

/// Returns what a client fetches next.
type Next = Box<dyn FnMut() -> Option<Ask>>;

fn each_once(files: Files, plan: &Plan, round: u32) -> Next {
    let plan = plan.clone();
    let (count, path): (u32, fn(&Plan, u32) -> String) = match files {
        Files::Small => (plan.small_files, Plan::small),
        Files::Large => (plan.large_files, Plan::large),
    };
    let mut order = shuffled(count, round).into_iter();
    Box::new(move || ask(&plan, &path(&plan, order.next()?), None))
}

fn hot(plan: &Plan) -> Next {
    let plan = plan.clone();
    let mut numbers = (0..plan.hot_files).cycle();
    Box::new(move || ask(&plan, &plan.hot(numbers.next()?), None))
}

/// All complete ranges of all large files, each once.
fn ranges(plan: &Plan, round: u32) -> Next {
    let plan = plan.clone();
    let each = u32::try_from(plan.large_bytes / RANGE_BYTES).unwrap_or(u32::MAX);
    let mut order = shuffled(plan.large_files.saturating_mul(each), round).into_iter();
    Box::new(move || {
        let number = order.next()?;
        let (file, range) = (number.checked_div(each)?, number.checked_rem(each)?);
        let range = (u64::from(range) * RANGE_BYTES, RANGE_BYTES);
        ask(&plan, &plan.large(file), Some(range))
    })
}

fn ask(plan: &Plan, path: &str, range: Option<(u64, u64)>) -> Option<Ask> {
    let file = plan.expected(path)?;
    Some(Ask { file, range })
}

/// The numbers below `count`, in an order that is the same for all servers in a round.
fn shuffled(count: u32, round: u32) -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..count).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ (u64::from(round) << 32);
    for last in (1..numbers.len()).rev() {
        // xorshift64: fast, and good enough to scatter files.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let other = (u128::from(state) * (last as u128 + 1)) >> 64;
        numbers.swap(last, usize::try_from(other).unwrap_or(0));
    }
    numbers
}

/// The most fetches per second that the disk allows. For small files with warm metadata that is one read
/// each, however many the server made. With cold metadata it is as many reads as the server made. For large
/// files it is what the spindles can read without seeking.
fn limit(cell: Cell<'_>, operations: f64, bytes: u64) -> f64 {
    let Workload {
        files, metadata, ..
    } = cell.workload;
    let operations = match (files, metadata) {
        (Files::Large, _) => return disk::SEQUENTIAL_MB_PER_SECOND * 1e6 / bytes.max(1) as f64,
        (Files::Small, Metadata::Warm) => 1.0,
        (Files::Small, Metadata::Cold) => operations.max(1.0),
    };
    disk::simulate(cell.clients.into(), operations, bytes, SEED)
}

fn crowd(seen: &Seen, seconds: f64) -> Crowd {
    Crowd {
        fetches: seen.fetches,
        bytes: seen.bytes,
        fetches_per_s: seen.fetches as f64 / seconds.max(1e-9),
        mb_per_s: seen.bytes as f64 / 1e6 / seconds.max(1e-9),
        connect: seen.connect.milliseconds(),
        first: seen.first.milliseconds(),
        body: seen.body.milliseconds(),
        latency: seen.latency.milliseconds(),
        late: seen.late.milliseconds(),
        p99_by_second: seen
            .latency_by_second
            .iter()
            .map(|times| times.milliseconds().p99)
            .collect(),
        reconnects: seen.reconnects,
        lost: seen.lost,
        lost_because: seen.lost_because.clone(),
    }
}

/// The most attempts for a run in which the disk was late.
const ATTEMPTS: u32 = 3;
const UNMOUNT_ATTEMPTS: u32 = 20;
const UNMOUNT_PAUSE: Duration = Duration::from_millis(100);
/// The servers' memory: less than the disk holds.
const MEMORY_BYTES: u64 = 1 << 30;
/// A hot request without a response after this time is lost.
const PATIENCE: Duration = Duration::from_secs(30);
/// Hot fetches per second.
pub const HOT_RATE: u32 = 900;
const HOT_CONNECTIONS: u16 = 64;
/// Connections of the client that fetches as much as it can get.
pub const GREEDY_CONNECTIONS: u16 = 64;
const GREEDY_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 2, 1);
const RANGE_BYTES: u64 = 1 << 20;
/// The beginning of the paths of all small files, and of no others.
const ACCELERATED: &str = "/s";
/// The article's `max-pool-size`.
const ACCELERATOR_THREADS: &str = "20";
/// The seed of the simulated rotation.
const SEED: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn all(next: Next) -> Vec<Ask> {
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn every_file_is_asked_for_once_in_the_same_order_for_all() {
        let plan = Plan::tiny();
        let paths = |round| -> Vec<_> {
            let asks = all(each_once(Files::Small, &plan, round)).into_iter();
            asks.map(|ask| ask.file.path).collect()
        };
        let (first, second) = (paths(0), paths(1));
        assert_eq!(first, paths(0));
        assert_ne!(first, second);
        let mut sorted = first.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), 400);
        assert_ne!(first, sorted);
        assert!(sorted.iter().all(|path| path.starts_with(ACCELERATED)));
    }

    #[test]
    fn ranges_are_asked_for_once_and_end_within_their_file() {
        let plan = Plan::tiny();
        let asks = all(ranges(&plan, 0));
        assert_eq!(asks.len(), 2 * 9);
        let ends = |ask: &Ask| ask.range.map(|(offset, bytes)| offset + bytes);
        assert!(asks.iter().all(|ask| ends(ask).unwrap() <= ask.file.bytes));
    }

    #[test]
    fn hot_files_never_end() {
        let plan = Plan::tiny();
        let mut next = hot(&plan);
        for n in 0..10 {
            assert_eq!(next().unwrap().file.path, plan.hot(n % 4));
        }
        assert!(!plan.hot(0).starts_with(ACCELERATED));
        assert!(!plan.large(0).starts_with(ACCELERATED));
    }
}
