//! The threads that wait for disks, and the files that wait for them.
//!
//! Requests for the same file share one look at it. A thread that is with a file for longer than
//! [`STUCK_AFTER`] is *stuck*: another one takes its place, and it ends when the kernel has given it back,
//! unless it is needed. When many hang below one document root, the others there stay in the queue. So a disk
//! that hangs does not hold up another one.
//!
//! All that goes for one file system. Where another one is mounted in its place, nobody waits for what hangs in the
//! first, and what hangs there counts no more.
//!
//! Knows neither connections nor what a look is.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use proto::status::Status;
use tokio::sync::oneshot;

use super::Refusal;
use super::limits::{
    QUEUED_MAX, QUEUED_PER_ROOT_MAX, STACK_BYTES, STUCK_AFTER, STUCK_PER_ROOT_MAX, THREADS_MAX,
};
use super::target::{Target, shown};

/// What a look has found.
pub type Found = Result<(), Refusal>;

/// A look, which blocks. Its buffer is kept from one to the next.
pub type Look = dyn Fn(&Target, &mut Vec<u8>) -> Found + Send + Sync;

/// The pool. Clones are the same one. Its threads end with the process.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    look: Box<Look>,
    /// Threads that are not stuck.
    threads_max: usize,
    /// For how long somebody waits at most.
    patience: Duration,
    state: Mutex<State>,
    /// A file has come.
    wake: Condvar,
}

#[derive(Default)]
struct State {
    jobs: HashMap<Arc<Wanted>, Job>,
    /// Those that no thread has begun.
    queue: VecDeque<Arc<Wanted>>,
    /// Threads that are not stuck.
    active: usize,
    /// Those of them that wait for a file.
    idle: usize,
    /// Threads that are stuck.
    stuck: usize,
    /// How many are stuck below a document root on a file system, as far as there are any.
    stuck_below: HashMap<Box<[u8]>, HashMap<u64, usize>>,
    /// When it was last logged that a file was refused for want of room.
    refused: Option<Instant>,
}

/// A file, and where it was when somebody asked for it.
#[derive(PartialEq, Eq, Hash)]
struct Wanted {
    target: Target,
    /// The number of the file system.
    device: u64,
}

/// A file that somebody asks for.
struct Job {
    waiters: Vec<oneshot::Sender<Found>>,
    stage: Stage,
    /// It was logged that it takes too long.
    is_told: bool,
}

#[derive(Clone, Copy)]
enum Stage {
    Queued,
    Running { since: Instant },
    Stuck { since: Instant },
}

/// A place in the crowd that waits for a file. Dropped, it is given up; a file nobody waits for any more
/// is not begun.
pub struct Ticket {
    pool: Pool,
    wanted: Arc<Wanted>,
    found: oneshot::Receiver<Found>,
}

impl Pool {
    /// A pool of `threads_max` threads, which are started when they are needed. Nobody waits for longer than
    /// `patience`.
    pub fn new(threads_max: usize, patience: Duration, look: Box<Look>) -> Pool {
        let shared = Shared {
            look,
            threads_max,
            patience,
            state: Mutex::default(),
            wake: Condvar::new(),
        };
        Pool {
            shared: Arc::new(shared),
        }
    }

    /// Has the file looked at, which is on the file system with the number `device`.
    ///
    /// # Errors
    /// Too many files wait, or there is no thread for it.
    pub fn submit(&self, target: Target, device: u64, now: Instant) -> Result<Ticket, Refusal> {
        let wanted = Arc::new(Wanted { target, device });
        let (sender, found) = oneshot::channel();
        let mut state = self.shared.state();
        if let Some(job) = state.jobs.get_mut(&wanted) {
            job.join(sender, self.shared.patience, now)?;
        } else {
            self.note_stuck(&mut state, now);
            state.queue(&wanted, sender, now)?;
            self.staff(&mut state)?;
        }
        drop(state);
        Ok(Ticket {
            pool: self.clone(),
            wanted,
            found,
        })
    }

    /// Replaces threads that are stuck, if files wait for them. To be called once in a while as long
    /// as somebody waits.
    pub fn replace_stuck(&self, now: Instant) {
        let mut state = self.shared.state();
        self.note_stuck(&mut state, now);
        // Where there is no thread at all, who has come last is told at once, the others when their time is up.
        let _ = self.staff(&mut state);
    }

    fn note_stuck(&self, state: &mut State, now: Instant) {
        if state.active >= self.shared.threads_max && state.idle == 0 {
            state.note_stuck(now);
        }
    }

    /// Sees to it that there is a thread for each file, within limits.
    fn staff(&self, state: &mut State) -> Result<(), Refusal> {
        self.shared.wake.notify_one();
        while state.queue.len() > state.idle
            && state.active < self.shared.threads_max
            && state.active + state.stuck < THREADS_MAX
        {
            match self.start_thread() {
                // It counts as idle until it has taken a file, so that no other is started for that.
                Ok(()) => {
                    state.active += 1;
                    state.idle += 1;
                }
                Err(_) if state.active > 0 => return Ok(()),
                Err(error) => return Err(state.refuse_newest(&error)),
            }
        }
        Ok(())
    }

    fn start_thread(&self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("stat".to_owned());
        let thread = thread.stack_size(STACK_BYTES);
        thread.spawn(move || shared.work()).map(drop)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("a panic ends the process")
    }

    /// A thread's life.
    fn work(&self) {
        let mut buffer = Vec::new();
        let mut state = self.state();
        loop {
            let Some(wanted) = state.take(Instant::now()) else {
                state = self.wake.wait(state).expect("a panic ends the process");
                continue;
            };
            state.idle -= 1;
            drop(state);
            let found = (self.look)(&wanted.target, &mut buffer);
            state = self.state();
            let (waiters, was_stuck) = state.end(&wanted);
            if was_stuck {
                // Others of its root may be begun again.
                self.wake.notify_all();
            }
            if was_stuck && state.active >= self.threads_max {
                drop(state);
                tell(waiters, found);
                return;
            }
            state.active += usize::from(was_stuck);
            state.idle += 1;
            drop(state);
            tell(waiters, found);
            state = self.state();
        }
    }
}

/// Tells all of them; one gets the words for the log.
fn tell(waiters: Vec<oneshot::Sender<Found>>, mut found: Found) {
    for waiter in waiters {
        if waiter.send(found.clone()).is_ok()
            && let Err(refusal) = &mut found
        {
            refusal.words = None;
        }
    }
}

impl State {
    /// A new file, at the end of the queue.
    fn queue(
        &mut self,
        wanted: &Arc<Wanted>,
        waiter: oneshot::Sender<Found>,
        now: Instant,
    ) -> Result<(), Refusal> {
        let root = &wanted.target.root;
        if self.queue.len() >= QUEUED_PER_ROOT_MAX && !self.has_room(root) {
            self.drop_unwanted();
            if !self.has_room(root) {
                return Err(self.refuse(root, now));
            }
        }
        self.queue.push_back(Arc::clone(wanted));
        let job = Job {
            waiters: vec![waiter],
            stage: Stage::Queued,
            is_told: false,
        };
        self.jobs.insert(Arc::clone(wanted), job);
        Ok(())
    }

    /// Whether one more file may wait.
    fn has_room(&self, root: &[u8]) -> bool {
        let below = self
            .queue
            .iter()
            .filter(|wanted| &*wanted.target.root == root);
        self.queue.len() < QUEUED_MAX && below.count() < QUEUED_PER_ROOT_MAX
    }

    /// The next file that somebody waits for, which is begun.
    fn take(&mut self, now: Instant) -> Option<Arc<Wanted>> {
        loop {
            let mut queue = self.queue.iter();
            let index = queue.position(|wanted| !self.hangs(wanted))?;
            let wanted = self.queue.remove(index)?;
            match self.jobs.get_mut(&wanted) {
                Some(job) if job.is_wanted() => {
                    job.stage = Stage::Running { since: now };
                    return Some(wanted);
                }
                _ => self.jobs.remove(&wanted),
            };
        }
    }

    /// A thread is done with `wanted`: who is to be told, and whether the thread was stuck.
    fn end(&mut self, wanted: &Wanted) -> (Vec<oneshot::Sender<Found>>, bool) {
        let Some(job) = self.jobs.remove(wanted) else {
            return (Vec::new(), false);
        };
        let was_stuck = matches!(job.stage, Stage::Stuck { .. });
        if was_stuck {
            self.stuck -= 1;
            self.forget_stuck(wanted);
        }
        (job.waiters, was_stuck)
    }

    /// One less is stuck where `wanted` is.
    fn forget_stuck(&mut self, wanted: &Wanted) {
        let Some(below) = self.stuck_below.get_mut(&wanted.target.root) else {
            return;
        };
        if let Some(count) = below.get_mut(&wanted.device) {
            *count -= 1;
        }
        below.retain(|_, count| *count > 0);
        if below.is_empty() {
            self.stuck_below.remove(&wanted.target.root);
        }
    }

    /// Threads that have been with a file for too long count no more.
    fn note_stuck(&mut self, now: Instant) {
        for (wanted, job) in &mut self.jobs {
            if let Stage::Running { since } = job.stage
                && now.saturating_duration_since(since) >= STUCK_AFTER
            {
                job.stage = Stage::Stuck { since };
                self.active -= 1;
                self.stuck += 1;
                let root = wanted.target.root.clone();
                let below = self.stuck_below.entry(root).or_default();
                *below.entry(wanted.device).or_default() += 1;
            }
        }
    }

    /// Whether so many files hang where `wanted` is that it is not begun.
    fn hangs(&self, wanted: &Wanted) -> bool {
        let below = self.stuck_below.get(&wanted.target.root);
        let count = below.and_then(|below| below.get(&wanted.device));
        count.is_some_and(|count| *count >= STUCK_PER_ROOT_MAX)
    }

    /// There is no room for a file below `root`. The log is told of one in a while.
    fn refuse(&mut self, root: &[u8], now: Instant) -> Refusal {
        let is_news = |last: Instant| now.saturating_duration_since(last) >= REFUSAL_LOG_PAUSE;
        if !self.refused.is_none_or(is_news) {
            return Refusal::silent(Status::SERVICE_UNAVAILABLE);
        }
        self.refused = Some(now);
        let (queued, stuck, root) = (self.queue.len(), self.stuck, shown(root));
        let words =
            format!("refused: {queued} files wait, {stuck} threads hang; one more is below {root}");
        Refusal::new(Status::SERVICE_UNAVAILABLE, words)
    }

    /// Forgets files in the queue that nobody waits for any more.
    fn drop_unwanted(&mut self) {
        let jobs = &mut self.jobs;
        self.queue.retain(|wanted| {
            let is_wanted = jobs.get(wanted).is_some_and(Job::is_wanted);
            if !is_wanted {
                jobs.remove(wanted);
            }
            is_wanted
        });
    }

    /// There is no thread at all: the file that has just come cannot wait for one.
    fn refuse_newest(&mut self, error: &io::Error) -> Refusal {
        if let Some(wanted) = self.queue.pop_back() {
            self.jobs.remove(&wanted);
        }
        let words = format!("a thread cannot be started: {error}");
        Refusal::new(Status::SERVICE_UNAVAILABLE, words)
    }
}

impl Job {
    /// One more wants to know.
    fn join(
        &mut self,
        waiter: oneshot::Sender<Found>,
        patience: Duration,
        now: Instant,
    ) -> Result<(), Refusal> {
        if let Stage::Running { since } | Stage::Stuck { since } = self.stage
            && now.saturating_duration_since(since) >= patience
        {
            // It was logged when the first of them gave up.
            return Err(Refusal::silent(Status::GATEWAY_TIMEOUT));
        }
        if self.waiters.len() == self.waiters.capacity() {
            self.waiters.retain(|waiter| !waiter.is_closed());
        }
        self.waiters.push(waiter);
        Ok(())
    }

    fn is_wanted(&self) -> bool {
        self.waiters.iter().any(|waiter| !waiter.is_closed())
    }
}

impl Ticket {
    /// What was found, when it was.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Found> {
        let found = Pin::new(&mut self.found).poll(context);
        // Everybody is told before a job is forgotten, but for a file that no thread could be had for.
        let nobody = |_| Err(Refusal::silent(Status::SERVICE_UNAVAILABLE));
        found.map(|found| found.unwrap_or_else(nobody))
    }

    /// The path of the file.
    pub fn path(&self) -> Vec<u8> {
        self.wanted.target.path()
    }

    /// Why there is no answer although the time is up.
    pub fn give_up(&self) -> Refusal {
        let seconds = self.pool.shared.patience.as_secs();
        let path = shown(&self.path());
        let mut state = self.pool.shared.state();
        match state.jobs.get_mut(&*self.wanted) {
            Some(job) if matches!(job.stage, Stage::Queued) => {
                let words = format!("wait: no thread had time for it in {seconds} s: {path}");
                Refusal::new(Status::SERVICE_UNAVAILABLE, words)
            }
            Some(job) if job.is_told => Refusal::silent(Status::GATEWAY_TIMEOUT),
            job => {
                if let Some(job) = job {
                    job.is_told = true;
                }
                let words = format!("open, stat or read: no answer in {seconds} s: {path}");
                Refusal::new(Status::GATEWAY_TIMEOUT, words)
            }
        }
    }
}

/// From one line about files that were refused for want of room to the next.
const REFUSAL_LOG_PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
