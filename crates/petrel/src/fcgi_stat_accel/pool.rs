//! The looks at files, and the requests that wait for them.
//!
//! Requests for the same file share one look. The engine's disk threads do the looks ([`engine::blocking`]);
//! a thread that hangs is replaced, and only a limited number of threads may hang on one file system. So a
//! disk that hangs does not block the others. If another file system is mounted at the same path, new
//! requests do not wait for looks that hang on the old one.
//!
//! Knows neither connections nor what a look does.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use engine::blocking::{self, Class, NotDone, Origin};
use futures_util::FutureExt;
use futures_util::future::Shared;
use proto::status::Status;
use tokio::sync::oneshot;

use super::Refusal;
use super::limits::{QUEUED_MAX, QUEUED_PER_ROOT_MAX};
use super::target::{Target, shown};

/// The result of a look.
pub(crate) type LookResult = Result<(), Refusal>;

/// Looks at one file. Blocks.
pub(crate) type LookFunction = dyn Fn(&Target) -> LookResult + Send + Sync;

/// All looks of the worker.
pub(crate) struct Looks {
    look: Arc<LookFunction>,
    /// How long a request waits at most.
    patience: Duration,
    jobs: RefCell<HashMap<Rc<Wanted>, Rc<Job>>>,
    /// When the log last got a line about files that were refused for lack of room.
    refused: Cell<Option<Instant>>,
}

/// A file, and the file system it was on when a request asked for it.
#[derive(PartialEq, Eq, Hash)]
struct Wanted {
    target: Target,
    /// The device number of the file system.
    device: u64,
}

/// A look that requests are waiting for.
struct Job {
    found: Shared<oneshot::Receiver<LookResult>>,
    progress: Arc<Progress>,
    /// Whether the log was told that this look takes too long.
    is_late_told: Cell<bool>,
    /// Whether a request has received the line for the log.
    is_found_told: Cell<bool>,
}

/// What the disk thread and the requests both know of a look.
struct Progress {
    /// When a disk thread began.
    begun: OnceLock<Instant>,
    /// The number of requests waiting.
    waiters: AtomicUsize,
}

/// A look that is queued for a disk thread, or running in one.
struct Queued {
    target: Target,
    look: Arc<LookFunction>,
    progress: Arc<Progress>,
    found: oneshot::Sender<LookResult>,
}

/// A request's wait for a look. Dropping it ends the wait; a disk thread skips a queued look when no request
/// waits for it any more.
pub(crate) struct Ticket {
    pool: Rc<Looks>,
    wanted: Rc<Wanted>,
    job: Rc<Job>,
    found: Shared<oneshot::Receiver<LookResult>>,
}

impl Looks {
    /// No looks yet. No request waits for longer than `patience`.
    pub(crate) fn new(patience: Duration, look: Arc<LookFunction>) -> Looks {
        Looks {
            look,
            patience,
            jobs: RefCell::default(),
            refused: Cell::new(None),
        }
    }

    /// Asks for a look at the file `target`, on the file system with the number `device`.
    ///
    /// # Errors
    /// Too many files are waiting, or a look at this file is known to hang.
    pub(crate) fn submit(
        self: &Rc<Looks>,
        target: Target,
        device: u64,
        now: Instant,
    ) -> Result<Ticket, Refusal> {
        let wanted = Rc::new(Wanted { target, device });
        let known = self.jobs.borrow().get(&wanted).cloned();
        let job = match known.filter(|job| !job.is_over()) {
            Some(job) if job.is_late(now, self.patience) => {
                // The log was told when the first request for this file gave up.
                return Err(Refusal::silent(Status::GATEWAY_TIMEOUT));
            }
            Some(job) => {
                job.progress.waiters.fetch_add(1, Ordering::SeqCst);
                job
            }
            None => self.begin(&wanted, now)?,
        };
        Ok(Ticket {
            pool: Rc::clone(self),
            wanted,
            found: job.found.clone(),
            job,
        })
    }

    /// Queues a new look, for one request.
    fn begin(&self, wanted: &Rc<Wanted>, now: Instant) -> Result<Rc<Job>, Refusal> {
        let mut jobs = self.jobs.borrow_mut();
        if jobs.len() >= QUEUED_PER_ROOT_MAX {
            jobs.retain(|_, job| !job.is_over());
            let queued = jobs.iter().filter(|(_, job)| job.is_queued());
            let is_beside = |other: &Wanted| other.target.root == wanted.target.root;
            let (all, beside) = queued.fold((0, 0), |(all, beside), (other, _)| {
                (all + 1, beside + usize::from(is_beside(other)))
            });
            if all >= QUEUED_MAX || beside >= QUEUED_PER_ROOT_MAX {
                return Err(self.refuse(all, &wanted.target.root, now));
            }
        }
        let (sender, found) = oneshot::channel();
        let progress = Arc::new(Progress {
            begun: OnceLock::new(),
            waiters: AtomicUsize::new(1),
        });
        let queued = Queued {
            target: wanted.target.clone(),
            look: Arc::clone(&self.look),
            progress: Arc::clone(&progress),
            found: sender,
        };
        let origin = Origin {
            device: wanted.device,
            ..Origin::default()
        };
        let started = blocking::start(Class::Stat, origin, queued);
        started.map_err(|error| unavailable(error.to_string()))?;
        let job = Rc::new(Job {
            found: found.shared(),
            progress,
            is_late_told: Cell::new(false),
            is_found_told: Cell::new(false),
        });
        jobs.insert(Rc::clone(wanted), Rc::clone(&job));
        Ok(job)
    }

    /// The refusal for a file below `root` for which there is no room. Only one in a while gets a line for
    /// the log.
    fn refuse(&self, queued: usize, root: &[u8], now: Instant) -> Refusal {
        let is_news = |last: Instant| now.saturating_duration_since(last) >= REFUSAL_LOG_PAUSE;
        if !self.refused.get().is_none_or(is_news) {
            return Refusal::silent(Status::SERVICE_UNAVAILABLE);
        }
        self.refused.set(Some(now));
        let (stuck, root) = (blocking::counts(Class::Stat).stuck, shown(root));
        unavailable(format!(
            "refused a file below {root}: {queued} files wait for a disk thread, {stuck} threads hang"
        ))
    }
}

impl Job {
    fn is_queued(&self) -> bool {
        self.progress.begun.get().is_none() && !self.is_over()
    }

    /// Whether the look has ended or was skipped: no disk thread holds it any more.
    fn is_over(&self) -> bool {
        Arc::strong_count(&self.progress) == 1
    }

    /// Whether a disk thread has been working on it for `patience`.
    fn is_late(&self, now: Instant, patience: Duration) -> bool {
        let begun = self.progress.begun.get();
        begun.is_some_and(|begun| now.saturating_duration_since(*begun) >= patience)
    }
}

impl blocking::Job for Queued {
    fn run(self: Box<Self>) {
        // Fails only if it was set before, and only this line sets it.
        let _ = self.progress.begun.set(Instant::now());
        let found = (self.look)(&self.target);
        // Before the result is sent: a request that has it must find the look over, for which this reference
        // counts.
        drop(self.progress);
        // The receivers may be gone.
        let _ = self.found.send(found);
    }

    fn is_wanted(&self) -> bool {
        self.progress.waiters.load(Ordering::SeqCst) > 0
    }
}

impl Ticket {
    /// The result, once there is one. Only one request gets the line for the log.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<LookResult> {
        self.found.poll_unpin(context).map(|found| {
            let mut found = found.unwrap_or_else(|_| Err(unavailable(NotDone::Lost.to_string())));
            if let Err(refusal) = &mut found
                && self.job.is_found_told.replace(true)
            {
                refusal.words = None;
            }
            found
        })
    }

    /// The path of the file.
    pub(crate) fn path(&self) -> Vec<u8> {
        self.wanted.target.path()
    }

    /// The reply for a request whose time is up without a result.
    pub(crate) fn give_up(&self) -> Refusal {
        let seconds = self.pool.patience.as_secs();
        let path = shown(&self.path());
        if self.job.is_queued() {
            return unavailable(format!(
                "wait: no disk thread was free for {seconds} s: {path}"
            ));
        }
        if self.job.is_late_told.replace(true) {
            return Refusal::silent(Status::GATEWAY_TIMEOUT);
        }
        let words = format!("open, stat or read: no answer in {seconds} s: {path}");
        Refusal::new(Status::GATEWAY_TIMEOUT, words)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let is_last = self.job.progress.waiters.fetch_sub(1, Ordering::SeqCst) == 1;
        // A look that hangs stays in the table, so that later requests for the same file do not start another
        // one.
        if is_last && (self.job.is_queued() || self.job.is_over()) {
            let mut jobs = self.pool.jobs.borrow_mut();
            let is_known = jobs.get(&self.wanted);
            if is_known.is_some_and(|known| Rc::ptr_eq(known, &self.job)) {
                jobs.remove(&self.wanted);
            }
        }
    }
}

fn unavailable(words: String) -> Refusal {
    Refusal::new(Status::SERVICE_UNAVAILABLE, words)
}

/// The shortest time between two log lines about files that were refused for lack of room.
const REFUSAL_LOG_PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
