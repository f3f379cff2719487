//! Waiting for any descriptor in a tokio runtime.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers `descriptor` with the current runtime, to wait until it can be read.
///
/// # Errors
/// Those of epoll_ctl(2).
///
/// # Panics
/// Outside a tokio runtime with I/O enabled.
pub fn readable(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    register(descriptor, Interest::READABLE)
}

/// Registers `descriptor` with the current runtime, to wait until it can be read or written.
///
/// # Errors
/// Those of epoll_ctl(2).
///
/// # Panics
/// Outside a tokio runtime with I/O enabled.
pub fn duplex(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    register(descriptor, Interest::READABLE | Interest::WRITABLE)
}

fn register(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: tokio asks that the descriptor stays open and the same until it is deregistered.
    // An `OwnedFd` names one open descriptor for its whole life, the `AsyncFd` owns it and
    // deregisters before dropping it, and nobody can swap it: `get_mut` gives a new `OwnedFd`
    // only to callers who hold the `AsyncFd` mutably, which none of ours does.
    unsafe { AsyncFd::register_with_interest(descriptor, interest) }.map_err(Into::into)
}
