//! Parsed files of a worker. A file is parsed again only after it has changed.
//!
//! The file cache reads a file, and a thread parses it: a file of a hundred thousand users would hold up the
//! worker. The result counts as long as the file's stat is the same, so a file is not parsed for each request
//! where nothing is cached (`server.stat-cache-engine = "disable"`). Callers use [`AccountFile`]. This module
//! knows nothing of users.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::FutureExt as _;
use petrel_engine::Exchange;
use petrel_engine::blocking::{JobWaiter, NotDone, Origin, SharedJobs};
use petrel_engine::cause::{CauseCode, ErrorCause};
use petrel_engine::cold_files::cause_of_error;
use petrel_engine::file_cache::{FileEntry, FileKind, FileStat, Symlinks};
use petrel_engine::module::{Outcome, Pending};

use super::accounts::LeftOut;
use super::users::NoFile;

/// The files that a worker has parsed to a `T`.
struct ParsedFiles<T> {
    known: RefCell<HashMap<ParsedAs, KnownFile<T>, foldhash::fast::RandomState>>,
    parsing: SharedJobs<ParsedAs, ParsedFile<T>>,
}

/// A path, and the form that the file has.
type ParsedAs = (Rc<[u8]>, usize);

struct KnownFile<T> {
    file: ParsedFile<T>,
    /// The second in which it was parsed.
    at_s: u32,
}

/// The result of parsing a file.
struct ParsedFile<T> {
    stat: FileStat,
    /// The last change is so long ago that another one would change the stat.
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
    /// The result of `parse` for `file` at `path`, and whether it stays the same as long as this is the entry
    /// of the file.
    fn of_entry(
        exchange: &Exchange,
        path: &Rc<[u8]>,
        file: &Rc<FileEntry>,
        form: usize,
        parse: impl FnOnce(&[u8]) -> (T, Option<LeftOut>) + Send + 'static,
    ) -> Result<(Arc<T>, bool), NoFile> {
        let files = exchange.worker.belonging(ParsedFiles::<T>::default);
        let key = (Rc::clone(path), form);
        let now_s = exchange.worker.clock().seconds();
        if let Some(known) = files.get(&key, file, now_s) {
            return Ok(known);
        }
        let bytes = read(exchange, path, file).map_err(|error| failed(exchange, path, &error))?;
        let bytes = bytes.ok_or(NoFile::Cold)?;
        let (stat, is_settled) = (*file.stat(), is_settled(exchange, file));
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

    /// The result for `file`, if it still counts, and whether it is settled. A file that was parsed right
    /// after a change counts in that second alone: it may have changed again without another stat.
    fn get(&self, key: &ParsedAs, file: &FileEntry, now_s: u32) -> Option<(Arc<T>, bool)> {
        let known = self.known.borrow();
        let known = known.get(key)?;
        let counts = known.file.is_settled || known.at_s == now_s;
        let is_same = file.kind() == FileKind::Regular && *file.stat() == known.file.stat;
        (counts && is_same).then(|| (Arc::clone(&known.file.content), known.file.is_settled))
    }
}

/// A file that one set of settings names, as it was parsed last.
pub(super) struct AccountFile<T> {
    path: Rc<[u8]>,
    form: usize,
    /// The entry in the file cache that it was parsed from. As long as the cache is sure of that entry, the
    /// file has not changed.
    latest: RefCell<Option<(Weak<FileEntry>, Arc<T>)>>,
}

impl<T: Send + Sync + 'static> AccountFile<T> {
    /// The file at `path`. What it comes to may depend on `form` and on nothing else.
    pub(super) fn new(path: Rc<[u8]>, form: usize) -> AccountFile<T> {
        AccountFile {
            path,
            form,
            latest: RefCell::default(),
        }
    }

    /// The result of `parse` for the file as it is now.
    pub(super) fn read(
        &self,
        exchange: &Exchange,
        parse: impl FnOnce(&[u8]) -> (T, Option<LeftOut>) + Send + 'static,
    ) -> Result<Arc<T>, NoFile> {
        if let Some((entry, content)) = &*self.latest.borrow()
            && entry
                .upgrade()
                .is_some_and(|entry| exchange.is_sure_of(&entry))
        {
            return Ok(Arc::clone(content));
        }
        let file = exchange.look_up(&self.path, SYMLINKS);
        let file = file.ok_or(NoFile::Cold)?;
        let (content, is_settled) =
            ParsedFiles::of_entry(exchange, &self.path, &file, self.form, parse)?;
        let latest = is_settled.then(|| (Rc::downgrade(&file), Arc::clone(&content)));
        *self.latest.borrow_mut() = latest;
        Ok(content)
    }
}

/// A request that waits for a thread to parse a file.
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
                    NoFile::Failed(cause) => exchange.fail(cause),
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

/// The content of `file`; `None`: it is not in memory.
fn read(exchange: &Exchange, path: &[u8], file: &Rc<FileEntry>) -> io::Result<Option<Bytes>> {
    match file.kind() {
        FileKind::Regular => exchange.read_whole(path, SYMLINKS, file, FILE_BYTES_MAX),
        FileKind::Denied => Err(ErrorKind::PermissionDenied.into()),
        FileKind::Missing | FileKind::NotADirectory => Err(ErrorKind::NotFound.into()),
        FileKind::Directory | FileKind::Special => Err(ErrorKind::InvalidInput.into()),
        FileKind::Failed(errno) => Err(errno.into()),
    }
}

/// Whether the last change of `file` is so long ago that the program that wrote it is done.
fn is_settled(exchange: &Exchange, file: &FileEntry) -> bool {
    let now_s = exchange.worker.clock().wall_seconds();
    now_s.abs_diff(file.stat().modified_s) >= WRITTEN_S
}

/// Cuts off a last line without a newline while a program may be writing it: half a line could let in a
/// client that the whole line does not.
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
        ErrorKind::TimedOut => cause_of_error(error),
        _ => ErrorCause::from(CauseCode::AuthUsersUnreadable).with_error(error),
    })
}

/// Seconds after the last change in which a program may still be writing.
const WRITTEN_S: u64 = 2;

/// The administrator has chosen these files. Rules about symlinks apply to files that URLs name.
const SYMLINKS: Symlinks = Symlinks::Follow;

/// Enough for a hundred thousand users.
const FILE_BYTES_MAX: usize = 16 << 20;

/// How many files may wait to be parsed. A configuration names fewer.
const FILES_MAX: usize = 10_000;
