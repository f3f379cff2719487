//! Sends from files for one connection, by the network backend of its settings.

use std::cell::RefMut;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;

use super::file_reader::{FileReader, Next};
use super::{NetworkBackend, SendResult, Stretch, gthread_sendfile, send_at_hand, write};
use crate::file_cache::FileEntry;
use crate::file_cache::read::read_at_once;
use crate::limits;
use crate::transport::ClientSocket;

/// The state of a connection that sends from files. Created when it is first needed.
pub(crate) struct Flight {
    reader: FileReader,
    call: Option<gthread_sendfile::Call>,
}

impl Flight {
    /// A connection whose reads from the disk `reader` does.
    pub(crate) fn new(reader: FileReader) -> Flight {
        Flight { reader, call: None }
    }

    /// Uses `bytes`, the first bytes of `file`, which were read when it was opened.
    pub(crate) fn give_first(&mut self, file: &Rc<FileEntry>, bytes: Bytes) {
        self.reader.give_first(file, bytes);
    }

    /// Sends what it can of `stretch` with one system call. Uses `scratch` to look into the page cache, and
    /// overwrites it.
    ///
    /// # Errors
    /// Those of the file or the socket; `TimedOut` if the disk did not answer for `server.max-file-wait`.
    pub(crate) fn send<'s>(
        &mut self,
        backend: NetworkBackend,
        socket: &mut ClientSocket,
        stretch: &Stretch<'_>,
        scratch: impl FnOnce() -> RefMut<'s, Box<[u8]>>,
        now_s: u32,
        context: &mut Context<'_>,
    ) -> io::Result<SendResult> {
        if backend.waits() {
            return send_at_hand(backend, socket, stretch, context);
        }
        if backend == NetworkBackend::GthreadSendfile {
            let (call, reader) = (&mut self.call, &mut self.reader);
            return gthread_sendfile::send(call, reader, socket, stretch, context);
        }
        let bytes_max = stretch.file_bytes_max();
        if bytes_max == 0 {
            // The bandwidth limit allows only a part of the head now.
            return write::send(socket, stretch.prefix, &[], context);
        }
        let look = || match backend {
            NetworkBackend::Auto => look(stretch, &mut scratch(), now_s),
            _ => Ok(None),
        };
        let (file, range) = (stretch.file, &stretch.range);
        match self.reader.poll_next(file, range, bytes_max, look, context) {
            Poll::Pending => Ok(SendResult::WaitsForDisk),
            Poll::Ready(Ok(Next::There(end))) if end > range.start => {
                send_at_hand(backend, socket, &stretch.up_to(end), context)
            }
            Poll::Ready(Ok(Next::Chunk(part))) if !part.bytes.is_empty() => {
                part.send(socket, stretch.prefix, context)
            }
            Poll::Ready(Ok(_)) => Ok(SendResult::Truncated),
            Poll::Ready(Err(error)) => Err(error),
        }
    }
}

/// The end of the part of the stretch that is in the page cache, from its start. If that is the start itself,
/// the file ends there. `None`: its first byte is not in the page cache.
fn look(stretch: &Stretch<'_>, scratch: &mut [u8], now_s: u32) -> io::Result<Option<u64>> {
    let (file, start) = (stretch.file, stretch.range.start);
    if let Some(end) = stretch.end_of_resident(now_s) {
        return Ok(Some(end));
    }
    let found = look_at_block(file, &stretch.range, scratch)?;
    match found {
        Some(count) => file.saw_resident(&(start..start + count), now_s),
        None => file.missed_resident(start, now_s, &stretch.readers.last_loss),
    }
    Ok(found.map(|count| start + count))
}

/// How many bytes from the start of `range` are in the page cache, up to the end of a block; that block then
/// counts as found. 0: the file ends there. `None`: the first byte is not in the page cache.
///
/// Only a read can tell. Its bytes go into `scratch`, which stays in the processor's cache, and are dropped;
/// sendfile(2) sends the same pages. So a client that does not read holds no memory, while a copy of the
/// block would stay until it reads.
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
