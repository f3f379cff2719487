//! Disk jobs that look up files for which neither the file cache nor the kernel's caches have an answer.
//!
//! One job does everything that a request needs of a path, on disk threads. It opens the file and calls
//! fstat(2), also for the names that the request needs next (index files, precompressed siblings); then it
//! does the first read. If the network backend does not let threads read contents (`server.network-backend`),
//! the job reads only small files, which workers keep in memory. Knows nothing of requests.

use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{FileType, Stat, fstat};
use rustix::io::Errno;

use super::contents::Descriptor;
use super::names::{ListedDirectory, ListingOrder};
use super::read::read_full;
use super::{FileStat, Symlinks};
use crate::blocking::{Class, JobEnd, Origin};
use crate::clock::thread_now;
use crate::file_accounts::{FileAccounts, NetworkBackend};
use crate::ledger::Nanos;
use crate::limits;
use crate::mounts::{self, MountedPlace, Storage};
use crate::paths::{LookReach, NotOpened, open_and_stat_telling, place_of_the_way};

/// What a job has found out about one path.
pub(super) struct LookedUpFile {
    pub(crate) path: Box<[u8]>,
    /// Dropping this never waits, so a worker may do it.
    pub(crate) found: Result<(Descriptor, Stat), NotOpened>,
    /// The file system of the file. If there is no file: the one of the last directory on the path that
    /// exists.
    pub(crate) place: MountedPlace,
    /// The content of a small file, or the beginning of a larger one.
    pub(crate) first: Option<Bytes>,
    /// How long the thread took.
    pub(crate) times: LookTimes,
    /// Whether the file had not changed shortly before the look-up, nor during the read.
    pub(crate) is_settled: bool,
    /// The directory that was listed as well.
    pub(super) listed: Option<ListedDirectory>,
}

/// What a job is to find out.
pub(super) struct Wanted {
    pub(super) path: Box<[u8]>,
    pub(super) symlinks: Symlinks,
    pub(super) next: Option<NextNames>,
    /// Whether it reads the beginning of a large file as well.
    pub(super) wants_first: bool,
    pub(super) listing: Option<ListingOrder>,
}

/// How long a disk thread took for one path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookTimes {
    /// When a thread began with the look-up.
    pub begun: Nanos,
    /// How long it took to open the path.
    pub open: Nanos,
    /// How long it took to get the metadata.
    pub stat: Nanos,
    /// When a thread began to read; 0: none did.
    pub read_begun: Nanos,
    /// How long that took.
    pub read: Nanos,
}

/// For which client a look-up is, and how much it reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asker {
    /// The client whose turn at the disk the job takes.
    pub client: u64,
    /// Whether the job reads the beginning of a large file as well: the network backend lets threads read
    /// contents.
    pub wants_first: bool,
}

/// Further paths that the request will look up.
pub struct NextNames {
    /// The paths, in the order in which the request needs them.
    pub paths: Vec<Vec<u8>>,
    /// When the request needs them.
    pub role: Role,
}

/// When a request needs further paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// If the first path is a directory. The request needs them up to the first one that exists.
    Indexes,
    /// If the first path is a regular file. A sibling that exists and is not older is sent in its place.
    Siblings,
}

/// The job of a look-up. A thread of [`Class::Stat`] looks. If there is something to read, the job then waits
/// for a thread of [`Class::First`], so that look-ups without a read do not wait behind reads.
pub(super) fn look_up(
    wanted: Wanted,
    origin: Origin,
    accounts: Arc<FileAccounts>,
) -> impl FnOnce(JobEnd<Vec<LookedUpFile>>) + Send + 'static {
    move |end| {
        let wants_first = wanted.wants_first;
        let mut looked = look(wanted);
        if !is_to_be_read(&looked, wants_first) {
            return end.finish(looked);
        }
        end.go_on(Class::First, origin, move |end| {
            let read_begun = thread_now();
            read(&mut looked, wants_first, &accounts);
            if let Some(first) = looked.first_mut() {
                first.times.read_begun = read_begun;
                first.times.read = thread_now() - read_begun;
            }
            end.finish(looked);
        });
    }
}

/// The first part of the job: looks up the first path and those that the request needs next.
fn look(wanted: Wanted) -> Vec<LookedUpFile> {
    let symlinks = wanted.symlinks;
    let begun = thread_now();
    let listed = wanted.listing.map(ListingOrder::carry_out);
    let mut first = look_at(wanted.path, symlinks);
    // Listing its directory is a part of finding the file.
    first.times.open += first.times.begun - begun;
    first.times.begun = begun;
    first.listed = listed;
    let mut all = vec![first];
    if let Some(next) = wanted.next {
        let first_kind = all.first().and_then(LookedUpFile::file_type);
        let is_asked_for = match next.role {
            Role::Indexes => first_kind == Some(FileType::Directory),
            Role::Siblings => first_kind == Some(FileType::RegularFile),
        };
        for path in next.paths.into_iter().filter(|_| is_asked_for) {
            let looked = look_at(path.into(), symlinks);
            let ends = next.role == Role::Indexes
                && !matches!(
                    looked.found,
                    Err(NotOpened::Failed(Errno::NOENT | Errno::NOTDIR))
                );
            all.push(looked);
            if ends {
                break;
            }
        }
    }
    all
}

/// Whether [`read`] has something to do.
fn is_to_be_read(all: &[LookedUpFile], wants_first: bool) -> bool {
    let is_kept = |size| size <= limits::FILE_IN_MEMORY_BYTES_MAX;
    let mut sizes = all.iter().map(LookedUpFile::size);
    sizes.any(|size| size > 0 && (wants_first || is_kept(size)))
}

/// The second part of the job: reads the content that the request will need first.
fn read(all: &mut [LookedUpFile], wants_first: bool, accounts: &Arc<FileAccounts>) {
    if wants_first && let Some(sent) = probably_sent(all) {
        sent.read_first(accounts);
    }
    // The content of files that workers keep in memory is always read.
    for looked in all {
        if looked.first.is_none() && looked.size() <= limits::FILE_IN_MEMORY_BYTES_MAX {
            looked.read_first(accounts);
        }
    }
}

/// The file that will probably be sent: the first of `others` that is a regular file and not older, else the
/// first path.
fn probably_sent(all: &mut [LookedUpFile]) -> Option<&mut LookedUpFile> {
    let (first, others) = all.split_first_mut()?;
    let modified = |looked: &LookedUpFile| {
        let stat = looked.found.as_ref().ok().map(|(_, stat)| stat);
        stat.map(|stat| (stat.st_mtime, stat.st_mtime_nsec))
    };
    let own = match first.file_type() {
        Some(FileType::RegularFile) => modified(first),
        _ => None,
    };
    let is_regular = |looked: &&mut LookedUpFile| looked.file_type() == Some(FileType::RegularFile);
    match others
        .iter_mut()
        .find(|other| is_regular(other) && modified(other) >= own)
    {
        Some(other) => Some(other),
        None => Some(first),
    }
}

fn look_at(path: Box<[u8]>, symlinks: Symlinks) -> LookedUpFile {
    let begun = thread_now();
    let mut opened = None;
    let is_open = || opened = Some(thread_now());
    let found = open_and_stat_telling(&path, symlinks, LookReach::Disk, is_open);
    // Without a file, this looks at the way to it once more.
    let place = match &found {
        Ok((descriptor, _)) => mounts::of_descriptor(descriptor),
        Err(_) => place_of_the_way(&path),
    };
    let ended = thread_now();
    let opened = opened.unwrap_or(ended);
    let times = LookTimes {
        begun,
        open: opened - begun,
        stat: ended - opened,
        ..LookTimes::default()
    };
    let stat = found.as_ref().ok().map(|(_, stat)| FileStat::from(stat));
    let closing = |descriptor| Descriptor::new(descriptor, Origin::at(place));
    LookedUpFile {
        path,
        is_settled: stat.is_some_and(|stat| stat.is_settled()),
        found: found.map(|(descriptor, stat)| (closing(descriptor), stat)),
        place,
        first: None,
        times,
        listed: None,
    }
}

impl LookedUpFile {
    fn file_type(&self) -> Option<FileType> {
        let (_, stat) = self.found.as_ref().ok()?;
        Some(FileType::from_raw_mode(stat.st_mode))
    }

    /// The size in bytes; 0 if this is no regular file.
    fn size(&self) -> u64 {
        match (&self.found, self.file_type()) {
            (Ok((_, stat)), Some(FileType::RegularFile)) => {
                u64::try_from(stat.st_size).unwrap_or(0)
            }
            _ => 0,
        }
    }

    /// Reads a small file whole, or as much of a larger one as a client takes first. One large read: after a
    /// short one the kernel would read ahead in small steps, each with a seek of the disk.
    fn read_first(&mut self, accounts: &Arc<FileAccounts>) {
        let most = match accounts.has_memory() {
            true => limits::FIRST_READ_BYTES_MAX,
            false => limits::FILE_IN_MEMORY_BYTES_MAX,
        };
        let is_remote = self.place.storage == Storage::Remote;
        self.is_settled = false;
        for _ in 0..READ_AGAIN_MAX {
            let Ok(length @ 1..) = usize::try_from(self.size().min(most)) else {
                return;
            };
            let Ok((descriptor, stat)) = &mut self.found else {
                return;
            };
            let mut memory = accounts.memory(length);
            let read = read_full(&*descriptor, memory.as_mut(), 0)
                .and_then(|count| Ok((count, fstat(&*descriptor)?)));
            if let Ok((count, _)) = &read {
                accounts.count_async(NetworkBackend::GthreadAio, *count);
            }
            match read {
                // A program behind FUSE may report other metadata for the same open file, so a difference
                // means nothing there.
                Ok((count, now)) if is_remote || FileStat::from(&now) == FileStat::from(&*stat) => {
                    self.is_settled = FileStat::from(&*stat).is_settled();
                    self.first = Some(memory.into_bytes(count));
                    return;
                }
                // Another process wrote to the file during the read. Read again under the new metadata.
                Ok((_, now)) => *stat = now,
                // No byte of the response was sent yet, so an error is better than a response that breaks
                // off.
                Err(errno) => self.found = Err(errno.into()),
            }
        }
    }
}

/// How often a file is read again that changes during the read. Then the response begins without a first
/// read.
const READ_AGAIN_MAX: u32 = 2;
