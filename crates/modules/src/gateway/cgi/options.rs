//! The directives of mod_cgi as typed options.

use std::rc::Rc;
use std::time::Duration;

use petrel_engine::config::schema::nearest;
use petrel_engine::config::{Config, Diagnostic, Element};
use petrel_engine::settings::Values;
use rustix::process::Signal;

use crate::gateway::options::{BackendHost, HostAddress, Protocol, tempfile_dirs};
use crate::gateway::upgrade::Upgrades;

/// Which files are programs, and how they are run.
#[derive(Debug)]
pub(super) struct CgiOptions {
    /// Suffixes of paths or prefixes of URL paths, each with its interpreter.
    assign: Vec<(Vec<u8>, String)>,
    /// `cgi.execute-all`.
    execute_all: bool,
    /// `cgi.execute-x-only`.
    execute_x_only: bool,
    /// `cgi.local-redir`.
    pub(crate) local_redirect: bool,
    /// The signal that ends a program whose client has left.
    pub(crate) signal: Signal,
    /// Other options, as every gateway has them.
    pub(crate) host: Rc<BackendHost>,
}

/// How a file is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run<'o> {
    /// Not at all: it is no program.
    No,
    /// It should be run but has no execute bit. Its text must not be sent to the client either.
    Refuse,
    /// By this interpreter; if empty, by itself.
    By(&'o str),
}

impl CgiOptions {
    /// The options in `values`; `None` if no file would be run.
    pub(crate) fn new(values: &Values<'_>) -> Result<Option<CgiOptions>, Diagnostic> {
        let switch = |name: &str| values.bool(name).unwrap_or(false);
        let elements = values.array("cgi.assign").into_iter().flatten();
        let assign: Vec<_> = elements.map(assignment).collect();
        let execute_all = switch("cgi.execute-all");
        if assign.is_empty() && !execute_all {
            return Ok(None);
        }
        let limits = values.array("cgi.limits");
        let limit = |key: &str| limits.and_then(|limits| limits.get(key));
        let seconds = |key| limit(key).map_or(Ok(Duration::ZERO), seconds_of);
        let mut host = host();
        host.x_sendfile = switch("cgi.x-sendfile");
        host.x_sendfile_docroot = directories(values)?;
        host.tempfile_dirs = tempfile_dirs(values.config(), None, host.x_sendfile);
        if switch("cgi.upgrade") {
            host.upgrade = Upgrades::websocket();
        }
        host.read_timeout = seconds("read-timeout")?;
        host.write_timeout = seconds("write-timeout")?;
        let fin = limit("tcp-fin-propagate");
        host.tcp_fin_propagate = fin.is_some();
        Ok(Some(CgiOptions {
            assign,
            execute_all,
            execute_x_only: switch("cgi.execute-x-only"),
            local_redirect: switch("cgi.local-redir"),
            signal: fin.map_or(Ok(Signal::TERM), signal_of)?,
            host: Rc::new(host),
        }))
    }

    /// How the file at `path`, which the decoded `url` leads to, is run. `mode` has its permission bits. The
    /// first key that fits counts.
    pub(crate) fn run(&self, path: &[u8], url: &[u8], mode: u32) -> Run<'_> {
        let is_executable = mode & ANY_EXECUTE != 0;
        let fits = |key: &[u8]| {
            path.ends_with(key) || (key.first() == Some(&b'/') && url.starts_with(key))
        };
        match self.assign.iter().find(|(key, _)| fits(key)) {
            Some((_, interpreter)) if is_executable || !self.execute_x_only => Run::By(interpreter),
            // The empty key fits every file. A directory that mixes programs and other files is the usual
            // reason for execute-x-only, so a file without the bit is sent.
            Some((key, _)) if key.is_empty() => Run::No,
            Some(_) => Run::Refuse,
            None if self.execute_all && is_executable => Run::By(""),
            None => Run::No,
        }
    }
}

/// Warnings about `cgi.limits`.
pub(crate) fn warnings(config: &Config) -> Vec<Diagnostic> {
    let entries = config.blocks.iter().flat_map(|block| &block.entries);
    let limits = entries.filter(|entry| entry.name == "cgi.limits");
    let elements = limits.filter_map(|entry| entry.value.as_array()).flatten();
    elements.filter_map(about_limit).collect()
}

fn about_limit(element: &Element) -> Option<Diagnostic> {
    let key = element.key().unwrap_or_default();
    if LIMITS.contains(&key) {
        return None;
    }
    let message = format!("there is no limit {key:?} of programs: it has no effect");
    let warning = Diagnostic::warning(message, element.span);
    Some(match nearest(key, LIMITS.iter().copied()).first() {
        Some(near) => warning.with_hint(format!("did you mean \"{near}\"?")),
        None => warning,
    })
}

fn assignment(element: &Element) -> (Vec<u8>, String) {
    let key = element.key().unwrap_or_default().as_bytes().to_vec();
    (key, element.value.as_str().unwrap_or_default().to_owned())
}

fn directories(values: &Values<'_>) -> Result<Vec<Vec<u8>>, Diagnostic> {
    let name = "cgi.x-sendfile-docroot";
    let directories = values.strings(name);
    match directories.iter().find(|path| !path.starts_with('/')) {
        Some(path) => Err(values.error(name, format!("{name} takes absolute paths, not {path:?}"))),
        None => Ok(directories
            .iter()
            .map(|path| path.as_bytes().to_vec())
            .collect()),
    }
}

fn seconds_of(element: &Element) -> Result<Duration, Diagnostic> {
    let seconds = element.value.as_integer();
    match seconds.and_then(|seconds| u32::try_from(seconds).ok()) {
        Some(seconds) => Ok(Duration::from_secs(seconds.into())),
        None => Err(Diagnostic::error(
            "cgi.limits: a time limit is a number of seconds",
            element.span,
        )),
    }
}

/// A signal given by number or by name, with or without SIG.
fn signal_of(element: &Element) -> Result<Signal, Diagnostic> {
    let by_number = element.value.as_integer();
    let number = by_number.and_then(|number| i32::try_from(number).ok());
    let name = element
        .value
        .as_str()
        .unwrap_or_default()
        .to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let by_name = SIGNALS.iter().find(|(known, _)| *known == name);
    by_name
        .map(|(_, signal)| *signal)
        .or_else(|| number.and_then(Signal::from_named_raw))
        .ok_or_else(|| {
            let message = "cgi.limits: tcp-fin-propagate takes the name of a signal";
            Diagnostic::error(message, element.span)
                .with_hint("usual are \"SIGTERM\" and \"SIGHUP\"")
        })
}

/// The options of a backend, as far as CGI programs need them. Programs have no protocol; the one set here
/// decides about request bodies of unknown length, which SCGI cannot have either.
fn host() -> BackendHost {
    BackendHost {
        requests_per_connection_max: 1,
        check_local: true,
        ..BackendHost::plain("cgi", HostAddress::Unix(Vec::new()), Protocol::Scgi)
    }
}

/// The execute bits of owner, group and others.
const ANY_EXECUTE: u32 = 0o111;

const LIMITS: &[&str] = &["read-timeout", "write-timeout", "tcp-fin-propagate"];

const SIGNALS: &[(&str, Signal)] = &[
    ("ABRT", Signal::ABORT),
    ("ALRM", Signal::ALARM),
    ("CONT", Signal::CONT),
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("KILL", Signal::KILL),
    ("PIPE", Signal::PIPE),
    ("QUIT", Signal::QUIT),
    ("STOP", Signal::STOP),
    ("TERM", Signal::TERM),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("WINCH", Signal::WINCH),
];
