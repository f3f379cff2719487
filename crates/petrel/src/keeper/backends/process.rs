//! One process of a backend program, together with the processes that it has started.
//!
//! The process leads a session and a process group of its own. The keeper reaps it last: until then the
//! kernel cannot give its id to another group, so that no signal reaches an unrelated process.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions, waitid, waitpid};

use super::group;
use crate::keeper::process::describe_end;

/// A process of a backend program.
#[derive(Debug)]
pub(super) struct BackendProcess {
    pid: Pid,
    /// When it was started.
    pub(super) started: Instant,
    /// When the process is killed. It was told to end before.
    kill_at: Option<Instant>,
    /// The process itself has ended, but members of its group may still run.
    has_ended: bool,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessEnd {
    /// The signal that killed it.
    signal: Option<i32>,
    /// Its exit code.
    code: Option<i32>,
}

impl BackendProcess {
    pub(super) fn new(pid: Pid, now: Instant) -> BackendProcess {
        BackendProcess {
            pid,
            started: now,
            kill_at: None,
            has_ended: false,
        }
    }

    /// The process id.
    pub(super) fn id(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// How the process ended. Returns this once, when it is first noticed. Members of its group may still
    /// run.
    pub(super) fn ended(&mut self) -> Option<ProcessEnd> {
        if self.has_ended {
            return None;
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let end = match waitid(WaitId::Pid(self.pid), options) {
            Ok(Some(status)) => ProcessEnd {
                signal: status.terminating_signal(),
                code: status.exit_status(),
            },
            Ok(None) => return None,
            // The process was reaped elsewhere, so its exit status is unknown.
            Err(_) => ProcessEnd {
                signal: None,
                code: None,
            },
        };
        self.has_ended = true;
        Some(end)
    }

    /// Sends `signal` to the process and its group. What is left after some time is killed.
    pub(super) fn tell_to_end(&mut self, signal: i32, now: Instant) {
        if self.kill_at.is_none() {
            let grace = match self.has_ended {
                // Only children are left, without the process that managed them.
                true => ORPHAN_GRACE,
                false => KILL_GRACE,
            };
            // This fails if the group is empty, which means that everything has ended.
            let _ = sys::child::signal_group(self.id(), signal);
            self.kill_at = Some(now + grace);
        }
    }

    /// Kills the process and its group now.
    pub(super) fn kill(&mut self, now: Instant) {
        let _ = sys::child::signal_group(self.id(), Signal::SIGKILL as i32);
        self.kill_at = Some(now + AGAIN);
    }

    /// Whether the process was told to end and is gone with its whole group. Kills them when their time is
    /// up.
    pub(super) fn is_gone(&mut self, now: Instant) -> bool {
        let Some(kill_at) = self.kill_at else {
            return false;
        };
        self.ended();
        if self.has_ended && !group::has_others(self.id()) {
            // Reaped only now: until here the kernel could not reuse the id of the process and its group.
            let _ = waitpid(Some(self.pid), WaitOptions::NOHANG);
            return true;
        }
        if kill_at <= now {
            self.kill(now);
        }
        false
    }

    /// When to call [`BackendProcess::is_gone`] next, even if no signal arrives.
    pub(super) fn deadline(&self, now: Instant) -> Option<Instant> {
        match self.has_ended {
            // The keeper gets no SIGCHLD for the process's children, so it has to look.
            true => Some(now + LOOK_EVERY),
            false => self.kill_at,
        }
    }
}

impl ProcessEnd {
    /// Whether it exited with code 0, as programs do after some number of requests.
    pub(super) fn is_clean(self) -> bool {
        self.code == Some(0)
    }

    /// A description for messages.
    pub(super) fn describe(self) -> String {
        describe_end(self.signal, self.code)
    }
}

/// How long a process may take to end before it is killed.
pub(super) const KILL_GRACE: Duration = Duration::from_secs(5);
/// The same for processes that a backend left behind when it ended. php-cgi's children, for one, wait for one
/// more request before they end, however many signals they get.
const ORPHAN_GRACE: Duration = Duration::from_secs(1);
/// How often to look at the group of a process that has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// When to kill a group again, because a member may have started another process in between.
const AGAIN: Duration = Duration::from_millis(200);
