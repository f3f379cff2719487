//! Work that may wait for the disk, on threads of its own.
//!
//! A worker must not wait: whoever opens, reads or writes what is not in memory hands a closure to
//! [`run_for`] and awaits its result. The threads are those of the process, shared by all workers, started
//! when there is work and ended when there has been none for a while. There are five [`Class`]es with threads of
//! their own, so that small work does not wait behind large work: looking up behind reading, reading behind writing,
//! and nothing behind what keeps processors busy.
//! Within a class jobs wait in a fair queue ([`queue`]): each file
//! system in turn, and there each client; what runs on one file system at the same time is bounded, and a
//! thread that one of them has not given back for a second is replaced. Nothing waits for the threads when
//! the server stops: a job that runs then is cut short with the process, so what it does has to be right at
//! every moment (as [`write_file_atomically`] is). Knows nothing of requests.
//!
//! Callers: the [file cache](crate::file_cache), the network backends, spools, listings, scripts and the disk
//! tier of the page cache.
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
    /// The first read of a file that was just looked up; as many threads.
    First,
    /// Reading from open files (`server.max-read-threads`).
    Read,
    /// Writing, and whatever else waits for the disk (`server.max-write-threads`).
    Write,
    /// What keeps a processor busy for milliseconds and waits for nothing: hashes of passwords. Few threads, of lower
    /// priority than the workers. Few jobs may wait, and of one client fewer.
    Compute,
}

impl Class {
    /// All of them.
    pub const ALL: [Class; 5] = [
        Class::Stat,
        Class::First,
        Class::Read,
        Class::Write,
        Class::Compute,
    ];

    /// Its name in counters: `stat`, `first`, `read`, `write` or `compute`.
    pub fn name(self) -> &'static str {
        match self {
            Class::Stat => "stat",
            Class::First => "first",
            Class::Read => "read",
            Class::Write => "write",
            Class::Compute => "compute",
        }
    }
}

/// Whom and what a job is for. Jobs of one origin are done in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The file system it will wait for: a device number; 0 if that is not known.
    pub device: u64,
    /// Whether another machine or a program answers for that file system.
    pub is_remote: bool,
    /// Who should get no more than a fair share: [`ConnectionFacts::client_key`]; 0 for the server itself.
    ///
    /// [`ConnectionFacts::client_key`]: crate::exchange::ConnectionFacts::client_key
    pub client: u64,
    /// How many bytes it reads or writes, or takes of memory if it computes; 0 if they are few.
    pub bytes: usize,
}

/// What a thread does. A closure is one that is always wanted.
pub trait Job: Send {
    /// Does it. It may wait, and it may panic.
    fn run(self: Box<Self>);

    /// Whether anybody waits for it still. A job that has said no is not run any more: it is dropped, and if it
    /// is not of [`Class::Write`], any thread may do that, also one that must not wait.
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

/// Sets how many threads there may be, for the whole process. Those that are there end when they have
/// nothing to do.
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

/// Has a thread of [`Class::Write`] do `job` for `origin`, behind those that came before. It is begun whether or
/// not the future is polled; if that is dropped before its turn comes, the job is left out, and if it is dropped
/// later the result is. What the job owns is there until its turn has come, which may be never: memory is better
/// kept by who waits, and only found from here (as [`write_file_atomically`] does).
///
/// The future ends with an error when [`limits::BLOCKING_QUEUE_MAX`] jobs wait already; then nothing is
/// done.
pub fn run<T: Send + 'static>(
    origin: Origin,
    job: impl FnOnce() -> T + Send + 'static,
) -> RunningJob<T> {
    run_for(Class::Write, origin, job)
}

/// [`run`] for a class. What a job of another class than [`Class::Write`] owns must not have to wait
/// when it is dropped: a worker may do that when nobody waits for the result any more.
pub fn run_for<T: Send + 'static>(
    class: Class,
    origin: Origin,
    job: impl FnOnce() -> T + Send + 'static,
) -> RunningJob<T> {
    pool(class).run(origin, job)
}

/// Begins a job whose end nobody is told of.
///
/// # Errors
/// [`limits::BLOCKING_QUEUE_MAX`] jobs of the class wait already.
pub fn start(class: Class, origin: Origin, job: impl Job + 'static) -> Result<(), NotDone> {
    pool(class).submit(origin, Box::new(job))
}

/// Has a thread drop `what`, because that may wait for the file system of `origin`: the last descriptor of a file
/// there, say. It is never refused, so that no worker has to: of what is to be dropped there is never more than
/// there was room to open.
pub fn drop_elsewhere(origin: Origin, what: impl Send + 'static) {
    pool(Class::Write).submit_in_any_case(origin, Box::new(move || drop(what)));
}

/// [`run`] for what has to be done also if nobody waits for it any more: it is never refused and never left out. Whoever
/// calls this sees to it that there is an end to such jobs.
pub fn run_in_any_case<T: Send + 'static>(
    origin: Origin,
    job: impl FnOnce() -> T + Send + 'static,
) -> RunningJob<T> {
    pool(Class::Write).run_in_any_case(origin, job)
}

/// [`run_for`] for jobs that have I/O errors themselves. Those of the threads become
/// [`ResourceBusy`](io::ErrorKind::ResourceBusy) and [`Other`](io::ErrorKind::Other).
///
/// # Errors
/// Those of the job, and [`NotDone`].
pub async fn run_io<T: Send + 'static>(
    class: Class,
    origin: Origin,
    job: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    run_for(class, origin, job).await?
}

/// Replaces threads that hang while others have work to do. Workers call it once a second, and so does a program
/// without workers as long as it waits.
pub fn look_after() {
    for class in Class::ALL {
        pool(class).look_after();
    }
}

/// The result of a job, once it is done.
pub struct RunningJob<T>(Result<oneshot::Receiver<T>, NotDone>);

/// Why a job has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotDone {
    /// Too many jobs waited.
    QueueFull,
    /// It panicked, or no thread could be started for it.
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

/// The threads of this process. Disks take some dozens of requests at once; how many are best depends on
/// what is asked for.
static POOLS: [Pool; 5] = [
    Pool::new("stat", THREADS.stat),
    Pool::new("first", THREADS.stat),
    Pool::new("read", THREADS.read),
    Pool::new("write", THREADS.write).unpurged(),
    Pool::new("compute", THREADS.compute).computing(),
];

/// Threads as long as nothing else is configured.
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

/// A closure whose result somebody waits for.
struct Task<F, T> {
    work: F,
    result: oneshot::Sender<T>,
}

impl<F: FnOnce() -> T + Send, T: Send> Job for Task<F, T> {
    fn run(self: Box<Self>) {
        // Who waited may have gone meanwhile.
        let _ = self.result.send((self.work)());
    }

    fn is_wanted(&self) -> bool {
        !self.result.is_closed()
    }
}

/// Threads and the jobs that wait for them.
struct Pool {
    name: &'static str,
    state: Mutex<PoolState>,
    /// There is a job for a thread that waits.
    has_job: Condvar,
    threads_max: AtomicUsize,
    queue_max: usize,
    idle_time: Duration,
    /// Whether jobs that nobody waits for are taken out. What is written may own files that are closed, and
    /// removed, with it: those wait for their turn.
    is_purged: bool,
    /// Its jobs wait for nothing: one that takes long does not hang, and another thread would not make it faster.
    is_computing: bool,
    /// Jobs of one client that may wait.
    client_queue_max: usize,
    counters: counters::JobCounters,
}

struct PoolState {
    queue: JobQueue<Box<dyn Job>>,
    /// When the queue was last looked through for what nobody waits for.
    purged_at: Option<Instant>,
    threads: usize,
    /// Threads that wait for a job.
    idle: usize,
    /// Threads that have been counted, and have not looked for a job yet.
    starting: usize,
    /// What each thread does; places of threads that have ended are used again.
    places: Vec<ThreadState>,
}

/// What a thread does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ThreadState {
    /// It has ended.
    Free,
    /// It looks for work, or waits for it.
    Idle,
    /// A job, since then.
    Busy(Instant),
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
        // Nobody may wait for it: a closure is wanted all the same.
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
        // It may submit jobs itself: nothing is locked any more.
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

    /// Whether no more may wait. What hangs does not take the places of all others.
    fn is_full(&self, state: &PoolState, origin: Origin) -> bool {
        let (waiting, length) = (state.queue.waiting_for(origin.device), state.queue.len());
        if self.is_computing {
            // A few clients that have many jobs do not shut out one that has none: the clients take turns.
            return match state.queue.waiting_of(origin) {
                0 => length >= self.queue_max + limits::COMPUTE_NEWCOMERS_MAX,
                own => length >= self.queue_max || own >= self.client_queue_max,
            };
        }
        origin.device != 0 && waiting >= limits::BLOCKING_DEVICE_QUEUE_MAX
            || length >= self.queue_max
    }

    /// Takes out what nobody waits for any more, unless that was done just now. The caller drops it when
    /// nothing is locked.
    fn purge(&self, state: &mut PoolState) -> Vec<Box<dyn Job>> {
        let pause = Duration::from_millis(limits::BLOCKING_PURGE_PAUSE_MS);
        let is_early = state.purged_at.is_some_and(|then| then.elapsed() < pause);
        if !self.is_purged || is_early || state.queue.len() == 0 {
            return Vec::new();
        }
        state.purged_at = Some(Instant::now());
        state.queue.purge(|job| job.is_wanted())
    }

    /// Wakes a thread, or starts one, if there is a job that may be begun.
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

    /// Whether one more thread may be there. Those whose jobs hang do not count.
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

    /// Starts the thread that was counted. If it cannot be, the others do its work; without any, those
    /// who wait are told.
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

    /// What a thread does.
    fn work(&'static self) {
        if self.is_computing {
            // Of this thread alone. If it is refused, workers get their share of the processors all the same.
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
                state.places[place] = ThreadState::Busy(begun);
                // The end of the one before may have made room for more than this one.
                self.see_to_threads(state);
                self.counters.begun(begun.duration_since(queued_at));
                // Who waits for a job that panics finds its sender gone.
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
                // It took the place of one that hung and is back.
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
    /// Threads that take what comes next.
    fn free(&self) -> usize {
        self.idle + self.starting
    }

    fn count_new_thread(&mut self) {
        self.threads += 1;
        self.starting += 1;
    }

    /// A place for a thread that begins.
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

    /// Jobs that run.
    fn running(&self) -> usize {
        let is_busy = |place: &&ThreadState| matches!(place, ThreadState::Busy(_));
        self.places.iter().filter(is_busy).count()
    }

    /// Jobs that take so long that their threads do not count.
    fn stuck(&self) -> usize {
        let patience = Duration::from_millis(limits::STUCK_JOB_MS);
        let now = Instant::now();
        let is_stuck = |place: &&ThreadState| match place {
            ThreadState::Busy(since) => now.saturating_duration_since(*since) > patience,
            ThreadState::Free | ThreadState::Idle => false,
        };
        self.places.iter().filter(is_stuck).count()
    }
}

/// How far threads that compute stand back behind the workers.
const COMPUTE_NICENESS: i32 = 10;

/// System calls need little.
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
        // It ends with an error, when the sender has gone.
        (open, move || assert!(is_open.recv().is_err()))
    }

    /// Threads, those of them that are idle, and jobs that wait.
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
                // Taken off the queue.
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
        let (open, gates): (Vec<_>, Vec<_>) = (0..4).map(|_| gate()).unzip();
        let gates = gates.into_iter();
        let others: Vec<_> = gates.map(|gate| pool.run(disk, gate)).collect();
        until(|| counts(pool) == (1, 0, 4)).await;
        drop(open_large);
        first.await.expect("it ran");
        // Nobody submits anything or looks after the threads.
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
    async fn jobs_nobody_waits_for_are_left_out() {
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
    async fn jobs_nobody_waits_for_make_room_before_their_turn() {
        let pool = pool(1, 3, 10_000);
        let (open, gate) = gate();
        let first = pool.run(NOWHERE, gate);
        until(|| counts(pool).2 == 0).await;
        let fill = || [(); 3].map(|()| pool.run(NOWHERE, || 0));
        let waiting = fill();
        assert_eq!(pool.run(NOWHERE, || ()).await, Err(NotDone::QueueFull));
        drop(waiting);
        // It was looked through just now.
        let mut other = None;
        until(|| {
            other = Some(pool.run(NOWHERE, || 1));
            counts(pool).2 == 1
        })
        .await;
        // And once a second.
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
    async fn a_file_system_that_hangs_holds_nobody_up() {
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
        // What a worker does once a second.
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
        // Those that were added end when nobody hangs any more.
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
        // Two have waited for the first.
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
    async fn what_has_to_be_done_is_done_though_nobody_waits_and_many_jobs_do() {
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
