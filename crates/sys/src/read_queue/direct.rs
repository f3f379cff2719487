//! Reads past the page cache: O_DIRECT reads whole blocks only.

use std::ffi::{CStr, CString};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::OnceLock;

use super::ALIGNMENT_BYTES;

/// Opens an open file once more for reads past the page cache. The kernel checks the permissions again.
///
/// # Errors
/// [`is_refusal`](super::is_refusal): the file system does not support it. `NotFound`: there is no /proc, and
/// there was none for [`prepare_direct`]. Those of open(2); `WouldBlock` if a lease would have to be broken.
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

/// Opens the directory in /proc that [`open_direct`] needs, for a process that is about to change its root
/// directory. That process itself must call it: a process that it forks has other open files.
///
/// # Errors
/// There is no /proc, or it is not accessible.
pub fn prepare_direct() -> io::Result<()> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY);
    // A second call has nothing to do: the directory is the same.
    let _ = OPEN_FILES.set(options.open(DIRECTORY)?.into());
    Ok(())
}

/// The open files of this process, by their numbers.
const DIRECTORY: &str = "/proc/self/fd";

static OPEN_FILES: OnceLock<OwnedFd> = OnceLock::new();

fn open_in(directory: impl AsFd, name: &CStr) -> io::Result<OwnedFd> {
    let flags = libc::O_RDONLY | libc::O_DIRECT | libc::O_NONBLOCK | libc::O_CLOEXEC;
    // SAFETY: the kernel copies the name, which ends with a NUL.
    let descriptor = unsafe { libc::openat(directory.as_fd().as_raw_fd(), name.as_ptr(), flags) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was just opened, and no other code knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// The whole blocks around a range of a file.
///
/// Reading them ends at the end of the file, which need not be aligned. Only the offset and the requested
/// length must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectRange {
    /// The offset of the read.
    pub offset: u64,
    /// The length of the read.
    pub length: usize,
    /// How many of its bytes come before the wanted ones.
    pub skip: usize,
    /// How many bytes are wanted.
    pub wanted: usize,
}

impl DirectRange {
    /// The read for `length` bytes from `offset`, into a buffer of `capacity` bytes. Wants fewer bytes if
    /// they do not fit. `None` if the buffer has no room for any.
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

    /// How many wanted bytes there are after a read of `count` bytes.
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
