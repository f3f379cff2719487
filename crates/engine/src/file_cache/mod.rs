//! A worker's memory of the file system: physical path to open file, its stat and its content.
//!
//! A warm lookup makes no system call. What keeps it true, in this order: inotify on every
//! directory of the path and of symlink targets ([`watch`]); one fstat on the open descriptor of
//! an entry in use, a second after a change and every ten seconds when nothing changes (catches
//! writes through mmap and through another hard link); and a life of a second where inotify cannot
//! see (NFS, FUSE, out of watches). Names that do not exist are remembered as well.
//!
//! It knows nothing of URLs, settings or HTTP. [`crate::map`] calls it. [`FileCache::fill`] is
//! the one place that blocks on the file system: serving cold files off the loop starts there.

mod contents;
mod entry;
mod open;
mod table;
mod watch;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

pub use contents::Contents;
pub(crate) use entry::SharedDescriptor;
use entry::Usage;
pub use entry::{FileEntry, FileKind, FileStat, Prepared};
pub(crate) use open::is_regular;
pub use open::open_directory;
use table::Table;
pub use watch::Watcher;

use crate::limits;
pub use crate::settings::process::StatCache;

/// How symlinks in a path are taken (`server.follow-symlink`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symlinks {
    /// Like any other name.
    Follow,
    /// A symlink anywhere in the path makes it [`FileKind::Denied`].
    Refuse,
}

/// One worker's cache.
pub struct FileCache {
    following: RefCell<Table>,
    refusing: RefCell<Table>,
    watcher: Watcher,
    engine: StatCache,
    contents: Arc<Contents>,
    usage: Rc<Usage>,
}

impl FileCache {
    /// An empty cache that shares open files with the other owners of `contents`.
    pub fn new(engine: StatCache, contents: Arc<Contents>) -> FileCache {
        FileCache {
            following: RefCell::default(),
            refusing: RefCell::default(),
            watcher: Watcher::new(engine == StatCache::Inotify),
            engine,
            contents,
            usage: Rc::default(),
        }
    }

    /// What is at `path` (absolute, without NUL). `now_s` is the worker's coarse clock.
    #[inline]
    pub fn lookup(&self, path: &[u8], symlinks: Symlinks, now_s: u32) -> Rc<FileEntry> {
        if let Some(entry) = self.table(symlinks).borrow().get(path)
            && self.is_current(entry, path, now_s)
        {
            entry.prefetch();
            return Rc::clone(entry);
        }
        self.fill(path, symlinks, now_s)
    }

    /// The watcher, whose descriptor the worker waits on.
    pub fn watcher(&self) -> &Watcher {
        &self.watcher
    }

    /// Reads what inotify has to say and drops what changed. True: there is more, and others should have
    /// their turn first.
    pub fn process_events(&self) -> bool {
        if self.watcher.process_events() == watch::Reach::Everything {
            self.flush();
        }
        self.watcher.has_more()
    }

    /// Lets the next lookup of `path` ask the file system: the caller has just changed it.
    pub fn forget(&self, path: &[u8]) {
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

    fn table(&self, symlinks: Symlinks) -> &RefCell<Table> {
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

    /// Asks the file system. Watches are set before the file is looked at, so that a change in
    /// between is an event and not a stale entry.
    #[cold]
    fn fill(&self, path: &[u8], symlinks: Symlinks, now_s: u32) -> Rc<FileEntry> {
        self.make_room();
        let cover = self.watcher.cover(path);
        let entry = Rc::new(FileEntry::open(
            path,
            symlinks,
            &self.budget(cover.is_watched(), now_s),
        ));
        self.watcher.register(cover, &entry);
        if matches!(entry.kind(), FileKind::Failed(_)) {
            // A failure may be over with the next request.
            return entry;
        }
        let mut table = self.table(symlinks).borrow_mut();
        if let Some(old) = table.insert(path, Rc::clone(&entry)) {
            old.invalidate();
        }
        entry
    }

    fn budget(&self, watched: bool, now_s: u32) -> entry::Budget {
        entry::Budget {
            now_s,
            contents: Arc::clone(&self.contents),
            watched,
            usage: Rc::clone(&self.usage),
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

#[cfg(test)]
mod tests;
