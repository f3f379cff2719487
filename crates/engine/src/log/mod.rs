//! Logs: their targets, and the thread that writes the lines.
//!
//! Logging a line never waits. Each log has a bounded queue ([`crate::limits::LOG_QUEUE_BYTES_MAX`]), which
//! the writer thread of the process empties. Lines that do not fit are dropped and counted, and the error log
//! reports the count. Error logs and access logs use the same code, and so do files, pipes to commands and
//! syslog.
//!
//! [`LogRegistry::open`] opens all logs and starts no thread. Until [`LogRegistry::start`], the thread that
//! logs a line writes it. So the process can drop privileges in between, and a process with a single thread
//! can log. A process that may not open files itself gets descriptors by [`LogRegistry::adopt`].
//!
//! [`Rotations`] notices log files that were renamed or removed, for the process that opens them.
//!
//! Knows nothing of requests or of what lines mean. Callers are `modules/access_log` and all code that logs
//! errors.
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

use std::collections::HashSet;
use std::collections::hash_map::{Entry, HashMap};
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

/// All logs of the process. The default registry has only standard error. Clones share their logs.
#[derive(Clone)]
pub struct LogRegistry {
    /// `None`: handles drop their lines.
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
    /// A registry whose handles drop their lines, for checks.
    pub fn discarding() -> LogRegistry {
        LogRegistry { common: None }
    }

    /// Opens standard error and all of `targets`. Also reads the time zone, because a chroot may follow.
    ///
    /// # Errors
    /// The first target that cannot be opened; the message names it.
    pub fn open(targets: impl IntoIterator<Item = LogTarget>) -> io::Result<LogRegistry> {
        local_time::load_zone();
        let registry = LogRegistry::default();
        registry.add(targets)?;
        Ok(registry)
    }

    /// Opens the `targets` that are not open yet, for a reload.
    ///
    /// # Errors
    /// The first target that cannot be opened; then none of the new ones is kept.
    pub fn add(&self, targets: impl IntoIterator<Item = LogTarget>) -> io::Result<()> {
        self.add_below(None, FileOwner::default(), targets)
    }

    /// Like [`LogRegistry::add`], with the paths of files relative to `root`: this process is not in the
    /// chroot that the configuration was written for. A log that is open already keeps its file. New files
    /// belong to `owner`.
    ///
    /// # Errors
    /// Those of [`LogRegistry::add`]. Files below a root need openat2 (Linux 5.6).
    pub fn add_below(
        &self,
        root: Option<&Path>,
        owner: FileOwner,
        targets: impl IntoIterator<Item = LogTarget>,
    ) -> io::Result<()> {
        let Some(common) = &self.common else {
            return Ok(());
        };
        let mut opened = HashMap::new();
        for target in targets {
            if common.find(&target).is_none()
                && let Entry::Vacant(place) = opened.entry(target)
            {
                let outlet = Outlet::open(place.key(), root, owner)?;
                place.insert(outlet);
            }
        }
        for (target, outlet) in opened {
            self.insert(target, root, outlet);
        }
        Ok(())
    }

    /// Closes the logs that are not among `targets`, after their queued lines were written or `limit` is
    /// over. From then on their handles drop lines. Standard error and syslog stay open. The error log says how many
    /// queued lines were lost.
    pub fn retain(&self, targets: &HashSet<&LogTarget>, limit: Duration) {
        let Some(common) = &self.common else { return };
        let stays = |target: &LogTarget| {
            matches!(target, LogTarget::Stderr | LogTarget::Syslog) || targets.contains(target)
        };
        if common.logs_are_all(&stays) {
            return;
        }
        self.flush(limit);
        let closing = common.remove_logs(&stays);
        for news in close_all(&closing, limit) {
            self.error(format_args!("{news}"));
        }
    }

    /// Takes over descriptors that another process opened, for new logs or as replacements for logs that are
    /// open.
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

    /// Duplicates of the descriptors of all files and pipes, for [`LogRegistry::adopt`] in another process.
    /// Standard error is inherited, and each process connects to syslog itself.
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

    /// Starts the writer thread. After this, logging never waits. Call it after privileges were dropped; a
    /// second call does nothing.
    ///
    /// # Errors
    /// The kernel refuses the thread.
    pub fn start(&self) -> io::Result<()> {
        self.common.as_ref().map_or(Ok(()), Common::start)
    }

    /// The targets of all logs that are open.
    pub fn targets(&self) -> Vec<LogTarget> {
        self.logs().iter().map(|log| log.target.clone()).collect()
    }

    /// A handle for `target`, which drops lines if the target was not opened. Syslog need not have been
    /// opened, unless a chroot hides its socket. Its level is [`SyslogLevel::INFO`].
    pub fn get(&self, target: &LogTarget) -> LogHandle {
        self.handle(target, SyslogLevel::INFO)
    }

    /// A handle for an error log: for `target`, or for the server's own.
    pub fn error_log(&self, target: Option<LogTarget>) -> LogHandle {
        match (target, &self.common) {
            (Some(target), _) => self.handle(&target, SyslogLevel::ERROR),
            (None, Some(common)) => common.error_handle(),
            (None, None) => LogHandle::default(),
        }
    }

    /// Makes `target` the server's own error log, which [`LogRegistry::error`] and messages about logs go to.
    pub fn set_error_log(&self, target: LogTarget) {
        if let Some(common) = &self.common {
            *lock(&common.error_target) = Some(target);
        }
    }

    /// Writes to the server's own error log; to standard error if that log is not open.
    pub fn error(&self, message: std::fmt::Arguments<'_>) {
        if let Some(common) = &self.common {
            common.error_handle().error(message);
        }
    }

    /// Sets the precision of the time in error logs (server.errorlog-high-precision).
    pub fn set_time_precision(&self, precision: TimePrecision) {
        if let Some(common) = &self.common {
            common.signals.set_precision(precision);
        }
    }

    /// Sets the facility of syslog lines (server.syslog-facility).
    pub fn set_syslog_facility(&self, facility: SyslogFacility) {
        if let Some(common) = &self.common {
            common.signals.set_facility(facility);
        }
    }

    /// Opens every file again, for a rotation. Lines that are queued go to the old file. If a file cannot be
    /// opened, its log continues with the old one, and the error log says so. New files belong to `owner`.
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

    /// Restarts commands that have ended, each after its pause, and tries again to write lines that wait. Returns the
    /// new write ends of commands, for a process that adopted the old ones. If the writer thread runs, it does this
    /// itself.
    pub fn tend(&self) -> Vec<(LogTarget, OwnedFd)> {
        let mut renewed = Vec::new();
        for log in self.logs() {
            log.tend(&mut renewed);
            log.write_waiting();
        }
        renewed
    }

    /// Whether lines wait because they could not be written.
    pub fn has_waiting(&self) -> bool {
        self.logs().iter().any(|log| log.has_waiting())
    }

    /// Waits until all lines logged so far are written, for `limit` at most. Returns whether they are.
    pub fn flush(&self, limit: Duration) -> bool {
        self.common
            .as_ref()
            .is_none_or(|common| common.flush(limit))
    }

    /// How many lines all logs together have dropped.
    pub fn dropped(&self) -> u64 {
        self.logs().iter().map(|log| log.dropped()).sum()
    }

    /// Writes the queued lines, ends the writer thread, closes all logs but standard error, and waits for
    /// commands to end; all that within `limit`. A command that takes longer continues on its own. Returns messages
    /// about lines that were lost.
    pub fn shut_down(&self, limit: Duration) -> Vec<String> {
        let Some(common) = &self.common else {
            return Vec::new();
        };
        let deadline = Instant::now() + limit;
        self.flush(limit);
        common.stop();
        let left = deadline.saturating_duration_since(Instant::now());
        // Also when a full disk has taken all of the time, because the writer thread may have a log for a moment.
        close_all(&self.logs(), left.max(CLOSE_TIME))
    }

    fn handle(&self, target: &LogTarget, level: SyslogLevel) -> LogHandle {
        let Some(common) = &self.common else {
            return LogHandle::default();
        };
        if *target == LogTarget::Syslog {
            // This cannot fail: if the daemon is not there, the log tries again when it has lines.
            let _ = self.add([LogTarget::Syslog]);
        }
        let log = common.find(target);
        log.map(|log| LogHandle::new(log, level))
            .unwrap_or_default()
    }

    fn insert(&self, target: LogTarget, root: Option<&Path>, outlet: Outlet) {
        let Some(common) = &self.common else { return };
        // Two threads may have opened the same log; the first one counts.
        lock(&common.logs).entry(target.clone()).or_insert_with(|| {
            let root = root.map(Path::to_owned);
            Arc::new(Log::new(target, root, outlet, Arc::clone(&common.signals)))
        });
    }

    fn logs(&self) -> Vec<Arc<Log>> {
        self.common
            .as_ref()
            .map(|common| common.all())
            .unwrap_or_default()
    }
}

/// Closes `logs` and waits for their commands, for `limit` at most. Returns messages about lines that were lost.
fn close_all(logs: &[Arc<Log>], limit: Duration) -> Vec<String> {
    let deadline = Instant::now() + limit;
    let mut open: Vec<&Arc<Log>> = logs.iter().collect();
    loop {
        open.retain(|log| !log.close());
        if open.is_empty() || Instant::now() >= deadline {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    logs.iter().filter_map(|log| log.news_of_losses()).collect()
}

/// How long closing the logs may take at least.
const CLOSE_TIME: Duration = Duration::from_millis(100);
