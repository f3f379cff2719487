//! Opens paths and finds out where they lead, with symlinks followed or refused, and with or without waiting
//! for a disk.
//!
//! Uses no cache. Callers are the file cache, disk threads and directory listings.

mod open;
mod place;

use std::path::{Component, Path, PathBuf};

pub(crate) use open::{
    LookReach, NotOpened, cached_stat, has_resolve_cached, open_and_stat, open_and_stat_telling,
    open_place,
};
pub use open::{open_directory, open_directory_place};
pub(crate) use place::{place_ahead, place_of, place_of_the_way};

/// Whether symlinks in a path are followed (`server.follow-symlink`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Symlinks {
    /// Symlinks are followed.
    Follow,
    /// A symlink anywhere in the path makes it [`FileKind::Denied`](crate::file_cache::FileKind::Denied).
    Refuse,
}

/// Resolves `.` and `..` by text, for the target of a symlink. The result is wrong behind a symlink to a
/// directory elsewhere; the recheck once a second covers that case.
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

/// How many symlinks the kernel follows in one path.
pub(crate) const SYMLINKS_MAX: u32 = 40;
