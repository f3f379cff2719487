//! Everything of `petrel fcgi-magnet` that could grow, and where it ends.

use std::time::Duration;

/// Bytes that one read takes from a connection. Shared by all connections of a worker.
pub const RECEIVE_BYTES: usize = 64 * 1024;

/// Bytes of all pairs of one request, encoded. Web servers send a few KiB; the most that nginx takes
/// from a client is 32 KiB. More is answered with 431.
pub const PARAMS_BYTES_MAX: usize = 256 * 1024;

/// Fields in `get`, `post` and `cookie` each, as many as PHP takes; what comes behind is left out.
pub const FORM_FIELDS_MAX: usize = 1000;

/// Requests on one connection at a time. One more is told that this is overloaded.
pub const REQUESTS_PER_CONNECTION_MAX: usize = 128;

/// Requests of one worker at a time, on all its connections.
pub const REQUESTS_PER_WORKER_MAX: usize = 4096;

/// Connections of one worker. More wait in the kernel's queue.
pub const CONNECTIONS_PER_WORKER_MAX: usize = 1024;

/// Bytes of request bodies that a worker holds. A request beyond is told that this is overloaded.
pub const BODIES_BYTES_MAX: usize = 128 << 20;

/// What a script may print before the answer begins: until then it may still change its head, and an
/// error still becomes a 500. From there on the answer goes out as it comes.
pub const HEAD_WAIT_BYTES: usize = 64 * 1024;

/// Bytes that wait for a connection to take them. A script that prints beyond waits for them to be
/// sent.
pub const UNSENT_BYTES_MAX: usize = 256 * 1024;

/// What a script may print on top of that where it cannot wait, which is within a function of C.
pub const UNSENT_WITHOUT_WAIT_BYTES_MAX: usize = 64 << 20;

/// Bytes of what a script logs that wait for being sent; more is cut off.
pub const LOG_BYTES_MAX: usize = 64 * 1024;

/// The longest script.
pub const SCRIPT_BYTES_MAX: u64 = 4 << 20;

/// For how long a script that was looked at is not looked at again.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Scripts of which it is known when they were looked at.
pub const LOOKS_MAX: usize = 4096;

/// A file that was changed so short a time before it was read may change again without being told apart:
/// the kernel's time stamps are only that fine. It is read anew by the next request.
pub const SETTLES_IN: Duration = Duration::from_millis(50);

/// For how long a peer may take nothing of what is to be sent.
pub const STALL_MAX: Duration = Duration::from_secs(60);

/// After a signal to end: for how long requests may go on.
pub const FINISH_MAX: Duration = Duration::from_secs(10);
