//! The directives of the gateways, typed: which URLs lead to which backends, and how these are
//! treated.
//!
//! lighttpd 1.4's maps (`fastcgi.server` and its siblings) and 1.5's `proxy-core.*` become the same
//! thing: a [`Gateway`] with [`Route`]s that share [`BackendHost`]s. Opens nothing and resolves nothing.
//!
//! [`gateway()`] is what the modules ask for each set of merged settings, [`spawn_specs`] what the
//! keeper asks once for the programs to run, [`warnings()`] what start-up tells.

mod addresses;
mod host;
mod map;
mod proxy_core;
mod server;
mod spawn;
mod table;
#[cfg(test)]
pub(super) mod testing;
mod tls;
mod warnings;

use std::rc::Rc;
use std::time::Duration;

use petrel_engine::config::Diagnostic;
use petrel_engine::settings::Values;

use super::upgrade::Upgrades;

pub use addresses::addresses;
pub(super) use addresses::trust_options;
pub(super) use host::{shown, tempfile_dirs};
pub(super) use map::OptionMap;
pub use spawn::spawn_specs;
pub use table::{HOST_OPTIONS, HostOption, HostOptionKind};
pub use tls::TlsOptions;
pub(super) use tls::{CA_FILE, CERTIFICATE, KEY, SWITCH as TLS, TrustOptions};
pub(crate) use warnings::warnings;

/// The gateway that the directives of `module` make of `values`; `None` if they name no backend.
///
/// # Errors
/// The first value that is wrong, with its place.
pub fn gateway(module: &str, values: &Values<'_>) -> Result<Option<Gateway>, Diagnostic> {
    match FAMILIES.iter().find(|family| family.module == module) {
        Some(family) => server::gateway(family, values),
        None => proxy_core::gateway(values),
    }
}

/// One of lighttpd 1.4's gateway modules, whose directives differ in little but their names.
pub(super) struct Family {
    /// The module (`mod_fastcgi`).
    module: &'static str,
    /// The directive with the backends (`fastcgi.server`).
    server: &'static str,
    /// The directive that aliases suffixes.
    map_extensions: &'static str,
    /// The directive that says how a backend is chosen.
    balance: &'static str,
    /// The directive that traces.
    debug: &'static str,
    /// What the backends speak, unless scgi.protocol says otherwise.
    protocol: Protocol,
    /// Whether `check-local` counts. HTTP and AJP13 backends have files of their own.
    has_local_files: bool,
}

/// The modules of lighttpd 1.4 that share the format of their maps.
pub(super) static FAMILIES: &[Family] = &[
    Family {
        module: "mod_fastcgi",
        server: "fastcgi.server",
        map_extensions: "fastcgi.map-extensions",
        balance: "fastcgi.balance",
        debug: "fastcgi.debug",
        protocol: Protocol::FastCgi,
        has_local_files: true,
    },
    Family {
        module: "mod_scgi",
        server: "scgi.server",
        map_extensions: "scgi.map-extensions",
        balance: "scgi.balance",
        debug: "scgi.debug",
        protocol: Protocol::Scgi,
        has_local_files: true,
    },
    Family {
        module: "mod_proxy",
        server: "proxy.server",
        map_extensions: "proxy.map-extensions",
        balance: "proxy.balance",
        debug: "proxy.debug",
        protocol: Protocol::Http,
        has_local_files: false,
    },
    Family {
        module: "mod_ajp13",
        server: "ajp13.server",
        map_extensions: "ajp13.map-extensions",
        balance: "ajp13.balance",
        debug: "ajp13.debug",
        protocol: Protocol::Ajp13,
        has_local_files: false,
    },
];

/// What a backend speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// FastCGI 1.0.
    FastCgi,
    /// SCGI.
    Scgi,
    /// The binary protocol of uWSGI.
    Uwsgi,
    /// AJP 1.3.
    Ajp13,
    /// HTTP/1.1.
    Http,
}

/// One gateway directive of one scope: routes and what they have in common.
#[derive(Debug)]
pub struct Gateway {
    /// The directive it comes from (`fastcgi.server`), for messages and counters.
    pub directive: &'static str,
    /// What its backends speak.
    pub protocol: Protocol,
    /// Prefixes and suffixes in the order of the configuration.
    pub routes: Vec<Route>,
    /// `*.map-extensions`: suffix to suffix whose route is used.
    pub extensions: Vec<(Vec<u8>, Vec<u8>)>,
    /// How a host is chosen.
    pub balance: Balance,
    /// How often one request is tried in all, where another try is safe. At least 1.
    pub tries_max: u32,
    /// `*.debug`: 0 says nothing, higher levels more.
    pub debug: u8,
    /// What differs between protocols: proxy.header and the like, proxy-core's rewriting.
    pub extras: Extras,
}

/// One key of a gateway's map, and the backends behind it.
#[derive(Debug)]
pub struct Route {
    /// Which URLs.
    pub key: RouteKey,
    /// The backends, all of one [`Mode`]; never empty.
    pub hosts: Vec<Rc<BackendHost>>,
    /// Distinguishes this group of backends from all others of the configuration, and is the same in
    /// every set of settings that contains the same directive.
    pub id: String,
}

/// Which URLs a route is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteKey {
    /// Everything in the scope (proxy-core.backends, or an empty key).
    All,
    /// URL paths that begin so (a key with a slash in front).
    Prefix(Vec<u8>),
    /// Paths that end so.
    Suffix(Vec<u8>),
}

/// How one of several backends is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    /// Fewest requests under way, by weight (fair, least-connection, sqf).
    ShortestQueue,
    /// In turn, by weight.
    RoundRobin,
    /// By a consistent hash of host and URL (hash, carp).
    Hash,
    /// By a consistent hash of the client's address (sticky).
    Sticky,
    /// The first that can be used (static).
    First,
    /// By a cookie that names the backend, set when it is missing.
    Cookie,
}

/// Options of one backend entry.
#[derive(Debug)]
pub struct BackendHost {
    /// The label in the configuration, or the address.
    pub label: String,
    /// Where it listens.
    pub address: HostAddress,
    /// Every address that a host name has is a backend of its own; else they are tried in turn.
    pub split_hostname: bool,
    /// What it speaks.
    pub protocol: Protocol,
    /// FastCGI's role.
    pub mode: Mode,
    /// Share of the requests; 1 to 100.
    pub weight: u32,
    /// The most connections of all workers together; `None`: learned.
    pub connections_max: Option<u32>,
    /// Requests on one connection; 0 is no limit.
    pub requests_per_connection_max: u32,
    /// Time an idle connection is kept.
    pub keep_alive_idle: Duration,
    /// Requests that wait for a connection; more are answered 503.
    pub backlog_max: u32,
    /// Time a request waits for a connection; then 504.
    pub backlog_timeout: Duration,
    /// Time to connect; zero is no limit; then another host, or 504.
    pub connect_timeout: Duration,
    /// Time for the backend to take more of the request; zero is no limit; then 504.
    pub write_timeout: Duration,
    /// Time to the first byte of a reply and between two; zero is no limit; then 504.
    pub read_timeout: Duration,
    /// Time a host that failed is left alone, the first time; doubled up to 32 times.
    pub disable_time: Duration,
    /// The file must exist (`check-local`).
    pub check_local: bool,
    /// Document root that the backend sees.
    pub docroot: Option<Vec<u8>>,
    /// Removed from the front of REQUEST_URI.
    pub strip_request_uri: Option<Vec<u8>>,
    /// `broken-scriptfilename`: PATH_INFO stays at the end of SCRIPT_FILENAME.
    pub broken_scriptfilename: bool,
    /// `fix-root-scriptname`: with key "/" all of the path is PATH_INFO.
    pub fix_root_scriptname: bool,
    /// The X-Sendfile family is honoured.
    pub x_sendfile: bool,
    /// Directories such files may be in; empty: the document root.
    pub x_sendfile_docroot: Vec<Vec<u8>>,
    /// Directories that X-LIGHTTPD-send-tempfile may name files in.
    pub tempfile_dirs: Vec<Vec<u8>>,
    /// The end of a client's sending is passed on.
    pub tcp_fin_propagate: bool,
    /// The protocols that clients may change their connection to.
    pub upgrade: Upgrades,
    /// PROXY protocol version in front of every connection: 0, 1 or 2.
    pub proxy_protocol: u8,
    /// TLS below what it speaks.
    pub tls: Option<TlsOptions>,
    /// How to find out whether a disabled host is back.
    pub health_check: Option<HealthCheck>,
    /// Time over which a host that is back gets its full share.
    pub slow_start: Duration,
    /// A program the keeper runs (`bin-path`).
    pub spawn: Option<SpawnSpec>,
}

impl BackendHost {
    /// One with every option off, and no limit.
    pub(crate) fn plain(label: &str, address: HostAddress, protocol: Protocol) -> BackendHost {
        BackendHost {
            label: label.to_owned(),
            address,
            split_hostname: false,
            protocol,
            mode: Mode::Responder,
            weight: 1,
            connections_max: None,
            requests_per_connection_max: 0,
            keep_alive_idle: Duration::ZERO,
            backlog_max: 0,
            backlog_timeout: Duration::ZERO,
            connect_timeout: Duration::ZERO,
            write_timeout: Duration::ZERO,
            read_timeout: Duration::ZERO,
            disable_time: Duration::ZERO,
            check_local: false,
            docroot: None,
            strip_request_uri: None,
            broken_scriptfilename: false,
            fix_root_scriptname: false,
            x_sendfile: false,
            x_sendfile_docroot: Vec::new(),
            tempfile_dirs: Vec::new(),
            tcp_fin_propagate: false,
            upgrade: Upgrades::default(),
            proxy_protocol: 0,
            tls: None,
            health_check: None,
            slow_start: Duration::ZERO,
            spawn: None,
        }
    }
}

/// FastCGI's roles that lighttpd knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Makes the answer.
    Responder,
    /// Says whether a request may go on.
    Authorizer,
}

/// Where a backend listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostAddress {
    /// A unix socket.
    Unix(Vec<u8>),
    /// A numeric address or a host name, with its port.
    Tcp(String, u16),
    /// The name of SRV records (`_http._tcp.example.org`), which bring the ports.
    Srv(String),
}

/// A request that tells whether a backend works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// URL path to ask for.
    pub(crate) path: Vec<u8>,
    /// Time between two.
    pub(crate) interval: Duration,
}

/// A backend program, as the keeper runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpawnSpec {
    /// Program and arguments, split at blanks as a shell would without expansions.
    pub command: Vec<String>,
    /// Where it accepts connections: descriptor 0 of the program.
    pub address: HostAddress,
    /// `bin-environment`.
    pub environment: Vec<(String, String)>,
    /// `bin-copy-environment`; `None`: everything is passed on.
    pub copied_environment: Option<Vec<String>>,
    /// Processes at the start.
    pub processes_min: u32,
    /// Processes under load.
    pub processes_max: u32,
    /// Time without work after which processes beyond the minimum end.
    pub idle_timeout: Duration,
    /// Signal that ends it.
    pub kill_signal: i32,
    /// Length of the kernel's queue of connections.
    pub listen_backlog: u32,
    /// User to run as; `None`: that of the server.
    pub user: Option<String>,
    /// Group to run as.
    pub group: Option<String>,
}

/// What only some of the directives have. Empty for the others.
#[derive(Debug, Default)]
pub struct Extras {
    /// `proxy.forwarded`, `proxy.header` and `proxy.replace-http-host`.
    pub(crate) header_map: super::header_map::HeaderMap,
    /// `cgi.local-redir`.
    pub(crate) local_redirect: bool,
    /// `proxy.underscores-in-headers`: HTTP backends get the client's fields whose names have other
    /// characters than letters, digits and `-`.
    pub(crate) underscores: bool,
    /// `proxy-core.allow-x-rewrite`.
    pub(crate) x_rewrite: bool,
    /// `proxy-core.rewrite-request` and `-response`.
    pub(crate) rewriting: super::header_map::Rewriting,
}
