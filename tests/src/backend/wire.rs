//! The bytes of a connection, read in the portions a protocol asks for.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::time::Duration;

use crate::stream::Stream;

/// A connection and what was received but not yet asked for.
pub(super) struct Wire {
    stream: Stream,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were handed out.
    used: usize,
}

impl Wire {
    pub(super) fn new(stream: Stream) -> Wire {
        Wire {
            stream,
            buffer: Vec::new(),
            used: 0,
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

    pub(super) fn shutdown(&self, how: Shutdown) {
        // The other side may have gone already.
        let _ = self.stream.shutdown(how);
    }

    /// From now on closing it is a reset.
    pub(super) fn reset_on_close(&self) {
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
        let mut bytes = [0; 64 * 1024];
        match self.stream.read(&mut bytes)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            count => {
                self.buffer.extend_from_slice(&bytes[..count]);
                Ok(())
            }
        }
    }
}
