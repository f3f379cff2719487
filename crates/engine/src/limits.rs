//! Every queue, table and buffer of the engine that could grow, its limit and why that much.
//!
//! Limits an operator may want to change are directives (`crate::settings::core`); those here are
//! protections whose value nobody should need to think about.

/// Bytes a worker reads from a socket at once. One buffer a worker, not a connection.
pub const RECEIVE_BUFFER_BYTES: usize = 64 * 1024;

/// Files up to this size are kept in memory by the file cache and leave in one send with their
/// head. Above it sendfile(2) is cheaper than copying: 72 ms of CPU a GB against 111, which
/// pays for the second system call from about here on.
pub const FILE_IN_MEMORY_BYTES_MAX: u64 = 32 * 1024;

/// Seconds a file must be unchanged before workers share its content.
pub(crate) const CONTENT_SETTLED_S: u64 = 2;

/// File contents and paths a worker's file cache keeps in memory, all files together; contents that
/// several workers hold are there once.
pub(crate) const FILE_CACHE_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Entries (files, directories, missing names) a worker's file cache holds.
pub(crate) const FILE_CACHE_ENTRIES_MAX: usize = 65_536;

/// Directories a worker watches by inotify. Entries beyond live by time instead.
pub(crate) const WATCHED_DIRECTORIES_MAX: usize = 16_384;

/// Seconds an entry lives where inotify cannot see its changes (NFS, FUSE, too many directories),
/// and after which an entry whose file changed lately is compared with it.
pub(crate) const FILE_RECHECK_S_MIN: u32 = 1;

/// Seconds between two such comparisons at most, for files that have long been unchanged.
pub(crate) const FILE_RECHECK_S_MAX: u32 = 10;

/// The longest physical path that is looked up; the kernel's PATH_MAX is 4096.
pub const PATH_BYTES_MAX: usize = 4095;

/// Times one exchange may go back to an earlier phase (error handlers, rewrites, Lua's 99).
pub const RESTARTS_MAX: u8 = 10;

/// Hosts a worker remembers the settings of; beyond it the table is emptied and refilled.
pub(crate) const HOST_SCOPES_MAX: usize = 4096;

/// Distinct sets of merged settings a worker keeps for one host.
pub(crate) const SETTINGS_PER_HOST_MAX: usize = 4096;

/// Bytes of request body that are read and thrown away to keep a connection alive after an
/// answer that did not want them. A longer rest closes the connection instead.
pub(crate) const DISCARD_BODY_BYTES_MAX: u64 = 256 * 1024;

/// Bytes that are kept of the first line of a refused request head, for logs.
pub(crate) const REFUSED_LINE_BYTES_MAX: usize = 1024;

/// Seconds a closed connection is still read from, so that the answer is not lost to a reset.
pub(crate) const LINGER_S: u32 = 2;

/// Seconds that a server process replaced by a reload may go on with its requests, unless `server.drain-timeout`
/// or `server.graceful-shutdown-timeout` says otherwise: longer than almost every download and tunnel, and short
/// enough that a client that never ends does not keep an old configuration for ever.
pub(crate) const DRAIN_S_DEFAULT: u32 = 24 * 3600;

/// Such server processes at a time, unless `server.drain-generations` says otherwise. Each has the memory of its
/// open connections and threads of its own.
pub(crate) const DRAIN_GENERATIONS_DEFAULT: u16 = 4;

/// Seconds that a graceful stop leaves to requests, unless `server.graceful-shutdown-timeout` says otherwise.
/// lighttpd's default.
pub(crate) const STOP_S_DEFAULT: u32 = 8;

/// Seconds for which an idle client of a replaced server process may still send a request: one that is on its way,
/// or the next one of a client that asks all the time, is then answered with `Connection: close`.
pub(crate) const IDLE_DRAIN_S: u32 = 1;

/// Milliseconds in which a client can still get the 503 that takes the place of an answer that was cut.
pub const CUT_MS: u64 = 500;

/// Events of inotify that a worker reads before it does something else.
pub(crate) const INOTIFY_EVENTS_AT_ONCE_MAX: usize = 1024;

/// Exchanges (request and response buffers) a worker keeps for reuse, and as many buffers of connections.
pub(crate) const EXCHANGE_POOL_MAX: usize = 256;

/// Bytes that each buffer of these may keep. An exchange with a larger one is given back to the allocator; of a
/// connection's larger buffer, what is beyond.
pub const POOLED_BUFFER_BYTES_MAX: usize = 16 * 1024;

/// Body pieces in memory up to this size are copied behind the head and leave in a plain send: the
/// copy is cheaper than a second vector element is to the kernel.
pub(crate) const INLINED_PIECE_BYTES_MAX: usize = 4096;

/// Bytes sent in one go before other connections of the worker get their turn.
pub(crate) const SEND_TURN_BYTES: u64 = 1024 * 1024;

/// The same for a client that has not been seen to take anything, and bytes that the kernel then holds unsent for
/// it: its buffer would grow to 4 MiB, and filling it for 300 clients that do not read costs 0.1 s of CPU. What a
/// fast client takes while the worker makes a round of its connections; and a file of 100 KiB is no reason to ask
/// the kernel for anything.
pub(crate) const UNPROVEN_TURN_BYTES: u32 = 128 * 1024;

/// Bytes of a request body, of a request to a backend or of its reply that one connection moves before others get their turn.
/// A fast sender always has more: without a limit one connection kept the worker for 8 MiB. A round of 300 of them takes
/// some 20 ms.
pub const TURN_BYTES: u64 = 128 * 1024;

/// Requests answered on one connection before others get their turn.
pub(crate) const REQUESTS_PER_TURN: u32 = 32;

/// Requests in one second of a client that may be about to send more: a page has many parts, and a browser asks for a few
/// of them at a time.
pub(crate) const HTTP2_REQUESTS_CROWDED: u32 = 3;

/// Seconds for which such a client is not told that the connection ends, at most.
pub(crate) const HTTP2_CROWDED_S_MAX: u32 = 10;

/// Bytes of a DATA frame: with the header it fits one record of TLS.
pub(crate) const HTTP2_DATA_BYTES_MAX: u32 = TLS_RECORD_BYTES_MAX as u32 - 9;

/// Bytes of frames that are made before the client has taken those before: what goes into one write.
pub(crate) const HTTP2_SEND_BYTES: usize = 128 * 1024;

/// Bytes of a request body that are taken at a time out of what waits for room.
pub(crate) const HTTP2_BODY_PART_BYTES: usize = 16 * 1024;

/// Seconds in which a client may still begin requests after it was told that the connection ends, if it does not answer
/// a PING before.
pub(crate) const HTTP2_GO_AWAY_S: u32 = 1;

/// Seconds in which a client acknowledges the SETTINGS of the server.
pub(crate) const HTTP2_SETTINGS_S: u32 = 30;

/// Seconds after which a connection without streams gives back the memory that the next ones would use.
pub(crate) const HTTP2_SHRINK_S: u32 = 1;

/// Ranges of one request that are honoured; more and the whole file is sent.
pub const RANGES_MAX: usize = 32;

/// Connections accepted from a listener's queue when its worker stops: more than any backlog.
pub(crate) const ACCEPTS_AT_THE_END_MAX: u32 = 65_536;

/// Milliseconds a listener pauses after the process ran out of file descriptors.
pub(crate) const ACCEPT_PAUSE_MS: u64 = 100;

/// Bytes a log's writer may be behind before lines are dropped and counted.
pub(crate) const LOG_QUEUE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Bytes in a log's queue that wake its writer before its next round is due.
pub(crate) const LOG_WAKE_BYTES: usize = 256 * 1024;

/// Milliseconds the writer gathers lines between two rounds. The first line after a quiet time
/// is written at once.
pub(crate) const LOG_ROUND_MS: u64 = 50;

/// Bytes of one message in an error log; longer ones are cut.
pub(crate) const ERROR_MESSAGE_BYTES_MAX: usize = 16 * 1024;

/// Different error messages a second that are watched for repetition.
pub(crate) const ERROR_REPEATS_MAX: usize = 64;

/// Bytes of one datagram to syslog; what RFC 5424 6.1 suggests a receiver to take, times four.
pub(crate) const SYSLOG_LINE_BYTES_MAX: usize = 8 * 1024;

/// Bytes of a body kept in memory in any case until somebody takes them; more goes to a temporary file
/// in `server.upload-dirs` when [`SPOOL_LARGE_BYTES_MAX`] or [`SPOOL_BUDGET_BYTES_MAX`] is reached.
pub(crate) const SPOOL_MEMORY_BYTES_MAX: usize = 128 * 1024;

/// Bytes of one body that stay in memory as long as the budget of its worker lasts. Most pages that
/// programs make are smaller; a file costs a write and a read of them.
pub const SPOOL_LARGE_BYTES_MAX: usize = 1024 * 1024;

/// Bytes that the larger bodies of one worker take up in memory together.
pub(crate) const SPOOL_BUDGET_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes of such a file that are handed on at once.
pub(crate) const SPOOL_PIECE_BYTES_MAX: u64 = 1024 * 1024;

/// Bytes that are written to such a file at once, at least: a thread that may wait for the disk is asked
/// for it once for so many of them.
pub(crate) const SPOOL_WRITE_BYTES: usize = 128 * 1024;

/// Bytes of one body that wait in memory for the disk; whoever brings more waits, too. Above twice
/// [`SPOOL_WRITE_BYTES`] only as long as [`SPOOL_BUDGET_BYTES_MAX`] lasts. What was received before that
/// was known comes on top, a receive buffer of it.
pub(crate) const SPOOL_UNWRITTEN_BYTES_MAX: usize = 1024 * 1024;

/// Seconds after which a read or write of such a file is given up that the disk has not done.
pub(crate) const SPOOL_JOB_S_MAX: u64 = 300;

/// Milliseconds until such a read or write is tried again that found [`BLOCKING_QUEUE_MAX`] others waiting.
pub(crate) const SPOOL_QUEUE_FULL_PAUSE_MS: u64 = 50;

/// Bytes that the faster side of a streamed body may be ahead of the slower one when
/// `server.stream-request-body` or `server.stream-response-body` is 2.
pub const STREAM_BUFFER_BYTES_MAX: u64 = 64 * 1024;

/// Bytes of memory of interim responses (103 Early Hints) that wait until the connection has sent those before. As
/// many again may be those.
pub(crate) const INTERIM_BYTES_MAX: usize = 16 * 1024;

/// How deep subrequests may lie in one another. A page that includes itself is found out after that many.
pub(crate) const SUBREQUEST_DEPTH_MAX: u8 = 8;

/// Subrequests that one request of a client may lead to, those of its subrequests included.
pub(crate) const SUBREQUESTS_PER_REQUEST_MAX: u32 = 256;

/// Subrequests of a worker that go on without a client at the same time: refreshes of cached pages. Each
/// has an exchange and often a connection to a backend.
pub(crate) const DETACHED_SUBREQUESTS_MAX: u32 = 128;

/// Seconds after which a subrequest without a client is given up, whatever it waits for.
pub(crate) const DETACHED_SUBREQUEST_S_MAX: u64 = 300;

/// Bytes that the job which opens a file reads of it: most files are whole then, and the kernel asks the disk
/// once. A multiple of the usual read-ahead (128 KiB).
pub(crate) const FIRST_READ_BYTES_MAX: u64 = 128 * 1024;

/// Seconds for which what was seen in the page cache is taken to be there still.
pub(crate) const RESIDENT_S_MAX: u32 = 30;

/// The same when something that was seen has been lost in the last [`RESIDENT_LOSS_S`].
pub(crate) const RESIDENT_S_MIN: u32 = 2;

/// Seconds for which memory is taken to be short after such a loss.
pub(crate) const RESIDENT_LOSS_S: u32 = 60;

/// Jobs of one class (looking up, reading, writing) that wait for a thread; more are refused. Each holds a
/// path or a descriptor, and its client waits: as many as connections are common.
pub(crate) const BLOCKING_QUEUE_MAX: usize = 65_536;

/// Such jobs that wait for one file system: one that hangs leaves half of the queue to the others.
pub(crate) const BLOCKING_DEVICE_QUEUE_MAX: usize = 32_768;

/// Jobs that wait for a thread that computes ([`Class::Compute`](crate::blocking::Class::Compute)). A hash of a password
/// takes some 50 ms: with more in front of it a request would wait longer than its client does.
pub(crate) const COMPUTE_QUEUE_MAX: usize = 256;

/// Such jobs above that, of clients that have none yet.
pub(crate) const COMPUTE_NEWCOMERS_MAX: usize = 256;

/// Bytes of memory of such jobs after which no further one is begun. A hash takes at most a gibibyte itself.
pub(crate) const COMPUTE_BYTES_MAX: usize = 512 * 1024 * 1024;

/// Such jobs of one client: as many as a browser's connections and then some.
pub(crate) const COMPUTE_CLIENT_QUEUE_MAX: usize = 32;

/// Milliseconds between two times that such a queue is looked through for jobs nobody waits for.
pub(crate) const BLOCKING_PURGE_PAUSE_MS: u64 = 200;

/// Look-ups of one path that a worker has at the same time: another one is begun when the path is found to be on
/// another file system than the one that the last one waits for.
pub(crate) const LOOK_UPS_PER_PATH_MAX: usize = 4;

/// Seconds after which a look-up that a thread is at is begun once more, and only once, for those who ask then: the
/// answer may have been lost. Of the [`REMOTE_DEVICE_JOBS_MAX`] others need the most.
pub(crate) const LOOK_UP_AGAIN_S: u64 = 10;

/// Jobs that run at the same time for one local file system. A disk sorts some dozens of requests well; more
/// only make each of them wait longer.
pub const DEVICE_JOBS_MAX: usize = 64;

/// Jobs that run at the same time for one file system that another machine or a program answers for.
pub const REMOTE_DEVICE_JOBS_MAX: usize = 16;

/// Bytes of such jobs after which no further one is begun on the same file system. Enough for several heads of
/// disks; of large stretches a few, which are then read without going to and fro between them.
pub const DEVICE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Bytes of a file that are read at once, at least: for clients that take little at a time, and when
/// [`READ_MEMORY_BYTES_MAX`] is reached.
pub(crate) const CHUNK_BYTES_MIN: usize = 64 * 1024;

/// Bytes of the first chunk: of a client's pace nothing is known yet.
pub(crate) const CHUNK_BYTES_FIRST: usize = 128 * 1024;

/// Bytes of any other one at most, or half as many again if that is the rest: 70 ms of a disk that reads 60 MB/s,
/// against 10 ms to get there.
pub(crate) const CHUNK_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Bytes of a chunk that `server.io-chunk-size` can ask for: what a buffer of the queues holds.
pub(crate) const CHUNK_BYTES_CONFIGURED_MAX: usize = 16 * 1024 * 1024;

/// Bytes that are read at once of what may be in the page cache: copying them takes the worker 50 µs.
pub(crate) const CHUNK_BYTES_PROBED: usize = 256 * 1024;

/// Bytes that the kernel is asked for at a time, before they are read: what most devices take as one request
/// from the page cache (128 pages).
pub(crate) const READ_AHEAD_STEP_BYTES: usize = 512 * 1024;

/// Such steps that it is asked for at a time: the one that the disk is at, and the one behind it.
pub(crate) const READ_AHEAD_STEPS: usize = 2;

/// Bytes of files in memory that are being read or sent, of all workers together. Beyond it chunks are small
/// and nothing is read ahead, so that it is passed by [`CHUNK_BYTES_MIN`] a connection at most.
pub(crate) const READ_MEMORY_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Bytes from which on the system has memory back as soon as it is freed: most chunks of large files, which would
/// otherwise stay with each thread that has read one.
pub const LARGE_ALLOCATION_BYTES: usize = 1024 * 1024;

/// Reads that the kernel or the C library does at the same time for one worker: those of some file systems that
/// hang, and still some of another.
pub(crate) const QUEUED_READS_MAX: u32 = 256;

/// Such reads that are begun before the worker looks after everything else: beginning one of 512 KiB takes
/// some 50 to 100 µs.
pub(crate) const READS_BEGUN_AT_ONCE: usize = 4;

/// File systems of which a worker remembers that they do not read in the way that is configured.
pub(crate) const REFUSING_DEVICES_MAX: usize = 64;

/// Document roots that start-up looks at, to tell what their file systems can do.
pub(crate) const ROOTS_TOLD_MAX: usize = 64;

/// Milliseconds that the start of the server waits for file systems to say what they can.
pub(crate) const ROOTS_TOLD_MS_MAX: u64 = 250;

/// Names in a document root among which start-up looks for a file to try.
pub(crate) const NAMES_TRIED_MAX: usize = 256;

/// Milliseconds after which a job that runs is no longer counted as one of the threads at work: its file
/// system hangs, and others should not wait for it.
pub(crate) const STUCK_JOB_MS: u64 = 1000;

/// Threads of one class that may hang like that beyond the configured number.
pub(crate) const STUCK_THREADS_MAX: usize = 256;

/// Seconds such a thread waits for work before it ends.
pub(crate) const BLOCKING_IDLE_S: u64 = 10;

/// Bytes that scripts may add to the fields of a request, beyond `server.max-request-field-size`. What a
/// value is replaced by counts as well.
pub(crate) const CHANGED_FIELDS_BYTES_MAX: usize = 256 * 1024;

/// Symlinks in one path, as in the kernel (path_resolution(7)).
pub(crate) const SYMLINKS_MAX: usize = 40;

/// Directories in one path that is walked part by part: each takes a descriptor meanwhile.
pub(crate) const WALKED_DIRECTORIES_MAX: usize = 128;

/// Bytes of one TLS record's plaintext (RFC 8446 section 5.1).
pub(crate) const TLS_RECORD_BYTES_MAX: usize = 16 * 1024;

/// Bytes of a small record's plaintext: with all that stands around it, it fits one segment of a usual path, by PPPoE and IPv6.
pub(crate) const TLS_SMALL_RECORD_BYTES: usize = 1369;

/// Bytes that a connection sends in small records, from its begin and after a pause: by then its window is larger than
/// a large record even where packets are lost.
pub(crate) const TLS_SMALL_RECORDS_BYTES: u32 = 128 * 1024;

/// Bytes that are one record even so, if nothing more is there: an answer with a small body. It comes in one flight,
/// and four records of it cost three times as much.
pub(crate) const TLS_WHOLE_ANSWER_BYTES_MAX: usize = 4 * TLS_SMALL_RECORD_BYTES;

/// Seconds without a record that are a pause: the kernel begins anew with a small window (tcp_slow_start_after_idle).
/// By a clock of whole seconds more than one.
pub(crate) const TLS_PAUSE_S: u32 = 2;

/// Seconds from the first byte that the server reads of a TLS connection, or from its being accepted, to the end of the
/// handshake. A phone in a tunnel takes a few.
pub(crate) const TLS_HANDSHAKE_S: u32 = 15;

/// Connections of a worker whose handshake is not done and that have all of that time. When there are more, newcomers
/// have [`TLS_HURRIED_HANDSHAKE_S`]: clients that begin and say no more cost little then, and others are done sooner.
pub(crate) const TLS_HANDSHAKES_AT_EASE: usize = 1000;

/// Seconds for a handshake while there are very many.
pub(crate) const TLS_HURRIED_HANDSHAKE_S: u32 = 3;

/// Bytes of a client's TLS records that wait for more of them, during a handshake: the certificates of a client.
/// Afterwards the rest of one record.
pub(crate) const TLS_HELD_BYTES_MAX: usize = 32 * 1024;

/// Sessions of one server that connections to it may go on with. Servers give two to each connection.
pub(crate) const TLS_CLIENT_SESSIONS_MAX: usize = 16;

/// Bytes of records that are made at once, for one write: four large ones.
pub(crate) const TLS_OUTGOING_BYTES: usize = 4 * TLS_RECORD_BYTES_MAX + 1024;
