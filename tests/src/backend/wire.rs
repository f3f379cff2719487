//! The bytes of a connection, read in the portions a protocol asks for.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use rustix::net::{RecvFlags, recv};

use crate::stream::Stream;

/// A connection and what was received but not yet asked for.
///
/// The last bytes that came on a unix socket are left in its queue, although `buffer` has a copy: a
/// unix socket is reset only when it is closed with unread bytes.
pub(super) struct Wire {
    stream: Stream,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were handed out.
    used: usize,
    /// Bytes at the end of `buffer` that are in the queue of the unix socket as well.
    unread: usize,
}

impl Wire {
    pub(super) fn new(stream: Stream) -> Wire {
        Wire {
            stream,
            buffer: Vec::new(),
            used: 0,
            unread: 0,
        }
    }

    /// Exactly `count` bytes.
    pub(super) fn take(&mut self, count: usize) -> io::Result<Vec<u8>> {
        while self.held().len() < count {
            self.fill()?;
        }
        let bytes = self.held()[..count].to_vec();
        self.used += count;
        Ok(bytes)
    }

    /// What is there, `limit` bytes at most; waits for the first one.
    pub(super) fn take_some(&mut self, limit: usize) -> io::Result<Vec<u8>> {
        if self.held().is_empty() {
            self.fill()?;
        }
        let count = self.held().len().min(limit);
        self.take(count)
    }

    /// All up to and with `end`.
    pub(super) fn take_through(&mut self, end: &[u8]) -> io::Result<Vec<u8>> {
        loop {
            let found = crate::response::find(self.held(), end);
            match found {
                Some(at) => return self.take(at + end.len()),
                None => self.fill()?,
            }
        }
    }

    /// Sends all of it.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    pub(super) fn shutdown(&mut self, how: Shutdown) {
        self.read_rest();
        // The other side may have gone already.
        let _ = self.stream.shutdown(how);
    }

    /// From now on closing it is a reset.
    pub(super) fn reset_on_close(&mut self) {
        // What is unread stays unread.
        self.unread = 0;
        self.stream.reset_on_close();
    }

    /// Reads until the other side closes, for `limit` at most; whether it did. What it sent is
    /// dropped.
    pub(super) fn drain(&mut self, limit: Duration) -> bool {
        self.stream.set_read_timeout(limit);
        loop {
            self.used = self.buffer.len();
            match self.fill() {
                Ok(()) => {}
                Err(error) => return !crate::stream::is_timeout(&error),
            }
        }
    }

    fn held(&self) -> &[u8] {
        &self.buffer[self.used..]
    }

    /// Receives more, at least a byte.
    fn fill(&mut self) -> io::Result<()> {
        self.buffer.drain(..self.used);
        self.used = 0;
        self.read_rest();
        let mut bytes = [0; 64 * 1024];
        let count = match &self.stream {
            Stream::Tcp(_) => self.stream.read(&mut bytes)?,
            Stream::Unix(stream) => {
                self.unread = recv(stream, &mut bytes, RecvFlags::PEEK)?.0;
                self.unread
            }
        };
        match count {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            count => {
                self.buffer.extend_from_slice(&bytes[..count]);
                Ok(())
            }
        }
    }

    /// Empties the queue of the unix socket of what `buffer` has already.
    fn read_rest(&mut self) {
        let mut rest = vec![0; std::mem::take(&mut self.unread)];
        self.stream
            .read_exact(&mut rest)
            .expect("these bytes were seen in the queue");
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.read_rest();
    }
}
