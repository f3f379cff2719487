//! The per-request directives of the core, with Rust types.

use std::rc::Rc;

use petrel_config::Diagnostic;

use super::Values;
use super::mime::{MimeCache, MimeTypes};
use super::process::{Http2Offer, unknown};
pub use crate::file_accounts::NetworkBackend;
use crate::file_cache::Symlinks;
use crate::ledger::Nanos;
use crate::log::{LogHandle, LogRegistry, LogTarget};
use crate::pace::MinRate;
use crate::throttle::ScopeThrottle;

/// Per-request settings of the core. The names of the fields say their units.
pub struct CoreSettings {
    /// `server.document-root`, absolute and without a slash at its end.
    pub document_root: Option<Rc<[u8]>>,
    /// Whether the configuration writes it with a trailing slash.
    pub document_root_has_slash: bool,
    /// `server.name`.
    pub name: Option<Rc<[u8]>>,
    /// The whole header line `Server: ...\r\n`; empty if `server.tag` is blank.
    pub server_line: Rc<[u8]>,
    /// `server.max-request-size`.
    pub body_bytes_max: Option<u64>,
    /// `server.max-keep-alive-requests`; 0 disables keep-alive.
    pub keep_alive_requests_max: u32,
    /// `server.max-keep-alive-idle`; 0 disables keep-alive.
    pub keep_alive_idle_s: u32,
    /// `server.max-read-idle`; 0 ends at the next full second, as in lighttpd.
    pub read_idle_s: u32,
    /// `server.max-write-idle`; 0 as for `read_idle_s`.
    pub write_idle_s: u32,
    /// `server.min-read-rate`.
    pub read_rate_min: MinRate,
    /// `server.min-write-rate`.
    pub write_rate_min: MinRate,
    /// `server.network-backend`.
    pub network_backend: NetworkBackend,
    /// `server.max-file-wait`.
    pub file_wait_s: u32,
    /// `server.stream-request-body`: 0, 1 or 2.
    pub stream_request_body: u32,
    /// `server.stream-response-body`: when a backend's reply goes to the client.
    pub stream_response_body: ReplyStreaming,
    /// `server.errorfile-prefix`.
    pub errorfile_prefix: Option<Rc<[u8]>>,
    /// `server.error-handler`.
    pub error_handler: Option<Rc<[u8]>>,
    /// `server.error-handler-404`.
    pub error_handler_404: Option<Rc<[u8]>>,
    /// `server.error-intercept`.
    pub error_intercept: bool,
    /// `server.force-lowercase-filenames`.
    pub force_lowercase: bool,
    /// `server.follow-symlink`.
    pub symlinks: Symlinks,
    /// `server.protocol-http11`.
    pub http11: bool,
    /// `server.h2c`, and the HTTP/2 switches of `server.feature-flags`. Decided for a connection.
    pub(crate) http2: Http2Offer,
    /// `server.max-response-fields`.
    pub reply_fields_max: usize,
    /// `server.range-requests`.
    pub range_requests: bool,
    /// `server.kbytes-per-second`, a limit on all connections of the scope together.
    pub(crate) scope_throttle: Option<ScopeThrottle>,
    /// `connection.kbytes-per-second`, in bytes.
    pub connection_bytes_per_second: u64,
    /// `mimetype.assign`, `mimetype.use-xattr`.
    pub mime_types: Rc<MimeTypes>,
    /// `mimetype.use-xattr`: the extended attribute to ask for a file's type.
    pub mime_xattr: Option<Rc<str>>,
    /// `etag.use-inode`.
    pub etag_inode: bool,
    /// `etag.use-mtime`.
    pub etag_mtime: bool,
    /// `etag.use-size`.
    pub etag_size: bool,
    /// `server.errorlog`.
    pub error_log: LogHandle,
    /// `server.error-cause-header`: names the cause of an error in a Petrel-Cause field.
    pub error_cause_header: bool,
    /// `ledger.server-timing`: sends the stages of the exchange in a Server-Timing field.
    pub server_timing: bool,
    /// `ledger.log-slower-than`: requests that took this long get a line in the error log.
    pub log_slower_nanos: Nanos,
    /// What to trace in the error log.
    pub debug: Debug,
}

/// The `debug.log-*` switches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Debug {
    /// `debug.log-request-handling`
    pub request_handling: bool,
    /// `debug.log-request-header`
    pub request_header: bool,
    /// `debug.log-request-header-on-error`
    pub request_header_on_error: bool,
    /// `debug.log-response-header`
    pub response_header: bool,
    /// `debug.log-file-not-found`
    pub file_not_found: bool,
    /// `debug.log-condition-handling`
    pub condition_handling: bool,
    /// `debug.log-timeouts`
    pub timeouts: bool,
    /// `debug.log-ssl-noise`: also log handshakes of clients that speak no TLS or go away.
    pub ssl_noise: bool,
    /// `debug.log-state-handling`
    pub state_handling: bool,
    /// `debug.log-timing` (1.5): one line with the stages of each request.
    pub timing: bool,
}

/// When a backend's reply goes to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyStreaming {
    /// When it is complete, or 64 KiB or 50 ms behind
    /// its head, whatever comes first. The backend may be ahead of the client.
    Soon,
    /// When it is complete.
    WhenComplete,
    /// As it arrives. The backend may be ahead of the client.
    AtOnce,
    /// As it arrives. The backend may be 64 KiB ahead of the client.
    Bounded,
}

impl CoreSettings {
    /// Reads the directives of the core from `values`.
    ///
    /// # Errors
    /// The first value that its directive does not allow.
    pub fn new(
        values: &Values<'_>,
        logs: &LogRegistry,
        mime: &MimeCache,
    ) -> Result<CoreSettings, Diagnostic> {
        let switch = |name: &str, default: bool| values.bool(name).unwrap_or(default);
        let bytes = |name: &str| values.string(name).map(|text| Rc::from(text.as_bytes()));
        let kbytes = |name: &str| u64::from(values.unsigned(name, 0)) * 1024;
        let body_kbytes = values.unsigned("server.max-request-size", 0);
        let symlinks = if switch("server.follow-symlink", true) {
            Symlinks::Follow
        } else {
            Symlinks::Refuse
        };
        let read_idle_s = values.unsigned("server.max-read-idle", 60);
        let write_idle_s = values.unsigned("server.max-write-idle", 360);
        // A client that has been fast for a while may send nothing for as long as the idle time allows.
        let min_rate = |name: &str, patience_s: u32| MinRate {
            bytes_per_second: values.unsigned(name, 250),
            patience_s,
        };
        Ok(CoreSettings {
            document_root: values.string("server.document-root").map(absolute_root),
            document_root_has_slash: values
                .string("server.document-root")
                .is_some_and(|root| root.ends_with('/')),
            name: bytes("server.name"),
            server_line: server_line(values),
            body_bytes_max: (body_kbytes > 0).then(|| u64::from(body_kbytes) * 1024),
            keep_alive_requests_max: values.unsigned("server.max-keep-alive-requests", 1000),
            keep_alive_idle_s: values.unsigned("server.max-keep-alive-idle", 5),
            network_backend: network_backend(values)?,
            file_wait_s: values.unsigned("server.max-file-wait", 60),
            stream_request_body: values.unsigned("server.stream-request-body", 0).min(2),
            stream_response_body: match values.integer("server.stream-response-body") {
                None => ReplyStreaming::Soon,
                Some(..=0) => ReplyStreaming::WhenComplete,
                Some(1) => ReplyStreaming::AtOnce,
                Some(_) => ReplyStreaming::Bounded,
            },
            read_idle_s,
            write_idle_s,
            read_rate_min: min_rate("server.min-read-rate", read_idle_s),
            write_rate_min: min_rate("server.min-write-rate", write_idle_s),
            errorfile_prefix: bytes("server.errorfile-prefix"),
            error_handler: handler(values, "server.error-handler"),
            error_handler_404: handler(values, "server.error-handler-404"),
            error_intercept: switch("server.error-intercept", false),
            force_lowercase: switch("server.force-lowercase-filenames", false),
            symlinks,
            http11: switch("server.protocol-http11", true),
            http2: Http2Offer::read(values),
            reply_fields_max: values.unsigned("server.max-response-fields", 1024) as usize,
            range_requests: switch("server.range-requests", true),
            scope_throttle: values
                .block_of("server.kbytes-per-second")
                .and_then(|block| ScopeThrottle::new(block, kbytes("server.kbytes-per-second"))),
            connection_bytes_per_second: kbytes("connection.kbytes-per-second"),
            mime_types: mime.types(values),
            mime_xattr: switch("mimetype.use-xattr", false).then(|| {
                values
                    .string("mimetype.xattr-name")
                    .unwrap_or("user.Content-Type")
                    .into()
            }),
            etag_inode: switch("etag.use-inode", true),
            etag_mtime: switch("etag.use-mtime", true),
            etag_size: switch("etag.use-size", true),
            error_log: logs.error_log(values.string("server.errorlog").map(LogTarget::parse)),
            error_cause_header: switch("server.error-cause-header", false),
            server_timing: switch("ledger.server-timing", false),
            log_slower_nanos: match values.unsigned("ledger.log-slower-than", 0) {
                0 => Nanos::MAX,
                millis => Nanos::from(millis) * 1_000_000,
            },
            debug: debug(values),
        })
    }
}

/// Makes the path of a directory absolute, and removes slashes and dots that it does not need.
pub fn absolute_root(text: &str) -> Rc<[u8]> {
    let mut path = Vec::new();
    if !text.starts_with('/') {
        let current = std::env::current_dir().unwrap_or_else(|_| "/".into());
        path.extend_from_slice(current.as_os_str().as_encoded_bytes());
    }
    for part in text
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
    {
        if path.last() != Some(&b'/') {
            path.push(b'/');
        }
        path.extend_from_slice(part.as_bytes());
    }
    if path.last() == Some(&b'/') {
        path.pop();
    }
    path.into()
}

fn network_backend(values: &Values<'_>) -> Result<NetworkBackend, Diagnostic> {
    const NAME: &str = "server.network-backend";
    let Some(name) = values.string(NAME) else {
        return Ok(NetworkBackend::default());
    };
    NetworkBackend::named(name).ok_or_else(|| {
        let known = NetworkBackend::ALL.into_iter().map(NetworkBackend::name);
        unknown(values, NAME, name, known)
    })
}

fn server_line(values: &Values<'_>) -> Rc<[u8]> {
    let tag = match values.value("server.tag") {
        Some(value) => value.as_str().unwrap_or_default(),
        None => DEFAULT_TAG,
    };
    let tag: String = tag.chars().filter(|c| !c.is_control()).collect();
    if tag.is_empty() {
        Rc::from(&b""[..])
    } else {
        format!("Server: {tag}\r\n").into_bytes().into()
    }
}

/// The URL path of an error handler, which must begin with a slash. lighttpd also starts with one that has no
/// slash, and answers 400 when it needs the handler.
fn handler(values: &Values<'_>, name: &str) -> Option<Rc<[u8]>> {
    let path = values.string(name)?;
    let slash = if path.starts_with('/') { "" } else { "/" };
    Some(format!("{slash}{path}").into_bytes().into())
}

fn debug(values: &Values<'_>) -> Debug {
    let switch = |name: &str| values.bool(name).unwrap_or(false);
    Debug {
        request_handling: switch("debug.log-request-handling"),
        request_header: switch("debug.log-request-header"),
        request_header_on_error: switch("debug.log-request-header-on-error"),
        response_header: switch("debug.log-response-header"),
        file_not_found: switch("debug.log-file-not-found"),
        condition_handling: switch("debug.log-condition-handling"),
        timeouts: switch("debug.log-timeouts"),
        ssl_noise: switch("debug.log-ssl-noise"),
        state_handling: switch("debug.log-state-handling"),
        timing: switch("debug.log-timing"),
    }
}

/// The value of `server.tag` if it is not set.
pub const DEFAULT_TAG: &str = concat!("petrel/", env!("CARGO_PKG_VERSION"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_are_absolute_and_plain() {
        assert_eq!(&*absolute_root("/srv//www/./"), b"/srv/www");
        assert_eq!(&*absolute_root("/"), b"");
        assert!(absolute_root("here").starts_with(b"/"));
        assert!(absolute_root("here").ends_with(b"/here"));
    }

    #[test]
    fn network_backends_are_known_by_name_for_each_scope() {
        let site = |text: &str| crate::testing::Site::try_new(text, &[]);
        for backend in NetworkBackend::ALL {
            let name = backend.name();
            let site = site(&format!("server.network-backend = \"{name}\"")).expect("a known name");
            assert_eq!(site.worker().base_settings().core.network_backend, backend);
        }
        let conditional = "$HTTP[\"host\"] == \"a.example\" { server.network-backend = \"write\" }";
        let site = site(conditional).expect("it may stand in a condition");
        let of_host = site.get("/").exchange().settings.core.network_backend;
        assert_eq!(of_host, NetworkBackend::Write);
        assert_eq!(
            site.worker().base_settings().core.network_backend,
            NetworkBackend::Auto
        );
        let wrong =
            crate::testing::Site::try_new("server.network-backend = \"linux-sendfle\"", &[]);
        let message = wrong.err().expect("an unknown name");
        assert!(
            message.contains("did you mean \"linux-sendfile\"?"),
            "{message}"
        );
    }
}
