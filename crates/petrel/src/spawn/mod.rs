//! `petrel spawn`: starts FastCGI programs as spawn-fcgi does, with its options, exit codes and messages. The
//! same happens when the program is started under the name spawn-fcgi.
//!
//! These programs are not supervised or restarted. The keeper does that for the programs of the configuration
//! (`bin-path`); both use [`SpawnedProgram`] and [`ProgramSocket`].
//!
//! Some things differ from spawn-fcgi on purpose. A file that is no socket is never removed to make room for
//! one, and a socket is removed again if no program was started for it. Malformed numbers are refused instead
//! of being read as 0. And a user id without a user needs a group, because such a process would keep root's.

mod account;
mod program;
mod socket;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use nix::unistd::geteuid;
use rustix::fs::Mode;
use rustix::process::{Pid, WaitOptions, WaitStatus, waitpid};

use crate::user::Identity;
use crate::{cli, terminal};
use account::Accounts;
pub(crate) use program::{Output, SpawnedProgram, StartError};
pub(crate) use socket::{ProgramSocket, UnixPlace};

/// Starts what `options` ask for. `name` is the prefix of messages. Returns the exit code.
pub(crate) fn run(options: &cli::Spawn, name: &str) -> u8 {
    if options.version {
        terminal::say(format_args!(
            "{name} (petrel/{}) - spawns FastCGI processes",
            env!("CARGO_PKG_VERSION")
        ));
        return 0;
    }
    let outcome = SpawnPlan::new(options, name).and_then(|plan| match options.no_fork {
        true => Err(plan.become_program()),
        false => plan.start_all(),
    });
    match outcome {
        Ok(code) => code,
        Err(failure) => {
            terminal::complain(format_args!("{name}: {}", failure.message));
            failure.code
        }
    }
}

/// Why nothing was started.
struct Failure {
    code: u8,
    message: String,
}

impl From<String> for Failure {
    fn from(message: String) -> Failure {
        Failure {
            code: crate::terminal::EXIT_FAILURE,
            message,
        }
    }
}

/// The checked options, and what was opened for them.
struct SpawnPlan<'a> {
    options: &'a cli::Spawn,
    name: &'a str,
    command: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    identity: Identity,
    socket: ProgramSocket,
    pid_file: Option<File>,
}

impl<'a> SpawnPlan<'a> {
    fn new(options: &'a cli::Spawn, name: &'a str) -> Result<SpawnPlan<'a>, Failure> {
        let command = command(options)?;
        let pid_file = match options.no_fork {
            true => None,
            false => options.pid_file.as_deref().map(open_pid_file).transpose()?,
        };
        let accounts = match geteuid().is_root() {
            true => Accounts::find(options)?,
            // As in spawn-fcgi, these options apply to root only and are ignored otherwise.
            false => Accounts::unchanged(),
        };
        let socket = open_socket(options, &accounts)?;
        Ok(SpawnPlan {
            options,
            name,
            command,
            environment: environment(options),
            identity: accounts.identity,
            socket,
            pid_file,
        })
    }

    fn program(&self, output: Output<'a>) -> SpawnedProgram<'_> {
        let root = self
            .options
            .chroot
            .as_deref()
            .filter(|_| geteuid().is_root());
        SpawnedProgram {
            command: &self.command,
            environment: &self.environment,
            root,
            directory: self.options.directory.as_deref(),
            identity: &self.identity,
            socket: self.socket.as_fd(),
            output,
            parting_signal: None,
        }
    }

    /// `-n`: replaces this process. The exit code is the error's number, as in spawn-fcgi.
    fn become_program(&self) -> Failure {
        failure(self.program(Output::Inherited).replace_us())
    }

    /// Starts `-F` processes. Returns the exit code of the last one that failed.
    fn start_all(mut self) -> Result<u8, Failure> {
        let mut code = 0;
        let mut pids: Vec<String> = Vec::new();
        for _ in 0..self.options.forks {
            let pid = match self.program(Output::Discarded).start() {
                Ok(pid) => pid,
                Err(error) if error.message.starts_with("exec") => {
                    terminal::complain(format_args!(
                        "{}: child exited with: {} ({})",
                        self.name, error.code, error.message
                    ));
                    code = failure(error).code;
                    continue;
                }
                Err(error) => return Err(failure(error)),
            };
            match ended_soon(pid) {
                Some(status) => {
                    let (early, message) = describe(status);
                    terminal::complain(format_args!("{}: {message}", self.name));
                    code = early;
                }
                None => {
                    terminal::say(format_args!(
                        "{}: child spawned successfully: PID: {pid}",
                        self.name
                    ));
                    pids.push(pid.to_string());
                }
            }
        }
        if !pids.is_empty() {
            self.socket.keep_name();
        }
        if let Some(file) = &mut self.pid_file {
            let written = file.write_all((pids.join("\n") + "\n").as_bytes());
            written.map_err(|error| format!("writing the PID-file failed: {error}"))?;
        }
        Ok(code)
    }
}

fn failure(error: StartError) -> Failure {
    let code = u8::try_from(error.code).unwrap_or(crate::terminal::EXIT_FAILURE);
    match error.message.starts_with("exec") {
        true => Failure {
            code,
            message: error.message,
        },
        false => Failure::from(error.message),
    }
}

/// The command to run: the words after `--`, or else `-f` through a shell.
fn command(options: &cli::Spawn) -> Result<Vec<OsString>, Failure> {
    if !options.application.is_empty() {
        return Ok(options.application.clone());
    }
    let Some(line) = &options.file else {
        return Err(Failure::from("no FastCGI application given".to_owned()));
    };
    let mut script = OsString::from("exec ");
    script.push(line);
    Ok(vec!["/bin/sh".into(), "-c".into(), script])
}

fn environment(options: &cli::Spawn) -> Vec<(OsString, OsString)> {
    let mut environment: Vec<_> = std::env::vars_os().collect();
    if let Some(children) = options.children {
        let name = OsStr::new("PHP_FCGI_CHILDREN");
        environment.retain(|(known, _)| known != name);
        environment.push((name.to_owned(), children.to_string().into()));
    }
    environment
}

fn open_pid_file(path: &Path) -> Result<File, Failure> {
    let fails = |error: &io::Error| {
        let why = program::plain(error);
        Failure::from(format!(
            "opening PID-file '{}' failed: {why}",
            path.display()
        ))
    };
    // The pid file is truncated only if it is a regular file.
    if std::fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        return Err(Failure::from(format!(
            "PID-file exists and isn't regular file: '{}'",
            path.display()
        )));
    }
    let mut file = File::options();
    file.write(true).create(true).truncate(true).mode(0o644);
    file.open(path).map_err(|error| fails(&error))
}

fn open_socket(options: &cli::Spawn, accounts: &Accounts) -> Result<ProgramSocket, Failure> {
    match (&options.socket, options.port) {
        (Some(_), Some(_)) => Err("either a Unix domain socket or a TCP-port, but not both"
            .to_owned()
            .into()),
        (None, None) => Err("no socket given (use either -p or -s)".to_owned().into()),
        (None, Some(port)) => {
            let address = options.address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
            let address = SocketAddr::new(address, port);
            let opened = ProgramSocket::tcp(address, options.backlog);
            opened.map_err(|error| {
                format!("bind failed: {address}: {}", program::plain(&error)).into()
            })
        }
        (Some(path), None) => {
            let is_inside = !options.socket_before_chroot && geteuid().is_root();
            let place = UnixPlace {
                path,
                root: options.chroot.as_deref().filter(|_| is_inside),
                mode: Some(options.mode.unwrap_or_else(default_mode)),
                user: accounts.socket_user,
                group: accounts.socket_group,
                is_taken: false,
            };
            let opened = ProgramSocket::unix(&place, options.backlog);
            opened.map_err(|error| unix_failure(path, &error))
        }
    }
}

fn unix_failure(path: &Path, error: &io::Error) -> Failure {
    let why = program::plain(error);
    match error.kind() {
        io::ErrorKind::AddrInUse => format!("{why}, can't spawn: {}", path.display()).into(),
        _ => format!("bind failed: {}: {why}", path.display()).into(),
    }
}

/// Read and write permission for user and group, as far as the umask allows.
fn default_mode() -> u32 {
    let umask = rustix::process::umask(Mode::empty());
    rustix::process::umask(umask);
    0o660 & !umask.as_raw_mode()
}

/// How the process ended, if it did so at once.
fn ended_soon(pid: Pid) -> Option<WaitStatus> {
    for _ in 0..LOOKS {
        thread::sleep(LOOK_EVERY);
        if let Ok(Some((_, status))) = waitpid(Some(pid), WaitOptions::NOHANG) {
            return Some(status);
        }
    }
    None
}

fn describe(status: WaitStatus) -> (u8, String) {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => {
            let message = format!("child exited with: {code}");
            (u8::try_from(code).unwrap_or(1), message)
        }
        (None, Some(signal)) => (1, format!("child signaled: {signal}")),
        (None, None) => (1, "child died somehow".to_owned()),
    }
}

/// As in spawn-fcgi, a child that lives for a tenth of a second counts as working.
const LOOKS: u32 = 20;
const LOOK_EVERY: Duration = Duration::from_millis(5);
