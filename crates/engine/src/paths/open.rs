//! Opens a path, with symlinks followed or refused, and with or without waiting for the disk.
//!
//! openat2(2) does it in one call (Linux 5.6). If it is missing or a sandbox forbids it, openat(2) opens the
//! path; for [`Symlinks::Refuse`] part by part.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::fs::{
    CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2, readlinkat,
};
use rustix::io::Errno;

use super::Symlinks;
use crate::beneath::open_part_by_part;
use crate::system_calls::made;

/// Whether a look-up of a path may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookReach {
    /// It may not: `EAGAIN` for all that is not in the kernel's caches (RESOLVE_CACHED, Linux 5.12).
    Cached,
    /// It may wait for the disk.
    Disk,
}

/// Why a path cannot be opened for reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotOpened {
    /// A regular file is there that this process may not read.
    Unreadable,
    /// Any other reason.
    Failed(Errno),
}

impl From<Errno> for NotOpened {
    fn from(errno: Errno) -> NotOpened {
        NotOpened::Failed(errno)
    }
}

/// Opens `path` for reading. O_NONBLOCK, because opening a pipe without a writer would wait forever. A
/// directory that may be passed but not read (mode 711) is opened with O_PATH.
pub(crate) fn open_and_stat(
    path: &[u8],
    symlinks: Symlinks,
    reach: LookReach,
) -> Result<(OwnedFd, Stat), NotOpened> {
    open_and_stat_telling(path, symlinks, reach, || ())
}

/// Like [`open_and_stat`]. Calls `is_open` between the two calls, unless the first one fails.
pub(crate) fn open_and_stat_telling(
    path: &[u8],
    symlinks: Symlinks,
    reach: LookReach,
    is_open: impl FnOnce(),
) -> Result<(OwnedFd, Stat), NotOpened> {
    let descriptor = match open(path, symlinks, reach, FLAGS) {
        Err(refusal @ (Errno::ACCESS | Errno::PERM)) => {
            return look_at_refused(path, symlinks, reach, refusal);
        }
        opened => opened?,
    };
    is_open();
    made();
    let stat = fstat(&descriptor)?;
    Ok((descriptor, stat))
}

/// stat(2) works on a file that may not be read.
fn look_at_refused(
    path: &[u8],
    symlinks: Symlinks,
    reach: LookReach,
    refusal: Errno,
) -> Result<(OwnedFd, Stat), NotOpened> {
    let looked = open_place(path, symlinks, reach).and_then(|place| {
        made();
        let stat = fstat(&place)?;
        Ok((place, stat))
    });
    let file_type = |stat: &Stat| FileType::from_raw_mode(stat.st_mode);
    match looked {
        Ok((place, stat)) if file_type(&stat) == FileType::Directory => Ok((place, stat)),
        Ok((_, stat)) if file_type(&stat) == FileType::RegularFile => Err(NotOpened::Unreadable),
        Err(Errno::AGAIN) => Err(Errno::AGAIN.into()),
        _ => Err(refusal.into()),
    }
}

/// Opens `path` with O_PATH: the file system has to answer only for the way there.
pub(crate) fn open_place(
    path: &[u8],
    symlinks: Symlinks,
    reach: LookReach,
) -> Result<OwnedFd, Errno> {
    open(path, symlinks, reach, OFlags::PATH | OFlags::CLOEXEC)
}

/// The metadata of `path`, as far as the kernel's caches have it.
pub(crate) fn cached_stat(path: &[u8], symlinks: Symlinks) -> Result<Stat, Errno> {
    made();
    fstat(open_place(path, symlinks, LookReach::Cached)?)
}

/// Opens `path` itself with O_PATH, as far as the kernel's caches have it. Does not follow a symlink at its
/// end.
pub(crate) fn open_cached_itself(path: &[u8]) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    open(path, Symlinks::Follow, LookReach::Cached, flags).ok()
}

/// The target of a symlink; `None` if `place` is no symlink. May wait for its file system.
pub(crate) fn read_link(place: &OwnedFd) -> Option<Vec<u8>> {
    // For anything but a symlink this fails.
    let target = readlinkat(place, c"", Vec::new()).ok()?;
    Some(target.into_bytes())
}

/// Opens the directory `path` with O_PATH, so that other paths can be opened from it. May wait for the disk.
///
/// # Errors
/// Those of openat2(2); `ELOOP` for a symlink if those are refused, and for one of /proc that leads to an
/// open file.
pub fn open_directory_place(path: &[u8], symlinks: Symlinks) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open(path, symlinks, LookReach::Disk, flags)
}

/// Opens the directory `path` for reading, under the same rules as for cached files.
///
/// # Errors
/// Those of openat2(2); `ELOOP` for a symlink if those are refused.
pub fn open_directory(path: &[u8], symlinks: Symlinks) -> Result<OwnedFd, Errno> {
    open(
        path,
        symlinks,
        LookReach::Disk,
        FLAGS.union(OFlags::DIRECTORY),
    )
}

fn open(
    path: &[u8],
    symlinks: Symlinks,
    reach: LookReach,
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let resolve = match symlinks {
        Symlinks::Follow => ResolveFlags::NO_MAGICLINKS,
        Symlinks::Refuse => ResolveFlags::NO_SYMLINKS,
    };
    made();
    match (has_openat2(), symlinks, reach) {
        (true, _, LookReach::Disk) => openat2(CWD, path, flags, Mode::empty(), resolve),
        (true, _, LookReach::Cached) if has_resolve_cached() => openat2(
            CWD,
            path,
            flags,
            Mode::empty(),
            resolve | ResolveFlags::CACHED,
        ),
        (_, _, LookReach::Cached) => Err(Errno::AGAIN),
        (false, Symlinks::Follow, _) => openat(CWD, path, flags, Mode::empty()),
        (false, Symlinks::Refuse, _) => open_part_by_part(path, flags),
    }
}

const FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);

/// Asked once: a sandbox does not change while the process runs.
fn has_openat2() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        openat2(CWD, c"/", flags, Mode::empty(), ResolveFlags::empty()).is_ok()
    })
}

/// Whether the kernel can answer from its caches alone (Linux 5.12).
pub(crate) fn has_resolve_cached() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        openat2(CWD, c"/", flags, Mode::empty(), ResolveFlags::CACHED).is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_by_part_is_the_same_as_openat2() {
        let directory = std::env::temp_dir().join(format!("petrel-parts-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("real")).expect("mkdir");
        let directory = directory.canonicalize().expect("it was just made");
        std::fs::write(directory.join("real/file"), "x").expect("write");
        std::os::unix::fs::symlink("real", directory.join("way")).expect("symlink");
        std::os::unix::fs::symlink("file", directory.join("real/leaf")).expect("symlink");
        for name in [
            "real/file",
            "real",
            "way/file",
            "real/leaf",
            "none",
            "real/file/x",
            "none/x",
        ] {
            let path = directory.join(name);
            let path = path.as_os_str().as_encoded_bytes();
            let outcome =
                |result: Result<OwnedFd, Errno>| result.map(|_| ()).map_err(Errno::raw_os_error);
            let resolve = ResolveFlags::NO_SYMLINKS;
            assert_eq!(
                outcome(open_part_by_part(path, FLAGS)),
                outcome(openat2(CWD, path, FLAGS, Mode::empty(), resolve)),
                "{name}"
            );
        }
        std::fs::remove_dir_all(&directory).expect("remove");
    }
}
