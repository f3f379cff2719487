//! A program and what it is born with: descriptor 0 is a listening socket, and nothing else of ours
//! is left to it.
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

/// What to run, as whom and where.
pub(crate) struct SpawnedProgram<'a> {
    /// The program's file and its arguments; a name without a slash is a file of `directory`.
    pub(crate) command: &'a [OsString],
    /// All of its environment.
    pub(crate) environment: &'a [(OsString, OsString)],
    /// The directory that is its root.
    pub(crate) root: Option<&'a Path>,
    /// Its working directory, as seen from `root`; `None`: that of this process, or the root.
    pub(crate) directory: Option<&'a Path>,
    /// Who it is.
    pub(crate) identity: &'a Identity,
    /// A listening socket: its standard input, as FastCGI has it.
    pub(crate) socket: BorrowedFd<'a>,
    /// Where its other two descriptors lead.
    pub(crate) output: Output<'a>,
    /// The signal it gets when this process ends without a word.
    pub(crate) parting_signal: Option<Signal>,
}

/// Standard output and standard error of a program.
#[derive(Clone, Copy)]
pub(crate) enum Output<'a> {
    /// Those of this process.
    Inherited,
    /// Output to nowhere, errors where this process's errors go.
    InheritedErrors,
    /// Both to nowhere.
    Discarded,
    /// Output to nowhere, errors to the descriptor.
    Errors(BorrowedFd<'a>),
}

/// Why a program does not run.
#[derive(Debug)]
pub(crate) struct StartError {
    /// The number the kernel gave.
    pub(crate) code: i32,
    /// What failed, in a sentence without a full stop.
    pub(crate) message: String,
}

impl SpawnedProgram<'_> {
    /// Starts it in a session of its own and waits until it has replaced our code.
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
                // Without the reader there is nobody to tell.
                let _ = writer.write_all(&error.to_bytes());
                // Nothing that belongs to the parent may be dropped here, and exit drops nothing.
                std::process::exit(NOT_STARTED);
            }
        }
    }

    /// Becomes the program: no new process, and no return but for the reason why not.
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

    /// Everything between fork and exec that lasts.
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

    /// Makes the program end with this process's parent. After the change of user, which undoes it.
    fn follow(&self, parent: u32) -> Result<(), StartError> {
        let Some(signal) = self.parting_signal else {
            return Ok(());
        };
        nix::sys::prctl::set_pdeathsig(signal)
            .map_err(|error| StartError::new("following the parent", &error.into()))?;
        match std::os::unix::process::parent_id() == parent {
            true => Ok(()),
            false => std::process::exit(NOT_STARTED),
        }
    }

    /// To be made while /dev/null is in reach.
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

    /// What a child told; `None` if it told nothing.
    fn from_bytes(bytes: &[u8]) -> Option<StartError> {
        let (code, text) = bytes.split_first_chunk()?;
        Some(StartError {
            code: i32::from_be_bytes(*code),
            message: String::from_utf8_lossy(text).into_owned(),
        })
    }
}

/// The file that a program's name stands for. Names are not looked up in PATH: neither lighttpd nor
/// spawn-fcgi does, and a check of the configuration could not see what will be run.
fn file_of(name: &OsStr) -> PathBuf {
    match name.as_bytes().contains(&b'/') {
        true => PathBuf::from(name),
        false => Path::new(".").join(name),
    }
}

/// The child closes its end by exec, or says what went wrong and ends.
fn outcome(pid: Pid, reader: PipeReader) -> Result<Pid, StartError> {
    let mut told = Vec::new();
    // A pipe that cannot be read tells as much as one in which nothing was written.
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

/// The kernel's words without the number that the standard library adds.
pub(super) fn plain(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(code) => nix::errno::Errno::from_raw(code).desc().to_owned(),
        None => error.to_string(),
    }
}

/// Exit code of a process that did not become the program.
const NOT_STARTED: i32 = 127;
/// The longest reason a child tells; less than a pipe takes at once.
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
