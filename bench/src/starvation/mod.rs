//! A php-fpm with two children, behind two servers of the same kind, with many clients.
//!
//! Persistent connections occupy its children, the two servers know nothing of each other, and each child
//! ends after 50 requests. A server that keeps connections carelessly makes the other's requests wait for
//! ever, or answers 502. After that, a fast client beside 64 that send and 64 that read slowly.

mod slow;

use crate::backend::{Address, Backend, Pool};
use crate::cli::StarvationOptions;
use crate::load::Browser;
use crate::peers::{self, Chosen};
use crate::report::aligned;
use crate::stage::{Place, Served};
use crate::syscalls::Counting;
use crate::workload::{SLEEP, files};
use crate::{install, interrupt, machine, told};
use serde::Serialize;
use slow::{Slow, Way};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Measures, prints and writes.
pub fn run(options: &StarvationOptions) -> Result<(), String> {
    interrupt::watch().map_err(|error| format!("cannot watch for signals: {error}"))?;
    let out = options.out.join("starvation");
    std::fs::create_dir_all(&out)
        .map_err(|error| format!("cannot make {}: {error}", out.display()))?;
    let services = [SLEEP.needs];
    if options.install {
        let peers = peers::able(&options.servers, &services)?;
        install::all(&peers, SLEEP.backend.as_slice(), SLEEP.suite.tools())?;
    }
    let servers = peers::choose(&options.servers, options.petrel.as_deref(), &services)?;
    let machine = machine::facts(&servers);
    println!("{machine}");
    let place = Place::new(options.placement, options.petrel.as_deref())
        .map_err(|error| format!("cannot prepare: {error}"))?;
    files::make_scripts(&place.root).map_err(|error| format!("cannot make files: {error}"))?;
    let length = options.run_length();
    let mut found = Vec::new();
    for server in &servers {
        let test = Test {
            place: &place,
            server,
            length,
        };
        found.push(test.run());
        if interrupt::asked() {
            return Err("interrupted".to_owned());
        }
    }
    let text = text(&found);
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
    starvation: Result<Counts, String>,
    /// A fast client alone.
    alone: Result<Counts, String>,
    /// The same beside slow clients.
    beside_slow: Result<Counts, String>,
}

/// What a number of clients measured.
#[derive(Debug, Default, Serialize)]
struct Counts {
    /// Responses by status; 0: none within [`PATIENCE`], or the connection broke.
    statuses: BTreeMap<u16, u64>,
    /// Latencies, ms.
    median_ms: f64,
    /// 99 of 100 are shorter.
    p99_ms: f64,
    /// The longest.
    slowest_ms: f64,
    /// Backend connections opened per request, by system calls; `None` if not counted.
    connects: Option<f64>,
}

struct Test<'a> {
    place: &'a Place,
    server: &'a Chosen,
    length: Duration,
}

impl Test<'_> {
    fn run(&self) -> Found {
        let name = self.server.peer.name;
        eprintln!("{name}: two servers, {CLIENTS} clients, {CHILDREN} children");
        let starvation = self.starvation();
        eprintln!("{name}: one fast client");
        let alone = self.fast_client(&[]);
        eprintln!("{name}: one fast client beside slow ones");
        let beside_slow = self.fast_client(&[Way::Upload, Way::Download]);
        Found {
            server: name,
            starvation,
            alone,
            beside_slow,
        }
    }

    /// Two servers, with half of the clients each.
    fn starvation(&self) -> Result<Counts, String> {
        let directory = self.place.directory()?;
        let backend = self.php(directory.path())?;
        let serve = || Served::new(self.place, self.server, &SLEEP, Some(&backend.address));
        let servers = [serve()?, serve()?];
        let processes = servers.iter().flat_map(|served| served.server.processes());
        let counting = Counting::start(&processes.collect::<Vec<_>>(), directory.path());
        let ports: Vec<_> = servers.iter().map(|served| served.port).collect();
        let path = &SLEEP.paths()[0];
        let seen: Vec<Seen> = std::thread::scope(|scope| {
            let clients = (0..CLIENTS).map(|n| {
                let port = ports[n % ports.len()];
                scope.spawn(move || ask(port, path, self.length, Duration::ZERO))
            });
            let clients: Vec<_> = clients.collect();
            clients
                .into_iter()
                .flat_map(|client| client.join().unwrap_or_default())
                .collect()
        });
        let calls = counting.and_then(Counting::finish).ok();
        let connects = calls.map(|calls| calls.get("connect").copied().unwrap_or(0));
        let requests = seen.len().max(1) as f64;
        let mut counts = Counts::of(seen);
        counts.connects = connects.map(|connects| connects as f64 / requests);
        Ok(counts)
    }

    /// One server, one client that sends a request now and then, and 64 slow ones of each kind.
    fn fast_client(&self, beside: &[Way]) -> Result<Counts, String> {
        let directory = self.place.directory()?;
        let backend = self.php(directory.path())?;
        let served = Served::new(self.place, self.server, &SLEEP, Some(&backend.address))?;
        let ways = beside.iter().flat_map(|way| [*way; CLIENTS]);
        let slow = Slow::start(served.port, ways.collect()).map_err(|error| error.to_string())?;
        std::thread::sleep(HEAD_START);
        let seen = ask(served.port, &SLEEP.paths()[0], self.length, PAUSE);
        slow.stop()?;
        Ok(Counts::of(seen))
    }

    fn php(&self, directory: &std::path::Path) -> Result<Backend, String> {
        let pool = Pool {
            children: CHILDREN,
            requests_max: REQUESTS_PER_CHILD,
            ..Pool::default()
        };
        let address = Address::Unix(directory.join("backend.sock"));
        self.place
            .start(|| Backend::php_fpm(&pool, address, directory))
    }
}

/// Status (0 for none) and latency of one request.
type Seen = (u16, Duration);

/// One client: sends requests again and again, and accepts any response.
fn ask(port: u16, path: &str, length: Duration, pause: Duration) -> Vec<Seen> {
    let (started, mut browser) = (Instant::now(), Browser::new(port, PATIENCE));
    let mut seen = Vec::new();
    while started.elapsed() < length && !interrupt::asked() {
        let asked = Instant::now();
        match browser.get(path) {
            Ok(answer) => seen.push((answer.status, answer.took)),
            Err(_) => {
                seen.push((0, asked.elapsed()));
                // Without a pause, a server that is gone would get a million attempts.
                std::thread::sleep(PAUSE);
            }
        }
        std::thread::sleep(pause);
    }
    seen
}

impl Counts {
    fn of(mut seen: Vec<Seen>) -> Self {
        let mut statuses = BTreeMap::new();
        for (status, _) in &seen {
            *statuses.entry(*status).or_default() += 1;
        }
        seen.sort_by_key(|(_, took)| *took);
        let quantile = |share: f64| {
            let place = ((seen.len() as f64 * share) as usize).min(seen.len().saturating_sub(1));
            seen.get(place)
                .map_or(0.0, |(_, took)| took.as_secs_f64() * 1e3)
        };
        Self {
            statuses,
            median_ms: quantile(0.5),
            p99_ms: quantile(0.99),
            slowest_ms: quantile(1.0),
            connects: None,
        }
    }

    fn cells(&self) -> Vec<String> {
        let statuses = self.statuses.iter().map(|(status, count)| match status {
            0 => format!("{count} none"),
            _ => format!("{count} × {status}"),
        });
        let mut cells = vec![statuses.collect::<Vec<_>>().join(", ")];
        let times = [self.median_ms, self.p99_ms, self.slowest_ms];
        cells.extend(times.map(|time| format!("{time:.1}")));
        cells.push(
            self.connects
                .map_or_else(String::new, |rate| format!("{rate:.3}")),
        );
        cells
    }
}

fn text(found: &[Found]) -> String {
    let row = |name: String, counts: &Result<Counts, String>| {
        let mut row = vec![name];
        row.extend(match counts {
            Ok(counts) => counts.cells(),
            Err(error) => [error.as_str(), "", "", "", ""].map(str::to_owned).to_vec(),
        });
        row
    };
    let head = [
        "",
        "answers",
        "median ms",
        "p99",
        "slowest",
        "connects a request",
    ];
    let head = head.map(str::to_owned).to_vec();
    let mut starved = vec![head.clone()];
    let mut slow = vec![head];
    for one in found {
        starved.push(row(format!("two {}", one.server), &one.starvation));
        slow.push(row(format!("{}, alone", one.server), &one.alone));
        slow.push(row(
            format!("{}, beside them", one.server),
            &one.beside_slow,
        ));
    }
    format!(
        "\nphp-fpm with {CHILDREN} children of {REQUESTS_PER_CHILD} requests each, {CLIENTS} clients, a script of 5 ms\n{}\n\
         One fast client beside {CLIENTS} slow uploaders and {CLIENTS} slow readers, the same php-fpm\n{}",
        aligned(&starved),
        aligned(&slow)
    )
}

const CHILDREN: u32 = 2;
const REQUESTS_PER_CHILD: u32 = 50;
const CLIENTS: usize = 64;
/// How long a client waits for a response.
const PATIENCE: Duration = Duration::from_secs(20);
/// The pause of the fast client between two requests.
const PAUSE: Duration = Duration::from_millis(10);
/// Time for the slow clients to start.
const HEAD_START: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_saw_is_counted() {
        let ms = Duration::from_millis;
        let counts = Counts::of(vec![(200, ms(5)), (502, ms(1)), (200, ms(9)), (0, ms(2))]);
        assert_eq!(
            counts.statuses,
            BTreeMap::from([(0, 1), (200, 2), (502, 1)])
        );
        assert_eq!((counts.median_ms, counts.slowest_ms), (5.0, 9.0));
        assert_eq!(counts.cells()[0], "1 none, 2 × 200, 1 × 502");
    }

    #[test]
    fn no_answer_at_all_is_no_panic() {
        assert_eq!(Counts::of(Vec::new()).slowest_ms, 0.0);
    }
}
