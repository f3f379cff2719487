//! Opening a path, with symlinks followed or refused, and with or without waiting for the disk.
//!
//! openat2(2) does it in one call (Linux 5.6). Where it is missing or a sandbox refuses it, the
//! path is opened by openat(2), for [`Symlinks::Refuse`] part by part.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::fs::{
    CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2, readlinkat,
};
use rustix::io::Errno;

use super::Symlinks;
use crate::beneath::open_part_by_part;

/// Whether looking at a path may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookReach {
    /// Only what the kernel has in its caches; `EAGAIN` for all else (RESOLVE_CACHED, Linux 5.12).
    Cached,
    /// As far as it takes.
    Disk,
}

/// Why there is nothing that can be read at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotOpened {
    /// A regular file is there that this process may not read.
    Unreadable,
    /// All else.
    Failed(Errno),
}

impl From<Errno> for NotOpened {
    fn from(errno: Errno) -> NotOpened {
        NotOpened::Failed(errno)
    }
}

/// Opens `path` for reading. O_NONBLOCK, because opening a pipe nobody writes to would wait for ever.
/// A directory that may be passed through and not be read (mode 711) is opened as a mere place.
pub(crate) fn open_and_stat(
    path: &[u8],
    symlinks: Symlinks,
    reach: LookReach,
) -> Result<(OwnedFd, Stat), NotOpened> {
    let descriptor = match open(path, symlinks, reach, FLAGS) {
        Err(refusal @ (Errno::ACCESS | Errno::PERM)) => {
            return look_at_refused(path, symlinks, reach, refusal);
        }
        opened => opened?,
    };
    let stat = fstat(&descriptor)?;
    Ok((descriptor, stat))
}

/// What may be looked at can be told although it may not be read.
fn look_at_refused(
    path: &[u8],
    symlinks: Symlinks,
    reach: LookReach,
    refusal: Errno,
) -> Result<(OwnedFd, Stat), NotOpened> {
    let looked = open_place(path, symlinks, reach).and_then(|place| {
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

/// `path` as a mere place: nothing is asked of the file system but the way there.
pub(crate) fn open_place(
    path: &[u8],
    symlinks: Symlinks,
    reach: LookReach,
) -> Result<OwnedFd, Errno> {
    open(path, symlinks, reach, OFlags::PATH | OFlags::CLOEXEC)
}

/// What stat(2) says of `path` as far as the kernel knows without asking anybody.
pub(crate) fn cached_stat(path: &[u8], symlinks: Symlinks) -> Result<Stat, Errno> {
    fstat(open_place(path, symlinks, LookReach::Cached)?)
}

/// `path` itself, symlinks not followed at its end, as a mere place and as far as the kernel has it.
pub(crate) fn open_cached_itself(path: &[u8]) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    open(path, Symlinks::Follow, LookReach::Cached, flags).ok()
}

/// What a symlink says; none if it is something else. Asks its file system.
pub(crate) fn read_link(place: &OwnedFd) -> Option<Vec<u8>> {
    // Of what is no symlink there is nothing to read.
    let target = readlinkat(place, c"", Vec::new()).ok()?;
    Some(target.into_bytes())
}

/// `path`, a directory, as a mere place from which others are opened. May wait for the disk.
///
/// # Errors
/// Those of openat2(2); `ELOOP` for a symlink where those are refused, and for one of /proc that leads to what a
/// process has open.
pub fn open_directory_place(path: &[u8], symlinks: Symlinks) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open(path, symlinks, LookReach::Disk, flags)
}

/// Opens the directory `path` to be read, under the same rules as cached files.
///
/// # Errors
/// Those of openat2(2); `ELOOP` for a symlink where those are refused.
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

/// Asked once: sandboxes do not change while we run.
fn has_openat2() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        openat2(CWD, c"/", flags, Mode::empty(), ResolveFlags::empty()).is_ok()
    })
}

/// Whether the kernel can be asked for what it has in its caches alone (Linux 5.12).
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
