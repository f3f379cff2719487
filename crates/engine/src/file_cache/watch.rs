//! Which directories are watched for which entries, and which entries an inotify event makes stale.
//!
//! Every directory on a cached path is watched, as the path spells it, and so are the directories on the way
//! to the target of every symlink in it. An event for a name that is the last part of a cached path makes
//! that entry stale. An event for a directory or symlink within a path makes all entries stale; that is rare
//! (a release switch, a renamed directory). An event for any other name costs one hash look-up.

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use hashbrown::HashMap;
use rustix::fs::inotify::{
    CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init, remove_watch,
};
use rustix::io::Errno;

use super::FileEntry;
use super::names::{ListedDirectory, Listing, ListingOrder, NameList};
use crate::limits;
use crate::mounts::{self, Storage};
use crate::paths::{SYMLINKS_MAX, simplify};
use crate::system_calls::made;

/// Which entries an event makes stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventReach {
    /// Some entries, which are marked already.
    Entries,
    /// The whole cache.
    Everything,
}

/// The directories in which changes of a path will be reported. `None`: inotify cannot see all changes.
pub(super) struct Cover(Option<Vec<(i32, Box<[u8]>)>>);

impl Cover {
    /// Whether inotify will report every change of the path.
    pub(crate) fn is_watched(&self) -> bool {
        self.0.is_some()
    }
}

/// The inotify instance of one worker, and what its watches are for.
pub(crate) struct Watcher {
    state: RefCell<WatchState>,
    has_more: Cell<bool>,
}

struct WatchState {
    inotify: Option<OwnedFd>,
    /// The watched directories, by the path that led to them.
    by_path: HashMap<PathBuf, Watched>,
    /// What each watch is for, by its number.
    directories: HashMap<i32, Directory>,
    /// Names in the lists of all directories.
    listed_names: usize,
    /// Directories that were to be listed so far.
    listings: u64,
}

struct Directory {
    /// A path that leads to the directory.
    path: PathBuf,
    /// Whether cached files are in it, so that changes of content are reported. Not reported elsewhere: a log
    /// file beside the document root would wake the worker with every line.
    has_leaves: bool,
    /// What each name in the directory means to the cache.
    names: HashMap<Box<[u8]>, Interest>,
    listing: Listing,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Watched {
    Local(i32),
    /// On a network file system or a FUSE file system, whose changes inotify does not see.
    Remote,
}

/// How far a path can be followed.
enum WatchedWay {
    /// To the last directory, which has this watch.
    Reached(i32),
    /// Not to the end: a name on it does not exist.
    Ends,
}

#[derive(Default)]
struct Interest {
    /// The name is a directory or symlink that cached paths go through.
    is_on_the_way: bool,
    entries: Vec<Weak<FileEntry>>,
}

impl Watcher {
    /// A watcher. If it is not `enabled`, or if the kernel refuses an inotify instance, it watches nothing.
    pub(crate) fn new(enabled: bool) -> Watcher {
        let inotify = enabled
            .then(|| init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).ok())
            .flatten();
        Watcher {
            state: RefCell::new(WatchState {
                inotify,
                by_path: HashMap::new(),
                directories: HashMap::new(),
                listed_names: 0,
                listings: 0,
            }),
            has_more: Cell::new(false),
        }
    }

    /// A duplicate of the inotify descriptor, for the task that waits until it is readable.
    pub(crate) fn descriptor(&self) -> Option<OwnedFd> {
        self.state
            .borrow()
            .inotify
            .as_ref()
            .and_then(|fd| fd.try_clone().ok())
    }

    /// Watches the directories on `path`, as far as they exist. A path that is too long for the kernel is not
    /// watched.
    pub(super) fn cover(&self, path: &[u8]) -> Cover {
        if path.len() > limits::PATH_BYTES_MAX {
            return Cover(None);
        }
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        let mut state = self.state.borrow_mut();
        let mut places = Vec::new();
        let covered = state.cover(path, &mut places, SYMLINKS_MAX);
        for (directory, _) in &places {
            state.report_content(*directory);
        }
        Cover(covered.map(|()| places))
    }

    /// Changes reported for `cover` make `entry` stale from now on.
    pub(super) fn register(&self, cover: Cover, entry: &Rc<FileEntry>) {
        let mut state = self.state.borrow_mut();
        for (directory, name) in cover.0.into_iter().flatten() {
            let Some(directory) = state.directories.get_mut(&directory) else {
                continue;
            };
            let interest = directory.names.entry(name).or_default();
            // Thousands of paths may lead through the same missing directory, so the list is cleaned only
            // when it is full.
            if interest.entries.len() == interest.entries.capacity() {
                interest.entries.retain(|entry| entry.strong_count() > 0);
            }
            interest.entries.push(Rc::downgrade(entry));
        }
    }

    /// Reads the pending events and marks the entries that they make stale. Stops after
    /// [`limits::INOTIFY_EVENTS_AT_ONCE_MAX`], because a growing log file in a watched directory may cause
    /// events as fast as they are read. [`Watcher::has_more`] tells whether some are left.
    pub(super) fn process_events(&self) -> EventReach {
        let mut state = self.state.borrow_mut();
        let WatchState {
            inotify: Some(inotify),
            directories,
            ..
        } = &mut *state
        else {
            return EventReach::Entries;
        };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(inotify.as_fd(), &mut buffer);
        let mut reach = EventReach::Entries;
        let mut count = 0;
        self.has_more.set(false);
        loop {
            // Events in the buffer must all be handled, because the buffer is dropped with the reader.
            if count >= limits::INOTIFY_EVENTS_AT_ONCE_MAX && reader.is_buffer_empty() {
                self.has_more.set(true);
                break reach;
            }
            match reader.next() {
                Ok(event) => {
                    count += 1;
                    let name = event.file_name().map(|name| name.to_bytes());
                    if apply(directories, event.wd(), event.events(), name)
                        == EventReach::Everything
                    {
                        reach = EventReach::Everything;
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => break reach,
            }
        }
    }

    /// Whether the last [`Watcher::process_events`] has left events unread.
    pub(super) fn has_more(&self) -> bool {
        self.has_more.get()
    }

    /// Removes all watches: paths may lead elsewhere now.
    pub(super) fn reset(&self) {
        let mut state = self.state.borrow_mut();
        let watches: Vec<i32> = state
            .directories
            .drain()
            .map(|(directory, _)| directory)
            .collect();
        state.by_path.clear();
        state.listed_names = 0;
        if let Some(inotify) = &state.inotify {
            for watch in watches {
                // If its directory was removed, the kernel has removed the watch already; that is fine.
                let _ = remove_watch(inotify, watch);
            }
        }
    }

    /// Where it will be reported that something appears at `path`, if the list of a directory on the way shows that
    /// nothing is there. The list is as true as the events that were read.
    pub(super) fn missing(&self, path: &[u8]) -> Option<Cover> {
        let state = self.state.borrow();
        let (watch, name) = state.nearest(path)?;
        match &state.directories.get(&watch)?.listing {
            Listing::Known(list) if !list.has(name) => {
                Some(Cover(Some(vec![(watch, name.into())])))
            }
            _ => None,
        }
    }

    /// Nothing is at `path`, as a disk thread has found out.
    pub(super) fn has_missed(&self, path: &[u8]) {
        let mut state = self.state.borrow_mut();
        if let Some(listing @ Listing::Unknown) = state.listing_for(path) {
            *listing = Listing::Due;
        }
    }

    /// A disk thread is going to look for `path`. Returns the directory that it lists as well.
    pub(super) fn begin_listing(&self, path: &[u8]) -> Option<ListingOrder> {
        let mut state = self.state.borrow_mut();
        let number = state.listings + 1;
        let listing = state.listing_for(path)?;
        if !matches!(listing, Listing::Due) {
            return None;
        }
        *listing = Listing::Reading(number, NameList::default());
        state.listings = number;
        let (watch, _) = state.nearest(path)?;
        let directory = state.directories.get(&watch)?.path.clone();
        Some(ListingOrder { directory, number })
    }

    /// The directory was listed.
    pub(super) fn end_listing(&self, listed: ListedDirectory) {
        let mut state = self.state.borrow_mut();
        let WatchState {
            directories,
            listed_names,
            ..
        } = &mut *state;
        let listings = directories
            .values_mut()
            .map(|directory| &mut directory.listing);
        for listing in listings {
            // All may have been forgotten meanwhile.
            if let Listing::Reading(number, appeared) = listing
                && *number == listed.order.number
            {
                let appeared = std::mem::take(appeared);
                *listing = Listing::Never;
                if let Some(mut list) = listed.names
                    && *listed_names + list.count() <= limits::LISTED_NAMES_OF_ALL_MAX
                {
                    list.extend(appeared);
                    *listed_names += list.count();
                    *listing = Listing::Known(list);
                }
                return;
            }
        }
    }

    /// The disk thread did not get to it.
    pub(super) fn forget_listing(&self, path: &[u8]) {
        let mut state = self.state.borrow_mut();
        if let Some(listing @ Listing::Reading(..)) = state.listing_for(path) {
            *listing = Listing::Due;
        }
    }

    /// Forgets names whose entries have left the cache.
    pub(super) fn forget_dropped_entries(&self) {
        for directory in self.state.borrow_mut().directories.values_mut() {
            directory.names.retain(|_, interest| {
                interest.entries.retain(|entry| entry.strong_count() > 0);
                interest.is_on_the_way || !interest.entries.is_empty()
            });
        }
    }

    #[cfg(test)]
    fn borrow(&self) -> std::cell::Ref<'_, WatchState> {
        self.state.borrow()
    }
}

impl WatchState {
    /// The last watched directory on the way to `path`, as the path spells it, and the name that the path has in it.
    fn nearest<'p>(&self, path: &'p [u8]) -> Option<(i32, &'p [u8])> {
        let mut nearest = None;
        // From the root on, because a client chooses how many names there are.
        for slash in memchr::memchr_iter(b'/', path) {
            let directory = std::ffi::OsStr::from_bytes(&path[..slash.max(1)]);
            match self.by_path.get(Path::new(directory)) {
                Some(Watched::Local(watch)) => nearest = Some((*watch, &path[slash + 1..])),
                Some(Watched::Remote) => return None,
                None => break,
            }
        }
        let (watch, rest) = nearest?;
        let name = rest.split(|byte| *byte == b'/').next()?;
        (!name.is_empty()).then_some((watch, name))
    }

    fn listing_for(&mut self, path: &[u8]) -> Option<&mut Listing> {
        let (watch, _) = self.nearest(path)?;
        Some(&mut self.directories.get_mut(&watch)?.listing)
    }

    /// Watches every directory on `path`, and adds to `places` where a change of its last existing part will
    /// be reported. `None`: inotify cannot see all changes.
    fn cover(
        &mut self,
        path: &Path,
        places: &mut Vec<(i32, Box<[u8]>)>,
        symlinks_left: u32,
    ) -> Option<()> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Some(());
        };
        let directory = match self.by_path.get(parent) {
            Some(Watched::Local(directory)) => *directory,
            Some(Watched::Remote) => return None,
            None => match self.watch_way(parent, places, symlinks_left)? {
                WatchedWay::Reached(directory) => directory,
                WatchedWay::Ends => return Some(()),
            },
        };
        places.push((directory, name.as_bytes().into()));
        self.cover_target(path, places, symlinks_left)
    }

    /// Does the same for the target of `path` if that is a symlink. Calls itself through
    /// [`WatchState::cover`], as often as the kernel follows symlinks.
    fn cover_target(
        &mut self,
        path: &Path,
        places: &mut Vec<(i32, Box<[u8]>)>,
        symlinks_left: u32,
    ) -> Option<()> {
        if is_remote(path) {
            return None;
        }
        let (Ok(target), Some(parent)) = (std::fs::read_link(path), path.parent()) else {
            return Some(());
        };
        let target = simplify(&parent.join(target));
        self.cover(&target, places, symlinks_left.checked_sub(1)?)
    }

    /// Watches every directory from the root down to `directory`. The number of system calls is at most the
    /// number of directories that exist plus one, however many names that do not exist a client puts into a
    /// URL. `None`: inotify cannot see all changes.
    fn watch_way(
        &mut self,
        directory: &Path,
        places: &mut Vec<(i32, Box<[u8]>)>,
        symlinks_left: u32,
    ) -> Option<WatchedWay> {
        let mut above = None;
        let ancestors: Vec<&Path> = directory.ancestors().collect();
        for ancestor in ancestors.into_iter().rev() {
            let place = above.zip(ancestor.file_name());
            let place = place.map(|(above, name)| (above, Box::from(name.as_bytes())));
            match self.watch_directory(ancestor, place.clone(), symlinks_left) {
                Ok(Watched::Local(watch)) => above = Some(watch),
                Ok(Watched::Remote) => return None,
                // The directory does not exist, or is a file. An event will tell when it appears.
                Err(Errno::NOENT | Errno::NOTDIR) => {
                    places.extend(place);
                    self.cover_target(ancestor, places, symlinks_left)?;
                    return Some(WatchedWay::Ends);
                }
                Err(_) => return None,
            }
        }
        above.map(WatchedWay::Reached)
    }

    /// Watches `directory`, which `place` leads to. If it is a symlink, watches the way to its target, too.
    fn watch_directory(
        &mut self,
        directory: &Path,
        place: Option<(i32, Box<[u8]>)>,
        symlinks_left: u32,
    ) -> Result<Watched, Errno> {
        if let Some(watched) = self.by_path.get(directory) {
            return Ok(*watched);
        }
        if is_remote(directory) {
            return Ok(Watched::Remote);
        }
        let mut on_the_way = Vec::from_iter(place);
        if self
            .cover_target(directory, &mut on_the_way, symlinks_left)
            .is_none()
        {
            return Ok(Watched::Remote);
        }
        let watched = self.add(directory)?;
        for (directory, name) in on_the_way {
            if let Some(directory) = self.directories.get_mut(&directory) {
                directory.names.entry(name).or_default().is_on_the_way = true;
            }
        }
        self.by_path.insert(directory.to_path_buf(), watched);
        Ok(watched)
    }

    /// Reports changes of the content of files in the directory, too, from now on.
    fn report_content(&mut self, directory: i32) {
        let (Some(inotify), Some(directory)) =
            (&self.inotify, self.directories.get_mut(&directory))
        else {
            return;
        };
        if !directory.has_leaves {
            let events = CONTENT_EVENTS | WatchFlags::MASK_ADD | WatchFlags::ONLYDIR;
            // If the directory was just removed, an event tells.
            made();
            directory.has_leaves = add_watch(inotify, &directory.path, events).is_ok();
        }
    }

    fn add(&mut self, directory: &Path) -> Result<Watched, Errno> {
        let inotify = self.inotify.as_ref().ok_or(Errno::NOSYS)?;
        if self.by_path.len() >= limits::WATCHED_DIRECTORIES_MAX {
            return Err(Errno::NOSPC);
        }
        made();
        let directory_watch = add_watch(inotify, directory, NAME_EVENTS | WatchFlags::MASK_ADD)?;
        self.directories
            .entry(directory_watch)
            .or_insert_with(|| Directory {
                path: directory.to_path_buf(),
                has_leaves: false,
                names: HashMap::new(),
                listing: Listing::Unknown,
            });
        let is_local = rustix::fs::statfs(directory)
            .is_ok_and(|file_system| !REMOTE_FILE_SYSTEMS.contains(&(file_system.f_type as u32)));
        Ok(if is_local {
            Watched::Local(directory_watch)
        } else {
            Watched::Remote
        })
    }
}

fn apply(
    directories: &mut HashMap<i32, Directory>,
    directory: i32,
    events: ReadFlags,
    name: Option<&[u8]>,
) -> EventReach {
    if events.contains(ReadFlags::QUEUE_OVERFLOW) {
        return EventReach::Everything;
    }
    let Some(Directory { names, listing, .. }) = directories.get_mut(&directory) else {
        // An event of a watch from before a reset.
        return EventReach::Entries;
    };
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        // The event is about the directory itself. Changes of its content come with a name, and its parent
        // reports attribute changes and its removal. But the parent may be unwatched if the directory was
        // reached by another path.
        let gone = ReadFlags::DELETE_SELF
            | ReadFlags::MOVE_SELF
            | ReadFlags::UNMOUNT
            | ReadFlags::IGNORED
            | ReadFlags::ATTRIB;
        return if events.intersects(gone) {
            EventReach::Everything
        } else {
            EventReach::Entries
        };
    };
    if let Listing::Known(list) | Listing::Reading(_, list) = listing
        && events.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO)
    {
        list.add(name);
    }
    let Some(interest) = names.get_mut(name) else {
        return EventReach::Entries;
    };
    if interest.is_on_the_way {
        return EventReach::Everything;
    }
    for entry in interest
        .entries
        .drain(..)
        .filter_map(|entry| entry.upgrade())
    {
        entry.invalidate();
    }
    names.remove(name);
    EventReach::Entries
}

/// Whether a look-up of the path could wait for another machine. Decided by the text of the path, which is
/// enough because the way there is followed part by part, behind symlinks as well.
fn is_remote(path: &Path) -> bool {
    mounts::has_remote() && mounts::of_path(path.as_os_str().as_bytes()).storage == Storage::Remote
}

/// Events about names: enough for directories that cached paths only go through.
const NAME_EVENTS: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// Events about the content of files.
const CONTENT_EVENTS: WatchFlags = WatchFlags::MODIFY.union(WatchFlags::CLOSE_WRITE);

/// Magic numbers of statfs(2) for NFS, SMB, CIFS, SMB2, FUSE, 9p, Ceph, AFS, Coda, GFS2 and Lustre.
const REMOTE_FILE_SYSTEMS: [u32; 11] = [
    0x6969,
    0x517b,
    0xff53_4d42,
    0xfe53_4d42,
    0x6573_5546,
    0x0102_1997,
    0x00c3_6400,
    0x5346_414f,
    0x7375_7245,
    0x0116_1970,
    0x0bd0_0bd0,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_for_names_without_entries_make_nothing_stale() {
        let directory = std::env::temp_dir().join(format!("petrel-watch-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("mkdir");
        let watcher = Watcher::new(true);
        let cover = watcher.cover(directory.join("asked").as_os_str().as_bytes());
        assert!(cover.is_watched());
        assert!(watcher.borrow().by_path.contains_key(&directory));
        std::fs::write(directory.join("other"), "x").expect("write");
        assert_eq!(watcher.process_events(), EventReach::Entries);
        std::fs::remove_dir_all(&directory).expect("remove");
        assert_eq!(watcher.process_events(), EventReach::Everything);
    }

    #[test]
    fn a_flood_of_events_is_read_in_parts_and_none_is_lost() {
        let directory = std::env::temp_dir().join(format!("petrel-flood-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("mkdir");
        let watcher = Watcher::new(true);
        watcher.cover(directory.join("asked").as_os_str().as_bytes());
        for number in 0..limits::INOTIFY_EVENTS_AT_ONCE_MAX {
            // Each write causes two events. The names differ, because the kernel merges equal events.
            std::fs::write(directory.join(format!("other-{number}")), "").expect("write");
        }
        assert_eq!(watcher.process_events(), EventReach::Entries);
        assert!(watcher.has_more());
        std::fs::remove_dir_all(&directory).expect("remove");
        let mut reach = EventReach::Entries;
        for _ in 0..20 {
            if watcher.process_events() == EventReach::Everything {
                reach = EventReach::Everything;
            }
        }
        assert_eq!(reach, EventReach::Everything);
        assert!(!watcher.has_more());
    }

    #[test]
    fn content_is_reported_only_where_cached_files_are() {
        let directory = std::env::temp_dir().join(format!("petrel-way-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("inner")).expect("mkdir");
        std::fs::write(directory.join("log"), "x").expect("write");
        let watcher = Watcher::new(true);
        watcher.cover(directory.join("inner/file").as_os_str().as_bytes());
        let has_leaves = |name: &Path| {
            let state = watcher.borrow();
            state
                .directories
                .values()
                .any(|known| known.path == name && known.has_leaves)
        };
        assert!(has_leaves(&directory.join("inner")) && !has_leaves(&directory));
        std::fs::write(directory.join("log"), "more").expect("write");
        // Other tests create and remove names in the directory above meanwhile; those events are not about
        // content.
        let inotify = watcher.descriptor().expect("inotify");
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(&inotify, &mut buffer);
        while let Ok(event) = events.next() {
            assert!(
                event.file_name().is_none_or(|name| name != c"log"),
                "{event:?}"
            );
        }
        std::fs::remove_dir_all(&directory).expect("remove");
    }

    #[test]
    fn names_that_do_not_exist_are_not_looked_for_one_below_the_other() {
        let watcher = Watcher::new(true);
        let base = std::env::temp_dir();
        let deep = format!("{}/petrel-missing{}", base.display(), "/a".repeat(1900));
        let begin = std::time::Instant::now();
        for _ in 0..100 {
            assert!(watcher.cover(deep.as_bytes()).is_watched());
        }
        assert!(
            begin.elapsed() < std::time::Duration::from_secs(30),
            "{:?}",
            begin.elapsed()
        );
        assert!(watcher.borrow().by_path.len() < 20);
        let too_long = "/a".repeat(100_000);
        assert!(!watcher.cover(too_long.as_bytes()).is_watched());
    }

    #[test]
    fn a_disabled_watcher_covers_nothing() {
        assert!(!Watcher::new(false).cover(b"/etc/passwd").is_watched());
    }

    #[test]
    fn dots_are_resolved_by_text() {
        assert_eq!(simplify(Path::new("/a/./b/../c")), Path::new("/a/c"));
        assert_eq!(simplify(Path::new("/../a")), Path::new("/a"));
    }
}
