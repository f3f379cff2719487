//! A program and what it inherits: a listening socket as descriptor 0, and nothing else of this process.
//!
//! Decides nothing about restarts; the keeper and `petrel spawn` do.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::{SigSet, Signal};
use rustix::process::{Pid, WaitOptions, waitpid};
use sys::process::{Forked, fork};

use crate::user::Identity;

/// What to run, as which user and in which directory.
pub(crate) struct SpawnedProgram<'a> {
    /// The program's file and its arguments. A name without a slash is a file in `directory`.
    pub(crate) command: &'a [OsString],
    /// The complete environment.
    pub(crate) environment: &'a [(OsString, OsString)],
    /// The directory to chroot to.
    pub(crate) root: Option<&'a Path>,
    /// The working directory, as seen from `root`. `None` keeps that of this process, or means the root.
    pub(crate) directory: Option<&'a Path>,
    /// The user and groups to run as.
    pub(crate) identity: &'a Identity,
    /// The listening socket. It becomes standard input, as FastCGI defines.
    pub(crate) socket: BorrowedFd<'a>,
    /// Where standard output and standard error go.
    pub(crate) output: Output<'a>,
    /// The signal that the program gets when this process dies.
    pub(crate) parting_signal: Option<Signal>,
}

/// Standard output and standard error of a program.
#[derive(Clone, Copy)]
pub(crate) enum Output<'a> {
    /// The same as those of this process.
    Inherited,
    /// Output to /dev/null, errors to this process's standard error.
    InheritedErrors,
    /// Both to /dev/null.
    Discarded,
    /// Output to /dev/null, errors to the descriptor.
    Errors(BorrowedFd<'a>),
}

/// Why a program did not start.
#[derive(Debug)]
pub(crate) struct StartError {
    /// The error number of the kernel.
    pub(crate) code: i32,
    /// What failed, as a sentence without a full stop.
    pub(crate) message: String,
}

impl SpawnedProgram<'_> {
    /// Starts the program in a session of its own, and waits until exec has succeeded.
    ///
    /// # Errors
    /// The step that failed.
    pub(crate) fn start(&self) -> Result<Pid, StartError> {
        let fails = |error| StartError::new("starting a process", &error);
        let parent = std::process::id();
        let (reader, mut writer) = io::pipe().map_err(fails)?;
        match fork().map_err(fails)? {
            Forked::Parent(id) => {
                drop(writer);
                let pid = Pid::from_raw(id).expect("fork answers the id of a process");
                outcome(pid, reader)
            }
            Forked::Child => {
                let error = self.begin(parent);
                // If the parent is gone, there is no process to report to.
                let _ = writer.write_all(&error.to_bytes());
                // `exit` runs no destructors, so nothing that belongs to the parent, such as a socket's name,
                // is removed here.
                std::process::exit(NOT_STARTED);
            }
        }
    }

    /// Replaces this process by the program. Returns only if that fails.
    pub(crate) fn replace_us(&self) -> StartError {
        let prepared = self.command().and_then(|command| {
            self.prepare()?;
            Ok(command)
        });
        match prepared {
            Ok(mut command) => StartError::new("exec failed", &command.exec()),
            Err(error) => error,
        }
    }

    fn begin(&self, parent: u32) -> StartError {
        if let Err(error) = nix::unistd::setsid() {
            return StartError::new("leaving the session", &error.into());
        }
        let prepared = self.command().and_then(|command| {
            self.prepare()?;
            self.follow(parent)?;
            Ok(command)
        });
        match prepared {
            Ok(mut command) => StartError::new("exec failed", &command.exec()),
            Err(error) => error,
        }
    }

    /// Applies every lasting setting between fork and exec.
    fn prepare(&self) -> Result<(), StartError> {
        sys::child::default_signals();
        let unblocked = SigSet::empty().thread_set_mask();
        unblocked.map_err(|error| StartError::new("unblocking signals", &error.into()))?;
        sys::child::close_on_exec_from(3)
            .map_err(|error| StartError::new("marking descriptors", &error))?;
        if let Some(root) = self.root {
            let entered = nix::unistd::chroot(root).and_then(|()| nix::unistd::chdir("/"));
            entered.map_err(|error| at("chroot", root, &error.into()))?;
        }
        let assumed = self.identity.assume();
        assumed.map_err(|error| StartError::new("giving up privileges failed", &error))?;
        match self.directory {
            Some(directory) => {
                std::env::set_current_dir(directory).map_err(|error| at("chdir", directory, &error))
            }
            None => Ok(()),
        }
    }

    /// Makes the program end with its parent. This must follow the change of user, which resets it.
    fn follow(&self, parent: u32) -> Result<(), StartError> {
        let Some(signal) = self.parting_signal else {
            return Ok(());
        };
        nix::sys::prctl::set_pdeathsig(signal)
            .map_err(|error| StartError::new("following the parent", &error.into()))?;
        // If the parent died before prctl, the kernel will send no signal.
        match std::os::unix::process::parent_id() == parent {
            true => Ok(()),
            false => std::process::exit(NOT_STARTED),
        }
    }

    /// Builds the command. /dev/null is opened here, because a chroot may hide it.
    fn command(&self) -> Result<Command, StartError> {
        let fails = |error| StartError::new("passing descriptors", &error);
        let (name, arguments) = self
            .command
            .split_first()
            .ok_or_else(|| StartError::new("exec failed", &io::ErrorKind::NotFound.into()))?;
        let mut command = Command::new(file_of(name));
        command.arg0(name).args(arguments).env_clear();
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::from(
            self.socket.try_clone_to_owned().map_err(fails)?,
        ));
        let null = File::options().write(true).open("/dev/null");
        let null = null.map_err(|error| StartError::new("opening /dev/null", &error))?;
        if !matches!(self.output, Output::Inherited) {
            command.stdout(Stdio::from(null.try_clone().map_err(fails)?));
        }
        match self.output {
            Output::Inherited | Output::InheritedErrors => {}
            Output::Discarded => drop(command.stderr(Stdio::from(null))),
            Output::Errors(errors) => {
                let errors = errors.as_fd().try_clone_to_owned().map_err(fails)?;
                command.stderr(Stdio::from(errors));
            }
        }
        Ok(command)
    }
}

impl StartError {
    fn new(what: &str, error: &io::Error) -> StartError {
        let code = error
            .raw_os_error()
            .unwrap_or(rustix::io::Errno::INVAL.raw_os_error());
        StartError {
            code,
            message: format!("{what}: {}", plain(error)),
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let text = self.message.bytes().take(MESSAGE_BYTES_MAX);
        self.code.to_be_bytes().into_iter().chain(text).collect()
    }

    /// Decodes the error that a child reported; `None` if it reported none.
    fn from_bytes(bytes: &[u8]) -> Option<StartError> {
        let (code, text) = bytes.split_first_chunk()?;
        Some(StartError {
            code: i32::from_be_bytes(*code),
            message: String::from_utf8_lossy(text).into_owned(),
        })
    }
}

/// The file that a program's name stands for. PATH is not searched: neither lighttpd nor spawn-fcgi does so,
/// and a check of the configuration could not tell which file will be run.
fn file_of(name: &OsStr) -> PathBuf {
    match name.as_bytes().contains(&b'/') {
        true => PathBuf::from(name),
        false => Path::new(".").join(name),
    }
}

/// The result of a start. A successful exec closes the child's end of the pipe; else the child writes an
/// error to it.
fn outcome(pid: Pid, reader: PipeReader) -> Result<Pid, StartError> {
    let mut told = Vec::new();
    // An error while reading counts as an empty pipe.
    let _ = reader
        .take(MESSAGE_BYTES_MAX as u64 + 4)
        .read_to_end(&mut told);
    match StartError::from_bytes(&told) {
        None => Ok(pid),
        Some(error) => {
            let _ = waitpid(Some(pid), WaitOptions::empty());
            Err(error)
        }
    }
}

fn at(call: &str, path: &Path, error: &io::Error) -> StartError {
    StartError::new(&format!("{call}('{}') failed", path.display()), error)
}

/// The kernel's message without the error number that the standard library appends.
pub(super) fn plain(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(code) => nix::errno::Errno::from_raw(code).desc().to_owned(),
        None => error.to_string(),
    }
}

/// Exit code of a child that could not become the program.
const NOT_STARTED: i32 = 127;
/// The longest error that a child reports. It fits into a pipe, so the child does not block.
const MESSAGE_BYTES_MAX: usize = 4000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_travel_as_bytes() {
        let long = StartError {
            code: 2,
            message: "x".repeat(5000),
        };
        let error = StartError::from_bytes(&long.to_bytes()).expect("an error");
        assert_eq!((error.code, error.message.len()), (2, MESSAGE_BYTES_MAX));
        assert!(StartError::from_bytes(b"").is_none());
        assert!(StartError::from_bytes(b"abc").is_none());
    }

    #[test]
    fn names_are_files_and_not_looked_up() {
        assert_eq!(file_of(OsStr::new("sh")), Path::new("./sh"));
        assert_eq!(file_of(OsStr::new("/bin/sh")), Path::new("/bin/sh"));
        assert_eq!(file_of(OsStr::new("bin/sh")), Path::new("bin/sh"));
    }
}
