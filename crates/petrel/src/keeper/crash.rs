//! What follows when a server process ends: whether and when another one is started.

use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::{Duration, Instant};

use engine::log::LogTarget;

use super::generation::Generation;
use super::process::{ServerProcess, ServerStage, describe};
use super::{Keeper, KeeperExit, Step};
use crate::terminal::{self, EXIT_FAILURE};

impl Keeper {
    /// Removes the server processes that have ended, and acts on each.
    pub(super) fn bury(&mut self) -> Step {
        let mut index = 0;
        while let Some(process) = self.processes.get_mut(index) {
            let Some(status) = process.wait() else {
                index += 1;
                continue;
            };
            // Its last messages may have arrived in between.
            self.hear(index);
            let process = self.processes.remove(index);
            self.close_unused_logs();
            let mut how = describe(status);
            if let Some(reason) = &process.reason {
                how = format!("{how}: {reason}");
            }
            if status.exit_status() != Some(0) && process.stage >= ServerStage::Draining {
                // The server continues to serve, but requests of an earlier configuration may have been
                // aborted.
                let id = process.id();
                self.logs.error(format_args!(
                    "server process {id} {how} while it was ending"
                ));
            }
            let has_served = process.stage >= ServerStage::Serving;
            if status.exit_status() != Some(0) && has_served && self.stopping.is_none() {
                self.report_crash(&process)?;
            }
            self.ended(process, &how)?;
        }
        ControlFlow::Continue(())
    }

    fn ended(&mut self, process: ServerProcess, how: &str) -> Step {
        let id = process.id();
        let (stage, generation) = (process.stage, process.generation);
        match stage {
            _ if self.stopping.is_some() => {}
            ServerStage::Preparing | ServerStage::Starting => {
                let reason = process.reason.unwrap_or_else(|| how.to_owned());
                self.could_not_start(&generation, &reason)?;
            }
            ServerStage::Stopping if !self.has_served || self.is_next(&generation) => {
                self.could_not_start(&generation, how)?;
            }
            ServerStage::Serving => {
                let delay = self.plan_restart(process.started).as_millis();
                self.logs.error(format_args!(
                    "server process {id} {how}; starting another one in {delay} ms"
                ));
            }
            ServerStage::Stopping if !self.is_served() => {
                self.plan_restart(process.started);
            }
            ServerStage::Draining | ServerStage::Stopping => {}
        }
        ControlFlow::Continue(())
    }

    fn is_next(&self, generation: &Rc<Generation>) -> bool {
        self.next
            .as_ref()
            .is_some_and(|next| Rc::ptr_eq(next, generation))
    }

    /// Whether a process serves the current configuration or is about to.
    fn is_served(&self) -> bool {
        let serves = [
            ServerStage::Preparing,
            ServerStage::Starting,
            ServerStage::Serving,
        ];
        self.processes.iter().any(|process| {
            Rc::ptr_eq(&process.generation, &self.current) && serves.contains(&process.stage)
        })
    }

    /// Schedules a new server process: soon after a first crash, later after several. Returns the delay.
    fn plan_restart(&mut self, started: Instant) -> Duration {
        let delay = self.backoff.pause(started.elapsed());
        self.start_at = Some(Instant::now() + delay);
        delay
    }

    /// A server process could not start. If none has ever served, the keeper exits. If the process was
    /// started for a reload, the new configuration is given up; else the start is tried again.
    pub(super) fn could_not_start(&mut self, generation: &Rc<Generation>, why: &str) -> Step {
        if self.is_next(generation) {
            self.give_up_next(why);
        } else if self.has_served {
            self.logs
                .error(format_args!("the server process could not start: {why}"));
            self.plan_restart(Instant::now());
        } else {
            self.logs
                .error(format_args!("the server process could not start: {why}"));
            if self.current.loaded.process.error_log != LogTarget::Stderr {
                terminal::complain(format_args!(
                    "petrel: the server process could not start: {why}"
                ));
            }
            self.backends.finish(&self.logs);
            return ControlFlow::Break(KeeperExit::Exit(EXIT_FAILURE));
        }
        ControlFlow::Continue(())
    }
}
