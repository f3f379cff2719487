//! One program with its socket and its processes: decides how many processes there are, when one is
//! restarted, and when all are stopped.
//!
//! While a program is restarted its socket stays open, so that requests wait for it. The socket of a program
//! that keeps dying is closed until the next start: requests are then refused at once.

use std::time::{Duration, Instant};

use engine::log::LogRegistry;
use nix::sys::signal::Signal;

use super::PoolId;
use super::output::ErrorOutput;
use super::plan::ProgramPlan;
use super::process::BackendProcess;
use crate::keeper::backoff::Backoff;
use crate::spawn::{ProgramSocket, SpawnedProgram};

/// A running program of the configuration.
pub(super) struct Pool {
    pub(super) id: PoolId,
    pub(super) plan: ProgramPlan,
    /// `None` while no process runs and the next start is some time away.
    pub(super) socket: Option<ProgramSocket>,
    /// One slot for each process that should exist. The process runs or will be started soon.
    slots: Vec<ProcessSlot>,
    /// Processes that were told to end, or have ended but left other members of their process group behind.
    ending: Vec<BackendProcess>,
    /// When the server process last reported too few processes.
    overloaded: Option<Instant>,
    /// Set for a short time after such a report.
    watch: Option<Watch>,
    stage: ProcessStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcessStage {
    /// The socket is open; no process was started.
    Opened,
    /// The processes run.
    Running,
    /// No server process needs the program any more; its processes are being stopped.
    Ending,
}

/// Checks of the socket's accept queue after a report of overload.
#[derive(Clone, Copy, Debug)]
struct Watch {
    next: Instant,
    until: Instant,
}

/// A slot for one process.
struct ProcessSlot {
    process: Option<BackendProcess>,
    /// When to start a process, if none runs.
    start_at: Option<Instant>,
    backoff: Backoff,
}

impl Default for ProcessSlot {
    fn default() -> ProcessSlot {
        ProcessSlot {
            process: None,
            start_at: None,
            backoff: Backoff::up_to(PAUSE_MAX),
        }
    }
}

impl Pool {
    pub(super) fn new(id: PoolId, plan: ProgramPlan, socket: ProgramSocket) -> Pool {
        Pool {
            id,
            plan,
            socket: Some(socket),
            slots: Vec::new(),
            ending: Vec::new(),
            overloaded: None,
            watch: None,
            stage: ProcessStage::Opened,
        }
    }

    /// Starts the smallest number of processes (`min-procs`). Further calls do nothing.
    ///
    /// # Errors
    /// The program does not start, as a sentence. Then none of its processes runs.
    pub(super) fn start(&mut self, logs: &LogRegistry, detached: bool) -> Result<(), String> {
        if self.stage != ProcessStage::Opened {
            return Ok(());
        }
        for _ in 0..self.plan.spec.processes_min {
            let mut slot = ProcessSlot::default();
            match self.run(logs, detached) {
                Ok(process) => slot.process = Some(process),
                Err(why) => {
                    self.end(Instant::now());
                    return Err(why);
                }
            }
            self.slots.push(slot);
        }
        self.stage = ProcessStage::Running;
        let (program, address) = (self.plan.program(), self.plan.address());
        let ids: Vec<String> = self.ids().map(|id| id.to_string()).collect();
        logs.error(format_args!(
            "backend {program} listens on {address}: process {}",
            ids.join(", ")
        ));
        Ok(())
    }

    /// Whether a new configuration may share this pool.
    pub(super) fn is_usable(&self) -> bool {
        self.stage != ProcessStage::Ending
    }

    /// The server process reports too few processes. One more is started. For a while the keeper then checks
    /// the socket's accept queue and starts further ones if connections are waiting there.
    pub(super) fn overload(&mut self, now: Instant) {
        if self.stage == ProcessStage::Running && self.grow(now) {
            self.watch = Some(Watch {
                next: now + WATCH_EVERY,
                until: now + WATCH_TIME,
            });
        }
    }

    /// Adds a slot for one more process. Returns false if there are as many as allowed.
    fn grow(&mut self, now: Instant) -> bool {
        self.overloaded = Some(now);
        if self.slots.len() >= self.plan.spec.processes_max as usize {
            return false;
        }
        self.slots.push(ProcessSlot {
            start_at: Some(now),
            ..ProcessSlot::default()
        });
        true
    }

    /// Checks the accept queue. One report may stand for many requests, so processes are added as long as
    /// connections wait.
    fn watch(&mut self, now: Instant) {
        let Some(watch) = self.watch.filter(|watch| watch.next <= now) else {
            return;
        };
        let has_waiting = self.socket.as_ref().is_some_and(ProgramSocket::has_waiting);
        let grows = has_waiting && self.grow(now);
        let until = if grows { now + WATCH_TIME } else { watch.until };
        self.watch = (now < until).then_some(Watch {
            next: now + WATCH_EVERY,
            until,
        });
    }

    /// Notes which processes have ended, starts those that are due, stops those that are no longer needed, and
    /// closes the socket if no process runs for a while.
    pub(super) fn tend(&mut self, logs: &LogRegistry, detached: bool, now: Instant) {
        self.look(logs, now);
        self.watch(now);
        self.shrink(now);
        for index in 0..self.slots.len() {
            let is_due = |slot: &ProcessSlot| slot.start_at.is_some_and(|at| at <= now);
            if self.slots.get(index).is_some_and(is_due) {
                self.start_again(index, logs, detached, now);
            }
        }
        self.close_if_down(logs, now);
        self.ending.retain_mut(|process| !process.is_gone(now));
    }

    /// Closes the socket if no process runs and none will be started soon. The kernel then resets the
    /// connections that wait in its queue, and refuses new ones.
    fn close_if_down(&mut self, logs: &LogRegistry, now: Instant) {
        let runs = self.slots.iter().any(|slot| slot.process.is_some());
        let Some(at) = self.slots.iter().filter_map(|slot| slot.start_at).min() else {
            return;
        };
        let pause = at.saturating_duration_since(now);
        if runs || pause < DOWN_FROM || self.socket.take().is_none() {
            return;
        }
        logs.error(format_args!(
            "backend {} ({}): no process runs; requests are refused until the next start in {} ms",
            self.plan.program(),
            self.plan.address(),
            pause.as_millis()
        ));
    }

    /// Tells all processes to end.
    pub(super) fn end(&mut self, now: Instant) {
        self.stage = ProcessStage::Ending;
        self.watch = None;
        let processes = self.slots.drain(..).filter_map(|slot| slot.process);
        self.ending.extend(processes);
        for process in &mut self.ending {
            process.tell_to_end(self.plan.spec.kill_signal, now);
        }
    }

    /// Kills all remaining processes.
    pub(super) fn kill(&mut self, now: Instant) {
        self.end(now);
        self.ending.iter_mut().for_each(|process| process.kill(now));
    }

    /// Whether the program is stopped and all its processes are gone.
    pub(super) fn is_gone(&self) -> bool {
        self.stage == ProcessStage::Ending && self.ending.is_empty()
    }

    /// When the next action is due, even if no process ends.
    pub(super) fn deadline(&self, now: Instant) -> Option<Instant> {
        let starts = self.slots.iter().filter_map(|slot| slot.start_at);
        let ends = self
            .ending
            .iter()
            .filter_map(|process| process.deadline(now));
        let watch = self.watch.map(|watch| watch.next);
        let all = starts.chain(ends).chain(watch);
        all.chain(self.shrink_at()).min()
    }

    /// The ids of the processes that were not told to end.
    fn ids(&self) -> impl Iterator<Item = i32> {
        self.slots
            .iter()
            .filter_map(|slot| Some(slot.process.as_ref()?.id()))
    }

    fn look(&mut self, logs: &LogRegistry, now: Instant) {
        for slot in &mut self.slots {
            let Some(end) = slot.process.as_mut().and_then(BackendProcess::ended) else {
                continue;
            };
            let Some(mut process) = slot.process.take() else {
                continue;
            };
            let lived = now.duration_since(process.started);
            // Programs exit on purpose after some number of requests. Then the next process starts without a
            // pause.
            let pause = match end.is_clean() && lived >= WORKED {
                true => Duration::ZERO,
                false => slot.backoff.pause(lived),
            };
            slot.start_at = Some(now + pause);
            logs.error(format_args!(
                "backend {} (process {}, {}) {}; starting another one in {} ms",
                self.plan.program(),
                process.id(),
                self.plan.address(),
                end.describe(),
                pause.as_millis()
            ));
            process.tell_to_end(self.plan.spec.kill_signal, now);
            self.ending.push(process);
        }
    }

    fn start_again(&mut self, index: usize, logs: &LogRegistry, detached: bool, now: Instant) {
        let opened = self.open_again();
        let started = opened.and_then(|()| self.run(logs, detached));
        let Some(slot) = self.slots.get_mut(index) else {
            return;
        };
        slot.start_at = None;
        match started {
            Ok(process) => slot.process = Some(process),
            Err(why) => {
                let pause = slot.backoff.pause(Duration::ZERO);
                slot.start_at = Some(now + pause);
                logs.error(format_args!(
                    "{why}; trying again in {} ms",
                    pause.as_millis()
                ));
            }
        }
    }

    /// Stops processes beyond the smallest number, the newest first, one at a time, when there was no
    /// overload for some time.
    fn shrink(&mut self, now: Instant) {
        if self.shrink_at().is_none_or(|at| now < at) {
            return;
        }
        self.overloaded = Some(now);
        let Some(slot) = self.slots.pop() else { return };
        if let Some(mut process) = slot.process {
            process.tell_to_end(self.plan.spec.kill_signal, now);
            self.ending.push(process);
        }
    }

    fn shrink_at(&self) -> Option<Instant> {
        let has_more = self.slots.len() > self.plan.spec.processes_min as usize;
        let overloaded = self.overloaded.filter(|_| has_more)?;
        // With an `idle-timeout` of 0 each report would start a process and stop it at once.
        Some(overloaded + self.plan.spec.idle_timeout.max(SHRINK_AFTER_MIN))
    }

    fn open_again(&mut self) -> Result<(), String> {
        if self.socket.is_none() {
            self.socket = Some(self.plan.open_socket(false)?);
        }
        Ok(())
    }

    fn run(&self, logs: &LogRegistry, detached: bool) -> Result<BackendProcess, String> {
        let plan = &self.plan;
        let Some(socket) = &self.socket else {
            return Err(format!("bin-path: {} has no socket", plan.program()));
        };
        let errors = ErrorOutput::find(&plan.errors, logs, detached);
        let directory = plan.directory();
        let program = SpawnedProgram {
            command: &plan.command(),
            environment: &plan.environment(),
            root: plan.root.as_deref(),
            directory: directory.as_deref(),
            identity: &plan.identity,
            socket: socket.as_fd(),
            output: errors.as_output(),
            parting_signal: Signal::try_from(plan.spec.kill_signal)
                .ok()
                .or(Some(Signal::SIGTERM)),
        };
        match program.start() {
            Ok(pid) => Ok(BackendProcess::new(pid, Instant::now())),
            Err(error) => Err(format!(
                "bin-path: {} does not start: {}",
                plan.program(),
                error.message
            )),
        }
    }
}

/// The longest pause before the restart of a program that keeps crashing.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// The socket is closed if no process runs and the next start is this far away. Shorter pauses are no longer than
/// requests may wait: with those that come before, 1.5 s in all.
const DOWN_FROM: Duration = Duration::from_secs(1);
/// A process that lived this long and exited without an error counts as having worked.
const WORKED: Duration = Duration::from_millis(100);
/// How often the accept queue is checked after a report of overload.
const WATCH_EVERY: Duration = Duration::from_millis(100);
/// How long the accept queue is checked after a report of overload.
const WATCH_TIME: Duration = Duration::from_secs(1);
/// The shortest time without overload before a process is stopped.
const SHRINK_AFTER_MIN: Duration = Duration::from_secs(1);
