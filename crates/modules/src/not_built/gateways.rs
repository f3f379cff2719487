//! CGI, FastCGI, SCGI, AJP13, HTTP and raw TCP backends.

use petrel_engine::directives;
use petrel_engine::module::ModuleSpec;
use petrel_engine::settings::directives::Effect::{Exposes, NotYet, Removed};

use super::not_built;

/// What a URL that belongs to a backend would get from the file system is its source.
const SOURCE: &str = "what a backend should answer must not be sent as a file";

/// Options that change how a gateway works change nothing without it.
const NO_GATEWAY: &str = "it belongs to a gateway that is not built";

pub(super) static CGI: ModuleSpec = not_built(
    "mod_cgi",
    "Runs programs by the Common Gateway Interface (RFC 3875).",
    directives! {
        "cgi.assign", StringMap, Request, "()", Exposes(SOURCE),
            "Interpreters by file suffix; an empty one runs the file itself.";
        "cgi.execute-all", Bool, Request, "disable", Exposes(SOURCE),
            "Runs any executable file (lighttpd 1.5).";
        "cgi.execute-x-only", Bool, Request, "disable", NotYet(NO_GATEWAY),
            "Runs only files with an execute bit.";
        "cgi.x-sendfile", Bool, Request, "disable", NotYet(NO_GATEWAY),
            "Lets programs name a file to send by X-Sendfile.";
        "cgi.x-sendfile-docroot", List, Request, "()", NotYet(NO_GATEWAY),
            "Directories such files may be in.";
        "cgi.local-redir", Bool, Request, "disable", NotYet(NO_GATEWAY),
            "Answers a Location that is a path from within (RFC 3875 6.2.2).";
        "cgi.upgrade", Bool, Request, "disable", NotYet(NO_GATEWAY),
            "Lets programs change the protocol of the connection.";
        "cgi.limits", Map, Request, "()", NotYet(NO_GATEWAY),
            "Time limits of programs: read-timeout, write-timeout, tcp-fin-propagate.";
    },
);

pub(super) static FASTCGI: ModuleSpec = not_built(
    "mod_fastcgi",
    "Passes requests to FastCGI applications.",
    directives! {
        "fastcgi.server", Map, Request, "()", Exposes(SOURCE),
            "Backends by URL prefix or file suffix.";
        "fastcgi.map-extensions", StringMap, Request, "()", Exposes(SOURCE),
            "Suffixes that are handled as another one.";
        "fastcgi.balance", String, Request, "fair", NotYet(NO_GATEWAY),
            "How a backend is chosen: fair (also least-connection), round-robin, hash or sticky.";
        "fastcgi.debug", Int, Request, "0", NotYet(NO_GATEWAY),
            "Traces the gateway.";
    },
);

pub(super) static SCGI: ModuleSpec = not_built(
    "mod_scgi",
    "Passes requests to SCGI and uwsgi applications.",
    directives! {
        "scgi.server", Map, Request, "()", Exposes(SOURCE),
            "Backends by URL prefix or file suffix.";
        "scgi.map-extensions", StringMap, Request, "()", Exposes(SOURCE),
            "Suffixes that are handled as another one.";
        "scgi.protocol", String, Request, "scgi", NotYet(NO_GATEWAY),
            "What the backends speak: scgi or uwsgi.";
        "scgi.balance", String, Request, "fair", NotYet(NO_GATEWAY),
            "How a backend is chosen, as for fastcgi.balance.";
        "scgi.debug", Int, Request, "0", NotYet(NO_GATEWAY),
            "Traces the gateway.";
    },
);

pub(super) static PROXY: ModuleSpec = not_built(
    "mod_proxy",
    "Passes requests to HTTP servers.",
    directives! {
        "proxy.server", Map, Request, "()", Exposes(SOURCE),
            "Backends by URL prefix or file suffix.";
        "proxy.map-extensions", StringMap, Request, "()", Exposes(SOURCE),
            "Suffixes that are handled as another one.";
        "proxy.balance", String, Request, "fair", NotYet(NO_GATEWAY),
            "How a backend is chosen, as for fastcgi.balance.";
        "proxy.debug", Int, Request, "0", NotYet(NO_GATEWAY),
            "Traces the gateway.";
        "proxy.forwarded", Map, Request, "()", NotYet(NO_GATEWAY),
            "Parameters of the Forwarded field that backends get: for, proto, host, by, remote_user.";
        "proxy.header", Map, Request, "()", NotYet(NO_GATEWAY),
            "How URLs and hosts in header fields are rewritten on the way to a backend and back.";
        "proxy.replace-http-host", Bool, Request, "disable", NotYet(NO_GATEWAY),
            "Sends the label of the backend as Host.";
    },
);

pub(super) static AJP13: ModuleSpec = not_built(
    "mod_ajp13",
    "Passes requests to servlet containers by AJP 1.3.",
    directives! {
        "ajp13.server", Map, Request, "()", Exposes(SOURCE),
            "Backends by URL prefix or file suffix.";
        "ajp13.map-extensions", StringMap, Request, "()", Exposes(SOURCE),
            "Suffixes that are handled as another one.";
        "ajp13.balance", String, Request, "fair", NotYet(NO_GATEWAY),
            "How a backend is chosen, as for fastcgi.balance.";
        "ajp13.debug", Int, Request, "0", NotYet(NO_GATEWAY),
            "Traces the gateway.";
    },
);

pub(super) static SOCKPROXY: ModuleSpec = not_built(
    "mod_sockproxy",
    "Passes whole connections to other servers, unread.",
    directives! {
        "sockproxy.server", Map, Socket, "()", Exposes(SOURCE),
            "Backends of a listener.";
        "sockproxy.balance", String, Socket, "fair", NotYet(NO_GATEWAY),
            "How a backend is chosen, as for fastcgi.balance.";
        "sockproxy.debug", Int, Socket, "0", NotYet(NO_GATEWAY),
            "Traces the gateway.";
    },
);

pub(super) static WSTUNNEL: ModuleSpec = not_built(
    "mod_wstunnel",
    "Connects WebSockets to TCP servers.",
    directives! {
        "wstunnel.server", Map, Request, "()", Exposes(SOURCE),
            "Backends by URL prefix or file suffix.";
        "wstunnel.map-extensions", StringMap, Request, "()", Exposes(SOURCE),
            "Suffixes that are handled as another one.";
        "wstunnel.balance", String, Request, "fair", NotYet(NO_GATEWAY),
            "How a backend is chosen, as for fastcgi.balance.";
        "wstunnel.debug", Int, Request, "0", NotYet(NO_GATEWAY),
            "Traces the gateway.";
        "wstunnel.frame-type", String, Request, "text", NotYet(NO_GATEWAY),
            "The WebSocket frames to send: text or binary.";
        "wstunnel.origins", List, Request, "()", NotYet(NO_GATEWAY),
            "Ends of the Origin values that are let in.";
        "wstunnel.ping-interval", Short, Request, "0", NotYet(NO_GATEWAY),
            "Seconds between pings to the client. 0 sends none.";
    },
);

pub(super) static PROXY_CORE: ModuleSpec = not_built(
    "mod_proxy_core",
    "The gateway of lighttpd 1.5, for all backend protocols.",
    directives! {
        "proxy-core.backends", StringOrList, Request, "()", Exposes(SOURCE),
            "Addresses of the backends of this scope: \"host:port\", \"[v6]:port\" or \"unix:/path\".";
        "proxy-core.protocol", String, Request, "unset", NotYet(NO_GATEWAY),
            "What the backends speak: http, fastcgi, scgi or ajp13.";
        "proxy-core.balancer", String, Request, "round-robin", NotYet(NO_GATEWAY),
            "How a backend is chosen: sqf (shortest queue), carp (by URL), round-robin or static.";
        "proxy-core.debug", Short, Request, "0", NotYet(NO_GATEWAY),
            "Traces the gateway.";
        "proxy-core.max-pool-size", Short, Request, "0", NotYet(NO_GATEWAY),
            "Connections to one backend.";
        "proxy-core.max-keep-alive-requests", Short, Request, "0", NotYet(NO_GATEWAY),
            "Requests on one backend connection. 0 is no limit.";
        "proxy-core.max-backlog-size", Short, Request, "4", NotYet(NO_GATEWAY),
            "Times a request may wait for a backend again before it is answered 504.";
        "proxy-core.disable-time", Short, Request, "1", NotYet(NO_GATEWAY),
            "Seconds a backend that refused is left alone.";
        "proxy-core.split-hostnames", Bool, Request, "enable", NotYet(NO_GATEWAY),
            "Every address of a host name is a backend of its own.";
        "proxy-core.allow-x-sendfile", Bool, Request, "disable", NotYet(NO_GATEWAY),
            "Lets backends name a file to send.";
        "proxy-core.allow-x-rewrite", Bool, Request, "disable", NotYet(NO_GATEWAY),
            "Lets backends send a request elsewhere by X-Rewrite-URI, -Host and -Backend.";
        "proxy-core.rewrite-request", Map, Request, "()", NotYet(NO_GATEWAY),
            "Changes the request that a backend gets: header name, or _uri, _docroot, _pathinfo and _scriptname, each with a pattern and its replacement.";
        "proxy-core.rewrite-response", Map, Request, "()", NotYet(NO_GATEWAY),
            "Changes the header fields of a backend's response.";
        "proxy-core.check-local", Any, Request, "gone", Removed("a condition on $PHYSICAL[\"existing-path\"]"),
            "Old switch.";
    },
);
