//! The directives of the core: name, type, scope, default, effect and meaning.
//!
//! One entry for each directive, in the order of the reference. The effect must say what the code does: a
//! commit that implements a directive changes its entry, too. Modules have their own tables, written with the
//! same [`directives!`](crate::directives) macro; the schema is made of all tables. [`super::core`] reads the
//! values that apply to requests, [`super::process`] the values that apply to the process.
//!
//! lighttpd takes values above 65535 for many directives that it types as `short`. Those are `Int` here.

use petrel_config::Effect::{Accepted, NotYet, Removed, Works};
pub use petrel_config::{DirectiveSpec, Effect, Scope, ValueKind};

/// Writes a table of directives, one statement each: name, [`ValueKind`], [`Scope`], default,
/// [`Effect`], meaning.
///
/// ```
/// use petrel_engine::settings::directives::{DirectiveSpec, Effect};
///
/// static TABLE: &[DirectiveSpec] = petrel_engine::directives! {
///     "example.size", Int, Request, "0", Effect::Works,
///         "Bytes of an example.";
/// };
/// assert_eq!(TABLE[0].name, "example.size");
/// ```
#[macro_export]
macro_rules! directives {
    ($($name:literal, $kind:ident, $scope:ident, $default:literal, $effect:expr, $doc:literal;)*) => {
        &[$($crate::settings::directives::DirectiveSpec {
            name: $name,
            kind: $crate::settings::directives::ValueKind::$kind,
            scope: $crate::settings::directives::Scope::$scope,
            default: $default,
            effect: $effect,
            doc: $doc,
        },)*]
    };
}

/// Every directive of the core.
pub static DIRECTIVES: &[DirectiveSpec] = directives! {
    // Directives of the process.
    "server.modules", List, Server, "()", Works,
        "The modules to use. Where two of them act at the same point of a request, the first one \
         in this list acts first.";
    "server.compat-module-load", Bool, Server, "enable", Works,
        "Adds mod_indexfile, mod_dirlisting and mod_staticfile when they are not listed.";
    "server.systemd-socket-activation", Bool, Server, "disable", Works,
        "Uses the listening sockets that systemd passes (LISTEN_FDS, LISTEN_PID) instead of \
         opening its own.";
    "server.port", Short, Server, "80", Works,
        "The port of the main listener, and of every address that names none. 0 stands for the default.";
    "server.bind", String, Server, "all interfaces", Works,
        "The address of the main listener: an IP address, a host name, or the absolute path of a unix socket.";
    "server.chroot", String, Server, "unset", Works,
        "The directory the server process is locked into before it serves. Backend programs (bin-path) and their sockets are inside as well.";
    "server.username", String, Server, "unset", Works,
        "The user that the server process runs as when root starts Petrel. Must not be root. If \
         unset, it runs as root, and a warning says so.";
    "server.groupname", String, Server, "unset", Works,
        "The group that the server process runs as when root starts Petrel. Must not be root's.";
    "server.errorlog-use-syslog", Bool, Server, "disable", Works,
        "Sends the error log to syslog.";
    "server.syslog-facility", String, Server, "daemon", Works,
        "The syslog facility of the error log.";
    "server.core-files", Bool, Server, "disable", Works,
        "Lets the server write a core file when it crashes.";
    "server.event-handler", String, Server, "linux-sysepoll", Accepted("epoll is always used"),
        "The event mechanism. There is only one here.";
    "server.pid-file", String, Server, "unset", Works,
        "The file that holds the process id while the server runs.";
    "server.control-socket", String, Server, "beside server.pid-file", Works,
        "The unix socket by which petrel reload, stop, reopen, status and why reach the server; mode 0600. Unset: the path of server.pid-file with .control in the place of .pid, or without a pid file petrel-HASH.control, after the path of the configuration, in /run for root and in /run/user/UID for others. Petrel's own.";
    "recorder.size", Int, Server, "1048576", Works,
        "Bytes of memory in which each worker records its last requests, for petrel why: about 120 bytes for one, and parts of it for errors and slow requests. Of requests that took less than a millisecond and went well, at most 250 a second are recorded. The memory is taken as it is filled. 0: nothing is recorded. docs/why.md explains the recorder. Petrel's own.";
    "recorder.slowest", Short, Server, "8", Works,
        "How many of the slowest requests of the last hour each worker keeps of each host, besides the last ones. 0: none. Petrel's own.";
    "recorder.dump", String, Server, "the directory of server.errorlog", Works,
        "The directory to which SIGUSR2 writes all recorded requests, as a trace for Perfetto (.trace.json) and for OpenTelemetry (.otlp.json). The files belong to the user who started the server. Petrel's own.";
    "server.drain-timeout", Int, Server, "86400", Works,
        "Seconds that a reload leaves to the requests and tunnels of the old server process; then \
         they are cut. 0 is no limit. If unset, server.graceful-shutdown-timeout of \
         server.feature-flags counts, if that is set. nginx calls it worker_shutdown_timeout. \
         Petrel's own.";
    "server.drain-generations", Short, Server, "4", Works,
        "Old server processes, replaced by reloads, that may finish their requests at the same \
         time. One more reload cuts the requests of the oldest. 0 is no limit. Petrel's own.";
    "server.max-worker", Short, Server, "0", Works,
        "Workers, which are threads of one process. 0 is one for each core.";
    "server.max-fds", Int, Server, "the hard limit, at most 65536", Works,
        "The limit on open files (RLIMIT_NOFILE). Only root can raise it above the hard limit.";
    "server.max-connections", Int, Server, "a third of server.max-fds", Works,
        "Connections at a time. At the limit listeners pause, so that the next connection waits in the kernel's queue.";
    "server.max-request-field-size", Int, Server, "8192", Works,
        "Bytes of a request line with all its header fields; 431 beyond it. At most 1048576.";
    "server.max-response-fields", Int, Request, "1024", Works,
        "Header fields of the reply of a backend or CGI program; 502 beyond it. At most 4096. Petrel's own.";
    "server.chunkqueue-chunk-sz", Int, Server, "8192", Accepted("buffers are sized by what they hold"),
        "The size of internal buffers.";
    "server.upload-temp-file-size", Int, Server, "1048576", Accepted("one body is one file, which has no name and no limit of its own"),
        "Bytes of a request body after which another temporary file is begun.";
    "server.upload-dirs", List, Server, "$TMPDIR, else /var/tmp", Works,
        "Directories for temporary files: request bodies and replies that are kept until they are complete. The first that takes a file is used.";
    "server.http-parseopts", StringMap, Server, "see Request strictness", Works,
        "How strictly requests are read and how their URLs are normalised.";
    "server.http-parseopt-header-strict", Bool, Server, "enable", Works,
        "Older name of header-strict in server.http-parseopts, which counts if both are set.";
    "server.http-parseopt-host-strict", Bool, Server, "enable", Works,
        "Older name of host-strict in server.http-parseopts, which counts if both are set.";
    "server.http-parseopt-host-normalize", Bool, Server, "disable", Works,
        "Older name of host-normalize in server.http-parseopts, which counts if both are set.";
    "server.reject-expect-100-with-417", Bool, Server, "enable", Accepted("lighttpd ignores it too: 100 (Continue) is always sent when it is asked for"),
        "Whether Expect: 100-continue is refused.";
    "server.stat-cache-engine", String, Server, "inotify", Works,
        "How cached files are kept fresh: inotify (also fam) sees changes at once, simple looks once a second, disable looks every time.";
    "mimetype.xattr-name", String, Server, "user.Content-Type", Works,
        "The extended attribute that mimetype.use-xattr reads.";
    "debug.log-request-header-on-error", Bool, Server, "disable", Works,
        "Logs the header of requests that end in an error, refused ones as far as they came.";
    "server.feature-flags", Map, Server, "()", Works,
        "Switches for behaviour that is not a directive of its own.";
    "server.max-stat-threads", Short, Server, "64", Works,
        "Threads that open files which the kernel does not have in memory. As many more threads \
         read the beginning of such files. At most 64 of each work for one file system at a time. \
         lighttpd 1.5 had 4.";
    "server.max-read-threads", Short, Server, "16", Works,
        "Threads of the process that read, or send, contents of open files that are not in the page cache. lighttpd 1.5 had 8 and recommended twice the number of disks.";
    "server.max-write-threads", Short, Server, "8", Works,
        "Threads of the process that write: request bodies and replies in temporary files, cached pages and compressed files.";
    "server.io-chunk-size", Int, Server, "0", Works,
        "KiB of a file that are read at once when it is not in memory, by the network backends auto, gthread-aio, posix-aio, linux-aio-sendfile and io_uring. 0: as much as the client takes in two seconds, from 64 KiB to 4 MiB. At most 16384. Petrel's own.";
    "server.use-noatime", Bool, Server, "disable", NotYet("files are opened in the ordinary way"),
        "Opens files without touching their access time (lighttpd 1.5).";

    // Directives of a listener.
    "server.listen-backlog", Int, Socket, "1024", Works,
        "Connections that may wait in the kernel's queue; net.core.somaxconn caps it.";
    "server.socket-perms", String, Socket, "unset", Works,
        "The mode of a unix listening socket, in octal. Clients, such as a proxy in front, need the right to write. \
         Unset: 0660 if server.socket-user or server.socket-group is set, or else what the umask leaves, mostly 0755: \
         only the user who started the server can connect then.";
    "server.socket-user", String, Socket, "unset", Works,
        "The owner of a unix listening socket, such as the user of a proxy in front. Petrel's own.";
    "server.socket-group", String, Socket, "unset", Works,
        "The group of a unix listening socket. Petrel's own.";
    "server.bsd-accept-filter", String, Socket, "unset", Accepted("it is a feature of FreeBSD; server.defer-accept does the like on Linux"),
        "The accept filter of a listener.";
    "server.defer-accept", Bool, Socket, "disable", Works,
        "Leaves a connection in the kernel until its first bytes are there (TCP_DEFER_ACCEPT).";
    "server.use-ipv6", Bool, Socket, "disable", Works,
        "An address without a host stands for all IPv6 interfaces instead of all IPv4 ones.";
    "server.set-v6only", Bool, Socket, "enable", Works,
        "An IPv6 listener takes no IPv4 connections.";
    "server.v4mapped", Bool, Socket, "disable", Works,
        "An IPv6 listener takes IPv4 connections as well, whatever server.set-v6only says.";
    "server.ip-transparent", Bool, Socket, "disable", Works,
        "Lets a listener use an address that is not the machine's own (IP_TRANSPARENT; needs the capability).";

    // Directives of a request.
    "server.network-backend", String, Request, "auto", Works,
        "How contents of files leave: auto (what is in memory at once, all else read by threads), write, writev, linux-sendfile (these three wait for the disk), gthread-aio (threads read), gthread-sendfile (threads call sendfile), posix-aio (the C library reads), linux-aio-sendfile (kernel AIO reads past the page cache), io_uring. The last three read by threads where the kernel or the file system does not let them. See docs/cold-files.md.";
    "server.max-file-wait", Short, Request, "60", Works,
        "Seconds that a request waits for a file system, such as a network file system that is \
         away or a disk that does not answer. Then it gets 504, and the path is logged. Petrel's \
         own.";
    "server.document-root", String, Request, "required", Works,
        "The directory that URL paths start from.";
    "server.name", String, Request, "the request's Host", Works,
        "The server's own name, for redirects and logs.";
    "server.tag", String, Request, "petrel/VERSION", Works,
        "The Server field of responses; an empty one leaves it out.";
    "server.max-request-size", Int, Request, "0", Works,
        "KiB of request body; 413 beyond it. 0 is no limit.";
    "server.max-keep-alive-requests", Int, Request, "1000", Works,
        "Requests on one connection; 0 closes after each.";
    "server.max-keep-alive-idle", Int, Request, "5", Works,
        "Seconds a connection waits for its next request; 0 closes after each. Behind its last answer the \
         server closes its sending side and reads on until the client closes, for 5 seconds at most \
         (RFC 9112 section 9.6); less when connections or descriptors run short.";
    "server.max-read-idle", Int, Request, "60", Works,
        "Seconds without a byte while a request is read. 0 is the shortest time, not no limit.";
    "server.max-write-idle", Int, Request, "360", Works,
        "Seconds without progress while a response is sent. 0 is the shortest time, not no limit.";
    "server.min-read-rate", Int, Request, "250", Works,
        "Bytes a second that a client must send of a request body; a slower one gets 408. It may \
         be slow for 30 seconds in all (server.max-read-idle if that is shorter), and time counts \
         only while the server waits for the client. Each second's worth of bytes earns another \
         second, up to server.max-read-idle, so a client that was fast may pause. Tunnels are \
         exempt; a request head has server.max-read-idle in all. 0 is no limit. Petrel's own.";
    "server.min-write-rate", Int, Request, "250", Works,
        "Bytes a second that a client must take of an answer; the server disconnects a slower \
         one. Otherwise as server.min-read-rate, with server.max-write-idle. Time counts only \
         while bytes wait for the client, not while the server waits for a bandwidth limit, a \
         backend or a disk. Tunnels are exempt. 0 is no limit. Petrel's own.";
    "server.max-connection-idle", Int, Request, "360", NotYet("set server.max-keep-alive-idle, server.max-read-idle and server.max-write-idle instead"),
        "Seconds a connection may be idle in any state (lighttpd 1.5).";
    "server.errorfile-prefix", String, Request, "unset", Works,
        "Error pages: the page for 404 is this text followed by 404.html.";
    "server.error-handler", String, Request, "unset", Works,
        "A URL path of this server whose answer (to a GET) replaces any error from 400 up. The \
         status stays that of the error, unless an application answers and server.error-intercept \
         is off.";
    "server.error-handler-404", String, Request, "unset", Works,
        "A URL path of this server whose answer replaces 404 and 403. It gets the method and body \
         of the request. The status becomes 200 unless the handler sets one.";
    "server.error-intercept", Bool, Request, "disable", Works,
        "Applies error pages and error handlers also to errors that backends answer with.";
    "server.force-lowercase-filenames", Bool, Request, "disable", Works,
        "Turns physical paths into lower case before they are looked up.";
    "server.follow-symlink", Bool, Request, "enable", Works,
        "When off, a symbolic link anywhere below the document root is answered by 403.";
    "server.protocol-http11", Bool, Request, "enable", Works,
        "When off, requests are answered as HTTP/1.0.";
    "server.h2c", Bool, Socket, "disable", Works,
        "Allows HTTP/2 without TLS, for clients that begin with it and for requests with Upgrade: \
         h2c. If unset, server.h2c of server.feature-flags counts. When off, the answers stay \
         HTTP/1.1, and a connection that begins with HTTP/2 gets 505. Petrel's own.";
    "server.range-requests", Bool, Request, "enable", Works,
        "Answers requests for parts of a file, or of another answer that is complete.";
    "server.stream-request-body", Short, Request, "0", Works,
        "When backends get a request body: 0 when it is complete, 1 as it arrives, 2 as it \
         arrives, with the client at most 64 KiB ahead.";
    "server.stream-response-body", Short, Request, "unset", Works,
        "When a backend's answer goes to the client: 0 when it is complete, 1 as it arrives, 2 as \
         it arrives, with the backend at most 64 KiB ahead. If unset, when it is complete, or 64 KiB \
         or 50 ms behind its head, whatever comes first; then as with 1.";
    "server.kbytes-per-second", Int, Request, "0", Works,
        "KiB a second for all connections of the scope together. 0 is no limit.";
    "connection.kbytes-per-second", Int, Request, "0", Works,
        "KiB a second for each connection; over HTTP/2 for each stream. 0 is no limit.";
    "mimetype.assign", StringMap, Request, "a built-in table", Works,
        "Content types by file name. With fewer than 16 entries the first key that ends the name counts; with more the whole name, then the longest extension. The key \"\" is for all the rest.";
    "mimetype.use-xattr", Bool, Request, "disable", Works,
        "Takes a file's content type from its extended attribute, if it has one.";
    "etag.use-inode", Bool, Request, "enable", Works,
        "The inode number is part of ETags. Turn it off when several machines serve the same files.";
    "etag.use-mtime", Bool, Request, "enable", Works,
        "The time of the last change is part of ETags.";
    "etag.use-size", Bool, Request, "enable", Works,
        "The size is part of ETags.";
    "server.errorlog", String, Request, "standard error", Works,
        "The error log: a file, or \"|command\" for a command that reads it. A file is opened again when it was rotated.";
    "server.breakagelog", String, Server, "unset", Works,
        "Where the standard error output of backend processes goes; to the error log when it is not set.";
    "chunked.encoding", Bool, Request, "enable", NotYet("a body of unknown length is always sent chunked over HTTP/1.1"),
        "Uses the chunked coding where the length of a body is not known (lighttpd 1.5).";
    "chunked.debug", Short, Request, "0", NotYet("the chunked coding is not traced"),
        "Traces the chunked coding (lighttpd 1.5).";
    "server.error-cause-header", Bool, Request, "disable", Works,
        "Adds to errors that Petrel itself makes a field Petrel-Cause with the code of the cause, such as \
         gw-connect-refused (docs/causes.md has them all). It tells clients about the inside of the site, so \
         enable it for those who may know: $HTTP[\"remoteip\"] == \"192.0.2.0/24\". The error log has the \
         code without it.";
    "ledger.server-timing", Bool, Request, "disable", Works,
        "Sends how long each stage of the exchange took in a Server-Timing field: only those in which it spent time. docs/ledger.md explains the stages.";
    "ledger.log-slower-than", Int, Request, "0", Works,
        "Milliseconds. A request that took as long or longer gets a line in the error log that says in which stages it spent the time, and what held it up. 0: none does. Tunnels get no such line.";

    // Tracing.
    "debug.log-condition-handling", Bool, Request, "disable", Works,
        "Logs a line for each request with the conditions that are true and where they stand.";
    "debug.log-condition-cache-handling", Bool, Request, "disable", Accepted("conditions are compiled: there is no such cache"),
        "Traces the condition cache (lighttpd 1.5).";
    "debug.log-file-not-found", Bool, Request, "disable", Works,
        "Logs files that are not there.";
    "debug.log-request-handling", Bool, Request, "disable", Works,
        "Logs the steps of a request: its URL, its file, and where it was answered.";
    "debug.log-request-header", Bool, Request, "disable", Works,
        "Logs request headers, each header in one line.";
    "debug.log-response-header", Bool, Request, "disable", Works,
        "Logs response headers, each header in one line.";
    "debug.log-timeouts", Bool, Request, "disable", Works,
        "Logs connections that ran into a time limit.";
    "debug.log-state-handling", Bool, Request, "disable", Works,
        "Logs what state connections pass through.";
    "debug.log-timing", Bool, Request, "disable", Works,
        "Logs one line for each request with the time of every stage, as NAME=MICROSECONDS. \
         lighttpd 1.5 wrote another format: one line for each asynchronous write, with three times \
         in milliseconds.";

    // Old names. lighttpd 1.5 refuses to start with them.
    "server.host", Any, Server, "gone", Removed("server.bind"),
        "Old name.";
    "server.docroot", Any, Request, "gone", Removed("server.document-root"),
        "Old name.";
    "server.virtual-root", Any, Request, "gone", Removed("simple-vhost.server-root"),
        "Old name.";
    "server.virtual-default-host", Any, Request, "gone", Removed("simple-vhost.default-host"),
        "Old name.";
    "server.virtual-docroot", Any, Request, "gone", Removed("simple-vhost.document-root"),
        "Old name.";
    "server.userid", Any, Server, "gone", Removed("server.username"),
        "Old name.";
    "server.groupid", Any, Server, "gone", Removed("server.groupname"),
        "Old name.";
    "server.use-keep-alive", Any, Request, "gone", Removed("server.max-keep-alive-requests = 0"),
        "Old switch.";
    "server.force-lower-case-files", Any, Request, "gone", Removed("server.force-lowercase-filenames"),
        "Old name.";
};

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_directive_has_one_entry_and_a_meaning() {
        let mut names = HashSet::new();
        for spec in DIRECTIVES {
            assert!(names.insert(spec.name), "{} stands twice", spec.name);
            assert!(spec.doc.ends_with('.'), "{} has no sentence", spec.name);
            assert!(!spec.default.is_empty(), "{} has no default", spec.name);
        }
    }

    #[test]
    fn what_belongs_to_the_process_cannot_be_set_in_a_condition() {
        let of = |name: &str| {
            DIRECTIVES
                .iter()
                .find(|spec| spec.name == name)
                .map(|spec| spec.scope)
        };
        assert_eq!(of("server.username"), Some(Scope::Server));
        assert_eq!(of("server.listen-backlog"), Some(Scope::Socket));
        assert_eq!(of("server.document-root"), Some(Scope::Request));
    }
}
