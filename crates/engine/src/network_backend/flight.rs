//! What a connection has under way of the files it sends: a chunk that is being sent, and the next one,
//! which is being read meanwhile.

use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::chunk::{Chunk, Part, has_memory, within_memory};
use super::write;
use super::{NetworkBackend, Reading, Sent, Stretch, at_hand, gthread_sendfile, send_at_hand};
use crate::file_cache::FileEntry;
use crate::file_cache::read::read_at_once;
use crate::ledger::Nanos;
use crate::limits;
use crate::transport::Transport;
use crate::worker::Worker;

/// The state of a connection that sends from files. Made when it is first needed.
#[derive(Default)]
pub(crate) struct Flight {
    chunk: Option<(Rc<FileEntry>, Chunk)>,
    ahead: Option<Ahead>,
    call: Option<gthread_sendfile::Call>,
    pace: Pace,
    /// The chunk came from the disk, so the next one will.
    is_cold: bool,
    /// The second in which the disk must have answered; 0: nothing is waited for.
    pub due_s: u32,
}

/// A chunk that is being read.
struct Ahead {
    file: Rc<FileEntry>,
    offset: u64,
    reading: Reading,
}

/// How fast the client takes what it gets, so that a chunk is what it takes in two seconds.
#[derive(Clone, Copy, Default)]
struct Pace {
    /// When the present chunk began to be sent.
    since: Nanos,
    /// The size of the next one; 0: nothing is known yet.
    bytes: usize,
}

impl Flight {
    /// The first bytes of `file` were read with its being opened.
    pub fn give_first(&mut self, file: &Rc<FileEntry>, bytes: Bytes, now: Nanos) {
        self.take(Rc::clone(file), Chunk::new(0, bytes), now);
        self.is_cold = true;
    }

    fn take(&mut self, file: Rc<FileEntry>, chunk: Chunk, now: Nanos) {
        self.pace.since = now;
        self.chunk = Some((file, chunk));
    }

    /// Sends what it can of `stretch`, by one system call.
    ///
    /// # Errors
    /// Those of the file or the socket.
    pub fn send(
        &mut self,
        backend: NetworkBackend,
        worker: &Rc<Worker>,
        transport: &mut Transport,
        stretch: &Stretch<'_>,
        context: &mut Context<'_>,
    ) -> io::Result<Sent> {
        if let Some(part) = self.part_at(stretch, worker.clock().latest()) {
            let sent = part.send(transport, stretch.prefix, context)?;
            self.read_on(backend, worker, stretch);
            return Ok(sent);
        }
        let sent = self.send_from_file(backend, worker, transport, stretch, context)?;
        if !matches!(sent, Sent::WaitsForDisk) {
            self.due_s = 0;
        }
        Ok(sent)
    }

    fn send_from_file(
        &mut self,
        backend: NetworkBackend,
        worker: &Rc<Worker>,
        transport: &mut Transport,
        stretch: &Stretch<'_>,
        context: &mut Context<'_>,
    ) -> io::Result<Sent> {
        match backend {
            NetworkBackend::Write | NetworkBackend::Writev | NetworkBackend::LinuxSendfile => {
                send_at_hand(backend, transport, stretch, context)
            }
            NetworkBackend::GthreadSendfile => {
                gthread_sendfile::send(&mut self.call, transport, stretch, context)
            }
            NetworkBackend::Auto => self.send_what_is_there(worker, transport, stretch, context),
            NetworkBackend::GthreadAio
            | NetworkBackend::PosixAio
            | NetworkBackend::LinuxAioSendfile
            | NetworkBackend::IoUring => {
                self.read_and_send(backend, worker, transport, stretch, context)
            }
        }
    }

    /// Inline what is in the page cache, and a chunk read elsewhere if it is not.
    fn send_what_is_there(
        &mut self,
        worker: &Rc<Worker>,
        transport: &mut Transport,
        stretch: &Stretch<'_>,
        context: &mut Context<'_>,
    ) -> io::Result<Sent> {
        const AUTO: NetworkBackend = NetworkBackend::Auto;
        if stretch.file_bytes_max() == 0 {
            // A limit of bandwidth has room for a part of the head alone.
            return write::send(transport, stretch.prefix, &[], context);
        }
        if self.is_reading(stretch) {
            return self.read_and_send(AUTO, worker, transport, stretch, context);
        }
        let now_s = worker.clock().seconds();
        if let Some(seen) = at_hand(AUTO, stretch, now_s) {
            return send_at_hand(AUTO, transport, &seen, context);
        }
        let start = stretch.range.start;
        match look_at_block(stretch.file, &stretch.range, &mut worker.receive_buffer())? {
            Some(0) => Ok(Sent::Truncated),
            Some(count) => {
                let end = start + count;
                stretch.file.saw_resident(&(start..end), now_s);
                self.is_cold = false;
                send_at_hand(AUTO, transport, &stretch.up_to(end), context)
            }
            None => {
                stretch.file.missed_resident(start, now_s);
                self.read_and_send(AUTO, worker, transport, stretch, context)
            }
        }
    }

    /// Waits for the chunk that is to be sent, which is asked for if nobody has.
    fn read_and_send(
        &mut self,
        backend: NetworkBackend,
        worker: &Rc<Worker>,
        transport: &mut Transport,
        stretch: &Stretch<'_>,
        context: &mut Context<'_>,
    ) -> io::Result<Sent> {
        if !self.is_reading(stretch) {
            self.chunk = None;
            self.begin(backend, worker, stretch, stretch.range.start);
        }
        let Some(ahead) = &mut self.ahead else {
            return Err(io::ErrorKind::Other.into());
        };
        let Poll::Ready(read) = ahead.reading.as_mut().poll(context) else {
            return Ok(Sent::WaitsForDisk);
        };
        let file = Rc::clone(&ahead.file);
        self.ahead = None;
        self.due_s = 0;
        let chunk = read?;
        if chunk.bytes.is_empty() {
            return Ok(Sent::Truncated);
        }
        if backend == NetworkBackend::Auto {
            file.saw_resident(&chunk.range(), worker.clock().seconds());
        }
        let now = worker.clock().now();
        self.take(file, chunk, now);
        self.is_cold = true;
        let part = self.part_at(stretch, now).unwrap_or_default();
        let sent = part.send(transport, stretch.prefix, context)?;
        self.read_on(backend, worker, stretch);
        Ok(sent)
    }

    /// What the chunk at hand has of the stretch. Gives a chunk up that has nothing.
    fn part_at(&mut self, stretch: &Stretch<'_>, now: Nanos) -> Option<Part<'_>> {
        let (file, chunk) = self.chunk.as_ref()?;
        if !Rc::ptr_eq(file, stretch.file) || chunk.from(stretch.range.start).is_empty() {
            self.pace.measure(chunk.bytes.len(), now);
            self.chunk = None;
            return None;
        }
        let (_, chunk) = self.chunk.as_ref()?;
        Some(chunk.part(stretch.range.start, stretch.file_bytes_max()))
    }

    /// Begins to read what comes behind the chunk at hand, if there is memory for it.
    fn read_on(&mut self, backend: NetworkBackend, worker: &Rc<Worker>, stretch: &Stretch<'_>) {
        let Some((file, chunk)) = &self.chunk else {
            return;
        };
        let end = chunk.range().end;
        // Nobody knows how much a client wants who has not taken anything yet.
        let is_wanted = self.is_cold
            && self.pace.is_known()
            && self.ahead.is_none()
            && end < stretch.range.end
            && has_memory();
        if !is_wanted || !backend.reads_elsewhere() {
            return;
        }
        let next = end..(end + limits::CHUNK_BYTES_PROBED as u64).min(stretch.range.end);
        let now_s = worker.clock().seconds();
        if backend == NetworkBackend::Auto && file.end_of_resident(&next, now_s) == next.end {
            return;
        }
        self.begin(backend, worker, stretch, end);
    }

    fn begin(
        &mut self,
        backend: NetworkBackend,
        worker: &Rc<Worker>,
        stretch: &Stretch<'_>,
        offset: u64,
    ) {
        let left = usize::try_from(stretch.range.end - offset).unwrap_or(usize::MAX);
        let size = match worker.process().io_chunk_bytes {
            0 => self.pace.chunk_bytes(offset, left),
            fixed => fixed,
        };
        let reader = worker.readers().of(backend, worker);
        self.ahead = Some(Ahead {
            file: Rc::clone(stretch.file),
            offset,
            reading: reader.read(
                stretch.file,
                offset,
                within_memory(left.min(size)),
                stretch.client,
            ),
        });
    }

    fn is_reading(&self, stretch: &Stretch<'_>) -> bool {
        self.ahead.as_ref().is_some_and(|ahead| {
            Rc::ptr_eq(&ahead.file, stretch.file) && ahead.offset == stretch.range.start
        })
    }
}

impl Pace {
    /// A chunk of `length` bytes was sent by `now`.
    fn measure(&mut self, length: usize, now: Nanos) {
        let took = u128::from(now.saturating_sub(self.since).max(1));
        let in_time = length as u128 * u128::from(CHUNK_TIME) / took;
        let bytes = usize::try_from(in_time).unwrap_or(usize::MAX);
        self.bytes = bytes.clamp(limits::CHUNK_BYTES_MIN, limits::CHUNK_BYTES_MAX);
    }

    /// Whether the client has taken a chunk.
    fn is_known(&self) -> bool {
        self.bytes > 0
    }

    /// The size of the next chunk, which begins at `offset` and has `left` bytes before it at most. It ends
    /// where a step ends, and leaves no small rest.
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

/// What a client should take for a chunk: two seconds.
const CHUNK_TIME: Nanos = 2_000_000_000;

/// How many bytes from the start of `range` on the page cache has, at most to the end of a block, which then counts
/// as seen; 0 is the end of the file. `None`: not even the first one.
///
/// Only a read tells that. Its bytes are dropped: they go into `scratch`, which stays in the processor's cache, and
/// sendfile(2) sends the same pages. A client that reads nothing holds no memory then, where a copy of the block
/// would stay as long as it does.
fn look_at_block(
    file: &FileEntry,
    range: &Range<u64>,
    scratch: &mut [u8],
) -> io::Result<Option<u64>> {
    let block = limits::CHUNK_BYTES_PROBED as u64;
    let end = range.end.min((range.start / block + 1) * block);
    let mut offset = range.start;
    while offset < end {
        let length = usize::try_from(end - offset).unwrap_or(usize::MAX);
        let length = length.min(scratch.len());
        match read_at_once(file, &mut scratch[..length], offset)? {
            None if offset == range.start => return Ok(None),
            None | Some(0) => break,
            Some(count) => offset += count as u64,
        }
    }
    Ok(Some(offset - range.start))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: usize = limits::READ_AHEAD_STEP_BYTES;
    const PLENTY: usize = 1 << 40;

    /// The pace of a client that takes `length` bytes in so many milliseconds.
    fn pace(length: usize, milliseconds: u64) -> Pace {
        let mut pace = Pace::default();
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
    fn nobody_gets_much_who_has_not_taken_anything() {
        let unknown = Pace::default();
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
