//! Opens files below a directory in such a way that no path leads out of it.
//!
//! openat2(2) with RESOLVE_BENEATH does that in one call (Linux 5.6). But it refuses a symlink with an
//! absolute target even if the target is inside, and it may be missing or forbidden by a sandbox. Then this
//! code walks the path part by part and holds a descriptor of each directory, so that no process can change
//! the part that was walked already. Waits for the disk. Uses no cache.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2, readlinkat};
use rustix::io::Errno;

use crate::limits::{SYMLINKS_MAX, WALKED_DIRECTORIES_MAX};

/// Opens `relative` below `directory`, whose path is `directory_path`: a symlink with an absolute target must
/// begin with it. Does not follow symlinks of /proc that lead to open files.
///
/// # Errors
/// Those of openat2(2); `XDEV` for a path that leads out of the directory, `LOOP` for a symlink of /proc and
/// for too many symlinks.
pub fn open_beneath(
    directory: &OwnedFd,
    directory_path: &[u8],
    relative: &[u8],
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    match openat2(directory, relative, flags, Mode::empty(), resolve) {
        // An absolute symlink also causes XDEV.
        Err(error) if error == Errno::XDEV || lacks_openat2(error) => {
            walk(directory, Some(directory_path), relative, flags)
        }
        opened => opened,
    }
}

/// Opens `relative` below `directory`. Follows no symlinks, not even at the end of the path.
///
/// # Errors
/// Those of openat2(2); `ELOOP` for a symlink.
pub fn open_without_symlinks(
    directory: &OwnedFd,
    relative: &[u8],
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match openat2(directory, relative, flags, Mode::empty(), resolve) {
        Err(error) if lacks_openat2(error) => walk(directory, None, relative, flags),
        opened => opened,
    }
}

/// Opens `path` like a process whose root directory is `root`, also behind symlinks, because other users may
/// own what is below it. `mode` is for a new file.
///
/// # Errors
/// Those of openat2(2), which this needs (Linux 5.6).
pub fn open_in_root(root: &Path, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let place = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, root, place, Mode::empty())?;
    openat2(root, path, flags, mode, ResolveFlags::IN_ROOT)
}

/// Opens an absolute `path` without openat2(2). Follows no symlinks, not even at the end of the path.
pub(crate) fn open_part_by_part(path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let place = OFlags::PATH | OFlags::CLOEXEC;
    walk(&openat(CWD, c"/", place, Mode::empty())?, None, path, flags)
}

/// Whether openat2(2) is missing, forbidden, or returned EAGAIN because a file was renamed while it resolved
/// a `..`.
fn lacks_openat2(error: Errno) -> bool {
    matches!(error, Errno::NOSYS | Errno::PERM | Errno::AGAIN)
}

/// Walks the path part by part. `root_path` is the path of `root`, for symlinks with an absolute target below
/// it; `None` refuses all symlinks.
fn walk(
    root: &OwnedFd,
    root_path: Option<&[u8]>,
    relative: &[u8],
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let pass = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mut above: Vec<OwnedFd> = Vec::new();
    let mut to_go: Vec<Vec<u8>> = parts_in_reverse(relative);
    let mut symlinks = 0;
    while let Some(part) = to_go.pop() {
        if part == b".." {
            above.pop().ok_or(Errno::XDEV)?;
            continue;
        }
        let at = above.last().unwrap_or(root);
        let next = openat(at, &*part, pass, Mode::empty())?;
        match FileType::from_raw_mode(fstat(&next)?.st_mode) {
            FileType::Symlink => {
                symlinks += 1;
                let root_path = root_path.ok_or(Errno::LOOP)?;
                if symlinks > SYMLINKS_MAX {
                    return Err(Errno::LOOP);
                }
                let target = readlinkat(&next, c"", Vec::new())?.into_bytes();
                let target = match target.first() {
                    Some(b'/') => {
                        above.clear();
                        below(&target, root_path).ok_or(Errno::XDEV)?
                    }
                    _ => &target,
                };
                to_go.extend(parts_in_reverse(target));
            }
            // A directory is opened by its name, too: opening `.` in it would need the right to search it.
            _ if to_go.is_empty() => {
                return openat(at, &*part, flags | OFlags::NOFOLLOW, Mode::empty());
            }
            FileType::Directory if above.len() >= WALKED_DIRECTORIES_MAX => {
                return Err(Errno::NAMETOOLONG);
            }
            FileType::Directory => above.push(next),
            _ => return Err(Errno::NOTDIR),
        }
    }
    openat(above.last().unwrap_or(root), c".", flags, Mode::empty())
}

fn parts_in_reverse(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .map(<[u8]>::to_vec)
        .rev()
        .collect()
}

/// The rest of `target` below `root`; empty for the root itself.
fn below<'t>(target: &'t [u8], root: &[u8]) -> Option<&'t [u8]> {
    let rest = target.strip_prefix(root)?;
    (rest.is_empty() || rest.first() == Some(&b'/')).then_some(rest)
}

/// Fails unless a walk and openat2 lead to the same file, or fail for the same reason.
#[doc(hidden)]
pub fn assert_walk_agrees(directory: &[u8], relative: &[u8]) {
    let place = OFlags::PATH | OFlags::CLOEXEC;
    let at = openat(CWD, directory, place | OFlags::DIRECTORY, Mode::empty()).expect("it is there");
    let inode = |found: Result<OwnedFd, Errno>| {
        let found = found.map_err(Errno::raw_os_error)?;
        Ok::<_, i32>(fstat(found).expect("it is open").st_ino)
    };
    let shown = String::from_utf8_lossy(relative);
    for (root_path, resolve) in [
        (Some(directory), ResolveFlags::BENEATH),
        (None, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS),
    ] {
        let walked = inode(walk(&at, root_path, relative, place));
        let opened = inode(openat2(&at, relative, place, Mode::empty(), resolve));
        assert_eq!(walked, opened, "{shown}");
    }
}
