//! The trial of a new configuration: a child process reads it first.
//!
//! If an `include_shell` command hangs, or the file makes the reader crash, only that child is lost and not
//! the keeper. The price is that a reload runs such commands twice.

use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal as Death;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};
use sys::process::{Forked, fork};

/// The child that reads the configuration.
pub(crate) struct Trial {
    pid: Pid,
    /// When the trial is given up; `None` once it was.
    pub(crate) deadline: Option<Instant>,
    /// The pipe with its error messages; `None` once that has ended.
    pipe: Option<PipeReader>,
    said: Vec<u8>,
}

/// The child's end of the pipe for error messages.
pub(crate) struct Report(PipeWriter);

impl Report {
    /// Reports one error.
    pub(crate) fn say(&mut self, line: &str) {
        // The keeper closes the pipe when it has received enough.
        let _ = writeln!(self.0, "{line}");
    }
}

/// The result of starting a trial, in the parent and in the child.
pub(crate) enum StartedTrial {
    /// In the keeper.
    Keeper(Trial),
    /// In the child, which reads the configuration and then exits with the result.
    Reader(Report),
}

impl Trial {
    /// Forks the child.
    ///
    /// # Errors
    /// The system has no processes or memory left.
    pub(crate) fn start() -> io::Result<StartedTrial> {
        let (pipe, report) = io::pipe()?;
        rustix::io::ioctl_fionbio(&pipe, true)?;
        match fork()? {
            Forked::Parent(id) => Ok(StartedTrial::Keeper(Trial {
                pid: Pid::from_raw(id).expect("fork answers the id of a process"),
                deadline: Some(Instant::now() + READING_TIME),
                pipe: Some(pipe),
                said: Vec::new(),
            })),
            Forked::Child => {
                nix::sys::prctl::set_pdeathsig(Death::SIGKILL)?;
                Ok(StartedTrial::Reader(Report(report)))
            }
        }
    }

    /// The pipe to poll for error messages.
    pub(crate) fn says(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Reads the error messages that have arrived.
    pub(crate) fn hear(&mut self) {
        while let Some(pipe) = &mut self.pipe {
            let mut buffer = [0; 4096];
            match pipe.read(&mut buffer) {
                Ok(count) if count > 0 && self.said.len() < SAID_BYTES_MAX => {
                    self.said.extend_from_slice(&buffer[..count]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => self.pipe = None,
            }
        }
    }

    /// The error messages so far, line by line.
    pub(crate) fn lines(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.said);
        text.lines().map(str::to_owned).collect()
    }

    /// How the child ended, once it has.
    pub(crate) fn wait(&self) -> Option<WaitStatus> {
        let waited = waitpid(Some(self.pid), WaitOptions::NOHANG).ok().flatten();
        waited.map(|(_, status)| status)
    }

    /// Kills the child when its time is up.
    pub(crate) fn check_deadline(&mut self, now: Instant) {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.kill();
        }
    }

    /// Kills the child.
    pub(crate) fn kill(&mut self) {
        // The keeper has not reaped the process yet, so its id cannot belong to another one.
        let _ = kill_process(self.pid, Signal::KILL);
        self.deadline = None;
    }
}

/// The most bytes of error messages that the keeper keeps.
const SAID_BYTES_MAX: usize = 64 * 1024;
/// How long reading a configuration may take.
const READING_TIME: Duration = Duration::from_secs(30);
