//! X-LIGHTTPD-send-tempfile: a file that a backend made for a single answer, sent as a whole and removed.
//!
//! The file is unlinked before its first byte is sent; the open descriptor keeps its content. So it is
//! removed exactly once, even if the client leaves, the answer fails or this process crashes, and its space
//! is freed when the answer is over.
//!
//! Unlinking may wait for the disk. So a thread opens and unlinks the file in one job, which runs even if the
//! client has left in the meantime. For files in memory (tmpfs) it is done at once.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use petrel_engine::Exchange;
use petrel_engine::beneath::open_without_symlinks;
use petrel_engine::blocking::{self, Class, Origin};
use petrel_engine::body::{Body, Piece};
use petrel_engine::cause::CauseCode;
use petrel_engine::file_cache::{FileEntry, Uncached};
use petrel_engine::module::Outcome;
use petrel_engine::mounts::{self, Storage};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, openat, openat2, unlinkat};
use tokio::sync::oneshot;

use super::BackendHost;
use super::opening::{OpeningFacts, OpeningWait, Step};
use super::sendfile::{OUTSIDE, path_of, relative, without_slash};
use crate::static_file;

/// An open file that was unlinked, or why there is none.
pub(super) type TakenFile = Result<Uncached, &'static str>;

/// Answers with the temporary file that `value` names.
pub(super) fn send(
    exchange: &mut Exchange,
    host: &BackendHost,
    value: &[u8],
    known: &mut OpeningFacts,
) -> Result<Step, &'static str> {
    let taken = match known.temporary.take() {
        Some(taken) => taken,
        None => {
            let name = TemporaryPath::of(host, value)?;
            match name.take_from_memory() {
                Some(taken) => taken,
                None => return Ok(begin(exchange, name)),
            }
        }
    };
    let file = FileEntry::from_uncached(taken?);
    let range = 0..file.stat().size;
    // A single file piece would do, but filters cache their result for those, and this file is sent only
    // once.
    exchange.response.body = match range.end {
        0 => Body::Empty,
        _ => Body::Pieces([Piece::File { file, range }].into()),
    };
    exchange.response.is_final = true;
    static_file::forget_range(exchange);
    Ok(Step::Done(Outcome::Answer))
}

/// Has the temporary file that `value` names removed without sending it.
pub(super) fn discard(host: &BackendHost, value: &[u8]) {
    if let Ok(name) = TemporaryPath::of(host, value) {
        // The error is ignored: no request is left to log it for.
        let _ = blocking::start(Class::Write, name.origin(0), move || drop(name.take()));
    }
}

fn begin(exchange: &mut Exchange, name: TemporaryPath) -> Step {
    let (sender, job) = oneshot::channel();
    let (path, origin) = (
        name.path.clone(),
        name.origin(exchange.connection.client_key()),
    );
    let work = move || {
        // If the request has gone, the send fails and the file is closed.
        let _ = sender.send(name.take());
    };
    match blocking::start(Class::Stat, origin, work) {
        Ok(()) => Step::Wait(OpeningWait::Temporary { job, path }),
        Err(error) => {
            let path = String::from_utf8_lossy(&path);
            let outcome = exchange.fail(CauseCode::DiskShortage);
            exchange.log_error(
                "content",
                format_args!("a temporary file is neither sent nor removed: {error} path={path:?}"),
            );
            Step::Done(outcome)
        }
    }
}

/// The path of a file in one of the allowed directories.
struct TemporaryPath {
    path: Vec<u8>,
    /// The length of the directory in it, without a slash at its end.
    directory_length: usize,
}

impl TemporaryPath {
    fn of(host: &BackendHost, value: &[u8]) -> Result<TemporaryPath, &'static str> {
        let path = path_of(value)?;
        let mut directories = host.tempfile_dirs.iter().map(|one| without_slash(one));
        let directory = directories
            .find(|directory| relative(&path, directory).is_some())
            .ok_or(OUTSIDE)?;
        Ok(TemporaryPath {
            directory_length: directory.len(),
            path,
        })
    }

    fn origin(&self, client: u64) -> Origin {
        Origin::of_path(Path::new(OsStr::from_bytes(&self.path))).for_client(client)
    }

    fn directory(&self) -> &[u8] {
        match self.path.get(..self.directory_length) {
            None | Some(b"") => b"/",
            Some(directory) => directory,
        }
    }

    /// Opens the file and unlinks it.
    fn take(&self) -> TakenFile {
        let directory = openat(CWD, self.directory(), PLACE, Mode::empty());
        self.take_below(&directory.map_err(|_| NO_DIRECTORY)?)
    }

    /// Does the same without a thread, if it cannot block: on a file system in memory that no symlink leads
    /// to.
    fn take_from_memory(&self) -> Option<TakenFile> {
        if mounts::of_path(&self.path).storage != Storage::Memory {
            return None;
        }
        let resolve = ResolveFlags::CACHED | ResolveFlags::NO_SYMLINKS;
        let directory = openat2(CWD, self.directory(), PLACE, Mode::empty(), resolve);
        Some(self.take_below(&directory.ok()?))
    }

    /// Follows no symlink below the allowed directory, and unlinks nothing but a regular file that could be
    /// opened.
    fn take_below(&self, directory: &OwnedFd) -> TakenFile {
        let below = self.path.get(self.directory_length + 1..);
        let below = below.unwrap_or_default();
        let slash = memchr::memrchr(b'/', below);
        let (parent, name) = below.split_at(slash.map_or(0, |slash| slash + 1));
        let opened;
        let parent = match parent {
            b"" => directory,
            parent => {
                opened =
                    open_without_symlinks(directory, parent, PLACE).map_err(|_| NO_DIRECTORY)?;
                &opened
            }
        };
        let flags =
            OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file =
            openat(parent, name, flags, Mode::empty()).map_err(|_| "it cannot be opened;")?;
        let file = Uncached::new(file, &self.path).map_err(|_| "it is not a regular file;")?;
        // An error: files that stay would fill the directory unnoticed.
        unlinkat(parent, name, AtFlags::empty()).map_err(|_| "it cannot be removed;")?;
        Ok(file)
    }
}

const PLACE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const NO_DIRECTORY: &str = "its directory cannot be opened;";
