//! Reading a new configuration in a process of its own first.
//!
//! A file whose `include_shell` hangs, or that finds a defect in the reader, then costs that
//! process and not the keeper. The price: at a reload such commands run twice.

use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal as Death;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};
use sys::process::{Forked, fork};

/// The process that reads.
pub(crate) struct Trial {
    pid: Pid,
    /// When it is given up; none once it was.
    pub(crate) deadline: Option<Instant>,
    /// Where it says what is wrong; none once that has ended.
    pipe: Option<PipeReader>,
    said: Vec<u8>,
}

/// Where the reading process says what is wrong.
pub(crate) struct Report(PipeWriter);

impl Report {
    /// Says one thing that is wrong.
    pub(crate) fn say(&mut self, line: &str) {
        // A keeper that has heard enough wants no more.
        let _ = writeln!(self.0, "{line}");
    }
}

/// What comes of starting a trial, in each of the two processes.
pub(crate) enum StartedTrial {
    /// In the keeper.
    Keeper(Trial),
    /// In the process that is to read the configuration and to end with what came of it.
    Reader(Report),
}

impl Trial {
    /// Forks the process.
    ///
    /// # Errors
    /// Processes or memory have run out.
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

    /// What becomes readable when it says what is wrong.
    pub(crate) fn says(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Hears what it has said so far.
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

    /// What it has said, line by line.
    pub(crate) fn lines(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.said);
        text.lines().map(str::to_owned).collect()
    }

    /// How it ended, once it has.
    pub(crate) fn wait(&self) -> Option<WaitStatus> {
        let waited = waitpid(Some(self.pid), WaitOptions::NOHANG).ok().flatten();
        waited.map(|(_, status)| status)
    }

    /// Ends it when its time is up.
    pub(crate) fn check_deadline(&mut self, now: Instant) {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.kill();
        }
    }

    /// Ends it.
    pub(crate) fn kill(&mut self) {
        // It exists until it is waited for, so this cannot hit another process.
        let _ = kill_process(self.pid, Signal::KILL);
        self.deadline = None;
    }
}

/// Bytes of what it says that are kept.
const SAID_BYTES_MAX: usize = 64 * 1024;
/// How long reading a configuration may take.
const READING_TIME: Duration = Duration::from_secs(30);
