//! One process of a backend program, and what it has started itself.
//!
//! The process leads a session and a process group of its own. It is waited for last: until then
//! its id cannot become another group's, so that no signal hits a stranger.

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
    /// When it is killed; it was told to end before.
    kill_at: Option<Instant>,
    /// The process itself has ended. Others of its group may not have.
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

    /// Its process id.
    pub(super) fn id(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// How it ended, once: when that is first seen. Those it has started may still be there.
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
            // Somebody else has waited for it: nothing more is known.
            Err(_) => ProcessEnd {
                signal: None,
                code: None,
            },
        };
        self.has_ended = true;
        Some(end)
    }

    /// Tells it and all of its group to end, by `signal`; what is left after some time is killed.
    pub(super) fn tell_to_end(&mut self, signal: i32, now: Instant) {
        if self.kill_at.is_none() {
            let grace = match self.has_ended {
                // Children without the process that looked after them.
                true => ORPHAN_GRACE,
                false => KILL_GRACE,
            };
            // An empty group has ended, which is what is wanted.
            let _ = sys::child::signal_group(self.id(), signal);
            self.kill_at = Some(now + grace);
        }
    }

    /// Kills it and all of its group now.
    pub(super) fn kill(&mut self, now: Instant) {
        let _ = sys::child::signal_group(self.id(), Signal::SIGKILL as i32);
        self.kill_at = Some(now + AGAIN);
    }

    /// Whether it was told to end and is gone with all of its group. Pushes it on when its time is up.
    pub(super) fn is_gone(&mut self, now: Instant) -> bool {
        let Some(kill_at) = self.kill_at else {
            return false;
        };
        self.ended();
        if self.has_ended && !group::has_others(self.id()) {
            let _ = waitpid(Some(self.pid), WaitOptions::NOHANG);
            return true;
        }
        if kill_at <= now {
            self.kill(now);
        }
        false
    }

    /// When [`BackendProcess::is_gone`] wants to look again, whatever signal comes.
    pub(super) fn deadline(&self, now: Instant) -> Option<Instant> {
        match self.has_ended {
            // The end of its children is told to nobody.
            true => Some(now + LOOK_EVERY),
            false => self.kill_at,
        }
    }
}

impl ProcessEnd {
    /// Whether it ended by itself without complaint, as programs do after some number of requests.
    pub(super) fn is_clean(self) -> bool {
        self.code == Some(0)
    }

    /// In words.
    pub(super) fn describe(self) -> String {
        describe_end(self.signal, self.code)
    }
}

/// How long a process may take to end when told to, before it is killed.
pub(super) const KILL_GRACE: Duration = Duration::from_secs(5);
/// The same for what a process that has ended left behind. php-cgi's children wait for one more request
/// then, however often they are told to end.
const ORPHAN_GRACE: Duration = Duration::from_secs(1);
/// How often the group of a process that has ended is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// When a group that was killed is killed again, for what it started meanwhile.
const AGAIN: Duration = Duration::from_millis(200);
