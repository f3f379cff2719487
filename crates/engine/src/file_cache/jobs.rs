//! Look-ups that wait for a thread or run, and those who wait for them.
//!
//! All requests of a worker that miss the same path wait for the same job. It is known until it is over, whether or
//! not somebody waits: who asks for a path that hangs joins the thread that hangs there already, so that
//! coming and going costs no threads. Only where that is to wait for nothing another job is begun beside it, and
//! few of them: when the path is on another file system by now, and when the job has taken very long.
//!
//! A job that nobody waits for when its turn comes is left out; what one finds that runs then is dropped by its
//! thread. Called by [`FileCache`](super::FileCache) alone.
#![expect(
    clippy::disallowed_methods,
    reason = "jobs are timed by the disk threads, too"
)]

use std::cell::{Cell, LazyCell, RefCell};
use std::collections::HashMap;
use std::mem;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::cold::{Asker, LookedUpFile, NextNames, is_to_be_read, look, read};
use super::{FoundFile, Symlinks};
use crate::blocking::{self, Class, NotDone, Origin};
use crate::file_accounts::FileAccounts;
use crate::limits;
use crate::mounts::Storage;
use crate::paths::place_ahead;

/// Jobs that are queued or running, by what they look at.
#[derive(Default)]
pub(super) struct Jobs {
    table: Rc<RefCell<JobTable>>,
    accounts: Arc<FileAccounts>,
}

#[derive(Default)]
struct JobTable {
    last: HashMap<Key, Last>,
    /// With so many it is time to take out those that are over.
    most: usize,
}

type Key = (Box<[u8]>, Symlinks);

/// The last job for a path.
struct Last {
    /// Lives as long as somebody waits for it.
    job: Weak<LookUpJob>,
    shared: Arc<SharedJob>,
    /// The file system that it waits for.
    device: u64,
    queued_at: Instant,
    /// Those before it that were not over when it began, and what they wait for.
    before: Vec<(u64, Arc<SharedJob>)>,
}

/// A job of this worker, shared by those who wait for it.
struct LookUpJob {
    key: Key,
    shared: Arc<SharedJob>,
    table: Rc<RefCell<JobTable>>,
    /// What was made of the result, for those who come after the first.
    settled: RefCell<Option<Vec<FoundFile>>>,
    /// Numbers given to waiters so far.
    waiters: Cell<u64>,
}

/// Somebody who waits for a job.
pub(super) struct Waiter {
    job: Rc<LookUpJob>,
    number: u64,
}

impl Jobs {
    /// No jobs yet. What they read counts for `accounts`.
    pub(crate) fn new(accounts: &Arc<FileAccounts>) -> Jobs {
        Jobs {
            table: Rc::default(),
            accounts: Arc::clone(accounts),
        }
    }

    /// Waits for the job for `path`, which is begun if there is none that can be shared.
    ///
    /// # Errors
    /// The pool takes no more work.
    pub(crate) fn join(
        &self,
        path: &[u8],
        symlinks: Symlinks,
        asker: Asker,
        next: impl FnOnce() -> Option<NextNames>,
    ) -> Result<Waiter, NotDone> {
        let key = (Box::from(path), symlinks);
        let place = LazyCell::new(|| place_ahead(path, symlinks));
        let mut table = self.table.borrow_mut();
        let mut before = Vec::new();
        if let Some(last) = table.last.get_mut(&key) {
            if !last.is_hopeless(|| place.device)
                && let Some(job) = last.rejoin(&key, &self.table)
            {
                return Ok(Waiter::new(job));
            }
            before = last.running();
        }
        let shared = Arc::<SharedJob>::default();
        let origin = Origin {
            device: place.device,
            is_remote: place.storage == Storage::Remote,
            client: asker.client,
            bytes: 0,
        };
        let look_up = LookUp {
            shared: Arc::clone(&shared),
            path: path.into(),
            symlinks,
            next: next(),
            wants_first: asker.wants_first,
            origin,
            looked: Vec::new(),
            accounts: Arc::clone(&self.accounts),
        };
        blocking::start(Class::Stat, origin, look_up)?;
        let mut last = Last {
            job: Weak::new(),
            shared,
            device: place.device,
            queued_at: Instant::now(),
            before,
        };
        let job = last.job(&key, &self.table);
        table.insert(key, last);
        Ok(Waiter::new(job))
    }

    /// Lets those who come later not wait for a job that may have looked before a change.
    pub(crate) fn forget(&self, path: &[u8]) {
        let mut table = self.table.borrow_mut();
        for symlinks in [Symlinks::Follow, Symlinks::Refuse] {
            table.last.remove(&(path.into(), symlinks));
        }
    }

    /// Jobs that somebody waits for.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        let table = self.table.borrow();
        let is_awaited = |last: &&Last| last.job.strong_count() > 0;
        table.last.values().filter(is_awaited).count()
    }
}

impl JobTable {
    fn insert(&mut self, key: Key, last: Last) {
        if self.last.len() >= self.most {
            let is_of_use = |last: &Last| last.job.strong_count() > 0 || !last.shared.is_over();
            self.last.retain(|_, last| is_of_use(last));
            self.most = PRUNE_AT_LEAST.max(2 * self.last.len());
        }
        self.last.insert(key, last);
    }
}

impl Last {
    /// Whether it may never end, and another job may.
    fn is_hopeless(&self, device: impl FnOnce() -> u64) -> bool {
        let is_new = self.queued_at.elapsed() < Duration::from_millis(limits::STUCK_JOB_MS);
        if is_new || self.shared.is_over() {
            return false;
        }
        let mut before = self.before.iter().filter(|(_, shared)| !shared.is_over());
        if device() != self.device {
            // Another file system was mounted, or was found behind a symlink.
            return before.count() + 1 < limits::LOOK_UPS_PER_PATH_MAX;
        }
        let patience = Duration::from_secs(limits::LOOK_UP_AGAIN_S);
        let is_slow = self.shared.runs_for().is_some_and(|time| time >= patience);
        is_slow && !before.any(|(device, _)| *device == self.device)
    }

    /// The job, for one more who waits. `None`: it is over.
    fn rejoin(&mut self, key: &Key, table: &Rc<RefCell<JobTable>>) -> Option<Rc<LookUpJob>> {
        match self.job.upgrade() {
            // What one has found is in the cache, or was for those alone who waited for it.
            Some(job) => Some(job).filter(|job| job.settled.borrow().is_none()),
            None if self.shared.take_up() => Some(self.job(key, table)),
            None => None,
        }
    }

    fn job(&mut self, key: &Key, table: &Rc<RefCell<JobTable>>) -> Rc<LookUpJob> {
        let job = Rc::new(LookUpJob {
            key: key.clone(),
            shared: Arc::clone(&self.shared),
            table: Rc::clone(table),
            settled: RefCell::default(),
            waiters: Cell::new(0),
        });
        self.job = Rc::downgrade(&job);
        job
    }

    /// It and those before it, as far as they are not over.
    fn running(&self) -> Vec<(u64, Arc<SharedJob>)> {
        let own = (self.device, Arc::clone(&self.shared));
        let all = self.before.iter().cloned().chain([own]);
        all.filter(|(_, shared)| !shared.is_over()).collect()
    }
}

impl Waiter {
    fn new(job: Rc<LookUpJob>) -> Waiter {
        let number = job.waiters.get();
        job.waiters.set(number + 1);
        Waiter { job, number }
    }

    pub(crate) fn path(&self) -> &[u8] {
        &self.job.key.0
    }

    pub(crate) fn symlinks(&self) -> Symlinks {
        self.job.key.1
    }

    /// What was made of the result, once it is there.
    pub(crate) fn settled(&self) -> &RefCell<Option<Vec<FoundFile>>> {
        &self.job.settled
    }

    /// Waits for the end. The first who asks then gets what was found; nothing if the job was lost.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<Option<Vec<LookedUpFile>>> {
        let mut state = self.job.shared.lock();
        if state.progress == JobProgress::Over {
            return Poll::Ready(state.looked.take());
        }
        match state.wakers.get_mut(&self.number) {
            Some(known) => known.clone_from(context.waker()),
            None => drop(state.wakers.insert(self.number, context.waker().clone())),
        }
        Poll::Pending
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let waker = self.job.shared.lock().wakers.remove(&self.number);
        drop(waker);
    }
}

impl Drop for LookUpJob {
    fn drop(&mut self) {
        if !self.shared.give_up() {
            return;
        }
        let mut table = self.table.borrow_mut();
        // A later job may have taken its place.
        let last = table.last.get(&self.key);
        if last.is_some_and(|last| Arc::ptr_eq(&last.shared, &self.shared)) {
            table.last.remove(&self.key);
        }
    }
}

/// What a worker and a thread of the pool have in common.
#[derive(Default)]
struct SharedJob(Mutex<JobState>);

#[derive(Default)]
struct JobState {
    progress: JobProgress,
    /// Nobody waits.
    is_given_up: bool,
    looked: Option<Vec<LookedUpFile>>,
    /// Those who wait, by their numbers.
    wakers: HashMap<u64, Waker>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum JobProgress {
    #[default]
    Queued,
    /// A thread looks, since then.
    Running(Instant),
    /// It has looked, or will never do so.
    Over,
}

impl SharedJob {
    fn lock(&self) -> MutexGuard<'_, JobState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        self.lock().progress == JobProgress::Over
    }

    /// How long a thread has been looking, if one does.
    fn runs_for(&self) -> Option<Duration> {
        match self.lock().progress {
            JobProgress::Running(since) => Some(since.elapsed()),
            JobProgress::Queued | JobProgress::Over => None,
        }
    }

    /// Nobody waits any more. Answers whether it is over; what it found is dropped then.
    fn give_up(&self) -> bool {
        let mut state = self.lock();
        state.is_given_up = true;
        let is_over = state.progress == JobProgress::Over;
        let looked = state.looked.take();
        drop(state);
        drop(looked);
        is_over
    }

    /// Somebody waits again, unless it is over.
    fn take_up(&self) -> bool {
        let mut state = self.lock();
        let can_be = state.progress != JobProgress::Over;
        if can_be {
            state.is_given_up = false;
        }
        can_be
    }

    /// Whether anybody waits. If not, it is over: somebody who comes now would find it left out.
    fn is_wanted(&self) -> bool {
        let mut state = self.lock();
        if state.is_given_up {
            state.progress = JobProgress::Over;
        }
        !state.is_given_up
    }

    fn begin(&self) {
        self.lock().progress = JobProgress::Running(Instant::now());
    }

    /// It waits for another thread, which is to go on with it.
    fn wait_again(&self) {
        self.lock().progress = JobProgress::Queued;
    }

    fn finish(&self, looked: Option<Vec<LookedUpFile>>) {
        let mut state = self.lock();
        if state.progress == JobProgress::Over {
            return;
        }
        state.progress = JobProgress::Over;
        let unwanted = match state.is_given_up {
            true => looked,
            false => mem::replace(&mut state.looked, looked),
        };
        let wakers = mem::take(&mut state.wakers);
        drop(state);
        drop(unwanted);
        wakers.into_values().for_each(Waker::wake);
    }
}

/// The job as threads do it: a thread of [`Class::Stat`] looks, and what is to be read then waits for one of
/// [`Class::First`], so that look-ups that need no contents do not wait behind it. Those who wait are told also when it
/// panics or is never run.
struct LookUp {
    shared: Arc<SharedJob>,
    path: Box<[u8]>,
    symlinks: Symlinks,
    next: Option<NextNames>,
    wants_first: bool,
    origin: Origin,
    /// What is there, if it is still to be read.
    looked: Vec<LookedUpFile>,
    accounts: Arc<FileAccounts>,
}

impl blocking::Job for LookUp {
    fn run(mut self: Box<Self>) {
        self.shared.begin();
        let mut looked = mem::take(&mut self.looked);
        if looked.is_empty() {
            let path = mem::take(&mut self.path);
            looked = look(path, self.symlinks, self.next.take());
            if is_to_be_read(&looked, self.wants_first) {
                self.looked = looked;
                self.shared.wait_again();
                // Refused, it is dropped, and says so.
                let _ = blocking::start(Class::First, self.origin, *self);
                return;
            }
        } else {
            read(&mut looked, self.wants_first, &self.accounts);
        }
        self.shared.finish(Some(looked));
    }

    fn is_wanted(&self) -> bool {
        self.shared.is_wanted()
    }
}

impl Drop for LookUp {
    fn drop(&mut self) {
        // What was to be read and is not had no room in the queue.
        let first = mem::take(&mut self.looked).into_iter().next();
        self.shared
            .finish(first.map(|looked| vec![looked.refused()]));
    }
}

const PRUNE_AT_LEAST: usize = 64;

#[cfg(test)]
mod tests {
    use blocking::Job as _;
    use rustix::io::Errno;

    use super::*;

    /// A job that no thread has: the test is the thread.
    struct Fixture {
        jobs: Jobs,
        key: Key,
        work: Box<LookUp>,
    }

    impl Fixture {
        fn new() -> (Fixture, Waiter) {
            let key: Key = (Box::from(&b"/a"[..]), Symlinks::Follow);
            let jobs = Jobs::default();
            let mut last = last(7, Duration::ZERO);
            let work = Box::new(LookUp {
                shared: Arc::clone(&last.shared),
                path: key.0.clone(),
                symlinks: key.1,
                next: None,
                wants_first: true,
                origin: Origin::default(),
                looked: Vec::new(),
                accounts: Arc::default(),
            });
            let waiter = Waiter::new(last.job(&key, &jobs.table));
            jobs.table.borrow_mut().insert(key.clone(), last);
            (Fixture { jobs, key, work }, waiter)
        }

        fn rejoin(&self) -> Option<Waiter> {
            let mut table = self.jobs.table.borrow_mut();
            let last = table.last.get_mut(&self.key)?;
            last.rejoin(&self.key, &self.jobs.table).map(Waiter::new)
        }
    }

    fn last(device: u64, age: Duration) -> Last {
        Last {
            job: Weak::new(),
            shared: Arc::default(),
            device,
            queued_at: ago(age),
            before: Vec::new(),
        }
    }

    fn ago(age: Duration) -> Instant {
        Instant::now().checked_sub(age).expect("the machine is up")
    }

    fn is_ready(waiter: &Waiter) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        waiter.poll(&mut context).is_ready()
    }

    #[test]
    fn who_leaves_is_not_woken() {
        let (fixture, first) = Fixture::new();
        let wakers = || fixture.work.shared.lock().wakers.len();
        for _ in 0..3 {
            let late = fixture.rejoin().expect("somebody waits");
            assert!(!is_ready(&first) && !is_ready(&late) && !is_ready(&late));
            assert_eq!(wakers(), 2);
        }
        assert!(!is_ready(&first));
        assert_eq!(wakers(), 1);
        fixture.work.shared.finish(None);
        assert_eq!(wakers(), 0);
        assert!(is_ready(&first));
    }

    #[test]
    fn a_job_is_shared_again_by_those_who_come_when_all_have_left() {
        let (fixture, first) = Fixture::new();
        // Before a thread has it, and while one does.
        drop(first);
        let second = fixture.rejoin().expect("it waits for a thread");
        assert!(fixture.work.is_wanted());
        fixture.work.shared.begin();
        drop(second);
        assert_eq!(fixture.jobs.len(), 0);
        let third = fixture.rejoin().expect("a thread is at it");
        assert_eq!(fixture.jobs.len(), 1);
        fixture.work.shared.finish(Some(Vec::new()));
        assert!(is_ready(&third));
        *third.settled().borrow_mut() = Some(Vec::new());
        assert!(fixture.rejoin().is_none(), "it is over");
        drop(third);
        assert!(fixture.jobs.table.borrow().last.is_empty());
    }

    #[test]
    fn what_was_left_out_is_not_shared() {
        let (fixture, first) = Fixture::new();
        drop(first);
        assert!(!fixture.work.is_wanted());
        assert!(fixture.rejoin().is_none());
        // And what ends with nobody waiting leaves nothing behind.
        let (fixture, first) = Fixture::new();
        fixture.work.shared.begin();
        drop(first);
        fixture.work.shared.finish(Some(Vec::new()));
        assert!(fixture.work.shared.lock().looked.is_none());
        assert!(fixture.rejoin().is_none());
        let Fixture { jobs, work, .. } = fixture;
        drop(work);
        for number in 0..10 * PRUNE_AT_LEAST {
            let key = (number.to_string().into_bytes().into(), Symlinks::Follow);
            let over = last(7, Duration::ZERO);
            over.shared.finish(None);
            jobs.table.borrow_mut().insert(key, over);
        }
        assert!(jobs.table.borrow().last.len() <= 2 * PRUNE_AT_LEAST);
    }

    #[test]
    fn what_is_looked_up_and_finds_no_room_to_be_read_is_busy() {
        let (fixture, first) = Fixture::new();
        let Fixture { mut work, .. } = fixture;
        work.looked = look(Box::from(&b"/proc/self/status"[..]), Symlinks::Follow, None);
        drop(work);
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(Some(looked)) = first.poll(&mut context) else {
            panic!("those who wait are not told");
        };
        let found = looked.first().map(|looked| looked.found.as_ref().err());
        assert_eq!(found, Some(Some(&Errno::BUSY.into())));
    }

    #[test]
    fn a_job_that_is_lost_is_told() {
        let (fixture, first) = Fixture::new();
        let Fixture { jobs, work, .. } = fixture;
        drop(work);
        assert!(is_ready(&first));
        drop(first);
        assert_eq!(jobs.len(), 0);
    }

    #[test]
    fn another_job_is_begun_where_the_last_one_waits_for_nothing() {
        let second = Duration::from_millis(limits::STUCK_JOB_MS);
        let long = Duration::from_secs(limits::LOOK_UP_AGAIN_S);
        assert!(!last(7, Duration::ZERO).is_hopeless(|| 8), "it is new");
        let mut stuck = last(7, second);
        assert!(!stuck.is_hopeless(|| 7));
        assert!(stuck.is_hopeless(|| 8), "another file system is there");
        // It may wait for its turn as long as that takes.
        stuck.queued_at = ago(2 * long);
        assert!(!stuck.is_hopeless(|| 7));
        stuck.shared.lock().progress = JobProgress::Running(ago(long));
        assert!(stuck.is_hopeless(|| 7));
        // Once.
        stuck.before = vec![(7, Arc::default())];
        assert!(!stuck.is_hopeless(|| 7));
        stuck.before[0].1.finish(None);
        assert!(stuck.is_hopeless(|| 7), "the one before is over");
        stuck.before = vec![(5, Arc::default()); limits::LOOK_UPS_PER_PATH_MAX - 1];
        assert!(!stuck.is_hopeless(|| 8), "so many and no more");
        assert_eq!(stuck.running().len(), limits::LOOK_UPS_PER_PATH_MAX);
        stuck.shared.finish(None);
        assert!(!stuck.is_hopeless(|| 8), "it is over");
    }
}
