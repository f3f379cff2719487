//! Memory that several processes of one server use: words that are read and written atomically.
//!
//! The memory is a memfd that is mapped before a process forks. Children inherit the mapping, and the memory
//! is there as long as one process has it. Its descriptor can be given to another program: by it the memory
//! can be read, and neither written to nor cut.

use std::ffi::CStr;
use std::io;
use std::ops::{Deref, Range};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A part of shared memory, or words of this process alone. As cheap to read as a slice.
#[derive(Clone)]
pub struct Words {
    start: NonNull<AtomicU64>,
    count: usize,
    /// What `start` points into.
    owner: Arc<Owner>,
}

/// Memory that is unmapped or freed when the last [`Words`] in it are dropped.
struct Owner {
    start: NonNull<AtomicU64>,
    count: usize,
    kind: Kind,
}

enum Kind {
    Mapping,
    Heap,
}

// SAFETY: the memory of an `Owner` is only read and written through `&AtomicU64`, which threads may share.
// The pointers are written once, when the value is made, and `drop` of the owner runs when the last clone of
// its `Arc` is gone.
unsafe impl Send for Owner {}
// SAFETY: as above.
unsafe impl Sync for Owner {}
// SAFETY: as above; `owner` keeps the memory behind `start` alive wherever the value goes.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Makes shared memory of `count` words, all zero. Pages that no process touches take no memory. `name`
    /// is shown in /proc. The descriptor is closed on exec.
    ///
    /// # Errors
    /// Those of memfd_create(2) and mmap(2); `InvalidInput` before Linux 5.1, which has no
    /// F_SEAL_FUTURE_WRITE.
    pub fn shared(name: &CStr, count: usize) -> io::Result<(Words, OwnedFd)> {
        let bytes = count
            .checked_mul(size_of::<u64>())
            .filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or(io::ErrorKind::InvalidInput)?;
        let length = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name ends with a zero byte and lives through the call.
        let descriptor = check(unsafe { libc::memfd_create(name.as_ptr(), flags) })?;
        // SAFETY: the kernel has just made this descriptor, and no other value owns it.
        let file = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // SAFETY: these calls take numbers only, and the descriptor is open.
        check(unsafe { libc::fchmod(file.as_raw_fd(), 0o600) })?;
        // SAFETY: as above.
        check(unsafe { libc::ftruncate(file.as_raw_fd(), length) })?;
        seal(&file, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)?;
        // SAFETY: without MAP_FIXED the kernel chooses a range that nothing else uses.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::InvalidData)?;
        // From here `drop` unmaps the memory. The file cannot shrink any more, so every page of the mapping
        // exists.
        let words = Words::new(start, count, Kind::Mapping);
        // This mapping stays writable; no other one can be made, and write(2) fails.
        seal(&file, libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL)?;
        Ok((words, file))
    }

    /// Makes `count` words, all zero, that belong to this process.
    pub fn private(count: usize) -> Words {
        let content: Box<[u64]> = vec![0; count].into();
        // An AtomicU64 has the size and the bits of a u64, and on 64-bit targets its alignment.
        const { assert!(align_of::<AtomicU64>() == align_of::<u64>()) };
        let start = NonNull::from(Box::leak(content)).cast();
        Words::new(start, count, Kind::Heap)
    }

    fn new(start: NonNull<AtomicU64>, count: usize, kind: Kind) -> Words {
        Words {
            start,
            count,
            owner: Arc::new(Owner { start, count, kind }),
        }
    }

    /// The words in `range`. `None`: there are not that many.
    pub fn part(&self, range: Range<usize>) -> Option<Words> {
        let part = self.get(range)?;
        Some(Words {
            start: NonNull::from(part).cast(),
            count: part.len(),
            owner: Arc::clone(&self.owner),
        })
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: `start` and `count` are those of a whole owner, or of a slice of one, so the words lie in
        // its memory, which `owner` keeps. That memory is initialised (the kernel's and `vec!`'s zeroes),
        // aligned (to a page, or as u64), and only used as atomics. Other processes that have it mapped are
        // children of the one that made it, and use it in the same way. The memory cannot vanish: the size of
        // the file is sealed.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        match self.kind {
            // SAFETY: this is the range that mmap returned, and no `Words` point into it any more: each has a
            // clone of the `Arc` whose last clone is dropped now.
            Kind::Mapping => unsafe {
                libc::munmap(self.start.as_ptr().cast(), self.count * size_of::<u64>());
            },
            // SAFETY: pointer and length come from a `Box<[u64]>` that was leaked in `private`, and no
            // `Words` point into it any more.
            Kind::Heap => unsafe {
                let content = ptr::slice_from_raw_parts_mut(self.start.as_ptr().cast(), self.count);
                drop(Box::<[u64]>::from_raw(content));
            },
        }
    }
}

fn seal(file: &OwnedFd, seals: libc::c_int) -> io::Result<()> {
    // SAFETY: the call takes numbers only, and the descriptor is open.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(())
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn what_is_written_is_read_by_the_descriptor_which_cannot_change_it() {
        let (words, file) = Words::shared(c"petrel-test", 1024).expect("the kernel has memfd");
        words[1000].store(u64::from_ne_bytes(*b"recorder"), Relaxed);
        let mut file = File::from(file);
        let mut read = [0; 8];
        file.read_exact_at(&mut read, 8000).expect("it is there");
        assert_eq!(&read, b"recorder");
        assert!(file.write(b"x").is_err());
        assert!(file.set_len(8).is_err());
        assert!(file.set_len(80_000).is_err());
    }

    #[test]
    fn a_part_outlives_the_whole() {
        for whole in [
            Words::shared(c"petrel-test", 600).expect("memfd").0,
            Words::private(600),
        ] {
            let part = whole.part(590..600).expect("it is inside");
            assert!(whole.part(590..601).is_none());
            drop(whole);
            part[9].store(7, Relaxed);
            assert_eq!((part.len(), part[9].load(Relaxed)), (10, 7));
        }
    }

    #[test]
    fn no_words_are_no_memory() {
        assert!(Words::shared(c"petrel-test", 0).is_err());
        assert!(Words::shared(c"petrel-test", usize::MAX).is_err());
        assert!(Words::private(0).is_empty());
    }
}
