//! All other modules that are known and not built.

use petrel_engine::directives;
use petrel_engine::module::ModuleSpec;
use petrel_engine::settings::directives::Effect::{Accepted, Exposes, NotYet};

use super::not_built;

const NO_SSI: &str = "it belongs to ssi.extension, which is not built";
const NO_WEBDAV: &str = "WebDAV's methods are refused";
const NO_RRDTOOL: &str = "no data goes to rrdtool";
const NO_GEO: &str = "addresses are not looked up";
const NO_PROGRESS: &str = "upload progress is not reported";

pub(super) static SSI: ModuleSpec = not_built(
    "mod_ssi",
    "Executes server-side includes.",
    directives! {
        "ssi.extension", List, Request, "()", Exposes("the source of such pages must not be sent"),
            "Suffixes of pages with includes.";
        "ssi.content-type", String, Request, "text/html", NotYet(NO_SSI),
            "The content type of such pages.";
        "ssi.conditional-requests", Bool, Request, "disable", NotYet(NO_SSI),
            "Sends ETag and Last-Modified with them.";
        "ssi.exec", Bool, Request, "enable", NotYet(NO_SSI),
            "Lets pages run commands.";
        "ssi.recursion-max", Short, Request, "0", NotYet(NO_SSI),
            "How deeply included pages may include others.";
    },
);

pub(super) static WEBDAV: ModuleSpec = not_built(
    "mod_webdav",
    "Lets clients change files (RFC 4918).",
    directives! {
        "webdav.activate", Bool, Request, "disable", NotYet(NO_WEBDAV),
            "Allows WebDAV's methods.";
        "webdav.is-readonly", Bool, Request, "disable", NotYet(NO_WEBDAV),
            "Refuses the methods that write.";
        "webdav.sqlite-db-name", String, Request, "unset", NotYet(NO_WEBDAV),
            "The file that keeps locks and properties.";
        "webdav.log-xml", Bool, Request, "disable", NotYet(NO_WEBDAV),
            "Logs the XML of requests.";
        "webdav.opts", Map, Request, "()", NotYet(NO_WEBDAV),
            "Further options.";
    },
);

pub(super) static RRDTOOL: ModuleSpec = not_built(
    "mod_rrdtool",
    "Writes traffic figures to a database of rrdtool.",
    directives! {
        "rrdtool.db-name", String, Request, "unset", NotYet(NO_RRDTOOL),
            "The database file.";
        "rrdtool.binary", String, Server, "/usr/bin/rrdtool", NotYet(NO_RRDTOOL),
            "The program.";
    },
);

pub(super) static MAXMINDDB: ModuleSpec = not_built(
    "mod_maxminddb",
    "Looks up the location of the client's address.",
    directives! {
        "maxminddb.activate", Bool, Request, "disable", NotYet(NO_GEO),
            "Enables the look-up.";
        "maxminddb.db", String, Request, "unset", NotYet(NO_GEO),
            "The database file.";
        "maxminddb.env", Map, Request, "()", NotYet(NO_GEO),
            "Environment variables, each with the database entry that it is set to.";
        "geoip.db-filename", String, Request, "unset", NotYet(NO_GEO),
            "The database file of mod_geoip (older lighttpd).";
        "geoip.memory-cache", Bool, Request, "disable", NotYet(NO_GEO),
            "Keeps that database in memory (older lighttpd).";
    },
);

pub(super) static FLV_STREAMING: ModuleSpec = not_built(
    "mod_flv_streaming",
    "Sends Flash video from a given byte on.",
    directives! {
        "flv-streaming.extensions", List, Request, "()", NotYet("such files are sent whole"),
            "Suffixes of files for which ?start=N is used.";
    },
);

pub(super) static UPLOADPROGRESS: ModuleSpec = not_built(
    "mod_uploadprogress",
    "Reports the progress of uploads.",
    directives! {
        "upload-progress.progress-url", String, Request, "unset", NotYet(NO_PROGRESS),
            "The URL of the report.";
        "upload-progress.remove-timeout", Short, Request, "60", NotYet(NO_PROGRESS),
            "For how many seconds a finished upload is remembered.";
        "upload-progress.debug", Bool, Request, "disable", NotYet(NO_PROGRESS),
            "Debug lines about the module.";
    },
);

pub(super) static SKELETON: ModuleSpec = not_built(
    "mod_skeleton",
    "A sample for authors of lighttpd modules.",
    directives! {
        "skeleton.array", List, Request, "()", Accepted("the module is a sample that does nothing"),
            "A list.";
    },
);
