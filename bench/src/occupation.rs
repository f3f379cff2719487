//! Large responses from PHP: how soon is the PHP worker free again?
//!
//! First 512 KiB through PHP's output and through a temporary file, as a comparison like any other. Then 1
//! GiB for a client that reads slowly: the time until the worker has finished, which is all that other
//! clients care about.

use crate::cli::Options;
use crate::interrupt;
use crate::peers::Chosen;
use crate::report::{self, aligned, connections_title};
use crate::results::{Cell, Results, SystemCalls};
use crate::stage::{Place, Stage};
use crate::workload::{Suite, Workload, choose, files};
use crate::{Compared, measure_all, plot, told};
use nix::sys::socket::sockopt::RcvBuf;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

/// Measures, prints and writes.
pub fn run(options: &Options) -> Result<(), String> {
    let compared = measure_all(options, Suite::Tempfile)?;
    let reads = reads(&compared.results);
    let large = large_answers(options, &compared.servers)?;
    println!("{reads}{large}");
    let Compared { results, out, .. } = compared;
    let text = format!("{}{reads}{large}", report::text(&results));
    let written = report::write(&results, &text, &out)
        .and_then(|()| plot::write(&results, &out))
        .and_then(|()| plot::write_rates(&results, &out));
    told(written, &out)
}

/// How often a server reads for one reply: inline each piece of PHP's output, with a temporary file only
/// PHP's head, and perhaps the file.
fn reads(results: &Results) -> String {
    let head = [
        "",
        "inline: reads",
        "all calls",
        "send-tempfile: reads",
        "all calls",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let connections = results.connections.first().copied().unwrap_or_default();
    for server in &results.servers {
        let mut row = vec![(*server).to_owned()];
        for workload in ["inline", "send-tempfile"] {
            let cell = results.cell(server, workload, connections);
            let calls = cell.and_then(Cell::summary).map(|one| &one.system_calls);
            row.extend(match calls.filter(|calls| calls.tracer.is_some()) {
                Some(calls) => [reads_of(calls), calls.total].map(|rate| format!("{rate:.1}")),
                None => ["–", "–"].map(str::to_owned),
            });
        }
        rows.push(row);
    }
    format!(
        "\nSystem calls of the server for a reply of 512 KiB, {}: reads are recv, read and splice; one\n\
         of them reads the client's request\n{}",
        connections_title(connections),
        aligned(&rows)
    )
}

fn reads_of(calls: &SystemCalls) -> f64 {
    let is_read = |name: &str| READS.iter().any(|prefix| name.starts_with(prefix));
    let rates = calls.by_name.iter();
    rates
        .filter(|(name, _)| is_read(name))
        .map(|(_, rate)| rate)
        .sum()
}

/// The beginnings of the names of calls that read.
const READS: [&str; 4] = ["read", "recv", "pread", "splice"];

/// One line per server and way.
fn large_answers(options: &Options, servers: &[Chosen]) -> Result<String, String> {
    let place = Place::new(options.placement, options.petrel.as_deref())
        .map_err(|error| format!("cannot prepare: {error}"))?;
    let workloads = choose(Suite::Tempfile, &[])?;
    files::make(&place.root, &workloads).map_err(|error| format!("cannot make files: {error}"))?;
    let mut rows = vec![
        ["", "worker free after", "client had received"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for workload in workloads {
        for server in servers
            .iter()
            .filter(|one| one.peer.serves.contains(&workload.needs))
        {
            if interrupt::asked() {
                return Err("interrupted".to_owned());
            }
            let (free, received) = match time_until_free(&place, server, workload) {
                Ok((Some(free), received)) => (format!("{:.2} s", free.as_secs_f64()), received),
                Ok((None, received)) => (format!("not in {} s", PATIENCE.as_secs()), received),
                Err(error) => (error, 0),
            };
            let name = format!("{}, {}", server.peer.name, workload.name);
            rows.push(vec![name, free, format!("{} MiB", received >> 20)]);
        }
    }
    Ok(format!(
        "\n1 GiB from PHP for a client that reads 1.6 MB a second\n{}",
        aligned(&rows)
    ))
}

/// How long the worker was occupied, if it was free in time, and how much the client had received by then.
fn time_until_free(
    place: &Place,
    server: &Chosen,
    workload: &Workload,
) -> Result<(Option<Duration>, u64), String> {
    let stage = Stage::new(place, server, workload)?;
    let path = format!("{}?blocks={BLOCKS}", workload.paths()[0]);
    let backend = stage.backend.as_ref().ok_or("no backend")?;
    let mut client =
        SlowReader::ask(stage.served.port, &path).map_err(|error| error.to_string())?;
    let started = Instant::now();
    while started.elapsed() < PATIENCE && !interrupt::asked() {
        client
            .read_some()
            .map_err(|error| format!("client: {error}"))?;
        if backend
            .occupied()
            .is_some_and(|occupied| occupied > Duration::ZERO)
        {
            return Ok((Some(started.elapsed()), client.received));
        }
        std::thread::sleep(READ_INTERVAL);
    }
    Ok((None, client.received))
}

/// A client with a small receive buffer, so that the kernel does not buffer much for it.
struct SlowReader {
    stream: TcpStream,
    received: u64,
}

impl SlowReader {
    fn ask(port: u16, path: &str) -> io::Result<Self> {
        let mut stream = connect_with_small_buffer(port)?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            received: 0,
        })
    }

    fn read_some(&mut self) -> io::Result<()> {
        match self.stream.read(&mut [0; READ_BYTES]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => {
                self.received += got as u64;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Connects with a receive buffer of a few KiB, which must be set before connecting.
pub fn connect_with_small_buffer(port: u16) -> io::Result<TcpStream> {
    use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
    let flags = SocketFlags::CLOEXEC;
    let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    nix::sys::socket::setsockopt(&socket, RcvBuf, &4096)?;
    net::connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    Ok(socket.into())
}

/// Of 8 KiB each, as in the scripts: 1 GiB.
const BLOCKS: u64 = 131_072;
const READ_BYTES: usize = 16 << 10;
const READ_INTERVAL: Duration = Duration::from_millis(10);
/// A worker that is still busy after this time waits for the client.
const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_read_are_told_from_the_others() {
        let rates = [
            ("recvfrom", 1.0),
            ("readv", 32.0),
            ("sendfile", 4.0),
            ("epoll_wait", 8.0),
        ];
        let calls = SystemCalls {
            by_name: rates.map(|(name, rate)| (name.to_owned(), rate)).into(),
            ..SystemCalls::default()
        };
        assert_eq!(reads_of(&calls), 33.0);
    }
}
