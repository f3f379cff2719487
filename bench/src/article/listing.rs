//! The system calls of one request, in order and with times, as in the article's listings.
//!
//! The server (or the PHP process behind it) first answers a few requests. Then strace stops it at every
//! system call while it answers one more. The listing shows the calls from that request until a moment after
//! its response. The times include strace's overhead, so they are only for comparison with each other.

use crate::backend::{Cgi, Kind};
use crate::cli::Options;
use crate::interrupt;
use crate::load::{Answer, Browser};
use crate::peers::Chosen;
use crate::peers::process::Process;
use crate::stage::{Place, Stage};
use crate::syscalls::Tracing;
use crate::workload::{Reuse, Service, Suite, Workload, choose, files};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// All listings: each server's own calls, then those of PHP behind the first server with persistent
/// connections to it.
pub fn all(options: &Options, servers: &[Chosen]) -> Result<String, String> {
    let place = Place::new(options.placement, options.petrel.as_deref())
        .map_err(|error| format!("cannot prepare: {error}"))?;
    let workloads = choose(Suite::Article, &[])?;
    files::make(&place.root, &workloads).map_err(|error| format!("cannot make files: {error}"))?;
    let mut out = String::from("\nThe system calls of one request, with times under strace\n");
    for scene in scenes(servers, &workloads) {
        if interrupt::asked() {
            return Err("interrupted".to_owned());
        }
        let shown = scene
            .listing(&place)
            .unwrap_or_else(|error| format!("  {error}\n"));
        let _infallible = write!(out, "\n{}\n{shown}", scene.title);
    }
    Ok(out)
}

/// One listing to be made.
struct Scene<'a> {
    title: String,
    server: &'a Chosen,
    workload: Workload,
    side: Side,
}

/// The process whose calls are listed.
#[derive(Clone, Copy)]
enum Side {
    Server,
    Backend,
}

fn scenes<'a>(servers: &'a [Chosen], workloads: &[&'static Workload]) -> Vec<Scene<'a>> {
    let mut scenes = Vec::new();
    let can = |server: &Chosen, workload: &Workload| server.peer.serves.contains(&workload.needs);
    let named = |name: &str| {
        workloads
            .iter()
            .copied()
            .find(|workload| workload.name == name)
    };
    for server in servers {
        for workload in OF_SERVERS.iter().copied().filter_map(named) {
            if can(server, workload) {
                scenes.push(Scene {
                    title: format!("{}: {}", server.peer.name, workload.title),
                    server,
                    workload: workload.clone(),
                    side: Side::Server,
                });
            }
        }
    }
    let keeps = |server: &&Chosen| server.peer.serves.contains(&Service::KeepFastCgi);
    let Some(server) = servers.iter().find(keeps) else {
        return scenes;
    };
    let of_php = [
        ("php-reconnect", true, true, "a connection each, OPcache"),
        ("php-kept", true, true, "FastCGI kept, OPcache"),
        ("php-kept", false, true, "FastCGI kept, no OPcache"),
        ("php-patched", true, false, "patched, FastCGI kept, OPcache"),
        (
            "php-patched",
            false,
            false,
            "patched, FastCGI kept, no OPcache",
        ),
    ];
    for (name, opcache, shebang, words) in of_php {
        if let Some(workload) = named(name) {
            let backend = Some(Kind::PhpCgi(Cgi { opcache, shebang }));
            scenes.push(Scene {
                title: format!("php-cgi behind {}: {words}", server.peer.name),
                server,
                workload: Workload {
                    backend,
                    ..workload.clone()
                },
                side: Side::Backend,
            });
        }
    }
    if let Some(workload) = named("lua-fastcgi") {
        scenes.push(Scene {
            title: format!("fcgi-magnet behind {}", server.peer.name),
            server,
            workload: workload.clone(),
            side: Side::Backend,
        });
    }
    scenes
}

/// Workloads for which the servers' own calls are listed.
const OF_SERVERS: [&str; 5] = [
    "php-close",
    "php-reconnect",
    "php-kept",
    "in-core",
    "cached",
];

/// The calls of a server for one request of a workload, in order, with arguments and results.
pub fn calls(place: &Place, server: &Chosen, workload: &Workload) -> Result<Vec<String>, String> {
    let scene = Scene {
        title: String::new(),
        server,
        workload: workload.clone(),
        side: Side::Server,
    };
    let calls = scene.calls(place)?;
    Ok(calls.into_iter().map(|call| call.what).collect())
}

impl Scene<'_> {
    fn listing(&self, place: &Place) -> Result<String, String> {
        self.calls(place).map(|calls| show(&calls))
    }

    fn calls(&self, place: &Place) -> Result<Vec<Call>, String> {
        let stage = Stage::new(place, self.server, &self.workload)?;
        let path = &self.workload.paths()[0];
        let mut browser = Browser::new(stage.served.port, PATIENCE);
        let mut ask = || {
            let answer = browser.get(path).map_err(|error| error.to_string())?;
            if self.workload.reuse == Reuse::Close {
                browser.close();
            }
            std::thread::sleep(PAUSE);
            Ok::<Answer, String>(answer)
        };
        for _ in 0..WARM_UP {
            ask()?;
        }
        let tracing = Tracing::start(&self.traced(&stage), stage.served.directory.path())?;
        // The first request under strace is still affected by the attaching.
        ask()?;
        let answer = ask()?;
        let text = tracing.finish()?;
        if answer.status != self.workload.status {
            return Err(format!("status {}", answer.status));
        }
        Ok(calls_of(&text, &answer))
    }

    fn traced(&self, stage: &Stage) -> Vec<Process> {
        match (self.side, &stage.backend) {
            (Side::Backend, Some(backend)) => backend.running.processes(),
            _ => stage.served.server.processes(),
        }
    }
}

/// One system call.
#[derive(Debug, PartialEq)]
struct Call {
    /// Seconds after the epoch.
    at: f64,
    /// `read(8, "GET"..., 4096) = 78`
    what: String,
}

/// The calls of the request: from its sending until a moment after its response. A call that began earlier,
/// such as the wait for the request, is not included.
fn calls_of(text: &str, answer: &Answer) -> Vec<Call> {
    let from = seconds(answer.began);
    let to = from + answer.took.as_secs_f64() + AFTERWARDS.as_secs_f64();
    let mut calls = parse(text);
    calls.retain(|call| (from..to).contains(&call.at));
    calls
}

/// Parses lines such as `1234 1163519723.242903 read(8, ...) = 78`. A call that is interrupted by another
/// process's call takes two lines.
fn parse(text: &str) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    let mut unfinished: HashMap<&str, usize> = HashMap::new();
    for line in text.lines() {
        let Some((process, at, what)) = fields(line) else {
            continue;
        };
        if let Some((_, end)) = what.split_once(" resumed>") {
            if let Some(call) = unfinished.remove(process).and_then(|n| calls.get_mut(n)) {
                call.what.push_str(end);
            }
        } else if what.starts_with(|c: char| c.is_ascii_lowercase()) {
            let begun = what.strip_suffix("<unfinished ...>");
            if begun.is_some() {
                unfinished.insert(process, calls.len());
            }
            let what = begun.unwrap_or(what).to_owned();
            calls.push(Call { at, what });
        }
    }
    calls
}

/// Splits a line into process (missing if only one is traced), time and call.
fn fields(line: &str) -> Option<(&str, f64, &str)> {
    let (first, rest) = line.split_once(' ')?;
    let (process, time, what) = if first.contains('.') {
        ("", first, rest)
    } else {
        let (time, what) = rest.trim_start().split_once(' ')?;
        (first, time, what)
    };
    Some((process, time.parse().ok()?, what.trim()))
}

/// Formats calls with the seconds of the time of day, as in the article, and the time since the previous
/// call. Of several calls of the same name in a row only the first is shown.
fn show(calls: &[Call]) -> String {
    let mut out = String::new();
    let mut before = calls.first().map_or(0.0, |call| call.at);
    let name = |call: &Call| call.what.split('(').next().map(str::to_owned);
    for run in calls.chunk_by(|one, other| name(one) == name(other)) {
        let shown = if run.len() < RUN_MIN { run } else { &run[..1] };
        for Call { at, what } in shown {
            let (gap, times) = ((at - before) * 1e3, run.len() - shown.len() + 1);
            let times = if times > 1 {
                format!(" ×{times}")
            } else {
                String::new()
            };
            let what = shorten(what);
            let _infallible =
                writeln!(out, "  ...:{:09.6}  +{gap:.3} ms  {what}{times}", at % 60.0);
            before = *at;
        }
        before = run.last().map_or(before, |last| last.at);
    }
    let all = calls.last().map_or(0.0, |last| last.at - calls[0].at) * 1e3;
    let _infallible = writeln!(out, "  {} calls, {all:.3} ms", calls.len());
    out
}

/// Shortens the arguments of a call, and keeps its result.
fn shorten(what: &str) -> String {
    let (call, result) = match what.rfind(" = ") {
        Some(at) => (what[..at].trim_end(), &what[at..]),
        None => (what.trim_end_matches("<detached ...>").trim_end(), " ..."),
    };
    match call.char_indices().nth(CALL_CHARACTERS_MAX) {
        Some((end, _)) => format!("{}...){result}", &call[..end]),
        None => format!("{call}{result}"),
    }
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0.0, |time| time.as_secs_f64())
}

/// How many requests precede the one that is listed.
const WARM_UP: u32 = 20;
/// The pause between two requests, so that their calls are not mixed up.
const PAUSE: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(10);
/// This many calls of the same name in a row are shown as one.
const RUN_MIN: usize = 3;
/// The most characters of a call that are shown.
const CALL_CHARACTERS_MAX: usize = 60;
/// Calls of a server or PHP until this long after the last byte of a response belong to it.
const AFTERWARDS: Duration = Duration::from_millis(15);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_with_and_without_a_process() {
        let whats = |text: &str| {
            parse(text)
                .into_iter()
                .map(|call| call.what)
                .collect::<Vec<_>>()
        };
        assert_eq!(whats("3.5 close(4) = 0"), ["close(4) = 0"]);
        assert_eq!(
            whats("12 3.5 --- SIGCHLD ---\n\n12 3.6 read(8) = 0"),
            ["read(8) = 0"]
        );
        assert_eq!(parse("12  3.5 close(4) = 0")[0].at, 3.5);
    }

    #[test]
    fn a_call_in_two_lines_is_one() {
        let text = "1 3.5 accept4(3,  <unfinished ...>\n2 3.6 read(9) = 1\n\
                    1 3.7 <... accept4 resumed>NULL) = 9\n";
        let calls = parse(text);
        assert_eq!(calls.len(), 2);
        assert_eq!(calls[0].what, "accept4(3,  NULL) = 9");
    }

    #[test]
    fn long_arguments_are_cut_and_repeated_calls_told_once() {
        let call = |what: &str| Call {
            at: 3.5,
            what: what.to_owned(),
        };
        let long = format!("read(8, {}) = 90", "x".repeat(90));
        assert!(shorten(&long).ends_with("x...) = 90") && shorten(&long).len() < 80);
        assert_eq!(
            shorten("epoll_wait(11,  <detached ...>"),
            "epoll_wait(11, ..."
        );
        let calls = ["a(1) = 0", "b(1) = 0", "b(2) = 0", "b(3) = 0"].map(call);
        let shown = show(&calls);
        assert!(
            shown.contains("b(1) = 0 ×3") && !shown.contains("b(2)"),
            "{shown}"
        );
        assert!(shown.contains("4 calls"));
    }

    #[test]
    fn only_the_requests_own_calls_are_taken() {
        let answer = Answer {
            status: 200,
            began: UNIX_EPOCH + Duration::from_secs(100),
            took: Duration::from_millis(1),
        };
        let text = "1 99.9 epoll_wait(3) = 1\n1 100.0005 read(8) = 1\n1 100.002 close(8) = 0\n\
                    1 100.5 epoll_wait(3) = 0\n";
        let calls = calls_of(text, &answer);
        assert_eq!(calls.len(), 2);
        assert!(show(&calls).contains("2 calls, 1.500 ms"));
    }
}
