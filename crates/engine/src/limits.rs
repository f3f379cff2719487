//! The limit of every queue, table and buffer of the engine that could grow, with its reason.
//!
//! Limits that an operator may want to change are directives (`crate::settings::core`). Those in this file
//! are protections that should never need a change.

/// Bytes that a worker reads from a socket at once. Each worker has one such buffer, and connections have
/// none.
pub const RECEIVE_BUFFER_BYTES: usize = 64 * 1024;

/// Files up to this size are kept in memory by the file cache, and are sent together with their head. For
/// larger files sendfile(2) is cheaper than copying (72 ms of CPU a GB against 111), which pays for the
/// second system call from about this size on.
pub const FILE_IN_MEMORY_BYTES_MAX: u64 = 32 * 1024;

/// Seconds a file must be unchanged before workers share its content.
pub(crate) const CONTENT_SETTLED_S: u64 = 2;

/// Bytes of file contents and paths that the file cache of a worker keeps in memory. Contents that several
/// workers use are stored once.
pub(crate) const FILE_CACHE_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Entries (files, directories, missing names) a worker's file cache holds.
pub(crate) const FILE_CACHE_ENTRIES_MAX: usize = 65_536;

/// Directories that a worker watches by inotify. Further entries have a short lifetime instead.
pub(crate) const WATCHED_DIRECTORIES_MAX: usize = 16_384;

/// Names of one directory that a worker remembers, 8 bytes each, to know which ones are missing.
pub(crate) const LISTED_NAMES_MAX: usize = 32_768;

/// The same of all directories: 4 MiB of a worker.
pub(crate) const LISTED_NAMES_OF_ALL_MAX: usize = 262_144;

/// The lifetime in seconds of an entry whose changes inotify cannot see (NFS, FUSE, too many directories).
/// Also the time after which an entry whose file has changed recently is rechecked.
pub(crate) const FILE_RECHECK_S_MIN: u32 = 1;

/// The longest time in seconds between two rechecks of a file that has not changed for long.
pub(crate) const FILE_RECHECK_S_MAX: u32 = 10;

/// The longest physical path that is looked up. The kernel's PATH_MAX is 4096.
pub const PATH_BYTES_MAX: usize = 4095;

/// How often one exchange may go back to an earlier phase (error handlers, rewrites, Lua's 99).
pub const RESTARTS_MAX: u8 = 10;

/// Hosts whose settings a worker caches. A full table is emptied.
pub(crate) const HOST_SCOPES_MAX: usize = 4096;

/// Distinct sets of merged settings a worker keeps for one host.
pub(crate) const SETTINGS_PER_HOST_MAX: usize = 4096;

/// Bytes of an unwanted request body that are read and dropped after the response, to keep the connection
/// alive. If more are left, the connection is closed.
pub(crate) const DISCARD_BODY_BYTES_MAX: u64 = 256 * 1024;

/// Bytes of the first line of a refused request head that are kept for logs.
pub(crate) const REFUSED_LINE_BYTES_MAX: usize = 1024;

/// Seconds that a client has to send the rest of a body that is not wanted any more, after the response.
pub(crate) const DISCARD_S: u32 = 2;

/// Seconds for which a connection is still read after its sending side was closed, so that no reset destroys
/// the response. As long as in lighttpd. When connections or descriptors run short it is less.
pub(crate) const LINGER_S: u32 = 5;

/// Seconds for which a server process that a reload has replaced may continue with its requests, unless
/// `server.drain-timeout` or `server.graceful-shutdown-timeout` is set. Longer than almost every download and
/// tunnel takes, but a client that never ends must not keep an old configuration forever.
pub(crate) const DRAIN_S_DEFAULT: u32 = 24 * 3600;

/// How many replaced server processes may exist at a time, unless `server.drain-generations` is set. Each
/// needs memory for its open connections, and threads.
pub(crate) const DRAIN_GENERATIONS_DEFAULT: u16 = 4;

/// Seconds that a graceful stop leaves to requests, unless `server.graceful-shutdown-timeout` is set. This is
/// lighttpd's default.
pub(crate) const STOP_S_DEFAULT: u32 = 8;

/// Seconds for which an idle client of a replaced server process may still send a request. So a request that
/// is on its way, or the next one of a client that sends all the time, gets a response with `Connection:
/// close`.
pub(crate) const IDLE_DRAIN_S: u32 = 1;

/// Milliseconds in which a client can still receive the 503 that replaces a response that was cut off.
pub const CUT_MS: u64 = 500;

/// inotify events that a worker reads before it does other work.
pub(crate) const INOTIFY_EVENTS_AT_ONCE_MAX: usize = 1024;

/// Exchanges (request and response buffers) that a worker keeps for reuse, and objects of connections.
pub(crate) const EXCHANGE_POOL_MAX: usize = 256;

/// Bytes of capacity that each such buffer may keep. An exchange with a larger buffer is freed; a larger
/// buffer of a connection is shrunk.
pub const POOLED_BUFFER_BYTES_MAX: usize = 16 * 1024;

/// Variables of a request ([`Environment`](crate::exchange::Environment)) whose buffers the next one gets.
pub(crate) const POOLED_VARIABLES_MAX: usize = 16;

/// Bytes of capacity that name and value of such a variable may have together.
pub(crate) const POOLED_VARIABLE_BYTES_MAX: usize = 1024;

/// Pieces of a body in memory up to this size are copied after the head and sent with it: for the kernel a
/// second vector element costs more than the copy.
pub(crate) const INLINED_PIECE_BYTES_MAX: usize = 4096;

/// Bytes that a connection sends before other connections of the worker run.
pub(crate) const SEND_TURN_BYTES: u64 = 1024 * 1024;

/// The same for a client that has not been seen to read, and the number of unsent bytes that the kernel may
/// queue for it. Without this limit the kernel's buffer would grow to 4 MiB, and filling it for 300 clients
/// that do not read costs 0.1 s of CPU. A fast client reads about this much while the worker serves each of
/// its connections once, and a file of 100 KiB stays below it and needs no extra system call.
pub(crate) const UNPROVEN_TURN_BYTES: u32 = 128 * 1024;

/// Bytes that a send counts for at least: its system call takes as long as copying them. Without it, a script
/// that writes single bytes occupied the worker for a hundred thousand sends.
pub(crate) const SEND_COST_BYTES: u64 = 1024;

/// Bytes of a request body, of a request to a backend or of its reply that one connection moves before others
/// run. A fast sender always has more: without a limit one connection occupied the worker for 8 MiB. A round
/// of 300 such connections takes about 20 ms.
pub const TURN_BYTES: u64 = 128 * 1024;

/// Requests that are answered on one connection before others run.
pub(crate) const REQUESTS_PER_TURN: u32 = 32;

/// Requests in one second that mean that a client may be about to send more: a page has many parts, and a
/// browser requests a few of them at a time.
pub(crate) const HTTP2_REQUESTS_CROWDED: u32 = 3;

/// Seconds for which the GOAWAY for such a client is delayed at most.
pub(crate) const HTTP2_CROWDED_S_MAX: u32 = 10;

/// Bytes of a DATA frame: with its header it fits into one TLS record.
pub(crate) const HTTP2_DATA_BYTES_MAX: u32 = TLS_RECORD_BYTES_MAX as u32 - 9;

/// Bytes of frames that are made before the client has taken earlier ones: as much as one write takes.
pub(crate) const HTTP2_SEND_BYTES: usize = 128 * 1024;

/// Bytes of a request body that are taken at a time from those that wait for room.
pub(crate) const HTTP2_BODY_PART_BYTES: usize = 16 * 1024;

/// Seconds in which a client may still begin requests after the first GOAWAY, if it does not answer a PING
/// earlier.
pub(crate) const HTTP2_GO_AWAY_S: u32 = 1;

/// Seconds in which a client has to acknowledge the server's SETTINGS.
pub(crate) const HTTP2_SETTINGS_S: u32 = 30;

/// Seconds after which a connection without streams frees the memory that its next streams would use.
pub(crate) const HTTP2_SHRINK_S: u32 = 1;

/// Ranges of one request that are served. With more, the whole file is sent. zchunk asks for 255 at a time; Apache
/// has 200.
pub const RANGES_MAX: usize = 256;

/// Connections that are accepted from a listener's queue when its worker stops. This is more than any
/// backlog.
pub(crate) const ACCEPTS_AT_THE_END_MAX: u32 = 65_536;

/// Milliseconds for which a listener pauses after the process has run out of descriptors.
pub(crate) const ACCEPT_PAUSE_MS: u64 = 100;

/// Bytes that may wait for a log's writer. Further lines are dropped and counted.
pub(crate) const LOG_QUEUE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Bytes in the queue of a log that wake the writer before its next round.
pub(crate) const LOG_WAKE_BYTES: usize = 256 * 1024;

/// Milliseconds between two rounds of the writer. The first line after a quiet time is written at once.
pub(crate) const LOG_ROUND_MS: u64 = 50;

/// Bytes that short texts of a worker's responses share: some 20 error pages.
pub(crate) const JOINED_BYTES: usize = 8 * 1024;

/// Bytes of the target of a request in a line of the error log. Escaped they may become six times as many,
/// and the id of the request has to stand behind them in [`ERROR_MESSAGE_BYTES_MAX`].
pub(crate) const LOGGED_TARGET_BYTES_MAX: usize = 2 * 1024;

/// Bytes of the host in the same lines; a name in the DNS has at most 253 (RFC 1035 2.3.4).
pub(crate) const LOGGED_HOST_BYTES_MAX: usize = 256;

/// Bytes of one message in an error log, and of the details behind it; longer ones are cut.
pub(crate) const ERROR_MESSAGE_BYTES_MAX: usize = 16 * 1024;

/// Different messages a second for which an error log detects repetitions.
pub(crate) const ERROR_REPEATS_MAX: usize = 64;

/// Bytes of one datagram to syslog: four times what RFC 5424 6.1 recommends that receivers accept.
pub(crate) const SYSLOG_LINE_BYTES_MAX: usize = 8 * 1024;

/// Bytes of a body that are stored in memory in any case. More goes to a temporary file in
/// `server.upload-dirs` once [`SPOOL_LARGE_BYTES_MAX`] or [`SPOOL_BUDGET_BYTES_MAX`] is reached.
pub(crate) const SPOOL_MEMORY_BYTES_MAX: usize = 128 * 1024;

/// Bytes of one body that are stored in memory while the worker's budget lasts. Most pages that programs make
/// are smaller. A file would cost a write and a read.
pub const SPOOL_LARGE_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of memory for the larger bodies of one worker together.
pub(crate) const SPOOL_BUDGET_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes of such a file that are sent at once.
pub(crate) const SPOOL_PIECE_BYTES_MAX: u64 = 1024 * 1024;

/// The fewest bytes that are written to such a file at once, so that few jobs are needed.
pub(crate) const SPOOL_WRITE_BYTES: usize = 128 * 1024;

/// Bytes of one body that may wait in memory for the disk; beyond that, the client or backend that sends more
/// is not read from. Above twice [`SPOOL_WRITE_BYTES`] only while [`SPOOL_BUDGET_BYTES_MAX`] lasts. A receive
/// buffer that was read before may come on top.
pub(crate) const SPOOL_UNWRITTEN_BYTES_MAX: usize = 1024 * 1024;

/// Seconds after which a read or write of such a file is given up if the disk has not done it.
pub(crate) const SPOOL_JOB_S_MAX: u64 = 300;

/// Milliseconds until such a read or write is tried again that found [`BLOCKING_QUEUE_MAX`] jobs waiting.
pub(crate) const SPOOL_QUEUE_FULL_PAUSE_MS: u64 = 50;

/// Bytes that the faster side of a streamed body may be ahead of the slower one if
/// `server.stream-request-body` or `server.stream-response-body` is 2. Where the latter is not set, a reply that
/// is longer is sent before it is complete.
pub const STREAM_BUFFER_BYTES_MAX: u64 = 64 * 1024;

/// Bytes of memory for interim responses (103 Early Hints) that wait until the connection has sent earlier
/// ones. Those may take as many again.
pub(crate) const INTERIM_BYTES_MAX: usize = 16 * 1024;

/// How deep subrequests may be nested. Detects a page that includes itself.
pub(crate) const SUBREQUEST_DEPTH_MAX: u8 = 8;

/// Subrequests that one request of a client may cause, including those of its subrequests.
pub(crate) const SUBREQUESTS_PER_REQUEST_MAX: u32 = 256;

/// Subrequests without a client (refreshes of cached pages) that a worker may run at a time. Each has an
/// exchange and often a connection to a backend.
pub(crate) const DETACHED_SUBREQUESTS_MAX: u32 = 128;

/// Seconds after which a subrequest without a client is given up.
pub(crate) const DETACHED_SUBREQUEST_S_MAX: u64 = 300;

/// Bytes of a file that the job that opens it reads. That is all of most files, with one request to the disk.
/// A multiple of the usual read-ahead (128 KiB).
pub(crate) const FIRST_READ_BYTES_MAX: u64 = 128 * 1024;

/// Seconds for which a block that was found in the page cache is assumed to be there still.
pub(crate) const RESIDENT_S_MAX: u32 = 30;

/// The same if a block has left the page cache in the last [`RESIDENT_LOSS_S`] seconds.
pub(crate) const RESIDENT_S_MIN: u32 = 2;

/// Seconds for which memory is assumed to be short after that.
pub(crate) const RESIDENT_LOSS_S: u32 = 60;

/// Jobs of one class (look-ups, reads, writes) that may wait for a thread; further ones are refused. Each
/// holds a path or a descriptor, and has a waiting client, so this is as many as there are usually
/// connections.
pub(crate) const BLOCKING_QUEUE_MAX: usize = 65_536;

/// Such jobs that may wait for one file system. So a file system that hangs leaves half of the queue to the
/// others.
pub(crate) const BLOCKING_DEVICE_QUEUE_MAX: usize = 32_768;

/// Jobs that may wait for a computing thread ([`Class::Compute`](crate::blocking::Class::Compute)). A
/// password hash takes about 50 ms, so with more jobs in front of it a request would wait longer than its
/// client does.
pub(crate) const COMPUTE_QUEUE_MAX: usize = 256;

/// Further such jobs, for clients that have none waiting.
pub(crate) const COMPUTE_NEWCOMERS_MAX: usize = 256;

/// Bytes of memory of running password hashes above which no further one begins. A hash takes a gibibyte at
/// most.
pub(crate) const COMPUTE_BYTES_MAX: usize = 512 * 1024 * 1024;

/// Such jobs that one client may have waiting: somewhat more than a browser opens connections.
pub(crate) const COMPUTE_CLIENT_QUEUE_MAX: usize = 32;

/// The shortest time in milliseconds between two searches of such a queue for jobs without a waiting caller.
pub(crate) const BLOCKING_PURGE_PAUSE_MS: u64 = 200;

/// Look-ups of one path that a worker may have under way. A further one begins if the path is on another file
/// system by now than the one that the last look-up waits for.
pub(crate) const LOOK_UPS_PER_PATH_MAX: usize = 4;

/// Seconds after which a running look-up is begun once more, and only once, for later requests: the answer of
/// the file system may have been lost. Look-ups of other paths need most of the [`REMOTE_DEVICE_JOBS_MAX`].
pub(crate) const LOOK_UP_AGAIN_S: u64 = 10;

/// Jobs that run on one local file system at a time. A disk orders some dozens of requests well; with more,
/// each only waits longer.
pub const DEVICE_JOBS_MAX: usize = 64;

/// Jobs that run at a time on one file system that another machine or a program answers for.
pub const REMOTE_DEVICE_JOBS_MAX: usize = 16;

/// Bytes of running jobs on a file system above which no further one begins. Enough for disks with several
/// heads. Of large reads it allows only a few, so that the disk does not seek between many.
pub const DEVICE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The smallest chunk of a file that is read: for clients that read slowly, and when
/// [`READ_MEMORY_BYTES_MAX`] is reached.
pub(crate) const CHUNK_BYTES_MIN: usize = 64 * 1024;

/// The size of the first chunk, when the client's pace is not known yet.
pub(crate) const CHUNK_BYTES_FIRST: usize = 128 * 1024;

/// The largest other chunk; half as much again if that is the rest of the file. A disk that reads 60 MB/s
/// needs 70 ms for it, and 10 ms for the seek.
pub(crate) const CHUNK_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The largest value of `server.io-chunk-size`: the size of a buffer of a read queue.
pub(crate) const CHUNK_BYTES_CONFIGURED_MAX: usize = 16 * 1024 * 1024;

/// Bytes that are read at once when they may be in the page cache: copying them takes the worker 50 µs.
pub(crate) const CHUNK_BYTES_PROBED: usize = 256 * 1024;

/// Bytes of one read-ahead request to the kernel: most devices take that many from the page cache as one
/// request (128 pages).
pub(crate) const READ_AHEAD_STEP_BYTES: usize = 512 * 1024;

/// Read-ahead requests at a time: for the step that the disk is reading, and for the next one.
pub(crate) const READ_AHEAD_STEPS: usize = 2;

/// Bytes of files in memory that are being read or sent, for all workers together. Beyond that, chunks are
/// small and nothing is read ahead, so the limit is exceeded by [`CHUNK_BYTES_MIN`] for each connection at
/// most.
pub(crate) const READ_MEMORY_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Allocations from this size on go back to the system when they are freed. That is for most chunks of large
/// files, which would otherwise stay in the heap of each thread that has read one.
pub const LARGE_ALLOCATION_BYTES: usize = 1024 * 1024;

/// Reads that the kernel or the C library does for one worker at a time: enough for those of several file
/// systems that hang, and still some for another.
pub(crate) const QUEUED_READS_MAX: u32 = 256;

/// Such reads that are begun before the worker does other work: beginning one of 512 KiB takes 50 to 100 µs.
pub(crate) const READS_BEGUN_AT_ONCE: usize = 4;

/// File systems that a worker remembers as unable to read in the configured way.
pub(crate) const REFUSING_DEVICES_MAX: usize = 64;

/// Document roots whose file systems start-up examines.
pub(crate) const ROOTS_TOLD_MAX: usize = 64;

/// Milliseconds for which start-up waits for the file systems.
pub(crate) const ROOTS_TOLD_MS_MAX: u64 = 250;

/// Names in a document root that start-up tries to find a file among.
pub(crate) const NAMES_TRIED_MAX: usize = 256;

/// Milliseconds after which a running job counts as stuck: its file system hangs, and another thread may be
/// started in place of its own.
pub(crate) const STUCK_JOB_MS: u64 = 1000;

/// Stuck threads of one class that may exist beyond the configured number.
pub(crate) const STUCK_THREADS_MAX: usize = 256;

/// Seconds for which an idle thread waits for a job before it ends.
pub(crate) const BLOCKING_IDLE_S: u64 = 10;

/// Bytes that scripts may add to the fields of a request beyond `server.max-request-field-size`. A replaced
/// value counts as well.
pub(crate) const CHANGED_FIELDS_BYTES_MAX: usize = 256 * 1024;

/// Symlinks that may be followed in one path, as in the kernel (path_resolution(7)).
pub(crate) const SYMLINKS_MAX: usize = 40;

/// Directories in a path that is walked part by part. Each takes a descriptor meanwhile.
pub(crate) const WALKED_DIRECTORIES_MAX: usize = 128;

/// Bytes of plaintext in one TLS record (RFC 8446 section 5.1).
pub(crate) const TLS_RECORD_BYTES_MAX: usize = 16 * 1024;

/// Bytes of plaintext in a small TLS record. With all headers it fits into one segment of a usual path, also
/// with PPPoE and IPv6.
pub(crate) const TLS_SMALL_RECORD_BYTES: usize = 1369;

/// Bytes that a connection sends in small records at its begin and after a pause. After that its congestion
/// window is larger than a large record, even if packets are lost.
pub(crate) const TLS_SMALL_RECORDS_BYTES: u32 = 128 * 1024;

/// A response with a small body goes into one record of up to this size even then. It is sent in one flight,
/// and four small records would cost three times as much.
pub(crate) const TLS_WHOLE_ANSWER_BYTES_MAX: usize = 4 * TLS_SMALL_RECORD_BYTES;

/// Seconds without a record that count as a pause: the kernel begins again with a small congestion window
/// (tcp_slow_start_after_idle). The clock has whole seconds, so 2 is more than one second.
pub(crate) const TLS_PAUSE_S: u32 = 2;

/// Seconds from the first byte of a TLS connection, or from its accept, to the end of the handshake. A phone
/// with bad reception needs a few.
pub(crate) const TLS_HANDSHAKE_S: u32 = 15;

/// Handshakes of a worker that get the full time. If there are more, new ones get
/// [`TLS_HURRIED_HANDSHAKE_S`], so that clients that begin a handshake and then stay silent are removed
/// sooner.
pub(crate) const TLS_HANDSHAKES_AT_EASE: usize = 1000;

/// Seconds for a handshake while there are very many.
pub(crate) const TLS_HURRIED_HANDSHAKE_S: u32 = 3;

/// Bytes of a client's TLS records that may wait for the rest: during the handshake those with the client's
/// certificates, afterwards those of one record.
pub(crate) const TLS_HELD_BYTES_MAX: usize = 32 * 1024;

/// TLS sessions of one backend that are kept for resumption. Servers issue two for each connection.
pub(crate) const TLS_CLIENT_SESSIONS_MAX: usize = 16;

/// Bytes of TLS records that are made for one write: four large ones.
pub(crate) const TLS_OUTGOING_BYTES: usize = 4 * TLS_RECORD_BYTES_MAX + 1024;

/// Nanoseconds for which one request may keep its worker busy before the worker remembers it, to name it to
/// the requests that lagged.
pub(crate) const HOG_NANOS: u64 = 2_000_000;

/// Nanoseconds of lag from which a request notes what the worker was doing meanwhile.
pub(crate) const NOTED_LAG_NANOS: u64 = 5_000_000;

/// Nanoseconds of a wait from which a request notes what held it up.
pub const NOTED_WAIT_NANOS: u64 = 10_000_000;

/// Bytes of the text about what held a request up.
pub(crate) const HOLDER_BYTES_MAX: usize = 400;

/// Noted waits for which an unused exchange keeps memory.
pub(crate) const POOLED_WAITS_MAX: usize = 4;

/// Noted waits of one request; the shortest are dropped.
pub(crate) const NOTED_WAITS_MAX: usize = 8;

/// Bytes of a path in a note.
pub(crate) const NOTED_PATH_BYTES_MAX: usize = 120;

/// Routes that are counted apart: modules, and parts of their configuration. Requests of further parts count
/// for their module.
pub const ROUTES_MAX: usize = 12_000;

/// Bytes of the name of a part of the configuration in the name of a route.
pub(crate) const ROUTE_DETAIL_BYTES_MAX: usize = 180;

/// Routes, and hosts, whose counts survive a reload and a crash.
pub(crate) const KEPT_ROUTES_MAX: usize = 1024;

/// Seconds that the metrics remember one by one.
pub const METRICS_SECONDS: usize = 300;

/// Names in a worker's table of the most frequent hosts, and in that of the paths.
pub(crate) const TOP_NAMES: usize = 100;

/// Names that are shown of them.
pub const TOP_SHOWN: usize = 20;

/// Bytes of a name in these tables.
pub const TOP_NAME_BYTES_MAX: usize = 200;

/// Requests a second that a worker looks at for these tables; a busier worker leaves out others evenly.
pub(crate) const TOP_SAMPLES_PER_S: u32 = 256;

/// After this number of seconds a request counts half in these tables.
pub(crate) const TOP_HALF_LIFE_S: u32 = 60;

/// For how many seconds the slowest request of a route is its exemplar, even if others follow.
pub(crate) const EXEMPLAR_S: u32 = 30;
