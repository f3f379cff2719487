//! What the backends have in common whose reads are done by a [`ReadQueue`] of the worker: whose turn it is,
//! and how results get to those who wait.
//!
//! Reads wait in the same fair order as jobs of threads do: each file system in turn, there each client, and of
//! one file system no more at a time than it can bear. A task of the worker begins those whose turn has come,
//! a few at a time, and collects those that have ended. A client that no longer waits has dropped its end of a
//! channel; a read that was not begun is soon left out, whatever becomes of those before it, and the descriptor with
//! it; otherwise the result is dropped when it comes.
//!
//! What a queue cannot do is done by the threads of `gthread-aio`: file systems that are another machine's or
//! a program's (one that hangs would fill the queue), reads that it declines, and all when it is full. [`PrepareRead`]
//! is what the backends differ in.

#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use petrel_sys::read_queue::{
    BUFFER_BYTES_MAX, Buffer, DirectRange, Done, Read, ReadQueue, is_refusal,
};
use petrel_sys::readiness;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, oneshot};

use super::chunk::Chunk;
use super::gthread_aio::GthreadAio;
use super::{ChunkReader, ChunkReading, NetworkBackend, Readers};
use crate::blocking::{JobQueue, Load, Origin};
use crate::clock::Clock;
use crate::file_accounts::{CountedRead, FileAccounts, MemoryShare, OwnCounts};
use crate::file_cache::{FileEntry, SharedDescriptor};
use crate::ledger::Nanos;
use crate::limits;
use crate::log::LogHandle;
use crate::mounts::{DeviceNumber, Storage};

/// What a backend does in its own way: says how so many bytes (not 0) from an offset on are to be read. Called when the
/// turn of the read has come. After an error threads read it.
pub(super) type PrepareRead = fn(&SharedDescriptor, u64, usize) -> io::Result<PreparedRead>;

/// What to read, and where to.
pub(super) struct PreparedRead {
    pub(crate) file: Arc<dyn AsFd + Send + Sync>,
    pub(crate) buffer: Buffer,
    pub(crate) range: DirectRange,
}

impl PreparedRead {
    /// Just what is wanted, into plain memory.
    pub(crate) fn plain(
        file: &SharedDescriptor,
        offset: u64,
        length: usize,
    ) -> io::Result<PreparedRead> {
        Ok(PreparedRead {
            file: file.clone(),
            buffer: Buffer::new(length)?,
            range: DirectRange {
                offset,
                length,
                skip: 0,
                wanted: length,
            },
        })
    }
}

/// Reads by a queue of this worker.
pub(super) struct QueueReader(Rc<Inner>);

impl QueueReader {
    /// A reader of `backend` on `queue`.
    ///
    /// # Errors
    /// The queue cannot be waited for.
    pub(crate) fn start(
        backend: NetworkBackend,
        queue: impl ReadQueue + 'static,
        prepare: PrepareRead,
        readers: &Readers,
    ) -> io::Result<QueueReader> {
        let readable = readiness::readable(queue.descriptor().try_clone_to_owned()?)?;
        let inner = Rc::new(Inner {
            backend,
            prepare,
            queue: RefCell::new(Box::new(queue)),
            waiting: RefCell::new(JobQueue::shared_by(readers.workers)),
            running: RefCell::default(),
            tokens: Cell::default(),
            wake: Notify::new(),
            is_failing: Cell::default(),
            forgotten_at: Cell::default(),
            refused: RefCell::default(),
            accounts: Arc::clone(&readers.accounts),
            own_counts: Rc::clone(&readers.own_counts),
            log: readers.logs.error_log(None),
            clock: Rc::clone(&readers.clock),
        });
        tokio::task::spawn_local(drive(Rc::clone(&inner), readable));
        Ok(QueueReader(inner))
    }
}

impl ChunkReader for QueueReader {
    fn read(&self, file: &Rc<FileEntry>, offset: u64, length: usize, client: u64) -> ChunkReading {
        let origin = file.origin(client, length);
        let descriptor = match file.share_descriptor() {
            Some(descriptor) if length > 0 && self.0.takes(file.storage(), &origin) => descriptor,
            _ => {
                return GthreadAio(Arc::clone(&self.0.accounts)).read(file, offset, length, client);
            }
        };
        let (answer, answered) = oneshot::channel();
        let (accounts, clock, backend) = (&self.0.accounts, &self.0.clock, self.0.backend);
        self.0.waiting.borrow_mut().push(
            origin,
            Order {
                file: descriptor,
                offset,
                length: length.min(limits::CHUNK_BYTES_CONFIGURED_MAX),
                device: origin.device,
                counted: CountedRead::new(accounts, clock, backend, origin.device),
                answer,
            },
        );
        self.0.wake.notify_one();
        let (file, threads) = (Rc::clone(file), GthreadAio(Arc::clone(&self.0.accounts)));
        Box::pin(async move {
            match answered.await {
                Ok(Answer::Read(read)) => read,
                Ok(Answer::Declined) | Err(_) => threads.read(&file, offset, length, client).await,
            }
        })
    }
}

// There is a buffer for all that is asked for.
const _: () = assert!(limits::CHUNK_BYTES_CONFIGURED_MAX <= BUFFER_BYTES_MAX);

/// A read that is wanted.
struct Order {
    file: SharedDescriptor,
    offset: u64,
    length: usize,
    device: u64,
    counted: CountedRead,
    answer: oneshot::Sender<Answer>,
}

enum Answer {
    Read(io::Result<Chunk>),
    /// A thread has to do it.
    Declined,
}

/// A read that the queue has been given.
struct RunningRead {
    order: Order,
    range: DirectRange,
    load: Load,
    memory: MemoryShare,
}

struct Inner {
    backend: NetworkBackend,
    prepare: PrepareRead,
    queue: RefCell<Box<dyn ReadQueue>>,
    waiting: RefCell<JobQueue<Order>>,
    running: RefCell<HashMap<u64, RunningRead>>,
    tokens: Cell<u64>,
    /// Something waits.
    wake: Notify,
    /// The kernel does not take what was gathered.
    is_failing: Cell<bool>,
    /// When those who have gone were last looked for.
    forgotten_at: Cell<Nanos>,
    /// File systems that do not do what this backend asks for.
    refused: RefCell<Vec<u64>>,
    accounts: Arc<FileAccounts>,
    own_counts: Rc<OwnCounts>,
    log: LogHandle,
    clock: Rc<Clock>,
}

/// The task of a reader.
async fn drive(inner: Rc<Inner>, readable: AsyncFd<OwnedFd>) {
    loop {
        let waits = inner.waiting.borrow().len() > 0;
        tokio::select! {
            () = inner.wake.notified() => {}
            () = tokio::time::sleep(FORGET), if waits => {}
            guard = readable.readable() => match guard {
                // Cleared first: what ends while these are collected makes it readable again.
                Ok(mut guard) => guard.clear_ready(),
                Err(_) => return,
            },
        }
        while inner.step() {
            match inner.is_failing.get() {
                true => tokio::time::sleep(RETRY).await,
                false => tokio::task::yield_now().await,
            }
        }
    }
}

/// Between two attempts to give the kernel what it does not take.
const RETRY: Duration = Duration::from_millis(10);

/// Between two times that reads are looked for which no client waits for any more: of a disk that hangs the turn of none
/// comes.
const FORGET: Duration = Duration::from_secs(1);

impl Inner {
    /// Whether a read of this kind is one for the queue.
    fn takes(&self, storage: Storage, origin: &Origin) -> bool {
        let queue = self.queue.borrow();
        storage == Storage::Disk
            && !self.is_failing.get()
            && queue.in_flight() < queue.capacity()
            && !self.refused.borrow().contains(&origin.device)
            && self.has_place(origin.device)
    }

    /// Whether one more may wait. What hangs does not take the places of all others.
    fn has_place(&self, device: u64) -> bool {
        let has_place = || {
            let waiting = self.waiting.borrow();
            waiting.len() < limits::BLOCKING_QUEUE_MAX
                && waiting.waiting_for(device) < limits::BLOCKING_DEVICE_QUEUE_MAX
        };
        has_place() || {
            self.forget_who_has_gone(Duration::from_millis(limits::BLOCKING_PURGE_PAUSE_MS));
            has_place()
        }
    }

    /// Takes out what no client waits for any more, with its descriptor, unless that was done less than `pause` ago.
    fn forget_who_has_gone(&self, pause: Duration) {
        let now = self.clock.now();
        if u128::from(now - self.forgotten_at.get()) < pause.as_nanos() {
            return;
        }
        self.forgotten_at.set(now);
        let is_wanted = |order: &Order| !order.answer.is_closed();
        let forgotten = self.waiting.borrow_mut().purge(is_wanted);
        drop(forgotten);
    }

    /// Collects what has ended and begins what may be begun, for about as long as a worker may be kept.
    /// Answers whether there is more to begin, or to try again.
    fn step(&self) -> bool {
        self.forget_who_has_gone(FORGET);
        self.collect(|backend, bytes| self.accounts.count_async(backend, bytes));
        for _ in 0..limits::READS_BEGUN_AT_ONCE {
            if !self.begin_next() {
                break;
            }
        }
        let flushed = self.queue.borrow_mut().flush();
        // What was in the page cache has ended by now.
        self.collect(|backend, bytes| self.own_counts.count_sync(backend, bytes));
        self.note(flushed.err());
        self.is_failing.get() || self.may_begin()
    }

    /// Reads that could not be begun stay in the queue and are tried again; threads do those that come
    /// meanwhile. That is told when it begins.
    fn note(&self, error: Option<io::Error>) {
        let failed_before = self.is_failing.replace(error.is_some());
        if let Some(error) = error.filter(|_| !failed_before) {
            self.log.error(format_args!(
                "network backend {}: reads cannot be begun now: {error}",
                self.backend.name()
            ));
        }
    }

    fn may_begin(&self) -> bool {
        let queue = self.queue.borrow();
        queue.in_flight() < queue.capacity() && self.waiting.borrow().ready() > 0
    }

    /// Begins the read whose turn it is. `false`: there is none that may be begun.
    fn begin_next(&self) -> bool {
        let is_full = {
            let queue = self.queue.borrow();
            queue.in_flight() >= queue.capacity()
        };
        if is_full {
            return false;
        }
        let Some(work) = self.waiting.borrow_mut().pop() else {
            return false;
        };
        // No client waits for it any more.
        if work.job.answer.is_closed() {
            self.waiting.borrow_mut().ended(work.load);
            return true;
        }
        if let Err((order, error)) = self.begin(work.job, work.load) {
            self.waiting.borrow_mut().ended(work.load);
            self.decline(order, &error);
        }
        true
    }

    fn begin(&self, mut order: Order, load: Load) -> Result<(), (Order, io::Error)> {
        let accounts = &self.accounts;
        let length = accounts.within_memory(order.length);
        let prepared = match (self.prepare)(&order.file, order.offset, length) {
            Ok(prepared) => prepared,
            Err(error) => return Err((order, error)),
        };
        let token = self.tokens.get();
        self.tokens.set(token.wrapping_add(1));
        let memory = accounts.share(prepared.buffer.capacity());
        let read = Read {
            token,
            file: prepared.file,
            offset: prepared.range.offset,
            buffer: prepared.buffer,
            length: prepared.range.length,
        };
        if let Err((_, error)) = self.queue.borrow_mut().submit(read) {
            return Err((order, error));
        }
        order.counted.begin();
        let running = RunningRead {
            order,
            range: prepared.range,
            load,
            memory,
        };
        self.running.borrow_mut().insert(token, running);
        Ok(())
    }

    /// Hands over what has ended.
    fn collect(&self, count: impl Fn(NetworkBackend, usize)) {
        let mut ended = Vec::new();
        self.queue.borrow_mut().completed(&mut ended);
        for done in ended {
            let Some(running) = self.running.borrow_mut().remove(&done.token) else {
                continue;
            };
            self.waiting.borrow_mut().ended(running.load);
            self.hand_over(running, done, &count);
        }
    }

    fn hand_over(&self, running: RunningRead, done: Done, count: &impl Fn(NetworkBackend, usize)) {
        let RunningRead {
            order,
            range,
            memory,
            ..
        } = running;
        let bytes = match done.result {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock || is_refusal(&error) => {
                return self.decline(order, &error);
            }
            Err(error) => return drop(order.answer.send(Answer::Read(Err(error)))),
        };
        let found = range.found(bytes);
        if found == 0 && bytes > 0 {
            // It stopped in front of what is wanted: at the end of the file, or somewhere else.
            return drop(order.answer.send(Answer::Declined));
        }
        count(self.backend, found);
        let chunk = Chunk::in_buffer(order.offset, done.buffer, range.skip, found, memory);
        // Who waited may have gone meanwhile.
        let _ = order.answer.send(Answer::Read(Ok(chunk)));
    }

    /// Has threads do it. The first time a file system refuses, that is told.
    fn decline(&self, order: Order, error: &io::Error) {
        let mut refused = self.refused.borrow_mut();
        let is_new = is_refusal(error) && order.device != 0 && !refused.contains(&order.device);
        if is_new && refused.len() < limits::REFUSING_DEVICES_MAX {
            refused.push(order.device);
            self.log.error(format_args!(
                "network backend {}: the file system {} does not read this way ({error}), threads read its \
                 files (gthread-aio)",
                self.backend.name(),
                DeviceNumber(order.device),
            ));
        }
        let _ = order.answer.send(Answer::Declined);
    }
}
