//! Looking at the disk: jobs that answer what neither the cache nor the kernel has in memory.
//!
//! One job does everything a request needs of a path, on threads that may wait: first open and fstat, also of the
//! names that come next (index files, precompressed siblings), then the first read. Where threads are
//! not to read contents (`server.network-backend`), the first read is that of small files alone. Knows nothing of
//! requests.

use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{FileType, Stat, fstat};
use rustix::io::Errno;

use super::contents::Descriptor;
use super::read::read_full;
use super::{FileStat, Symlinks};
use crate::blocking::{Class, JobEnd, Origin};
use crate::file_accounts::{FileAccounts, NetworkBackend};
use crate::limits;
use crate::mounts::{self, MountedPlace, Storage};
use crate::paths::{LookReach, NotOpened, open_and_stat, place_of_the_way};

/// What a job has found out about one path.
pub(super) struct LookedUpFile {
    pub(crate) path: Box<[u8]>,
    /// Whoever drops it, a worker perhaps, closes nothing that could wait.
    pub(crate) found: Result<(Descriptor, Stat), NotOpened>,
    /// Where it is, or where the way there ends.
    pub(crate) place: MountedPlace,
    /// The whole content of a small file, the beginning of a larger one.
    pub(crate) first: Option<Bytes>,
    /// Whether the file had not been changed just before it was looked at, nor while it was read.
    pub(crate) is_settled: bool,
}

/// Who looks, and what for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asker {
    /// Gets no more than its share of the disk.
    pub client: u64,
    /// The first bytes of large files are wanted, too: a thread is to read contents.
    pub wants_first: bool,
}

/// Further paths that a request will want to know about.
pub struct NextNames {
    /// The paths, in the order in which they will be asked for.
    pub paths: Vec<Vec<u8>>,
    /// What they are to the first path.
    pub role: Role,
}

/// What further names are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Asked for if the first path is a directory, until one is there.
    Indexes,
    /// Asked for if the first path is a regular file; one that is there and not older is sent instead.
    Siblings,
}

/// A look-up as threads do it: a thread of [`Class::Stat`] looks, and what is to be read then waits for one of
/// [`Class::First`], so that look-ups that need no contents do not wait behind it.
pub(super) fn look_up(
    path: Box<[u8]>,
    symlinks: Symlinks,
    next: Option<NextNames>,
    wants_first: bool,
    origin: Origin,
    accounts: Arc<FileAccounts>,
) -> impl FnOnce(JobEnd<Vec<LookedUpFile>>) + Send + 'static {
    move |end| {
        let mut looked = look(path, symlinks, next);
        if !is_to_be_read(&looked, wants_first) {
            return end.finish(looked);
        }
        end.go_on(Class::First, origin, move |end| {
            read(&mut looked, wants_first, &accounts);
            end.finish(looked);
        });
    }
}

/// What a thread does first: it looks at the first path, and at those that come next.
fn look(path: Box<[u8]>, symlinks: Symlinks, next: Option<NextNames>) -> Vec<LookedUpFile> {
    let mut all = vec![look_at(path, symlinks)];
    if let Some(next) = next {
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

/// Whether [`read`] has anything to do.
fn is_to_be_read(all: &[LookedUpFile], wants_first: bool) -> bool {
    let is_kept = |size| size <= limits::FILE_IN_MEMORY_BYTES_MAX;
    let mut sizes = all.iter().map(LookedUpFile::size);
    sizes.any(|size| size > 0 && (wants_first || is_kept(size)))
}

/// What a thread does then, perhaps another one: it reads what the request will need first.
fn read(all: &mut [LookedUpFile], wants_first: bool, accounts: &Arc<FileAccounts>) {
    if wants_first && let Some(sent) = probably_sent(all) {
        sent.read_first(accounts);
    }
    // What workers keep in memory is read in any case.
    for looked in all {
        if looked.first.is_none() && looked.size() <= limits::FILE_IN_MEMORY_BYTES_MAX {
            looked.read_first(accounts);
        }
    }
}

/// The file that will most likely be sent: the last one that is there, a sibling only if it is not older.
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
    let found = open_and_stat(&path, symlinks, LookReach::Disk);
    let place = match &found {
        Ok((descriptor, _)) => mounts::of_descriptor(descriptor),
        Err(_) => place_of_the_way(&path),
    };
    let stat = found.as_ref().ok().map(|(_, stat)| FileStat::from(stat));
    let closing = |descriptor| Descriptor::new(descriptor, 0, Origin::at(place));
    LookedUpFile {
        path,
        is_settled: stat.is_some_and(|stat| stat.is_settled()),
        found: found.map(|(descriptor, stat)| (closing(descriptor), stat)),
        place,
        first: None,
    }
}

impl LookedUpFile {
    fn file_type(&self) -> Option<FileType> {
        let (_, stat) = self.found.as_ref().ok()?;
        Some(FileType::from_raw_mode(stat.st_mode))
    }

    /// Bytes; none for what is no regular file.
    fn size(&self) -> u64 {
        match (&self.found, self.file_type()) {
            (Ok((_, stat)), Some(FileType::RegularFile)) => {
                u64::try_from(stat.st_size).unwrap_or(0)
            }
            _ => 0,
        }
    }

    /// Reads the whole of a small file, or what a client will want first. In one go: a short first read
    /// would make the kernel read ahead in small steps, each of them a way of the disk's heads.
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
                // Programs behind FUSE may say what is at the path by now, whatever was opened.
                Ok((count, now)) if is_remote || FileStat::from(&now) == FileStat::from(&*stat) => {
                    self.is_settled = FileStat::from(&*stat).is_settled();
                    self.first = Some(memory.into_bytes(count));
                    return;
                }
                // Somebody has written to it meanwhile: the bytes belong to what it is now.
                Ok((_, now)) => *stat = now,
                // The answer has not begun: better an error than an answer that breaks off.
                Err(errno) => self.found = Err(errno.into()),
            }
        }
    }
}

/// Times a file is read that changes while it is; then it is sent without its first bytes being known.
const READ_AGAIN_MAX: u32 = 2;
