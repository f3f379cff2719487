//! Modules that decide by an earlier visit whether a client gets something.

use petrel_engine::directives;
use petrel_engine::module::ModuleSpec;
use petrel_engine::settings::directives::Effect::{Exposes, NotYet};

use super::not_built;

const NO_TRIGGER: &str = "download triggers are not built";

pub(super) static TRIGGER_B4_DL: ModuleSpec = not_built(
    "mod_trigger_b4_dl",
    "Allows downloads only after a visit to another page.",
    directives! {
        "trigger-before-download.download-url", String, Request, "unset", Exposes("files behind the trigger page must not be sent without a visit to it"),
            "Regular expression of the protected URLs.";
        "trigger-before-download.trigger-url", String, Request, "unset", NotYet(NO_TRIGGER),
            "Regular expression of the trigger pages.";
        "trigger-before-download.deny-url", String, Request, "unset", NotYet(NO_TRIGGER),
            "The URL that visitors without a visit to a trigger page are redirected to.";
        "trigger-before-download.trigger-timeout", Short, Request, "0", NotYet(NO_TRIGGER),
            "For how many seconds a visit counts.";
        "trigger-before-download.gdbm-filename", String, Request, "unset", NotYet(NO_TRIGGER),
            "The file that remembers visitors.";
        "trigger-before-download.memcache-hosts", List, Request, "()", NotYet(NO_TRIGGER),
            "The memcached servers that remember visitors.";
        "trigger-before-download.memcache-namespace", String, Request, "unset", NotYet(NO_TRIGGER),
            "A prefix of keys on them.";
        "trigger-before-download.debug", Bool, Request, "disable", NotYet(NO_TRIGGER),
            "Debug lines about the module.";
    },
);
