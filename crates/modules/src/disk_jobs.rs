//! One job for all requests that want the same of the disk at the same time.
//!
//! A request that asks for what is being asked for already joins that job as long as no thread has begun it: what
//! the job finds is then not older than the question. Once a thread has begun it, later requests share the next
//! job, which is not handed to a thread before the present one is over. So a key takes one thread of a worker,
//! however many requests ask and however long the disk takes.
//!
//! A job whose requests have all gone is left out if no thread has begun it. It needs no task: the requests poll
//! it. Knows nothing of requests; mod_dirlisting and mod_staticfile call it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::pin::Pin;

use futures_util::FutureExt;
use futures_util::future::{Shared, WeakShared};
use petrel_engine::blocking::{self, Class, NotDone, Origin};
use tokio::sync::watch;

/// Jobs of a worker that are waiting or running, by what they are for.
pub(crate) struct Jobs<K, T: Clone> {
    known: RefCell<HashMap<K, KnownJob<T>>>,
    most: usize,
}

/// A request's wait for a job. All that wait for one job get the same result.
pub(crate) type Waiter<T> = Shared<SharedJob<T>>;

type SharedJob<T> = Pin<Box<dyn Future<Output = Result<T, NotDone>>>>;

impl<K: Eq + Hash, T: Clone + Send + 'static> Jobs<K, T> {
    /// No jobs yet, and `most` of them at the same time.
    pub(crate) fn new(most: usize) -> Jobs<K, T> {
        Jobs {
            known: RefCell::default(),
            most,
        }
    }

    /// Waits for a job for `key`, which is `work` of `origin` if there is none that could be shared. `None`:
    /// there are too many. `work` may be dropped by the worker, so it closes nothing when it is: files come as a
    /// [`SharedDescriptor`](petrel_engine::file_cache::SharedDescriptor).
    pub(crate) fn join(
        &self,
        key: K,
        origin: Origin,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Waiter<T>> {
        let mut known = self.known.borrow_mut();
        let running = match known.get(&key) {
            Some(last) => match last.job.upgrade() {
                Some(job) if last.progress.is_waiting() => return Some(job),
                _ => last.running(),
            },
            None => None,
        };
        known.retain(|_, one| one.is_of_use());
        if known.len() >= self.most && !known.contains_key(&key) {
            return None;
        }
        let (begin, progress) = watch::channel(false);
        let work = move || {
            begin.send_replace(true);
            let result = work();
            drop(begin);
            result
        };
        let job: SharedJob<T> = match running.clone() {
            None => Box::pin(blocking::run_for(Class::Stat, origin, work)),
            Some(JobProgress(mut before)) => Box::pin(async move {
                while before.changed().await.is_ok() {}
                blocking::run_for(Class::Stat, origin, work).await
            }),
        };
        let job = job.shared();
        let last = KnownJob {
            job: job.downgrade()?,
            progress: JobProgress(progress),
            before: running,
        };
        known.insert(key, last);
        Some(job)
    }
}

/// The last job for a key.
struct KnownJob<T: Clone> {
    /// Lives as long as a request waits for it.
    job: WeakShared<SharedJob<T>>,
    progress: JobProgress,
    /// What the job waits behind.
    before: Option<JobProgress>,
}

impl<T: Clone> KnownJob<T> {
    /// What a thread is at for this key.
    fn running(&self) -> Option<JobProgress> {
        let both = [Some(&self.progress), self.before.as_ref()];
        let running = both.into_iter().flatten().find(|one| one.is_running());
        running.cloned()
    }

    fn is_of_use(&self) -> bool {
        self.job.upgrade().is_some() || self.running().is_some()
    }
}

/// How far a job is: false, then true when a thread has begun it, and closed when it is over, whether it was done,
/// has panicked or was dropped.
#[derive(Clone)]
struct JobProgress(watch::Receiver<bool>);

impl JobProgress {
    fn is_waiting(&self) -> bool {
        !*self.0.borrow() && !self.is_over()
    }

    fn is_running(&self) -> bool {
        *self.0.borrow() && !self.is_over()
    }

    fn is_over(&self) -> bool {
        self.0.is_closed()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
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
        waiter.await
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
            assert_eq!(late.now_or_never(), None);
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
        assert_eq!(second.now_or_never(), None);
        drop(first);
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
