//! Reads a connection in the portions that a protocol needs.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use rustix::net::{RecvFlags, recv};

use crate::stream::Stream;

/// A connection, and what was received but not taken yet.
///
/// The last byte that arrived on a unix socket stays in its queue, although `buffer` has a copy: closing a
/// unix socket resets the connection only if it has unread bytes. The others are read: to the kernel, a process that
/// reads nothing has no time for the connection.
pub(super) struct Wire {
    stream: Stream,
    buffer: Vec<u8>,
    /// How many bytes of `buffer` were taken.
    used: usize,
    /// How many bytes at the end of `buffer` are also still in the queue of the unix socket.
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

    /// Takes exactly `count` bytes.
    pub(super) fn take(&mut self, count: usize) -> io::Result<Vec<u8>> {
        while self.held().len() < count {
            self.fill()?;
        }
        let bytes = self.held()[..count].to_vec();
        self.used += count;
        Ok(bytes)
    }

    /// Takes what is there, up to `limit` bytes; waits for the first one.
    pub(super) fn take_some(&mut self, limit: usize) -> io::Result<Vec<u8>> {
        if self.held().is_empty() {
            self.fill()?;
        }
        let count = self.held().len().min(limit);
        self.take(count)
    }

    /// Takes everything up to and including `end`.
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
        // The other side may have closed first.
        let _ = self.stream.shutdown(how);
    }

    /// Makes closing the connection a reset.
    pub(super) fn reset_on_close(&mut self) {
        // The unread bytes stay in the queue.
        self.unread = 0;
        self.stream.reset_on_close();
    }

    /// Reads and drops everything until the other side closes, but no longer than `limit`. Returns whether it
    /// closed.
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

    /// Receives at least one byte.
    fn fill(&mut self) -> io::Result<()> {
        self.buffer.drain(..self.used);
        self.used = 0;
        self.read_rest();
        let mut bytes = [0; 64 * 1024];
        let count = match &self.stream {
            Stream::Tcp(_) => self.stream.read(&mut bytes)?,
            Stream::Unix(stream) => {
                let count = recv(stream, &mut bytes, RecvFlags::PEEK)?.0;
                self.unread = count.min(1);
                let mut read = vec![0; count - self.unread];
                self.stream.read_exact(&mut read)?;
                count
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

    /// Removes the bytes that `buffer` has already from the queue of the unix socket.
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
