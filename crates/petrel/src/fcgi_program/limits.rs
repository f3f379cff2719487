//! What every FastCGI program of ours could let grow, and where it ends.

use std::time::Duration;

/// Bytes that one read takes from a connection. Shared by all connections of a worker.
pub(crate) const RECEIVE_BYTES: usize = 64 * 1024;

/// Bytes of all pairs of one request, encoded. Web servers send a few KiB; the most that nginx takes
/// from a client is 32 KiB. More is answered with 431.
pub(crate) const PARAMS_BYTES_MAX: usize = 256 * 1024;

/// Requests on one connection at a time. One more is told that this is overloaded.
pub(crate) const REQUESTS_PER_CONNECTION_MAX: usize = 128;

/// Requests of one worker at a time, on all its connections.
pub(crate) const REQUESTS_PER_WORKER_MAX: usize = 4096;

/// Connections of one worker. More wait in the kernel's queue.
pub(crate) const CONNECTIONS_PER_WORKER_MAX: usize = 1024;

/// Bytes that wait for a connection to take them. What would come beyond waits for them to be sent.
pub(crate) const UNSENT_BYTES_MAX: usize = 256 * 1024;

/// For how long a peer may take nothing of what is to be sent.
pub(crate) const STALL_MAX: Duration = Duration::from_secs(60);

/// After a signal to end: for how long requests may go on.
pub(crate) const FINISH_MAX: Duration = Duration::from_secs(10);

/// Bytes of lines that wait to be written to standard error. Further lines are counted.
pub(crate) const UNWRITTEN_LOG_BYTES_MAX: usize = 256 * 1024;

/// When all requests have ended: for how long the last lines may take to be written.
pub(crate) const LAST_WORDS_MAX: Duration = Duration::from_secs(1);

/// Connections that the kernel keeps until they are accepted.
pub(crate) const BACKLOG: u32 = 1024;
