//! `petrel costs URL`: one request as a waterfall of stages, with the system calls that each made.
//!
//! A private instance of the configuration ([`instance`]) answers the request of a [`client`], while this
//! process traces it ([`tracer`]). The instance reports when each stage ended ([`reporter`]), by the same clock,
//! so that [`attribution`] can tell which stage made which call. The live server is not asked and not traced.

mod attribution;
mod budget;
mod calls;
mod client;
mod instance;
mod json;
mod private_config;
mod reporter;
mod request;
mod svg;
mod text;
mod tracer;

use std::io::{self, IsTerminal};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use engine::ledger::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::cli;
use crate::keeper::signals::Signals;
use crate::load::Loaded;
use crate::terminal;
use attribution::{AFTERWARDS, ARRIVAL, WaterfallRow, waterfall};
use budget::{Budget, Route, budget};
use client::{AnsweredRequest, CostsClient};
use instance::{Entrance, EntrancePlace, PrivateInstance};
use reporter::{HTTPS, RequestReport, TOKEN_FIELD};
use request::CostsTarget;
use tracer::CallTracer;

/// Makes the requests and prints what they cost. Returns the exit code.
pub(crate) fn run(options: &cli::Costs) -> u8 {
    match measured(options) {
        Ok(all) => {
            let text = match options.json {
                true => json::text(&all),
                false => {
                    let is_coloured =
                        io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
                    text::text(&all, is_coloured)
                }
            };
            if let Some(file) = &options.svg
                && let Err(error) = std::fs::write(file, svg::text(&all))
            {
                return terminal::fail(&format!("costs: {}: {error}", file.display()));
            }
            terminal::print(text.as_bytes())
        }
        Err(message) => {
            terminal::complain(format_args!("petrel: costs: {message}"));
            NOT_MEASURED
        }
    }
}

/// What one request costs.
struct RequestCosts {
    /// The request line.
    request: String,
    /// The row of the budget for requests of its kind.
    budget: Option<&'static Budget>,
    /// The first request that the instance ever got.
    cold: TracedRun,
    /// A later one.
    warm: TracedRun,
    /// One of a few more, without tracing: that of median length.
    untraced: RequestReport,
}

/// A request that was traced.
struct TracedRun {
    report: RequestReport,
    rows: Vec<WaterfallRow>,
}

impl TracedRun {
    /// How many system calls it made.
    fn calls(&self) -> u64 {
        let calls = self.rows.iter().flat_map(|row| &row.calls);
        calls.filter(|call| call.counts()).count() as u64
    }
}

/// From the first byte of the request to the last stamp.
fn total(report: &RequestReport) -> Nanos {
    report.ended().saturating_sub(report.started)
}

fn measured(options: &cli::Costs) -> Result<Vec<RequestCosts>, String> {
    let file = std::path::absolute(&options.file)
        .map_err(|error| format!("{}: {error}", options.file.display()))?;
    modules::auth::prepare();
    let targets = [Some(&options.url), options.compare.as_ref()];
    let targets: Result<Vec<CostsTarget>, String> = targets
        .into_iter()
        .flatten()
        .map(|url| CostsTarget::new(url, &options.method, &options.field))
        .collect();
    targets?
        .iter()
        .map(|target| measure(&file, target))
        .collect()
}

/// Starts an instance, makes the requests, and ends it.
fn measure(file: &Path, target: &CostsTarget) -> Result<RequestCosts, String> {
    // They are blocked from here on, so that an interrupt does not leave programs and files behind.
    let signals = Signals::open().map_err(|error| format!("signals: {error}"))?;
    let mut instance = PrivateInstance::start(file)?;
    instance.wait_until_it_serves()?;
    let process = instance.process.ok_or("the private instance has ended")?;
    let entrance = entrance(&instance.entrances, target.port)
        .ok_or("the configuration has no listener")?
        .clone();
    let listeners = instance
        .entrances
        .iter()
        .map(|entrance| match &entrance.place {
            EntrancePlace::Tcp(address) => address.to_string(),
            EntrancePlace::Unix(path) => path.display().to_string(),
        });
    // Opened before it can have ended and been waited for: its id still means this process.
    let pidfd = Pid::from_raw(process)
        .ok_or(rustix::io::Errno::SRCH)
        .and_then(|id| pidfd_open(id, PidfdFlags::empty()))
        .map_err(|error| error.to_string())?;
    let scheme = if target.is_https { HTTPS } else { "" };
    let request = target.bytes_with(TOKEN_FIELD, &format!("{}{scheme}", instance.token));
    let pipe = instance.reports.get_ref().as_raw_fd();
    let pipe = std::fs::read_link(format!("/proc/self/fd/{pipe}"));
    let hidden = pipe.map_or_else(|_| String::new(), |pipe| pipe.display().to_string());
    let is_over = AtomicBool::new(false);
    let tracer = CallTracer::begin(process, listeners.collect(), hidden, &is_over);
    let tracer = tracer.map_err(|error| {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            // It has ended, and was waited for.
            instance.process = None;
        }
        refusal(&error)
    })?;
    let alive = instance.alive.take();
    let reports = &mut instance.reports;
    let client = CostsClient::new(&entrance.place, &request, reports, &signals);
    let is_repeatable = target.is_repeatable;
    let (calls, asked) = thread::scope(|scope| {
        let asking = scope.spawn(|| {
            let asked = ask(client, is_repeatable, &is_over);
            let names = tracer::thread_names(process);
            drop(alive);
            kill_if_it_stays(&pidfd);
            (asked, names)
        });
        // Only the thread that began to trace can go on.
        let calls = tracer.run();
        (calls, asking.join())
    });
    // The tracer has waited for it: from here on its id may mean another process.
    instance.process = None;
    let (asked, names) = asked.map_err(|_| "the client has panicked")?;
    let asked = asked.map_err(|error| error.to_string())?;
    let calls: Vec<_> = calls
        .into_iter()
        .filter(|call| {
            let name = names.get(&call.thread);
            name.is_none_or(|name| tracer::serves_requests(name))
        })
        .collect();
    let run = |answered: AnsweredRequest| TracedRun {
        rows: waterfall(&answered.report, answered.window, &calls),
        report: answered.report,
    };
    let (cold, warm) = (run(asked.cold), run(asked.warm));
    Ok(RequestCosts {
        request: target.line.clone(),
        budget: route(&warm.report, &instance.loaded).map(budget),
        cold,
        warm,
        untraced: asked.untraced,
    })
}

/// The requests of one measurement.
struct AskedRequests {
    cold: AnsweredRequest,
    warm: AnsweredRequest,
    untraced: RequestReport,
}

fn ask(
    mut client: CostsClient<'_>,
    is_repeatable: bool,
    is_over: &AtomicBool,
) -> io::Result<AskedRequests> {
    let cold = client.ask()?;
    if is_repeatable {
        client.ask()?;
    }
    let warm = client.ask()?;
    is_over.store(true, Ordering::Relaxed);
    // In this one each thread stops once more, at the end of the call in which it waits.
    let mut untraced = vec![client.ask()?.report];
    if is_repeatable {
        let mut took = total(&untraced[0]);
        untraced.clear();
        while untraced.is_empty() || (untraced.len() < UNTRACED && took < UNTRACED_TIME) {
            let report = client.ask()?.report;
            took += total(&report);
            untraced.push(report);
        }
    }
    untraced.sort_by_key(total);
    Ok(AskedRequests {
        cold,
        warm,
        untraced: untraced.swap_remove(untraced.len() / 2),
    })
}

/// Kills a process that does not end although it was told to.
fn kill_if_it_stays(process: &OwnedFd) {
    let limit = Timespec {
        tv_sec: END_TIME.as_secs() as i64,
        tv_nsec: 0,
    };
    let mut polled = [PollFd::new(process, PollFlags::IN)];
    if poll(&mut polled, Some(&limit)) == Ok(0) {
        let _ = pidfd_send_signal(process, Signal::KILL);
    }
}

/// The listener that the URL names by its port, or else the first one.
fn entrance(entrances: &[Entrance], port: u16) -> Option<&Entrance> {
    let mut all = entrances.iter();
    all.find(|entrance| entrance.configured_port == port)
        .or(entrances.first())
}

fn refusal(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "this system does not let a process trace its own child (ptrace): in a container, allow \
             CAP_SYS_PTRACE or the system call; elsewhere see /proc/sys/kernel/yama/ptrace_scope"
                .to_owned()
        }
        _ => format!("tracing: {error}"),
    }
}

/// The kind of request that this was, if the budget has it.
fn route(report: &RequestReport, loaded: &Loaded) -> Option<Route> {
    let sets = |prefix: &str| {
        let mut entries = loaded.config.blocks.iter().flat_map(|block| &block.entries);
        entries.any(|entry| entry.name.starts_with(prefix))
    };
    let facts = report.facts;
    match report.status {
        // Of a page that a worker has in its memory, nothing waits.
        200 if facts.is_cached => (!report.has_stage("cache")).then_some(Route::CachedPage),
        200 if facts.asked_backend => match (sets("fastcgi."), sets("proxy.")) {
            (true, false) if facts.is_virtual => Some(Route::Virtual),
            (true, false) => Some(Route::FastCgi),
            (false, true) => Some(Route::Proxied),
            _ => None,
        },
        200 if report.has_stage("lua") => Some(Route::Lua),
        200 if facts.has_file => Some(Route::Static),
        304 if facts.has_file => Some(Route::NotModified),
        404 if !facts.asked_backend => Some(Route::Missing),
        _ => None,
    }
}

/// Whether a row is outside the ledger.
fn is_outside(row: &WaterfallRow) -> bool {
    row.name == ARRIVAL || row.name == AFTERWARDS
}

/// The exit code when there is nothing to show.
const NOT_MEASURED: u8 = 1;
/// How many requests are made without tracing, if they do not take long.
const UNTRACED: usize = 11;
/// After this time no further request is made without tracing.
const UNTRACED_TIME: Nanos = 2_000_000_000;
/// How long the instance may take to end.
const END_TIME: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use reporter::Facts;

    fn loaded(text: &str) -> Loaded {
        let origin = crate::load::Origin::Text {
            name: "test",
            text: text.to_owned(),
        };
        crate::load::load(&origin).unwrap_or_else(|errors| panic!("{errors}"))
    }

    #[test]
    fn requests_are_told_apart_by_what_was_done() {
        let fastcgi = "server.modules = (\"mod_fastcgi\")\nfastcgi.server = (\"/\" => ((\"socket\" => \"/s\")))";
        let proxy = "server.modules = (\"mod_proxy\")\nproxy.server = (\"/\" => ((\"host\" => \"127.0.0.1\")))";
        let lua = "server.modules = (\"mod_magnet\")\nmagnet.attract-raw-url-to = (\"/a.lua\")";
        let report = |status, facts, stages: &[&str]| RequestReport {
            status,
            facts,
            stamps: stages
                .iter()
                .map(|stage| ((*stage).to_owned(), 1))
                .collect(),
            ..RequestReport::default()
        };
        let file = Facts {
            has_file: true,
            ..Facts::default()
        };
        let none = Facts::default();
        let cached = Facts {
            is_cached: true,
            ..none
        };
        let asked = |facts| Facts {
            asked_backend: true,
            ..facts
        };
        let virtual_one = Facts {
            is_virtual: true,
            ..asked(none)
        };
        for (text, report, expected) in [
            ("", report(200, file, &["content"]), Some(Route::Static)),
            (
                "",
                report(304, file, &["content"]),
                Some(Route::NotModified),
            ),
            ("", report(404, none, &["content"]), Some(Route::Missing)),
            ("", report(500, none, &["content"]), None),
            (
                "",
                report(200, none, &["translate", "lua"]),
                Some(Route::Lua),
            ),
            (fastcgi, report(200, asked(file), &[]), Some(Route::FastCgi)),
            (fastcgi, report(200, virtual_one, &[]), Some(Route::Virtual)),
            (fastcgi, report(404, asked(none), &[]), None),
            (proxy, report(200, asked(none), &[]), Some(Route::Proxied)),
            (
                proxy,
                report(200, cached, &["content"]),
                Some(Route::CachedPage),
            ),
            ("", report(200, cached, &["content", "cache"]), None),
            (lua, report(200, none, &["translate", "content"]), None),
        ] {
            assert_eq!(route(&report, &loaded(text)), expected, "{report:?}");
        }
    }

    #[test]
    fn the_port_of_the_url_chooses_the_listener() {
        let at = |configured_port| Entrance {
            configured_port,
            place: EntrancePlace::Unix("/x".into()),
        };
        let all = [at(80), at(443)];
        let port = |wanted| entrance(&all, wanted).map(|entrance| entrance.configured_port);
        assert_eq!(
            (port(443), port(80), port(8080)),
            (Some(443), Some(80), Some(80))
        );
        assert!(entrance(&[], 80).is_none());
    }
}
