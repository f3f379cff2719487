//! Limits that all of our FastCGI programs share.

use std::time::Duration;

/// Bytes that one read takes from a connection. All connections of a worker share one buffer of this size.
pub(crate) const RECEIVE_BYTES: usize = 64 * 1024;

/// Bytes of all name-value pairs of one request, encoded. Web servers send a few KiB; nginx takes at most 32
/// KiB from a client. More is answered with 431.
pub(crate) const PARAMS_BYTES_MAX: usize = 256 * 1024;

/// Requests on one connection at the same time. A further one gets FCGI_OVERLOADED.
pub(crate) const REQUESTS_PER_CONNECTION_MAX: usize = 128;

/// Requests of one worker at the same time, on all its connections.
pub(crate) const REQUESTS_PER_WORKER_MAX: usize = 4096;

/// Connections of one worker. Further ones wait in the kernel's queue.
pub(crate) const CONNECTIONS_PER_WORKER_MAX: usize = 1024;

/// Bytes waiting to be sent on a connection. Requests pause their output while there are more.
pub(crate) const UNSENT_BYTES_MAX: usize = 256 * 1024;

/// How long a web server may leave all output unread.
pub(crate) const STALL_MAX: Duration = Duration::from_secs(60);

/// How long open requests may continue after a signal to end.
pub(crate) const FINISH_MAX: Duration = Duration::from_secs(10);

/// Bytes of log lines waiting to be written to standard error. Further lines are dropped and counted.
pub(crate) const UNWRITTEN_LOG_BYTES_MAX: usize = 256 * 1024;

/// How long the last log lines may take to be written after all requests have ended.
pub(crate) const LAST_WORDS_MAX: Duration = Duration::from_secs(1);

/// Connections that the kernel queues until a worker accepts them.
pub(crate) const BACKLOG: u32 = 1024;
