//! Everything of `petrel fcgi-magnet` that could grow beside what every program of ours has, and
//! where it ends.

use std::time::Duration;

/// Fields in `get`, `post` and `cookie` each, as many as PHP takes; what comes behind is left out.
pub(crate) const FORM_FIELDS_MAX: usize = 1000;

/// Bytes of request bodies that a worker holds. A request beyond is told that this is overloaded.
pub(crate) const BODIES_BYTES_MAX: usize = 128 << 20;

/// What a script may print before the answer begins: until then it may still change its head, and an
/// error still becomes a 500. From there on the answer goes out as it comes.
pub(crate) const HEAD_WAIT_BYTES: usize = 64 * 1024;

/// What a script may print on top of that where it cannot wait, which is within a function of C.
pub(crate) const UNSENT_WITHOUT_WAIT_BYTES_MAX: usize = 64 << 20;

/// Bytes of what a script logs that wait for being sent; more is cut off.
pub(crate) const LOG_BYTES_MAX: usize = 64 * 1024;

/// The longest script.
pub(crate) const SCRIPT_BYTES_MAX: u64 = 4 << 20;

/// For how long a script that was looked at is not looked at again.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A file that was changed so short a time before it was read may change again without being told apart:
/// the kernel's time stamps are only that fine. It is read anew by the next request.
pub(crate) const SETTLES_IN: Duration = Duration::from_millis(50);
