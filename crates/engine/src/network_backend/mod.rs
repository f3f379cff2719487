//! How a part of a file gets to the socket: `server.network-backend`.
//!
//! | backend | reads | sends |
//! |---|---|---|
//! | `auto` | what the page cache does not have, on a thread | sendfile(2) what the page cache has, otherwise from memory |
//! | `write`, `writev` | inline | write(2), writev(2) with the head |
//! | `linux-sendfile` | inline, by the kernel | sendfile(2) |
//! | `gthread-aio` | on a thread | from memory |
//! | `gthread-sendfile` | on a thread, by the kernel | sendfile(2) on that thread |
//! | `posix-aio` | by aio_read(3) | from memory |
//! | `linux-aio-sendfile` | by io_submit(2), past the page cache | sendfile(2) from memory |
//! | `io_uring` | by a ring | from memory |
//!
//! With `auto` and the last five the worker never waits for a disk. A backend that reads elsewhere than on
//! the worker's thread is a [`ChunkReader`]: one file here, and one line in [`make`]. [`file_reader`] has
//! what they share: a connection sends one chunk while the next is read. Filters, caches and scripts read
//! with the same [`FileReader`]. Bodies in memory do not come here; they are sent together with the head.

mod chunk;
mod file_reader;
mod flight;
mod gthread_aio;
mod gthread_sendfile;
mod io_uring;
mod linux_aio_sendfile;
mod linux_sendfile;
mod posix_aio;
mod queue_reader;
mod steps;
mod write;

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;

pub(crate) use chunk::Chunk;
pub use file_reader::FileReader;
pub(crate) use file_reader::Next;
pub(crate) use flight::Flight;

use gthread_aio::GthreadAio;

use crate::clock::Clock;
pub use crate::file_accounts::NetworkBackend;
use crate::file_accounts::{ChunkMemory, FileAccounts, OwnCounts};
use crate::file_cache::{Contents, FileEntry, LastLoss};
use crate::log::LogRegistry;
use crate::transport::ClientSocket;

/// The result of an attempt to send.
pub(crate) enum SendResult {
    /// This many bytes were sent, prefix first.
    Bytes(usize),
    /// The file is shorter than the piece by now.
    Truncated,
    /// The socket takes nothing now.
    WaitsForClient,
    /// The disk has not answered yet.
    WaitsForDisk,
}

/// What to send: bytes in memory, then a part of a file.
pub(crate) struct Stretch<'a> {
    /// The head, or other bytes before the file.
    pub(crate) prefix: &'a [u8],
    /// The file.
    pub(crate) file: &'a Rc<FileEntry>,
    /// The range of the file that is still to be sent.
    pub(crate) range: Range<u64>,
    /// How many bytes may be sent now, prefix included.
    pub(crate) bytes_max: usize,
    /// The readers of the worker.
    pub(crate) readers: &'a Readers,
}

impl<'a> Stretch<'a> {
    /// The same stretch, ended at `end` of the file.
    fn up_to(&self, end: u64) -> Stretch<'a> {
        let count = usize::try_from(end.saturating_sub(self.range.start)).unwrap_or(usize::MAX);
        Stretch {
            bytes_max: self.bytes_max.min(self.prefix.len().saturating_add(count)),
            range: self.range.clone(),
            ..*self
        }
    }

    /// Up to where the bytes that may be sent now were recently found in the page cache. `None`: not the
    /// first one.
    #[inline]
    fn end_of_resident(&self, now_s: u32) -> Option<u64> {
        let start = self.range.start;
        let next = start..start + self.file_bytes_max() as u64;
        let end = self
            .file
            .end_of_resident(&next, now_s, &self.readers.last_loss);
        (end > start).then_some(end)
    }

    /// How many bytes of the file may be sent now.
    fn file_bytes_max(&self) -> usize {
        let left = usize::try_from(self.range.end - self.range.start).unwrap_or(usize::MAX);
        left.min(self.bytes_max.saturating_sub(self.prefix.len()))
    }
}

/// The part of the stretch that one call can send without state between calls: what was recently found in
/// memory, or all of it if the backend lets the worker wait anyway. `None`: there is no such part.
#[inline]
pub(crate) fn at_hand<'a>(
    backend: NetworkBackend,
    stretch: &Stretch<'a>,
    now_s: u32,
) -> Option<Stretch<'a>> {
    match backend {
        NetworkBackend::Auto => {
            let end = stretch.end_of_resident(now_s)?;
            Some(stretch.up_to(end))
        }
        _ => backend.waits().then(|| stretch.up_to(stretch.range.end)),
    }
}

/// Sends the stretch that [`at_hand`] has returned.
///
/// # Errors
/// Those of the file or the socket.
pub(crate) fn send_at_hand(
    backend: NetworkBackend,
    socket: &mut ClientSocket,
    stretch: &Stretch<'_>,
    context: &mut Context<'_>,
) -> io::Result<SendResult> {
    let sent = match backend {
        NetworkBackend::Write => write::write(socket, stretch, context),
        NetworkBackend::Writev => write::writev(socket, stretch, context),
        _ => linux_sendfile::sendfile(socket, stretch, context),
    }?;
    if let SendResult::Bytes(count) = sent
        && count > stretch.prefix.len()
    {
        let own = &stretch.readers.own_counts;
        own.count_sync(backend, count - stretch.prefix.len());
    }
    Ok(sent)
}

/// A backend that does not read on the worker's thread.
pub(crate) trait ChunkReader {
    /// Begins to read `length` bytes of `file` from `offset`. The result may be shorter, and is empty at the
    /// end of the file. If the caller drops the future, the read is left out or its result is dropped, and
    /// with it the reference to the file.
    fn read(&self, file: &Rc<FileEntry>, offset: u64, length: usize, client: u64) -> ChunkReading;
}

/// A read that is under way.
pub(crate) type ChunkReading = Pin<Box<dyn Future<Output = io::Result<Chunk>>>>;

/// The readers of a worker, one for each network backend.
pub(crate) struct Readers {
    /// The readers that were needed so far.
    made: RefCell<Vec<(NetworkBackend, Rc<dyn ChunkReader>)>>,
    /// `server.io-chunk-size`; 0: as much as the user takes in two seconds.
    chunk_bytes: usize,
    /// The number of workers of the process.
    workers: usize,
    /// `server.max-read-threads`.
    threads: usize,
    logs: Arc<LogRegistry>,
    clock: Rc<Clock>,
    last_loss: LastLoss,
    accounts: Arc<FileAccounts>,
    own_counts: Rc<OwnCounts>,
}

impl Readers {
    /// No readers yet, for one of `workers` workers. `chunk_bytes` is `server.io-chunk-size`, `threads` is
    /// `server.max-read-threads`.
    pub(crate) fn new(
        chunk_bytes: usize,
        workers: usize,
        threads: usize,
        logs: &Arc<LogRegistry>,
        contents: &Contents,
        clock: &Rc<Clock>,
    ) -> Readers {
        Readers {
            made: RefCell::default(),
            chunk_bytes,
            workers,
            threads,
            logs: Arc::clone(logs),
            clock: Rc::clone(clock),
            last_loss: contents.last_loss().clone(),
            accounts: Arc::clone(contents.accounts()),
            own_counts: Rc::default(),
        }
    }

    /// Adds what this worker has read and sent to the shared counters.
    pub(crate) fn publish_counts(&self) {
        self.own_counts.publish(&self.accounts);
    }

    /// Memory for `length` bytes that are read now, or for fewer if memory is short.
    pub(crate) fn memory(&self, length: usize) -> ChunkMemory {
        self.accounts.memory(self.accounts.within_memory(length))
    }

    fn by_threads(&self) -> GthreadAio {
        GthreadAio(Arc::clone(&self.accounts))
    }

    /// The reader for `backend`.
    fn of(&self, backend: NetworkBackend) -> Rc<dyn ChunkReader> {
        let find = || {
            let made = self.made.borrow();
            let known = made.iter().find(|(known, _)| *known == backend)?;
            Some(Rc::clone(&known.1))
        };
        find().unwrap_or_else(|| {
            let reader = make(backend, self);
            self.made.borrow_mut().push((backend, Rc::clone(&reader)));
            reader
        })
    }
}

/// Whether a backend works here: `Ok` says how it reads, `Err` why it does not and `threads` threads read in
/// its place.
pub(crate) fn check(backend: NetworkBackend, threads: usize) -> Result<String, String> {
    let how = match backend {
        NetworkBackend::PosixAio => return posix_aio::check(threads),
        NetworkBackend::LinuxAioSendfile => return linux_aio_sendfile::check(),
        NetworkBackend::IoUring => return io_uring::check(),
        NetworkBackend::Auto => format!(
            "what is in memory is sent at once, all else is read by up to {threads} threads"
        ),
        NetworkBackend::GthreadAio => format!("up to {threads} threads read"),
        NetworkBackend::GthreadSendfile => format!("up to {threads} threads call sendfile"),
        NetworkBackend::Write | NetworkBackend::Writev | NetworkBackend::LinuxSendfile => {
            "the worker waits for the disk, and with it all its connections".to_owned()
        }
    };
    Ok(how)
}

/// Creates the reader for a backend.
fn make(backend: NetworkBackend, readers: &Readers) -> Rc<dyn ChunkReader> {
    let made = match backend {
        NetworkBackend::PosixAio => posix_aio::start(readers),
        NetworkBackend::LinuxAioSendfile => linux_aio_sendfile::start(readers),
        NetworkBackend::IoUring => io_uring::start(readers),
        NetworkBackend::Auto
        | NetworkBackend::Write
        | NetworkBackend::Writev
        | NetworkBackend::LinuxSendfile
        | NetworkBackend::GthreadAio
        | NetworkBackend::GthreadSendfile => return Rc::new(readers.by_threads()),
    };
    match made {
        Ok(reader) => Rc::new(reader),
        // The reason is reported at start-up (`file_report`); this line is for a failure that start-up did
        // not have.
        Err(error) => {
            readers.logs.error(format_args!(
                "network backend {}: {error}, threads read for this worker (gthread-aio)",
                backend.name()
            ));
            Rc::new(readers.by_threads())
        }
    }
}
