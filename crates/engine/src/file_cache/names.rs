//! The names in a watched directory, so that a name that is not there needs no look-up.
//!
//! Scanners, and sites whose URLs are rewritten when no file is there, ask for many names that do not exist, each
//! only once. The kernel's caches do not know such a name, so a disk thread had to look for each. After a name was
//! missing in a directory, the next look-up there also lists the directory. From then on inotify tells which names
//! appear. A list may have names that are gone; those are looked up.

use std::ffi::CString;
use std::hash::BuildHasher;
use std::path::{Path, PathBuf};

use foldhash::fast::FixedState;
use hashbrown::HashSet;
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, fstatfs, openat, statat};
use rustix::io::Errno;

use crate::limits;

/// The hashes of names. Two names may have one hash; then the second one is looked up in vain.
#[derive(Debug, Default)]
pub(super) struct NameList(HashSet<u64, FixedState>);

/// What is known about the names in one directory.
#[derive(Debug, Default)]
pub(super) enum Listing {
    /// Nothing, and no name was missing yet.
    #[default]
    Unknown,
    /// A name was missing: the next look-up lists the directory.
    Due,
    /// The look-up with this number lists the directory. The names have appeared since it began.
    Reading(u64, NameList),
    /// All of them, and perhaps some that are gone.
    Known(NameList),
    /// It cannot be listed, has too many names, does not tell letter case apart, or inotify may miss changes.
    Never,
}

/// A directory that a look-up lists as well.
pub(super) struct ListingOrder {
    pub(super) directory: PathBuf,
    /// The number of [`Listing::Reading`].
    pub(super) number: u64,
}

/// A directory that was listed. `None`: [`Listing::Never`].
pub(super) struct ListedDirectory {
    pub(super) order: ListingOrder,
    pub(super) names: Option<NameList>,
}

impl NameList {
    pub(super) fn add(&mut self, name: &[u8]) {
        self.0.insert(FixedState::default().hash_one(name));
    }

    pub(super) fn has(&self, name: &[u8]) -> bool {
        self.0.contains(&FixedState::default().hash_one(name))
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Adds the names of `other`.
    pub(super) fn extend(&mut self, other: NameList) {
        self.0.extend(other.0);
    }
}

impl ListingOrder {
    /// Lists the directory. Waits for the disk.
    pub(super) fn carry_out(self) -> ListedDirectory {
        ListedDirectory {
            names: read(&self.directory),
            order: self,
        }
    }
}

fn read(directory: &Path) -> Option<NameList> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let directory = openat(CWD, directory, flags, Mode::empty()).ok()?;
    let file_system = fstatfs(&directory).ok()?.f_type as u32;
    if !TOLD_BY_INOTIFY.contains(&file_system) {
        return None;
    }
    let mut list = NameList::default();
    let mut others = Vec::new();
    for entry in Dir::read_from(&directory).ok()? {
        let entry = entry.ok()?;
        let name = entry.file_name();
        list.add(name.to_bytes());
        if list.count() > limits::LISTED_NAMES_MAX {
            return None;
        }
        if others.len() < CASE_PROBES && name.to_bytes().iter().any(u8::is_ascii_alphabetic) {
            others.push(in_other_case(name.to_bytes()));
        }
    }
    // Where letter case does not count, or where this process may not look for a name, that shows here.
    let mut others = others.into_iter().flatten();
    let other = others.find(|name| !list.has(name.as_bytes()))?;
    let found = statat(&directory, &*other, AtFlags::SYMLINK_NOFOLLOW);
    (found.err() == Some(Errno::NOENT)).then_some(list)
}

/// `name` with upper-case letters in place of lower-case ones and the reverse.
fn in_other_case(name: &[u8]) -> Option<CString> {
    let other = name.iter().map(|byte| match byte.is_ascii_alphabetic() {
        true => byte ^ 0x20,
        false => *byte,
    });
    CString::new(other.collect::<Vec<u8>>()).ok()
}

/// Magic numbers of statfs(2) for ext2 to ext4, XFS, Btrfs, tmpfs, overlayfs, F2FS, bcachefs and ZFS. Of others,
/// such as the shared folders of a virtual machine, inotify may not tell all changes; then a name that appears would
/// stay missing.
const TOLD_BY_INOTIFY: [u32; 8] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x0102_1994,
    0x794c_7630,
    0xf2f5_2010,
    0xca45_1a4e,
    0x2fc1_2fc1,
];

/// Names of a directory of which one, in the other case, should not be there.
const CASE_PROBES: usize = 8;
