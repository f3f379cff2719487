//! Modules that decide by an earlier visit whether a client gets something.

use petrel_engine::directives;
use petrel_engine::module::ModuleSpec;
use petrel_engine::settings::directives::Effect::{Exposes, NotYet};

use super::not_built;

const NO_TRIGGER: &str = "download triggers are not built";

pub(super) static TRIGGER_B4_DL: ModuleSpec = not_built(
    "mod_trigger_b4_dl",
    "Lets downloads pass only after a visit to another page.",
    directives! {
        "trigger-before-download.download-url", String, Request, "unset", Exposes("what is behind a gate must not be had without passing it"),
            "Regular expression of the URLs behind the gate.";
        "trigger-before-download.trigger-url", String, Request, "unset", NotYet(NO_TRIGGER),
            "Regular expression of the pages that open the gate.";
        "trigger-before-download.deny-url", String, Request, "unset", NotYet(NO_TRIGGER),
            "Where visitors are sent who did not pass it.";
        "trigger-before-download.trigger-timeout", Short, Request, "0", NotYet(NO_TRIGGER),
            "Seconds the gate stays open.";
        "trigger-before-download.gdbm-filename", String, Request, "unset", NotYet(NO_TRIGGER),
            "The file that remembers visitors.";
        "trigger-before-download.memcache-hosts", List, Request, "()", NotYet(NO_TRIGGER),
            "The memcached servers that remember visitors.";
        "trigger-before-download.memcache-namespace", String, Request, "unset", NotYet(NO_TRIGGER),
            "What keys there begin with.";
        "trigger-before-download.debug", Bool, Request, "disable", NotYet(NO_TRIGGER),
            "Traces the module.";
    },
);
