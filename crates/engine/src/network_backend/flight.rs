//! What a connection has under way of the files it sends, by the backend of its settings.

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

/// The state of a connection that sends from files. Made when it is first needed.
pub(crate) struct Flight {
    reader: FileReader,
    call: Option<gthread_sendfile::Call>,
}

impl Flight {
    /// What the disk has to be asked for is read by `reader`.
    pub(crate) fn new(reader: FileReader) -> Flight {
        Flight { reader, call: None }
    }

    /// The first bytes of `file` were read with its being opened.
    pub(crate) fn give_first(&mut self, file: &Rc<FileEntry>, bytes: Bytes) {
        self.reader.give_first(file, bytes);
    }

    /// Sends what it can of `stretch`, by one system call. `scratch` is borrowed to look at the page cache, and
    /// overwritten.
    ///
    /// # Errors
    /// Those of the file or the socket; `TimedOut` if the disk has not answered for `server.max-file-wait`.
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
            // A limit of bandwidth has room for a part of the head alone.
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

/// How far the page cache has the stretch, from its start on; the start itself is the end of the file. `None`: not even
/// the first byte.
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
