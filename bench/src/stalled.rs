//! Clients that request a large file, or a large response of a backend, and do not read it: what they cost
//! the server in their first second, and how much another client is affected.

use crate::backend::Address;
use crate::cli::StalledOptions;
use crate::load::Browser;
use crate::measure::Snapshot;
use crate::peers::{self, Chosen};
use crate::report::{aligned, number};
use crate::stage::{Place, Served};
use crate::workload::{BESIDE_REPLIES, BESIDE_WAITING, Workload};
use crate::{install, interrupt, machine, told};
use serde::Serialize;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Measures, prints and writes.
pub fn run(options: &StalledOptions) -> Result<(), String> {
    interrupt::watch().map_err(|error| format!("cannot watch for signals: {error}"))?;
    let out = options.out.join("stalled");
    std::fs::create_dir_all(&out)
        .map_err(|error| format!("cannot make {}: {error}", out.display()))?;
    let workload = match options.backend {
        true => &BESIDE_REPLIES,
        false => &BESIDE_WAITING,
    };
    let services = [workload.needs];
    if options.install {
        install::all(&peers::able(&options.servers, &services)?, &[], &[])?;
    }
    let servers = peers::choose(&options.servers, options.petrel.as_deref(), &services)?;
    let machine = machine::facts(&servers);
    println!("{machine}");
    let place = Place::new(options.placement, options.petrel.as_deref())
        .map_err(|error| format!("cannot prepare: {error}"))?;
    // It was just written, so it is in the page cache.
    std::fs::write(place.root.join("large.bin"), vec![b'x'; LARGE_BYTES])
        .and_then(|()| std::fs::write(place.root.join("small.bin"), [b'x'; 1000]))
        .map_err(|error| format!("cannot make files: {error}"))?;
    let large = match options.backend {
        true => {
            let port = start_backend().map_err(|error| format!("cannot start: {error}"))?;
            Large {
                workload,
                path: "/http/large",
                backend: Some(Address::Tcp(port)),
            }
        }
        false => Large {
            workload,
            path: "/large.bin",
            backend: None,
        },
    };
    let named = |server: &Chosen| (server.peer.name, Vec::new());
    let mut found: Vec<(&str, Vec<Seen>)> = servers.iter().map(named).collect();
    for round in 0..options.rounds() {
        eprintln!("round {} of {}", round + 1, options.rounds());
        for (server, (name, runs)) in servers.iter().zip(&mut found) {
            let seen = measure(&place, server, &large, options.clients);
            runs.push(seen.map_err(|error| format!("{name}: {error}"))?);
            if interrupt::asked() {
                return Err("interrupted".to_owned());
            }
        }
    }
    let text = text(&found, options.clients);
    print!("{text}");
    let json = serde_json::to_string_pretty(&found).map_err(|error| error.to_string())?;
    let written = std::fs::write(out.join("report.txt"), format!("{machine}\n{text}"))
        .and_then(|()| std::fs::write(out.join("results.json"), json + "\n"));
    told(written, &out)
}

/// What one run has measured.
#[derive(Clone, Copy, Debug, Serialize)]
struct Seen {
    /// CPU time of the server in the first second.
    cpu_ms: f64,
    /// The longest request of the other client, including the connect.
    slowest_ms: f64,
    /// Half of them were shorter.
    median_ms: f64,
}

/// What the clients that do not read have requested.
struct Large {
    workload: &'static Workload,
    path: &'static str,
    backend: Option<Address>,
}

/// Starts a backend that answers each request at once with [`LARGE_BYTES`], and ends with this process.
/// Returns its port.
fn start_backend() -> io::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let reply = |mut stream: TcpStream| -> io::Result<()> {
        let mut request = [0; 4096];
        if stream.read(&mut request)? == 0 {
            return Ok(());
        }
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {LARGE_BYTES}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes())?;
        let piece = [b'x'; 50_000];
        (0..LARGE_BYTES / piece.len()).try_for_each(|_| stream.write_all(&piece))
    };
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A server that ends closes its connections.
            std::thread::spawn(move || drop(reply(stream)));
        }
    });
    Ok(port)
}

fn measure(place: &Place, server: &Chosen, large: &Large, clients: u16) -> Result<Seen, String> {
    let told = |error: io::Error| error.to_string();
    let served = Served::new(place, server, large.workload, large.backend.as_ref())?;
    let port = served.port;
    Browser::new(port, PATIENCE)
        .get("/small.bin")
        .map_err(told)?;
    let before = Snapshot::take(&served.server);
    let begin = Instant::now();
    let mut took = Vec::new();
    let stalled = std::thread::scope(|scope| {
        let stalled = scope.spawn(|| (0..clients).map(|_| ask(port, large.path)).collect());
        while begin.elapsed() < LENGTH {
            took.push(Browser::new(port, PATIENCE).get("/small.bin")?.took);
            std::thread::sleep(PAUSE);
        }
        let stalled: io::Result<Vec<TcpStream>> = stalled.join().unwrap_or_else(|_| Ok(Vec::new()));
        stalled
    });
    let used = before.used_until(&Snapshot::take(&served.server));
    // The clients stay connected until here.
    drop(stalled.map_err(told)?);
    took.sort_unstable();
    let ms = |place: usize| took.get(place).map_or(0.0, |one| one.as_secs_f64() * 1e3);
    Ok(Seen {
        cpu_ms: used.total.as_secs_f64() * 1e3,
        slowest_ms: ms(took.len().saturating_sub(1)),
        median_ms: ms(took.len() / 2),
    })
}

/// A client that sends a request and does not read.
fn ask(port: u16, path: &str) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    Ok(stream)
}

fn text(found: &[(&str, Vec<Seen>)], clients: u16) -> String {
    let head = ["", "CPU ms", "another client: slowest ms", "median"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for (name, runs) in found {
        let median = |of: fn(&Seen) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            number(values.get(values.len() / 2).copied().unwrap_or(0.0))
        };
        rows.push(vec![
            (*name).to_owned(),
            median(|one| one.cpu_ms),
            median(|one| one.slowest_ms),
            median(|one| one.median_ms),
        ]);
    }
    format!(
        "\n{clients} clients that ask for {} MB and do not read, the first second; medians of all rounds\n{}",
        LARGE_BYTES / 1_000_000,
        aligned(&rows)
    )
}

const LARGE_BYTES: usize = 50_000_000;
const LENGTH: Duration = Duration::from_secs(1);
/// How long the other client waits for a response.
const PATIENCE: Duration = Duration::from_secs(20);
/// The pause of the other client between two requests.
const PAUSE: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_the_rounds_are_told() {
        let seen = |cpu_ms| Seen {
            cpu_ms,
            slowest_ms: 7.0,
            median_ms: 0.5,
        };
        let found = [("petrel", vec![seen(90.0), seen(50.0), seen(60.0)])];
        let text = text(&found, 300);
        let row = text.lines().find(|line| line.contains("petrel"));
        let row: Vec<_> = row.unwrap().split_whitespace().collect();
        assert_eq!(row[..3], ["petrel", "60.0", "7.00"], "{text}");
    }
}
