//! The looks at files, and the requests that wait for them.
//!
//! Requests for the same file share one look at it. The engine's threads look ([`engine::blocking`]): one that
//! hangs is replaced, and of one file system only so many hang at a time. So a disk that hangs does not hold up
//! another one. Where another file system is mounted in its place, no request waits for what hangs in the first.
//!
//! Knows neither connections nor what a look is.

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

/// What a look has found.
pub(crate) type LookResult = Result<(), Refusal>;

/// A look, which blocks.
pub(crate) type LookFunction = dyn Fn(&Target) -> LookResult + Send + Sync;

/// The looks of the worker.
pub(crate) struct Looks {
    look: Arc<LookFunction>,
    /// For how long a request waits at most.
    patience: Duration,
    jobs: RefCell<HashMap<Rc<Wanted>, Rc<Job>>>,
    /// When it was last logged that a file was refused for want of room.
    refused: Cell<Option<Instant>>,
}

/// A file, and where it was when a request asked for it.
#[derive(PartialEq, Eq, Hash)]
struct Wanted {
    target: Target,
    /// The number of the file system.
    device: u64,
}

/// A look that requests ask for.
struct Job {
    found: Shared<oneshot::Receiver<LookResult>>,
    progress: Arc<Progress>,
    /// It was logged that it takes too long.
    is_late_told: Cell<bool>,
    /// A request has got the words for the log.
    is_found_told: Cell<bool>,
}

/// What the thread and the requests know of a look.
struct Progress {
    /// When a thread began it.
    begun: OnceLock<Instant>,
    /// Requests that wait.
    waiters: AtomicUsize,
}

/// A look on its way to a thread, and there.
struct Queued {
    target: Target,
    look: Arc<LookFunction>,
    progress: Arc<Progress>,
    found: oneshot::Sender<LookResult>,
}

/// A place in the crowd that waits for a file. Dropped, it is given up; a look that no request waits for is not
/// begun.
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

    /// Has the file looked at, which is on the file system with the number `device`.
    ///
    /// # Errors
    /// Too many files wait, or this one is known to hang.
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
                // It was logged when the first of them gave up.
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

    /// Begins a look, for one request.
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

    /// There is no room for a file below `root`. The log is told of one in a while.
    fn refuse(&self, queued: usize, root: &[u8], now: Instant) -> Refusal {
        let is_news = |last: Instant| now.saturating_duration_since(last) >= REFUSAL_LOG_PAUSE;
        if !self.refused.get().is_none_or(is_news) {
            return Refusal::silent(Status::SERVICE_UNAVAILABLE);
        }
        self.refused.set(Some(now));
        let (stuck, root) = (blocking::counts(Class::Stat).stuck, shown(root));
        unavailable(format!(
            "refused: {queued} files wait, {stuck} threads hang; one more is below {root}"
        ))
    }
}

impl Job {
    fn is_queued(&self) -> bool {
        self.progress.begun.get().is_none() && !self.is_over()
    }

    /// It was done, or left out: no thread knows of it any more.
    fn is_over(&self) -> bool {
        Arc::strong_count(&self.progress) == 1
    }

    /// Whether a thread has been at it for `patience`.
    fn is_late(&self, now: Instant, patience: Duration) -> bool {
        let begun = self.progress.begun.get();
        begun.is_some_and(|begun| now.saturating_duration_since(*begun) >= patience)
    }
}

impl blocking::Job for Queued {
    fn run(self: Box<Self>) {
        // Nothing else sets it.
        let _ = self.progress.begun.set(Instant::now());
        let found = (self.look)(&self.target);
        drop(self.progress);
        // The requests may have gone.
        let _ = self.found.send(found);
    }

    fn is_wanted(&self) -> bool {
        self.progress.waiters.load(Ordering::SeqCst) > 0
    }
}

impl Ticket {
    /// What was found, when it was. One request gets the words for the log.
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

    /// Why there is no answer although the time is up.
    pub(crate) fn give_up(&self) -> Refusal {
        let seconds = self.pool.patience.as_secs();
        let path = shown(&self.path());
        if self.job.is_queued() {
            return unavailable(format!(
                "wait: no thread had time for it in {seconds} s: {path}"
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
        // What hangs stays known, so that requests that come later share it.
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

/// From one line about files that were refused for want of room to the next.
const REFUSAL_LOG_PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
