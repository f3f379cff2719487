//! One job for all who want the same of the disk at the same time.
//!
//! Who asks for what is being asked for already joins that job as long as no thread has begun it: what it
//! finds is then not older than the question. Once it has begun, those who come later share the next one,
//! which is not handed to a thread before the present one is over. So a key takes one thread of a worker,
//! however many ask and however long the disk takes, and nobody gets an answer from before he asked.
//!
//! A job that nobody waits for any more is left out if it has not begun. It needs no task and no runtime: those
//! who wait poll it. Knows nothing of requests; mod_dirlisting and mod_staticfile call it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::mem;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};

use petrel_engine::blocking::{self, Class, NotDone, Origin, Running};

/// Jobs of a worker that are waiting or running, by what they are for.
pub(crate) struct Jobs<K, T> {
    known: RefCell<HashMap<K, Known<T>>>,
    most: usize,
}

/// Somebody who waits for a job.
pub(crate) struct Waiter<T> {
    job: Rc<Job<T>>,
    number: u64,
}

impl<K: Eq + Hash, T: Clone + Send + 'static> Jobs<K, T> {
    /// No jobs yet, and `most` of them at the same time.
    pub fn new(most: usize) -> Jobs<K, T> {
        Jobs {
            known: RefCell::default(),
            most,
        }
    }

    /// Waits for a job for `key`, which is `work` of `origin` if there is none that could be shared. `None`:
    /// there are too many. `work` may be dropped by the worker, so it closes nothing when it is: files come as a
    /// [`SharedDescriptor`](petrel_engine::file_cache::SharedDescriptor).
    pub fn join(
        &self,
        key: K,
        origin: Origin,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Waiter<T>> {
        let mut known = self.known.borrow_mut();
        let running = match known.get(&key) {
            Some(last) => match last.job.upgrade() {
                Some(job) if last.progress.is_waiting() => return Some(Waiter::new(job)),
                _ => last.running(),
            },
            None => None,
        };
        known.retain(|_, one| one.is_of_use());
        if known.len() >= self.most && !known.contains_key(&key) {
            return None;
        }
        let progress = Arc::<Progress>::default();
        let job = Rc::new(Job::new(&progress, running.clone(), origin, work));
        let last = Known {
            job: Rc::downgrade(&job),
            progress,
            before: running,
        };
        known.insert(key, last);
        Some(Waiter::new(job))
    }
}

impl<T: Clone + Send + 'static> Waiter<T> {
    fn new(job: Rc<Job<T>>) -> Waiter<T> {
        let number = job.waiters.get();
        job.waiters.set(number + 1);
        Waiter { job, number }
    }

    /// What came of the job. Everybody who waits for it gets the same.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<Result<T, NotDone>> {
        self.job.bell.put(self.number, context.waker());
        self.job.poll()
    }
}

impl<T> Drop for Waiter<T> {
    fn drop(&mut self) {
        self.job.bell.lock().remove(&self.number);
    }
}

/// The last job for a key.
struct Known<T> {
    /// Lives as long as somebody waits for it.
    job: Weak<Job<T>>,
    progress: Arc<Progress>,
    /// What the job waits behind.
    before: Option<Arc<Progress>>,
}

impl<T> Known<T> {
    /// What a thread is at for this key.
    fn running(&self) -> Option<Arc<Progress>> {
        let both = [Some(&self.progress), self.before.as_ref()];
        let running = both.into_iter().flatten().find(|one| one.is_running());
        running.map(Arc::clone)
    }

    fn is_of_use(&self) -> bool {
        self.job.strong_count() > 0 || self.running().is_some()
    }
}

/// How far a job is.
#[derive(Default)]
struct Progress {
    has_begun: AtomicBool,
    is_over: AtomicBool,
    /// Wakes the job that waits behind this one.
    next: Mutex<Option<Waker>>,
}

impl Progress {
    fn is_waiting(&self) -> bool {
        !self.has_begun.load(Ordering::Acquire) && !self.is_over()
    }

    fn is_running(&self) -> bool {
        self.has_begun.load(Ordering::Acquire) && !self.is_over()
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Whether it is over. If not, `waker` is woken when it is.
    fn is_over_or_wakes(&self, waker: &Waker) -> bool {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        *next = Some(waker.clone());
        self.is_over()
    }
}

/// Goes with the work, wherever that is done, panics or is dropped.
struct End(Arc<Progress>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
        let mut next = self.0.next.lock().unwrap_or_else(PoisonError::into_inner);
        let waker = next.take();
        drop(next);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

struct Job<T> {
    state: RefCell<State<T>>,
    origin: Origin,
    bell: Arc<Bell>,
    /// Numbers given to waiters so far.
    waiters: Cell<u64>,
}

type Work<T> = Box<dyn FnOnce() -> T + Send>;

enum State<T> {
    Behind(Arc<Progress>, Work<T>),
    Going(Running<T>),
    Over(Result<T, NotDone>),
}

impl<T: Clone + Send + 'static> Job<T> {
    fn new(
        progress: &Arc<Progress>,
        running: Option<Arc<Progress>>,
        origin: Origin,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Job<T> {
        let end = End(Arc::clone(progress));
        let work = move || {
            end.0.has_begun.store(true, Ordering::Release);
            let result = work();
            drop(end);
            result
        };
        Job {
            state: RefCell::new(match running {
                Some(running) => State::Behind(running, Box::new(work)),
                None => State::Going(blocking::run_for(Class::Stat, origin, work)),
            }),
            origin,
            bell: Arc::default(),
            waiters: Cell::new(0),
        }
    }

    fn poll(&self) -> Poll<Result<T, NotDone>> {
        let mut state = self.state.borrow_mut();
        let waker = Waker::from(Arc::clone(&self.bell));
        if let State::Behind(running, _) = &*state {
            if !running.is_over_or_wakes(&waker) {
                return Poll::Pending;
            }
            let lost = State::Over(Err(NotDone::Lost));
            if let State::Behind(_, work) = mem::replace(&mut *state, lost) {
                *state = State::Going(blocking::run_for(Class::Stat, self.origin, work));
            }
        }
        if let State::Going(running) = &mut *state {
            let done = ready!(Pin::new(running).poll(&mut Context::from_waker(&waker)));
            *state = State::Over(done);
        }
        match &*state {
            State::Over(result) => Poll::Ready(result.clone()),
            State::Behind(..) | State::Going(_) => Poll::Pending,
        }
    }
}

/// Wakes all who wait for a job.
#[derive(Default)]
struct Bell(Mutex<HashMap<u64, Waker>>);

impl Bell {
    fn put(&self, number: u64, waker: &Waker) {
        let mut wakers = self.lock();
        match wakers.get_mut(&number) {
            Some(known) => known.clone_from(waker),
            None => {
                wakers.insert(number, waker.clone());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Waker>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let wakers = mem::take(&mut *self.lock());
        for waker in wakers.into_values() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::AtomicU64;
    use std::sync::mpsc::{self, Sender};

    use super::*;

    /// Jobs that count themselves, and end when they may.
    struct Counting {
        jobs: Jobs<&'static str, u64>,
        begun: Arc<AtomicU64>,
    }

    impl Counting {
        fn new(most: usize) -> Counting {
            Counting {
                jobs: Jobs::new(most),
                begun: Arc::default(),
            }
        }

        /// A job that ends when the sender is dropped, and says how many were begun before.
        fn gated(&self, key: &'static str) -> (Option<Waiter<u64>>, Sender<()>) {
            let (open, is_open) = mpsc::channel::<()>();
            let begun = Arc::clone(&self.begun);
            let waiter = self.jobs.join(key, Origin::default(), move || {
                let before = begun.fetch_add(1, Ordering::SeqCst);
                assert!(is_open.recv().is_err());
                before
            });
            (waiter, open)
        }

        async fn until_begun(&self, count: u64) {
            while self.begun.load(Ordering::SeqCst) < count {
                tokio::task::yield_now().await;
            }
        }

        /// Who comes while the job runs.
        fn late(&self, key: &'static str) -> Waiter<u64> {
            let (waiter, _) = self.gated(key);
            waiter.expect("there is room")
        }
    }

    async fn result(waiter: Waiter<u64>) -> Result<u64, NotDone> {
        poll_fn(|context| waiter.poll(context)).await
    }

    #[tokio::test(flavor = "local")]
    async fn those_who_come_while_a_job_runs_share_the_next_one() {
        let counting = Counting::new(10);
        let (first, open) = counting.gated("a");
        counting.until_begun(1).await;
        let late = (counting.late("a"), counting.late("a"), counting.late("a"));
        // Another key waits for nobody.
        assert_eq!(result(counting.late("b")).await, Ok(1));
        let all = async {
            tokio::join!(
                result(first.expect("there is room")),
                result(late.0),
                result(late.1),
                result(late.2),
            )
        };
        let open = async {
            tokio::task::yield_now().await;
            drop(open);
        };
        let (results, ()) = tokio::join!(all, open);
        assert_eq!(results, (Ok(0), Ok(2), Ok(2), Ok(2)));
    }

    #[tokio::test(flavor = "local")]
    async fn a_key_that_hangs_takes_one_thread_whoever_gives_up() {
        let counting = Counting::new(2);
        let (first, open) = counting.gated("a");
        counting.until_begun(1).await;
        drop(first);
        for _ in 0..20 {
            let late = counting.late("a");
            let polled = poll_fn(|context| Poll::Ready(late.poll(context))).await;
            assert!(polled.is_pending());
        }
        let (second, open_second) = counting.gated("b");
        let none = counting.gated("c").0;
        assert!(none.is_none(), "two keys are all there may be");
        let last = counting.late("a");
        drop((open, open_second));
        result(second.expect("there was room"))
            .await
            .expect("it ran");
        result(last).await.expect("it ran");
        assert_eq!(counting.begun.load(Ordering::SeqCst), 3);
        assert!(counting.gated("c").0.is_some(), "what is over is forgotten");
    }

    #[tokio::test(flavor = "local")]
    async fn the_one_who_began_it_may_leave() {
        let counting = Counting::new(2);
        let (first, open) = counting.gated("a");
        counting.until_begun(1).await;
        let (second, third) = (counting.late("a"), counting.late("a"));
        let polled = poll_fn(|context| Poll::Ready(second.poll(context))).await;
        assert!(polled.is_pending());
        drop((first, second));
        let open = async {
            tokio::task::yield_now().await;
            drop(open);
        };
        assert_eq!(tokio::join!(result(third), open).0, Ok(1));
    }

    #[tokio::test(flavor = "local")]
    async fn a_panic_is_an_error_for_all_and_no_end_of_the_key() {
        let jobs = Jobs::<_, u64>::new(2);
        let waiter = jobs.join("a", Origin::default(), || panic!("a job of a test panics"));
        let waiter = waiter.expect("there is room");
        assert_eq!(result(waiter).await, Err(NotDone::Lost));
        let waiter = jobs
            .join("a", Origin::default(), || 7)
            .expect("there is room");
        assert_eq!(result(waiter).await, Ok(7));
    }
}
