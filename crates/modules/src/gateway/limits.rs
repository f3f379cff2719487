//! Bounds of everything in the gateways that could grow, with the reason for each value.
//!
//! Limits that an operator may want to change are options of a backend (`options.rs`). The limits here
//! protect against backends that misbehave.

use std::time::Duration;

/// Bytes of the head of a reply or of an interim response. Four times what browsers and proxies in front
/// accept, because applications set many cookies.
pub(crate) const REPLY_HEAD_BYTES_MAX: usize = 64 * 1024;

/// Connections of clients of which a worker keeps the part of requests to backends that depends on the client,
/// for each protocol.
pub(crate) const CLIENT_PARTS: usize = 128;

/// Bytes of fields and host names of which such a part is kept.
pub(crate) const CLIENT_FIELDS_BYTES_MAX: usize = 1024;

/// Header fields of a reply's head, whatever `server.max-response-fields` says.
pub(crate) const REPLY_FIELDS_MAX: usize = 4096;

/// For how long the body of a reply is collected behind its head where `server.stream-response-body` is not set.
/// Most replies are complete by then, and get a length.
pub(crate) const REPLY_COLLECTED: Duration = Duration::from_millis(50);

/// Interim responses (1xx) before the reply. A page has one 103, perhaps two. Each costs the client some
/// bytes and this server one send.
pub(crate) const INTERIM_HEADS_MAX: u32 = 16;

/// Bytes of one request's STDERR that are written to the error log. What exceeds it is dropped and counted.
pub(crate) const STDERR_LOGGED_BYTES_MAX: u64 = 1024 * 1024;

/// Bytes that an application may write to STDERR for one request. An application that writes more is out of
/// control, and its connection is closed.
pub(crate) const STDERR_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Ranges of files that one X-Sendfile2 may name.
pub(crate) const SENDFILE2_PARTS_MAX: usize = 256;

/// Cached files that a worker remembers as lying where the backend may name files.
pub(crate) const CHECKED_FILES_MAX: usize = 4096;

/// Milliseconds between two looks around by a backend's task while requests wait for a connection.
pub(crate) const LOOK_AROUND_MS: u64 = 5;

/// Milliseconds for which a request has waited for a process before other workers are told. A free process
/// answers within a fraction of one.
pub(crate) const STUCK_MS: u64 = 5;

/// Milliseconds between two surveys of which requests have the connections that others wait for.
pub(crate) const SURVEY_MS: u64 = 50;

/// Milliseconds after which a survey gives way to one with fewer requests.
pub(crate) const SURVEY_KEPT_MS: u64 = 200;

/// Milliseconds between two looks at the backend's queue in the kernel while there are idle connections.
pub(crate) const LOOK_AT_QUEUE_MS: u64 = 50;

/// Milliseconds after a request was written on a new connection until the kernel is first asked whether a process
/// has it.
pub(crate) const LOOK_MS_MIN: u64 = 1;

/// Milliseconds between two questions to the kernel at most, if no request waits: how exactly the stage
/// `backend-accept` is known then.
pub(crate) const LOOK_MS_MAX: u64 = 20;

/// After a look that took a time the next one comes not before this many times that time. The kernel looks through
/// all unix sockets of the machine, which takes 0.6 ms for 16,000 of them.
pub(crate) const LOOK_COST_FACTOR: u64 = 100;

/// New connections of one worker on which requests are written before the kernel was asked whether processes have
/// the ones before.
pub(crate) const NEWCOMERS_MAX: usize = 64;

/// Milliseconds for which the largest number of connections that processes had at a time is taken as the number of
/// processes that are there.
pub(crate) const PEAK_MS: u64 = 1000;

/// Connections of one worker that ask a backend at a time whether a process has them.
pub(crate) const ASKED_MAX: usize = 2;

/// Milliseconds after which a second connection asks. php-fpm with `pm = ondemand` has started a process within
/// about 5 ms.
pub(crate) const ASK_MORE_MS: u64 = 50;

/// Milliseconds after which the last connection that asks makes way for a new one. Each time that is twice as long.
pub(crate) const ASK_ANEW_MS: u64 = 1000;

/// How often one makes way, until one is answered.
pub(crate) const ASKED_ANEW_MAX: u32 = 6;

/// Milliseconds until the next attempt after a connection that asks failed or was closed.
pub(crate) const ASK_PAUSE_MS: u64 = 50;

/// Milliseconds after which the idle time of a connection would be noticed in what php-fpm says about a request
/// (`request duration`, `request_terminate_timeout`).
pub(crate) const ASK_AFTER_IDLE_MS: u64 = 100;

/// The first requests to a backend behind which its process is asked whether it works on.
pub(crate) const ASK_FIRST: u32 = 4;

/// Afterwards it is asked behind one request of so many. Also the number of requests behind which a process is
/// asked after one has worked on.
pub(crate) const ASK_ONE_OF: u32 = 64;

/// Milliseconds behind the end of a reply after which a process has worked on. Others take 40 to 200 us.
pub(crate) const WORKS_ON_MS: u64 = 5;

/// Milliseconds in which an application closes a connection that it has answered on, if it does (PHP before
/// 8.2.12).
pub(crate) const CLOSES_AFTER_ANSWER_MS: u64 = 10;

/// Replies behind which an application closes the connection, without an answer to any question there, until it is
/// believed to keep none.
pub(crate) const CLOSES_BEHIND: u8 = 2;

/// Milliseconds after which an application that has read the question does not answer it.
pub(crate) const ANSWERS_WITHIN_MS: u64 = 25;

/// The same on another machine, where only the time since the question is known.
pub(crate) const ANSWERS_WITHIN_MS_ELSEWHERE: u64 = 50;

/// Milliseconds after which an application on another machine that did not answer is asked again: it may have been
/// busy.
pub(crate) const ASK_AGAIN_MS: u64 = 60_000;

/// Milliseconds that a connection stays open after the first reply, if the backend keeps connections. A
/// backend that does not closes it within microseconds or, where processes share a core, as soon as it runs
/// again.
pub(crate) const KEPT_PROOF_MS: u64 = 50;

/// How many connections in a row must still be open when a request wants them, before the backend is believed
/// to keep connections, if none has stayed open for [`KEPT_PROOF_MS`].
pub(crate) const KEPT_PROOFS: u8 = 16;

/// Milliseconds that a connection is kept while others wait for its process. Then it is closed and opened again,
/// which puts it at the end of the kernel's queue. With requests of 5 ms that is one connect for each 20 requests,
/// too little to be measured, and a front end that waits for one of ten processes gets its turn within a second or
/// two.
pub(crate) const TENURE_MS: u64 = 100;

/// Bytes of a reply that are read and thrown away to keep its connection, when the client has left or the
/// reply named a file. A longer reply closes the connection.
pub(crate) const DRAIN_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Seconds that reading and throwing away a reply may take.
pub(crate) const DRAIN_S_MAX: u32 = 30;

/// Bytes of a request that are encoded before the socket takes them.
pub(crate) const OUTGOING_BYTES_MAX: usize = 64 * 1024;

/// Bytes that the buffers of an idle connection may keep.
pub(crate) const IDLE_BUFFER_BYTES_MAX: usize = 16 * 1024;

/// How often one request is sent again, to the same backend or another.
pub(crate) const REPLAYS_MAX: u32 = 3;

/// How often one request is sent again after a connection was lost that something of it was written on. A
/// connection may be lost by chance, but a request that ends the process of the backend would end another one
/// each time. Losses do not count if nothing has listened at the backend's address since the first of them: it
/// is being restarted.
pub(crate) const LOSSES_MAX: u32 = 1;

/// Milliseconds after which the next address of a host is tried, if one does not answer. RFC 8305 has 250 and
/// then goes on with both connections; backends that far away are rare.
pub(crate) const ADDRESS_CONNECT_MS: u64 = 1000;

/// Milliseconds between two attempts to connect to a unix socket whose queue is full.
pub(crate) const QUEUE_FULL_PAUSE_MS: u64 = 10;

/// A connection that could also be closed is kept only if fewer bytes than this are missing from its reply.
pub(crate) const DRAIN_BYTES_SMALL: u64 = 64 * 1024;

/// Seconds without a byte in either direction after which a tunnel is closed, unless the backend has a
/// read-timeout.
pub(crate) const TUNNEL_IDLE_S_MAX: u32 = 3600;

/// Backends that one request is sent to at most. With more, a single request would wait for many backends
/// that are down; after these attempts the following requests know which ones are.
pub(crate) const TRIES_MAX: usize = 8;

/// Addresses that one host name may have. Of more, the first ones are used.
pub(crate) const ENDPOINTS_MAX: usize = 64;

/// SRV records that one name may have. Of more, those with the smallest priority are used.
pub(crate) const SRV_TARGETS_MAX: usize = 32;

/// Bytes of the reply to a health check that are read to find its status.
pub(crate) const CHECK_REPLY_BYTES_MAX: usize = 4096;

/// Bytes of php-fpm's status that are read. A process takes about 400 bytes, so these are some 2,500 of them; a
/// page without end must not fill the memory.
pub(crate) const FPM_PAGE_BYTES_MAX: usize = 1024 * 1024;

/// Processes that such a page may list: more than a machine has memory for.
pub(crate) const FPM_PROCESSES_MAX: usize = 4096;

/// How long php-fpm may take for its status. It needs milliseconds; without a child that is free it cannot
/// answer at all, unless `pm.status_listen` is set.
pub(crate) const FPM_ANSWER_TIME_MAX: Duration = Duration::from_secs(2);

/// Seconds after which an answer is shown no more. Prometheus usually asks each 15 to 60 seconds, and is shown
/// what php-fpm has told after the question before.
pub(crate) const FPM_ANSWER_S_MAX: u64 = 120;

/// Running scripts of a php-fpm that are shown.
pub(crate) const FPM_SCRIPTS_SHOWN: usize = 8;

/// Bytes that are shown of a URI or a script of php-fpm, as of the path of a request that has a connection.
pub(crate) const FPM_TEXT_BYTES_MAX: usize = 56;

/// Bytes that are shown of the reason why a reply is not the status of php-fpm. It may quote the reply.
pub(crate) const FPM_ERROR_BYTES_MAX: usize = 160;

/// Bytes at the end of php-fpm's slow log that are read. An entry has one to three thousand.
pub(crate) const FPM_SLOW_LOG_BYTES_MAX: u64 = 64 * 1024;

/// Calls of an entry in the slow log that are shown: what the script waits for, and the function that wants it.
pub(crate) const FPM_SLOW_FRAMES_SHOWN: usize = 3;

/// Milliseconds after which a request is slow enough for a look at php-fpm's slow log: the shortest
/// request_slowlog_timeout.
pub(crate) const SLOW_MS: u64 = 1000;

/// CGI programs of all workers that may run or be starting at once. Each is a process with memory of its own;
/// a request beyond the limit gets 503.
pub(crate) const CGI_PROGRAMS_MAX: usize = 512;

/// Seconds that a CGI program has to end by itself after its reply is complete, and again after a signal,
/// before it is killed.
pub(crate) const CGI_GRACE_S: u64 = 3;

/// Seconds that a TLS handshake may take. connect-timeout is usually shorter, but may be off.
pub(crate) const TLS_HANDSHAKE_S_MAX: u64 = 60;

/// Bytes of TLS records that are read at a time: usually one record of the largest size (RFC 8446 section
/// 5.2).
pub(crate) const TLS_READ_BYTES: usize = 16 * 1024 + 256;

/// Bytes of TLS records that may wait for the socket. Beyond it no more of a request is encrypted.
pub(crate) const TLS_UNSENT_BYTES_MAX: usize = 16 * 1024;

/// Reads in a row that yield no plaintext, after which other connections have their turn.
pub(crate) const TLS_EMPTY_READS_MAX: u32 = 16;

/// Bytes of a file with certificates or a key. The certificates of all authorities that browsers trust are
/// 0.2 MB.
pub(crate) const PEM_BYTES_MAX: u64 = 16 * 1024 * 1024;
