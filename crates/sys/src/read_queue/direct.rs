//! Reads past the page cache: O_DIRECT takes whole blocks only.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use super::ALIGNMENT_BYTES;

/// Opens a file again that is open, for reads past the page cache. Permissions are checked anew.
///
/// # Errors
/// [`is_refusal`](super::is_refusal): its file system cannot. `NotFound`: there is no /proc. Those of open(2),
/// and `WouldBlock` where a lease would have to be broken.
pub fn open_direct(file: impl AsFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(libc::O_DIRECT | libc::O_NONBLOCK);
    Ok(options.open(path)?.into())
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
