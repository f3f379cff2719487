//! Opening what is below a directory, with no way out of it.
//!
//! openat2(2) with RESOLVE_BENEATH does it in one call (Linux 5.6), but knows no symlink with an
//! absolute target that leads back inside, and may be missing or refused by a sandbox. Then the path
//! is walked part by part, each directory by its descriptor, so that nobody can change what is
//! already behind us. What the kernel has in its caches is asked for at once (RESOLVE_CACHED, Linux 5.12);
//! all else is for threads that may wait.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};

use petrel_engine::blocking::{self, Class, Origin, Running};
use petrel_engine::file_cache::FileEntry;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags, fstat, makedev, openat,
    openat2, readlinkat, statx,
};
use rustix::io::Errno;

use super::sendfile::relative;
use crate::gateway::limits::{CHECKED_FILES_MAX, SYMLINKS_MAX, WALKED_DIRECTORIES_MAX};

/// Whether it is known without waiting that the file of a cache entry is what `relative` leads to without
/// leaving `directory`. If not, [`ask`]. The answer is remembered for as long as the cache believes the
/// entry.
pub(super) fn is_known_beneath(entry: &Rc<FileEntry>, directory: &[u8], relative: &[u8]) -> bool {
    let known = CHECKED.with_borrow(|checked| checked.is_known(entry, directory));
    if known {
        return true;
    }
    let found = open_cached_place(directory, relative);
    let is_beneath = found.is_ok_and(|found| identity(&found) == Some(identity_of(entry)));
    if is_beneath {
        remember(entry, directory);
    }
    is_beneath
}

/// Has a thread look in which of `directories` the file of an entry is, which is at `path` below all of
/// them as text. The answer is to be [remembered](remember).
pub(super) fn ask(
    origin: Origin,
    entry: &FileEntry,
    path: &[u8],
    directories: &[&[u8]],
) -> Running<Option<Box<[u8]>>> {
    let wanted = identity_of(entry);
    let path: Box<[u8]> = path.into();
    let directories: Vec<Box<[u8]>> = directories.iter().map(|&one| one.into()).collect();
    blocking::run_for(Class::Stat, origin, move || {
        directories.into_iter().find(|directory| {
            let found = relative(&path, directory)
                .and_then(|relative| open_place(directory, relative).ok());
            found.is_some_and(|found| identity(&found) == Some(wanted))
        })
    })
}

/// The file of `entry` was found to be in `directory`.
pub(super) fn remember(entry: &Rc<FileEntry>, directory: &[u8]) {
    CHECKED.with_borrow_mut(|checked| checked.remember(entry, directory));
}

/// Opens `relative` below `directory`, whose path is `directory_path`: what a symlink with an absolute
/// target must begin with. Symlinks of /proc that lead to what a process has open are not followed.
///
/// # Errors
/// Those of openat2(2); `XDEV` for what leads out of the directory, `LOOP` for a symlink of /proc and for
/// too many of them.
pub fn open_beneath(
    directory: &OwnedFd,
    directory_path: &[u8],
    relative: &[u8],
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    match openat2(directory, relative, flags, Mode::empty(), resolve) {
        // An absolute symlink, too, is XDEV.
        Err(error) if error == Errno::XDEV || lacks_openat2(error) => {
            walk(directory, Some(directory_path), relative, flags)
        }
        opened => opened,
    }
}

/// Opens `relative` below `directory`. No symlink is followed, the last part included.
///
/// # Errors
/// Those of openat2(2); `ELOOP` for a symlink.
pub(super) fn open_without_symlinks(
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

/// Device and inode.
type Identity = (u64, u64);

fn identity_of(entry: &FileEntry) -> Identity {
    (entry.stat().device, entry.stat().inode)
}

/// Those of what was opened, as far as the kernel knows: nobody is asked.
fn identity(found: &OwnedFd) -> Option<Identity> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    match statx(found, c"", flags, StatxFlags::INO) {
        Ok(stat) => Some((
            makedev(stat.stx_dev_major, stat.stx_dev_minor),
            stat.stx_ino,
        )),
        // A sandbox that knows no statx(2).
        Err(_) => fstat(found).ok().map(|stat| (stat.st_dev, stat.st_ino)),
    }
}

/// [`open_place`] as far as the kernel has the way there in its caches, without symlinks that begin with a
/// slash.
fn open_cached_place(directory: &[u8], relative: &[u8]) -> Result<OwnedFd, Errno> {
    let place = OFlags::PATH | OFlags::CLOEXEC;
    let directory = if directory.is_empty() {
        b"/"
    } else {
        directory
    };
    let flags = place | OFlags::DIRECTORY;
    let cached = ResolveFlags::CACHED;
    let at = openat2(CWD, directory, flags, Mode::empty(), cached)?;
    let resolve = cached | ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    openat2(&at, relative, place, Mode::empty(), resolve)
}

/// Opens the place, not the file: nothing is read from it.
fn open_place(directory: &[u8], relative: &[u8]) -> Result<OwnedFd, Errno> {
    let place = OFlags::PATH | OFlags::CLOEXEC;
    let at = match directory {
        b"" => openat(CWD, c"/", place | OFlags::DIRECTORY, Mode::empty())?,
        path => openat(CWD, path, place | OFlags::DIRECTORY, Mode::empty())?,
    };
    open_beneath(&at, directory, relative, place)
}

/// EAGAIN: something was renamed while a `..` was resolved, so that nothing is certain.
fn lacks_openat2(error: Errno) -> bool {
    matches!(error, Errno::NOSYS | Errno::PERM | Errno::AGAIN)
}

/// Goes from part to part. `root_path` is the path of `root` for symlinks with an absolute target
/// below it; `None` refuses all symlinks.
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
            FileType::Directory if above.len() >= WALKED_DIRECTORIES_MAX => {
                return Err(Errno::NAMETOOLONG);
            }
            FileType::Directory => above.push(next),
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
            _ if to_go.is_empty() => {
                return openat(at, &*part, flags | OFlags::NOFOLLOW, Mode::empty());
            }
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

/// What is left of `target` below `root`; empty for the root itself.
fn below<'t>(target: &'t [u8], root: &[u8]) -> Option<&'t [u8]> {
    let rest = target.strip_prefix(root)?;
    (rest.is_empty() || rest.first() == Some(&b'/')).then_some(rest)
}

/// Entries that were found to be in a directory. A weak reference keeps an entry's place in memory
/// from being used for another one, so the place is a key.
#[derive(Default)]
struct Checked {
    entries: HashMap<*const FileEntry, (Weak<FileEntry>, Box<[u8]>)>,
}

impl Checked {
    fn is_known(&self, entry: &Rc<FileEntry>, directory: &[u8]) -> bool {
        let known = self.entries.get(&Rc::as_ptr(entry));
        known.is_some_and(|(_, of)| **of == *directory)
    }

    fn remember(&mut self, entry: &Rc<FileEntry>, directory: &[u8]) {
        if self.entries.len() >= CHECKED_FILES_MAX {
            self.entries
                .retain(|_, (entry, _)| entry.strong_count() > 0);
        }
        if self.entries.len() >= CHECKED_FILES_MAX {
            self.entries.clear();
        }
        let checked = (Rc::downgrade(entry), directory.into());
        self.entries.insert(Rc::as_ptr(entry), checked);
    }
}

thread_local! {
    /// Of this worker.
    static CHECKED: RefCell<Checked> = RefCell::default();
}

/// Fails unless a walk and openat2 come to the same file, or to none for the same reason.
#[cfg(test)]
pub(super) fn assert_walk_agrees(directory: &[u8], relative: &[u8]) {
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
