//! Work that may wait for the disk, on threads of its own.
//!
//! A worker must not wait: whoever reads files of scripts or writes those of a cache hands a closure to
//! [`run`] and awaits its result. The threads are those of the process, few, shared by all workers, started
//! when there is work and ended when there has been none for a while. Nothing waits for them when the
//! server stops: a job that runs then is cut short with the process, so what it does has to be right at
//! every moment (as [`write_file_atomically`] is). Knows nothing of requests.
//!
//! Callers: scripts and the disk tier of the page cache. Files that are served come from the
//! [file cache](crate::file_cache).

mod files;

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::limits;

pub use files::{
    DirectoryEntry, read_directory, read_file, remove_file, stat, write_file_atomically,
};

/// Has one of the threads do `job`, behind those that came before. It is begun whether or not the
/// future is polled; if that is dropped before its turn comes, the job is left out, and if it is dropped
/// later the result is.
///
/// The future ends with an error when [`limits::BLOCKING_QUEUE_MAX`] jobs wait already; then nothing is
/// done.
pub fn run<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> Running<T> {
    POOL.run(job)
}

/// [`run`] for jobs that have I/O errors themselves. Those of the threads become
/// [`ResourceBusy`](io::ErrorKind::ResourceBusy) and [`Other`](io::ErrorKind::Other).
///
/// # Errors
/// Those of the job, and [`NotDone`].
pub async fn run_io<T: Send + 'static>(
    job: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    run(job).await?
}

/// The result of a job, once it is done.
pub struct Running<T>(Result<oneshot::Receiver<T>, NotDone>);

/// Why a job has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotDone {
    /// Too many jobs waited.
    QueueFull,
    /// It panicked, or no thread could be started for it.
    Lost,
}

impl<T> Future for Running<T> {
    type Output = Result<T, NotDone>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Ok(receiver) => Pin::new(receiver).poll(context).map_err(|_| NotDone::Lost),
            Err(not_done) => Poll::Ready(Err(*not_done)),
        }
    }
}

impl fmt::Display for NotDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotDone::QueueFull => "too much work waits for the disk",
            NotDone::Lost => "the work could not be done by another thread",
        })
    }
}

impl std::error::Error for NotDone {}

impl From<NotDone> for io::Error {
    fn from(not_done: NotDone) -> io::Error {
        let kind = match not_done {
            NotDone::QueueFull => io::ErrorKind::ResourceBusy,
            NotDone::Lost => io::ErrorKind::Other,
        };
        io::Error::new(kind, not_done)
    }
}

/// The threads of this process.
static POOL: Pool = Pool::new(
    limits::BLOCKING_THREADS_MAX,
    limits::BLOCKING_QUEUE_MAX,
    Duration::from_secs(limits::BLOCKING_IDLE_S),
);

type Job = Box<dyn FnOnce() + Send>;

/// Threads and the jobs that wait for them.
struct Pool {
    state: Mutex<State>,
    /// There is a job for a thread that waits.
    has_job: Condvar,
    threads_max: usize,
    queue_max: usize,
    idle_time: Duration,
}

struct State {
    queue: VecDeque<Job>,
    threads: usize,
    /// Threads that wait for a job.
    idle: usize,
}

impl Pool {
    const fn new(threads_max: usize, queue_max: usize, idle_time: Duration) -> Pool {
        Pool {
            state: Mutex::new(State {
                queue: VecDeque::new(),
                threads: 0,
                idle: 0,
            }),
            has_job: Condvar::new(),
            threads_max,
            queue_max,
            idle_time,
        }
    }

    fn run<T: Send + 'static>(
        &'static self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Running<T> {
        let (sender, receiver) = oneshot::channel();
        let job = move || {
            if !sender.is_closed() {
                // Who waited may have gone meanwhile.
                let _ = sender.send(job());
            }
        };
        Running(self.submit(Box::new(job)).map(|()| receiver))
    }

    fn submit(&'static self, job: Job) -> Result<(), NotDone> {
        let mut state = self.lock();
        if state.queue.len() >= self.queue_max {
            return Err(NotDone::QueueFull);
        }
        state.queue.push_back(job);
        if state.queue.len() <= state.idle || state.threads >= self.threads_max {
            drop(state);
            self.has_job.notify_one();
            return Ok(());
        }
        state.threads += 1;
        drop(state);
        self.start_thread();
        Ok(())
    }

    /// Starts the thread that was counted. If it cannot be, the others do its work; without any, those
    /// who wait are told.
    fn start_thread(&'static self) {
        let started = std::thread::Builder::new()
            .name("blocking".to_owned())
            .spawn(|| self.work());
        if started.is_err() {
            let mut state = self.lock();
            state.threads -= 1;
            let lost = match state.threads {
                0 => std::mem::take(&mut state.queue),
                _ => VecDeque::new(),
            };
            drop(state);
            drop(lost);
        }
    }

    /// What a thread does.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                // Who waits for a job that panics finds its sender gone.
                let _ = catch_unwind(AssertUnwindSafe(job));
                state = self.lock();
                continue;
            }
            state.idle += 1;
            let waited = self.has_job.wait_timeout(state, self.idle_time);
            let (woken, time_out) = waited.unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if time_out.timed_out() && state.queue.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};

    use super::*;

    fn pool(threads_max: usize, queue_max: usize, idle_ms: u64) -> &'static Pool {
        let idle_time = Duration::from_millis(idle_ms);
        Box::leak(Box::new(Pool::new(threads_max, queue_max, idle_time)))
    }

    /// A job that waits until the sender is dropped.
    fn gate() -> (mpsc::Sender<()>, impl FnOnce() + Send) {
        let (open, is_open) = mpsc::channel::<()>();
        // It ends with an error, when the sender has gone.
        (open, move || assert!(is_open.recv().is_err()))
    }

    /// Threads, those of them that are idle, and jobs that wait.
    fn counts(pool: &Pool) -> (usize, usize, usize) {
        let state = pool.lock();
        (state.threads, state.idle, state.queue.len())
    }

    async fn until(what: impl Fn() -> bool) {
        for _ in 0..2000 {
            if what() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("it did not happen in ten seconds");
    }

    #[tokio::test(flavor = "local")]
    async fn results_come_back_to_the_worker() {
        let here = std::thread::current().id();
        let there = run(|| std::thread::current().id()).await;
        assert_ne!(there.expect("it ran"), here);
        let error = run_io(|| Err::<(), _>(io::ErrorKind::NotFound.into())).await;
        assert_eq!(error.expect_err("its own").kind(), io::ErrorKind::NotFound);
    }

    #[tokio::test(flavor = "local")]
    async fn there_are_so_many_threads_and_waiting_jobs() {
        let pool = pool(2, 3, 10_000);
        let (open, gates): (Vec<_>, Vec<_>) = (0..5).map(|_| gate()).unzip();
        let mut running = Vec::new();
        for (number, gate) in gates.into_iter().enumerate() {
            running.push(pool.run(gate));
            if number < 2 {
                // Taken off the queue.
                until(|| counts(pool).2 == 0).await;
            }
        }
        assert_eq!(counts(pool), (2, 0, 3));
        assert_eq!(pool.run(|| ()).await, Err(NotDone::QueueFull));
        drop(open);
        for one in running {
            assert_eq!(one.await, Ok(()));
        }
        assert_eq!(pool.run(|| 1).await, Ok(1));
        assert_eq!(counts(pool).0, 2);
    }

    #[tokio::test(flavor = "local")]
    async fn threads_are_used_again_and_end_when_there_is_no_work() {
        let pool = pool(4, 10, 50);
        assert_eq!(counts(pool), (0, 0, 0));
        for _ in 0..3 {
            pool.run(|| ()).await.expect("it ran");
            until(|| matches!(counts(pool), (0, 0, 0) | (1, 1, 0))).await;
        }
        until(|| counts(pool).0 == 0).await;
        assert_eq!(pool.run(|| 2).await, Ok(2));
    }

    #[tokio::test(flavor = "local")]
    async fn jobs_nobody_waits_for_are_left_out() {
        let pool = pool(1, 10, 10_000);
        let (open, gate) = gate();
        let first = pool.run(gate);
        let count = Arc::new(AtomicUsize::new(0));
        let counting = || {
            let count = Arc::clone(&count);
            move || count.fetch_add(1, Ordering::Relaxed)
        };
        drop(pool.run(counting()));
        let last = pool.run(counting());
        drop(open);
        first.await.expect("it ran");
        assert_eq!(last.await, Ok(0));
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(flavor = "local")]
    async fn a_panic_is_lost_work_and_no_lost_thread() {
        let pool = pool(1, 10, 10_000);
        let panics = pool.run(|| panic!("a job of a test panics"));
        assert_eq!(panics.await, Err::<(), _>(NotDone::Lost));
        assert_eq!(pool.run(|| 3).await, Ok(3));
        assert_eq!(counts(pool).0, 1);
    }
}
