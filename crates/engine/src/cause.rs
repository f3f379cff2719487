//! Why a response is an error: a closed set of causes, one for each way in which the server itself makes a
//! 4xx or 5xx.
//!
//! The table has for each cause its code, its status, the stage where it mostly occurs, who failed, what it
//! means and what to do. Logs, counters, a header field and docs/causes.md all come from it. Codes are
//! stable: alerts and scripts match them.
//!
//! A status that the server did not choose has no cause: that of a backend's reply, of a script, or of a
//! directive such as `url.redirect-code`. [`Exchange::fail`](crate::Exchange::fail) is for the server's own
//! errors, [`Exchange::answer_as_told`](crate::Exchange::answer_as_told) for the others.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use petrel_proto::http1::BodyError;
use petrel_proto::request_head::HeadError;
use petrel_proto::status::Status;
use rustix::io::Errno;

use crate::ledger::Stage;

/// Who has to change something so that the error does not occur again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Culprit {
    /// The client has sent something wrong, too much or too slowly, or asks for what is not there.
    Client,
    /// A directive says so, or is missing.
    Configuration,
    /// A backend: an application, or a server of passwords.
    Backend,
    /// A file system, or the disk under it.
    Disk,
    /// A script, or a page made by one.
    Script,
    /// This server: it is full, or stops, or has an error of its own.
    Server,
}

impl Culprit {
    /// All of them.
    pub const ALL: [Culprit; 6] = [
        Culprit::Client,
        Culprit::Configuration,
        Culprit::Backend,
        Culprit::Disk,
        Culprit::Script,
        Culprit::Server,
    ];

    /// The name in logs.
    pub const fn name(self) -> &'static str {
        match self {
            Culprit::Client => "client",
            Culprit::Configuration => "configuration",
            Culprit::Backend => "backend",
            Culprit::Disk => "disk",
            Culprit::Script => "script",
            Culprit::Server => "server",
        }
    }
}

macro_rules! causes {
    ($($variant:ident $code:literal $status:ident $stage:ident $culprit:ident $meaning:literal $remedy:literal;)+) => {
        /// The code of a cause.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum CauseCode { $(#[doc = $meaning] $variant,)+ }

        impl CauseCode {
            /// Every code, in the order of the table.
            pub const ALL: &'static [CauseCode] = &[$(CauseCode::$variant,)+];

            /// The code as text: lower-case letters, digits and hyphens.
            pub const fn name(self) -> &'static str {
                match self { $(CauseCode::$variant => $code,)+ }
            }

            /// A number for records in memory: its place in the table, from 1.
            pub const fn number(self) -> u16 {
                self as u16 + 1
            }

            /// The code that [`CauseCode::number`] made a number of.
            pub fn of_number(number: u16) -> Option<CauseCode> {
                CauseCode::ALL.get(usize::from(number).checked_sub(1)?).copied()
            }

            /// The status that the client gets, unless the configuration names another one.
            pub const fn status(self) -> Status {
                match self { $(CauseCode::$variant => Status::$status,)+ }
            }

            /// The stage in which it mostly occurs.
            pub const fn stage(self) -> Stage {
                match self { $(CauseCode::$variant => Stage::$stage,)+ }
            }

            /// Who failed.
            pub const fn culprit(self) -> Culprit {
                match self { $(CauseCode::$variant => Culprit::$culprit,)+ }
            }

            /// What happened, in one sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(CauseCode::$variant => $meaning,)+ }
            }

            /// What to do, in one or two sentences.
            pub const fn remedy(self) -> &'static str {
                match self { $(CauseCode::$variant => $remedy,)+ }
            }
        }
    };
}

causes! {
    HeadMalformed "head-malformed" BAD_REQUEST Parse Client
        "The request head breaks the rules of HTTP."
        "The line in the error log says which rule. For a client that must be served, see `server.http-parseopts`.";
    HeadTooLarge "head-too-large" REQUEST_HEADER_FIELDS_TOO_LARGE Parse Client
        "The request line and the header fields together are too long, or there are too many fields."
        "Mostly it is a cookie that grows. Make it smaller, or raise `server.max-request-field-size`.";
    UrlTooLong "url-too-long" URI_TOO_LONG Parse Client
        "The request line alone is longer than a request head may be."
        "Send what is so long in a request body, or raise `server.max-request-field-size`.";
    UrlMalformed "url-malformed" BAD_REQUEST Parse Client
        "The request target is no URL, or holds what `server.http-parseopts` refuses."
        "The line in the error log names the option.";
    MethodUnknown "method-unknown" NOT_IMPLEMENTED Parse Client
        "The server does not know the request method."
        "Nothing, unless it is a client of yours: it asks for something that this server does not have.";
    HttpVersion "http-version" HTTP_VERSION_NOT_SUPPORTED Parse Client
        "The client speaks a version of HTTP that is not spoken on this port."
        "For HTTP/2 without TLS set `server.h2c`.";
    TransferCoding "transfer-coding" NOT_IMPLEMENTED Parse Client
        "The request body has a transfer coding other than chunked."
        "Let the client send the body chunked, or with Content-Length.";
    TlsExpected "tls-expected" BAD_REQUEST ReadHead Client
        "The client speaks HTTP without TLS to a port with TLS."
        "Use https in the URL, or set `ssl.engine` to disable for this port.";
    LengthMissing "length-missing" LENGTH_REQUIRED Parse Client
        "A request with a body says neither how long it is nor that it is chunked."
        "Let the client send Content-Length.";
    HeadTimeout "head-timeout" REQUEST_TIMEOUT ReadHead Client
        "The request head came too slowly."
        "Many of these may be an attack that holds connections open. `server.max-read-idle` is the time.";
    Misdirected "misdirected" MISDIRECTED_REQUEST Parse Client
        "The client has begun TLS for a host with other certificates or rules for clients."
        "Browsers try again on a connection of its own. A proxy must not mix hosts on one connection.";
    BodyTooLarge "body-too-large" CONTENT_TOO_LARGE RequestBody Client
        "The request body is longer than `server.max-request-size` allows."
        "Raise it for the URLs that take uploads.";
    BodyMalformed "body-malformed" BAD_REQUEST RequestBody Client
        "The chunks of the request body, or the trailers behind it, break the rules of HTTP."
        "The line in the error log says which rule.";
    TrailersTooLarge "trailers-too-large" REQUEST_HEADER_FIELDS_TOO_LARGE RequestBody Client
        "The trailers behind the request body are too long."
        "Nothing, unless it is a client of yours.";
    BodyTimeout "body-timeout" REQUEST_TIMEOUT RequestBody Client
        "The request body came too slowly."
        "For slow clients raise `server.max-read-idle`, or lower `server.min-read-rate`.";
    BodyDiskFull "body-disk-full" INSUFFICIENT_STORAGE RequestBody Disk
        "The disk has no room for a request body."
        "Make room in the directories of `server.upload-dirs`, or name others.";
    BodyDiskTimeout "body-disk-timeout" GATEWAY_TIMEOUT RequestBody Disk
        "The disk did not take a request body in time."
        "Look at the file system of `server.upload-dirs`.";
    BodyNotKept "body-not-kept" INTERNAL_SERVER_ERROR RequestBody Disk
        "A request body cannot be written to a temporary file."
        "The line in the error log has the system's reason. See `server.upload-dirs`.";
    BodyShortage "body-shortage" SERVICE_UNAVAILABLE RequestBody Server
        "There is no descriptor left for the temporary file of a request body."
        "Raise `server.max-fds`.";
    TunnelRefused "tunnel-refused" NOT_IMPLEMENTED Content Configuration
        "The client asks for a tunnel (CONNECT), which no backend of this URL may open."
        "Name the protocol in the option `upgrade` of the backend, such as websocket.";

    FileMissing "file-missing" NOT_FOUND Map Client
        "There is no such file."
        "Look for the link that leads there. `debug.log-file-not-found` logs the path that was looked for.";
    NoDocumentRoot "no-document-root" NOT_FOUND Map Configuration
        "No directive says where the files of this host are."
        "Set `server.document-root`.";
    FileDenied "file-denied" FORBIDDEN Map Configuration
        "The server process may not read the file or a directory above it, or a symlink stands in the way."
        "Compare the permissions with `server.username`, and see `server.follow-symlink`.";
    FileSpecial "file-special" FORBIDDEN Map Configuration
        "The path leads to a socket, a device or a pipe, which are never sent."
        "Remove it from the document root.";
    DirectoryDenied "directory-denied" FORBIDDEN Content Configuration
        "The URL is that of a directory that has no index file and may not be listed."
        "Set `index-file.names` or `dir-listing.activate`, or add the file.";
    NothingAnswers "nothing-answers" FORBIDDEN Content Configuration
        "The file exists, but no module answers for it."
        "Load mod_staticfile, or the module for its backend, in `server.modules`.";
    FileExcluded "file-excluded" FORBIDDEN Content Configuration
        "`static-file.exclude-extensions` keeps the source of a script from being sent as a file."
        "If the script should run, its backend is missing from the configuration or not loaded.";
    PathInfoDenied "path-info-denied" FORBIDDEN Content Configuration
        "The URL goes on behind the name of a file, which `static-file.disable-pathinfo` forbids."
        "Correct the link, or allow it.";
    AliasEscape "alias-escape" FORBIDDEN Map Client
        "The URL would leave the directory of an alias that lacks its slash."
        "End both sides of the entry in `alias.url` with a slash.";
    MethodNotAllowed "method-not-allowed" METHOD_NOT_ALLOWED Content Client
        "Files have only GET, HEAD, POST and OPTIONS."
        "If an application should answer, its route does not match this URL.";
    RangeUnsatisfiable "range-unsatisfiable" RANGE_NOT_SATISFIABLE Content Client
        "The client asks for a part behind the end of the file."
        "Nothing: a download whose file has become shorter looks like this.";
    PreconditionFailed "precondition-failed" PRECONDITION_FAILED Content Client
        "If-Match or If-Unmodified-Since of the request is not true any more."
        "Nothing: the client asked not to act on another version.";
    DiskError "disk-error" INTERNAL_SERVER_ERROR Map Disk
        "The file system reports an error."
        "The line in the error log has the error and the path. Look at the kernel's log, too.";
    DiskTimeout "disk-timeout" GATEWAY_TIMEOUT Map Disk
        "A file system did not answer in time."
        "Look at the mount, for example the server of a network file system. `server.max-file-wait` is the time.";
    DiskShortage "disk-shortage" SERVICE_UNAVAILABLE Map Server
        "The server has no descriptor or memory left for a file, or too many files wait for the disk."
        "Raise `server.max-fds`; if requests wait for the disk, the disk is too slow for the load.";
    DiskJobLost "disk-job-lost" INTERNAL_SERVER_ERROR Map Server
        "A disk thread could not be started, or has failed."
        "See whether the system limits threads (TasksMax of the unit). Else please report it.";

    AccessDenied "access-denied" FORBIDDEN Authorize Configuration
        "`url.access-deny` or `access.deny-all` denies the path."
        "Nothing, if that is meant. `debug.log-request-handling` logs the directive.";
    AccessNotAllowed "access-not-allowed" FORBIDDEN Authorize Configuration
        "`url.access-allow` does not allow the path."
        "Nothing, if that is meant. `debug.log-request-handling` logs the directive.";
    ModuleMissing "module-missing" SERVICE_UNAVAILABLE Authorize Configuration
        "A directive that would protect or handle this URL has no effect, so nothing is sent."
        "Load the module that the line in the error log names, or remove the directive. `petrel -tt` lists them.";
    AuthRequired "auth-required" UNAUTHORIZED Authorize Client
        "The URL needs a log-in, and the request has none."
        "Nothing: browsers ask their user and try again.";
    AuthFailed "auth-failed" UNAUTHORIZED Authorize Client
        "The user is unknown, the password is wrong, or the user is not among those of `auth.require`."
        "The error log has the user and the address, for programs such as fail2ban.";
    AuthStale "auth-stale" UNAUTHORIZED Authorize Client
        "The nonce of a Digest log-in is too old, or an earlier request has used its count."
        "Nothing: the client tries again without asking its user.";
    AuthMalformed "auth-malformed" BAD_REQUEST Authorize Client
        "The Authorization field is malformed, or was made for another URL."
        "Nothing, unless it is a client of yours.";
    AuthAddress "auth-address" FORBIDDEN Authorize Configuration
        "The rule names only addresses, and the client has none of them."
        "Add the client's address or network to `auth.require`, or a user who may log in from elsewhere.";
    AuthLockedOut "auth-locked-out" TOO_MANY_REQUESTS Authorize Client
        "There were too many wrong passwords for this user or from this address."
        "Wait for the time in Retry-After. See `auth.lockout`.";
    AuthUnusable "auth-unusable" SERVICE_UNAVAILABLE Authorize Configuration
        "`auth.require` guards the URL, but `auth.backend` cannot check log-ins of this method."
        "The line in the error log says what is missing.";
    AuthUsersUnreadable "auth-users-unreadable" SERVICE_UNAVAILABLE Authorize Disk
        "A file of users or groups cannot be read."
        "Compare its permissions with `server.username`. The line in the error log has the path and the reason.";
    AuthLdapAway "auth-ldap-away" SERVICE_UNAVAILABLE Authorize Backend
        "The LDAP server does not answer, or refuses the server's own log-in."
        "The line in the error log has the reason. Look at that server.";
    AuthPamAway "auth-pam-away" SERVICE_UNAVAILABLE Authorize Backend
        "PAM cannot check passwords now."
        "The line in the error log has the reason.";
    AuthBusy "auth-busy" SERVICE_UNAVAILABLE Authorize Server
        "More passwords wait to be hashed than the processors have time for."
        "Use `auth.cache`, or a hash that takes less time. It may be an attack: see `auth.lockout`.";
    AuthNoRandom "auth-no-random" SERVICE_UNAVAILABLE Authorize Server
        "The system has no random numbers for a nonce."
        "Look at the kernel's log.";
    ClientRule "client-rule" MISDIRECTED_REQUEST Authorize Client
        "A proxy or script has moved the request to a host with other rules for client certificates."
        "Let the client begin TLS for that host.";
    LinkExpired "link-expired" GONE Map Client
        "The signed link of mod_secdownload is too old."
        "Get a new link. `secdownload.timeout` is how long one lasts; compare the clocks of both machines.";
    LinkUnsigned "link-unsigned" FORBIDDEN Map Client
        "The signature of a link of mod_secdownload is wrong."
        "Compare secret, algorithm and path with the program that makes the links.";
    LinkUnset "link-unset" INTERNAL_SERVER_ERROR Map Configuration
        "A directive is missing that mod_secdownload needs."
        "Set the directive that the line in the error log names.";
    RateLimited "rate-limited" TOO_MANY_REQUESTS Translate Client
        "The client makes requests faster than a rule of `limit.rules` allows."
        "The line in the error log names the rule and the key. Retry-After tells the client when to come again.";
    ConcurrencyLimited "concurrency-limited" TOO_MANY_REQUESTS Translate Client
        "The client has more requests under way than a rule of `limit.rules` allows."
        "The line in the error log names the rule and the key.";
    ShareLimited "share-limited" TOO_MANY_REQUESTS BackendQueue Client
        "The client has its share of a backend's connections already (`pool-share` in `limit.rules`)."
        "The line in the error log names the rule and the backend.";
    AddressLimited "address-limited" FORBIDDEN Authorize Client
        "The address has more connections with requests than `evasive.max-conns-per-ip` allows."
        "Raise it if many users share an address.";
    ProxyFieldMalformed "proxy-field-malformed" BAD_REQUEST Translate Client
        "A trusted proxy names the client or the host in a field that is malformed."
        "Correct the configuration of the proxy.";

    RewriteEndless "rewrite-endless" INTERNAL_SERVER_ERROR Translate Configuration
        "Rules rewrite a URL again and again."
        "Use `url.rewrite-once` for the rule that the line in the error log names.";
    RewriteTooLong "rewrite-too-long" INTERNAL_SERVER_ERROR Translate Configuration
        "A rule has made a URL that is too long."
        "Correct the rule that the line in the error log names.";
    RewriteNoUrl "rewrite-no-url" INTERNAL_SERVER_ERROR Translate Configuration
        "What a rule has made is no URL."
        "Let the replacement begin with a slash. The line in the error log names the rule.";
    RewriteRefused "rewrite-refused" BAD_REQUEST Translate Client
        "A rule has made a URL that `server.http-parseopts` refuses from clients."
        "The part that is refused came from the client's URL.";
    RuleTooSlow "rule-too-slow" INTERNAL_SERVER_ERROR Translate Configuration
        "An expression takes too many steps to match this URL."
        "Simplify the expression that the line in the error log names: nested repetitions are the usual reason.";
    TooManyRestarts "too-many-restarts" INTERNAL_SERVER_ERROR Translate Configuration
        "The request began again too often: error handlers, index files or scripts lead to each other."
        "Set `debug.log-request-handling` and look at the URLs.";

    GwConnectRefused "gw-connect-refused" SERVICE_UNAVAILABLE BackendConnect Backend
        "No program listens at the backend's address (ECONNREFUSED)."
        "Start the backend, or compare its address with the configuration. How a program of `bin-path` ends is in the error log.";
    GwSocketMissing "gw-socket-missing" SERVICE_UNAVAILABLE BackendConnect Configuration
        "There is no unix socket at the backend's path (ENOENT)."
        "Start the backend, or compare its path with the configuration. In a chroot the path begins there. How a program of `bin-path` ends is in the error log.";
    GwSocketDenied "gw-socket-denied" SERVICE_UNAVAILABLE BackendConnect Configuration
        "The server process may not connect to the backend's socket (EACCES)."
        "Let `server.username` write to the socket: for php-fpm see listen.owner and listen.group.";
    GwUnreachable "gw-unreachable" SERVICE_UNAVAILABLE BackendConnect Backend
        "No connection to the backend can be made."
        "The line in the error log has the system's reason. Look at the network and at the backend.";
    GwConnectTimeout "gw-connect-timeout" GATEWAY_TIMEOUT BackendConnect Backend
        "The backend did not accept the connection in time."
        "A firewall may drop its packets. `connect-timeout` is the time.";
    GwTlsFailed "gw-tls-failed" BAD_GATEWAY BackendConnect Backend
        "TLS with the backend failed."
        "The line in the error log has the reason, mostly a certificate that is not trusted.";
    GwListenQueueFull "gw-listen-queue-full" SERVICE_UNAVAILABLE BackendConnect Backend
        "The listen queue of the backend's unix socket stayed full until `connect-timeout`."
        "The backend is too slow or has too few processes. Raise its backlog only after that.";
    GwOverloaded "gw-overloaded" SERVICE_UNAVAILABLE BackendBody Backend
        "The application said that it is full (FCGI_OVERLOADED)."
        "Give it more processes.";
    GwAllDown "gw-all-down" SERVICE_UNAVAILABLE BackendQueue Backend
        "Every backend of this URL has failed lately, and none is tried again yet."
        "Earlier lines in the error log say why each failed.";
    GwNoBackend "gw-no-backend" SERVICE_UNAVAILABLE BackendQueue Backend
        "There is no backend left to try."
        "Names that have no address, or replies that send the request on, lead here. See the lines before.";
    GwUnknownBackend "gw-unknown-backend" BAD_GATEWAY BackendQueue Backend
        "The reply names a backend (X-Rewrite-Backend) that this scope does not have."
        "Correct the application, or add the backend.";
    GwQueueFull "gw-queue-full" SERVICE_UNAVAILABLE BackendQueue Backend
        "Too many requests wait for a connection to the backend."
        "The backend is too slow for the load, or has too few connections.";
    GwQueueTimeout "gw-queue-timeout" GATEWAY_TIMEOUT BackendQueue Backend
        "No connection to the backend became free in time."
        "The backend is busy with other requests, and `backlog-timeout` is the time. The line in the error log has the stage `backend-accept` if no process took the request.";
    GwOwnShortage "gw-own-shortage" SERVICE_UNAVAILABLE BackendConnect Server
        "This server has no descriptor, memory or local port left for a connection to a backend."
        "Raise `server.max-fds`, or use a unix socket.";
    GwRequestUnfit "gw-request-unfit" REQUEST_HEADER_FIELDS_TOO_LARGE BackendSend Client
        "The backend's protocol cannot carry a request head of this size or form."
        "Lower `server.max-request-field-size`, or use another protocol.";
    GwSendFailed "gw-send-failed" BAD_GATEWAY BackendSend Backend
        "The connection broke while the backend received the request."
        "Look into the log of the backend: its process may have died.";
    GwSendTimeout "gw-send-timeout" GATEWAY_TIMEOUT BackendSend Backend
        "The backend took no more of the request."
        "`write-timeout` is the time.";
    GwClosed "gw-closed" BAD_GATEWAY BackendBody Backend
        "The backend closed the connection before its reply was complete."
        "Look into the log of the backend: its process may have died, or has a time limit of its own.";
    GwReplyBroken "gw-reply-broken" BAD_GATEWAY BackendBody Backend
        "The connection broke before the reply of the backend was complete."
        "The line in the error log has the system's reason.";
    GwReplyTimeout "gw-reply-timeout" GATEWAY_TIMEOUT BackendFirstByte Backend
        "The backend did not reply in time."
        "See what the application waits for. `read-timeout` is the time.";
    GwReplyInvalid "gw-reply-invalid" BAD_GATEWAY BackendBody Backend
        "The reply of the backend breaks the rules of its protocol."
        "The line in the error log says how. The address may be that of a server of another protocol.";
    GwReplyRefused "gw-reply-refused" BAD_GATEWAY BackendBody Backend
        "The reply has something that the configuration forbids: a file elsewhere, another protocol, or too many header fields."
        "See `x-sendfile-docroot`, `upgrade` and `server.max-response-fields`. The line in the error log says which of them.";
    GwFileMissing "gw-file-missing" NOT_FOUND Content Backend
        "The application names a file to send (X-Sendfile) that is not there."
        "Compare the path with the directory that this server sees.";
    GwFileDenied "gw-file-denied" FORBIDDEN Content Backend
        "The application names a file to send (X-Sendfile) that the server process may not read, or no file."
        "Compare its permissions with `server.username`.";
    CgiNotExecutable "cgi-not-executable" FORBIDDEN Content Configuration
        "A CGI program is not executable, or the system refuses to start it."
        "Make it executable (chmod +x), or name an interpreter in `cgi.assign`.";
    CgiTooMany "cgi-too-many" SERVICE_UNAVAILABLE BackendConnect Server
        "No more CGI programs can be started now."
        "The line in the error log says which limit. Programs that do not end are the usual reason.";
    CgiBadVariable "cgi-bad-variable" BAD_REQUEST BackendConnect Client
        "A variable for a CGI program holds a zero byte."
        "Nothing, unless it is a client of yours.";
    CgiTooLarge "cgi-too-large" REQUEST_HEADER_FIELDS_TOO_LARGE BackendConnect Client
        "The variables of a CGI program are larger than the system allows."
        "Lower `server.max-request-field-size`.";
    CgiLost "cgi-lost" INTERNAL_SERVER_ERROR BackendConnect Server
        "The thread that starts a CGI program has failed."
        "See whether the system limits threads (TasksMax of the unit). Else please report it.";

    LuaError "lua-error" INTERNAL_SERVER_ERROR Content Script
        "A Lua script raised an error, or returned what is no answer."
        "The line in the error log has file, line and stack.";
    LuaTime "lua-time" INTERNAL_SERVER_ERROR Content Script
        "A Lua script was stopped because it took too much processor time."
        "The line in the error log says where it was. See `lua.max-run-time`.";
    LuaMemory "lua-memory" INTERNAL_SERVER_ERROR Content Script
        "A Lua script was stopped because it used too much memory."
        "See `lua.max-run-memory`.";
    LuaUnloadable "lua-unloadable" INTERNAL_SERVER_ERROR Content Script
        "A Lua script is missing, cannot be read, or is not Lua."
        "The line in the error log has the path and the reason.";
    LuaBadUrl "lua-bad-url" BAD_REQUEST Authorize Script
        "A script has restarted the request with a URL that is none."
        "See what it assigns to `lighty.r.req_attr[\"request.uri\"]`.";
    LuaBodyLost "lua-body-lost" BAD_GATEWAY Transform Script
        "A script wanted the whole body of an answer, which is too long or broke off."
        "The line in the error log says which.";
    LuaFileMissing "lua-file-missing" NOT_FOUND Content Script
        "A script wants to send a file that is not there."
        "The line in the error log has the path.";
    LuaFileDenied "lua-file-denied" FORBIDDEN Content Script
        "A script wants to send a file that the server process may not read, or no file."
        "The line in the error log has the path.";
    CmlError "cml-error" INTERNAL_SERVER_ERROR Content Script
        "A page of mod_cml cannot be made."
        "The line in the error log has the script and the reason.";
    SubrequestTunnel "subrequest-tunnel" BAD_GATEWAY Content Backend
        "A backend opens a tunnel (101) for a request that the server made itself."
        "Correct the application: nothing asked for it.";
    CacheOnly "cache-only" GATEWAY_TIMEOUT Content Client
        "The client wants a cached page only (only-if-cached), and there is none."
        "Nothing: that is what the client asked for.";
    StatusDenied "status-denied" FORBIDDEN Authorize Configuration
        "The status page and the metrics are for clients of this machine, and the request came from elsewhere."
        "Add the client's address to `status.allow`.";
    StatusFailed "status-failed" SERVICE_UNAVAILABLE Content Server
        "The status page or the metrics could not be made."
        "The line in the error log has the reason.";
    PurgeDenied "purge-denied" FORBIDDEN Content Configuration
        "The client may not remove pages from the cache."
        "Add its address to `page-cache.purge`.";
    UserLookup "user-lookup" SERVICE_UNAVAILABLE Map Server
        "The home directory of a user cannot be looked up now."
        "The line in the error log has the reason. Look at the directory service (LDAP, NIS).";
    ServerStopping "server-stopping" SERVICE_UNAVAILABLE Send Server
        "The server process ended before there was an answer."
        "The line in the error log says why: a stop, or a reload whose time was over (`server.drain-timeout`).";
    Internal "internal" INTERNAL_SERVER_ERROR Content Server
        "The server has come to a point that it should never come to."
        "Please report it, with the lines of the error log.";
}

impl CauseCode {
    /// The cause for a head that the parser refuses.
    pub fn of_head(error: HeadError) -> CauseCode {
        match error {
            HeadError::MethodUnknown | HeadError::MethodConnect => CauseCode::MethodUnknown,
            HeadError::Http2Preface | HeadError::VersionUnsupported => CauseCode::HttpVersion,
            HeadError::RequestLineTooLong => CauseCode::UrlTooLong,
            HeadError::HeadTooLarge | HeadError::TooManyFields => CauseCode::HeadTooLarge,
            HeadError::TransferEncodingUnknown => CauseCode::TransferCoding,
            HeadError::LengthRequired => CauseCode::LengthMissing,
            _ => CauseCode::HeadMalformed,
        }
    }

    /// The cause for a body that the decoder refuses.
    pub fn of_body(error: BodyError) -> CauseCode {
        match error {
            BodyError::BodyTooLarge => CauseCode::BodyTooLarge,
            BodyError::TrailerTooLarge => CauseCode::TrailersTooLarge,
            _ => CauseCode::BodyMalformed,
        }
    }
}

/// Why a response is an error, with what is known of this one case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCause {
    /// The code.
    pub code: CauseCode,
    /// The connection to the backend had served other requests before.
    pub is_reused: bool,
    /// The system's error; 0: there is none.
    pub errno: u16,
    /// How many attempts at backends were made.
    pub attempts: u16,
    /// How many bytes of the request the backend had taken.
    pub bytes: u64,
}

impl ErrorCause {
    /// The cause with the errno of `error`, if it has one.
    #[must_use]
    pub fn with_error(mut self, error: &io::Error) -> ErrorCause {
        let errno = error.raw_os_error().and_then(|errno| errno.try_into().ok());
        self.errno = errno.unwrap_or(self.errno);
        self
    }

    /// The cause with `errno`.
    #[must_use]
    pub fn with_errno(mut self, errno: Errno) -> ErrorCause {
        self.errno = errno.raw_os_error().try_into().unwrap_or_default();
        self
    }

    /// The cause that `error` carries: see [`CausedError`].
    pub fn carried_by(error: &io::Error) -> Option<ErrorCause> {
        let carried = error.get_ref()?.downcast_ref::<CausedError>()?;
        Some(carried.cause)
    }
}

impl From<CauseCode> for ErrorCause {
    #[inline]
    fn from(code: CauseCode) -> ErrorCause {
        ErrorCause {
            code,
            is_reused: false,
            errno: 0,
            attempts: 0,
            bytes: 0,
        }
    }
}

/// `gw-connect-refused errno=111 attempts=2`: the code, and what is known besides. No part of it comes from a
/// client or a backend as text.
impl fmt::Display for ErrorCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code.name())?;
        if self.errno > 0 {
            write!(f, " errno={}", self.errno)?;
        }
        if self.attempts > 0 {
            write!(f, " attempts={}", self.attempts)?;
        }
        if self.is_reused {
            f.write_str(" reused=yes")?;
        }
        if self.bytes > 0 {
            write!(f, " bytes={}", self.bytes)?;
        }
        Ok(())
    }
}

/// What ends a body that is made while it is sent. If nothing of the response was sent yet, the client gets
/// the error of the cause.
#[derive(Debug)]
pub struct CausedError {
    cause: ErrorCause,
    sentence: String,
}

impl CausedError {
    /// An error for [`BodySource::poll_piece`](crate::body::BodySource::poll_piece).
    pub fn io(kind: io::ErrorKind, cause: ErrorCause, sentence: String) -> io::Error {
        io::Error::new(kind, CausedError { cause, sentence })
    }
}

impl fmt::Display for CausedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for CausedError {}

/// Where the status of a response comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum StatusOrigin {
    /// It is no error, or the response is an application's.
    #[default]
    Answer,
    /// The configuration, a script or a backend has chosen the status.
    Told,
    /// It is an error of the server's own.
    Own(ErrorCause),
}

/// How many requests failed for each cause, in all workers together.
pub struct CauseCounters([AtomicU64; CauseCode::ALL.len()]);

impl Default for CauseCounters {
    fn default() -> CauseCounters {
        CauseCounters([const { AtomicU64::new(0) }; CauseCode::ALL.len()])
    }
}

impl CauseCounters {
    pub(crate) fn count(&self, code: CauseCode) {
        if let Some(count) = self.0.get(code as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The causes that have occurred, and how often.
    pub fn read(&self) -> impl Iterator<Item = (CauseCode, u64)> + '_ {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        let all = CauseCode::ALL.iter().copied().zip(counts);
        all.filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_kebab_case() {
        let mut names: Vec<_> = CauseCode::ALL.iter().map(|code| code.name()).collect();
        for name in &names {
            let is_sound = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
            assert!(name.bytes().all(is_sound), "{name}");
            assert!(!name.starts_with('-') && !name.ends_with('-') && name.len() <= 24);
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CauseCode::ALL.len());
    }

    #[test]
    fn every_cause_is_an_error_with_sentences() {
        for code in CauseCode::ALL {
            assert!(code.status().is_error(), "{code:?}");
            for text in [code.meaning(), code.remedy()] {
                assert!(text.ends_with('.') && !text.contains('\n'), "{text}");
            }
        }
    }

    #[test]
    fn every_culprit_is_one_for_some_cause() {
        for culprit in Culprit::ALL {
            let mut codes = CauseCode::ALL.iter();
            assert!(codes.any(|code| code.culprit() == culprit), "{culprit:?}");
        }
    }

    #[test]
    fn what_the_parser_refuses_keeps_its_status() {
        for error in HeadError::ALL {
            assert_eq!(
                CauseCode::of_head(*error).status(),
                error.status(),
                "{error:?}"
            );
        }
        for error in BodyError::ALL {
            assert_eq!(
                CauseCode::of_body(*error).status(),
                error.status(),
                "{error:?}"
            );
        }
    }

    #[test]
    fn a_cause_shows_what_is_known() {
        let mut cause = ErrorCause::from(CauseCode::GwConnectRefused);
        assert_eq!(cause.to_string(), "gw-connect-refused");
        cause = cause.with_errno(Errno::CONNREFUSED);
        cause.attempts = 2;
        cause.is_reused = true;
        cause.bytes = 7;
        assert_eq!(
            cause.to_string(),
            "gw-connect-refused errno=111 attempts=2 reused=yes bytes=7"
        );
        let error = io::Error::from_raw_os_error(13);
        assert_eq!(cause.with_error(&error).errno, 13);
        assert_eq!(cause.with_error(&io::ErrorKind::TimedOut.into()).errno, 111);
    }

    #[test]
    fn a_cause_is_small() {
        assert!(size_of::<StatusOrigin>() <= 16);
    }

    #[test]
    fn an_error_of_a_body_carries_its_cause() {
        let cause = ErrorCause::from(CauseCode::GwReplyTimeout);
        let error = CausedError::io(io::ErrorKind::TimedOut, cause, "late".to_owned());
        assert_eq!(
            (error.to_string(), ErrorCause::carried_by(&error)),
            ("late".to_owned(), Some(cause))
        );
        assert_eq!(
            ErrorCause::carried_by(&io::ErrorKind::TimedOut.into()),
            None
        );
    }

    #[test]
    fn only_causes_that_occurred_are_counted() {
        let counters = CauseCounters::default();
        counters.count(CauseCode::FileMissing);
        counters.count(CauseCode::FileMissing);
        counters.count(CauseCode::Internal);
        let read: Vec<_> = counters.read().collect();
        assert_eq!(
            read,
            [(CauseCode::FileMissing, 2), (CauseCode::Internal, 1)]
        );
    }
}
