//! The thread that writes the lines of all logs, and what it shares with the threads that log.
//!
//! While lines come, the thread makes a round every [`LOG_ROUND_MS`] without being woken, so that under load
//! a worker makes no system call for a line. Only the first line after a quiet round wakes it, and a queue
//! that grows beyond [`crate::limits::LOG_WAKE_BYTES`]. One thread serves all logs, so a site with a thousand
//! logs needs only one. So a file system that hangs delays every log, but no worker.

use std::collections::BTreeMap;
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

/// The logs of a process, and the state of the writer thread.
#[derive(Default)]
pub(super) struct Common {
    /// A server may have one for each of thousands of hosts.
    pub(super) logs: Mutex<BTreeMap<LogTarget, Arc<Log>>>,
    /// The target of the server's own messages.
    pub(super) error_target: Mutex<Option<LogTarget>>,
    pub(super) signals: Arc<Signals>,
    progress: Mutex<WriterRounds>,
    progressed: Condvar,
}

/// What each log needs to know of the writer thread.
#[derive(Default)]
pub(super) struct Signals {
    /// The writer thread runs and writes all lines.
    is_threaded: AtomicBool,
    writer: OnceLock<Thread>,
    /// The writer sleeps until a thread wakes it.
    idle: AtomicBool,
    /// The writer has to end.
    stop: AtomicBool,
    precise_time: AtomicBool,
    facility: Mutex<SyslogFacility>,
    /// Messages about logs, which the writer puts into the error log.
    news: Mutex<Vec<String>>,
}

/// How many flushes were requested and done. A flush is done after a round that wrote everything.
#[derive(Default)]
struct WriterRounds {
    flushes_asked: u64,
    flushes_done: u64,
    ended: bool,
}

/// The pause between two rounds of the writer while there is work.
const ROUND: Duration = Duration::from_millis(LOG_ROUND_MS);
/// How often the error log reports dropped lines, and how often an idle writer checks commands.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// How many messages about logs may wait; further ones are dropped.
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

    /// Wakes the writer.
    pub(super) fn wake(&self) {
        self.idle.store(false, Ordering::SeqCst);
        if let Some(thread) = self.writer.get() {
            thread.unpark();
        }
    }

    /// Wakes the writer if it sleeps. The caller has queued its line before. Either the writer found the line
    /// in its last check, under the lock of the queue, or it had set `idle` before that, and the caller sees
    /// it here.
    #[inline]
    pub(super) fn wake_if_idle(&self) {
        if self.idle.load(Ordering::SeqCst) && self.idle.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Queues a message about a log for the next round.
    pub(super) fn tell(&self, message: String) {
        let mut news = lock(&self.news);
        if news.len() < NEWS_MAX {
            news.push(message);
        }
    }
}

impl Common {
    pub(super) fn find(&self, target: &LogTarget) -> Option<Arc<Log>> {
        lock(&self.logs).get(target).cloned()
    }

    /// Whether `stays` is true for the targets of all logs.
    pub(super) fn logs_are_all(&self, stays: &dyn Fn(&LogTarget) -> bool) -> bool {
        lock(&self.logs).keys().all(stays)
    }

    /// Removes the logs for whose target `stays` is false, and returns them.
    pub(super) fn remove_logs(&self, stays: &dyn Fn(&LogTarget) -> bool) -> Vec<Arc<Log>> {
        let mut logs = lock(&self.logs);
        let all = std::mem::take(&mut *logs).into_iter();
        let (kept, removed): (_, BTreeMap<_, _>) = all.partition(|(target, _)| stays(target));
        *logs = kept;
        removed.into_values().collect()
    }

    pub(super) fn all(&self) -> Vec<Arc<Log>> {
        lock(&self.logs).values().cloned().collect()
    }

    /// Starts the writer thread. Later calls do nothing.
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
        // From now on the threads that log write their lines themselves, beginning with lines that were
        // queued meanwhile.
        write_all(&self.all());
        lock(&self.progress).ended = true;
        self.progressed.notify_all();
    }

    /// Sleeps until the next line; for a second at most if there are commands to check or counts to report.
    fn sleep(&self, logs: &mut Vec<Arc<Log>>) {
        // From here on, lines and counts that come wake this thread.
        self.signals.idle.store(true, Ordering::SeqCst);
        let mut busy = false;
        for log in logs.iter() {
            busy |= log.tell_repeats(Repeats::OfEarlierSeconds);
            busy |= log.tend(&mut Vec::new());
        }
        let untold = logs.iter().any(|log| log.has_untold_losses());
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

    /// Writes the messages about logs to the server's error log. Returns whether there were any.
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

    /// Waits until all lines queued so far are written. Returns false if `limit` was over first.
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

    /// Tells the writer thread to end after a last round.
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

/// Waits until the reader of a log takes more, for one round at most.
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
