//! The common part of the backends whose reads a [`ReadQueue`] of the worker does: the order of the reads,
//! and how results get to the waiting clients.
//!
//! Reads wait in the same fair order as jobs of disk threads: file systems take turns, within a file system
//! clients take turns, and the number of reads on one file system at a time is limited. A task of the worker
//! begins the reads whose turn has come, a few at a time, and collects those that have ended. A client that
//! stops waiting drops its end of a channel. If its read has not begun, it is soon left out, with its
//! descriptor, even if earlier reads hang. Otherwise the result is dropped when it arrives.
//!
//! The threads of `gthread-aio` do what a queue cannot: reads on file systems of another machine or of a
//! program (one that hangs would fill the queue), reads that the queue declines, and all reads while it is
//! full. The backends differ only in [`PrepareRead`].

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

/// How a backend reads `length` bytes (not 0) from an offset. Called when the turn of the read has come. If
/// it returns an error, threads do the read.
pub(super) type PrepareRead = fn(&SharedDescriptor, u64, usize) -> io::Result<PreparedRead>;

/// What to read, and into which buffer.
pub(super) struct PreparedRead {
    pub(crate) file: Arc<dyn AsFd + Send + Sync>,
    pub(crate) buffer: Buffer,
    pub(crate) range: DirectRange,
}

impl PreparedRead {
    /// A read of exactly the wanted bytes into ordinary memory.
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
    /// Creates a reader for `backend` on `queue`.
    ///
    /// # Errors
    /// The worker cannot wait for the queue.
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

// The largest chunk fits into a buffer.
const _: () = assert!(limits::CHUNK_BYTES_CONFIGURED_MAX <= BUFFER_BYTES_MAX);

/// A read that a client wants.
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
    /// A thread has to do the read.
    Declined,
}

/// A read that the queue has begun.
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
    /// Wakes the task when a read waits.
    wake: Notify,
    /// The kernel does not take the reads that were prepared.
    is_failing: Cell<bool>,
    /// When reads without a waiting client were last removed.
    forgotten_at: Cell<Nanos>,
    /// File systems that cannot do what this backend needs.
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
                // Cleared first, so that a read that ends during `collect` makes the descriptor ready again.
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

/// The pause between two attempts to pass reads to the kernel while it does not take them.
const RETRY: Duration = Duration::from_millis(10);

/// How often reads without a waiting client are removed. If the disk hangs, their turn would never come.
const FORGET: Duration = Duration::from_secs(1);

impl Inner {
    /// Whether the queue can do such a read.
    fn takes(&self, storage: Storage, origin: &Origin) -> bool {
        let queue = self.queue.borrow();
        storage == Storage::Disk
            && !self.is_failing.get()
            && queue.in_flight() < queue.capacity()
            && !self.refused.borrow().contains(&origin.device)
            && self.has_place(origin.device)
    }

    /// Whether one more read may wait. A file system that hangs may fill only its own part of the queue.
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

    /// Removes waiting reads without a waiting client, with their descriptors, unless that was done less than
    /// `pause` ago.
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

    /// Collects reads that have ended, and begins reads whose turn has come; stops before it keeps the worker
    /// too long. Returns whether there are more to begin, or to try again.
    fn step(&self) -> bool {
        self.forget_who_has_gone(FORGET);
        self.collect(|backend, bytes| self.accounts.count_async(backend, bytes));
        for _ in 0..limits::READS_BEGUN_AT_ONCE {
            if !self.begin_next() {
                break;
            }
        }
        let flushed = self.queue.borrow_mut().flush();
        // Reads from the page cache have ended by now.
        self.collect(|backend, bytes| self.own_counts.count_sync(backend, bytes));
        self.note(flushed.err());
        self.is_failing.get() || self.may_begin()
    }

    /// Reads that the kernel did not take stay in the queue and are tried again; threads do the reads that
    /// come meanwhile. Logs when this state begins.
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

    /// Begins the read whose turn has come. Returns `false` if no read may begin.
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
        // No client waits for this read any more.
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

    /// Passes the results of ended reads to their clients.
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
            // The read stopped before the wanted bytes: at the end of the file, or for another reason.
            return drop(order.answer.send(Answer::Declined));
        }
        count(self.backend, found);
        let chunk = Chunk::in_buffer(order.offset, done.buffer, range.skip, found, memory);
        // The client may have stopped waiting meanwhile.
        let _ = order.answer.send(Answer::Read(Ok(chunk)));
    }

    /// Lets threads do the read. Logs it when a file system refuses for the first time.
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
