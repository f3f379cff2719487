//! Memory that files are read into.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};

/// The alignment that O_DIRECT needs for addresses, offsets and lengths. Devices with larger sectors refuse
/// it.
pub const ALIGNMENT_BYTES: usize = 4096;

/// The size of the largest buffer.
pub const BUFFER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Memory in its own pages, whose address and length are aligned to [`ALIGNMENT_BYTES`].
///
/// Only the bytes of the last read can be seen: earlier content may belong to another client.
///
/// The memory of a buffer from [`in_file`](Buffer::in_file) is also a file without a name, so that
/// sendfile(2) can send it. Sockets then refer to its pages until the client has the bytes, long after
/// sendfile has returned. So a buffer whose file was used gets new memory for its next read.
/// has returned. So a buffer whose file was shown gets new memory with its next read.
pub struct Buffer {
    memory: NonNull<u8>,
    /// The size of the mapping; not 0.
    capacity: usize,
    /// How many bytes the last read brought.
    filled: usize,
    /// The file that is mapped, if there is one.
    file: Option<OwnedFd>,
    /// Whether the file may have been used.
    shown: AtomicBool,
}

impl Buffer {
    /// A buffer for reads of up to `bytes`. Uses memory only once it is written to.
    ///
    /// # Errors
    /// `InvalidInput` for more than [`BUFFER_BYTES_MAX`]; ENOMEM.
    pub fn new(bytes: usize) -> io::Result<Buffer> {
        Buffer::map(rounded(bytes)?, None)
    }

    /// Like [`Buffer::new`], with memory that is also a file. Needs Linux 5.1.
    ///
    /// # Errors
    /// Also those of memfd_create(2) and fcntl(2).
    pub fn in_file(bytes: usize) -> io::Result<Buffer> {
        let capacity = rounded(bytes)?;
        let file = memory_file(capacity)?;
        let buffer = Buffer::map(capacity, Some(file))?;
        buffer.seal()?;
        Ok(buffer)
    }

    /// The size of the buffer in bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many bytes the last read brought.
    #[must_use]
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// The first `length` bytes that were read, or all if there are fewer.
    #[must_use]
    pub fn as_slice(&self, length: usize) -> &[u8] {
        let length = length.min(self.filled);
        // SAFETY: the mapping has `capacity` bytes, which is at least `filled`. All of those are initialised
        // by the kernel, and the mapping lives as long as `self`. Nothing writes to it while it is borrowed:
        // the only writers are reads, and a queue owns the buffer during a read; the file was sealed against
        // other writers before any code could get it.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), length) }
    }

    /// Whether the memory is also a file.
    #[must_use]
    pub fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// The file, and the offset of the buffer in it. It is read-only.
    #[must_use]
    pub fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        let file = self.file.as_ref()?;
        self.shown.store(true, Ordering::Relaxed);
        Some((file.as_fd(), 0))
    }

    /// Prepares a read: the earlier content is gone.
    pub(super) fn begin(&mut self) -> io::Result<()> {
        if *self.shown.get_mut() {
            *self = Buffer::in_file(self.capacity)?;
        }
        self.filled = 0;
        Ok(())
    }

    /// Ends a read that brought `bytes`.
    pub(super) fn end(&mut self, bytes: usize) {
        self.filled = bytes.min(self.capacity);
    }

    /// The memory for a read: `capacity` bytes.
    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.memory.as_ptr()
    }

    fn map(capacity: usize, file: Option<OwnedFd>) -> io::Result<Buffer> {
        let kind = match file {
            Some(_) => libc::MAP_SHARED,
            None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        };
        let descriptor = file.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: without an address and without MAP_FIXED the kernel puts the mapping where nothing is
        // mapped.
        let memory =
            unsafe { libc::mmap(ptr::null_mut(), capacity, protection, kind, descriptor, 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Buffer {
            memory,
            capacity,
            filled: 0,
            file,
            shown: AtomicBool::new(false),
        })
    }

    /// Allows no writes except through the existing mapping, and no change of the length. So the bytes of a
    /// slice cannot change and accessing them cannot cause SIGBUS, whatever another owner of the descriptor
    /// does.
    fn seal(&self) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let seals =
            libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
        // SAFETY: changes a property of an open file; no memory is involved.
        match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

// SAFETY: the memory belongs to the buffer alone, on whichever thread it is.
unsafe impl Send for Buffer {}

// SAFETY: through a shared reference the memory is only read; every write begins with a mutable reference.
unsafe impl Sync for Buffer {}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: `map` made the mapping with this address and length. It is unmapped nowhere else, and all
        // slices of it borrowed `self`. While a read writes to it, a queue owns the buffer and does not drop
        // it.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.capacity) };
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.as_slice(self.filled)
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Buffer")
            .field("capacity", &self.capacity)
            .field("filled", &self.filled)
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

fn rounded(bytes: usize) -> io::Result<usize> {
    if bytes > BUFFER_BYTES_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(bytes.max(1).next_multiple_of(ALIGNMENT_BYTES))
}

/// A file in memory that is full of zeros.
fn memory_file(bytes: usize) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // Without MFD_NOEXEC_SEAL the kernel logs a warning about files that could be executed. Before Linux 6.3
    // it does not know the flag.
    let file = match create_memory_file(flags | libc::MFD_NOEXEC_SEAL) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => create_memory_file(flags)?,
        created => created?,
    };
    let length = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: changes the length of a file that is not mapped; no memory is involved.
    match unsafe { libc::ftruncate(file.as_raw_fd(), length) } {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}

fn create_memory_file(flags: libc::c_uint) -> io::Result<OwnedFd> {
    // SAFETY: the kernel copies the name, which ends with a NUL.
    let descriptor = unsafe { libc::memfd_create(c"petrel-read".as_ptr(), flags) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was just opened, and no other code knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    /// Does what a read does, without a queue.
    fn fill(buffer: &mut Buffer, bytes: &[u8]) {
        buffer.begin().expect("there is memory");
        assert!(bytes.len() <= buffer.capacity());
        // SAFETY: the mapping is long enough and not borrowed.
        unsafe { ptr::copy(bytes.as_ptr(), buffer.as_mut_ptr(), bytes.len()) };
        buffer.end(bytes.len());
    }

    #[test]
    fn only_what_was_read_is_shown() {
        for mut buffer in [Buffer::new(5000), Buffer::in_file(5000)].map(Result::unwrap) {
            assert_eq!(buffer.capacity(), 8192);
            assert_eq!(buffer.memory.as_ptr().addr() % ALIGNMENT_BYTES, 0);
            assert_eq!(buffer.as_slice(100), b"");
            fill(&mut buffer, b"secret of another");
            assert_eq!(buffer.as_slice(6), b"secret");
            fill(&mut buffer, b"mine");
            assert_eq!(buffer.as_slice(usize::MAX), b"mine");
            assert_eq!(buffer.as_ref(), b"mine");
            buffer.begin().expect("there is memory");
            assert_eq!(buffer.as_slice(6), b"");
        }
    }

    #[test]
    fn lengths_have_limits() {
        assert_eq!(Buffer::new(0).unwrap().capacity(), ALIGNMENT_BYTES);
        let error = Buffer::new(BUFFER_BYTES_MAX + 1).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(Buffer::in_file(usize::MAX).is_err());
    }

    #[test]
    fn the_file_can_be_read_only() {
        let mut buffer = Buffer::in_file(4096).unwrap();
        fill(&mut buffer, b"bytes");
        let (descriptor, offset) = buffer.file().expect("it has one");
        let mut file = File::from(descriptor.try_clone_to_owned().unwrap());
        let mut found = [0; 5];
        file.read_exact_at(&mut found, offset).unwrap();
        assert_eq!(&found, b"bytes");
        file.write_all(b"other").expect_err("sealed");
        file.set_len(0).expect_err("sealed");
        file.set_len(1 << 20).expect_err("sealed");
        assert_eq!(buffer.as_slice(5), b"bytes");
    }

    #[test]
    fn sockets_keep_what_they_were_given() {
        let mut buffer = Buffer::in_file(4096).unwrap();
        fill(&mut buffer, b"first");
        assert_eq!(Buffer::new(1).unwrap().file().map(|_| ()), None);
        let (descriptor, _) = buffer.file().expect("it has one");
        let first = File::from(descriptor.try_clone_to_owned().unwrap());
        fill(&mut buffer, b"other");
        let mut found = [0; 5];
        first.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"first");
        let (descriptor, _) = buffer.file().expect("it has one");
        let second = File::from(descriptor.try_clone_to_owned().unwrap());
        second.read_exact_at(&mut found, 0).unwrap();
        assert_eq!(&found, b"other");
    }
}
