//! Limits of `petrel fcgi-stat-accel`, in addition to those in [`crate::fcgi_program::limits`].

use std::time::Duration;

/// How often a waiting request has the engine check for disk threads that hang, to replace them.
pub(crate) const LOOK_AFTER_EVERY: Duration = Duration::from_secs(1);

/// Files waiting for a disk thread. A further one is answered with 503.
pub(crate) const QUEUED_MAX: usize = 1024;

/// The share of [`QUEUED_MAX`] that files below one document root may take.
pub(crate) const QUEUED_PER_ROOT_MAX: usize = 768;

/// The longest path that Linux accepts, in bytes.
pub(crate) const PATH_BYTES_MAX: usize = 4095;

/// Bytes that one system call reads.
pub(crate) const READ_BYTES: usize = 128 * 1024;
