//! Whether the ledger tells the truth: delays of known lengths, while 99 other requests are under way.
//!
//! What makes a delay ([`inject`]) also measures it, because a sleep or a loop takes longer on a busy machine.
//! Petrel has one worker here, so that a script delays the requests behind it. The stages are read from the
//! access log.

mod inject;

use crate::backend::Address;
use crate::cli::LedgerOptions;
use crate::load::Browser;
use crate::peers::process::Running;
use crate::peers::{self, Chosen};
use crate::report::{aligned, number};
use crate::stage::Place;
use crate::workload::Service;
use crate::{interrupt, machine, told};
use inject::{Delays, INJECTIONS, Injection, OTHER, PATIENCE, SLOW, Site};
use serde::Serialize;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Measures, prints and writes.
pub fn run(options: &LedgerOptions) -> Result<(), String> {
    interrupt::watch().map_err(|error| format!("cannot watch for signals: {error}"))?;
    let out = options.out.join("ledger");
    std::fs::create_dir_all(&out)
        .map_err(|error| format!("cannot make {}: {error}", out.display()))?;
    let petrel = options.petrel.as_deref();
    let servers = peers::choose(&["petrel".to_owned()], petrel, &[Service::Files])?;
    let server = servers.first().ok_or("no Petrel")?;
    let machine = machine::facts(&servers);
    println!("{machine}");
    let place = Place::new(options.placement, petrel)
        .map_err(|error| format!("cannot prepare: {error}"))?;
    let delays = Delays::default();
    // It is unmounted when Petrel has ended.
    let slow = inject::mount(&place.root.join(SLOW), &delays);
    if let Err(error) = &slow {
        eprintln!("petrel-bench: without stat: no FUSE file system can be mounted: {error}");
    }
    let possible = |one: &&Injection| slow.is_ok() || one.stage != "stat";
    let row = |injection| Row {
        injection,
        repeats: Vec::new(),
    };
    let mut rows: Vec<_> = INJECTIONS.iter().filter(possible).map(row).collect();
    let directory = place.directory()?;
    let (site, _server) = start(&place, server, directory.path(), delays)?;
    measure(&site, &mut rows, options.rounds())?;
    let text = text(&rows);
    print!("{text}");
    let json = serde_json::to_string_pretty(&rows).map_err(|error| error.to_string())?;
    let written = std::fs::write(out.join("report.txt"), format!("{machine}\n{text}"))
        .and_then(|()| std::fs::write(out.join("results.json"), json + "\n"));
    told(written, &out)
}

/// A kind of delay, and what came of it.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    injection: &'static Injection,
    repeats: Vec<Repeat>,
}

/// One delay.
#[derive(Serialize)]
struct Repeat {
    injected_ms: f64,
    ledger_ms: f64,
    /// Other requests that were under way when it began.
    others: u64,
    /// The line of the access log.
    line: String,
}

/// Starts a Petrel with one worker and an access log.
fn start(
    place: &Place,
    server: &Chosen,
    directory: &Path,
    delays: Delays,
) -> Result<(Site, Running), String> {
    let told = |error: std::io::Error| format!("cannot prepare: {error}");
    let port = peers::free_port().map_err(told)?;
    let backend = inject::start_backend(&delays).map_err(told)?;
    inject::make_files(&place.root, directory).map_err(told)?;
    let file = directory.join("petrel.conf");
    let text = configuration(&place.root, directory, port, backend);
    std::fs::write(&file, text).map_err(told)?;
    let mut command = Command::new(&server.path);
    command.arg("-D").arg("-f").arg(file).stdin(Stdio::null());
    let output = directory.join("output.log");
    let launch = || Running::launch(&mut command, &output, &Address::Tcp(port));
    let log = directory.join("access.log");
    Ok((Site { port, log, delays }, place.start(launch)?))
}

/// Makes each delay once in each round, beside the other requests.
fn measure(site: &Site, rows: &mut [Row], rounds: u32) -> Result<(), String> {
    let others = Others::default();
    std::thread::scope(|scope| {
        for _ in 0..OTHERS {
            scope.spawn(|| others.ask(site.port));
        }
        let done: Result<(), String> = (0..rounds).try_for_each(|round| {
            eprintln!("round {} of {rounds}", round + 1);
            rows.iter_mut().try_for_each(|row| {
                std::thread::sleep(PAUSE);
                row.repeats
                    .push(repeat(site, row.injection, &others, round)?);
                Ok(())
            })
        });
        others.stop.store(true, Ordering::Relaxed);
        done
    })?;
    match others.failed.into_inner() {
        0 => Ok(()),
        failed => Err(format!("{failed} of the other requests failed")),
    }
}

fn repeat(site: &Site, injection: &Injection, others: &Others, n: u32) -> Result<Repeat, String> {
    if interrupt::asked() {
        return Err("interrupted".to_owned());
    }
    let others = others.under_way.load(Ordering::Relaxed);
    let delayed = (injection.inject)(site, n);
    let (url, injected) = delayed.map_err(|error| format!("{}: {error}", injection.what))?;
    let line = line_of(&site.log, &url)?;
    Ok(Repeat {
        injected_ms: injected.as_secs_f64() * 1e3,
        ledger_ms: time_in(&line, injection.stage),
        others,
        line,
    })
}

/// The line of the access log about a URL. The server may write it a little later than the client has its
/// response.
fn line_of(log: &Path, url: &str) -> Result<String, String> {
    let give_up = Instant::now() + PATIENCE;
    while Instant::now() < give_up {
        let text = std::fs::read_to_string(log).map_err(|error| error.to_string())?;
        let mut lines = text.lines();
        if let Some(line) = lines.find(|line| line.split(' ').nth(1) == Some(url)) {
            return Ok(line.to_owned());
        }
        std::thread::sleep(PAUSE);
    }
    Err(format!("the access log has no line about {url}"))
}

/// Requests beside the delayed one.
#[derive(Default)]
struct Others {
    stop: AtomicBool,
    under_way: AtomicU64,
    failed: AtomicU64,
}

impl Others {
    /// One client, which always has a request under way.
    fn ask(&self, port: u16) {
        let mut browser = Browser::new(port, PATIENCE);
        while !self.stop.load(Ordering::Relaxed) {
            self.under_way.fetch_add(1, Ordering::Relaxed);
            let is_good = browser.get(OTHER).is_ok_and(|answer| answer.status == 200);
            self.under_way.fetch_sub(1, Ordering::Relaxed);
            if !is_good {
                self.failed.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(PAUSE);
            }
        }
    }
}

fn configuration(root: &Path, directory: &Path, port: u16, backend: u16) -> String {
    let (root, directory) = (root.display(), directory.display());
    format!(
        "server.document-root = \"{root}\"
server.bind = \"127.0.0.1\"
server.port = {port}
server.max-worker = 1
server.errorlog = \"{directory}/error.log\"
server.modules = ( \"mod_proxy\", \"mod_magnet\", \"mod_accesslog\" )
accesslog.format = \"%r %{{stages}}x in-kernel=%{{in-kernel}}x\"
accesslog.filename = \"{directory}/access.log\"
lua.max-run-time = 2000
proxy.server = ( \"/http\" => (( \"host\" => \"127.0.0.1\", \"port\" => {backend} )) )
$HTTP[\"url\"] =~ \"^/lua\" {{ magnet.attract-raw-url-to = ( \"{directory}/{script}\" ) }}
",
        script = inject::SCRIPT
    )
}

/// The milliseconds that a line of the access log has for a stage; 0 if the stage took no time.
fn time_in(line: &str, stage: &str) -> f64 {
    let mut fields = line
        .split([' ', ','])
        .filter_map(|field| field.split_once('='));
    let micros = fields.find(|(name, _)| *name == stage);
    micros
        .and_then(|(_, micros)| micros.parse().ok())
        .map_or(0.0, |micros: f64| micros / 1e3)
}

fn text(found: &[Row]) -> String {
    let head = "|stage|injected ms|ledger ms|difference|lowest|highest|within 5 %";
    let mut rows = vec![head.split('|').map(str::to_owned).collect::<Vec<_>>()];
    for Row { injection, repeats } in found {
        let sorted = |of: fn(&Repeat) -> f64| {
            let mut values: Vec<f64> = repeats.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let place = |values: &[f64], place: usize| values.get(place).copied().unwrap_or(f64::NAN);
        let middle = repeats.len() / 2;
        let differences = sorted(|one| (one.ledger_ms / one.injected_ms - 1.0) * 100.0);
        let mut row = vec![injection.what.to_owned(), injection.stage.to_owned()];
        let times = [sorted(|one| one.injected_ms), sorted(|one| one.ledger_ms)];
        row.extend(times.map(|times| number(place(&times, middle))));
        let places = [middle, 0, repeats.len().saturating_sub(1)];
        row.extend(places.map(|one| format!("{:+.1} %", place(&differences, one))));
        let is_met = place(&differences, middle).abs() <= PERCENT_MAX;
        row.push(if is_met { "met" } else { "MISSED" }.to_owned());
        rows.push(row);
    }
    let repeats = found.iter().flat_map(|row| &row.repeats);
    format!(
        "\nDelays and what the ledger says about them, medians; at least {} other requests were under way\n{}",
        repeats.map(|one| one.others).min().unwrap_or(0),
        aligned(&rows)
    )
}

/// How far the ledger may be from the delay.
const PERCENT_MAX: f64 = 5.0;
/// Other requests under way.
const OTHERS: usize = 99;
/// Before each delay: time for the worker to do what the one before has held up.
const PAUSE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_stage_is_read_from_a_line() {
        let line = "GET /slow/3?a=1 HTTP/1.1 open=7,stat=50123,send=71,total=50301 in-kernel=33";
        assert_eq!(time_in(line, "stat"), 50.123);
        assert_eq!(time_in(line, "in-kernel"), 0.033);
        assert_eq!(time_in(line, "lag"), 0.0);
    }

    #[test]
    fn a_difference_counts_in_both_directions() {
        let repeat = |ledger_ms| Repeat {
            injected_ms: 50.0,
            ledger_ms,
            others: 99,
            line: String::new(),
        };
        let judged = |ledgers: [f64; 3]| {
            let row = Row {
                injection: &INJECTIONS[0],
                repeats: ledgers.map(repeat).into(),
            };
            text(&[row])
                .trim_end()
                .rsplit(' ')
                .next()
                .map(str::to_owned)
        };
        assert_eq!(judged([90.0, 52.4, 50.0]).as_deref(), Some("met"));
        assert_eq!(judged([52.6, 53.0, 50.0]).as_deref(), Some("MISSED"));
        assert_eq!(judged([47.4, 40.0, 50.0]).as_deref(), Some("MISSED"));
    }
}
