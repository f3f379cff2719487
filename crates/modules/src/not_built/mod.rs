//! Modules of lighttpd that are known by name but not built: their directives and nothing else.
//!
//! So start-up can say what has no effect yet, and the engine can close what would otherwise be
//! exposed (a source that was to be run, a page that was to be guarded). Whoever builds a module
//! moves its table out of here. One file a family.

mod access_control;
mod auth;
mod gateways;
mod rest;
mod tls;
mod vhosts;

use petrel_engine::config::Diagnostic;
use petrel_engine::module::{Configure, Loaded, ModuleSpec};
use petrel_engine::settings::directives::DirectiveSpec;

/// The modules, families together.
pub static MODULES: &[&ModuleSpec] = &[
    &gateways::SOCKPROXY,
    &gateways::WSTUNNEL,
    &auth::AUTH,
    &access_control::SECDOWNLOAD,
    &access_control::EVASIVE,
    &access_control::TRIGGER_B4_DL,
    &tls::OPENSSL,
    &vhosts::VHOSTDB,
    &vhosts::SQL_VHOST_CORE,
    &vhosts::USERDIR,
    &rest::REWRITE,
    &rest::SSI,
    &rest::WEBDAV,
    &rest::RRDTOOL,
    &rest::MAXMINDDB,
    &rest::FLV_STREAMING,
    &rest::UPLOADPROGRESS,
    &rest::USERTRACK,
    &rest::SKELETON,
];

/// Names that `server.modules` may hold besides those of tables, and what becomes of them: parts of
/// a module above, or of the server itself.
pub(crate) static OTHER_NAMES: &[(&str, MissingPart)] = &[
    ("mod_h2", MissingPart::OfTheServer),
    ("mod_chunked", MissingPart::OfTheServer),
    ("mod_echo", MissingPart::OfTheServer),
    ("mod_compress", MissingPart::OfModule("mod_deflate")),
    ("mod_authn_dbi", MissingPart::OfModule("mod_auth")),
    ("mod_authn_file", MissingPart::OfModule("mod_auth")),
    ("mod_authn_gssapi", MissingPart::OfModule("mod_auth")),
    ("mod_authn_ldap", MissingPart::OfModule("mod_auth")),
    ("mod_authn_mysql", MissingPart::OfModule("mod_auth")),
    ("mod_authn_pam", MissingPart::OfModule("mod_auth")),
    ("mod_authn_sasl", MissingPart::OfModule("mod_auth")),
    ("mod_boringssl", MissingPart::OfModule("mod_openssl")),
    ("mod_gnutls", MissingPart::OfModule("mod_openssl")),
    ("mod_mbedtls", MissingPart::OfModule("mod_openssl")),
    ("mod_nss", MissingPart::OfModule("mod_openssl")),
    ("mod_wolfssl", MissingPart::OfModule("mod_openssl")),
    ("mod_geoip", MissingPart::OfModule("mod_maxminddb")),
    (
        "mod_proxy_backend_ajp13",
        MissingPart::OfModule("mod_proxy_core"),
    ),
    (
        "mod_proxy_backend_fastcgi",
        MissingPart::OfModule("mod_proxy_core"),
    ),
    (
        "mod_proxy_backend_http",
        MissingPart::OfModule("mod_proxy_core"),
    ),
    (
        "mod_proxy_backend_scgi",
        MissingPart::OfModule("mod_proxy_core"),
    ),
    (
        "mod_mysql_vhost",
        MissingPart::OfModule("mod_sql_vhost_core"),
    ),
    (
        "mod_postgresql_vhost",
        MissingPart::OfModule("mod_sql_vhost_core"),
    ),
    ("mod_vhostdb_dbi", MissingPart::OfModule("mod_vhostdb")),
    ("mod_vhostdb_ldap", MissingPart::OfModule("mod_vhostdb")),
    ("mod_vhostdb_mysql", MissingPart::OfModule("mod_vhostdb")),
    ("mod_vhostdb_pgsql", MissingPart::OfModule("mod_vhostdb")),
];

/// What a name in `server.modules` without a table stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissingPart {
    /// Nothing that would have to be loaded, or that anybody would miss.
    OfTheServer,
    /// Something this module does.
    OfModule(&'static str),
}

/// A module of which only the directives are there.
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
        log_directives: &[],
        configure: nothing,
    }
}

fn nothing(_: &mut Configure<'_>) -> Result<(), Diagnostic> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::rest::REWRITE;
    use crate::static_file;
    use crate::testing::Tree;

    #[test]
    fn rewrite_rules_close_the_urls_they_match_and_no_others() {
        let tree = Tree::new(&[("a.html", "a"), ("old/b.html", "b")]);
        let config = "url.rewrite-once = (\"^/old/|\\?page=\" => \"/index.php\")";
        let site = tree.site(config, &[&REWRITE, &static_file::MODULE]);
        for (target, status) in [
            ("/a.html", 200),
            ("/a.html?page=1", 503),
            ("/old/b.html", 503),
            ("/x/../%6fld/b.html", 503),
        ] {
            assert_eq!(site.get(target).status(), status, "{target}");
        }
    }
}
