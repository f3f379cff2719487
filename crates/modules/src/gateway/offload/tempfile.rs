//! X-LIGHTTPD-send-tempfile: a file that a backend made for one answer, sent whole and removed.
//!
//! It loses its name before the first byte of it is sent; the open descriptor holds what is left of
//! it. So it is removed exactly once, whatever becomes of the client, the answer or this process,
//! and its space is free when the answer is over.
//!
//! Removing a name may wait for the disk, so a thread does that and all before it, in one go, also when
//! the client has gone by then. Where files are in memory it is done at once.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use petrel_engine::Exchange;
use petrel_engine::beneath::open_without_symlinks;
use petrel_engine::blocking::{self, Class, Origin};
use petrel_engine::body::{Body, Piece};
use petrel_engine::file_cache::{FileEntry, Uncached};
use petrel_engine::module::Outcome;
use petrel_engine::mounts::{self, Storage};
use petrel_engine::proto::status::Status;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, openat, openat2, unlinkat};
use tokio::sync::oneshot;

use super::BackendHost;
use super::opening::{OpeningFacts, OpeningWait, Step};
use super::sendfile::{OUTSIDE, path_of, relative, without_slash};

/// An open file without a name, or why there is none.
pub(super) type TakenFile = Result<Uncached, &'static str>;

/// Answers with the temporary file `value` names.
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
    // Not a lone piece: filters keep what they make of those for the next request.
    exchange.response.body = match range.end {
        0 => Body::Empty,
        _ => Body::Pieces([Piece::File { file, range }].into()),
    };
    exchange.response.is_final = true;
    Ok(Step::Done(Outcome::Answer))
}

/// Has the file removed that `value` names, which will not be sent.
pub(super) fn discard(host: &BackendHost, value: &[u8]) {
    if let Ok(name) = TemporaryPath::of(host, value) {
        // No request is left to log an error for.
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
        // If the request has gone, the file is closed.
        let _ = sender.send(name.take());
    };
    match blocking::start(Class::Stat, origin, work) {
        Ok(()) => Step::Wait(OpeningWait::Temporary { job, path }),
        Err(error) => {
            let path = String::from_utf8_lossy(&path);
            exchange.log_error(
                "content",
                format_args!("a temporary file is left where it is: {error} path={path:?}"),
            );
            Step::Done(exchange.answer(Status::SERVICE_UNAVAILABLE))
        }
    }
}

/// The path of a file in one of the directories it may be in.
struct TemporaryPath {
    path: Vec<u8>,
    /// How much of it is the directory, without a slash at its end.
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

    /// Opens the file and removes its name.
    fn take(&self) -> TakenFile {
        let directory = openat(CWD, self.directory(), PLACE, Mode::empty());
        self.take_below(&directory.map_err(|_| NO_DIRECTORY)?)
    }

    /// The same where that takes no time: on a file system in memory, to which no symlink leads.
    fn take_from_memory(&self) -> Option<TakenFile> {
        if mounts::of_path(&self.path).storage != Storage::Memory {
            return None;
        }
        let resolve = ResolveFlags::CACHED | ResolveFlags::NO_SYMLINKS;
        let directory = openat2(CWD, self.directory(), PLACE, Mode::empty(), resolve);
        Some(self.take_below(&directory.ok()?))
    }

    /// No symlink below the allowed directory is followed, and nothing is removed but a regular file that
    /// could be opened.
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
        // A file that stays would fill the directory, one after the other, unnoticed.
        unlinkat(parent, name, AtFlags::empty()).map_err(|_| "it cannot be removed;")?;
        Ok(file)
    }
}

const PLACE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
const NO_DIRECTORY: &str = "its directory cannot be opened;";
