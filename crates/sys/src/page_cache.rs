//! How much of a file is in the page cache, by cachestat(2).
//!
//! The call reads nothing: it brings no page into memory and waits for no disk. It costs some nanoseconds for
//! each page.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

/// How many pages of a part of a file are in which state.
///
/// The fields are those of the kernel's `struct cachestat`, in the same order.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Residency {
    /// Pages in memory.
    pub cached: u64,
    /// Pages in memory that are not written to the disk yet.
    dirty: u64,
    /// Pages in memory that are being written.
    in_writeback: u64,
    /// Pages that have left memory and that the kernel remembers.
    pub evicted: u64,
    /// Those of `evicted` that slightly more memory would have kept.
    recently_evicted: u64,
}

/// How much of `range` (in bytes) is in the page cache.
///
/// # Errors
/// `Unsupported` (ENOSYS) before Linux 6.5; EPERM if this process neither owns the file nor may write to it
/// (kernels since the beginning of 2025); EOPNOTSUPP for hugetlbfs.
pub fn residency(file: impl AsFd, range: Range<u64>) -> io::Result<Residency> {
    // For an empty range the kernel would count all that follows.
    let Some(length) = range
        .end
        .checked_sub(range.start)
        .filter(|length| *length > 0)
    else {
        return Ok(Residency::default());
    };
    let stretch = Stretch {
        offset: range.start,
        length,
    };
    let mut answer = Residency::default();
    let descriptor = file.as_fd().as_raw_fd();
    // SAFETY: the kernel reads a `struct cachestat_range` and writes a `struct cachestat`. The two types here
    // have the same layout and live through the call, and the kernel keeps no pointer to them. The descriptor
    // is borrowed, so it is open.
    let result = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            descriptor,
            &raw const stretch,
            &raw mut answer,
            0,
        )
    };
    match result {
        0 => Ok(answer),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The kernel's `struct cachestat_range`.
#[repr(C)]
struct Stretch {
    offset: u64,
    length: u64,
}

/// The same number on all architectures that have Rust's standard library. libc does not have it yet.
const SYS_CACHESTAT: libc::c_long = 451;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// `None` if the kernel is too old.
    fn told(file: &std::fs::File, range: Range<u64>) -> Option<Residency> {
        match residency(file, range) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => None,
            told => Some(told.expect("a file of ours")),
        }
    }

    #[test]
    fn what_was_just_written_is_in_memory() {
        let path = std::env::temp_dir().join(format!("petrel-residency-{}", std::process::id()));
        let mut file = std::fs::File::create(&path).expect("a writable directory");
        std::fs::remove_file(&path).expect("it was made");
        file.write_all(&[1; 64 * 1024]).expect("it is written");
        let Some(all) = told(&file, 0..64 * 1024) else {
            return;
        };
        let pages = all.cached;
        assert!((1..=16).contains(&pages), "{all:?}");
        assert_eq!(told(&file, 1 << 30..1 << 31), Some(Residency::default()));
        assert_eq!(told(&file, 7..7), Some(Residency::default()));
        #[expect(clippy::reversed_empty_ranges)]
        let backwards = told(&file, 7..3);
        assert_eq!(backwards, Some(Residency::default()));
    }

    #[test]
    fn a_file_of_another_user_is_not_told_about() {
        let told = std::thread::spawn(|| {
            // SAFETY: the raw system call changes the user of this thread alone, unlike the function of the C
            // library. It fails if this process is not root.
            unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
            let file = std::fs::File::open("/etc/passwd").expect("everybody may read it");
            residency(&file, 0..1).expect_err("not ours")
        });
        let kind = told.join().expect("no panic").kind();
        let kinds = [io::ErrorKind::PermissionDenied, io::ErrorKind::Unsupported];
        assert!(kinds.contains(&kind), "{kind}");
    }

    const NOBODY: libc::uid_t = 65534;
}
