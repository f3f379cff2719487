//! Everything of `petrel fcgi-stat-accel` that could grow beside what every program of ours has, and
//! where it ends.

use std::time::Duration;

/// How often a request that waits has the engine replace threads that hang.
pub(crate) const LOOK_AFTER_EVERY: Duration = Duration::from_secs(1);

/// Files that wait for a thread. One more is answered with 503.
pub(crate) const QUEUED_MAX: usize = 1024;

/// Those of them that are below one document root.
pub(crate) const QUEUED_PER_ROOT_MAX: usize = 768;

/// The longest path of a file, as Linux has it, in bytes.
pub(crate) const PATH_BYTES_MAX: usize = 4095;

/// Bytes that one call reads.
pub(crate) const READ_BYTES: usize = 128 * 1024;
