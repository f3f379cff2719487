//! Whether a file is below a directory after all symlinks are followed.
//!
//! If the kernel has the path in its caches, it is asked at once (RESOLVE_CACHED, Linux 5.12). Everything
//! else is done by threads, which may wait.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};

use petrel_engine::beneath::open_beneath;
use petrel_engine::blocking::{self, Class, Origin, RunningJob};
use petrel_engine::file_cache::FileEntry;
use petrel_engine::worker::Worker;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, fstat, makedev, openat, openat2, statx,
};
use rustix::io::Errno;

use super::sendfile::relative;
use crate::gateway::limits::CHECKED_FILES_MAX;

/// Whether `relative` leads to the file of a cache entry without leaving `directory`, as far as that can be
/// told without waiting. If it cannot, use [`ask`]. The result is remembered until the cache drops or
/// refreshes the entry.
pub(super) fn is_known_beneath(
    worker: &Worker,
    entry: &Rc<FileEntry>,
    directory: &[u8],
    relative: &[u8],
) -> bool {
    let checked = CheckedFiles::of(worker);
    if checked.borrow().is_known(entry, directory) {
        return true;
    }
    let found = open_cached_place(directory, relative);
    let is_beneath = found.is_ok_and(|found| identity(&found) == Some(identity_of(entry)));
    if is_beneath {
        checked.borrow_mut().remember(entry, directory);
    }
    is_beneath
}

/// Has a thread find out in which of `directories` the file of an entry really is. Its `path` begins with
/// each of them as text. The caller passes the result to [`remember`].
pub(super) fn ask(
    origin: Origin,
    entry: &FileEntry,
    path: &[u8],
    directories: &[&[u8]],
) -> RunningJob<Option<Box<[u8]>>> {
    let wanted = identity_of(entry);
    let path: Box<[u8]> = path.into();
    let directories: Vec<Box<[u8]>> = directories.iter().map(|&one| one.into()).collect();
    blocking::run_for(Class::Stat, origin, move || {
        directories.into_iter().find(|directory| {
            let found = relative(&path, directory)
                .and_then(|relative| open_place(directory, relative).ok());
            found.is_some_and(|found| identity(&found) == Some(wanted))
        })
    })
}

/// Remembers that the file of `entry` is in `directory`.
pub(super) fn remember(worker: &Worker, entry: &Rc<FileEntry>, directory: &[u8]) {
    let checked = CheckedFiles::of(worker);
    checked.borrow_mut().remember(entry, directory);
}

/// Device and inode.
type Identity = (u64, u64);

fn identity_of(entry: &FileEntry) -> Identity {
    (entry.stat().device, entry.stat().inode)
}

/// Device and inode of an open file, as the kernel knows them: no file server is asked.
fn identity(found: &OwnedFd) -> Option<Identity> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    match statx(found, c"", flags, StatxFlags::INO) {
        Ok(stat) => Some((
            makedev(stat.stx_dev_major, stat.stx_dev_minor),
            stat.stx_ino,
        )),
        // A sandbox that does not allow statx(2).
        Err(_) => fstat(found).ok().map(|stat| (stat.st_dev, stat.st_ino)),
    }
}

/// As [`open_place`], but only if the kernel has the path in its caches and no symlink on it is absolute.
fn open_cached_place(directory: &[u8], relative: &[u8]) -> Result<OwnedFd, Errno> {
    let place = OFlags::PATH | OFlags::CLOEXEC;
    let directory = if directory.is_empty() {
        b"/"
    } else {
        directory
    };
    let flags = place | OFlags::DIRECTORY;
    let cached = ResolveFlags::CACHED;
    let at = openat2(CWD, directory, flags, Mode::empty(), cached)?;
    let resolve = cached | ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    openat2(&at, relative, place, Mode::empty(), resolve)
}

/// Opens the path only (O_PATH), not the file: no content is read.
fn open_place(directory: &[u8], relative: &[u8]) -> Result<OwnedFd, Errno> {
    let place = OFlags::PATH | OFlags::CLOEXEC;
    let at = match directory {
        b"" => openat(CWD, c"/", place | OFlags::DIRECTORY, Mode::empty())?,
        path => openat(CWD, path, place | OFlags::DIRECTORY, Mode::empty())?,
    };
    open_beneath(&at, directory, relative, place)
}

/// Cache entries that were found to be in a directory. The address of an entry can be the key, because a weak
/// reference keeps its memory from being used for another entry.
#[derive(Default)]
struct CheckedFiles {
    entries: HashMap<*const FileEntry, (Weak<FileEntry>, Box<[u8]>)>,
}

impl CheckedFiles {
    fn of(worker: &Worker) -> Rc<RefCell<CheckedFiles>> {
        worker.belonging(RefCell::default)
    }

    fn is_known(&self, entry: &Rc<FileEntry>, directory: &[u8]) -> bool {
        let known = self.entries.get(&Rc::as_ptr(entry));
        known.is_some_and(|(_, of)| **of == *directory)
    }

    fn remember(&mut self, entry: &Rc<FileEntry>, directory: &[u8]) {
        if self.entries.len() >= CHECKED_FILES_MAX {
            self.entries
                .retain(|_, (entry, _)| entry.strong_count() > 0);
        }
        if self.entries.len() >= CHECKED_FILES_MAX {
            self.entries.clear();
        }
        let checked = (Rc::downgrade(entry), directory.into());
        self.entries.insert(Rc::as_ptr(entry), checked);
    }
}
