//! An eventfd: a descriptor that is readable once an event has occurred.

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
        // SAFETY: it was just opened, and no other code knows of it.
        Ok(Event(unsafe { OwnedFd::from_raw_fd(descriptor) }.into()))
    }

    /// Makes the descriptor readable. This fails only if it was called 2^64 times without [`Event::clear`].
    pub(super) fn set(&self) {
        let _ = (&self.0).write(&1_u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable until the next event.
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

/// Waits until the descriptor is readable, for `time` at most.
pub(super) fn wait(descriptor: BorrowedFd<'_>, time: Duration) {
    let mut asked = libc::pollfd {
        fd: descriptor.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let milliseconds = libc::c_int::try_from(time.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: the pointer points to one `pollfd` that lives through the call.
    unsafe { libc::poll(&mut asked, 1, milliseconds) };
}
