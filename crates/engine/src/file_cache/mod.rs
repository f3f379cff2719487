//! The file cache of a worker: from a physical path to the open file, its metadata and its content.
//!
//! A warm look-up makes no system call. Three mechanisms keep entries true:
//!
//! - inotify on every directory of the path and of the targets of symlinks in it ([`watch`]);
//! - a recheck of an entry in use, one second after a change and later every ten seconds, by one worker for
//!   all: an fstat(2) on the open file, or a look-up of the path if the file is not kept open. It notices
//!   writes through mmap and through another hard link;
//! - a lifetime of one second where inotify does not see changes (NFS, FUSE, no watches left).
//!
//! Names that do not exist have entries, too.
//!
//! If there is no entry, the worker asks the kernel, as far as that can answer from its own caches. If it
//! cannot, the result is [`LookResult::Cold`]: a disk job ([`cold`]) looks, and all requests for the same
//! path wait for the same job ([`SharedJobs`]). Afterwards the worker sets the watches and makes the entry
//! from the files that the job has opened.
//!
//! The cache knows nothing of URLs, settings or HTTP. Hooks use it by
//! [`Exchange::look_up`](crate::Exchange::look_up).
//! to it for hooks.

mod cold;
mod contents;
mod counters;
mod entry;
mod names;
pub(crate) mod read;
mod resident;
mod table;
mod watch;

use std::cell::{Cell, LazyCell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
pub use cold::{Asker, LookTimes, NextNames, Role};
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
    /// The cache keeps nothing between requests.
    Disabled,
    /// It rechecks each entry after a second.
    Simple,
    /// By inotify, and by rechecks where inotify sees no changes.
    #[default]
    Inotify,
}

/// The file cache of one worker.
pub struct FileCache {
    following: RefCell<EntryTable>,
    refusing: RefCell<EntryTable>,
    watcher: Watcher,
    engine: StatCache,
    contents: Arc<Contents>,
    usage: Rc<Usage>,
    /// The version of the mount table for which all of this is known.
    mounts: Cell<u64>,
    /// The number of the root's file system.
    root: Cell<u64>,
    /// There may be an open file of another file system.
    has_elsewhere: Cell<bool>,
    jobs: SharedJobs<(Box<[u8]>, Symlinks), Vec<cold::LookedUpFile>, LookUpResult>,
}

/// The result of a look-up.
pub enum LookResult {
    /// The file is known.
    Here(Rc<FileEntry>),
    /// The disk has to be read. [`FileCache::poll_cold`] is ready when that is done.
    Cold(DiskWait),
}

/// A request's wait for a disk job. Dropping it does not stop a job that other requests wait for.
pub struct DiskWait {
    path: Box<[u8]>,
    symlinks: Symlinks,
    job: JobWaiter<LookUpResult>,
}

impl DiskWait {
    /// The path that the job looks up.
    pub fn path(&self) -> &[u8] {
        &self.path
    }
}

/// The result of a job. The first request that gets it makes the entries, for all of them.
#[derive(Clone)]
struct LookUpResult(Rc<(Cell<LookedUp>, OnceCell<Vec<FoundFile>>)>);

type LookedUp = Result<Vec<cold::LookedUpFile>, NotDone>;

impl From<LookedUp> for LookUpResult {
    fn from(looked: LookedUp) -> LookUpResult {
        LookUpResult(Rc::new((Cell::new(looked), OnceCell::new())))
    }
}

/// One path that a job has looked up.
#[derive(Clone)]
pub struct FoundFile {
    /// The path.
    pub path: Box<[u8]>,
    /// Whether symlinks were followed.
    pub symlinks: Symlinks,
    /// The entry.
    pub entry: Rc<FileEntry>,
    /// The first bytes of the file, if the job read them and they are not the content of the entry.
    pub first: Option<Bytes>,
    /// How long the disk thread took for it.
    pub times: LookTimes,
}

impl FileCache {
    /// An empty cache. It shares open files with the other owners of `contents`.
    pub fn new(engine: StatCache, contents: Arc<Contents>) -> FileCache {
        FileCache {
            following: RefCell::default(),
            refusing: RefCell::default(),
            watcher: Watcher::new(engine == StatCache::Inotify),
            engine,
            usage: Rc::default(),
            mounts: Cell::new(mounts::known_version()),
            root: Cell::new(mounts::of_path(b"/").device),
            has_elsewhere: Cell::new(false),
            jobs: SharedJobs::default(),
            contents,
        }
    }

    /// The file at `path`, which is absolute and has no NUL, if that can be found out without waiting.
    /// `now_s` is the worker's coarse clock. If the disk has to be read, `next` names what the request will
    /// look up next.
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
        let known = self.known_missing(path, symlinks, now_s);
        match known.or_else(|| self.fill_from_caches(path, symlinks, now_s)) {
            Some(entry) => {
                self.contents.counters().count_cached();
                LookResult::Here(entry)
            }
            None => LookResult::Cold(self.begin_job(path, symlinks, asker, next)),
        }
    }

    /// Ready when the job is done, with one result for each path; the requested path comes first. Entries are
    /// in the cache as far as they may be kept.
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
            Err(not_done) => {
                self.watcher.forget_listing(&waiting.path);
                failed(match not_done {
                    NotDone::QueueFull => Errno::BUSY,
                    NotDone::Lost => Errno::IO,
                })
            }
        });
        Poll::Ready(found.clone())
    }

    /// The watcher; the worker waits for its descriptor.
    pub(crate) fn watcher(&self) -> &Watcher {
        &self.watcher
    }

    /// Reads inotify events and drops the entries that changed. Returns true if there are more events; the
    /// caller lets other tasks run first.
    pub fn process_events(&self) -> bool {
        if self.watcher.process_events() == watch::EventReach::Everything {
            self.flush();
        }
        self.watcher.has_more()
    }

    /// Call this once a second. It follows mounts and unmounts, and lets go of files that would keep a file system from
    /// being unmounted.
    pub(crate) fn look_after(&self, now_s: u32) {
        self.follow_mounts(mounts::known_version());
        if !self.has_elsewhere.get() || !now_s.is_multiple_of(LET_GO_EVERY_S) {
            return;
        }
        let mut remain = false;
        self.retain(|entry| {
            let is_elsewhere = self.is_open_elsewhere(entry);
            let kept = !is_elsewhere || entry.was_used();
            remain |= is_elsewhere && kept;
            kept
        });
        self.has_elsewhere.set(remain);
    }

    /// Drops everything if the mounts have changed: a file system may cover what is known, or no longer do so.
    fn follow_mounts(&self, version: u64) {
        if self.mounts.replace(version) != version {
            self.root.set(mounts::of_path(b"/").device);
            self.flush();
        }
    }

    fn is_open_elsewhere(&self, entry: &FileEntry) -> bool {
        entry.descriptor().is_some() && entry.file_system() != self.root.get()
    }

    /// Drops the entry of `path`, because the caller has just changed the file.
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

    /// Drops all entries.
    pub fn flush(&self) {
        for table in [&self.following, &self.refusing] {
            for entry in table.borrow_mut().drain() {
                entry.invalidate();
            }
        }
        self.watcher.reset();
    }

    /// The number of entries, for tests and counters.
    pub fn len(&self) -> usize {
        self.following.borrow().len() + self.refusing.borrow().len()
    }

    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn table(&self, symlinks: Symlinks) -> &RefCell<EntryTable> {
        match symlinks {
            Symlinks::Follow => &self.following,
            Symlinks::Refuse => &self.refusing,
        }
    }

    /// Whether a look-up now would find `entry` again, as far as that is known without asking the kernel. The
    /// table has each valid entry.
    #[inline]
    pub fn is_sure_of(&self, entry: &FileEntry, now_s: u32) -> bool {
        self.keeps(entry) && !entry.is_due_for_check(now_s)
    }

    #[inline]
    fn is_current(&self, entry: &FileEntry, path: &[u8], now_s: u32) -> bool {
        self.keeps(entry) && (!entry.is_due_for_check(now_s) || entry.is_still_right(path, now_s))
    }

    #[inline]
    fn keeps(&self, entry: &FileEntry) -> bool {
        entry.is_valid() && self.engine != StatCache::Disabled
    }

    /// An entry for a name that is not in the list of its directory ([`names`]). Two system calls: the pending events
    /// tell which names have appeared before this request, and the mount table tells whether directories are covered.
    #[cold]
    fn known_missing(&self, path: &[u8], symlinks: Symlinks, now_s: u32) -> Option<Rc<FileEntry>> {
        // A symlink on the way counts for more than a missing name behind it.
        if symlinks == Symlinks::Refuse {
            return None;
        }
        self.watcher.missing(path)?;
        if self.process_events() {
            return None;
        }
        self.follow_mounts(mounts::version()?);
        let cover = self.watcher.missing(path)?;
        self.make_room();
        let budget = self.budget(true, MountedPlace::default(), now_s);
        let missing = Err(NotOpened::Failed(Errno::NOENT));
        let entry = FileEntry::new(path, symlinks, missing, ContentReading::Cached, &budget)?;
        let entry = Rc::new(entry);
        self.watcher.register(cover, &entry);
        self.keep(path, symlinks, &entry);
        Some(entry)
    }

    /// Asks the kernel for what it has in its caches. `None`: the caches do not have it, or asking could wait
    /// for another machine. Watches are set before the look-up, so that a change in between causes an event
    /// and not a stale entry.
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
        // On a remote file system open(2) may wait for the other side; following the path in the kernel's
        // caches does not.
        match open_place(path, symlinks, LookReach::Cached) {
            Ok(there) => place = mounts::of_descriptor(&there),
            Err(Errno::AGAIN) => return None,
            Err(_) => {}
        }
        // Behind a symlink, the file may be on another file system than its path says.
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
            let wanted = cold::Wanted {
                path: path.into(),
                symlinks,
                next: next(),
                wants_first: asker.wants_first,
                listing: self.watcher.begin_listing(path),
            };
            cold::look_up(wanted, *origin, Arc::clone(self.contents.accounts()))
        };
        let key = (path.into(), symlinks);
        let job = self.jobs.join(key, Sharing::UntilOver, || *origin, work);
        DiskWait {
            path: path.into(),
            symlinks,
            job,
        }
    }

    /// Makes an entry from the result of a disk thread. Since the thread has opened the file, the directories
    /// on the path are in the kernel's caches, and setting the watches does not wait. The watches come after
    /// the look-up, so the path is looked up once more here. If it has changed, the old result is served once
    /// and rechecked a second later.
    fn settle(&self, looked: cold::LookedUpFile, symlinks: Symlinks, now_s: u32) -> FoundFile {
        self.make_room();
        let path = looked.path;
        if let Some(listed) = looked.listed {
            self.watcher.end_listing(listed);
        }
        let is_remote = looked.place.storage == Storage::Remote
            || mounts::of_path(&path).storage == Storage::Remote;
        let cover = (!is_remote).then(|| self.watcher.cover(&path));
        if matches!(looked.found, Err(NotOpened::Failed(Errno::NOENT))) {
            self.watcher.has_missed(&path);
        }
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
        // If a watched entry exists already, it is newer than this late result.
        if is_watched || !self.is_watching(&path, symlinks) {
            self.keep(&path, symlinks, &entry);
        }
        let first = looked.first.filter(|_| entry.content().is_none());
        FoundFile {
            path,
            symlinks,
            entry,
            first,
            times: looked.times,
        }
    }

    /// Whether there is a watched entry that is not known to have changed.
    fn is_watching(&self, path: &[u8], symlinks: Symlinks) -> bool {
        let table = self.table(symlinks).borrow();
        table
            .get(path)
            .is_some_and(|entry| entry.is_valid() && entry.is_watched())
    }

    /// The entry for a look-up that could not be made.
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
            times: LookTimes::default(),
        }
    }

    fn keep(&self, path: &[u8], symlinks: Symlinks, entry: &Rc<FileEntry>) {
        if matches!(entry.kind(), FileKind::Failed(_)) {
            // The next request may succeed.
            return;
        }
        if self.is_open_elsewhere(entry) {
            self.has_elsewhere.set(true);
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

    /// Drops the entries that were not used since the last call. If that is not enough, drops every second
    /// entry.
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

/// How often files of other file systems than the root are let go that were not used since the last time: three to six
/// seconds after their last use.
const LET_GO_EVERY_S: u32 = 3;

/// Whether the path still leads to what a disk thread found, as far as the kernel's caches know.
fn is_still<D>(path: &[u8], symlinks: Symlinks, found: &Result<(D, Stat), NotOpened>) -> bool {
    match (found, cached_stat(path, symlinks)) {
        (Ok((_, before)), Ok(now)) => FileStat::from(before) == FileStat::from(&now),
        (Err(NotOpened::Failed(before)), Err(now)) => *before == now,
        // stat(2) works on a file that this process may not open.
        (Err(NotOpened::Unreadable), Ok(now)) => {
            FileType::from_raw_mode(now.st_mode) == FileType::RegularFile
        }
        (Err(NotOpened::Failed(Errno::ACCESS | Errno::PERM)), Ok(_)) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests;
