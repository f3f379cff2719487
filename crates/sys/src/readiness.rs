//! Waiting for any descriptor in a tokio runtime.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers `descriptor` with the current runtime, so that a task can wait until it is readable.
///
/// # Errors
/// Those of epoll_ctl(2).
///
/// # Panics
/// Outside a tokio runtime with I/O enabled.
pub fn readable(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    register(descriptor, Interest::READABLE)
}

/// Registers `descriptor` with the current runtime, so that a task can wait until it is readable or writable.
///
/// # Errors
/// Those of epoll_ctl(2).
///
/// # Panics
/// Outside a tokio runtime with I/O enabled.
pub fn duplex(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    register(descriptor, Interest::READABLE | Interest::WRITABLE)
}

/// Registers `descriptor` with the current runtime, so that a task can wait until it has priority data (EPOLLPRI): for
/// files of /proc that report changes so.
///
/// # Errors
/// Those of epoll_ctl(2).
///
/// # Panics
/// Outside a tokio runtime with I/O enabled.
pub fn priority(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    register(descriptor, Interest::PRIORITY)
}

fn register(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: tokio requires that the descriptor stays open and the same until it is deregistered. An
    // `OwnedFd` is one open descriptor for its whole life. The `AsyncFd` owns it and deregisters it before
    // dropping it. No code can swap it: `get_mut` gives access only to callers that hold the `AsyncFd`
    // mutably, and no caller here calls it.
    unsafe { AsyncFd::register_with_interest(descriptor, interest) }.map_err(Into::into)
}
