//! An eventfd: a descriptor that can be read when something has happened.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

pub(super) struct Event(File);

impl Event {
    pub(super) fn new() -> io::Result<Event> {
        // SAFETY: takes two numbers.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was opened a moment ago, and nobody else knows of it.
        Ok(Event(unsafe { OwnedFd::from_raw_fd(descriptor) }.into()))
    }

    /// It has happened. (It cannot fail but when it has already happened 2^64 times.)
    pub(super) fn set(&self) {
        let _ = (&self.0).write(&1_u64.to_ne_bytes());
    }

    /// It has been seen.
    pub(super) fn clear(&self) {
        let _ = (&self.0).read(&mut [0; 8]);
    }

    pub(super) fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until the descriptor can be read, or for `time`.
pub(super) fn wait(descriptor: BorrowedFd<'_>, time: Duration) {
    let mut asked = libc::pollfd {
        fd: descriptor.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let milliseconds = libc::c_int::try_from(time.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: the pointer leads to one `pollfd` that lives through the call.
    unsafe { libc::poll(&mut asked, 1, milliseconds) };
}
