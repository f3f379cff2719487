//! Lua scripts that decide about requests.

use petrel_engine::directives;
use petrel_engine::module::ModuleSpec;
use petrel_engine::settings::directives::Effect::{Accepted, Exposes};

use super::not_built;

/// A script may deny, sign, redirect or generate; a file in its place is the wrong answer.
const DECIDES: &str = "what a script should decide must not be answered without it";

pub(super) static MAGNET: ModuleSpec = not_built(
    "mod_magnet",
    "Runs Lua scripts on requests and responses.",
    directives! {
        "magnet.attract-raw-url-to", StringOrList, Request, "()", Exposes(DECIDES),
            "Scripts to run before a path is looked up.";
        "magnet.attract-physical-path-to", StringOrList, Request, "()", Exposes(DECIDES),
            "Scripts to run when the physical path is known.";
        "magnet.attract-response-start-to", StringOrList, Request, "()", Exposes(DECIDES),
            "Scripts to run when the response begins.";
        "magnet.attract-response-header-to", StringOrList, Request, "()", Exposes(DECIDES),
            "Scripts to run when the header of a backend's response is complete (lighttpd 1.5).";
        "magnet.attract-response-content-to", StringOrList, Request, "()", Accepted("lighttpd 1.5 never ran these scripts either"),
            "Scripts to run on the content of a response.";
    },
);
