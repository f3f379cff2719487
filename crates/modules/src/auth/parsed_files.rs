//! Files of a worker, each parsed once for as long as it stays the same.
//!
//! The file cache reads them, a thread parses them: a file of a hundred thousand users would hold up the worker. What is
//! known of a file counts as long as its stat says the same, so that nothing is parsed again where nothing is cached
//! (`server.stat-cache-engine = "disable"`). Knows nothing of users.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::FutureExt as _;
use petrel_engine::Exchange;
use petrel_engine::blocking::{JobWaiter, NotDone, Origin, SharedJobs};
use petrel_engine::cold_files::status_of_error;
use petrel_engine::file_cache::{FileEntry, FileKind, FileStat, Symlinks};
use petrel_engine::module::{Outcome, Pending};
use petrel_engine::proto::status::Status;

use super::accounts::LeftOut;
use super::users::NoFile;

/// What a worker knows of files that a `T` is made of.
pub(super) struct ParsedFiles<T> {
    known: RefCell<HashMap<ParsedAs, KnownFile<T>, foldhash::fast::RandomState>>,
    parsing: SharedJobs<ParsedAs, ParsedFile<T>>,
}

/// A path, and what the content is read as.
type ParsedAs = (Rc<[u8]>, usize);

struct KnownFile<T> {
    file: ParsedFile<T>,
    /// The second in which it was parsed.
    at_s: u32,
}

/// What a thread makes of a file.
struct ParsedFile<T> {
    stat: FileStat,
    /// Another change would have another stat.
    is_settled: bool,
    content: Arc<T>,
    left_out: Option<Arc<LeftOut>>,
}

impl<T> Clone for ParsedFile<T> {
    fn clone(&self) -> ParsedFile<T> {
        ParsedFile {
            content: Arc::clone(&self.content),
            left_out: self.left_out.clone(),
            ..*self
        }
    }
}

impl<T> Default for ParsedFiles<T> {
    fn default() -> ParsedFiles<T> {
        ParsedFiles {
            known: RefCell::default(),
            parsing: SharedJobs::default(),
        }
    }
}

impl<T: Send + Sync + 'static> ParsedFiles<T> {
    /// What `parse` makes of the file at `path` as it is now; what it makes differs only by `form`.
    pub(super) fn read(
        exchange: &Exchange,
        path: &Rc<[u8]>,
        form: usize,
        parse: impl FnOnce(&[u8]) -> (T, Option<LeftOut>) + Send + 'static,
    ) -> Result<Arc<T>, NoFile> {
        let files = exchange.worker.belonging(ParsedFiles::<T>::default);
        let file = exchange.look_up(path, SYMLINKS).ok_or(NoFile::Cold)?;
        let key = (Rc::clone(path), form);
        let now_s = exchange.worker.clock().seconds();
        if let Some(content) = files.get(&key, &file, now_s) {
            return Ok(content);
        }
        let bytes = read(exchange, path, &file).map_err(|error| failed(exchange, path, &error))?;
        let bytes = bytes.ok_or(NoFile::Cold)?;
        let (stat, is_settled) = (*file.stat(), is_settled(exchange, &file));
        let work = move || {
            let (content, left_out) = parse(whole_lines(&bytes, is_settled));
            ParsedFile {
                stat,
                is_settled,
                content: Arc::new(content),
                left_out: left_out.map(Arc::new),
            }
        };
        let origin = Origin::PROCESSOR.for_client(exchange.connection.client_key());
        let waiter = files
            .parsing
            .join_next(key.clone(), FILES_MAX, origin, work);
        match waiter {
            Some(waiter) => Err(NoFile::Parsing(Box::new(Parsing { key, waiter }))),
            None => Err(failed(exchange, path, &ErrorKind::ResourceBusy.into())),
        }
    }

    /// What is known of `file`. What was parsed just behind a change counts for the second in which that was done: the
    /// file may have been changed again without another stat.
    fn get(&self, key: &ParsedAs, file: &FileEntry, now_s: u32) -> Option<Arc<T>> {
        let known = self.known.borrow();
        let known = known.get(key)?;
        let counts = known.file.is_settled || known.at_s == now_s;
        let is_same = file.kind() == FileKind::Regular && *file.stat() == known.file.stat;
        (counts && is_same).then(|| Arc::clone(&known.file.content))
    }
}

/// Waits for a thread that parses a file.
struct Parsing<T> {
    key: ParsedAs,
    waiter: JobWaiter<Result<ParsedFile<T>, NotDone>>,
}

impl<T: Send + Sync + 'static> Pending for Parsing<T> {
    fn poll(&mut self, exchange: &mut Exchange, context: &mut Context<'_>) -> Poll<Outcome> {
        let path = &self.key.0;
        let file = match ready!(self.waiter.poll_unpin(context)) {
            Ok(file) => file,
            Err(not_done) => {
                let outcome = match failed(exchange, path, &not_done.into()) {
                    NoFile::Failed(status) => exchange.answer(status),
                    NoFile::Cold | NoFile::Parsing(_) => Outcome::Cold,
                };
                return Poll::Ready(outcome);
            }
        };
        if let Some(left_out) = &file.left_out {
            let shown = String::from_utf8_lossy(path);
            exchange.log_common_error("authorize", format_args!("{shown:?}: {left_out}"));
        }
        let at_s = exchange.worker.clock().seconds();
        let files = exchange.worker.belonging(ParsedFiles::<T>::default);
        let known = KnownFile { file, at_s };
        files.known.borrow_mut().insert(self.key.clone(), known);
        Poll::Ready(Outcome::Cold)
    }
}

/// The content of `file`. `None`: it is on the disk.
fn read(exchange: &Exchange, path: &[u8], file: &Rc<FileEntry>) -> io::Result<Option<Bytes>> {
    match file.kind() {
        FileKind::Regular => exchange.read_whole(path, SYMLINKS, file, FILE_BYTES_MAX),
        FileKind::Denied => Err(ErrorKind::PermissionDenied.into()),
        FileKind::Missing | FileKind::NotADirectory => Err(ErrorKind::NotFound.into()),
        FileKind::Directory | FileKind::Special => Err(ErrorKind::InvalidInput.into()),
        FileKind::Failed(errno) => Err(errno.into()),
    }
}

/// Whether a program that writes `file` has written all of it.
fn is_settled(exchange: &Exchange, file: &FileEntry) -> bool {
    let now_s = exchange.worker.clock().wall_seconds();
    now_s.abs_diff(file.stat().modified_s) >= WRITTEN_S
}

/// A program may be at the last line of a file that is changed: a part of it could let a client in that the whole does
/// not.
fn whole_lines(content: &[u8], is_settled: bool) -> &[u8] {
    let end = match is_settled {
        true => content.len(),
        false => memchr::memrchr(b'\n', content).map_or(0, |newline| newline + 1),
    };
    content.get(..end).unwrap_or_default()
}

fn failed(exchange: &Exchange, path: &[u8], error: &io::Error) -> NoFile {
    let shown = String::from_utf8_lossy(path);
    let what = format_args!("users cannot be looked up: {shown:?}: {error}");
    exchange.log_common_error("authorize", what);
    NoFile::Failed(match error.kind() {
        ErrorKind::TimedOut => status_of_error(error),
        _ => Status::SERVICE_UNAVAILABLE,
    })
}

/// A program that writes a file has written all of it so many seconds later.
const WRITTEN_S: u64 = 2;

/// The files are the administrator's choice: rules about symlinks are about what URLs name.
const SYMLINKS: Symlinks = Symlinks::Follow;

/// A hundred thousand users.
const FILE_BYTES_MAX: usize = 16 << 20;

/// Files that a worker has parsed at the same time. A configuration names fewer.
const FILES_MAX: usize = 10_000;
