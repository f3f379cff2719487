//! Paths of the file system: how they are opened, and where they lead, with symlinks followed or refused, and with or
//! without waiting for a disk.
//!
//! Knows nothing of what is remembered about files; the file cache, the threads that wait for disks and listings ask it.

mod open;
mod place;

use std::path::{Component, Path, PathBuf};

pub(crate) use open::{
    LookReach, NotOpened, cached_stat, has_resolve_cached, open_and_stat, open_place,
};
pub use open::{open_directory, open_directory_place};
pub(crate) use place::{place_ahead, place_of, place_of_the_way};

/// How symlinks in a path are taken (`server.follow-symlink`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Symlinks {
    /// Like any other name.
    Follow,
    /// A symlink anywhere in the path makes it [`FileKind::Denied`](crate::file_cache::FileKind::Denied).
    Refuse,
}

/// Resolves `.` and `..` by text, as far as the target of a symlink needs it. Wrong only behind
/// a symlink to a directory elsewhere, where the recheck once a second still holds.
pub(crate) fn simplify(path: &Path) -> PathBuf {
    let mut simple = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                simple.pop();
            }
            other => simple.push(other),
        }
    }
    simple
}

/// As many symlinks as the kernel follows in one path.
pub(crate) const SYMLINKS_MAX: u32 = 40;
