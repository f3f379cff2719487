//! What decides by address, link or earlier visit who gets something.

use petrel_engine::directives;
use petrel_engine::module::ModuleSpec;
use petrel_engine::settings::directives::Effect::{Exposes, NotYet};

use super::not_built;

const NO_SECDOWNLOAD: &str = "signed links are not built";
const NO_TRIGGER: &str = "download triggers are not built";

pub(super) static SECDOWNLOAD: ModuleSpec = not_built(
    "mod_secdownload",
    "Serves files by links that are signed and run out.",
    directives! {
        "secdownload.secret", String, Request, "required", Exposes("what is below secdownload.uri-prefix must not be had without a signed link"),
            "What links are signed with.";
        "secdownload.document-root", String, Request, "required", NotYet(NO_SECDOWNLOAD),
            "The directory the links lead to.";
        "secdownload.uri-prefix", String, Request, "/", NotYet(NO_SECDOWNLOAD),
            "What such links begin with.";
        "secdownload.timeout", Int, Request, "60", NotYet(NO_SECDOWNLOAD),
            "Seconds a link lives.";
    },
);

pub(super) static EVASIVE: ModuleSpec = not_built(
    "mod_evasive",
    "Limits the connections of one address.",
    directives! {
        "evasive.max-conns-per-ip", Short, Request, "0", Exposes("a limit that protects must not be left out"),
            "Connections from one address, beyond which requests are answered 403. 0 is no limit.";
    },
);

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
