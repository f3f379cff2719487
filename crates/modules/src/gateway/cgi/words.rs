//! Copies a program's standard error to the error log, line by line.

use std::task::{Context, Poll};

use petrel_engine::log::LogHandle;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::unix::pipe;

use crate::gateway::limits;

/// The reading end of a program's standard error. Output beyond [`limits::STDERR_LOGGED_BYTES_MAX`] is
/// counted only; beyond [`limits::STDERR_BYTES_MAX`] the pipe is closed, so that the program's writes fail.
pub(super) struct Words {
    pipe: Option<pipe::Receiver>,
    log: LogHandle,
    /// The program's name.
    name: String,
    line: Vec<u8>,
    bytes: u64,
}

impl Words {
    pub(crate) fn new(pipe: Option<pipe::Receiver>, log: LogHandle, name: String) -> Words {
        Words {
            pipe,
            log,
            name,
            line: Vec::new(),
            bytes: 0,
        }
    }

    /// Logs what has been written. The task is woken when there is more.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) {
        let mut bytes = [0; READ_BYTES];
        for _ in 0..READS_PER_TURN {
            let Some(pipe) = &mut self.pipe else { return };
            let mut buffer = ReadBuf::new(&mut bytes);
            match std::pin::Pin::new(pipe).poll_read(context, &mut buffer) {
                Poll::Pending => return,
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {
                    let count = buffer.filled().len();
                    self.take(bytes.get(..count).unwrap_or_default());
                }
                Poll::Ready(_) => self.pipe = None,
            }
        }
        context.waker().wake_by_ref();
    }

    /// Called when the program has ended: logs the rest of its output, without waiting for output of its
    /// children.
    pub(crate) fn finish(mut self) {
        let mut bytes = [0; READ_BYTES];
        while let Some(pipe) = &self.pipe
            && let Ok(count @ 1..) = pipe.try_read(&mut bytes)
        {
            self.take(bytes.get(..count).unwrap_or_default());
        }
        self.end_line();
        let dropped = self.bytes.saturating_sub(limits::STDERR_LOGGED_BYTES_MAX);
        if dropped > 0 {
            let name = self.name.escape_debug();
            self.log.error(format_args!(
                "(content) cgi: {name} wrote {dropped} bytes more to standard error, which were dropped"
            ));
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        let before = self.bytes;
        self.bytes += bytes.len() as u64;
        if self.bytes > limits::STDERR_BYTES_MAX {
            self.pipe = None;
        }
        let room = limits::STDERR_LOGGED_BYTES_MAX.saturating_sub(before);
        let room = usize::try_from(room).unwrap_or(usize::MAX).min(bytes.len());
        let mut rest = bytes.get(..room).unwrap_or_default();
        while let Some(end) = memchr::memchr(b'\n', rest) {
            self.line
                .extend_from_slice(rest.get(..end).unwrap_or_default());
            self.end_line();
            rest = rest.get(end + 1..).unwrap_or_default();
        }
        self.line.extend_from_slice(rest);
        if self.line.len() >= LINE_BYTES_MAX {
            self.end_line();
        }
    }

    fn end_line(&mut self) {
        let line = self.line.trim_ascii_end();
        if !line.is_empty() {
            let (name, line) = (self.name.escape_debug(), String::from_utf8_lossy(line));
            let line = line.escape_debug();
            self.log
                .error(format_args!("(content) cgi: {name} says: {line}"));
        }
        self.line.clear();
    }
}

const READ_BYTES: usize = 4096;

/// Reads in a row before other connections of the worker have their turn.
const READS_PER_TURN: u32 = 16;

/// A longer line is logged in pieces.
const LINE_BYTES_MAX: usize = 8192;
