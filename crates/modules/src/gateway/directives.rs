//! The directives of the gateways: lighttpd 1.4's families and 1.5's proxy-core.

use petrel_engine::config::Diagnostic;
use petrel_engine::directives;
use petrel_engine::module::{Configure, Loaded, ModuleSpec};
use petrel_engine::settings::directives::DirectiveSpec;
use petrel_engine::settings::directives::Effect::{Removed, Works};

use super::{hook, options};

/// mod_fastcgi.
pub static FASTCGI: ModuleSpec = module(
    "mod_fastcgi",
    "Passes requests to FastCGI applications.",
    directives! {
        "fastcgi.server", Map, Request, "()", Works,
            "Backends by URL prefix or file suffix.";
        "fastcgi.map-extensions", StringMap, Request, "()", Works,
            "Suffixes that use the route of another suffix.";
        "fastcgi.balance", String, Request, "fair", Works,
            "How a backend is chosen: fair (or least-connection, sqf: the fewest requests), round-robin, hash (or carp: by URL), sticky (by client), static (the first that works) or cookie.";
        "fastcgi.debug", Int, Request, "0", Works,
            "Debug lines in the error log, from 1 (few) to 3 (many).";
    },
    |configure| install("mod_fastcgi", configure),
);

/// mod_scgi.
pub static SCGI: ModuleSpec = module(
    "mod_scgi",
    "Passes requests to SCGI and uwsgi applications.",
    directives! {
        "scgi.server", Map, Request, "()", Works,
            "Backends by URL prefix or file suffix.";
        "scgi.map-extensions", StringMap, Request, "()", Works,
            "Suffixes that use the route of another suffix.";
        "scgi.protocol", String, Request, "scgi", Works,
            "The protocol of the backends: scgi or uwsgi.";
        "scgi.balance", String, Request, "fair", Works,
            "How a backend is chosen, as for fastcgi.balance.";
        "scgi.debug", Int, Request, "0", Works,
            "Debug lines in the error log, from 1 (few) to 3 (many).";
    },
    |configure| install("mod_scgi", configure),
);

/// mod_proxy.
pub static PROXY: ModuleSpec = module(
    "mod_proxy",
    "Passes requests to HTTP servers.",
    directives! {
        "proxy.server", Map, Request, "()", Works,
            "Backends by URL prefix or file suffix.";
        "proxy.map-extensions", StringMap, Request, "()", Works,
            "Suffixes that use the route of another suffix.";
        "proxy.balance", String, Request, "fair", Works,
            "How a backend is chosen, as for fastcgi.balance.";
        "proxy.debug", Int, Request, "0", Works,
            "Debug lines in the error log, from 1 (few) to 3 (many).";
        "proxy.forwarded", Map, Request, "()", Works,
            "Which parameters the Forwarded field for backends has: for, proto, host, by, remote_user.";
        "proxy.header", Map, Request, "()", Works,
            "How URLs and hosts in header fields are rewritten on the way to a backend and back. With the key upgrade, the protocols that clients may upgrade to: enable (websocket) or a list of names.";
        "proxy.underscores-in-headers", Bool, Request, "disable", Works,
            "Passes on fields of the client whose names contain characters other than letters, digits and -, such as Remote_User. By default they are dropped, because applications that turn fields into variables would confuse them with Remote-User.";
        "proxy.replace-http-host", Bool, Request, "disable", Works,
            "Sends the label of the backend as Host.";
    },
    |configure| install("mod_proxy", configure),
);

/// mod_ajp13.
pub static AJP13: ModuleSpec = module(
    "mod_ajp13",
    "Passes requests to servlet containers by AJP 1.3.",
    directives! {
        "ajp13.server", Map, Request, "()", Works,
            "Backends by URL prefix or file suffix.";
        "ajp13.map-extensions", StringMap, Request, "()", Works,
            "Suffixes that use the route of another suffix.";
        "ajp13.balance", String, Request, "fair", Works,
            "How a backend is chosen, as for fastcgi.balance.";
        "ajp13.debug", Int, Request, "0", Works,
            "Debug lines in the error log, from 1 (few) to 3 (many).";
    },
    |configure| install("mod_ajp13", configure),
);

/// mod_proxy_core. No other module has its directives, so they take effect without the module being named:
/// the configurations in articles about lighttpd 1.5 run as they stand.
pub static PROXY_CORE: ModuleSpec = ModuleSpec {
    loaded: Loaded::Compat,
    ..PROXY_CORE_LISTED
};

const PROXY_CORE_LISTED: ModuleSpec = module(
    "mod_proxy_core",
    "The gateway of lighttpd 1.5, for all backend protocols.",
    directives! {
        "proxy-core.backends", StringOrList, Request, "()", Works,
            "Addresses of the backends of this scope: \"host:port\", \"[v6]:port\", \"unix:/path\" or \"srv:_service._tcp.name\".";
        "proxy-core.protocol", String, Request, "unset", Works,
            "The protocol of the backends: http, fastcgi, scgi, uwsgi or ajp13.";
        "proxy-core.tls", Map, Request, "()", Works,
            "TLS to the backends, with the options tls, tls-name, tls-ca-file, tls-cert, tls-key and tls-verify of proxy.server.";
        "proxy-core.balancer", String, Request, "round-robin", Works,
            "How a backend is chosen: sqf (shortest queue), carp (by URL), round-robin, static, or a name that fastcgi.balance takes.";
        "proxy-core.debug", Short, Request, "0", Works,
            "Debug lines in the error log, from 1 (few) to 3 (many).";
        "proxy-core.max-pool-size", Short, Request, "0", Works,
            "The largest number of connections to one backend. 0: no limit.";
        "proxy-core.max-keep-alive-requests", Short, Request, "0", Works,
            "The largest number of requests on one connection. 0: no limit.";
        "proxy-core.max-backlog-size", Short, Request, "4", Works,
            "How often a request is sent again, if that is safe, before the client gets an error.";
        "proxy-core.disable-time", Short, Request, "1", Works,
            "For how many seconds a backend gets no requests after a connection to it has failed.";
        "proxy-core.status-path", String, Request, "unset", Works,
            "The path at which php-fpm tells its status, as the option status-path of fastcgi.server.";
        "proxy-core.status-address", String, Request, "unset", Works,
            "Where it is asked for it, as the option status-address. Only with a single backend.";
        "proxy-core.slowlog", String, Request, "unset", Works,
            "The file where php-fpm says which scripts are slow, as the option slowlog of fastcgi.server.";
        "proxy-core.split-hostnames", Bool, Request, "enable", Works,
            "Makes each address of a host name a backend of its own.";
        "proxy-core.allow-x-sendfile", Bool, Request, "disable", Works,
            "Lets a backend name a file that Petrel sends (X-Sendfile and its relatives).";
        "proxy-core.allow-x-rewrite", Bool, Request, "disable", Works,
            "Lets a backend pass a request on to another URL, host or backend, with X-Rewrite-URI, -Host and -Backend.";
        "proxy-core.underscores-in-headers", Bool, Request, "disable", Works,
            "As proxy.underscores-in-headers, for backends that speak HTTP.";
        "proxy-core.rewrite-request", Map, Request, "()", Works,
            "Changes the request for a backend: the name of a field, or _uri, _docroot, _pathinfo or _scriptname, each with a regular expression and a replacement.";
        "proxy-core.rewrite-response", Map, Request, "()", Works,
            "Changes the header fields of a backend's response.";
        "proxy-core.check-local", Any, Request, "gone", Removed("a condition on $PHYSICAL[\"existing-path\"]"),
            "Old switch.";
    },
    |configure| install("mod_proxy_core", configure),
);

/// A module of this folder.
const fn module(
    name: &'static str,
    doc: &'static str,
    directives: &'static [DirectiveSpec],
    configure: fn(&mut Configure<'_>) -> Result<(), Diagnostic>,
) -> ModuleSpec {
    ModuleSpec {
        name,
        doc,
        loaded: Loaded::Listed,
        directives,
        configure,
    }
}

/// Adds the hooks of the gateway that the directives of `module` make, if they name a backend.
fn install(module: &str, configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    if let Some(gateway) = options::gateway(module, configure.values)? {
        hook::install(configure, gateway);
    }
    Ok(())
}
