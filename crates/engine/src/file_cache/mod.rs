//! A worker's memory of the file system: physical path to open file, its stat and its content.
//!
//! A warm lookup makes no system call. What keeps it true, in this order: inotify on every
//! directory of the path and of symlink targets ([`watch`]); one fstat on the open descriptor of
//! an entry in use, a second after a change and every ten seconds when nothing changes (catches
//! writes through mmap and through another hard link); and a life of a second where inotify cannot
//! see (NFS, FUSE, out of watches). Names that do not exist are remembered as well.
//!
//! What is not remembered is asked of the kernel, as far as it can answer from its own caches. What
//! it cannot is [`LookResult::Cold`]: a job on a thread that may wait ([`cold`]), which all who miss the same path
//! wait for ([`SharedJobs`]). Then the entry is made here, behind its watches, from what the job has opened.
//!
//! It knows nothing of URLs, settings or HTTP. [`Exchange::look_up`](crate::Exchange::look_up) is the way
//! to it for hooks.

mod cold;
mod contents;
mod counters;
mod entry;
pub(crate) mod read;
mod resident;
mod table;
mod watch;

use std::cell::{Cell, LazyCell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
pub use cold::{Asker, NextNames, Role};
pub use contents::Contents;
use entry::{ContentReading, Usage};
pub use entry::{FileEntry, FileKind, FileStat, PreparedEntry, SharedDescriptor, Uncached};
use futures_util::FutureExt;
pub(crate) use resident::LastLoss;
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use table::EntryTable;
pub(crate) use watch::Watcher;

use crate::blocking::{JobWaiter, NotDone, Origin, SharedJobs, Sharing};
use crate::limits;
use crate::mounts::{self, MountedPlace, Storage};
use crate::paths::{LookReach, NotOpened, cached_stat, open_and_stat, open_place, place_ahead};
pub use crate::paths::{Symlinks, open_directory, open_directory_place};

/// How the file cache learns that a file has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StatCache {
    /// Nothing is kept from one request to the next.
    Disabled,
    /// By looking again after a second.
    Simple,
    /// By inotify, and by looking again where that sees nothing.
    #[default]
    Inotify,
}

/// One worker's cache.
pub struct FileCache {
    following: RefCell<EntryTable>,
    refusing: RefCell<EntryTable>,
    watcher: Watcher,
    engine: StatCache,
    contents: Arc<Contents>,
    usage: Rc<Usage>,
    jobs: SharedJobs<(Box<[u8]>, Symlinks), Vec<cold::LookedUpFile>, LookUpResult>,
}

/// What a look at a path has come to.
pub enum LookResult {
    /// It is known.
    Here(Rc<FileEntry>),
    /// The disk has to be asked; [`FileCache::poll_cold`] tells when it has answered.
    Cold(DiskWait),
}

/// A request's wait for the disk. Dropped, the job goes on for others, or for none.
pub struct DiskWait {
    path: Box<[u8]>,
    symlinks: Symlinks,
    job: JobWaiter<LookUpResult>,
}

impl DiskWait {
    /// The path that is looked at.
    pub fn path(&self) -> &[u8] {
        &self.path
    }
}

/// What a job has found. The first request that is told makes entries of it, for all.
#[derive(Clone)]
struct LookUpResult(Rc<(Cell<LookedUp>, OnceCell<Vec<FoundFile>>)>);

type LookedUp = Result<Vec<cold::LookedUpFile>, NotDone>;

impl From<LookedUp> for LookUpResult {
    fn from(looked: LookedUp) -> LookUpResult {
        LookUpResult(Rc::new((Cell::new(looked), OnceCell::new())))
    }
}

/// What a job has found out about a path.
#[derive(Clone)]
pub struct FoundFile {
    /// The path.
    pub path: Box<[u8]>,
    /// How symlinks in it were taken.
    pub symlinks: Symlinks,
    /// What is there.
    pub entry: Rc<FileEntry>,
    /// Its first bytes, if they were read and are not the entry's content.
    pub first: Option<Bytes>,
}

impl FileCache {
    /// An empty cache that shares open files with the other owners of `contents`.
    pub fn new(engine: StatCache, contents: Arc<Contents>) -> FileCache {
        FileCache {
            following: RefCell::default(),
            refusing: RefCell::default(),
            watcher: Watcher::new(engine == StatCache::Inotify),
            engine,
            usage: Rc::default(),
            jobs: SharedJobs::default(),
            contents,
        }
    }

    /// What is at `path` (absolute, without NUL), if that can be told without waiting. `now_s` is the
    /// worker's coarse clock; `next` says what else the request will look at, if the disk has to be asked.
    #[inline]
    pub fn lookup(
        &self,
        path: &[u8],
        symlinks: Symlinks,
        now_s: u32,
        asker: Asker,
        next: impl FnOnce() -> Option<NextNames>,
    ) -> LookResult {
        if let Some(entry) = self.table(symlinks).borrow().get(path)
            && self.is_current(entry, path, now_s)
        {
            entry.prefetch();
            return LookResult::Here(Rc::clone(entry));
        }
        match self.fill_from_caches(path, symlinks, now_s) {
            Some(entry) => {
                self.contents.counters().count_cached();
                LookResult::Here(entry)
            }
            None => LookResult::Cold(self.begin_job(path, symlinks, asker, next)),
        }
    }

    /// Waits for a job. What it has found, the path that was asked for first; entries are in the cache as
    /// far as they may be.
    pub fn poll_cold(
        &self,
        waiting: &mut DiskWait,
        now_s: u32,
        context: &mut Context<'_>,
    ) -> Poll<Vec<FoundFile>> {
        let LookUpResult(result) = ready!(waiting.job.poll_unpin(context));
        let (looked, found) = &*result;
        let failed = |errno| vec![self.failed(&waiting.path, waiting.symlinks, errno, now_s)];
        let found = found.get_or_init(|| match looked.replace(Ok(Vec::new())) {
            Ok(all) => all
                .into_iter()
                .map(|looked| self.settle(looked, waiting.symlinks, now_s))
                .collect(),
            Err(NotDone::QueueFull) => failed(Errno::BUSY),
            Err(NotDone::Lost) => failed(Errno::IO),
        });
        Poll::Ready(found.clone())
    }

    /// The watcher, whose descriptor the worker waits on.
    pub(crate) fn watcher(&self) -> &Watcher {
        &self.watcher
    }

    /// Reads what inotify has to say and drops what changed. True: there is more, and others should have
    /// their turn first.
    pub fn process_events(&self) -> bool {
        if self.watcher.process_events() == watch::EventReach::Everything {
            self.flush();
        }
        self.watcher.has_more()
    }

    /// Lets the next lookup of `path` ask the file system: the caller has just changed it.
    pub fn forget(&self, path: &[u8]) {
        for symlinks in [Symlinks::Follow, Symlinks::Refuse] {
            self.jobs.forget(&(path.into(), symlinks));
        }
        for table in [&self.following, &self.refusing] {
            if let Some(entry) = table.borrow().get(path) {
                entry.invalidate();
            }
        }
    }

    /// Forgets everything.
    pub fn flush(&self) {
        for table in [&self.following, &self.refusing] {
            for entry in table.borrow_mut().drain() {
                entry.invalidate();
            }
        }
        self.watcher.reset();
    }

    /// Entries held, for tests and counters.
    pub fn len(&self) -> usize {
        self.following.borrow().len() + self.refusing.borrow().len()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn table(&self, symlinks: Symlinks) -> &RefCell<EntryTable> {
        match symlinks {
            Symlinks::Follow => &self.following,
            Symlinks::Refuse => &self.refusing,
        }
    }

    #[inline]
    fn is_current(&self, entry: &FileEntry, path: &[u8], now_s: u32) -> bool {
        if !entry.is_valid() || self.engine == StatCache::Disabled {
            return false;
        }
        !entry.is_due_for_check(now_s) || entry.is_still_right(path, now_s)
    }

    /// Asks the kernel for what it has in its caches. `None`: that is not enough, or cannot be told
    /// without asking somebody who may not answer. Watches are set before the file is looked at, so that a
    /// change in between is an event and not a stale entry.
    #[cold]
    fn fill_from_caches(
        &self,
        path: &[u8],
        symlinks: Symlinks,
        now_s: u32,
    ) -> Option<Rc<FileEntry>> {
        let mut place = mounts::of_path(path);
        if place.storage == Storage::Remote {
            return None;
        }
        // Opening can be a question to somebody else; walking there by what is cached is not.
        match open_place(path, symlinks, LookReach::Cached) {
            Ok(there) => place = mounts::of_descriptor(&there),
            Err(Errno::AGAIN) => return None,
            Err(_) => {}
        }
        if place.storage == Storage::Remote {
            return None;
        }
        self.make_room();
        let cover = self.watcher.cover(path);
        let budget = self.budget(cover.is_watched(), place, now_s);
        let looked = open_and_stat(path, symlinks, LookReach::Cached);
        if matches!(looked, Err(NotOpened::Failed(Errno::AGAIN))) {
            return None;
        }
        let entry = FileEntry::new(path, symlinks, looked, ContentReading::Cached, &budget)?;
        let entry = Rc::new(entry);
        self.watcher.register(cover, &entry);
        self.keep(path, symlinks, &entry);
        Some(entry)
    }

    #[cold]
    fn begin_job(
        &self,
        path: &[u8],
        symlinks: Symlinks,
        asker: Asker,
        next: impl FnOnce() -> Option<NextNames>,
    ) -> DiskWait {
        self.contents.counters().count_disk();
        let origin = LazyCell::new(|| {
            let place = place_ahead(path, symlinks);
            Origin::at(place).for_client(asker.client)
        });
        let work = || {
            let (path, accounts) = (path.into(), Arc::clone(self.contents.accounts()));
            cold::look_up(path, symlinks, next(), asker.wants_first, *origin, accounts)
        };
        let key = (path.into(), symlinks);
        let job = self.jobs.join(key, Sharing::UntilOver, || *origin, work);
        DiskWait {
            path: path.into(),
            symlinks,
            job,
        }
    }

    /// Makes an entry of what a thread has looked at. What it has opened keeps the way there in the kernel's
    /// caches, so that setting the watches waits for nothing. They come after the look, so there is a
    /// second one: what is not the same any more is served once, and asked for again in a second.
    fn settle(&self, looked: cold::LookedUpFile, symlinks: Symlinks, now_s: u32) -> FoundFile {
        self.make_room();
        let path = looked.path;
        let is_remote = looked.place.storage == Storage::Remote
            || mounts::of_path(&path).storage == Storage::Remote;
        let cover = (!is_remote).then(|| self.watcher.cover(&path));
        let is_watched = cover.as_ref().is_some_and(|cover| cover.is_watched())
            && is_still(&path, symlinks, &looked.found);
        let budget = self.budget(is_watched, looked.place, now_s);
        let reading = ContentReading::Done {
            first: looked.first.clone(),
            is_settled: looked.is_settled,
        };
        let found = looked.found;
        let found = found.map(|(descriptor, stat)| (descriptor.into_owned(), stat));
        let entry = FileEntry::new(&path, symlinks, found, reading, &budget)
            .unwrap_or_else(|| FileEntry::failed(&path, Errno::IO, &budget));
        let entry = Rc::new(entry);
        if let Some(cover) = cover.filter(|_| is_watched) {
            self.watcher.register(cover, &entry);
        }
        // A late job has nothing to say of what was looked at, and is watched, since.
        if is_watched || !self.is_watching(&path, symlinks) {
            self.keep(&path, symlinks, &entry);
        }
        let first = looked.first.filter(|_| entry.content().is_none());
        FoundFile {
            path,
            symlinks,
            entry,
            first,
        }
    }

    /// Whether there is an entry that nothing has happened to, as far as its watch knows.
    fn is_watching(&self, path: &[u8], symlinks: Symlinks) -> bool {
        let table = self.table(symlinks).borrow();
        table
            .get(path)
            .is_some_and(|entry| entry.is_valid() && entry.is_watched())
    }

    /// What becomes of a look-up that could not be made.
    pub(crate) fn failed(
        &self,
        path: &[u8],
        symlinks: Symlinks,
        errno: Errno,
        now_s: u32,
    ) -> FoundFile {
        let budget = self.budget(false, MountedPlace::default(), now_s);
        FoundFile {
            path: path.into(),
            symlinks,
            entry: Rc::new(FileEntry::failed(path, errno, &budget)),
            first: None,
        }
    }

    fn keep(&self, path: &[u8], symlinks: Symlinks, entry: &Rc<FileEntry>) {
        if matches!(entry.kind(), FileKind::Failed(_)) {
            // A failure may be over with the next request.
            return;
        }
        let mut table = self.table(symlinks).borrow_mut();
        if let Some(old) = table.insert(path, Rc::clone(entry)) {
            old.invalidate();
        }
    }

    fn budget(&self, watched: bool, place: MountedPlace, now_s: u32) -> entry::Budget {
        entry::Budget {
            now_s,
            contents: Arc::clone(&self.contents),
            watched,
            usage: Rc::clone(&self.usage),
            place,
        }
    }

    /// Drops what was not used since the last time room was needed, and if that is not enough
    /// every second entry.
    fn make_room(&self) {
        let is_full = || {
            self.len() >= limits::FILE_CACHE_ENTRIES_MAX
                || self.usage.bytes.get() >= limits::FILE_CACHE_BYTES_MAX
        };
        let lacks_descriptors = || self.usage.descriptors.get() >= self.contents.descriptors_max();
        if !is_full() && !lacks_descriptors() {
            return;
        }
        self.retain(|entry| entry.is_valid() && entry.was_used());
        let mut every_second = false;
        if is_full() || lacks_descriptors() {
            self.retain(|_| {
                every_second = !every_second;
                every_second
            });
        }
        self.watcher.forget_dropped_entries();
    }

    fn retain(&self, mut keep: impl FnMut(&FileEntry) -> bool) {
        for table in [&self.following, &self.refusing] {
            table.borrow_mut().retain(|entry| {
                let kept = keep(entry);
                if !kept {
                    entry.invalidate();
                }
                kept
            });
        }
    }
}

/// Whether a path still leads to what a thread has found there, as far as the kernel knows.
fn is_still<D>(path: &[u8], symlinks: Symlinks, found: &Result<(D, Stat), NotOpened>) -> bool {
    match (found, cached_stat(path, symlinks)) {
        (Ok((_, before)), Ok(now)) => FileStat::from(before) == FileStat::from(&now),
        (Err(NotOpened::Failed(before)), Err(now)) => *before == now,
        // What may not be opened can be looked at.
        (Err(NotOpened::Unreadable), Ok(now)) => {
            FileType::from_raw_mode(now.st_mode) == FileType::RegularFile
        }
        (Err(NotOpened::Failed(Errno::ACCESS | Errno::PERM)), Ok(_)) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
