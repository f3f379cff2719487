//! Replaces the configuration while the server serves.
//!
//! The keeper first opens what the new configuration needs, then starts a server process for it. The old
//! process is told to finish only when the new one serves. A failure before that leaves the old process as it
//! is.

use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::{Duration, Instant};

use config::{Diagnostics, Style};
use engine::worker::Cut;
use sd_notify::NotifyState;

use super::generation::{self, Generation};
use super::pid_file::PidFile;
use super::process::{ServerProcess, ServerStage, describe};
use super::trial::{Report, StartedTrial, Trial};
use super::{Again, Keeper, KeeperExit, Step, TrialState};
use crate::load;
use crate::server::configure_logs;
use crate::summary;
use crate::terminal::EXIT_FAILURE;
use crate::tls_files;

impl Keeper {
    /// Begins a reload: a separate process reads the new configuration first. If `cuts` is set, requests of
    /// older configurations are aborted as soon as the new one is served. Returns the number of the reload.
    pub(super) fn reload(&mut self, cuts: bool) -> u64 {
        if self.stopping.is_some() {
            return self.reloads;
        }
        if self.next.is_some() || !matches!(self.trial, TrialState::None) {
            let before = self.reload_again.take().is_some_and(|again| again.cuts);
            self.reload_again = Some(Again {
                cuts: cuts || before,
            });
            return self.reloads + 1;
        }
        self.reloads += 1;
        self.reload_cuts = cuts;
        // With Type=notify-reload systemd waits for READY=1 after this.
        let _ = NotifyState::monotonic_usec_now()
            .and_then(|now| sd_notify::notify(&[NotifyState::Reloading, now]));
        self.trial = TrialState::Wanted;
        self.reloads
    }

    /// Starts the wanted trial. The child that reads the configuration leaves the loop with its exit code.
    pub(super) fn start_trial(&mut self) -> Step {
        match Trial::start() {
            Ok(StartedTrial::Keeper(trial)) => self.trial = TrialState::Reading(trial),
            Ok(StartedTrial::Reader(report)) => {
                return ControlFlow::Break(KeeperExit::Exit(self.read_on_trial(report)));
            }
            Err(error) => {
                self.trial = TrialState::None;
                self.reload_failed(&error.to_string());
                self.reload_is_over(EXIT_FAILURE);
            }
        }
        ControlFlow::Continue(())
    }

    /// Checks whether the trial has ended. After a success, opens what the new configuration needs.
    pub(super) fn look_after_trial(&mut self) {
        let TrialState::Reading(trial) = &mut self.trial else {
            return;
        };
        trial.check_deadline(Instant::now());
        let ended = trial.wait();
        trial.hear();
        let Some(status) = ended else { return };
        let said = trial.lines();
        self.trial = TrialState::None;
        if self.stopping.is_some() {
            return;
        }
        match status.exit_status() {
            Some(0) => match self.open_next() {
                Ok(next) => self.next = Some(Rc::new(next)),
                Err(errors) => self.refuse(&errors),
            },
            Some(code) if code == i32::from(EXIT_FAILURE) => {
                for line in said {
                    self.reload_failed(&line);
                }
                self.reload_is_over(EXIT_FAILURE);
            }
            _ => {
                self.reload_failed(&format!("the process that read it {}", describe(status)));
                self.reload_is_over(EXIT_FAILURE);
            }
        }
    }

    /// In the child: reads the configuration. Returns the exit code.
    fn read_on_trial(&self, mut report: Report) -> u8 {
        let read = load::load(&self.origin).and_then(|loaded| {
            // If a file system does not answer, this process hangs instead of the keeper.
            tls_files::check(&loaded).map_err(|list| loaded.diagnostics(list))
        });
        match read {
            Ok(_) => 0,
            Err(errors) => {
                for line in load::error_lines(&errors) {
                    report.say(&line);
                }
                EXIT_FAILURE
            }
        }
    }

    fn refuse(&mut self, errors: &Diagnostics) {
        for line in load::error_lines(errors) {
            self.reload_failed(&line);
        }
        self.reload_is_over(EXIT_FAILURE);
    }

    fn reload_failed(&mut self, why: &str) {
        self.reload_says(format!("reload failed, the old configuration stays: {why}"));
    }

    /// Adds a message about the reload to the log, and to the reply for the command that requested the
    /// reload.
    fn reload_says(&mut self, line: String) {
        self.logs.error(format_args!("{line}"));
        self.reload_says.push(line);
    }

    fn open_next(&mut self) -> Result<Generation, Diagnostics> {
        let loaded = load::load(&self.origin)?;
        for warning in load::warning_lines(&loaded) {
            self.reload_says(warning);
        }
        for line in summary::lines(&loaded) {
            self.reload_says(line);
        }
        self.generations += 1;
        let before = self.current.listeners.borrow();
        let (inherited, logs) = (&self.inherited, &self.logs);
        let number = self.generations;
        let opened = Generation::open(
            number,
            loaded,
            &before,
            self.current.tls.as_ref(),
            inherited,
            logs,
            &mut self.backends,
        );
        drop(before);
        let opened = opened?;
        for warning in &opened.diagnostics {
            let sources = &opened.generation.loaded.config.sources;
            self.reload_says(config::render(warning, sources, Style::Line));
        }
        for warning in opened.warnings {
            self.reload_says(warning);
        }
        Ok(opened.generation)
    }

    /// The process with number `index` serves the next configuration, which becomes the current one.
    pub(super) fn adopt_next(&mut self, generation: Rc<Generation>, index: usize) {
        let time = time_of(self.current.loaded.process.drain.reload_s);
        let cuts = std::mem::take(&mut self.reload_cuts);
        for (other, process) in self.processes.iter_mut().enumerate() {
            match process.stage {
                _ if other == index => {}
                ServerStage::Starting | ServerStage::Serving | ServerStage::Draining if cuts => {
                    process.stop(Cut::ReloadNow);
                }
                ServerStage::Starting | ServerStage::Serving => process.succeed(time),
                ServerStage::Preparing => process.stop(Cut::StopNow),
                ServerStage::Draining | ServerStage::Stopping => {}
            }
        }
        self.next = None;
        self.start_at = None;
        let before = std::mem::replace(&mut self.current, generation);
        // Closes the sockets that the new configuration does not have. The old process still accepts the
        // connections queued there, then closes its copies.
        before.listeners.take();
        configure_logs(&self.logs, &self.current.loaded);
        self.close_unused_logs();
        self.move_pid_file();
        match self.open_command_socket() {
            Ok(None) => {}
            Ok(Some(warning)) => self.reload_says(warning),
            Err(errors) => self.reload_says(errors.to_string()),
        }
        self.cut_oldest();
        let id = self.processes.get(index).map_or(0, ServerProcess::id);
        self.reload_says(format!(
            "configuration reloaded, server process {id} serves it"
        ));
        self.reload_is_over(0);
    }

    /// Gives up the new configuration, because it cannot be served.
    pub(super) fn give_up_next(&mut self, why: &str) {
        self.next = None;
        self.close_unused_logs();
        self.reload_failed(why);
        self.reload_is_over(EXIT_FAILURE);
    }

    /// Stops the oldest draining server processes if there are more than the configuration allows.
    fn cut_oldest(&mut self) {
        let Some(most) = self.current.loaded.process.drain.generations else {
            return;
        };
        let draining = |process: &&mut ServerProcess| process.stage == ServerStage::Draining;
        let count = self.processes.iter_mut().filter(draining).count();
        // `processes` is in the order in which they were started.
        let oldest = self.processes.iter_mut().filter(draining);
        for process in oldest.take(count.saturating_sub(most.into())) {
            process.stop(Cut::TooManyGenerations);
            let id = process.id();
            self.logs.error(format_args!(
                "server process {id} aborts its remaining requests and ends: {most} others with earlier \
                 configurations may go on (server.drain-generations)"
            ));
        }
    }

    fn reload_is_over(&mut self, code: u8) {
        let _ = sd_notify::notify(&[NotifyState::Ready]);
        self.answer_reloads(code);
        if let Some(again) = self.reload_again.take() {
            self.reload(again.cuts);
        }
    }

    fn move_pid_file(&mut self) {
        let wanted = self.current.loaded.process.pid_file.as_deref();
        let wanted = wanted.and_then(|path| std::path::absolute(path).ok());
        if self.pid_file.as_ref().map(PidFile::path) == wanted.as_deref() {
            return;
        }
        match write_pid_file(&self.current) {
            Ok(file) => self.pid_file = file,
            Err(errors) => self.logs.error(format_args!("{errors}")),
        }
    }
}

/// Writes `server.pid-file`, if it is set.
pub(super) fn write_pid_file(generation: &Generation) -> Result<Option<PidFile>, Diagnostics> {
    let Some(path) = &generation.loaded.process.pid_file else {
        return Ok(None);
    };
    let written = PidFile::write(path);
    written.map(Some).map_err(|error| {
        let message = format!("writing the pid file {} failed: {error}", path.display());
        generation::refuse(&generation.loaded, message, None)
    })
}

/// A time limit of the configuration, in seconds, as a duration. `None` means no limit.
pub(super) fn time_of(limit_s: Option<u32>) -> Duration {
    Duration::from_secs(limit_s.map_or(UNLIMITED_S, u64::from))
}

/// A year, which stands for no limit.
const UNLIMITED_S: u64 = 365 * 24 * 3600;
