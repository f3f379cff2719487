//! Reads a directory on a disk thread.
//!
//! Entries are examined with fstatat(2) relative to the directory, except those whose type shows that they
//! are not listed: sockets, pipes and devices are never served. A symlink counts as what it leads to. It is
//! left out where symlinks are refused, and if it leads nowhere. So is an entry whose URL the server would refuse.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use petrel_engine::file_cache::{SharedDescriptor, Symlinks, open_directory};
use petrel_engine::proto::url::{Url, UrlOptions};
use rustix::fs::{AtFlags, Dir, FileType, statat};
use rustix::io::Errno;

use super::entries::{Entries, ListingEntry};
use super::options::ListedNames;

/// What has to be read for a listing.
pub(super) struct WantedDirectory {
    pub(crate) directory: Vec<u8>,
    pub(crate) symlinks: Symlinks,
    pub(crate) names: Arc<ListedNames>,
    pub(crate) url_options: UrlOptions,
    pub(crate) header: AroundFile,
    pub(crate) readme: AroundFile,
}

/// A file that is shown around the list.
pub(super) enum AroundFile {
    /// There is none.
    Nothing,
    /// Its content is in memory.
    Content(Vec<u8>),
    /// It has to be read from this descriptor.
    Open {
        descriptor: SharedDescriptor,
        /// Its length.
        size: usize,
        /// The file system that it is read from.
        device: u64,
    },
}

/// What was read.
pub(super) struct DirectoryContents {
    pub(crate) entries: Entries,
    /// There are more entries than were read.
    pub(crate) is_truncated: bool,
    pub(crate) header: Vec<u8>,
    pub(crate) readme: Vec<u8>,
}

impl WantedDirectory {
    /// Reads the directory. Waits for the disk.
    pub(crate) fn read(self) -> Result<DirectoryContents, Errno> {
        let mut directory = Directory {
            descriptor: open_directory(&self.directory, self.symlinks)?,
            symlinks: self.symlinks,
            entries: Entries::default(),
        };
        let is_truncated = directory.read(&self.names, &self.url_options)?;
        Ok(DirectoryContents {
            entries: directory.entries,
            is_truncated,
            header: self.header.content(),
            readme: self.readme.content(),
        })
    }
}

impl AroundFile {
    /// The file system that reading it waits for; 0 if it waits for none.
    pub(crate) fn device(&self) -> u64 {
        match self {
            AroundFile::Open { device, .. } => *device,
            AroundFile::Nothing | AroundFile::Content(_) => 0,
        }
    }

    /// The bytes of the file; if reading fails, those before the failure.
    fn content(self) -> Vec<u8> {
        let (file, size) = match self {
            AroundFile::Nothing => return Vec::new(),
            AroundFile::Content(bytes) => return bytes,
            AroundFile::Open {
                descriptor, size, ..
            } => (descriptor, size),
        };
        let mut content = vec![0; size];
        let mut filled = 0;
        while let Some(rest) = content.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pread(&*file, rest, filled as u64) {
                Err(Errno::INTR) => {}
                Ok(0) | Err(_) => break,
                Ok(count) => filled += count,
            }
        }
        content.truncate(filled);
        content
    }
}

/// A directory that is being read.
struct Directory {
    descriptor: OwnedFd,
    symlinks: Symlinks,
    entries: Entries,
}

impl Directory {
    /// Whether there are more entries than are read.
    fn read(&mut self, names: &ListedNames, url_options: &UrlOptions) -> Result<bool, Errno> {
        let mut url = Url::new();
        let mut seen = 0;
        for entry in Dir::read_from(&self.descriptor)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if seen >= LISTED_ENTRIES_MAX {
                return Ok(true);
            }
            seen += 1;
            if names.shows(name.to_bytes()) && url.can_name(name.to_bytes(), url_options) {
                self.take(name, entry.file_type());
            }
        }
        Ok(false)
    }

    fn take(&mut self, name: &CStr, kind: FileType) {
        let follows = self.symlinks == Symlinks::Follow;
        match kind {
            FileType::RegularFile | FileType::Directory | FileType::Unknown => {}
            FileType::Symlink if follows => {}
            _ => return,
        }
        let flags = if follows {
            AtFlags::empty()
        } else {
            AtFlags::SYMLINK_NOFOLLOW
        };
        let Ok(stat) = statat(&self.descriptor, name, flags) else {
            return;
        };
        let is_directory = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => true,
            FileType::RegularFile => false,
            _ => return,
        };
        self.entries.push(ListingEntry {
            name: name.to_bytes(),
            is_directory,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified_s: u64::try_from(stat.st_mtime).unwrap_or(0),
        });
    }
}

/// The number of entries that are read. Further ones are left out, and the page says so.
pub(super) const LISTED_ENTRIES_MAX: usize = 100_000;
