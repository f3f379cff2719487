//! One log: its queue, its outlet, and the handle that takes lines.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Instant, SystemTime};

use rustix::io::Errno;

use super::error_lines::{ErrorLines, Repeats, TimePrecision};
use super::outlet::{FileOwner, Outlet, Sink, Written};
use super::queue::{LineQueue, Pushed};
use super::syslog::SyslogLevel;
use super::target::LogTarget;
use super::writer::Signals;

/// A log that takes lines from any thread. The default handle drops them.
#[derive(Clone, Default)]
pub struct LogHandle {
    log: Option<Arc<Log>>,
    /// The level for syslog; other logs ignore it.
    level: Option<SyslogLevel>,
}

impl LogHandle {
    pub(super) fn new(log: Arc<Log>, level: SyslogLevel) -> LogHandle {
        LogHandle {
            log: Some(log),
            level: Some(level),
        }
    }

    /// Queues a line: bytes that end with a line end and have no other one. Never waits once the writer
    /// thread runs ([`super::LogRegistry::start`]); before that, writes the line itself.
    #[inline]
    pub fn write(&self, line: &[u8]) {
        if let Some(log) = &self.log {
            log.push(line, self.level);
        }
    }

    /// Writes a message in the format of error logs: with the time in front, and with control characters
    /// escaped. Writes the same text at most once a second, followed by a count of the repetitions.
    pub fn error(&self, message: std::fmt::Arguments<'_>) {
        self.common_error(message, format_args!(""));
    }

    /// Like [`LogHandle::error`]. Messages that differ only in `details` count as the same; the first one of
    /// a second is written with its details.
    pub(crate) fn common_error(
        &self,
        message: std::fmt::Arguments<'_>,
        details: std::fmt::Arguments<'_>,
    ) {
        let Some(log) = &self.log else { return };
        let begins_a_count = log.with_error_lines(|errors, precision| {
            let now = SystemTime::now();
            errors.message(message, details, precision, now, &mut |line| {
                log.push(line, self.level);
            })
        });
        if begins_a_count {
            // The writer sleeps for as long as there is nothing to write.
            log.signals.wake_if_idle();
        }
    }

    /// How many lines of this log were dropped since it was opened.
    pub fn dropped(&self) -> u64 {
        self.log.as_ref().map_or(0, |log| log.dropped())
    }

    /// Whether lines are written anywhere.
    pub fn is_open(&self) -> bool {
        self.log.is_some()
    }

    /// The same log with another level for syslog.
    pub fn with_level(&self, level: SyslogLevel) -> LogHandle {
        LogHandle {
            log: self.log.clone(),
            level: Some(level),
        }
    }
}

impl std::fmt::Debug for LogHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.log {
            Some(log) => write!(f, "LogHandle({})", log.target),
            None => f.write_str("LogHandle(nowhere)"),
        }
    }
}

/// One log of the process.
pub(super) struct Log {
    pub(super) target: LogTarget,
    /// The directory that the path of the file is relative to. `None`: the root of the process.
    root: Option<PathBuf>,
    queue: LineQueue,
    signals: Arc<Signals>,
    /// Locked by the thread that writes: the writer thread or, before it runs, any thread that logs.
    sink: Mutex<Sink>,
    /// Replaces the outlet of the sink before the next write.
    replacement: Mutex<Option<Outlet>>,
    errors: Mutex<ErrorLines>,
    /// How many dropped lines the error log has reported.
    told_dropped: AtomicU64,
}

/// What was left after a round of writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rest {
    /// Something was written.
    pub(super) moved: bool,
    /// Lines wait for a slow reader.
    pub(super) blocked: bool,
    /// Lines wait because of an error, or for a command to start.
    pub(super) later: bool,
}

impl Log {
    pub(super) fn new(
        target: LogTarget,
        root: Option<PathBuf>,
        outlet: Outlet,
        signals: Arc<Signals>,
    ) -> Log {
        Log {
            target,
            root,
            queue: LineQueue::default(),
            signals,
            sink: Mutex::new(Sink::new(outlet)),
            replacement: Mutex::default(),
            errors: Mutex::default(),
            told_dropped: AtomicU64::new(0),
        }
    }

    fn push(&self, line: &[u8], level: Option<SyslogLevel>) {
        let pushed = self.queue.push(self.mark(level), line);
        if !self.signals.is_threaded() {
            self.write_out();
        } else if pushed == Pushed::Urgent {
            self.signals.wake();
        } else {
            self.signals.wake_if_idle();
        }
    }

    /// The byte in front of a queued line: for syslog its level.
    fn mark(&self, level: Option<SyslogLevel>) -> Option<u8> {
        match self.target {
            LogTarget::Syslog => Some(level.unwrap_or(SyslogLevel::INFO).mark()),
            _ => None,
        }
    }

    pub(super) fn dropped(&self) -> u64 {
        self.queue.dropped()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty() && lock(&self.replacement).is_none()
    }

    /// Writes the queued lines, as far as that does not wait for a reader.
    pub(super) fn write_out(&self) -> Rest {
        let mut sink = lock(&self.sink);
        let mut rest = Rest::default();
        // Releases this lock before the write, so that a thread that brings a replacement never waits for a
        // disk.
        let replacement = lock(&self.replacement).take();
        if let Some(outlet) = replacement {
            // Lines from before go to the old outlet, if it still takes them.
            self.fill(&mut sink);
            self.write_sink(&mut sink, &mut rest);
            sink.replace(outlet);
        }
        if let Outlet::Pipe(pipe) = &mut sink.outlet {
            pipe.tend(Instant::now());
        }
        self.write_sink(&mut sink, &mut rest);
        self.fill(&mut sink);
        self.write_sink(&mut sink, &mut rest);
        rest
    }

    fn fill(&self, sink: &mut Sink) {
        if sink.is_empty() {
            self.queue.take(&mut sink.bytes);
        }
    }

    fn write_sink(&self, sink: &mut Sink, rest: &mut Rest) {
        let had = !sink.is_empty();
        let mut lost = 0;
        let written = sink.write(self.signals.facility(), &mut lost);
        self.queue.count_dropped(lost);
        *rest = Rest {
            moved: rest.moved | had,
            ..Rest::default()
        };
        match written {
            Written::All => {}
            Written::Blocked => rest.blocked = true,
            Written::Later(error) => {
                rest.later = true;
                if let Some(error) = error {
                    self.signals.tell(format!(
                        "writing to the log {} failed: {error}; its lines wait in memory until it works",
                        self.target
                    ));
                }
            }
        }
    }

    /// A message about lines that were dropped since the last call.
    pub(super) fn news_of_losses(&self) -> Option<String> {
        // Asked for each time, so that an old error is not named for later losses. A write that hangs has no error.
        let trouble = self.sink.try_lock().ok();
        let trouble = trouble.and_then(|mut sink| sink.take_trouble());
        let dropped = self.dropped();
        let news = dropped - self.told_dropped.swap(dropped, Ordering::Relaxed);
        let reason = match (trouble, &self.target) {
            (Some(Errno::NOSPC), _) => "disk full".to_owned(),
            (Some(Errno::PIPE), LogTarget::Pipe(_)) => "its command does not run".to_owned(),
            (Some(error), _) => error.to_string(),
            (None, LogTarget::Pipe(_)) => "its command reads too slowly".to_owned(),
            (None, LogTarget::Syslog) => "the syslog daemon is slow or does not run".to_owned(),
            (None, LogTarget::File(_) | LogTarget::Stderr) => "writing takes too long".to_owned(),
        };
        (news > 0).then(|| {
            format!(
                "{news} lines of the log {} were dropped: {reason}",
                self.target
            )
        })
    }

    /// Whether lines were dropped that no message has reported.
    pub(super) fn has_untold_losses(&self) -> bool {
        self.dropped() > self.told_dropped.load(Ordering::Relaxed)
    }

    /// Queues the counts of repeated messages. Returns whether there are more to write later.
    pub(super) fn tell_repeats(&self, which: Repeats) -> bool {
        let mark = self.mark(Some(SyslogLevel::ERROR));
        self.with_error_lines(|errors, precision| {
            if errors.holds_back() {
                errors.tell_repeats(which, precision, SystemTime::now(), &mut |line| {
                    self.queue.push(mark, line);
                });
            }
            errors.holds_back()
        })
    }

    /// Restarts the command of this log if it has ended. Returns whether this log has a command. Adds a new
    /// write end to `renewed`.
    pub(super) fn tend(&self, renewed: &mut Vec<(LogTarget, OwnedFd)>) -> bool {
        let mut sink = lock(&self.sink);
        let Outlet::Pipe(pipe) = &mut sink.outlet else {
            return false;
        };
        pipe.tend(Instant::now());
        if let Some(Ok(input)) = pipe.take_renewed().map(|input| input.try_clone_to_owned()) {
            renewed.push((self.target.clone(), input));
        }
        pipe.is_ours()
    }

    /// Whether lines wait in a process without a writer thread.
    pub(super) fn has_waiting(&self) -> bool {
        let is_written = || lock(&self.sink).is_empty() && self.queue.is_empty();
        !(self.signals.is_threaded() || is_written())
    }

    /// Writes lines that wait, in a process without a writer thread.
    pub(super) fn write_waiting(&self) {
        if self.has_waiting() {
            self.write_out();
        }
    }

    /// Opens a file again, or creates it with `owner` as its owner. Does nothing for other targets.
    pub(super) fn reopen(&self, owner: FileOwner) -> io::Result<()> {
        if matches!(self.target, LogTarget::File(_)) {
            let outlet = Outlet::open(&self.target, self.root.as_deref(), owner)?;
            self.replace(outlet);
        }
        Ok(())
    }

    /// The directory that the path of the file is relative to. `None`: the root of the process.
    pub(super) fn root(&self) -> Option<&Path> {
        self.root.as_deref()
    }

    /// Continues with another outlet, after the queued lines were written to the present one.
    pub(super) fn replace(&self, outlet: Outlet) {
        *lock(&self.replacement) = Some(outlet);
        if self.signals.is_threaded() {
            self.signals.wake();
        } else {
            self.write_out();
        }
    }

    /// A duplicate of the descriptor, for another process.
    pub(super) fn copy_descriptor(&self) -> Option<io::Result<OwnedFd>> {
        let sink = lock(&self.sink);
        match &sink.outlet {
            Outlet::Stderr => None,
            outlet => outlet.descriptor().map(|fd| fd.try_clone_to_owned()),
        }
    }

    /// A duplicate of the descriptor, if its reader is slow.
    pub(super) fn wait_descriptor(&self) -> Option<OwnedFd> {
        let sink = lock(&self.sink);
        let descriptor = sink.outlet.descriptor().filter(|_| sink.is_blocked)?;
        descriptor.as_fd().try_clone_to_owned().ok()
    }

    /// Writes what waits and closes the outlet; lines that it does not take count as dropped. Returns true if nothing
    /// is left to wait for: neither a command nor a write that hangs.
    pub(super) fn close(&self) -> bool {
        let mut sink = match self.sink.try_lock() {
            Ok(sink) => sink,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        self.write_last(&mut sink);
        match &mut sink.outlet {
            Outlet::Pipe(pipe) => {
                pipe.close();
                if !pipe.has_ended() {
                    return false;
                }
            }
            Outlet::Stderr => return true,
            _ => {}
        }
        sink.outlet = Outlet::Closed;
        true
    }

    /// Tries once more, however recent the last failure is: an operator who makes room on a disk reloads then.
    fn write_last(&self, sink: &mut Sink) {
        sink.retry_now();
        self.write_sink(sink, &mut Rest::default());
        self.fill(sink);
        self.write_sink(sink, &mut Rest::default());
        self.queue.count_dropped(sink.drop_lines());
        self.fill(sink);
        self.queue.count_dropped(sink.drop_lines());
    }

    fn with_error_lines<T>(&self, with: impl FnOnce(&mut ErrorLines, TimePrecision) -> T) -> T {
        let precision = match self.target {
            LogTarget::Syslog => TimePrecision::None,
            _ => self.signals.precision(),
        };
        with(&mut lock(&self.errors), precision)
    }
}

/// Code under these locks cannot panic half-way, so a poisoned lock still protects valid data.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
