//! Reads past the page cache: O_DIRECT takes whole blocks only.

use std::ffi::{CStr, CString};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::OnceLock;

use super::ALIGNMENT_BYTES;

/// Opens a file again that is open, for reads past the page cache. Permissions are checked anew.
///
/// # Errors
/// [`is_refusal`](super::is_refusal): its file system cannot. `NotFound`: there is no /proc, nor was there
/// with [`prepare_direct`]. Those of open(2), and `WouldBlock` where a lease would have to be broken.
pub fn open_direct(file: impl AsFd) -> io::Result<OwnedFd> {
    let number = file.as_fd().as_raw_fd().to_string();
    if let Some(directory) = OPEN_FILES.get() {
        return open_in(directory, &CString::new(number)?);
    }
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(libc::O_DIRECT | libc::O_NONBLOCK);
    Ok(options.open(format!("{DIRECTORY}/{number}"))?.into())
}

/// Keeps what [`open_direct`] needs of /proc, for a process that is about to change its root directory. To be
/// called by that process itself: one that was forked before has other files open.
///
/// # Errors
/// There is no /proc, or it may not be looked at.
pub fn prepare_direct() -> io::Result<()> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY);
    // Once is enough: it is the same directory each time.
    let _ = OPEN_FILES.set(options.open(DIRECTORY)?.into());
    Ok(())
}

/// The files that this process has open, by their numbers.
const DIRECTORY: &str = "/proc/self/fd";

static OPEN_FILES: OnceLock<OwnedFd> = OnceLock::new();

fn open_in(directory: impl AsFd, name: &CStr) -> io::Result<OwnedFd> {
    let flags = libc::O_RDONLY | libc::O_DIRECT | libc::O_NONBLOCK | libc::O_CLOEXEC;
    // SAFETY: the kernel copies the name, which ends with a NUL.
    let descriptor = unsafe { libc::openat(directory.as_fd().as_raw_fd(), name.as_ptr(), flags) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was opened a moment ago, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// The whole blocks around a stretch of a file.
///
/// A read of them ends at the end of the file, wherever that is; only its beginning and the length asked
/// for have to be aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectRange {
    /// Where to read.
    pub offset: u64,
    /// How many bytes to read.
    pub length: usize,
    /// How many of them come before those that are wanted.
    pub skip: usize,
    /// How many are wanted.
    pub wanted: usize,
}

impl DirectRange {
    /// What to read for `length` bytes from `offset` on, in at most `capacity` bytes of buffer; wants
    /// fewer if they do not fit. `None` if `capacity` has no room for any.
    #[must_use]
    pub fn around(offset: u64, length: usize, capacity: usize) -> Option<DirectRange> {
        let skip = usize::try_from(offset % ALIGNMENT_BYTES as u64).ok()?;
        let room = capacity - capacity % ALIGNMENT_BYTES;
        let wanted = length.min(room.checked_sub(skip)?);
        let range = DirectRange {
            offset: offset - skip as u64,
            length: (skip + wanted).next_multiple_of(ALIGNMENT_BYTES),
            skip,
            wanted,
        };
        (wanted > 0).then_some(range)
    }

    /// How many of those wanted there are after a read of `count` bytes.
    #[must_use]
    pub fn found(&self, count: usize) -> usize {
        count.saturating_sub(self.skip).min(self.wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read_queue::is_refusal;

    #[test]
    fn files_are_opened_again_by_the_directory_that_was_kept() {
        let file = std::fs::File::open("/proc/self/exe").expect("it runs");
        prepare_direct().expect("there is a /proc");
        prepare_direct().expect("twice as well");
        match open_direct(&file) {
            Ok(direct) => {
                let inode = |file: std::fs::File| {
                    std::os::unix::fs::MetadataExt::ino(&file.metadata().expect("it is open"))
                };
                assert_eq!(inode(direct.into()), inode(file));
            }
            Err(error) => assert!(is_refusal(&error), "{error}"),
        }
    }

    #[test]
    fn whole_blocks_are_read() {
        let range = DirectRange::around(5000, 100, 1 << 20).expect("it fits");
        assert_eq!((range.offset, range.length, range.skip), (4096, 4096, 904));
        assert_eq!(range.found(4096), 100);
        assert_eq!(range.found(1000), 96);
        assert_eq!(range.found(904), 0);
        assert_eq!(range.found(0), 0);
        let range = DirectRange::around(8191, 2, 1 << 20).expect("it fits");
        assert_eq!((range.offset, range.length, range.skip), (4096, 8192, 4095));
    }

    #[test]
    fn what_does_not_fit_is_not_wanted() {
        let range = DirectRange::around(1, 10_000, 9000).expect("some fits");
        assert_eq!((range.length, range.wanted), (8192, 8191));
        assert_eq!(DirectRange::around(1, 10, 4095), None);
        assert_eq!(DirectRange::around(0, 0, 4096), None);
        let range = DirectRange::around(u64::MAX, usize::MAX, 4096).expect("a byte");
        assert_eq!((range.length, range.wanted), (4096, 1));
    }
}
