//! Reading a new configuration in a process of its own first.
//!
//! A file whose `include_shell` hangs, or that finds a defect in the reader, then costs that
//! process and not the keeper. The price: at a reload such commands run twice.

use std::io;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal as Death;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};
use sys::process::{Forked, fork};

/// The process that reads.
pub struct Trial {
    pid: Pid,
    /// When it is given up; none once it was.
    pub deadline: Option<Instant>,
}

/// What comes of starting a trial, in each of the two processes.
pub enum Started {
    /// In the keeper.
    Keeper(Trial),
    /// In the process that is to read the configuration and to end with what came of it.
    Reader,
}

impl Trial {
    /// Forks the process.
    ///
    /// # Errors
    /// Processes or memory have run out.
    pub fn start() -> io::Result<Started> {
        match fork()? {
            Forked::Parent(id) => Ok(Started::Keeper(Trial {
                pid: Pid::from_raw(id).expect("fork answers the id of a process"),
                deadline: Some(Instant::now() + READING_TIME),
            })),
            Forked::Child => {
                nix::sys::prctl::set_pdeathsig(Death::SIGKILL)?;
                Ok(Started::Reader)
            }
        }
    }

    /// How it ended, once it has.
    pub fn wait(&self) -> Option<WaitStatus> {
        let waited = waitpid(Some(self.pid), WaitOptions::NOHANG).ok().flatten();
        waited.map(|(_, status)| status)
    }

    /// Ends it when its time is up.
    pub fn check_deadline(&mut self, now: Instant) {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.kill();
        }
    }

    /// Ends it.
    pub fn kill(&mut self) {
        // It exists until it is waited for, so this cannot hit another process.
        let _ = kill_process(self.pid, Signal::KILL);
        self.deadline = None;
    }
}

/// How long reading a configuration may take.
const READING_TIME: Duration = Duration::from_secs(30);
