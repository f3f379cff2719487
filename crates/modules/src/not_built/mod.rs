//! Modules of lighttpd that are known by name but not built: only their directives exist.
//!
//! So the start-up check can say which directives have no effect, and the engine answers 503 where ignoring a
//! directive would expose something (a source that was to be run, a page that was to be protected). When a
//! module is built, its table moves away from here. One file per family.

mod access_control;
mod gateways;
mod rest;
mod vhosts;

use petrel_engine::config::Diagnostic;
use petrel_engine::module::{Configure, Loaded, ModuleSpec};
use petrel_engine::settings::directives::DirectiveSpec;

/// All of these modules.
pub static MODULES: &[&ModuleSpec] = &[
    &gateways::SOCKPROXY,
    &gateways::WSTUNNEL,
    &access_control::TRIGGER_B4_DL,
    &vhosts::VHOSTDB,
    &vhosts::SQL_VHOST_CORE,
    &rest::SSI,
    &rest::WEBDAV,
    &rest::RRDTOOL,
    &rest::MAXMINDDB,
    &rest::FLV_STREAMING,
    &rest::UPLOADPROGRESS,
    &rest::SKELETON,
];

/// Further names that `server.modules` may contain: modules that are part of other modules, which are built
/// or listed above.
pub(crate) static PARTS: &[(&str, &[&str])] = &[
    ("mod_deflate", &["mod_compress"]),
    (
        "mod_auth",
        &[
            "mod_authn_dbi",
            "mod_authn_file",
            "mod_authn_gssapi",
            "mod_authn_ldap",
            "mod_authn_mysql",
            "mod_authn_pam",
            "mod_authn_sasl",
        ],
    ),
    (
        "mod_openssl",
        &[
            "mod_boringssl",
            "mod_gnutls",
            "mod_mbedtls",
            "mod_nss",
            "mod_wolfssl",
        ],
    ),
    ("mod_maxminddb", &["mod_geoip"]),
    (
        "mod_proxy_core",
        &[
            "mod_proxy_backend_ajp13",
            "mod_proxy_backend_fastcgi",
            "mod_proxy_backend_http",
            "mod_proxy_backend_scgi",
        ],
    ),
    (
        "mod_sql_vhost_core",
        &["mod_mysql_vhost", "mod_postgresql_vhost"],
    ),
    (
        "mod_vhostdb",
        &[
            "mod_vhostdb_dbi",
            "mod_vhostdb_ldap",
            "mod_vhostdb_mysql",
            "mod_vhostdb_pgsql",
        ],
    ),
];

/// Modules that may be named although nothing is loaded for them, because the server itself does what they
/// do, or because no site needs it.
pub(crate) static OF_THE_SERVER: &[&str] = &["mod_h2", "mod_chunked", "mod_echo"];

/// A module that has only directives.
const fn not_built(
    name: &'static str,
    doc: &'static str,
    directives: &'static [DirectiveSpec],
) -> ModuleSpec {
    ModuleSpec {
        name,
        doc,
        loaded: Loaded::Listed,
        directives,
        configure: nothing,
    }
}

fn nothing(_: &mut Configure<'_>) -> Result<(), Diagnostic> {
    Ok(())
}
