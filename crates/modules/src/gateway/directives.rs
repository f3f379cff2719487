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
            "Suffixes that are handled as another one.";
        "fastcgi.balance", String, Request, "fair", Works,
            "How a backend is chosen: fair (also least-connection and sqf: the fewest requests), round-robin, hash (also carp: by URL), sticky (by client), static (the first that works) or cookie.";
        "fastcgi.debug", Int, Request, "0", Works,
            "Traces the gateway.";
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
            "Suffixes that are handled as another one.";
        "scgi.protocol", String, Request, "scgi", Works,
            "What the backends speak: scgi or uwsgi.";
        "scgi.balance", String, Request, "fair", Works,
            "How a backend is chosen, as for fastcgi.balance.";
        "scgi.debug", Int, Request, "0", Works,
            "Traces the gateway.";
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
            "Suffixes that are handled as another one.";
        "proxy.balance", String, Request, "fair", Works,
            "How a backend is chosen, as for fastcgi.balance.";
        "proxy.debug", Int, Request, "0", Works,
            "Traces the gateway.";
        "proxy.forwarded", Map, Request, "()", Works,
            "Parameters of the Forwarded field that backends get: for, proto, host, by, remote_user.";
        "proxy.header", Map, Request, "()", Works,
            "How URLs and hosts in header fields are rewritten on the way to a backend and back; with upgrade, which protocols clients may change to: enable (websocket) or a list of names.";
        "proxy.underscores-in-headers", Bool, Request, "disable", Works,
            "Passes the client's fields whose names have other characters than letters, digits and -, such as Remote_User. They are left out otherwise: applications that turn fields into variables would take them for Remote-User.";
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
            "Suffixes that are handled as another one.";
        "ajp13.balance", String, Request, "fair", Works,
            "How a backend is chosen, as for fastcgi.balance.";
        "ajp13.debug", Int, Request, "0", Works,
            "Traces the gateway.";
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
            "What the backends speak: http, fastcgi, scgi, uwsgi or ajp13.";
        "proxy-core.tls", Map, Request, "()", Works,
            "TLS to the backends: tls, tls-name, tls-ca-file, tls-cert, tls-key and tls-verify, as in proxy.server.";
        "proxy-core.balancer", String, Request, "round-robin", Works,
            "How a backend is chosen: sqf (shortest queue), carp (by URL), round-robin, static, or a name that fastcgi.balance takes.";
        "proxy-core.debug", Short, Request, "0", Works,
            "Traces the gateway.";
        "proxy-core.max-pool-size", Short, Request, "0", Works,
            "Connections to one backend. 0: Petrel measures how many it can work on.";
        "proxy-core.max-keep-alive-requests", Short, Request, "0", Works,
            "Requests on one backend connection. 0 is no limit.";
        "proxy-core.max-backlog-size", Short, Request, "4", Works,
            "Times a request is tried again, where that is safe, before it is answered with an error.";
        "proxy-core.disable-time", Short, Request, "1", Works,
            "Seconds without requests for a backend that refused a connection.";
        "proxy-core.split-hostnames", Bool, Request, "enable", Works,
            "Every address of a host name is a backend of its own.";
        "proxy-core.allow-x-sendfile", Bool, Request, "disable", Works,
            "Lets backends name a file to send.";
        "proxy-core.allow-x-rewrite", Bool, Request, "disable", Works,
            "Lets backends send a request elsewhere by X-Rewrite-URI, -Host and -Backend.";
        "proxy-core.underscores-in-headers", Bool, Request, "disable", Works,
            "As proxy.underscores-in-headers, for backends that speak HTTP.";
        "proxy-core.rewrite-request", Map, Request, "()", Works,
            "Changes the request that a backend gets: header name, or _uri, _docroot, _pathinfo and _scriptname, each with a pattern and its replacement.";
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
