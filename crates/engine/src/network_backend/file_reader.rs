//! Reads files in chunks: while the user takes one chunk, the next one is read.
//!
//! A reader returns chunks that are in memory, or what its user itself has found in the page cache. It has
//! the read-ahead, the pace, the turn at the disk and the deadline of its user. Users are the connections
//! that send from files ([`flight`](super::flight)) and all code that needs the bytes in memory (filters,
//! caches, scripts, connections that encrypt; see [`Piece::poll_read`](crate::body::Piece::poll_read)). The
//! [`ChunkReader`](super::ChunkReader) of `server.network-backend` does the reads. Knows nothing of sockets.

use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;

use super::chunk::{Chunk, Part};
use super::{ChunkReading, NetworkBackend, Readers};
use crate::blocking::{FileDeadline, Late};
use crate::file_cache::FileEntry;
use crate::ledger::Nanos;
use crate::limits;

/// Reads the files of one response, one part after the other. Allocates nothing until it has to read from the
/// disk.
pub struct FileReader {
    readers: Rc<Readers>,
    backend: NetworkBackend,
    /// The client whose turn at the disk the reads take: [`Origin::client`](crate::blocking::Origin::client).
    client: u64,
    deadline: FileDeadline,
    chunk: Option<(Rc<FileEntry>, Chunk)>,
    ahead: Option<ChunkAhead>,
    pace: ChunkPace,
    /// The last call is waiting for the disk.
    is_waiting: bool,
}

/// The chunk that is being read ahead.
struct ChunkAhead {
    file: Rc<FileEntry>,
    offset: u64,
    reading: ChunkReading,
}

/// How fast the user takes bytes. A chunk has as many as the user takes in two seconds.
#[derive(Clone, Copy, Default)]
struct ChunkPace {
    /// When the user began to take the present chunk.
    since: Nanos,
    /// The size of the next chunk; 0: the pace is unknown.
    bytes: usize,
}

/// The next part of the file.
pub(crate) enum Next<'a, T> {
    /// Bytes in memory; empty at the end of the file.
    Chunk(Part<'a>),
    /// What the caller's own look found.
    There(T),
}

impl FileReader {
    /// A reader without work, for `client` ([`Origin::client`](crate::blocking::Origin::client)).
    pub(crate) fn new(
        readers: &Rc<Readers>,
        backend: NetworkBackend,
        client: u64,
        deadline: FileDeadline,
    ) -> FileReader {
        FileReader {
            readers: Rc::clone(readers),
            backend,
            client,
            deadline,
            chunk: None,
            ahead: None,
            pace: ChunkPace::default(),
            is_waiting: false,
        }
    }

    /// Whether the last call was pending.
    pub fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// The client whose turn at the disk the reads take.
    pub(super) fn client(&self) -> u64 {
        self.client
    }

    /// The readers of the worker.
    pub(crate) fn readers(&self) -> &Rc<Readers> {
        &self.readers
    }

    /// Drops the chunks that were read.
    pub fn clear(&mut self) {
        self.chunk = None;
        self.ahead = None;
        self.is_waiting = false;
        self.deadline.renew();
    }

    /// Uses `bytes`, the first bytes of `file`, which were read when it was opened.
    pub(crate) fn give_first(&mut self, file: &Rc<FileEntry>, bytes: Bytes) {
        self.take(Rc::clone(file), Chunk::new(0, bytes));
    }

    /// The next bytes of `range` of `file` (not empty), `bytes_max` of them at most: from the present chunk,
    /// or what `look` finds. If neither has any, reads them.
    ///
    /// # Errors
    /// Those of the file and of `look`; `TimedOut` if the disk did not answer for `server.max-file-wait`.
    pub(crate) fn poll_next<T>(
        &mut self,
        file: &Rc<FileEntry>,
        range: &Range<u64>,
        bytes_max: usize,
        look: impl FnOnce() -> io::Result<Option<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Next<'_, T>>> {
        self.is_waiting = false;
        self.drop_chunk_without(file, range.start);
        if self.chunk.is_none() {
            if !self.is_reading(file, range.start) {
                if let Some(there) = look()? {
                    return Poll::Ready(Ok(Next::There(there)));
                }
                // A new read gets the full time.
                self.deadline.renew();
                self.begin(file, range.clone());
            }
            let chunk = ready!(self.poll_ahead(context))?;
            if chunk.bytes.is_empty() {
                return Poll::Ready(Ok(Next::Chunk(Part::default())));
            }
            // The threads read through the page cache, so sendfile(2) can send the same bytes to other
            // clients.
            if self.backend == NetworkBackend::Auto {
                file.saw_resident(&chunk.range(), self.readers.clock.seconds());
            }
            self.take(Rc::clone(file), chunk);
        }
        self.read_on(range.end);
        let part = self
            .chunk
            .as_ref()
            .map(|(_, chunk)| chunk.part(range.start, bytes_max));
        Poll::Ready(Ok(Next::Chunk(part.unwrap_or_default())))
    }

    /// Applies the disk's deadline to a system call that reads and sends.
    ///
    /// # Errors
    /// `TimedOut` if the call is pending and the time is up.
    pub(super) fn limit<T>(
        &mut self,
        polled: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        self.is_waiting = polled.is_pending();
        let limited = ready!(self.deadline.limit(polled, context));
        self.is_waiting = false;
        self.deadline.renew();
        Poll::Ready(limited.unwrap_or_else(|late: Late| Err(late.into())))
    }

    fn poll_ahead(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Chunk>> {
        let Some(ahead) = &mut self.ahead else {
            return Poll::Ready(Err(io::ErrorKind::Other.into()));
        };
        let polled = ahead.reading.as_mut().poll(context);
        let read = ready!(self.limit(polled, context));
        self.ahead = None;
        Poll::Ready(read)
    }

    fn take(&mut self, file: Rc<FileEntry>, chunk: Chunk) {
        self.pace.since = self.readers.clock.now();
        self.chunk = Some((file, chunk));
    }

    /// Drops the present chunk if it has no bytes from `offset` of `file` on.
    pub(crate) fn drop_chunk_without(&mut self, file: &Rc<FileEntry>, offset: u64) {
        let is_over = |(of, chunk): &mut (Rc<FileEntry>, Chunk)| {
            !Rc::ptr_eq(of, file) || chunk.from(offset).is_empty()
        };
        if let Some((_, chunk)) = self.chunk.take_if(is_over) {
            let now = self.readers.clock.latest();
            self.pace.measure(chunk.bytes.len(), now);
        }
    }

    /// Begins to read the bytes after the present chunk and before `end`, if there is memory for them.
    fn read_on(&mut self, end: u64) {
        let Some((file, chunk)) = &self.chunk else {
            return;
        };
        let begin = chunk.range().end;
        // How much to read is unknown before the user has taken one chunk.
        if !self.backend.reads_elsewhere()
            || !self.pace.is_known()
            || self.ahead.is_some()
            || begin >= end
            || !self.readers.accounts.has_memory()
        {
            return;
        }
        let next = begin..(begin + limits::CHUNK_BYTES_PROBED as u64).min(end);
        let Readers {
            clock, last_loss, ..
        } = &*self.readers;
        // sendfile(2) will send these bytes from the page cache, so reading them ahead would be wasted.
        let is_there = || file.end_of_resident(&next, clock.seconds(), last_loss) == next.end;
        if self.backend == NetworkBackend::Auto && is_there() {
            return;
        }
        let file = Rc::clone(file);
        self.begin(&file, begin..end);
    }

    /// Begins to read the first part of `range`.
    pub(crate) fn begin(&mut self, file: &Rc<FileEntry>, range: Range<u64>) {
        let left = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let size = match self.readers.chunk_bytes {
            0 => self.pace.chunk_bytes(range.start, left),
            fixed => fixed,
        };
        let reader = self.readers.of(self.backend);
        let length = self.readers.accounts.within_memory(left.min(size));
        self.ahead = Some(ChunkAhead {
            file: Rc::clone(file),
            offset: range.start,
            reading: reader.read(file, range.start, length, self.client),
        });
    }

    fn is_reading(&self, file: &Rc<FileEntry>, offset: u64) -> bool {
        let is_it = |ahead: &ChunkAhead| Rc::ptr_eq(&ahead.file, file) && ahead.offset == offset;
        self.ahead.as_ref().is_some_and(is_it)
    }
}

impl ChunkPace {
    /// Notes that a chunk of `length` bytes was taken by `now`.
    fn measure(&mut self, length: usize, now: Nanos) {
        let took = u128::from(now.saturating_sub(self.since).max(1));
        let in_time = length as u128 * u128::from(CHUNK_TIME) / took;
        let bytes = usize::try_from(in_time).unwrap_or(usize::MAX);
        self.bytes = bytes.clamp(limits::CHUNK_BYTES_MIN, limits::CHUNK_BYTES_MAX);
    }

    /// Whether the pace is known, because the user has taken a chunk.
    fn is_known(&self) -> bool {
        self.bytes > 0
    }

    /// The size of the next chunk, which begins at `offset`; at most `left` bytes are left. The chunk ends
    /// where a step ends, and does not leave a small rest.
    fn chunk_bytes(&self, offset: u64, left: usize) -> usize {
        if !self.is_known() {
            return limits::CHUNK_BYTES_FIRST;
        }
        if left < self.bytes.saturating_add(self.bytes / 2) {
            return left;
        }
        let step = limits::READ_AHEAD_STEP_BYTES;
        let over = (offset % step as u64) as usize + self.bytes;
        match self.bytes >= 2 * step {
            true => self.bytes - over % step,
            false => self.bytes,
        }
    }
}

/// A chunk has as much as the user takes in two seconds.
const CHUNK_TIME: Nanos = 2_000_000_000;

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::{Future, pending, poll_fn, ready};
    use std::task::Waker;

    use super::super::ChunkReader;
    use std::time::Duration;

    use super::*;
    use crate::testing::Site;

    /// A disk that answers at once or never.
    struct Fake {
        answers: bool,
        /// For each read: its offset, its length and its client.
        reads: RefCell<Vec<(u64, usize, u64)>>,
    }

    impl ChunkReader for Fake {
        fn read(&self, _: &Rc<FileEntry>, offset: u64, length: usize, client: u64) -> ChunkReading {
            self.reads.borrow_mut().push((offset, length, client));
            let left = usize::try_from(SIZE.saturating_sub(offset)).expect("it is small");
            let bytes = Bytes::from(vec![b'x'; length.min(left)]);
            match self.answers {
                true => Box::pin(ready(Ok(Chunk::new(offset, bytes)))),
                false => Box::pin(pending()),
            }
        }
    }

    /// The size of the file in these tests.
    const SIZE: u64 = 3 * limits::CHUNK_BYTES_MAX as u64;

    fn reader(answers: bool) -> (FileReader, Rc<Fake>, Rc<FileEntry>) {
        let site = Site::new("", &[]);
        let (readers, reads) = (site.worker().readers(), RefCell::default());
        let fake = Rc::new(Fake { answers, reads });
        let made = (
            NetworkBackend::IoUring,
            Rc::clone(&fake) as Rc<dyn ChunkReader>,
        );
        readers.made.borrow_mut().push(made);
        let file = std::fs::File::open("/proc/self/exe").expect("a test is a file");
        let file = FileEntry::from_file(file, b"/test").expect("a regular file");
        let deadline = site.worker().file_deadline(0);
        let reader = FileReader::new(readers, NetworkBackend::IoUring, 7, deadline);
        (reader, fake, file)
    }

    async fn next(reader: &mut FileReader, file: &Rc<FileEntry>, at: u64) -> io::Result<usize> {
        let next = poll_fn(|context| {
            let nothing = || Ok(None::<()>);
            let polled = reader.poll_next(file, &(at..SIZE), 1 << 30, nothing, context);
            polled.map_ok(|next| match next {
                Next::Chunk(part) => part.bytes.len(),
                Next::There(()) => 0,
            })
        });
        next.await
    }

    #[tokio::test(flavor = "local")]
    async fn what_comes_next_is_read_while_what_is_there_is_taken() {
        let (mut reader, disk, file) = reader(true);
        let reads = || -> Vec<(u64, u64)> {
            let reads = disk.reads.borrow();
            assert!(reads.iter().all(|(.., client)| *client == 7));
            reads
                .iter()
                .map(|(at, length, _)| (*at, at + *length as u64))
                .collect()
        };
        let first = next(&mut reader, &file, 0).await.expect("it is read");
        assert_eq!(first, limits::CHUNK_BYTES_FIRST);
        // The user took only a part of the chunk: the rest is still there, and the pace is not known.
        let rest = next(&mut reader, &file, 10).await.expect("it is there");
        assert_eq!((rest, reads().len()), (first - 10, 1));
        let mut at = first as u64;
        while at < SIZE {
            let bytes = next(&mut reader, &file, at).await.expect("it is read");
            let reads = reads();
            assert_eq!(reads.iter().filter(|read| read.0 == at).count(), 1);
            at += bytes as u64;
            let ahead = reads.last().expect("there were some");
            assert_eq!(ahead.0, if at < SIZE { at } else { ahead.0 });
        }
        // Each byte was read once.
        assert!(reads().windows(2).all(|pair| pair[0].1 == pair[1].0));
    }

    #[tokio::test(flavor = "local")]
    async fn a_disk_that_does_not_answer_is_given_up() {
        let (mut reader, _, file) = reader(false);
        let clock = Rc::clone(&reader.readers.clock);
        let mut waits = std::pin::pin!(next(&mut reader, &file, 0));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut context).is_pending());
        clock.skip(Duration::from_secs(1));
        let error = waits.await.expect_err("nothing comes");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let words = error.to_string();
        assert!(words.contains("has not answered for 0 s (server.max-file-wait)"));
    }

    const STEP: usize = limits::READ_AHEAD_STEP_BYTES;
    const PLENTY: usize = 1 << 40;

    /// The pace of a client that took `length` bytes in `milliseconds`.
    fn pace(length: usize, milliseconds: u64) -> ChunkPace {
        let mut pace = ChunkPace::default();
        pace.measure(length, milliseconds * 1_000_000);
        pace
    }

    #[test]
    fn a_chunk_is_what_the_client_takes_in_two_seconds() {
        assert_eq!(pace(128 * 1024, 4000).chunk_bytes(0, PLENTY), 64 * 1024);
        assert_eq!(pace(128 * 1024, 1000).chunk_bytes(0, PLENTY), 256 * 1024);
        assert_eq!(
            pace(1, 9_000).chunk_bytes(0, PLENTY),
            limits::CHUNK_BYTES_MIN
        );
        let fast = pace(limits::CHUNK_BYTES_FIRST, 0);
        assert_eq!(fast.chunk_bytes(0, PLENTY), limits::CHUNK_BYTES_MAX);
    }

    #[test]
    fn a_client_gets_little_before_it_has_taken_anything() {
        let unknown = ChunkPace::default();
        assert!(!unknown.is_known());
        for offset in [0, 1 << 30] {
            let bytes = unknown.chunk_bytes(offset, PLENTY);
            assert_eq!(bytes, limits::CHUNK_BYTES_FIRST);
        }
    }

    #[test]
    fn chunks_end_where_steps_end_and_leave_no_small_rest() {
        let fast = pace(limits::CHUNK_BYTES_FIRST, 0);
        let first = limits::CHUNK_BYTES_FIRST;
        let bytes = fast.chunk_bytes(first as u64, PLENTY);
        assert_eq!((first + bytes) % STEP, 0);
        assert!(bytes > limits::CHUNK_BYTES_MAX - STEP);
        let rest = limits::CHUNK_BYTES_MAX / 2 * 3 - 1;
        assert_eq!(fast.chunk_bytes(first as u64, rest), rest);
        assert!(fast.chunk_bytes(first as u64, rest + 1) < rest);
    }
}
