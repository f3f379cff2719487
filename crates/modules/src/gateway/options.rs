//! The directives of the gateways as typed options: which URLs lead to which backends, and how the backends
//! are used.
//!
//! lighttpd 1.4's maps (`fastcgi.server` and its siblings) and 1.5's `proxy-core.*` both become a [`Gateway`]
//! with [`Route`]s and their [`BackendHost`]s. Nothing is opened or resolved here.
//!
//! A module calls [`gateway()`] for each set of merged settings. The keeper calls [`spawn_specs`] once, for
//! the programs that it has to run. The start-up check calls [`warnings()`].

mod addresses;
mod host;
mod map;
mod proxy_core;
mod server;
mod spawn;
mod status_page;
mod table;
#[cfg(test)]
pub(super) mod testing;
mod tls;
mod warnings;

use std::rc::Rc;
use std::time::Duration;

use petrel_engine::config::{BlockId, Diagnostic};
use petrel_engine::settings::Values;

use super::upgrade::Upgrades;

pub(super) use addresses::trust_options;
pub use addresses::{addresses, slow_logs};
pub(super) use host::{shown, tempfile_dirs};
pub(super) use map::OptionMap;
pub use spawn::spawn_specs;
pub use status_page::FpmStatusPage;
pub use table::{HOST_OPTIONS, HostOption, HostOptionKind};
pub use tls::TlsOptions;
pub(super) use tls::{CA_FILE, CERTIFICATE, KEY, SWITCH as TLS, TrustOptions};
pub(crate) use warnings::warnings;

/// The gateway that the directives of `module` in `values` describe; `None` if they name no backend.
///
/// # Errors
/// The first invalid value, with its place.
pub fn gateway(module: &str, values: &Values<'_>) -> Result<Option<Gateway>, Diagnostic> {
    match FAMILIES.iter().find(|family| family.module == module) {
        Some(family) => server::gateway(family, values),
        None => proxy_core::gateway(values),
    }
}

/// One of lighttpd 1.4's gateway modules. They differ in little but the names of their directives.
pub(super) struct Family {
    /// The module (`mod_fastcgi`).
    module: &'static str,
    /// The directive with the backends (`fastcgi.server`).
    server: &'static str,
    /// The directive that lets a suffix use the route of another suffix.
    map_extensions: &'static str,
    /// The directive that selects the balancer.
    balance: &'static str,
    /// The directive that turns debug lines on.
    debug: &'static str,
    /// The protocol of the backends, unless scgi.protocol says otherwise.
    protocol: Protocol,
    /// Whether `check-local` has an effect. The files of HTTP and AJP13 backends are not on this server.
    has_local_files: bool,
}

/// The modules of lighttpd 1.4, whose maps have the same format.
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

/// The protocol of a backend.
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

impl Protocol {
    /// The name, for people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Protocol::FastCgi => "FastCGI",
            Protocol::Scgi => "SCGI",
            Protocol::Uwsgi => "uwsgi",
            Protocol::Ajp13 => "AJP13",
            Protocol::Http => "HTTP",
        }
    }

    /// The name in metrics and on the status page.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Protocol::FastCgi => "fastcgi",
            Protocol::Scgi => "scgi",
            Protocol::Uwsgi => "uwsgi",
            Protocol::Ajp13 => "ajp13",
            Protocol::Http => "http",
        }
    }
}

/// One gateway directive in one scope: its routes and common options.
#[derive(Debug)]
pub struct Gateway {
    /// The directive it comes from (`fastcgi.server`), for messages and counters.
    pub directive: &'static str,
    /// The protocol of its backends.
    pub protocol: Protocol,
    /// The routes, in the order of the configuration.
    pub routes: Vec<Route>,
    /// `*.map-extensions`: a suffix, and the suffix whose route it uses.
    pub extensions: Vec<(Vec<u8>, Vec<u8>)>,
    /// How one of several backends is chosen.
    pub balance: Balance,
    /// How often one request is tried in total, if it is safe to repeat. At least 1.
    pub tries_max: u32,
    /// `*.debug`: 0 writes no lines, higher levels write more.
    pub debug: u8,
    /// Options that only some protocols have: proxy.header and the like, proxy-core's rewriting.
    pub extras: Extras,
}

/// One key of a gateway's map, and the backends behind it.
#[derive(Debug)]
pub struct Route {
    /// Which URLs the route is for.
    pub key: RouteKey,
    /// The backends, all of one [`Mode`]; never empty.
    pub hosts: Vec<Rc<BackendHost>>,
    /// Its name in the metrics: the key, and the conditions that the directive stands in. Empty: it has that of
    /// its module.
    pub name: String,
    /// Identifies this group of backends in the whole configuration. Every set of settings with the same
    /// directive has the same id.
    pub id: String,
}

/// Which URLs a route is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteKey {
    /// All URLs of the scope (proxy-core.backends, or an empty key).
    All,
    /// URL paths with this prefix (a key that begins with a slash).
    Prefix(Vec<u8>),
    /// Paths with this suffix.
    Suffix(Vec<u8>),
}

/// The name of the route for `key` whose directive stands in `block`.
fn route_name(key: &str, block: Option<BlockId>, values: &Values<'_>) -> String {
    let block = block.unwrap_or(BlockId::GLOBAL);
    let conditions = values.config().conditions_of(block);
    match key.is_empty() || conditions.is_empty() {
        true => format!("{key}{conditions}"),
        false => format!("{key} {conditions}"),
    }
}

/// How one of several backends is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    /// The backend with the fewest requests under way for its weight (fair, least-connection, sqf).
    ShortestQueue,
    /// Each in turn, by weight (round-robin).
    RoundRobin,
    /// By a consistent hash of host and URL (hash, carp).
    Hash,
    /// By a consistent hash of the client's address (sticky).
    Sticky,
    /// The first backend that is usable (static).
    First,
    /// The backend that the client's cookie names. The cookie is set when it is missing.
    Cookie,
}

impl Balance {
    /// The rule, for people.
    pub(crate) fn in_words(self) -> &'static str {
        match self {
            Balance::ShortestQueue => "the one with the fewest requests under way for its weight",
            Balance::RoundRobin => "each in turn",
            Balance::Hash => "by host and URL",
            Balance::Sticky => "by the client's address",
            Balance::First => "the first that works",
            Balance::Cookie => "the one that the client's cookie names",
        }
    }
}

/// The options of one backend.
#[derive(Debug)]
pub struct BackendHost {
    /// The label in the configuration, or the address.
    pub label: String,
    /// Where it listens.
    pub address: HostAddress,
    /// Each address of the host name is a backend of its own. Otherwise the addresses are tried in turn.
    pub split_hostname: bool,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its FastCGI role.
    pub mode: Mode,
    /// Its share of the requests: 1 to 100.
    pub weight: u32,
    /// The largest number of connections, of all workers together; `None`: no limit.
    pub connections_max: Option<u32>,
    /// The largest number of requests on one connection; 0: no limit.
    pub requests_per_connection_max: u32,
    /// How long an idle connection is kept.
    pub keep_alive_idle: Duration,
    /// How many requests may wait for a connection; further ones get 503.
    pub backlog_max: u32,
    /// How long a request waits for a connection before it gets 504.
    pub backlog_timeout: Duration,
    /// How long connecting may take before another backend is tried, or the request gets 504; zero: no limit.
    pub connect_timeout: Duration,
    /// How long the backend may take nothing of a request before the request gets 504; zero: no limit.
    pub write_timeout: Duration,
    /// How long the backend may send nothing of a reply before the request gets 504; zero: no limit.
    pub read_timeout: Duration,
    /// How long a backend gets no requests after its first failure; doubled with each failure up to 32 times.
    pub disable_time: Duration,
    /// The file has to exist on this server (`check-local`).
    pub check_local: bool,
    /// The document root as the backend is told it.
    pub docroot: Option<Vec<u8>>,
    /// A prefix to remove from REQUEST_URI.
    pub strip_request_uri: Option<Vec<u8>>,
    /// `broken-scriptfilename`: PATH_INFO is appended to SCRIPT_FILENAME.
    pub broken_scriptfilename: bool,
    /// `fix-root-scriptname`: with the key "/" the whole path is PATH_INFO.
    pub fix_root_scriptname: bool,
    /// X-Sendfile and its relatives are followed.
    pub x_sendfile: bool,
    /// Directories that these may name files in; empty: the document root.
    pub x_sendfile_docroot: Vec<Vec<u8>>,
    /// Directories that X-LIGHTTPD-send-tempfile may name files in.
    pub tempfile_dirs: Vec<Vec<u8>>,
    /// Tell the backend when the client shuts its side of the connection down.
    pub tcp_fin_propagate: bool,
    /// The protocols that clients may upgrade their connection to.
    pub upgrade: Upgrades,
    /// The PROXY protocol version that each connection begins with: 0 (none), 1 or 2.
    pub proxy_protocol: u8,
    /// TLS for the connection; `None` in the clear.
    pub tls: Option<TlsOptions>,
    /// How to check whether the backend works.
    pub health_check: Option<HealthCheck>,
    /// Where php-fpm tells its status.
    pub status_page: Option<FpmStatusPage>,
    /// The time over which the share of a backend that has come back grows to the full one.
    pub slow_start: Duration,
    /// A program that the keeper runs as this backend (`bin-path`).
    pub spawn: Option<SpawnSpec>,
}

impl BackendHost {
    /// A backend with all options off and without limits.
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
            status_page: None,
            slow_start: Duration::ZERO,
            spawn: None,
        }
    }
}

/// The FastCGI roles that lighttpd knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Answers requests.
    Responder,
    /// Decides whether a request may go on.
    Authorizer,
}

/// Where a backend listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostAddress {
    /// A unix socket.
    Unix(Vec<u8>),
    /// A numeric address or a host name, with a port.
    Tcp(String, u16),
    /// The name of SRV records (`_http._tcp.example.org`), which have the ports.
    Srv(String),
}

/// A request that is sent regularly to find out whether a backend works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// URL path to ask for.
    pub(crate) path: Vec<u8>,
    /// The time between two checks.
    pub(crate) interval: Duration,
}

/// A backend program that the keeper runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpawnSpec {
    /// The program and its arguments, split as a shell would without expansions.
    pub command: Vec<String>,
    /// The address of the listening socket, which the program gets as descriptor 0.
    pub address: HostAddress,
    /// `bin-environment`.
    pub environment: Vec<(String, String)>,
    /// `bin-copy-environment`; `None`: the whole environment is passed on.
    pub copied_environment: Option<Vec<String>>,
    /// Number of processes at the start.
    pub processes_min: u32,
    /// Number of processes under load.
    pub processes_max: u32,
    /// How long a process beyond the minimum may be without work before it is ended.
    pub idle_timeout: Duration,
    /// The signal that ends a process.
    pub kill_signal: i32,
    /// The length of the kernel's queue of connections (listen backlog).
    pub listen_backlog: u32,
    /// The user to run as; `None`: the server's.
    pub user: Option<String>,
    /// The group to run as; `None`: the server's.
    pub group: Option<String>,
}

/// Options that only some of the directives have; empty for the others.
#[derive(Debug, Default)]
pub struct Extras {
    /// `proxy.forwarded`, `proxy.header` and `proxy.replace-http-host`.
    pub(crate) header_map: super::header_map::HeaderMap,
    /// `cgi.local-redir`.
    pub(crate) local_redirect: bool,
    /// `proxy.underscores-in-headers`: HTTP backends also get fields of the client whose names contain
    /// characters other than letters, digits and `-`.
    pub(crate) underscores: bool,
    /// `proxy-core.allow-x-rewrite`.
    pub(crate) x_rewrite: bool,
    /// `proxy-core.rewrite-request` and `-response`.
    pub(crate) rewriting: super::header_map::Rewriting,
}
