//! Requests of a worker that want the same thing from the disk at the same time share one job.
//!
//! A request that asks for a file on a file system that hangs joins the job that hangs there already; so
//! requests that come and go take no further threads. The worker keeps track of a job until it ends, even if
//! no request waits for it. If no request waits when a thread takes the job, the thread leaves it out; if
//! none waits when the job ends, the thread drops the result. Jobs need no task of their own: the requests
//! poll them. [`Sharing`] says whether a request may join a job that a thread has begun. Knows nothing of
//! requests; the file cache, mod_dirlisting and mod_staticfile call it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, Shared, WeakShared};
use tokio::sync::Notify;

use super::{Class, Job, NotDone, Origin, start};
use crate::limits;

/// The unfinished jobs of a worker, by key. A job returns an `S`, which is turned into a `T` for the requests
/// that wait.
pub struct SharedJobs<K, S, T: Clone = Result<S, NotDone>> {
    last: RefCell<HashMap<K, LastJob<S, T>>>,
    /// When the table has this many entries, entries of finished jobs are removed.
    prune_at: Cell<usize>,
}

/// A future that yields the result of a shared job. All requests that wait for one job get a clone of the
/// same result.
pub type JobWaiter<T> = Shared<LocalBoxFuture<'static, T>>;

/// When a request may join a job that exists already.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Until the job is over. The result may be older than the request. A second job is begun beside the
    /// first only if the first may never end and the second probably will: the path leads to another file
    /// system by now, or the first has taken very long. The number of such jobs is limited.
    UntilOver,
    /// Until a thread begins the job. So the result is never older than the request. Requests that come later
    /// share the next job, which no thread gets before the present one is over. So a key takes one thread per
    /// worker at most, however many requests ask and however slow the disk is.
    UntilBegun,
}

/// The last job that was queued for a key.
struct LastJob<S, T: Clone> {
    /// Weak: the waiting requests own it.
    waiter: Option<WeakShared<LocalBoxFuture<'static, T>>>,
    state: Arc<JobState<S>>,
    /// Older jobs for this key that were not over when this one was queued.
    before: Vec<Arc<JobState<S>>>,
}

impl<K, S, T> SharedJobs<K, S, T>
where
    K: Eq + Hash,
    S: Send + 'static,
    T: Clone + From<Result<S, NotDone>> + 'static,
{
    /// Waits for a job for `key` that no thread has begun. If there is none, queues `work` for `origin`.
    /// Returns `None` if there are jobs for `keys_max` other keys. The worker itself may drop `work`, so
    /// dropping it must not close a file: pass files as
    /// [`SharedDescriptor`](crate::file_cache::SharedDescriptor).
    pub fn join_next(
        &self,
        key: K,
        keys_max: usize,
        origin: Origin,
        work: impl FnOnce() -> S + Send + 'static,
    ) -> Option<JobWaiter<T>> {
        let is_full = || {
            let last = self.last.borrow();
            last.len() >= keys_max && !last.contains_key(&key)
        };
        if is_full() {
            self.prune();
        }
        if is_full() {
            return None;
        }
        let work = || move |end: JobEnd<S>| end.finish(work());
        Some(self.join(key, Sharing::UntilBegun, || origin, work))
    }

    /// Waits for the job for `key`. If there is none to share, queues the one that `work` returns, for
    /// `origin`.
    pub(crate) fn join<W: FnOnce(JobEnd<S>) + Send + 'static>(
        &self,
        key: K,
        sharing: Sharing,
        origin: impl Fn() -> Origin,
        work: impl FnOnce() -> W,
    ) -> JobWaiter<T> {
        if self.last.borrow().len() >= self.prune_at.get() {
            self.prune();
            let left = self.last.borrow().len();
            self.prune_at.set(PRUNE_AT_LEAST.max(2 * left));
        }
        let mut table = self.last.borrow_mut();
        let mut before = Vec::new();
        if let Some(last) = table.get_mut(&key) {
            let can_be_shared = match sharing {
                Sharing::UntilOver => !last.is_hopeless(|| origin().device),
                Sharing::UntilBegun => last.state.step() == JobStep::Queued,
            };
            if can_be_shared && let Some(waiter) = last.rejoin() {
                return waiter;
            }
            before = last.unfinished();
        }
        let origin = origin();
        let state = JobState::new(origin.device);
        let end = JobEnd(Arc::clone(&state));
        let job = SharedWork { work: work(), end };
        let wait = JobWait(Arc::clone(&state));
        let in_front = match sharing {
            Sharing::UntilOver => Vec::new(),
            Sharing::UntilBegun => before.clone(),
        };
        let mut last = LastJob {
            waiter: None,
            state,
            before,
        };
        let waiter = last.wait_for(async move {
            for job in in_front {
                job.until_over().await;
            }
            start(Class::Stat, origin, job)?;
            wait.found().await
        });
        table.insert(key, last);
        // Polled once here, so that the job is queued even if the request does not wait for it now.
        let _ = waiter.clone().now_or_never();
        waiter
    }

    /// Requests that come from now on do not share the present job for `key`, which may have looked before a
    /// change.
    pub(crate) fn forget(&self, key: &K) {
        self.last.borrow_mut().remove(key);
    }

    fn prune(&self) {
        let is_of_use =
            |last: &LastJob<S, T>| last.waiter().is_some() || !last.unfinished().is_empty();
        self.last.borrow_mut().retain(|_, last| is_of_use(last));
    }
}

impl<K, S, T: Clone> Default for SharedJobs<K, S, T> {
    fn default() -> SharedJobs<K, S, T> {
        SharedJobs {
            last: RefCell::default(),
            prune_at: Cell::new(PRUNE_AT_LEAST),
        }
    }
}

impl<S: 'static, T: Clone + From<Result<S, NotDone>> + 'static> LastJob<S, T> {
    /// Whether this job may never end while another one could.
    fn is_hopeless(&self, device: impl Fn() -> u64) -> bool {
        let is_new = self.state.queued_at.elapsed() < Duration::from_millis(limits::STUCK_JOB_MS);
        if is_new || self.state.is_over() {
            return false;
        }
        let mut before = self.before.iter().filter(|state| !state.is_over());
        if device() != self.state.device {
            // A file system was mounted or unmounted on the path, or a symlink leads elsewhere by now.
            return before.count() + 1 < limits::LOOK_UPS_PER_PATH_MAX;
        }
        let patience = Duration::from_secs(limits::LOOK_UP_AGAIN_S);
        let is_slow = |since: Instant| since.elapsed() >= patience;
        matches!(self.state.step(), JobStep::Running(since) if is_slow(since))
            && !before.any(|state| state.device == self.state.device)
    }

    fn waiter(&self) -> Option<JobWaiter<T>> {
        self.waiter.as_ref()?.upgrade()
    }

    /// Another future for the result. `None`: the job is over.
    fn rejoin(&mut self) -> Option<JobWaiter<T>> {
        if let Some(waiter) = self.waiter() {
            // A finished result is only for the requests that waited while the job ran.
            return Some(waiter).filter(|waiter| waiter.peek().is_none());
        }
        let mut progress = self.state.lock();
        if progress.step == JobStep::Over {
            return None;
        }
        progress.is_given_up = false;
        drop(progress);
        let wait = JobWait(Arc::clone(&self.state));
        Some(self.wait_for(wait.found()))
    }

    fn wait_for(
        &mut self,
        found: impl Future<Output = Result<S, NotDone>> + 'static,
    ) -> JobWaiter<T> {
        let waiter = found.map(T::from).boxed_local().shared();
        self.waiter = waiter.downgrade();
        waiter
    }

    /// This job and the ones before it, without those that are over.
    fn unfinished(&self) -> Vec<Arc<JobState<S>>> {
        let all = self.before.iter().chain([&self.state]);
        all.filter(|state| !state.is_over()).cloned().collect()
    }
}

/// The state of a job that the worker and the disk threads share.
struct JobState<S> {
    /// The file system that the job waits for.
    device: u64,
    queued_at: Instant,
    progress: Mutex<JobProgress<S>>,
    ended: Notify,
}

struct JobProgress<S> {
    step: JobStep,
    /// No request waits for the job any more.
    is_given_up: bool,
    /// The result, or the error that requests get if there will be none.
    found: Result<S, NotDone>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum JobStep {
    Queued,
    /// A thread has worked on it since then.
    Running(Instant),
    /// The job is done, or will never be done.
    Over,
}

impl<S> JobState<S> {
    fn new(device: u64) -> Arc<JobState<S>> {
        Arc::new(JobState {
            device,
            queued_at: Instant::now(),
            progress: Mutex::new(JobProgress {
                step: JobStep::Queued,
                is_given_up: false,
                found: Err(NotDone::Lost),
            }),
            ended: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, JobProgress<S>> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(&self) -> JobStep {
        self.lock().step
    }

    fn is_over(&self) -> bool {
        self.step() == JobStep::Over
    }

    async fn until_over(&self) {
        let ended = self.ended.notified();
        if !self.is_over() {
            ended.await;
        }
    }
}

/// The requests' side of a job. All its waiting requests share one; dropping it means that no request waits
/// any more.
struct JobWait<S>(Arc<JobState<S>>);

impl<S> JobWait<S> {
    async fn found(self) -> Result<S, NotDone> {
        self.0.until_over().await;
        mem::replace(&mut self.0.lock().found, Err(NotDone::Lost))
    }
}

impl<S> Drop for JobWait<S> {
    fn drop(&mut self) {
        let mut progress = self.0.lock();
        progress.is_given_up = true;
        // An error stays: a request that joins again later needs to see it.
        let is_unwanted = progress.found.is_ok();
        let unwanted = is_unwanted.then(|| mem::replace(&mut progress.found, Err(NotDone::Lost)));
        drop(progress);
        drop(unwanted);
    }
}

/// The thread's side of a job. Dropping it ends the job, so the waiting requests hear of the end also when
/// the job panics or never runs.
pub(crate) struct JobEnd<S>(Arc<JobState<S>>);

impl<S: Send + 'static> JobEnd<S> {
    /// Stores the result and wakes the waiting requests.
    pub(crate) fn finish(self, found: S) {
        let mut progress = self.0.lock();
        progress.step = JobStep::Over;
        let unwanted = match progress.is_given_up {
            true => Ok(found),
            false => mem::replace(&mut progress.found, Ok(found)),
        };
        drop(progress);
        drop(unwanted);
    }

    /// Passes the job on to a thread of another class. If that queue is full, the waiting requests get an
    /// error.
    pub(crate) fn go_on(
        self,
        class: Class,
        origin: Origin,
        work: impl FnOnce(JobEnd<S>) + Send + 'static,
    ) {
        let mut progress = self.0.lock();
        progress.step = JobStep::Queued;
        progress.found = Err(NotDone::QueueFull);
        drop(progress);
        // A full queue drops the job, and that drops `end`, which wakes the requests.
        let _ = start(class, origin, SharedWork { work, end: self });
    }
}

impl<S> Drop for JobEnd<S> {
    fn drop(&mut self) {
        self.0.lock().step = JobStep::Over;
        self.0.ended.notify_waiters();
    }
}

/// The job as a thread gets it: what to do, and where the result goes.
struct SharedWork<W, S> {
    work: W,
    end: JobEnd<S>,
}

impl<W: FnOnce(JobEnd<S>) + Send, S: Send> Job for SharedWork<W, S> {
    fn run(self: Box<Self>) {
        let SharedWork { work, end } = *self;
        let mut progress = end.0.lock();
        progress.step = JobStep::Running(Instant::now());
        progress.found = Err(NotDone::Lost);
        drop(progress);
        work(end);
    }

    fn is_wanted(&self) -> bool {
        let mut progress = self.end.0.lock();
        if progress.is_given_up {
            // The thread will leave this job out, so no request may join it from now on.
            progress.step = JobStep::Over;
        }
        !progress.is_given_up
    }
}

const PRUNE_AT_LEAST: usize = 64;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::{self, Sender};
    use std::task::{Context, Waker};

    use super::*;

    type Jobs = SharedJobs<&'static str, u64>;
    type Waiter = JobWaiter<Result<u64, NotDone>>;

    /// A job for "a" that no thread runs: the test plays the thread.
    struct Fixture {
        jobs: Jobs,
        state: Arc<JobState<u64>>,
    }

    impl Fixture {
        fn new() -> (Fixture, Waiter) {
            let (jobs, state) = (Jobs::default(), JobState::new(7));
            let mut last = LastJob {
                waiter: None,
                state: Arc::clone(&state),
                before: Vec::new(),
            };
            let waiter = last.wait_for(JobWait(Arc::clone(&state)).found());
            jobs.last.borrow_mut().insert("a", last);
            (Fixture { jobs, state }, waiter)
        }

        fn rejoin(&self) -> Option<Waiter> {
            self.jobs.last.borrow_mut().get_mut("a")?.rejoin()
        }

        fn end(&self) -> JobEnd<u64> {
            JobEnd(Arc::clone(&self.state))
        }

        fn is_awaited(&self) -> bool {
            self.jobs.last.borrow()["a"].waiter().is_some()
        }
    }

    fn is_ready(waiter: &mut Waiter) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        waiter.poll_unpin(&mut context).is_ready()
    }

    fn ago(age: Duration) -> Instant {
        Instant::now().checked_sub(age).expect("the machine is up")
    }

    #[test]
    fn a_job_is_shared_again_by_those_who_come_when_all_have_left() {
        let (fixture, first) = Fixture::new();
        let job = SharedWork {
            work: |end: JobEnd<u64>| end.finish(1),
            end: fixture.end(),
        };
        // All requests leave: first before a thread takes the job, then while one runs it.
        drop(first);
        let second = fixture.rejoin().expect("it waits for a thread");
        assert!(job.is_wanted());
        fixture.state.lock().step = JobStep::Running(ago(Duration::ZERO));
        drop(second);
        assert!(!fixture.is_awaited());
        let mut third = fixture.rejoin().expect("a thread is at it");
        let mut fourth = fixture.rejoin().expect("a request waits");
        assert!(fixture.is_awaited());
        assert!(!is_ready(&mut third) && !is_ready(&mut fourth));
        Box::new(job).run();
        assert!(is_ready(&mut third));
        assert!(fixture.rejoin().is_none(), "it is over");
        assert_eq!(fourth.now_or_never(), Some(Ok(1)));
        assert!(!fixture.is_awaited());
    }

    #[test]
    fn what_was_left_out_is_not_shared() {
        let (fixture, first) = Fixture::new();
        let job = SharedWork {
            work: |_| (),
            end: fixture.end(),
        };
        drop(first);
        assert!(!job.is_wanted());
        assert!(fixture.rejoin().is_none());
        // A job that ends while no request waits leaves nothing behind.
        let (fixture, first) = Fixture::new();
        drop(first);
        fixture.end().finish(1);
        assert!(fixture.state.lock().found.is_err());
        assert!(fixture.rejoin().is_none());
        let Fixture { jobs, .. } = fixture;
        let begin = |number: usize| {
            let key = number.to_string().leak();
            drop(jobs.join(key, Sharing::UntilOver, Origin::default, || drop));
            jobs.last.borrow().len()
        };
        let known: Vec<usize> = (0..10 * PRUNE_AT_LEAST).map(begin).collect();
        // On a busy machine the job may need a moment to end.
        let mut later = (known.len()..20_000).map(begin);
        assert!(later.any(|known| {
            std::thread::sleep(Duration::from_millis(1));
            known <= 2 * PRUNE_AT_LEAST
        }));
    }

    #[test]
    fn what_finds_no_room_to_go_on_is_told_so_and_what_is_lost_as_well() {
        let (fixture, first) = Fixture::new();
        fixture.end().0.lock().found = Err(NotDone::QueueFull);
        assert_eq!(first.now_or_never(), Some(Err(NotDone::QueueFull)));
        let (fixture, first) = Fixture::new();
        drop(fixture.end());
        assert_eq!(first.now_or_never(), Some(Err(NotDone::Lost)));
        assert!(!fixture.is_awaited());
    }

    #[test]
    fn a_request_that_waits_again_is_told_that_there_was_no_room() {
        let (fixture, first) = Fixture::new();
        let mut progress = fixture.state.lock();
        progress.step = JobStep::Queued;
        progress.found = Err(NotDone::QueueFull);
        drop(progress);
        drop(first);
        let second = fixture.rejoin().expect("it is not over");
        drop(fixture.end());
        assert_eq!(second.now_or_never(), Some(Err(NotDone::QueueFull)));
    }

    #[test]
    fn what_is_forgotten_is_not_shared() {
        let (fixture, mut first) = Fixture::new();
        fixture.jobs.forget(&"a");
        assert!(fixture.rejoin().is_none());
        fixture.end().finish(1);
        assert!(is_ready(&mut first));
    }

    #[test]
    fn another_job_is_begun_where_the_last_one_waits_for_nothing() {
        let second = Duration::from_millis(limits::STUCK_JOB_MS);
        let long = Duration::from_secs(limits::LOOK_UP_AGAIN_S);
        let last = |age| {
            let mut state = JobState::new(7);
            let queued_at = Arc::get_mut(&mut state).map(|state| &mut state.queued_at);
            *queued_at.expect("it is new") = ago(age);
            LastJob::<u64, Result<u64, NotDone>> {
                waiter: None,
                state,
                before: Vec::new(),
            }
        };
        assert!(!last(Duration::ZERO).is_hopeless(|| 8), "it is new");
        let stuck = last(second);
        assert!(!stuck.is_hopeless(|| 7));
        assert!(stuck.is_hopeless(|| 8), "another file system is there");
        // On a busy machine it may wait long for its turn.
        let mut stuck = last(2 * long);
        assert!(!stuck.is_hopeless(|| 7));
        stuck.state.lock().step = JobStep::Running(ago(long));
        assert!(stuck.is_hopeless(|| 7));
        // It ran once.
        stuck.before = vec![JobState::new(7)];
        assert!(!stuck.is_hopeless(|| 7));
        stuck.before[0].lock().step = JobStep::Over;
        assert!(stuck.is_hopeless(|| 7), "the one before is over");
        stuck.before = vec![JobState::new(5); limits::LOOK_UPS_PER_PATH_MAX - 1];
        assert!(!stuck.is_hopeless(|| 8), "so many and no more");
        assert_eq!(stuck.unfinished().len(), limits::LOOK_UPS_PER_PATH_MAX);
        stuck.state.lock().step = JobStep::Over;
        assert!(!stuck.is_hopeless(|| 8), "it is over");
    }

    /// Jobs that count themselves and end when the test lets them.
    struct Counting {
        jobs: Jobs,
        keys_max: usize,
        begun: Arc<AtomicU64>,
    }

    impl Counting {
        fn new(keys_max: usize) -> Counting {
            Counting {
                jobs: Jobs::default(),
                keys_max,
                begun: Arc::default(),
            }
        }

        /// A job that ends when the sender is dropped, and returns how many began before it.
        fn gated(&self, key: &'static str) -> (Option<Waiter>, Sender<()>) {
            let (open, is_open) = mpsc::channel::<()>();
            let begun = Arc::clone(&self.begun);
            let work = move || {
                let before = begun.fetch_add(1, Ordering::SeqCst);
                assert!(is_open.recv().is_err());
                before
            };
            let origin = Origin::default();
            let waiter = self.jobs.join_next(key, self.keys_max, origin, work);
            (waiter, open)
        }

        async fn until_begun(&self, count: u64) {
            while self.begun.load(Ordering::SeqCst) < count {
                tokio::task::yield_now().await;
            }
        }

        /// This request comes while the job runs.
        fn late(&self, key: &'static str) -> Waiter {
            let (waiter, _) = self.gated(key);
            waiter.expect("there is room")
        }
    }

    #[tokio::test(flavor = "local")]
    async fn those_who_come_while_a_job_runs_share_the_next_one() {
        let counting = Counting::new(10);
        let (first, open) = counting.gated("a");
        counting.until_begun(1).await;
        let late = (counting.late("a"), counting.late("a"), counting.late("a"));
        // A job for another key does not wait for it.
        assert_eq!(counting.late("b").await, Ok(1));
        let first = first.expect("there is room");
        let all = async { tokio::join!(first, late.0, late.1, late.2) };
        let open = async {
            tokio::task::yield_now().await;
            drop(open);
        };
        let (results, ()) = tokio::join!(all, open);
        assert_eq!(results, (Ok(0), Ok(2), Ok(2), Ok(2)));
    }

    #[tokio::test(flavor = "local")]
    async fn a_key_that_hangs_takes_one_thread_even_if_requests_give_up() {
        let counting = Counting::new(2);
        let (first, open) = counting.gated("a");
        counting.until_begun(1).await;
        drop(first);
        for _ in 0..20 {
            let late = counting.late("a");
            assert_eq!(late.now_or_never(), None);
        }
        let (second, open_second) = counting.gated("b");
        let none = counting.gated("c").0;
        assert!(none.is_none(), "two keys are all there may be");
        let last = counting.late("a");
        drop((open, open_second));
        second.expect("there was room").await.expect("it ran");
        last.await.expect("it ran");
        assert_eq!(counting.begun.load(Ordering::SeqCst), 3);
        assert!(counting.gated("c").0.is_some(), "what is over is forgotten");
    }

    #[tokio::test(flavor = "local")]
    async fn the_one_who_began_it_may_leave() {
        let counting = Counting::new(2);
        let (first, open) = counting.gated("a");
        counting.until_begun(1).await;
        let (second, third) = (counting.late("a"), counting.late("a"));
        assert_eq!(second.now_or_never(), None);
        drop(first);
        let open = async {
            tokio::task::yield_now().await;
            drop(open);
        };
        assert_eq!(tokio::join!(third, open).0, Ok(1));
    }

    #[tokio::test(flavor = "local")]
    async fn a_panic_is_an_error_for_all_and_no_end_of_the_key() {
        let jobs = Jobs::default();
        let join = |work: fn() -> u64| {
            let waiter = jobs.join_next("a", 2, Origin::default(), work);
            waiter.expect("there is room")
        };
        let lost = join(|| panic!("a job of a test panics"));
        assert_eq!(lost.await, Err(NotDone::Lost));
        assert_eq!(join(|| 7).await, Ok(7));
    }
}
