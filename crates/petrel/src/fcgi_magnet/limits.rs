//! Limits of `petrel fcgi-magnet`, in addition to those in [`crate::fcgi_program::limits`].

use std::time::Duration;

/// The most fields that `get`, `post` and `cookie` each hold, as many as in PHP. Further ones are left out.
pub(crate) const FORM_FIELDS_MAX: usize = 1000;

/// Bytes of request bodies that a worker holds in memory. While it holds that many, new requests get
/// FCGI_OVERLOADED.
pub(crate) const BODIES_BYTES_MAX: usize = 128 << 20;

/// Bytes that a script may print before its head is sent. Until then the script may still change its head,
/// and an error still becomes a 500. After that its output is sent as it comes.
pub(crate) const HEAD_WAIT_BYTES: usize = 64 * 1024;

/// The most unsent bytes a script may have when it prints where it cannot pause: in a function that C code
/// called back.
pub(crate) const UNSENT_WITHOUT_WAIT_BYTES_MAX: usize = 64 << 20;

/// Unsent bytes of a script's log lines. What exceeds them is cut.
pub(crate) const LOG_BYTES_MAX: usize = 64 * 1024;

/// The longest script.
pub(crate) const SCRIPT_BYTES_MAX: u64 = 4 << 20;

/// A script's file is checked for changes at most once in this time.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Time stamps of files are only this fine. So a file that changed less than this before it was read may
/// change again without getting another stamp; the next request reads such a file again.
pub(crate) const SETTLES_IN: Duration = Duration::from_millis(50);
