//! Writes a compressed file into `deflate.cache-dir` with disk threads.
//!
//! One request of a worker writes a file; other requests for it compress it in the meantime on the way to
//! their clients. The bytes are passed to the threads in blocks, and the compressor waits when the threads
//! are slower.

use std::future::Future;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use petrel_engine::Exchange;
use petrel_engine::blocking::{self, FileDeadline, RunningJob};
use petrel_engine::body::{Body, Piece};
use petrel_engine::file_cache::{FileEntry, Uncached};
use petrel_engine::proto::accept::Coding;

use super::stored;
use crate::cache_dir::{CacheDir, NewFile, WriteTurn};

/// A compressed file that is being written. If this is dropped before the end, the file does not appear.
pub(super) struct Keeping {
    /// The content that it is made from.
    source: Piece,
    path: Vec<u8>,
    directory: Arc<CacheDir>,
    /// The time limit of the present job.
    deadline: FileDeadline,
    /// The bytes for the next job.
    bytes: Vec<u8>,
    file: WrittenFile,
    _turn: WriteTurn,
}

/// Where the new file is.
enum WrittenFile {
    /// With a job that creates it or writes to it.
    Away(RunningJob<io::Result<NewFile>>),
    /// With the job that renames it to its final name.
    Ending(RunningJob<io::Result<Uncached>>),
    /// Given up, or complete.
    Nowhere,
}

impl Keeping {
    /// Starts to write the compressed form of `source`. `None`: it cannot be kept, or another request is
    /// writing it.
    pub(crate) fn begin(
        exchange: &Exchange,
        directory: &Arc<CacheDir>,
        source: &Piece,
        coding: Coding,
    ) -> Option<Keeping> {
        let name = stored::name(exchange, source, coding)?;
        let path = directory.path_of(&name)?;
        let turn = directory.turn(&exchange.worker, &name, WRITE_BYTES)?;
        let at = Arc::clone(directory);
        let created = blocking::run(directory.origin(0), move || at.create(&name));
        Some(Keeping {
            source: source.clone(),
            path,
            directory: Arc::clone(directory),
            deadline: exchange.file_deadline(),
            bytes: Vec::new(),
            file: WrittenFile::Away(created),
            _turn: turn,
        })
    }

    /// The content that the file is made from.
    pub(crate) fn source(&self) -> &Piece {
        &self.source
    }

    /// Appends bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Waits until there is room for more bytes.
    ///
    /// # Errors
    /// An error of the file system; `TimedOut` if it does not answer.
    pub(crate) fn poll_room(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.bytes.len() >= WRITE_BYTES {
            let mut file = ready!(self.poll_file(context))?;
            let bytes = mem::take(&mut self.bytes);
            self.deadline.renew();
            let origin = self.directory.origin(bytes.len());
            self.file = WrittenFile::Away(blocking::run(origin, move || {
                file.write(&bytes)?;
                Ok(file)
            }));
        }
        Poll::Ready(Ok(()))
    }

    /// Renames the complete file to its final name, and makes a body of it.
    ///
    /// # Errors
    /// As [`Keeping::poll_room`].
    pub(crate) fn poll_end(
        &mut self,
        exchange: &mut Exchange,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Body>> {
        if let WrittenFile::Away(_) = self.file {
            let mut file = ready!(self.poll_file(context))?;
            let (bytes, modified) = (mem::take(&mut self.bytes), stored::modified(&self.source));
            self.deadline.renew();
            let origin = self.directory.origin(bytes.len());
            let path = self.path.clone();
            self.file = WrittenFile::Ending(blocking::run(origin, move || {
                file.write(&bytes)?;
                Uncached::new(file.publish(modified)?, &path)
            }));
        }
        let WrittenFile::Ending(job) = &mut self.file else {
            return Poll::Ready(Err(io::ErrorKind::NotFound.into()));
        };
        let polled = Pin::new(job).poll(context);
        let done = ready!(self.deadline.limit(polled, context))?;
        self.file = WrittenFile::Nowhere;
        let file = FileEntry::from_uncached(done??);
        // This worker has looked for the file before, and remembers that it was missing.
        exchange.forget_file(&self.path);
        stored::works(exchange);
        let body = stored::body_of(file, &self.source);
        Poll::Ready(body.ok_or(io::ErrorKind::NotFound.into()))
    }

    /// Waits for the job, which returns the file.
    fn poll_file(&mut self, context: &mut Context<'_>) -> Poll<io::Result<NewFile>> {
        let WrittenFile::Away(job) = &mut self.file else {
            return Poll::Ready(Err(io::ErrorKind::NotFound.into()));
        };
        let polled = Pin::new(job).poll(context);
        let done = ready!(self.deadline.limit(polled, context))?;
        self.file = WrittenFile::Nowhere;
        Poll::Ready(done?)
    }
}

/// How many bytes one job writes.
const WRITE_BYTES: usize = 256 * 1024;
