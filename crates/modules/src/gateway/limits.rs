//! Everything of the gateways that could grow, its limit and why that much.
//!
//! Limits an operator may want to change are options of a backend (`options.rs`); those here protect
//! against backends that have gone wrong.

/// Bytes of a reply's head, or of an interim one. Four times what browsers and proxies in front take,
/// because applications set many cookies.
pub(crate) const REPLY_HEAD_BYTES_MAX: usize = 64 * 1024;

/// Header fields of a reply's head.
pub(crate) const REPLY_FIELDS_MAX: usize = 256;

/// Interim responses (1xx) before the reply. A page has one 103, perhaps two; each costs the client
/// some bytes and us a send.
pub(crate) const INTERIM_HEADS_MAX: u32 = 16;

/// Bytes of what an application writes to its STDERR that get into the error log for one request.
/// What comes beyond is dropped and counted.
pub(crate) const STDERR_LOGGED_BYTES_MAX: u64 = 1024 * 1024;

/// Bytes an application may write to its STDERR for one request at all. Beyond it has lost its mind,
/// and its connection is closed.
pub(crate) const STDERR_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Stretches of files that one X-Sendfile2 may name.
pub(crate) const SENDFILE2_PARTS_MAX: usize = 256;

/// Cached files a worker remembers to be where a backend may name files.
pub(crate) const CHECKED_FILES_MAX: usize = 4096;

/// Milliseconds until a learned connection limit is tried again, the first time. Doubled each time it
/// was right, up to the maximum.
pub(crate) const PROBE_PAUSE_MS_MIN: u64 = 100;

/// See [`PROBE_PAUSE_MS_MIN`].
pub(crate) const PROBE_PAUSE_MS_MAX: u64 = 10_000;

/// Milliseconds after which a connection on which nothing came back is late, if requests usually
/// take no time at all. Where 64 processes share a core, one that has accepted a connection may wait
/// for the processor for 100; taking that for a full backend costs connections for nothing.
pub(crate) const PATIENCE_MS_MIN: u64 = 150;

/// Milliseconds between two looks around while requests wait for a connection.
pub(crate) const LOOK_AROUND_MS: u64 = 20;

/// Milliseconds for which a connection stays open after the first reply of a backend that keeps connections. One
/// that does not closes it within microseconds, or, where processes share a core, as soon as it runs again.
pub(crate) const KEPT_PROOF_MS: u64 = 50;

/// How many connections in a row have to be open when a request wants them, if none has stayed open for
/// [`KEPT_PROOF_MS`].
pub(crate) const KEPT_PROOFS: u8 = 16;

/// How many times the usual duration of a request makes a connection late.
pub(crate) const PATIENCE_FACTOR: u64 = 4;

/// Milliseconds for which the most connections that answered at the same time are remembered as so many
/// processes.
pub(crate) const PEAK_MS: u64 = 5000;

/// Milliseconds for which a connection is kept at a limit that others may wait at, too. Then it is
/// closed and opened again, which puts it at the end of the kernel's queue. 20 requests of 5 ms: one
/// connect for each 20 requests is below what can be measured, and a front end that waits for one of
/// ten gets its turn within a second or two.
pub(crate) const TENURE_MS: u64 = 100;

/// Bytes of a reply that are read and thrown away to keep the connection, when its client has left
/// or another answer was named. More closes it.
pub(crate) const DRAIN_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Seconds such a reply may take.
pub(crate) const DRAIN_S_MAX: u32 = 30;

/// Bytes of requests encoded before the socket has taken them.
pub(crate) const OUTGOING_BYTES_MAX: usize = 64 * 1024;

/// Bytes an idle connection's buffers may keep.
pub(crate) const IDLE_BUFFER_BYTES_MAX: usize = 16 * 1024;

/// Times one request is sent again, to the same backend or another.
pub(crate) const REPLAYS_MAX: u32 = 3;

/// Milliseconds for which one of several addresses of a host may keep the next one waiting. RFC 8305
/// has 250 and connects to both then; a backend that is so far away is rare.
pub(crate) const ADDRESS_CONNECT_MS: u64 = 1000;

/// Milliseconds between two attempts to connect to a unix socket whose queue is full.
pub(crate) const QUEUE_FULL_PAUSE_MS: u64 = 10;

/// Bytes of a reply that are worth reading to keep a connection that could also be closed.
pub(crate) const DRAIN_BYTES_SMALL: u64 = 64 * 1024;

/// Seconds without a byte in either direction that end a tunnel, unless the backend has a
/// read-timeout.
pub(crate) const TUNNEL_IDLE_S_MAX: u32 = 3600;

/// Backends one request is sent to at most. More would let one request find out for all the others
/// how many are down; by then they are known to be.
pub(crate) const TRIES_MAX: usize = 8;

/// Addresses a host name may stand for; of more the first ones are used.
pub(crate) const ENDPOINTS_MAX: usize = 64;

/// SRV records one name may have; of more those with the smallest priority are used.
pub(crate) const SRV_TARGETS_MAX: usize = 32;

/// Bytes of a reply to a health check that are read to find its status.
pub(crate) const CHECK_REPLY_BYTES_MAX: usize = 4096;

/// CGI programs that run or are being started at once, of all workers together. Each is a process with its memory; a
/// request beyond is answered 503.
pub(crate) const CGI_PROGRAMS_MAX: usize = 512;

/// Seconds a CGI program gets to end by itself when its reply is complete, and again after a signal
/// before it is killed.
pub(crate) const CGI_GRACE_S: u64 = 3;

/// Seconds a TLS handshake may take at most; connect-timeout is usually shorter, and may be off.
pub(crate) const TLS_HANDSHAKE_S_MAX: u64 = 60;

/// Bytes of records that are read at a time: one of the largest (RFC 8446 section 5.2) as a rule.
pub(crate) const TLS_READ_BYTES: usize = 16 * 1024 + 256;

/// Bytes of records that wait for the socket before no more of a request is encrypted.
pub(crate) const TLS_UNSENT_BYTES_MAX: usize = 16 * 1024;

/// Reads that bring no plaintext, one after the other, before other connections have their turn.
pub(crate) const TLS_EMPTY_READS_MAX: u32 = 16;

/// Bytes of a file with certificates or a key. Those of all issuers that browsers trust are a fifth of a megabyte.
pub(crate) const PEM_BYTES_MAX: u64 = 16 * 1024 * 1024;
