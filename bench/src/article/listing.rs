//! The system calls of one request, in order and with times, as in the article's listings.
//!
//! A server (or PHP behind it) that has answered a few requests is stopped at every system call by
//! strace while it answers one more; the calls between that request and a moment after its answer
//! are the listing. Times are those under strace: what stands between two of them is for
//! comparison only.

use crate::backend::{Cgi, Kind};
use crate::cli::Options;
use crate::interrupt;
use crate::load::{Answer, Browser};
use crate::peers::Chosen;
use crate::peers::process::Process;
use crate::stage::{Place, Stage};
use crate::syscalls::Tracing;
use crate::workload::{Reuse, Service, Suite, Workload, choose, files};
use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// All listings: each server's own calls, then PHP's behind the first of them that keeps.
pub fn all(options: &Options, servers: &[Chosen]) -> Result<String, String> {
    let place = Place::new(options.placement).map_err(|error| format!("cannot prepare: {error}"))?;
    let workloads = choose(Suite::Article, &[])?;
    files::make(&place.root, &workloads).map_err(|error| format!("cannot make files: {error}"))?;
    let mut out = String::from("\nThe system calls of one request, with times under strace\n");
    for scene in scenes(servers, &workloads) {
        if interrupt::asked() {
            return Err("interrupted".to_owned());
        }
        let shown = scene.listing(&place).unwrap_or_else(|error| format!("  {error}\n"));
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

/// Whose calls are listed.
#[derive(Clone, Copy)]
enum Side {
    Server,
    Backend,
}

fn scenes<'a>(servers: &'a [Chosen], workloads: &[&'static Workload]) -> Vec<Scene<'a>> {
    let mut scenes = Vec::new();
    let can = |server: &Chosen, workload: &Workload| server.peer.serves.contains(&workload.needs);
    let named = |name: &str| workloads.iter().copied().find(|workload| workload.name == name);
    for server in servers {
        for workload in ["php-close", "php", "php-kept"].into_iter().filter_map(named) {
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
        ("php", true, true, "a connection each, OPcache"),
        ("php-kept", true, true, "FastCGI kept, OPcache"),
        ("php-kept", false, true, "FastCGI kept, no OPcache"),
        ("php-patched", true, false, "patched, FastCGI kept, OPcache"),
        ("php-patched", false, false, "patched, FastCGI kept, no OPcache"),
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
    scenes
}

impl Scene<'_> {
    fn listing(&self, place: &Place) -> Result<String, String> {
        let stage = Stage::new(place, self.server, &self.workload)?;
        let path = &self.workload.paths()[0];
        let mut browser = Browser::new(stage.served.port);
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
        // The first under strace is still affected by its attaching.
        ask()?;
        let answer = ask()?;
        let text = tracing.finish()?;
        if answer.status != self.workload.status {
            return Err(format!("status {}", answer.status));
        }
        Ok(show(&calls_of(&text, &answer)))
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

/// The calls of the request: from its sending to a moment after its answer. A call that began
/// before, such as the wait for it, is the last one before.
fn calls_of(text: &str, answer: &Answer) -> Vec<Call> {
    let from = seconds(answer.began);
    let to = from + answer.took.as_secs_f64() + AFTERWARDS.as_secs_f64();
    let calls = text.lines().filter_map(parse);
    calls.filter(|call| (from..to).contains(&call.at)).collect()
}

/// `1234 1163519723.242903 read(8, ...) = 78`; a call that another thread's interrupts is shown
/// where it begins, and its end left out.
fn parse(line: &str) -> Option<Call> {
    let mut words = line.splitn(2, |c: char| c == ' ');
    let (first, rest) = (words.next()?, words.next()?.trim_start());
    let (time, what) = match first.contains('.') {
        true => (first, rest),
        false => rest.split_once(' ')?,
    };
    let what = what.trim();
    let is_call = what.starts_with(|c: char| c.is_ascii_lowercase());
    is_call.then_some(Call {
        at: time.parse().ok()?,
        what: what.to_owned(),
    })
}

/// Each with the time of day's seconds, as the article has it, and the time since the one before.
fn show(calls: &[Call]) -> String {
    let mut out = String::new();
    let mut before = calls.first().map_or(0.0, |call| call.at);
    for Call { at, what } in calls {
        let gap = (at - before) * 1e3;
        let _infallible = writeln!(out, "  ...:{:09.6}  +{gap:.3} ms  {what}", at % 60.0);
        before = *at;
    }
    let all = calls.last().map_or(0.0, |last| last.at - calls[0].at) * 1e3;
    let _infallible = writeln!(out, "  {} calls, {all:.3} ms", calls.len());
    out
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// Requests before the one that is listed.
const WARM_UP: u32 = 20;
/// Between two of them, so that nothing of one is taken for the next.
const PAUSE: Duration = Duration::from_millis(20);
/// What a server or PHP does after the last byte of an answer belongs to it.
const AFTERWARDS: Duration = Duration::from_millis(15);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_with_and_without_a_process() {
        let call = |at, what: &str| {
            let what = what.to_owned();
            Some(Call { at, what })
        };
        assert_eq!(parse("12 3.5 read(8, \"\", 4) = 0"), call(3.5, "read(8, \"\", 4) = 0"));
        assert_eq!(parse("3.5 close(4) = 0"), call(3.5, "close(4) = 0"));
        assert_eq!(parse("12 3.5 <... epoll_wait resumed>) = 1"), None);
        assert_eq!(parse("12 3.5 --- SIGCHLD ---"), None);
        assert_eq!(parse(""), None);
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
