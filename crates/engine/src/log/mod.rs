//! Logs: where lines go, and the thread that takes them there.
//!
//! A line is handed over without waiting: each log has a bounded queue
//! ([`crate::limits::LOG_QUEUE_BYTES_MAX`]), which one thread of the process empties; lines that do
//! not fit are dropped and counted, and the error log says so. Error and access logs use the same
//! code, and so do files, pipes to commands and syslog.
//!
//! [`LogRegistry::open`] opens everything and starts no thread: until [`LogRegistry::start`],
//! lines are written by whoever logs them, so that privileges can be dropped in between and a
//! single-threaded process can log at all. A process that cannot open files itself gets them by
//! [`LogRegistry::adopt`].
//!
//! [`Rotations`] notices files that were renamed or removed, for the process that opens them.
//!
//! Knows nothing of requests or of what lines mean: those are `modules/access_log` and whoever
//! has an error to tell.
#![expect(clippy::disallowed_methods, reason = "log threads have no worker")]

mod error_lines;
mod handle;
mod links;
pub mod local_time;
mod outlet;
mod pipe;
mod queue;
mod rotation;
mod syslog;
mod target;
mod writer;

#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use error_lines::TimePrecision;
pub use handle::LogHandle;
pub use outlet::FileOwner;
pub use rotation::Rotations;
pub use syslog::{SyslogFacility, SyslogLevel};
pub use target::LogTarget;

use handle::{Log, lock};
use outlet::Outlet;
use writer::Common;

/// All logs of the process. The default one has standard error only. Clones are the same registry.
#[derive(Clone)]
pub struct LogRegistry {
    /// None: handles go nowhere.
    common: Option<Arc<Common>>,
}

impl Default for LogRegistry {
    fn default() -> Self {
        let registry = LogRegistry {
            common: Some(Arc::default()),
        };
        registry.insert(LogTarget::Stderr, None, Outlet::Stderr);
        registry
    }
}

impl LogRegistry {
    /// A registry whose handles go nowhere: for checks.
    pub fn discarding() -> LogRegistry {
        LogRegistry { common: None }
    }

    /// Opens standard error and all of `targets`, and reads the time zone, as what follows may be
    /// a chroot.
    ///
    /// # Errors
    /// The first target that cannot be opened; the message names it.
    pub fn open(targets: impl IntoIterator<Item = LogTarget>) -> io::Result<LogRegistry> {
        local_time::load_zone();
        let registry = LogRegistry::default();
        registry.add(targets)?;
        Ok(registry)
    }

    /// Opens those of `targets` that are not open yet: for a reload.
    ///
    /// # Errors
    /// The first target that cannot be opened; then none of the new ones is kept.
    pub fn add(&self, targets: impl IntoIterator<Item = LogTarget>) -> io::Result<()> {
        self.add_below(None, FileOwner::default(), targets)
    }

    /// The same for files whose paths start from `root`: a chroot this process is not in, while
    /// the configuration was written for one that is. A log that is open already stays where it is.
    /// Files that are made belong to `owner`.
    ///
    /// # Errors
    /// As with [`LogRegistry::add`]. Below a root, files need openat2 (Linux 5.6).
    pub fn add_below(
        &self,
        root: Option<&Path>,
        owner: FileOwner,
        targets: impl IntoIterator<Item = LogTarget>,
    ) -> io::Result<()> {
        let Some(common) = &self.common else {
            return Ok(());
        };
        let mut opened: Vec<(LogTarget, Outlet)> = Vec::new();
        for target in targets {
            let is_there = opened.iter().any(|(known, _)| *known == target);
            if !is_there && common.find(&target).is_none() {
                let outlet = Outlet::open(&target, root, owner)?;
                opened.push((target, outlet));
            }
        }
        for (target, outlet) in opened {
            self.insert(target, root, outlet);
        }
        Ok(())
    }

    /// Closes the logs that are not among `targets`, after what is queued for them was written or
    /// `limit` was over. Handles to them go nowhere from then on. Standard error and syslog stay.
    pub fn retain(&self, targets: &[LogTarget], limit: Duration) {
        let Some(common) = &self.common else { return };
        let stays = |target: &LogTarget| {
            matches!(target, LogTarget::Stderr | LogTarget::Syslog) || targets.contains(target)
        };
        if common.logs_are_all(&stays) {
            return;
        }
        self.flush(limit);
        let closing = common.remove_logs(&stays);
        close_all(&closing, limit);
    }

    /// Takes over descriptors that another process opened: new logs, or new descriptors of logs
    /// that are open already, which then go on there.
    pub fn adopt(&self, descriptors: Vec<(LogTarget, OwnedFd)>) {
        let Some(common) = &self.common else { return };
        for (target, descriptor) in descriptors {
            let outlet = Outlet::adopt(&target, descriptor);
            match common.find(&target) {
                Some(log) => log.replace(outlet),
                None => self.insert(target, None, outlet),
            }
        }
    }

    /// Copies of the descriptors of all files and pipes, for [`LogRegistry::adopt`] in another
    /// process. Standard error is inherited, and syslog is connected to by each for itself.
    ///
    /// # Errors
    /// The process has no descriptor left.
    pub fn descriptors(&self) -> io::Result<Vec<(LogTarget, OwnedFd)>> {
        let logs = self.logs();
        let copies = logs.iter().filter_map(|log| {
            let copy = log.copy_descriptor()?;
            Some(copy.map(|descriptor| (log.target.clone(), descriptor)))
        });
        copies.collect()
    }

    /// Starts the thread that writes. After this, logging never waits. To be called when
    /// privileges are dropped; calling it again does nothing.
    ///
    /// # Errors
    /// The kernel refuses a thread.
    pub fn start(&self) -> io::Result<()> {
        self.common.as_ref().map_or(Ok(()), Common::start)
    }

    /// The targets of all logs that are open.
    pub fn targets(&self) -> Vec<LogTarget> {
        self.logs().iter().map(|log| log.target.clone()).collect()
    }

    /// The handle of `target`; one that goes nowhere if it was not opened. Syslog need not be
    /// opened before, unless a chroot hides its socket. The level there is [`SyslogLevel::INFO`].
    pub fn get(&self, target: &LogTarget) -> LogHandle {
        self.handle(target, SyslogLevel::INFO)
    }

    /// The handle for an error log: `target`, or the server's own.
    pub fn error_log(&self, target: Option<LogTarget>) -> LogHandle {
        match (target, &self.common) {
            (Some(target), _) => self.handle(&target, SyslogLevel::ERROR),
            (None, Some(common)) => common.error_handle(),
            (None, None) => LogHandle::default(),
        }
    }

    /// Makes `target` the server's own error log, for [`LogRegistry::error`] and for what there is
    /// to tell about logs.
    pub fn set_error_log(&self, target: LogTarget) {
        if let Some(common) = &self.common {
            *lock(&common.error_target) = Some(target);
        }
    }

    /// Writes to the server's own error log; to standard error if that was not opened.
    pub fn error(&self, message: std::fmt::Arguments<'_>) {
        if let Some(common) = &self.common {
            common.error_handle().error(message);
        }
    }

    /// How exact the time in error logs is (server.errorlog-high-precision).
    pub fn set_time_precision(&self, precision: TimePrecision) {
        if let Some(common) = &self.common {
            common.signals.set_precision(precision);
        }
    }

    /// The facility of syslog lines (server.syslog-facility).
    pub fn set_syslog_facility(&self, facility: SyslogFacility) {
        if let Some(common) = &self.common {
            common.signals.set_facility(facility);
        }
    }

    /// Opens every file anew, as a rotation wants it. What was logged before still goes to the
    /// old one. A file that cannot be opened goes on as it was and the error log says so. Files
    /// that are made belong to `owner`.
    ///
    /// # Errors
    /// The last file that could not be opened.
    pub fn reopen_all(&self, owner: FileOwner) -> io::Result<()> {
        let mut result = Ok(());
        for log in self.logs() {
            if let Err(error) = log.reopen(owner) {
                self.error(format_args!("{error}"));
                result = Err(error);
            }
        }
        result
    }

    /// Starts commands again that died, each after its pause. Returns the new writing ends, for
    /// a process that adopted the old ones. Where the writer runs, it does this by itself.
    pub fn tend(&self) -> Vec<(LogTarget, OwnedFd)> {
        let mut renewed = Vec::new();
        for log in self.logs() {
            log.tend(&mut renewed);
        }
        renewed
    }

    /// Waits until everything logged so far is written, at most for `limit`. Whether it is.
    pub fn flush(&self, limit: Duration) -> bool {
        self.common
            .as_ref()
            .is_none_or(|common| common.flush(limit))
    }

    /// Lines that were dropped, all logs together.
    pub fn dropped(&self) -> u64 {
        self.logs().iter().map(|log| log.dropped()).sum()
    }

    /// Writes what is queued, ends the writer, closes all logs but standard error and waits for
    /// commands to end, all within `limit`. A command that takes longer is left to finish.
    pub fn shut_down(&self, limit: Duration) {
        let Some(common) = &self.common else { return };
        let deadline = Instant::now() + limit;
        self.flush(limit);
        common.stop();
        close_all(
            &self.logs(),
            deadline.saturating_duration_since(Instant::now()),
        );
    }

    fn handle(&self, target: &LogTarget, level: SyslogLevel) -> LogHandle {
        let Some(common) = &self.common else {
            return LogHandle::default();
        };
        if *target == LogTarget::Syslog {
            // Cannot fail: a daemon that is not there is looked for again when there are lines.
            let _ = self.add([LogTarget::Syslog]);
        }
        let log = common.find(target);
        log.map(|log| LogHandle::new(log, level))
            .unwrap_or_default()
    }

    fn insert(&self, target: LogTarget, root: Option<&Path>, outlet: Outlet) {
        let Some(common) = &self.common else { return };
        let mut logs = lock(&common.logs);
        // Two threads may have asked for one log at a time: the first one has it.
        if logs.iter().all(|log| log.target != target) {
            logs.push(Arc::new(Log::new(
                target,
                root.map(Path::to_owned),
                outlet,
                Arc::clone(&common.signals),
            )));
        }
    }

    fn logs(&self) -> Vec<Arc<Log>> {
        self.common
            .as_ref()
            .map(|common| lock(&common.logs).clone())
            .unwrap_or_default()
    }
}

/// Closes `logs` and waits for their commands, at most for `limit`.
fn close_all(logs: &[Arc<Log>], limit: Duration) {
    let deadline = Instant::now() + limit;
    let mut open: Vec<&Arc<Log>> = logs.iter().collect();
    loop {
        open.retain(|log| !log.close());
        if open.is_empty() || Instant::now() >= deadline {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
