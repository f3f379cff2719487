//! mod_cgi: starts a program for each request (RFC 3875).
//!
//! `cgi.assign` says which files are programs. A program gets the request in its environment
//! ([`super::environment`]) and on standard input, and answers on standard output. Its pipes take the place
//! of a connection to a backend, so bodies, time limits, X-Sendfile and tunnels work as in every gateway
//! ([`super::request`]). A thread starts the program ([`spawn`]), the request waits for that ([`launch`]),
//! and [`child`] makes sure that the program ends.

mod child;
mod launch;
mod options;
mod pipes;
mod spawn;
mod words;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::cause::CauseCode;
use petrel_engine::config::Diagnostic;
use petrel_engine::exchange::dry_run::Note;
use petrel_engine::file_cache::FileKind;
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};
use petrel_engine::settings::directives::Effect::Works;

use super::environment;
use super::hook::prepare_body;
use super::options::{Balance, Extras, Gateway};
use super::protocol::BodyLength;
use super::upgrade;
use crate::request_trace::begin_try;
pub(crate) use child::{GRACE, ProgramEnd};
use launch::Launch;
pub(crate) use options::warnings;
use options::{CgiOptions, Run};
pub(crate) use pipes::Pipes;
use spawn::Program;
pub(crate) use spawn::{Child, RunningPrograms};

/// mod_cgi.
pub static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_cgi",
    doc: "Runs CGI programs (RFC 3875).",
    loaded: Loaded::Listed,
    directives: petrel_engine::directives! {
        "cgi.assign", StringMap, Request, "()", Works,
            "Suffixes of files, or prefixes of URL paths if the key begins with a slash, each with an interpreter. With an empty interpreter the file itself is run.";
        "cgi.execute-all", Bool, Request, "disable", Works,
            "Runs every file that has an execute bit (lighttpd 1.5).";
        "cgi.execute-x-only", Bool, Request, "disable", Works,
            "Runs only files with an execute bit. Other files get 403, except those that only an empty key matches: they are sent as files.";
        "cgi.x-sendfile", Bool, Request, "disable", Works,
            "Lets programs name a file that Petrel sends (X-Sendfile and its relatives).";
        "cgi.x-sendfile-docroot", List, Request, "()", Works,
            "Directories that such files may be in; by default the document root.";
        "cgi.local-redir", Bool, Request, "disable", Works,
            "If a program's reply is only a Location with a path, Petrel answers with that URL itself, without a redirect (RFC 3875 6.2.2).";
        "cgi.upgrade", Bool, Request, "disable", Works,
            "Lets programs upgrade the connection to WebSocket by answering 101.";
        "cgi.limits", Map, Request, "()", Works,
            "Limits of programs: read-timeout and write-timeout in seconds, after which the request gets 504; tcp-fin-propagate is the signal that a program gets when its client has shut down its side or left (without it, SIGTERM when the client has left).";
    },
    configure,
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    if let Some(options) = CgiOptions::new(configure.values)? {
        // For the variable SERVER_ADDR.
        configure.want_local_address();
        let gateway = Rc::new(Gateway {
            directive: "cgi.assign",
            protocol: options.host.protocol,
            routes: Vec::new(),
            extensions: Vec::new(),
            balance: Balance::First,
            tries_max: 1,
            debug: 0,
            extras: Extras {
                local_redirect: options.local_redirect,
                ..Extras::default()
            },
        });
        configure.add(Phase::Content, Cgi { options, gateway });
    }
    Ok(())
}

struct Cgi {
    options: CgiOptions,
    /// The options of a gateway that a request needs; it has no routes.
    gateway: Rc<Gateway>,
}

impl Hook for Cgi {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        let Some(file) = &exchange.physical.file else {
            return Outcome::Next;
        };
        if file.kind() != FileKind::Regular {
            return Outcome::Next;
        }
        let (path, url) = (&exchange.physical.path, exchange.request.url.path());
        match self.options.run(path, url, file.stat().mode) {
            Run::No => Outcome::Next,
            Run::Refuse => {
                let outcome = exchange.fail(CauseCode::CgiNotExecutable);
                exchange.log_error("content", format_args!("cgi: the file is not executable;"));
                outcome
            }
            Run::By(_) if !prepare_body(exchange, self.gateway.protocol) => Outcome::NeedBody,
            Run::By(interpreter) => {
                let host = Some(&*self.options.host);
                if let Some(outcome) = upgrade::prepare_connect(exchange, host) {
                    return outcome;
                }
                let body = BodyLength::of(exchange, &self.options.host);
                begin_try(exchange, "cgi");
                let program = self.program(exchange, interpreter, body);
                Launch::begin(exchange, &self.gateway, &self.options.host, program, body)
            }
        }
    }

    fn dry_run(&self, exchange: &mut Exchange) -> Outcome {
        let physical = &exchange.physical;
        let file = physical.file.as_ref();
        let Some(file) = file.filter(|file| file.kind() == FileKind::Regular) else {
            return Outcome::Next;
        };
        let (path, url) = (&physical.path, exchange.request.url.path());
        let Run::By(interpreter) = self.options.run(path, url, file.stat().mode) else {
            return self.run(exchange);
        };
        exchange.note(|| {
            let script = String::from_utf8_lossy(path);
            Note::Text(match interpreter {
                "" => format!("would run {script}"),
                interpreter => format!("would run {interpreter} {script}"),
            })
        });
        exchange.answer_is_made_by("program")
    }
}

impl Cgi {
    /// The program, started as lighttpd starts it: in the script's directory, with the script as the only
    /// argument of its interpreter, and with nothing of this server's environment but what the dynamic linker
    /// needs.
    fn program(&self, exchange: &Exchange, interpreter: &str, body: BodyLength) -> Program {
        let host = &self.options.host;
        let script = PathBuf::from(OsStr::from_bytes(&exchange.physical.path));
        let directory = script.parent().unwrap_or(&script).to_owned();
        let (path, arguments) = match interpreter {
            "" => (script, Vec::new()),
            interpreter => (PathBuf::from(interpreter), vec![script]),
        };
        Program {
            path,
            arguments,
            directory,
            environment: self.environment(exchange, body),
            signal: self.options.signal,
            running: RunningPrograms::of(exchange.worker.shared()),
            wants_end_of_client: host.tcp_fin_propagate,
            may_upgrade: host.upgrade.offered(exchange).is_some(),
        }
    }

    fn environment(&self, exchange: &Exchange, body: BodyLength) -> Vec<(OsString, OsString)> {
        let mut variables = Vec::with_capacity(32);
        let text = |bytes: &[u8]| OsStr::from_bytes(bytes).to_owned();
        environment::build(exchange, &self.options.host, body, &mut |name, value| {
            variables.push((text(name), text(value)));
        });
        let ours = ["LD_LIBRARY_PATH", "LD_PRELOAD"].into_iter();
        variables.extend(ours.filter_map(|name| Some((name.into(), std::env::var_os(name)?))));
        variables
    }
}

#[cfg(test)]
mod tests;
