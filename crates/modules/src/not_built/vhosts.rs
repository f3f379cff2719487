//! Document roots from a database.

use petrel_engine::directives;
use petrel_engine::module::ModuleSpec;
use petrel_engine::settings::directives::Effect::{Exposes, NotYet};

use super::not_built;

/// Without the module, all hosts would be answered from the same directory.
const OTHER_ROOT: &str =
    "requests for one host must not be answered from another host's document root";

const NO_VHOSTDB: &str = "virtual hosts from a database are not built";

pub(super) static VHOSTDB: ModuleSpec = not_built(
    "mod_vhostdb",
    "Gets the document root of a host from a database.",
    directives! {
        "vhostdb.backend", String, Request, "unset", Exposes(OTHER_ROOT),
            "The kind of database: dbi, ldap, mysql or pgsql.";
        "vhostdb.cache", Map, Request, "off", NotYet(NO_VHOSTDB),
            "How long an answer of the database is remembered: max-age in seconds.";
        "vhostdb.dbi", Map, Request, "()", NotYet(NO_VHOSTDB),
            "The libdbi connection and its query.";
        "vhostdb.ldap", Map, Request, "()", NotYet(NO_VHOSTDB),
            "The LDAP server, its filter and the attribute with the document root.";
        "vhostdb.mysql", Map, Request, "()", NotYet(NO_VHOSTDB),
            "The MySQL connection and its query.";
        "vhostdb.pgsql", Map, Request, "()", NotYet(NO_VHOSTDB),
            "The PostgreSQL connection and its query.";
    },
);

pub(super) static SQL_VHOST_CORE: ModuleSpec = not_built(
    "mod_sql_vhost_core",
    "As mod_vhostdb, in lighttpd 1.5.",
    directives! {
        "sql-vhost.select-vhost", String, Request, "unset", Exposes(OTHER_ROOT),
            "The query; its question mark is replaced by the host.";
        "sql-vhost.backend", String, Request, "unset", NotYet(NO_VHOSTDB),
            "The kind of database: mysql or postgresql.";
        "sql-vhost.db", String, Request, "unset", NotYet(NO_VHOSTDB),
            "The name of the database.";
        "sql-vhost.user", String, Request, "unset", NotYet(NO_VHOSTDB),
            "The user to connect as.";
        "sql-vhost.pass", String, Request, "unset", NotYet(NO_VHOSTDB),
            "The password of that user.";
        "sql-vhost.sock", String, Request, "unset", NotYet(NO_VHOSTDB),
            "The unix socket of the database.";
        "sql-vhost.hostname", String, Request, "unset", NotYet(NO_VHOSTDB),
            "The host of the database.";
        "sql-vhost.port", Short, Request, "0", NotYet(NO_VHOSTDB),
            "The port of the database. 0: the default port.";
        "sql-vhost.cache-ttl", Short, Request, "60", NotYet(NO_VHOSTDB),
            "For how many seconds an answer of the database is remembered.";
        "sql-vhost.debug", Short, Request, "0", NotYet(NO_VHOSTDB),
            "Debug lines about the module.";
        "mysql-vhost.sql", String, Request, "unset", Exposes(OTHER_ROOT),
            "Old name of sql-vhost.select-vhost.";
        "mysql-vhost.db", String, Request, "unset", NotYet(NO_VHOSTDB),
            "Old name of sql-vhost.db.";
        "mysql-vhost.user", String, Request, "unset", NotYet(NO_VHOSTDB),
            "Old name of sql-vhost.user.";
        "mysql-vhost.pass", String, Request, "unset", NotYet(NO_VHOSTDB),
            "Old name of sql-vhost.pass.";
        "mysql-vhost.sock", String, Request, "unset", NotYet(NO_VHOSTDB),
            "Old name of sql-vhost.sock.";
        "mysql-vhost.hostname", String, Request, "unset", NotYet(NO_VHOSTDB),
            "Old name of sql-vhost.hostname.";
        "mysql-vhost.port", Short, Request, "0", NotYet(NO_VHOSTDB),
            "Old name of sql-vhost.port.";
    },
);
