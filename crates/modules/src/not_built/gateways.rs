//! Raw TCP and WebSocket backends.

use petrel_engine::directives;
use petrel_engine::module::ModuleSpec;
use petrel_engine::settings::directives::Effect::{Exposes, NotYet};

use super::not_built;

/// The file behind a URL of a backend is the source of a program.
const SOURCE: &str = "files that a backend should run must not be sent";

/// Options of a gateway have no effect without the gateway.
const NO_GATEWAY: &str = "it belongs to a gateway that is not built";

pub(super) static SOCKPROXY: ModuleSpec = not_built(
    "mod_sockproxy",
    "Passes whole connections on to other servers.",
    directives! {
        "sockproxy.server", Map, Socket, "()", Exposes(SOURCE),
            "Backends of a listener.";
        "sockproxy.balance", String, Socket, "fair", NotYet(NO_GATEWAY),
            "How a backend is chosen, as for fastcgi.balance.";
        "sockproxy.debug", Int, Socket, "0", NotYet(NO_GATEWAY),
            "Debug lines about the gateway.";
    },
);

pub(super) static WSTUNNEL: ModuleSpec = not_built(
    "mod_wstunnel",
    "Connects WebSockets to TCP servers.",
    directives! {
        "wstunnel.server", Map, Request, "()", Exposes(SOURCE),
            "Backends by URL prefix or file suffix.";
        "wstunnel.map-extensions", StringMap, Request, "()", Exposes(SOURCE),
            "Suffixes that use the route of another suffix.";
        "wstunnel.balance", String, Request, "fair", NotYet(NO_GATEWAY),
            "How a backend is chosen, as for fastcgi.balance.";
        "wstunnel.debug", Int, Request, "0", NotYet(NO_GATEWAY),
            "Debug lines about the gateway.";
        "wstunnel.frame-type", String, Request, "text", NotYet(NO_GATEWAY),
            "The WebSocket frames to send: text or binary.";
        "wstunnel.origins", List, Request, "()", NotYet(NO_GATEWAY),
            "Suffixes of the allowed Origin values.";
        "wstunnel.ping-interval", Short, Request, "0", NotYet(NO_GATEWAY),
            "Seconds between pings to the client. 0: no pings.";
    },
);
