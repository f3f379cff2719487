//! A cache entry: what is at one path, and what the cache keeps of it.

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
use super::contents::{Contents, Descriptor, Held, LastCheck};
use super::read::{read_cached, read_full};
use super::resident::{LastLoss, Resident};
use crate::blocking::Origin;
use crate::limits;
use crate::mounts::{self, MountedPlace, Storage};
use crate::paths::{NotOpened, cached_stat};
use crate::system_calls::made;

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file that could be opened.
    Regular,
    /// A directory.
    Directory,
    /// Nothing (ENOENT, ENAMETOOLONG).
    Missing,
    /// A file that this process may not open, or a symlink where symlinks are refused.
    Denied,
    /// The path continues after the name of a file (ENOTDIR).
    NotADirectory,
    /// A device, socket or pipe, which is never served.
    Special,
    /// The file system failed, the process has no descriptor left, or too many look-ups wait already. It is
    /// unknown whether a file is there: code that treats this as [`FileKind::Missing`] may answer with the
    /// wrong file.
    Failed(Errno),
}

impl FileKind {
    /// Whether a file or directory is there that may be served.
    pub fn exists(self) -> bool {
        matches!(self, FileKind::Regular | FileKind::Directory)
    }

    /// The kind for a path whose look-up failed with `errno`.
    pub fn of_error(errno: Errno) -> FileKind {
        match errno {
            // With the last two errors, no file of this file system can have that name.
            Errno::NOENT | Errno::NAMETOOLONG | Errno::ILSEQ => FileKind::Missing,
            Errno::NOTDIR => FileKind::NotADirectory,
            Errno::ACCESS | Errno::PERM | Errno::LOOP => FileKind::Denied,
            Errno::NXIO | Errno::NODEV => FileKind::Special,
            other => FileKind::Failed(other),
        }
    }
}

/// The fields of stat(2) that the server uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileStat {
    /// The size in bytes.
    pub size: u64,
    /// When the content last changed, in seconds since the epoch (negative times become 0).
    pub modified_s: u64,
    /// The nanoseconds of that time.
    pub modified_ns: u32,
    /// The inode number.
    pub inode: u64,
    /// The device number.
    pub device: u64,
    /// The permission and type bits.
    pub mode: u32,
    pub(super) changed_s: i64,
    pub(super) changed_ns: u32,
}

/// A cached path. The fields that a warm request reads come first, so that they are on two cache lines.
#[repr(C)]
pub struct FileEntry {
    valid: Cell<bool>,
    used: Cell<bool>,
    is_watched: bool,
    symlinks: Symlinks,
    /// The second in which the entry is compared with the file again.
    recheck_at_s: Cell<u32>,
    kind: FileKind,
    storage: Storage,
    is_unreadable_file: bool,
    content: Option<Arc<[u8]>>,
    label: RefCell<Label>,
    stat: FileStat,
    descriptor: Option<Arc<Descriptor>>,
    /// When a worker last compared the file with `stat`. `None`: this is no regular file.
    last_check: Option<Arc<LastCheck>>,
    /// Which parts of the file were recently found in the page cache.
    resident: Resident,
    /// How many bytes of `usage` this entry accounts for; its descriptor is counted separately.
    bytes: usize,
    usage: Rc<Usage>,
    /// The file system: [`MountedPlace::device`]. On btrfs and overlayfs stat(2) returns another number.
    device: u64,
}

/// An open file that several threads use. Closing it never waits, whichever thread drops it last.
pub type SharedDescriptor = Arc<dyn AsFd + Send + Sync>;

/// The path of an entry, followed by the header fields made for its file: a hit compares the first part and
/// copies the second.
struct Label {
    bytes: Rc<[u8]>,
    path_length: usize,
    /// The key under which the fields were made. `None`: there are no fields yet.
    key: Option<u64>,
}

/// Header fields in wire format, stored with a file.
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

/// The resources of all entries of a worker, also of those that have left the cache but are still being sent.
#[derive(Default)]
pub(super) struct Usage {
    /// Bytes of contents and paths.
    pub(crate) bytes: Cell<usize>,
    /// Open files.
    pub(crate) descriptors: Cell<usize>,
}

/// The circumstances under which an entry is made.
pub(super) struct Budget {
    pub(crate) now_s: u32,
    pub(crate) contents: Arc<Contents>,
    pub(crate) watched: bool,
    pub(crate) usage: Rc<Usage>,
    pub(crate) place: MountedPlace,
}

/// How the content of a small file is obtained.
pub(super) enum ContentReading {
    /// From the kernel's caches. If they do not have all of it, no entry is made.
    Cached,
    /// A disk thread has read it.
    Done {
        /// The first bytes of the file.
        first: Option<Bytes>,
        /// Whether the file had not changed for long enough that workers may share the content.
        is_settled: bool,
    },
}

/// A regular file outside the cache, with its metadata. A disk thread can make one, and a worker can drop it
/// without waiting.
pub struct Uncached {
    descriptor: Descriptor,
    stat: FileStat,
    pub(crate) place: MountedPlace,
    path: Box<[u8]>,
}

impl Uncached {
    /// Reads the metadata of an open file. `path` names the file in the log: its former path, or its
    /// directory if it never had a name.
    ///
    /// # Errors
    /// Those of fstat(2); `InvalidInput` if it is not a regular file.
    pub fn new(file: impl Into<OwnedFd>, path: &[u8]) -> io::Result<Uncached> {
        let descriptor = file.into();
        made();
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
    /// The entry for `path`, with the result `looked` of its look-up. `None`: the content cannot be read
    /// without waiting.
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
        // The label has the path, and the watch has the file name, which is at most as long.
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
        // Counted even if no entry is made: dropping the entry subtracts the same.
        entry.bytes += entry.content.as_ref().map_or(0, |content| content.len());
        let usage = &entry.usage;
        usage.bytes.set(usage.bytes.get() + entry.bytes);
        let descriptors = usize::from(entry.descriptor.is_some());
        usage.descriptors.set(usage.descriptors.get() + descriptors);
        taken.map(|()| entry)
    }

    /// The entry for a look-up that failed.
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

    /// An entry outside the cache for an open file: a temporary file, or one that a backend named. `path` is
    /// as in [`Uncached::new`].
    ///
    /// # Errors
    /// Those of fstat(2); `InvalidInput` if it is not a regular file.
    pub fn from_file(file: impl Into<OwnedFd>, path: &[u8]) -> io::Result<Rc<FileEntry>> {
        Ok(FileEntry::from_uncached(Uncached::new(file, path)?))
    }

    /// Like [`FileEntry::from_file`], for a file that a disk thread has examined.
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

    /// An empty entry for `path`.
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
            last_check: None,
            resident: Resident::default(),
            bytes: 0,
            usage,
            device: place.device,
        }
    }

    /// The path of the file, or another name for it in the log.
    pub fn path(&self) -> Vec<u8> {
        let label = self.label.borrow();
        label.bytes[..label.path_length].to_vec()
    }

    /// What is at the path.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// Whether this is a regular file that this process may not read.
    pub fn is_unreadable_file(&self) -> bool {
        self.is_unreadable_file
    }

    /// The metadata. All zero unless this is a file or a directory.
    pub fn stat(&self) -> &FileStat {
        &self.stat
    }

    /// The whole content, if the file is small enough to be kept in memory.
    #[inline]
    pub fn content(&self) -> Option<&[u8]> {
        self.content.as_deref()
    }

    /// The content without a copy, for a user that keeps it.
    pub(crate) fn share_content(&self) -> Option<Bytes> {
        Some(Bytes::from_owner(Arc::clone(self.content.as_ref()?)))
    }

    /// Prefetches the bytes that will be copied after the response head into the processor's cache.
    #[inline]
    pub(super) fn prefetch(&self) {
        if let Some(content) = &self.content
            && content.len() <= limits::INLINED_PIECE_BYTES_MAX
        {
            prefetch(content);
        }
    }

    /// The open file, for sendfile. `None` if this is not a regular file, and for files in memory if
    /// descriptors are short.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor
            .as_ref()
            .map(|descriptor| descriptor.as_fd())
    }

    /// The open file for another thread; it stays open until that thread drops it.
    pub fn share_descriptor(&self) -> Option<SharedDescriptor> {
        let descriptor = Arc::clone(self.descriptor.as_ref()?);
        Some(descriptor)
    }

    /// The origin of a job that reads `bytes` bytes of the file for `client`.
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

    /// Whether the file system is in memory, on a disk, or remote.
    pub fn storage(&self) -> Storage {
        self.storage
    }

    /// The end of the part of `range` that is probably in the page cache, from the start of `range`;
    /// `range.start` if its first byte is not.
    #[inline]
    pub(crate) fn end_of_resident(&self, range: &Range<u64>, now_s: u32, loss: &LastLoss) -> u64 {
        match self.storage {
            Storage::Memory => range.end,
            Storage::Disk => self.resident.end_of_seen(range, now_s, loss.life_s(now_s)),
            // On a remote file system sendfile(2) asks the other machine whether the file has changed, and
            // waits for it.
            Storage::Remote => range.start,
        }
    }

    /// Notes that `range` is in the page cache.
    pub(crate) fn saw_resident(&self, range: &Range<u64>, now_s: u32) {
        self.resident.saw(range, self.stat.size, now_s);
    }

    /// Notes that the byte at `offset` is not in the page cache.
    pub(crate) fn missed_resident(&self, offset: u64, now_s: u32, loss: &LastLoss) {
        if self.resident.missed(offset) {
            loss.set(now_s);
        }
    }

    /// Reads from the file at `offset`; 0 means the end of the file. May wait for the disk.
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
        made();
        Ok(rustix::io::pread(descriptor, buffer, offset)?)
    }

    /// Whether header fields are stored under `key`.
    pub fn has_prepared(&self, key: u64) -> bool {
        self.label.borrow().key == Some(key)
    }

    /// The header fields that are stored under `key`; if there are none, stores what `make` returns.
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

    /// Whether the file is not known to have changed.
    #[inline]
    pub(crate) fn is_valid(&self) -> bool {
        self.valid.get()
    }

    /// The file system: [`MountedPlace::device`].
    pub(crate) fn file_system(&self) -> u64 {
        self.device
    }

    /// Whether inotify reports all changes at once.
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

    /// Whether the entry was used since the last call.
    pub(super) fn was_used(&self) -> bool {
        self.used.replace(false)
    }

    /// The periodic recheck. Entries without a watch end at their first one.
    #[cold]
    pub(super) fn is_still_right(&self, path: &[u8], now_s: u32) -> bool {
        let life_s = self.stat.recheck_after_s();
        let right_s = match (self.kind, &self.last_check) {
            _ if !self.is_watched => None,
            (FileKind::Failed(_), _) => None,
            (_, Some(last)) => last.renew(now_s, life_s, || self.is_unchanged(path)),
            (_, None) => Some(now_s),
        };
        if let Some(right_s) = right_s {
            self.recheck_at_s.set(right_s + life_s);
        }
        right_s.is_some()
    }

    fn is_unchanged(&self, path: &[u8]) -> bool {
        match &self.descriptor {
            Some(descriptor) => descriptor.is_still(&self.stat),
            None => cached_stat(path, self.symlinks)
                .is_ok_and(|stat| FileStat::from(&stat) == self.stat),
        }
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
            // The file of a directory or device is not kept open. Closing it may wait, too.
            drop(Descriptor::new(descriptor, self.origin(0, 0)));
            return Some(());
        }
        let held = hold(descriptor, &self.stat, reading, budget)?;
        self.content = held.content;
        self.descriptor = held.descriptor;
        self.last_check = Some(held.last_check);
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
    /// Whether the last change was so long ago that a further change gets another time stamp.
    pub(super) fn is_settled(&self) -> bool {
        self.unchanged_s() >= limits::CONTENT_SETTLED_S
    }

    /// The time until the next recheck: an eighth of the file's age, within limits, so that old files are not
    /// rechecked every second.
    fn recheck_after_s(&self) -> u32 {
        let eighth = u32::try_from(self.unchanged_s() / 8).unwrap_or(u32::MAX);
        eighth.clamp(limits::FILE_RECHECK_S_MIN, limits::FILE_RECHECK_S_MAX)
    }

    /// How many seconds ago the content or the attributes changed.
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

/// Uses what another worker keeps of the file, or reads the file. If it has just changed, workers share only
/// its rechecks: a second change within the same clock tick would have the same time stamp. `None`: the
/// content cannot be read without waiting.
fn hold(
    descriptor: OwnedFd,
    stat: &FileStat,
    reading: ContentReading,
    budget: &Budget,
) -> Option<Held> {
    let contents = &budget.contents;
    let origin = Origin::at(budget.place);
    // Wrapped at once, so that closing follows the rules of the file system even if the descriptor is not
    // kept.
    let descriptor = Descriptor::new(descriptor, origin);
    let is_settled = match &reading {
        ContentReading::Done { is_settled, .. } => *is_settled,
        ContentReading::Cached => stat.is_settled(),
    };
    let mut held = contents.get(stat);
    if !is_settled {
        held = held.rechecks();
    }
    if held.content.is_none() && stat.size <= limits::FILE_IN_MEMORY_BYTES_MAX {
        held.content = match reading {
            ContentReading::Done { first, .. } => first
                .filter(|first| first.len() as u64 == stat.size)
                .map(|first| Arc::from(&*first)),
            ContentReading::Cached if budget.place.storage == Storage::Disk => {
                read_whole(stat.size, |buffer| read_cached(&descriptor, buffer, 0))?
            }
            // The file system is in memory.
            ContentReading::Cached => {
                read_whole(stat.size, |buffer| read_full(&descriptor, buffer, 0))?
            }
        };
        if held.content.is_none() && stat.size == 0 {
            held.content = Some(Arc::from([]));
        }
    }
    // A file that is not in memory cannot be sent without its descriptor. One that is in memory needs it
    // less, so such files get at most half of the room for descriptors.
    let has_room = budget.usage.descriptors.get() < contents.descriptors_max() / 2;
    let is_needed = held.content.is_none() || has_room;
    if !is_needed {
        held.descriptor = None;
    } else if held.descriptor.is_none() {
        held.descriptor = Some(Arc::new(descriptor));
    }
    match is_settled {
        true => contents.put(stat, &held),
        false => contents.put(stat, &held.rechecks()),
    }
    Some(held)
}

/// The content. `Some(None)`: the file cannot be read, or its length is not the one in its metadata because
/// another process is writing it. `None`: not all of it can be read without waiting.
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
        // Apart from EAGAIN, a read that may not wait can also end before the end of the file.
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
        // As on overlayfs: the device number of stat(2) is not in mountinfo.
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
