//! One path's place in the cache: what is there, and what is kept of it.

use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use petrel_sys::prefetch::prefetch;
use rustix::fs::Stat;
use rustix::io::Errno;

use super::Symlinks;
use super::contents::{Contents, Descriptor, Held};
use super::read::{read_cached, read_full};
use super::resident::{LastLoss, Resident};
use crate::blocking::Origin;
use crate::limits;
use crate::mounts::{self, MountedPlace, Storage};
use crate::paths::{NotOpened, cached_stat};

/// What the file system has at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file that could be opened.
    Regular,
    /// A directory.
    Directory,
    /// Nothing (ENOENT, ENAMETOOLONG).
    Missing,
    /// Something we may not open, or a symlink where those are refused.
    Denied,
    /// The path goes on behind a file (ENOTDIR).
    NotADirectory,
    /// A device, socket or pipe: never served.
    Special,
    /// The file system failed, the process is out of descriptors, or too many look-ups wait already. Nobody knows
    /// what is there: whoever takes that for [`FileKind::Missing`] may answer with something else.
    Failed(Errno),
}

impl FileKind {
    /// Whether something that may be served is there.
    pub fn exists(self) -> bool {
        matches!(self, FileKind::Regular | FileKind::Directory)
    }

    /// What is at a path that cannot be looked at because of `errno`.
    pub fn of_error(errno: Errno) -> FileKind {
        match errno {
            // The last two: no file of this file system can have such a name.
            Errno::NOENT | Errno::NAMETOOLONG | Errno::ILSEQ => FileKind::Missing,
            Errno::NOTDIR => FileKind::NotADirectory,
            Errno::ACCESS | Errno::PERM | Errno::LOOP => FileKind::Denied,
            Errno::NXIO | Errno::NODEV => FileKind::Special,
            other => FileKind::Failed(other),
        }
    }
}

/// The parts of stat(2) that are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileStat {
    /// Bytes.
    pub size: u64,
    /// Last change of the content, seconds since the epoch (negative times become 0).
    pub modified_s: u64,
    /// And nanoseconds.
    pub modified_ns: u32,
    /// Inode number.
    pub inode: u64,
    /// Device number.
    pub device: u64,
    /// Permission and type bits.
    pub mode: u32,
    pub(super) changed_s: i64,
    pub(super) changed_ns: u32,
}

/// A cached path. What a warm request looks at comes first, so that it is on two cache lines.
#[repr(C)]
pub struct FileEntry {
    valid: Cell<bool>,
    used: Cell<bool>,
    is_watched: bool,
    symlinks: Symlinks,
    /// When to compare the entry with the file again.
    recheck_at_s: Cell<u32>,
    kind: FileKind,
    storage: Storage,
    is_unreadable_file: bool,
    content: Option<Arc<[u8]>>,
    label: RefCell<Label>,
    stat: FileStat,
    descriptor: Option<Arc<Descriptor>>,
    /// What was lately seen to be in the page cache.
    resident: Resident,
    /// What it counts for in `usage`, besides its descriptor.
    bytes: usize,
    usage: Rc<Usage>,
    /// Of the file system it is on: [`MountedPlace::device`]. What stat(2) says is another one on btrfs and overlayfs.
    device: u64,
}

/// An open file that several threads use. Whoever lets go of it last closes it without waiting.
pub type SharedDescriptor = Arc<dyn AsFd + Send + Sync>;

/// The path of an entry and, right behind it, the header fields made for its file: a hit compares
/// the one and copies the other.
struct Label {
    bytes: Rc<[u8]>,
    path_length: usize,
    /// What the fields were made under; none are there yet if `None`.
    key: Option<u64>,
}

/// Header fields in wire form, kept with a file.
pub struct PreparedEntry {
    label: Rc<[u8]>,
    begin: usize,
}

impl std::ops::Deref for PreparedEntry {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.label[self.begin..]
    }
}

/// What all entries of a worker hold, those included that left the cache while they are sent.
#[derive(Default)]
pub(super) struct Usage {
    /// Bytes of contents and paths.
    pub(crate) bytes: Cell<usize>,
    /// Open files.
    pub(crate) descriptors: Cell<usize>,
}

/// What the cache allows a new entry.
pub(super) struct Budget {
    pub(crate) now_s: u32,
    pub(crate) contents: Arc<Contents>,
    pub(crate) watched: bool,
    pub(crate) usage: Rc<Usage>,
    pub(crate) place: MountedPlace,
}

/// How the content of a small file gets into memory.
pub(super) enum ContentReading {
    /// From what the kernel has; the entry is not made if that is not enough.
    Cached,
    /// Somebody has read what there is to read.
    Done {
        /// The first bytes of the file.
        first: Option<Bytes>,
        /// Whether the file had then been as it was for long enough to be shared.
        is_settled: bool,
    },
}

/// A regular file that belongs to no cache, and what has to be known of it. Can be made by a thread that
/// may wait, and dropped by one that may not.
pub struct Uncached {
    descriptor: Descriptor,
    stat: FileStat,
    pub(crate) place: MountedPlace,
    path: Box<[u8]>,
}

impl Uncached {
    /// Asks the kernel about an open file. `path` is what the log calls it: where it was, or the directory it
    /// is in if it never had a name.
    ///
    /// # Errors
    /// Those of fstat(2); `InvalidInput` when it is not a regular file.
    pub fn new(file: impl Into<OwnedFd>, path: &[u8]) -> io::Result<Uncached> {
        let descriptor = file.into();
        let stat = rustix::fs::fstat(&descriptor)?;
        let file_type = rustix::fs::FileType::from_raw_mode(stat.st_mode);
        if file_type != rustix::fs::FileType::RegularFile {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let place = mounts::of_descriptor(&descriptor);
        let stat = FileStat::from(&stat);
        Ok(Uncached {
            descriptor: Descriptor::of_temporary_file(descriptor, Origin::at(place)),
            stat,
            place,
            path: path.into(),
        })
    }
}

impl AsFd for Uncached {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl FileEntry {
    /// The entry of `path`, where `looked` was found. `None`: its content would have to be waited for.
    pub(super) fn new(
        path: &[u8],
        symlinks: Symlinks,
        looked: Result<(OwnedFd, Stat), NotOpened>,
        reading: ContentReading,
        budget: &Budget,
    ) -> Option<FileEntry> {
        let mut entry = FileEntry::blank(path, symlinks, budget.place, Rc::clone(&budget.usage));
        entry.is_watched = budget.watched;
        entry.valid.set(true);
        let recheck_at_s = budget.now_s + limits::FILE_RECHECK_S_MIN;
        entry.recheck_at_s.set(recheck_at_s);
        // Once in the label, and nearly once more as a name that is watched.
        entry.bytes = 2 * path.len();
        let taken = match looked {
            Ok((descriptor, stat)) => entry.take(descriptor, &stat, reading, budget),
            Err(NotOpened::Unreadable) => {
                entry.kind = FileKind::Denied;
                entry.is_unreadable_file = true;
                Some(())
            }
            Err(NotOpened::Failed(errno)) => {
                entry.kind = FileKind::of_error(errno);
                Some(())
            }
        };
        // An entry that is not made counts for nothing, and is dropped like any other.
        entry.bytes += entry.content.as_ref().map_or(0, |content| content.len());
        let usage = &entry.usage;
        usage.bytes.set(usage.bytes.get() + entry.bytes);
        let descriptors = usize::from(entry.descriptor.is_some());
        usage.descriptors.set(usage.descriptors.get() + descriptors);
        taken.map(|()| entry)
    }

    /// What could not be looked at.
    pub(super) fn failed(path: &[u8], errno: Errno, budget: &Budget) -> FileEntry {
        let looked = Err(errno.into());
        let reading = ContentReading::Done {
            first: None,
            is_settled: false,
        };
        let entry = FileEntry::new(path, Symlinks::Follow, looked, reading, budget);
        let mut entry = entry.expect("there is no content to wait for");
        entry.kind = FileKind::Failed(errno);
        entry
    }

    /// A file that was opened by somebody else and belongs to no cache: a temporary file, or one
    /// that a backend named. `path` is as in [`Uncached::new`].
    ///
    /// # Errors
    /// Those of fstat(2); `InvalidInput` when it is not a regular file.
    pub fn from_file(file: impl Into<OwnedFd>, path: &[u8]) -> io::Result<Rc<FileEntry>> {
        Ok(FileEntry::from_uncached(Uncached::new(file, path)?))
    }

    /// The same when a thread that may wait has looked at it.
    pub fn from_uncached(file: Uncached) -> Rc<FileEntry> {
        let Uncached {
            descriptor,
            stat,
            place,
            path,
        } = file;
        let mut entry = FileEntry::blank(&path, Symlinks::Refuse, place, Rc::default());
        entry.usage.descriptors.set(1);
        entry.kind = FileKind::Regular;
        entry.stat = stat;
        entry.descriptor = Some(Arc::new(descriptor));
        Rc::new(entry)
    }

    /// Nothing that is known, at `path`.
    fn blank(path: &[u8], symlinks: Symlinks, place: MountedPlace, usage: Rc<Usage>) -> FileEntry {
        FileEntry {
            valid: Cell::new(false),
            used: Cell::new(false),
            is_watched: false,
            symlinks,
            recheck_at_s: Cell::new(0),
            kind: FileKind::Missing,
            storage: place.storage,
            is_unreadable_file: false,
            content: None,
            label: RefCell::new(Label {
                bytes: path.into(),
                path_length: path.len(),
                key: None,
            }),
            stat: FileStat::default(),
            descriptor: None,
            resident: Resident::default(),
            bytes: 0,
            usage,
            device: place.device,
        }
    }

    /// The path that was looked at, or what else the log calls the file.
    pub fn path(&self) -> Vec<u8> {
        let label = self.label.borrow();
        label.bytes[..label.path_length].to_vec()
    }

    /// What is there.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// Whether a regular file is there that this process may not read.
    pub fn is_unreadable_file(&self) -> bool {
        self.is_unreadable_file
    }

    /// Its stat. All zero unless it is a file or directory.
    pub fn stat(&self) -> &FileStat {
        &self.stat
    }

    /// The whole content, if it is small enough to be kept.
    #[inline]
    pub fn content(&self) -> Option<&[u8]> {
        self.content.as_deref()
    }

    /// The same for a user that keeps it. It is not copied.
    pub(crate) fn share_content(&self) -> Option<Bytes> {
        Some(Bytes::from_owner(Arc::clone(self.content.as_ref()?)))
    }

    /// Lets the processor fetch what will be copied behind the head, while the head is made.
    #[inline]
    pub(super) fn prefetch(&self) {
        if let Some(content) = &self.content
            && content.len() <= limits::INLINED_PIECE_BYTES_MAX
        {
            prefetch(content);
        }
    }

    /// The open file, for sendfile. `None` only for entries that are not regular files, and for
    /// files in memory when descriptors are short.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor
            .as_ref()
            .map(|descriptor| descriptor.as_fd())
    }

    /// The open file for another thread, which keeps it open.
    pub fn share_descriptor(&self) -> Option<SharedDescriptor> {
        let descriptor = Arc::clone(self.descriptor.as_ref()?);
        Some(descriptor)
    }

    /// Whom a job that reads `bytes` of it for `client` waits for.
    pub fn origin(&self, client: u64, bytes: usize) -> Origin {
        let place = MountedPlace {
            storage: self.storage,
            device: self.device,
        };
        Origin {
            client,
            bytes,
            ..Origin::at(place)
        }
    }

    /// What can be expected of the file system it is on.
    pub fn storage(&self) -> Storage {
        self.storage
    }

    /// How far `range` is taken to be in the page cache, from its start on; `range.start` if it is not there.
    #[inline]
    pub(crate) fn end_of_resident(&self, range: &Range<u64>, now_s: u32, loss: &LastLoss) -> u64 {
        match self.storage {
            Storage::Memory => range.end,
            Storage::Disk => self.resident.end_of_seen(range, now_s, loss.life_s(now_s)),
            // sendfile(2) asks the other side whether the file is still the same.
            Storage::Remote => range.start,
        }
    }

    /// Remembers that `range` is in the page cache.
    pub(crate) fn saw_resident(&self, range: &Range<u64>, now_s: u32) {
        self.resident.saw(range, self.stat.size, now_s);
    }

    /// Remembers that what is at `offset` is not there.
    pub(crate) fn missed_resident(&self, offset: u64, now_s: u32, loss: &LastLoss) {
        if self.resident.missed(offset) {
            loss.set(now_s);
        }
    }

    /// Reads from the open file at `offset`; 0 is the end of the file. May wait for the disk.
    ///
    /// # Errors
    /// Those of pread(2); `NotFound` without an open file.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if let Some(content) = &self.content {
            let start = usize::try_from(offset)
                .unwrap_or(usize::MAX)
                .min(content.len());
            let count = buffer.len().min(content.len() - start);
            buffer[..count].copy_from_slice(&content[start..start + count]);
            return Ok(count);
        }
        let descriptor = self.descriptor().ok_or(io::ErrorKind::NotFound)?;
        Ok(rustix::io::pread(descriptor, buffer, offset)?)
    }

    /// Whether header fields are kept under `key`.
    pub fn has_prepared(&self, key: u64) -> bool {
        self.label.borrow().key == Some(key)
    }

    /// The header fields made for this file and kept under `key`, or what `make` makes.
    #[inline]
    pub fn prepared(&self, key: u64, make: impl FnOnce(&FileEntry) -> Vec<u8>) -> PreparedEntry {
        if self.label.borrow().key != Some(key) {
            let fields = make(self);
            let label = &mut *self.label.borrow_mut();
            let path = &label.bytes[..label.path_length];
            label.bytes = [path, &fields].concat().into();
            label.key = Some(key);
        }
        let label = self.label.borrow();
        PreparedEntry {
            label: Rc::clone(&label.bytes),
            begin: label.path_length,
        }
    }

    /// Whether this is the entry of `path`.
    #[inline]
    pub(super) fn is_at(&self, path: &[u8]) -> bool {
        let label = self.label.borrow();
        label.bytes[..label.path_length] == *path
    }

    /// Whether nothing is known to have changed.
    #[inline]
    pub(crate) fn is_valid(&self) -> bool {
        self.valid.get()
    }

    /// Whether changes are told at once.
    pub(super) fn is_watched(&self) -> bool {
        self.is_watched
    }

    pub(super) fn invalidate(&self) {
        self.valid.set(false);
    }

    #[inline]
    pub(super) fn is_due_for_check(&self, now_s: u32) -> bool {
        self.used.set(true);
        now_s >= self.recheck_at_s.get()
    }

    /// Whether it was used since the last call.
    pub(super) fn was_used(&self) -> bool {
        self.used.replace(false)
    }

    /// The check that comes when it is due. Entries that nothing watches are over.
    #[cold]
    pub(super) fn is_still_right(&self, path: &[u8], now_s: u32) -> bool {
        let right = self.is_watched
            && match (self.kind, &self.descriptor) {
                (FileKind::Regular, Some(descriptor)) => descriptor.is_still(&self.stat, now_s),
                (FileKind::Regular, None) => self.is_right_by_path(path),
                (FileKind::Failed(_), _) => false,
                _ => true,
            };
        if right {
            self.recheck_at_s.set(now_s + self.stat.recheck_after_s());
        }
        right
    }

    fn is_right_by_path(&self, path: &[u8]) -> bool {
        cached_stat(path, self.symlinks).is_ok_and(|stat| FileStat::from(&stat) == self.stat)
    }

    fn take(
        &mut self,
        descriptor: OwnedFd,
        stat: &Stat,
        reading: ContentReading,
        budget: &Budget,
    ) -> Option<()> {
        self.stat = FileStat::from(stat);
        self.kind = match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
            rustix::fs::FileType::RegularFile => FileKind::Regular,
            rustix::fs::FileType::Directory => FileKind::Directory,
            _ => FileKind::Special,
        };
        if self.kind != FileKind::Regular {
            // Closing it may wait as well.
            drop(Descriptor::new(descriptor, 0, self.origin(0, 0)));
            return Some(());
        }
        let held = hold(descriptor, &self.stat, reading, budget)?;
        self.content = held.content;
        self.descriptor = held.descriptor;
        Some(())
    }
}

impl Drop for FileEntry {
    fn drop(&mut self) {
        let usage = &self.usage;
        usage.bytes.set(usage.bytes.get() - self.bytes);
        let descriptors = usize::from(self.descriptor.is_some());
        usage.descriptors.set(usage.descriptors.get() - descriptors);
    }
}

impl FileStat {
    /// Whether the last change is long enough ago that another one would look different.
    pub(super) fn is_settled(&self) -> bool {
        self.unchanged_s() >= limits::CONTENT_SETTLED_S
    }

    /// A file that has been as it is for long is not compared every second: an eighth of its age,
    /// within limits.
    fn recheck_after_s(&self) -> u32 {
        let eighth = u32::try_from(self.unchanged_s() / 8).unwrap_or(u32::MAX);
        eighth.clamp(limits::FILE_RECHECK_S_MIN, limits::FILE_RECHECK_S_MAX)
    }

    /// Seconds since content or attributes changed.
    #[expect(
        clippy::disallowed_methods,
        reason = "the time of files is that of the system"
    )]
    fn unchanged_s(&self) -> u64 {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |now| now.as_secs());
        let changed_s = u64::try_from(self.changed_s)
            .unwrap_or(0)
            .max(self.modified_s);
        now.saturating_sub(changed_s)
    }
}

impl From<&Stat> for FileStat {
    fn from(stat: &Stat) -> FileStat {
        FileStat {
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified_s: u64::try_from(stat.st_mtime).unwrap_or(0),
            modified_ns: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
            inode: stat.st_ino,
            device: stat.st_dev,
            mode: stat.st_mode,
            changed_s: stat.st_ctime,
            changed_ns: u32::try_from(stat.st_ctime_nsec).unwrap_or(0),
        }
    }
}

/// Takes what another worker holds of the file, or reads it. A file that was changed just now is
/// not shared: a second change within the same tick of the clock would look the same. `None`: it would
/// have to be waited for.
fn hold(
    descriptor: OwnedFd,
    stat: &FileStat,
    reading: ContentReading,
    budget: &Budget,
) -> Option<Held> {
    let contents = &budget.contents;
    let origin = Origin::at(budget.place);
    // Closed as its file system asks, also when it is not kept.
    let descriptor = Descriptor::new(descriptor, budget.now_s, origin);
    let is_settled = match &reading {
        ContentReading::Done { is_settled, .. } => *is_settled,
        ContentReading::Cached => stat.is_settled(),
    };
    let mut held = if is_settled {
        contents.get(stat)
    } else {
        Held::default()
    };
    if held.content.is_none() && stat.size <= limits::FILE_IN_MEMORY_BYTES_MAX {
        held.content = match reading {
            ContentReading::Done { first, .. } => first
                .filter(|first| first.len() as u64 == stat.size)
                .map(|first| Arc::from(&*first)),
            ContentReading::Cached if budget.place.storage == Storage::Disk => {
                read_whole(stat.size, |buffer| read_cached(&descriptor, buffer, 0))?
            }
            // Memory.
            ContentReading::Cached => {
                read_whole(stat.size, |buffer| read_full(&descriptor, buffer, 0))?
            }
        };
        if held.content.is_none() && stat.size == 0 {
            held.content = Some(Arc::from([]));
        }
    }
    // A file that is not in memory cannot be served without its descriptor.
    // One that is may do without, so those have half of the room.
    let has_room = budget.usage.descriptors.get() < contents.descriptors_max() / 2;
    let is_needed = held.content.is_none() || has_room;
    if !is_needed {
        held.descriptor = None;
    } else if held.descriptor.is_none() {
        held.descriptor = Some(Arc::new(descriptor));
    }
    if is_settled {
        contents.put(stat, &held);
    }
    Some(held)
}

/// The content; none when the file is not as long as its stat said, because somebody is writing it, or
/// cannot be read. `None`: not all of it can be had at once.
#[expect(
    clippy::option_option,
    reason = "two questions: can it be had, and is it right"
)]
fn read_whole(
    size: u64,
    read: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
) -> Option<Option<Arc<[u8]>>> {
    let Ok(length) = usize::try_from(size) else {
        return Some(None);
    };
    let mut content = vec![0; length];
    match read(&mut content) {
        Ok(count) if count == length => Some(Some(content.into())),
        // Beside EAGAIN: what can be read without waiting may end before the file does.
        Ok(count) if count > 0 => None,
        Ok(_) => Some(None),
        Err(Errno::AGAIN | Errno::OPNOTSUPP) => None,
        Err(_) => Some(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_wait_for_the_file_system_and_not_for_the_device_of_a_file() {
        // As of a file on overlayfs: what stat(2) has is none of mountinfo's.
        let place = MountedPlace {
            storage: Storage::Remote,
            device: 12 << 32 | 34,
        };
        let expected = Origin {
            device: place.device,
            is_remote: true,
            client: 5,
            bytes: 6,
        };
        let open = || std::fs::File::open("/proc/self/exe").expect("this test");
        let mut uncached = Uncached::new(open(), b"/exe").expect("a regular file");
        uncached.place = place;
        let uncached = FileEntry::from_uncached(uncached);
        let budget = Budget {
            now_s: 1,
            contents: Arc::new(Contents::new(10, Arc::default())),
            watched: false,
            usage: Rc::default(),
            place,
        };
        let stat = rustix::fs::fstat(open()).expect("it is open");
        let looked = Ok((OwnedFd::from(open()), stat));
        let reading = ContentReading::Done {
            first: None,
            is_settled: false,
        };
        let cached = FileEntry::new(b"/exe", Symlinks::Follow, looked, reading, &budget);
        let cached = cached.expect("there is nothing to wait for");
        for entry in [uncached, Rc::new(cached)] {
            assert_eq!(entry.origin(5, 6), expected);
        }
    }

    #[test]
    fn what_has_long_been_unchanged_is_compared_less_often() {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("after 1970")
            .as_secs();
        let after = |age_s: u64| {
            let stat = FileStat {
                modified_s: now - age_s,
                ..FileStat::default()
            };
            stat.recheck_after_s()
        };
        assert_eq!(after(0), limits::FILE_RECHECK_S_MIN);
        assert_eq!(after(40), 5);
        assert_eq!(after(1_000_000), limits::FILE_RECHECK_S_MAX);
    }
}
