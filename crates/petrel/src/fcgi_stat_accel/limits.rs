//! Everything of `petrel fcgi-stat-accel` that could grow beside what every program of ours has, and
//! where it ends.

use std::time::Duration;

/// A thread that has been with a file for so long does not count any more: another one takes its place,
/// and it goes when the kernel has given it back.
pub const STUCK_AFTER: Duration = Duration::from_secs(2);

/// Threads that are with a file of one document root, on the same file system, for longer than [`STUCK_AFTER`]. From
/// then on the others there stay in the queue, so that a file system that hangs leaves threads for the rest.
pub const STUCK_PER_ROOT_MAX: usize = 64;

/// All threads, those that hang included. From then on none is replaced.
pub const THREADS_MAX: usize = 1024;

/// Files that wait for a thread. One more is answered with 503.
pub const QUEUED_MAX: usize = 1024;

/// Those of them that are below one document root.
pub const QUEUED_PER_ROOT_MAX: usize = 768;

/// The longest path of a file, as Linux has it, in bytes.
pub const PATH_BYTES_MAX: usize = 4095;

/// Bytes that one call reads.
pub const READ_BYTES: usize = 128 * 1024;

/// The stack of a thread that looks at files: its buffer is not on it.
pub const STACK_BYTES: usize = 256 * 1024;
