//! The thread that takes lines to their logs, and what it shares with those who log.
//!
//! While lines come it makes a round every [`LOG_ROUND_MS`] and nobody has to wake it: under load
//! a worker makes no system call for a line. Only the first line after a quiet round and a queue
//! that grows past [`crate::limits::LOG_WAKE_BYTES`] wake it. One thread serves all logs: a site
//! with a thousand of them costs one. So a file system that hangs holds up every log, but no worker.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::error_lines::{Repeats, TimePrecision};
use super::handle::{Log, Rest, lock};
use super::syslog::SyslogFacility;
use super::target::LogTarget;
use crate::limits::LOG_ROUND_MS;

/// The logs of a process and who writes them.
#[derive(Default)]
pub(super) struct Common {
    pub(super) logs: Mutex<Vec<Arc<Log>>>,
    /// The target of the server's own messages.
    pub(super) error_target: Mutex<Option<LogTarget>>,
    pub(super) signals: Arc<Signals>,
    progress: Mutex<WriterRounds>,
    progressed: Condvar,
}

/// What every log needs to know of the writer, and the writer of all logs.
#[derive(Default)]
pub(super) struct Signals {
    /// Lines are left to the writer.
    is_threaded: AtomicBool,
    writer: OnceLock<Thread>,
    /// The writer sleeps until it is woken.
    idle: AtomicBool,
    /// The writer should end.
    stop: AtomicBool,
    precise_time: AtomicBool,
    facility: Mutex<SyslogFacility>,
    /// Messages about logs, for the error log.
    news: Mutex<Vec<String>>,
}

/// Rounds in which everything queued was written, asked for and done.
#[derive(Default)]
struct WriterRounds {
    flushes_asked: u64,
    flushes_done: u64,
    ended: bool,
}

/// A round of the writer, when there is something to do.
const ROUND: Duration = Duration::from_millis(LOG_ROUND_MS);
/// How often the error log hears of dropped lines, and a quiet writer looks after commands.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Messages about logs that wait to be told; more are forgotten.
const NEWS_MAX: usize = 64;

impl Signals {
    #[inline]
    pub(super) fn is_threaded(&self) -> bool {
        self.is_threaded.load(Ordering::Acquire)
    }

    pub(super) fn facility(&self) -> SyslogFacility {
        *lock(&self.facility)
    }

    pub(super) fn set_facility(&self, facility: SyslogFacility) {
        *lock(&self.facility) = facility;
    }

    pub(super) fn precision(&self) -> TimePrecision {
        match self.precise_time.load(Ordering::Relaxed) {
            false => TimePrecision::Seconds,
            true => TimePrecision::Nanoseconds,
        }
    }

    pub(super) fn set_precision(&self, precision: TimePrecision) {
        self.precise_time
            .store(precision == TimePrecision::Nanoseconds, Ordering::Relaxed);
    }

    /// Ends the writer's pause.
    pub(super) fn wake(&self) {
        self.idle.store(false, Ordering::SeqCst);
        if let Some(thread) = self.writer.get() {
            thread.unpark();
        }
    }

    /// Wakes the writer if it sleeps. The line was queued before: either the writer saw it when it
    /// looked a last time, under the queue's lock, or it had set `idle` before and this sees that.
    #[inline]
    pub(super) fn wake_if_idle(&self) {
        if self.idle.load(Ordering::SeqCst) && self.idle.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Notes a message about a log. Written by the next round.
    pub(super) fn tell(&self, message: String) {
        let mut news = lock(&self.news);
        if news.len() < NEWS_MAX {
            news.push(message);
        }
    }
}

impl Common {
    pub(super) fn find(&self, target: &LogTarget) -> Option<Arc<Log>> {
        lock(&self.logs)
            .iter()
            .find(|log| log.target == *target)
            .cloned()
    }

    /// Whether every log's target `stays`.
    pub(super) fn logs_are_all(&self, stays: &dyn Fn(&LogTarget) -> bool) -> bool {
        lock(&self.logs).iter().all(|log| stays(&log.target))
    }

    /// Takes out the logs whose target does not stay.
    pub(super) fn remove_logs(&self, stays: &dyn Fn(&LogTarget) -> bool) -> Vec<Arc<Log>> {
        let mut logs = lock(&self.logs);
        let (kept, removed) = logs.drain(..).partition(|log| stays(&log.target));
        *logs = kept;
        removed
    }

    fn all(&self) -> Vec<Arc<Log>> {
        lock(&self.logs).clone()
    }

    /// Starts the writer, once.
    pub(super) fn start(self: &Arc<Common>) -> std::io::Result<()> {
        if self.signals.writer.get().is_some() {
            return Ok(());
        }
        let common = Arc::clone(self);
        let thread = thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || common.run())?;
        let _ = self.signals.writer.set(thread.thread().clone());
        self.signals.is_threaded.store(true, Ordering::Release);
        Ok(())
    }

    fn run(&self) {
        let mut reported = Instant::now();
        loop {
            let asked = lock(&self.progress).flushes_asked;
            let mut logs = self.all();
            if reported.elapsed() >= REPORT_EVERY {
                reported = Instant::now();
                self.report_losses(&logs);
            }
            let rest = write_all(&logs);
            let told = self.tell_news();
            let done = !rest.blocked && !rest.later && !told;
            if done {
                self.finish_flush(asked);
            }
            if self.signals.stop.load(Ordering::SeqCst) {
                break;
            }
            if rest.blocked {
                wait_for_readers(&logs);
            } else if rest.moved || rest.later || told {
                drop(logs);
                thread::park_timeout(ROUND);
            } else {
                self.sleep(&mut logs);
            }
        }
        self.signals.is_threaded.store(false, Ordering::Release);
        // Lines from now on are written by those who log them, with what came in between.
        write_all(&self.all());
        lock(&self.progress).ended = true;
        self.progressed.notify_all();
    }

    /// Sleeps until the next line; at most a second while there are commands or counts to look after.
    fn sleep(&self, logs: &mut Vec<Arc<Log>>) {
        let busy = logs
            .iter()
            .any(|log| log.tell_repeats(Repeats::OfEarlierSeconds) | log.tend(&mut Vec::new()));
        let untold = logs.iter().any(|log| log.has_untold_losses());
        self.signals.idle.store(true, Ordering::SeqCst);
        if logs.iter().all(|log| log.is_empty()) && !self.flush_is_due() {
            logs.clear();
            if busy || untold {
                thread::park_timeout(REPORT_EVERY);
            } else {
                thread::park();
            }
        }
        self.signals.idle.store(false, Ordering::SeqCst);
    }

    fn flush_is_due(&self) -> bool {
        let progress = lock(&self.progress);
        progress.flushes_asked > progress.flushes_done || self.signals.stop.load(Ordering::SeqCst)
    }

    fn report_losses(&self, logs: &[Arc<Log>]) {
        for news in logs.iter().filter_map(|log| log.news_of_losses()) {
            self.signals.tell(news);
        }
    }

    /// Writes messages about logs to the error log, and to standard error what is about that one.
    pub(super) fn tell_news(&self) -> bool {
        let news = std::mem::take(&mut *lock(&self.signals.news));
        for message in &news {
            self.error_handle().error(format_args!("{message}"));
        }
        !news.is_empty()
    }

    pub(super) fn error_handle(&self) -> super::LogHandle {
        let target = lock(&self.error_target)
            .clone()
            .unwrap_or(LogTarget::Stderr);
        let log = self.find(&target).or_else(|| self.find(&LogTarget::Stderr));
        log.map(|log| super::LogHandle::new(log, super::SyslogLevel::ERROR))
            .unwrap_or_default()
    }

    /// Waits until everything queued so far is written. False when `limit` was over first.
    pub(super) fn flush(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        for log in self.all() {
            log.tell_repeats(Repeats::All);
        }
        if !self.signals.is_threaded() {
            return self.flush_directly(deadline);
        }
        let mut progress = lock(&self.progress);
        progress.flushes_asked += 1;
        let mine = progress.flushes_asked;
        while progress.flushes_done < mine && !progress.ended {
            drop(progress);
            self.signals.wake();
            progress = lock(&self.progress);
            if progress.flushes_done >= mine || progress.ended {
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.progressed.wait_timeout(progress, left.min(ROUND));
            progress = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        progress.flushes_done >= mine
    }

    fn flush_directly(&self, deadline: Instant) -> bool {
        let logs = self.all();
        loop {
            let rest = write_all(&logs);
            let told = self.tell_news();
            if !rest.blocked && !rest.later && !told {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            wait_for_readers(&logs);
        }
    }

    fn finish_flush(&self, asked: u64) {
        let mut progress = lock(&self.progress);
        if progress.flushes_done < asked {
            progress.flushes_done = asked;
            self.progressed.notify_all();
        }
    }

    /// Ends the writer after a last round.
    pub(super) fn stop(&self) {
        self.signals.stop.store(true, Ordering::SeqCst);
        self.signals.wake();
    }
}

fn write_all(logs: &[Arc<Log>]) -> Rest {
    let mut all = Rest::default();
    for log in logs {
        let rest = log.write_out();
        all.moved |= rest.moved;
        all.blocked |= rest.blocked;
        all.later |= rest.later;
    }
    all
}

/// Waits a round at most for a log's reader to take more.
fn wait_for_readers(logs: &[Arc<Log>]) {
    let descriptors: Vec<OwnedFd> = logs
        .iter()
        .filter_map(|log| log.wait_descriptor())
        .collect();
    let mut polled: Vec<PollFd<'_>> = descriptors
        .iter()
        .map(|fd| PollFd::new(fd, PollFlags::OUT))
        .collect();
    if polled.is_empty() {
        return thread::sleep(ROUND);
    }
    let limit = Timespec {
        tv_sec: 0,
        tv_nsec: LOG_ROUND_MS as i64 * 1_000_000,
    };
    let _ = poll(&mut polled, Some(&limit));
}
