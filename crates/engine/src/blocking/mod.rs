//! Jobs that may wait for the disk, run by threads of their own ("disk threads").
//!
//! A worker must never wait. Code that opens, reads or writes something that is not in memory hands a closure
//! to [`run_for`] and awaits its result. All workers of the process share the threads. A thread starts when
//! there is work and ends after a time without any. There are five [`Class`]es, each with its own threads, so
//! that small work does not wait behind large work: look-ups do not wait behind reads, reads do not wait
//! behind writes, and no disk job waits behind jobs that keep processors busy.
//!
//! Within a class, jobs wait in a fair queue ([`queue`]): file systems take turns, and within a file system
//! clients take turns. The number of jobs that run on one file system at the same time is limited. If a job
//! runs for more than a second, the pool may start another thread in place of the one that hangs. A server
//! that stops does not wait for these threads: the end of the process cuts short any job that still runs. So
//! every job must leave files in a valid state at every moment (as [`write_file_atomically`] does). This
//! module knows nothing of requests.
//!
//! Callers: the [file cache](crate::file_cache), the network backends, spools, directory listings, scripts
//! and the disk tier of the page cache.
#![expect(clippy::disallowed_methods, reason = "disk threads have no worker")]

mod counters;
mod deadline;
mod files;
mod origin;
mod queue;
mod shared;

use std::fmt;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::limits;
use queue::Work;
pub(crate) use queue::{JobQueue, Load};

pub use counters::{Counts, DeviceLoad, counts, device_loads};
pub use deadline::{FileDeadline, Late};
pub use files::{
    DirectoryEntry, read_directory, read_file, read_link, remove_file, stat, write_file_atomically,
};
pub(crate) use shared::{JobEnd, Sharing};
pub use shared::{JobWaiter, SharedJobs};

/// What kind of work a job is, and so which threads do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Looking at paths: open, stat, directories (`server.max-stat-threads`).
    Stat,
    /// Reading the start of a file right after its look-up; as many threads as `Stat`.
    First,
    /// Reading from open files (`server.max-read-threads`).
    Read,
    /// Writing, and all other disk work (`server.max-write-threads`).
    Write,
    /// Work that keeps a processor busy for milliseconds and never waits: password hashes. There are few
    /// threads, with a lower priority than the workers. Few jobs may wait, and fewer of one client.
    Compute,
}

impl Class {
    /// All classes.
    pub const ALL: [Class; 5] = [
        Class::Stat,
        Class::First,
        Class::Read,
        Class::Write,
        Class::Compute,
    ];

    /// The name in counters: `stat`, `first-read`, `read`, `write` or `compute`.
    pub fn name(self) -> &'static str {
        match self {
            Class::Stat => "stat",
            Class::First => "first-read",
            Class::Read => "read",
            Class::Write => "write",
            Class::Compute => "compute",
        }
    }
}

/// Which file system and which client a job is for. Jobs of one origin begin in the order in which they were
/// submitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The file system that the job will wait for: a device number; 0 if it is not known.
    pub device: u64,
    /// Whether another machine or a program answers for that file system.
    pub is_remote: bool,
    /// The client who must get no more than a fair share: [`ConnectionFacts::client_key`]; 0 for the server
    /// itself.
    ///
    /// [`ConnectionFacts::client_key`]: crate::exchange::ConnectionFacts::client_key
    pub client: u64,
    /// How many bytes the job reads or writes or, for [`Class::Compute`], how much memory it takes; 0 if
    /// little.
    pub bytes: usize,
}

/// The work that a thread does. A closure is a job that is always wanted.
pub trait Job: Send {
    /// Does the work. It may wait, and it may panic.
    fn run(self: Box<Self>);

    /// Whether a caller still waits for the result. The pool drops a job that answers `false` instead of
    /// running it. Unless the job is of [`Class::Write`], any thread may drop it, a worker included, so
    /// dropping it must not wait.
    fn is_wanted(&self) -> bool {
        true
    }
}

impl<F: FnOnce() + Send> Job for F {
    fn run(self: Box<Self>) {
        self();
    }
}

/// How many threads there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threads {
    /// `server.max-stat-threads`: of [`Class::Stat`], and as many of [`Class::First`].
    pub stat: usize,
    /// `server.max-read-threads`.
    pub read: usize,
    /// `server.max-write-threads`.
    pub write: usize,
    /// Of [`Class::Compute`]: half of the processors.
    pub compute: usize,
}

/// Sets how many threads there may be in the whole process. Surplus threads end when they have nothing to do.
pub fn configure(threads: Threads) {
    let most = [
        threads.stat,
        threads.stat,
        threads.read,
        threads.write,
        threads.compute,
    ];
    for (class, most) in Class::ALL.into_iter().zip(most) {
        pool(class)
            .threads_max
            .store(most.max(1), Ordering::Relaxed);
    }
}

/// Has a thread of [`Class::Write`] run `job` for `origin`, after the jobs that came before. The job is
/// queued whether or not the caller polls the future. If the caller drops the future before the job begins,
/// the job is left out; if later, its result is dropped. What the job owns stays in memory until its turn
/// comes, and behind a file system that hangs that may be never. So let the caller own large buffers, and let
/// the job hold a weak reference (as [`write_file_atomically`] does).
///
/// If [`limits::BLOCKING_QUEUE_MAX`] jobs wait already, the future ends with an error and the job does not
/// run.
pub fn run<T: Send + 'static>(
    origin: Origin,
    job: impl FnOnce() -> T + Send + 'static,
) -> RunningJob<T> {
    run_for(Class::Write, origin, job)
}

/// Like [`run`], for a given class. Unless the class is [`Class::Write`], dropping what the job owns must not
/// wait: a worker may drop the job when no caller waits for the result any more.
pub fn run_for<T: Send + 'static>(
    class: Class,
    origin: Origin,
    job: impl FnOnce() -> T + Send + 'static,
) -> RunningJob<T> {
    pool(class).run(origin, job)
}

/// Queues a job without a result.
///
/// # Errors
/// [`limits::BLOCKING_QUEUE_MAX`] jobs of the class wait already.
pub fn start(class: Class, origin: Origin, job: impl Job + 'static) -> Result<(), NotDone> {
    pool(class).submit(origin, Box::new(job))
}

/// Has a thread drop `what`, because dropping it may wait for the file system of `origin`: it may be the last
/// descriptor of a file there. This is never refused, since the worker would have to wait otherwise. The
/// queue stays bounded because the limits on open files bound how much there is to drop.
pub fn drop_elsewhere(origin: Origin, what: impl Send + 'static) {
    pool(Class::Write).submit_in_any_case(origin, Box::new(move || drop(what)));
}

/// Like [`run`], for a job that must run even if no caller waits for it any more: it is never refused and
/// never left out. The caller bounds the number of such jobs.
pub fn run_in_any_case<T: Send + 'static>(
    origin: Origin,
    job: impl FnOnce() -> T + Send + 'static,
) -> RunningJob<T> {
    pool(Class::Write).run_in_any_case(origin, job)
}

/// Like [`run_for`], for jobs that return I/O errors. [`NotDone::QueueFull`] becomes
/// [`ResourceBusy`](io::ErrorKind::ResourceBusy), [`NotDone::Lost`] becomes [`Other`](io::ErrorKind::Other).
///
/// # Errors
/// Those of the job, and the two above.
pub async fn run_io<T: Send + 'static>(
    class: Class,
    origin: Origin,
    job: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    run_for(class, origin, job).await?
}

/// Starts threads in place of those that hang, if jobs wait. Each worker calls this once a second, and so
/// does a program without workers while it waits.
pub fn look_after() {
    for class in Class::ALL {
        pool(class).look_after();
    }
}

/// A future that yields the result of a job.
pub struct RunningJob<T>(Result<oneshot::Receiver<T>, NotDone>);

/// Why a job has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotDone {
    /// Too many jobs waited already.
    QueueFull,
    /// The job panicked, or no thread could be started for it.
    Lost,
}

impl<T> Future for RunningJob<T> {
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
            NotDone::QueueFull => "too many jobs wait for the disk",
            NotDone::Lost => "no disk thread could do the work",
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

/// The threads of this process, one pool a class. A disk serves some dozens of requests at once; the best
/// number depends on the kind of request.
static POOLS: [Pool; 5] = [
    Pool::new("stat", THREADS.stat),
    Pool::new("first-read", THREADS.stat),
    Pool::new("read", THREADS.read),
    Pool::new("write", THREADS.write).unpurged(),
    Pool::new("compute", THREADS.compute).computing(),
];

/// The number of threads unless the configuration says otherwise.
pub const THREADS: Threads = Threads {
    stat: 64,
    read: 16,
    write: 8,
    compute: 1,
};

fn pool(class: Class) -> &'static Pool {
    match class {
        Class::Stat => &POOLS[0],
        Class::First => &POOLS[1],
        Class::Read => &POOLS[2],
        Class::Write => &POOLS[3],
        Class::Compute => &POOLS[4],
    }
}

/// A closure, and where its result goes.
struct Task<F, T> {
    work: F,
    result: oneshot::Sender<T>,
}

impl<F: FnOnce() -> T + Send, T: Send> Job for Task<F, T> {
    fn run(self: Box<Self>) {
        // The caller may have stopped waiting meanwhile.
        let _ = self.result.send((self.work)());
    }

    fn is_wanted(&self) -> bool {
        !self.result.is_closed()
    }
}

/// The threads of one class, and the jobs that wait for them.
struct Pool {
    name: &'static str,
    state: Mutex<PoolState>,
    /// Wakes one idle thread: there is a job for it.
    has_job: Condvar,
    threads_max: AtomicUsize,
    queue_max: usize,
    idle_time: Duration,
    /// Whether jobs without a waiting caller are taken out of the queue early, possibly by a worker. Not in
    /// [`Class::Write`]: such a job may own a file whose close and removal wait for the disk, so a disk
    /// thread must drop it.
    is_purged: bool,
    /// The jobs compute and do not wait. A long one does not hang, and another thread would not make it
    /// faster.
    is_computing: bool,
    /// How many jobs of one client may wait.
    client_queue_max: usize,
    counters: counters::JobCounters,
}

struct PoolState {
    queue: JobQueue<Box<dyn Job>>,
    /// When jobs without a waiting caller were last taken out of the queue.
    purged_at: Option<Instant>,
    threads: usize,
    /// Threads that wait for a job.
    idle: usize,
    /// Threads that were started but have not looked for a job yet; they are counted in `threads`.
    starting: usize,
    /// What each thread does. The slot of a thread that has ended is used again.
    places: Vec<ThreadState>,
}

/// What a thread does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ThreadState {
    /// No thread uses this slot.
    Free,
    /// The thread looks for a job or waits for one.
    Idle,
    /// The thread has run a job for this device since then.
    Busy(Instant, u64),
}

impl Pool {
    const fn new(name: &'static str, threads_max: usize) -> Pool {
        Pool::sized(
            name,
            threads_max,
            limits::BLOCKING_QUEUE_MAX,
            Duration::from_secs(limits::BLOCKING_IDLE_S),
        )
    }

    const fn sized(
        name: &'static str,
        threads_max: usize,
        queue_max: usize,
        idle_time: Duration,
    ) -> Pool {
        Pool {
            name,
            state: Mutex::new(PoolState {
                queue: JobQueue::new(),
                purged_at: None,
                threads: 0,
                idle: 0,
                starting: 0,
                places: Vec::new(),
            }),
            has_job: Condvar::new(),
            threads_max: AtomicUsize::new(threads_max),
            queue_max,
            idle_time,
            is_purged: true,
            is_computing: false,
            client_queue_max: queue_max,
            counters: counters::JobCounters::new(),
        }
    }

    const fn computing(mut self) -> Pool {
        self.is_computing = true;
        self.queue_max = limits::COMPUTE_QUEUE_MAX;
        self.client_queue_max = limits::COMPUTE_CLIENT_QUEUE_MAX;
        self
    }

    const fn unpurged(mut self) -> Pool {
        self.is_purged = false;
        self
    }

    fn run<T: Send + 'static>(
        &'static self,
        origin: Origin,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> RunningJob<T> {
        let (result, receiver) = oneshot::channel();
        let task = Task { work: job, result };
        RunningJob(self.submit(origin, Box::new(task)).map(|()| receiver))
    }

    fn run_in_any_case<T: Send + 'static>(
        &'static self,
        origin: Origin,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> RunningJob<T> {
        let (result, receiver) = oneshot::channel();
        // The caller may have dropped the receiver. The job runs all the same: a plain closure is always
        // wanted.
        let job = move || drop(result.send(job()));
        self.submit_in_any_case(origin, Box::new(job));
        RunningJob(Ok(receiver))
    }

    fn submit(&'static self, origin: Origin, job: Box<dyn Job>) -> Result<(), NotDone> {
        let mut state = self.lock();
        let mut unwanted = Vec::new();
        if self.is_full(&state, origin) {
            unwanted = self.purge(&mut state);
        }
        let is_full = self.is_full(&state, origin);
        match is_full {
            true => drop(state),
            false => {
                state.queue.push(origin, job);
                self.see_to_threads(state);
            }
        }
        // Dropping a job may submit another one, so the lock must be free here.
        drop(unwanted);
        if is_full {
            self.counters.refused();
            return Err(NotDone::QueueFull);
        }
        Ok(())
    }

    fn submit_in_any_case(&'static self, origin: Origin, job: Box<dyn Job>) {
        let mut state = self.lock();
        state.queue.push(origin, job);
        self.see_to_threads(state);
    }

    /// Whether the queue takes no more jobs. A file system that hangs may fill only its own part of the
    /// queue.
    fn is_full(&self, state: &PoolState, origin: Origin) -> bool {
        let (waiting, length) = (state.queue.waiting_for(origin.device), state.queue.len());
        if self.is_computing {
            // Clients take turns, so a few clients with many jobs must not keep out a client that has none.
            return match state.queue.waiting_of(origin) {
                0 => length >= self.queue_max + limits::COMPUTE_NEWCOMERS_MAX,
                own => length >= self.queue_max || own >= self.client_queue_max,
            };
        }
        origin.device != 0 && waiting >= limits::BLOCKING_DEVICE_QUEUE_MAX
            || length >= self.queue_max
    }

    /// Takes out the jobs without a waiting caller, unless that was done a moment ago. The caller drops them
    /// after it has released the lock.
    fn purge(&self, state: &mut PoolState) -> Vec<Box<dyn Job>> {
        let pause = Duration::from_millis(limits::BLOCKING_PURGE_PAUSE_MS);
        let is_early = state.purged_at.is_some_and(|then| then.elapsed() < pause);
        if !self.is_purged || is_early || state.queue.len() == 0 {
            return Vec::new();
        }
        state.purged_at = Some(Instant::now());
        state.queue.purge(|job| job.is_wanted())
    }

    /// Wakes or starts a thread if there is a job that may begin.
    fn see_to_threads(&'static self, mut state: MutexGuard<'_, PoolState>) {
        let ready = state.queue.ready();
        if ready == 0 {
            return;
        }
        if ready <= state.free() || !self.may_start(&mut state) {
            let is_awaited = state.idle > 0;
            drop(state);
            if is_awaited {
                self.has_job.notify_one();
            }
            return;
        }
        state.count_new_thread();
        drop(state);
        self.start_thread();
    }

    /// Whether the pool may start another thread. Threads whose jobs hang do not count against the limit.
    fn may_start(&self, state: &mut PoolState) -> bool {
        let most = self.threads_max.load(Ordering::Relaxed);
        if state.threads < most {
            return true;
        }
        if self.is_computing || state.threads >= most + limits::STUCK_THREADS_MAX {
            return false;
        }
        state.threads.saturating_sub(state.stuck()) < most
    }

    fn look_after(&'static self) {
        let mut state = self.lock();
        let unwanted = self.purge(&mut state);
        if !unwanted.is_empty() {
            drop(state);
            drop(unwanted);
            state = self.lock();
        }
        while state.queue.ready() > state.free() && self.may_start(&mut state) {
            state.count_new_thread();
            drop(state);
            if !self.start_thread() {
                return;
            }
            state = self.lock();
        }
    }

    /// Starts a thread that [`PoolState::count_new_thread`] has counted. If that fails, the other threads do
    /// its work. If there are none, all queued jobs are dropped, so that their callers get [`NotDone::Lost`].
    fn start_thread(&'static self) -> bool {
        let started = std::thread::Builder::new()
            .name(match self.is_computing {
                true => self.name.to_owned(),
                false => format!("disk-{}", self.name),
            })
            .stack_size(STACK_BYTES)
            .spawn(|| self.work())
            .is_ok();
        if !started {
            let mut state = self.lock();
            state.threads -= 1;
            state.starting -= 1;
            let lost = match state.threads {
                0 => state.queue.clear(),
                _ => Vec::new(),
            };
            drop(state);
            drop(lost);
        }
        started
    }

    /// The main loop of a thread.
    fn work(&'static self) {
        if self.is_computing {
            // Linux sets the niceness of this thread alone. If it refuses, workers still get their share of
            // the processors.
            let _ = rustix::process::nice(COMPUTE_NICENESS);
        }
        let mut state = self.lock();
        state.starting -= 1;
        let place = state.take_place();
        loop {
            let begun = Instant::now();
            if let Some(Work {
                job,
                load,
                queued_at,
            }) = state.queue.pop()
            {
                state.places[place] = ThreadState::Busy(begun, load.device());
                // The job that ended before may have made room for several jobs, and this thread takes only
                // one.
                self.see_to_threads(state);
                self.counters.begun(begun.duration_since(queued_at));
                // After a panic the sender is gone, which tells the caller that the job is lost.
                let _ = catch_unwind(AssertUnwindSafe(|| match job.is_wanted() {
                    true => job.run(),
                    false => drop(job),
                }));
                self.counters.ended(begun.elapsed());
                state = self.lock();
                state.places[place] = ThreadState::Idle;
                state.queue.ended(load);
                continue;
            }
            let most = self.threads_max.load(Ordering::Relaxed);
            if state.threads > most && state.threads - state.stuck() > most {
                // This thread stood in for one that hung, and that one is back.
                break;
            }
            state.idle += 1;
            let waited = self.has_job.wait_timeout(state, self.idle_time);
            let (woken, time_out) = waited.unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if time_out.timed_out() && state.queue.ready() == 0 {
                break;
            }
        }
        state.places[place] = ThreadState::Free;
        state.threads -= 1;
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolState {
    /// Threads that will take the next jobs.
    fn free(&self) -> usize {
        self.idle + self.starting
    }

    fn count_new_thread(&mut self) {
        self.threads += 1;
        self.starting += 1;
    }

    /// Takes a slot for a new thread.
    fn take_place(&mut self) -> usize {
        let free = self
            .places
            .iter()
            .position(|place| *place == ThreadState::Free);
        let place = free.unwrap_or_else(|| {
            self.places.push(ThreadState::Free);
            self.places.len() - 1
        });
        self.places[place] = ThreadState::Idle;
        place
    }

    /// The number of jobs that run.
    fn running(&self) -> usize {
        let is_busy = |place: &&ThreadState| matches!(place, ThreadState::Busy(..));
        self.places.iter().filter(is_busy).count()
    }

    /// How long the oldest job that runs on `device` has been running.
    fn oldest(&self, device: u64) -> Option<Duration> {
        let begun = |place: &ThreadState| match place {
            ThreadState::Busy(since, of) if *of == device => Some(*since),
            _ => None,
        };
        Some(self.places.iter().filter_map(begun).min()?.elapsed())
    }

    /// The number of jobs that have run for so long that their threads do not count against the limit.
    fn stuck(&self) -> usize {
        let patience = Duration::from_millis(limits::STUCK_JOB_MS);
        let now = Instant::now();
        let is_stuck = |place: &&ThreadState| match place {
            ThreadState::Busy(since, _) => now.saturating_duration_since(*since) > patience,
            ThreadState::Free | ThreadState::Idle => false,
        };
        self.places.iter().filter(is_stuck).count()
    }
}

/// Computing threads run at this niceness, so that workers go first.
const COMPUTE_NICENESS: i32 = 10;

/// The jobs make system calls, which need little stack.
const STACK_BYTES: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};

    use super::*;

    fn pool(threads_max: usize, queue_max: usize, idle_ms: u64) -> &'static Pool {
        let idle_time = Duration::from_millis(idle_ms);
        Box::leak(Box::new(Pool::sized(
            "test",
            threads_max,
            queue_max,
            idle_time,
        )))
    }

    const NOWHERE: Origin = Origin {
        device: 0,
        is_remote: false,
        client: 0,
        bytes: 0,
    };

    /// A job that waits until the sender is dropped.
    fn gate() -> (mpsc::Sender<()>, impl FnOnce() + Send) {
        let (open, is_open) = mpsc::channel::<()>();
        // `recv` fails as soon as the sender is dropped.
        (open, move || assert!(is_open.recv().is_err()))
    }

    /// How many threads there are, how many of them are idle, and how many jobs wait.
    fn counts(pool: &Pool) -> (usize, usize, usize) {
        let state = pool.lock();
        (state.threads, state.idle, state.queue.len())
    }

    async fn until(mut what: impl FnMut() -> bool) {
        for _ in 0..12_000 {
            if what() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("it did not happen in a minute");
    }

    #[tokio::test(flavor = "local")]
    async fn results_come_back_to_the_worker() {
        let here = std::thread::current().id();
        let there = run(NOWHERE, || std::thread::current().id()).await;
        assert_ne!(there.expect("it ran"), here);
        let error = run_io(Class::Stat, NOWHERE, || {
            Err::<(), _>(io::ErrorKind::NotFound.into())
        })
        .await;
        assert_eq!(error.expect_err("its own").kind(), io::ErrorKind::NotFound);
    }

    #[tokio::test(flavor = "local")]
    async fn there_are_so_many_threads_and_waiting_jobs() {
        let pool = pool(2, 3, 10_000);
        let (open, gates): (Vec<_>, Vec<_>) = (0..5).map(|_| gate()).unzip();
        let mut running = Vec::new();
        for (number, gate) in gates.into_iter().enumerate() {
            running.push(pool.run(NOWHERE, gate));
            if number < 2 {
                // Until the thread has taken it off the queue.
                until(|| counts(pool).2 == 0).await;
            }
        }
        assert_eq!(counts(pool), (2, 0, 3));
        assert_eq!(pool.run(NOWHERE, || ()).await, Err(NotDone::QueueFull));
        drop(open);
        for one in running {
            assert_eq!(one.await, Ok(()));
        }
        assert_eq!(pool.run(NOWHERE, || 1).await, Ok(1));
        assert_eq!(counts(pool).0, 2);
    }

    #[tokio::test(flavor = "local")]
    async fn the_end_of_a_large_job_begins_all_that_waited_for_it() {
        let pool = pool(4, 10, 10_000);
        let disk = Origin {
            device: 7,
            ..NOWHERE
        };
        let large = Origin {
            bytes: limits::DEVICE_BYTES_MAX,
            ..disk
        };
        let (open_large, gate_large) = gate();
        let first = pool.run(large, gate_large);
        // Otherwise the pool may start a second thread, which ends after ten seconds without work.
        until(|| counts(pool) == (1, 0, 0)).await;
        let (open, gates): (Vec<_>, Vec<_>) = (0..4).map(|_| gate()).unzip();
        let gates = gates.into_iter();
        let others: Vec<_> = gates.map(|gate| pool.run(disk, gate)).collect();
        until(|| counts(pool) == (1, 0, 4)).await;
        drop(open_large);
        first.await.expect("it ran");
        // The threads take the jobs without another submission or a call of `look_after`.
        until(|| counts(pool) == (4, 0, 0)).await;
        drop(open);
        for one in others {
            assert_eq!(one.await, Ok(()));
        }
    }

    #[tokio::test(flavor = "local")]
    async fn so_many_threads_are_started_as_may_be_busy() {
        let remote = Origin {
            device: 7,
            is_remote: true,
            ..NOWHERE
        };
        for _ in 0..20 {
            let pool = pool(64, 100, 10_000);
            let (open, gates): (Vec<_>, Vec<_>) = (0..50).map(|_| gate()).unzip();
            let gates = gates.into_iter();
            let running: Vec<_> = gates.map(|gate| pool.run(remote, gate)).collect();
            assert_eq!(counts(pool).0, limits::REMOTE_DEVICE_JOBS_MAX);
            drop(open);
            for one in running {
                assert_eq!(one.await, Ok(()));
            }
        }
    }

    #[tokio::test(flavor = "local")]
    async fn threads_are_used_again_and_end_when_there_is_no_work() {
        let pool = pool(4, 10, 50);
        assert_eq!(counts(pool), (0, 0, 0));
        for _ in 0..3 {
            pool.run(NOWHERE, || ()).await.expect("it ran");
            until(|| matches!(counts(pool), (0, 0, 0) | (1, 1, 0))).await;
        }
        until(|| counts(pool).0 == 0).await;
        assert_eq!(pool.run(NOWHERE, || 2).await, Ok(2));
    }

    #[tokio::test(flavor = "local")]
    async fn jobs_without_a_waiting_caller_are_left_out() {
        let pool = pool(1, 10, 10_000);
        let (open, gate) = gate();
        let first = pool.run(NOWHERE, gate);
        let count = Arc::new(AtomicUsize::new(0));
        let counting = || {
            let count = Arc::clone(&count);
            move || count.fetch_add(1, Ordering::Relaxed)
        };
        drop(pool.run(NOWHERE, counting()));
        let last = pool.run(NOWHERE, counting());
        drop(open);
        first.await.expect("it ran");
        assert_eq!(last.await, Ok(0));
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(flavor = "local")]
    async fn jobs_without_a_waiting_caller_make_room_before_their_turn() {
        let pool = pool(1, 3, 10_000);
        let (open, gate) = gate();
        let first = pool.run(NOWHERE, gate);
        until(|| counts(pool).2 == 0).await;
        let fill = || [(); 3].map(|()| pool.run(NOWHERE, || 0));
        let waiting = fill();
        assert_eq!(pool.run(NOWHERE, || ()).await, Err(NotDone::QueueFull));
        drop(waiting);
        // The queue was purged a moment ago, so this finds it full.
        let mut other = None;
        until(|| {
            other = Some(pool.run(NOWHERE, || 1));
            counts(pool).2 == 1
        })
        .await;
        // `look_after` purges it as well.
        drop(pool.run(NOWHERE, || 0));
        until(|| {
            pool.look_after();
            counts(pool).2 == 1
        })
        .await;
        drop(open);
        first.await.expect("it ran");
        assert_eq!(other.expect("there was room").await, Ok(1));
    }

    #[tokio::test(flavor = "local")]
    async fn what_is_written_is_dropped_in_its_turn() {
        let pool: &Pool = Box::leak(Box::new(Pool::new("test", 1).unpurged()));
        let (open, gate) = gate();
        let first = pool.run(NOWHERE, gate);
        until(|| counts(pool).2 == 0).await;
        let (file, is_closed) = mpsc::channel::<()>();
        drop(pool.run(NOWHERE, move || drop(file)));
        pool.look_after();
        assert_eq!(is_closed.try_recv(), Err(mpsc::TryRecvError::Empty));
        drop(open);
        first.await.expect("it ran");
        assert_eq!(is_closed.recv(), Err(mpsc::RecvError));
    }

    #[tokio::test(flavor = "local")]
    async fn a_panic_is_lost_work_and_no_lost_thread() {
        let pool = pool(1, 10, 10_000);
        let panics = pool.run(NOWHERE, || panic!("a job of a test panics"));
        assert_eq!(panics.await, Err::<(), _>(NotDone::Lost));
        assert_eq!(pool.run(NOWHERE, || 3).await, Ok(3));
        assert_eq!(counts(pool).0, 1);
    }

    #[tokio::test(flavor = "local")]
    async fn a_file_system_that_hangs_does_not_delay_others() {
        let pool = pool(2, 100, 10_000);
        let hanging = Origin {
            device: 7,
            is_remote: true,
            client: 1,
            bytes: 0,
        };
        let (open, gates): (Vec<_>, Vec<_>) = (0..8).map(|_| gate()).unzip();
        let hung: Vec<_> = gates
            .into_iter()
            .map(|gate| pool.run(hanging, gate))
            .collect();
        let other = pool.run(
            Origin {
                device: 8,
                ..hanging
            },
            || 4,
        );
        // A worker does this once a second.
        until(|| {
            pool.look_after();
            counts(pool).0 > 2
        })
        .await;
        assert_eq!(other.await, Ok(4));
        drop(open);
        for one in hung {
            assert_eq!(one.await, Ok(()));
        }
        // The extra threads end when no job hangs any more.
        until(|| counts(pool).0 <= 2).await;
    }

    #[tokio::test(flavor = "local")]
    async fn one_file_system_takes_half_of_the_queue_at_most() {
        const MOST: usize = limits::BLOCKING_DEVICE_QUEUE_MAX;
        let pool = pool(1, limits::BLOCKING_QUEUE_MAX, 10_000);
        let (open, gate) = gate();
        let first = pool.run(NOWHERE, gate);
        until(|| counts(pool).2 == 0).await;
        let hanging = Origin {
            device: 7,
            ..NOWHERE
        };
        let waiting: Vec<_> = (0..MOST).map(|_| pool.run(hanging, || ())).collect();
        assert_eq!(counts(pool).2, MOST);
        assert_eq!(pool.run(hanging, || ()).await, Err(NotDone::QueueFull));
        let other = Origin {
            device: 8,
            ..NOWHERE
        };
        let others = [NOWHERE, other].map(|origin| pool.run(origin, || 1));
        assert_eq!(counts(pool).2, MOST + 2);
        drop(open);
        first.await.expect("it ran");
        for one in others {
            assert_eq!(one.await, Ok(1));
        }
        for one in waiting {
            assert_eq!(one.await, Ok(()));
        }
    }

    #[tokio::test(flavor = "local")]
    async fn clients_with_many_jobs_shut_no_other_client_out() {
        let queue_max = limits::COMPUTE_QUEUE_MAX;
        let pool = Pool::sized("test", 1, 0, Duration::from_secs(10)).computing();
        let pool: &Pool = Box::leak(Box::new(pool));
        let of = |client: usize| Origin {
            client: client as u64,
            ..NOWHERE
        };
        let (open, gate) = gate();
        let first = pool.run(of(1), gate);
        until(|| counts(pool).2 == 0).await;
        let many = (0..queue_max).map(|number| of(1 + number / limits::COMPUTE_CLIENT_QUEUE_MAX));
        let many: Vec<_> = many.map(|origin| pool.run(origin, || ())).collect();
        assert_eq!(counts(pool).2, queue_max);
        assert_eq!(pool.run(of(1), || ()).await, Err(NotDone::QueueFull));
        let mut newcomers: Vec<_> = (0..=limits::COMPUTE_NEWCOMERS_MAX)
            .map(|number| pool.run(of(1000 + number), || ()))
            .collect();
        let second = pool.run(of(1000), || ());
        assert_eq!(second.await, Err(NotDone::QueueFull));
        let late = newcomers.pop().expect("there are some");
        assert_eq!(late.await, Err(NotDone::QueueFull));
        drop(open);
        first.await.expect("it ran");
        for one in newcomers.into_iter().chain(many) {
            assert_eq!(one.await, Ok(()));
        }
    }

    #[tokio::test(flavor = "local")]
    async fn what_waits_and_what_runs_is_counted() {
        let pool = pool(1, 2, 10_000);
        let counts = || pool.counters.read(&pool.lock());
        let (open, gate) = gate();
        let first = pool.run(NOWHERE, gate);
        until(|| counts().running == 1).await;
        let others = [pool.run(NOWHERE, || ()), pool.run(NOWHERE, || ())];
        assert_eq!(pool.run(NOWHERE, || ()).await, Err(NotDone::QueueFull));
        let now = counts();
        assert_eq!((now.jobs, now.queued, now.refused), (0, 2, 1));
        assert_eq!((now.threads, now.run_us_mean()), (1, 0));
        let begin = Instant::now();
        until(|| counts().stuck == 1).await;
        let held_us = u64::try_from(begin.elapsed().as_micros()).expect("not that long");
        drop(open);
        first.await.expect("it ran");
        for one in others {
            one.await.expect("it ran");
        }
        until(|| counts().jobs == 3 && counts().running == 0).await;
        let then = counts();
        assert!(then.run_us_max >= held_us, "{then:?}");
        assert!(then.wait_us_max >= held_us, "{then:?}");
        // Two jobs have waited for the first.
        assert!(then.wait_us >= 2 * held_us, "{then:?}");
        assert!(then.wait_us_mean() < then.wait_us_max, "{then:?}");
        assert_eq!((then.queued, then.stuck, then.refused), (0, 0, 1));
    }

    #[tokio::test(flavor = "local")]
    async fn what_is_to_be_dropped_is_never_refused() {
        let pool = pool(1, 1, 10_000);
        let (open, gate) = gate();
        let first = pool.run(NOWHERE, gate);
        until(|| counts(pool).2 == 0).await;
        let second = pool.run(NOWHERE, || ());
        let (file, is_closed) = mpsc::channel::<()>();
        pool.submit_in_any_case(NOWHERE, Box::new(move || drop(file)));
        assert_eq!(counts(pool).2, 2);
        assert_eq!(is_closed.try_recv(), Err(mpsc::TryRecvError::Empty));
        drop(open);
        first.await.expect("it ran");
        second.await.expect("it ran");
        assert_eq!(is_closed.recv(), Err(mpsc::RecvError));
    }

    #[tokio::test(flavor = "local")]
    async fn a_job_that_must_run_runs_without_a_waiting_caller_and_behind_a_full_queue() {
        let pool = pool(1, 1, 10_000);
        let (open, gate) = gate();
        let first = pool.run(NOWHERE, gate);
        until(|| counts(pool).2 == 0).await;
        let second = pool.run(NOWHERE, || ());
        let (done, is_done) = mpsc::channel();
        drop(pool.run_in_any_case(NOWHERE, move || done.send(())));
        let last = pool.run_in_any_case(NOWHERE, || 1);
        drop(open);
        first.await.expect("it ran");
        second.await.expect("it ran");
        assert_eq!(last.await, Ok(1));
        assert_eq!(is_done.recv(), Ok(()));
    }
}
