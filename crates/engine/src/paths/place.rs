//! Finds the file system of a path before the path is opened, or when it cannot be opened.
//!
//! A client decides how many parts a path has, so the longest part that can be opened is found by bisection:
//! twelve attempts for two thousand parts. Callers are the look-ups of the file cache and `Origin` of the
//! disk threads.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use super::open::{LookReach, open_cached_itself, open_place, read_link};
use super::{SYMLINKS_MAX, Symlinks, simplify};
use crate::mounts::{self, MountedPlace, Storage};

/// The file system that a path leads to, as far as the kernel's caches tell. Symlinks are followed, because a
/// look-up through a symlink into a file system that hangs must not use the capacity of the local one.
pub(crate) fn place_ahead(path: &[u8], symlinks: Symlinks) -> MountedPlace {
    place_behind(path, symlinks, SYMLINKS_MAX)
}

/// The file system that the absolute `path` leads to, as far as the kernel's caches tell.
pub(crate) fn place_of(path: &[u8]) -> MountedPlace {
    let path = simplify(Path::new(OsStr::from_bytes(path)));
    place_ahead(path.as_os_str().as_bytes(), Symlinks::Follow)
}

/// For a path that cannot be opened: the file system of the last directory on it that can be. May wait.
pub(crate) fn place_of_the_way(path: &[u8]) -> MountedPlace {
    let open = |part: &[u8]| open_place(part, Symlinks::Follow, LookReach::Disk).ok();
    let (place, _) = open_longest(path, open);
    place.map_or(MountedPlace::default(), mounts::of_descriptor)
}

fn place_behind(path: &[u8], symlinks: Symlinks, symlinks_left: u32) -> MountedPlace {
    let said = mounts::of_path(path);
    if symlinks == Symlinks::Refuse || said.storage == Storage::Remote || !mounts::has_remote() {
        return said;
    }
    let open = |part: &[u8]| open_place(part, symlinks, LookReach::Cached).ok();
    let (place, end) = open_longest(path, open);
    let reached = place.map_or(said, mounts::of_descriptor);
    let Some((part, rest)) = end.map(|end| path.split_at(end)) else {
        return reached;
    };
    if reached.storage == Storage::Remote {
        return reached;
    }
    let Some(next) = open_cached_itself(part) else {
        return reached;
    };
    // Reading a symlink may wait, too. On a disk of this machine it is done all the same: the text is nearly
    // always in memory with the inode, and nothing tells if it is not. If this code did not read it, all
    // paths behind symlinks would count as one unknown file system, and would be delayed if one of them
    // hangs. On overlayfs, where the kernel follows no symlink from its caches, that would be every symlink.
    let place = mounts::of_descriptor(&next);
    if place.storage == Storage::Remote {
        return place;
    }
    match (read_link(&next), symlinks_left.checked_sub(1)) {
        (Some(target), Some(left)) => {
            let path = [&beside(part, &target), rest].concat();
            place_behind(&path, symlinks, left)
        }
        _ => reached,
    }
}

/// Opens the longest part of `path` that can be opened, in whole names. Also returns where the first part
/// ends that cannot be opened, if there is one.
fn open_longest(
    path: &[u8],
    open: impl Fn(&[u8]) -> Option<OwnedFd>,
) -> (Option<OwnedFd>, Option<usize>) {
    let slashes = memchr::memchr_iter(b'/', path);
    // The first slash is the root itself.
    let ends: Vec<usize> = slashes
        .map(|slash| slash.max(1))
        .chain([path.len()])
        .collect();
    let (mut reached, mut missed) = (0, ends.len());
    let mut place = None;
    while reached < missed {
        let middle = reached + (missed - reached) / 2;
        match open(&path[..ends[middle].min(path.len())]) {
            Some(opened) => {
                place = Some(opened);
                reached = middle + 1;
            }
            None => missed = middle,
        }
    }
    (place, ends.get(missed).copied())
}

/// The path that the symlink `link` leads to, by its text.
fn beside(link: &[u8], target: &[u8]) -> Vec<u8> {
    let directory = memchr::memrchr(b'/', link).map_or(&b""[..], |slash| &link[..=slash]);
    let path = Path::new(OsStr::from_bytes(directory)).join(OsStr::from_bytes(target));
    simplify(&path).into_os_string().into_vec()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn the_longest_part_that_can_be_opened_is_found_in_few_steps() {
        let path = format!("/here/too{}", "/a".repeat(2000)).into_bytes();
        for known in ["/", "/here", "/here/too", "/here/too/a/a/a"] {
            let (steps, last) = (Cell::new(0), Cell::new(0));
            let open = |part: &[u8]| {
                steps.set(steps.get() + 1);
                let is_there = part == b"/" || known.as_bytes().starts_with(part);
                is_there.then(|| {
                    last.set(part.len());
                    OwnedFd::from(std::fs::File::open("/").expect("it is there"))
                })
            };
            let (place, end) = open_longest(&path, open);
            assert!(place.is_some() && steps.get() <= 12, "{}", steps.get());
            let behind = end.map(|end| &path[..end]).expect("not all of it is there");
            assert_eq!(&path[..last.get()], known.as_bytes());
            assert_eq!(
                memchr::memrchr(b'/', behind).map(|slash| slash.max(1)),
                Some(known.len())
            );
        }
    }

    #[test]
    fn all_or_nothing_of_a_path_may_be_there() {
        let file = || OwnedFd::from(std::fs::File::open("/").expect("it is there"));
        for path in [&b"/"[..], b"/a", b"/a/", b"//a//b", b""] {
            let (place, end) = open_longest(path, |_| Some(file()));
            assert!(place.is_some() && end.is_none());
            let (place, end) = open_longest(path, |_| None);
            assert!(place.is_none() && end.is_some_and(|end| end <= path.len().max(1)));
        }
    }

    #[test]
    fn targets_of_symlinks_are_taken_by_their_text() {
        for (link, target, path) in [
            ("/a/b", "c", "/a/c"),
            ("/a/b", "../c/d", "/c/d"),
            ("/b", "/mnt/c", "/mnt/c"),
            ("/b", "../..", "/"),
        ] {
            assert_eq!(beside(link.as_bytes(), target.as_bytes()), path.as_bytes());
        }
    }
}
