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
pub(crate) static OTHER_NAMES: &[(&str, Part)] = &[
    ("mod_h2", Part::OfTheServer),
    ("mod_chunked", Part::OfTheServer),
    ("mod_echo", Part::OfTheServer),
    ("mod_compress", Part::OfModule("mod_deflate")),
    ("mod_authn_dbi", Part::OfModule("mod_auth")),
    ("mod_authn_file", Part::OfModule("mod_auth")),
    ("mod_authn_gssapi", Part::OfModule("mod_auth")),
    ("mod_authn_ldap", Part::OfModule("mod_auth")),
    ("mod_authn_mysql", Part::OfModule("mod_auth")),
    ("mod_authn_pam", Part::OfModule("mod_auth")),
    ("mod_authn_sasl", Part::OfModule("mod_auth")),
    ("mod_boringssl", Part::OfModule("mod_openssl")),
    ("mod_gnutls", Part::OfModule("mod_openssl")),
    ("mod_mbedtls", Part::OfModule("mod_openssl")),
    ("mod_nss", Part::OfModule("mod_openssl")),
    ("mod_wolfssl", Part::OfModule("mod_openssl")),
    ("mod_geoip", Part::OfModule("mod_maxminddb")),
    ("mod_proxy_backend_ajp13", Part::OfModule("mod_proxy_core")),
    (
        "mod_proxy_backend_fastcgi",
        Part::OfModule("mod_proxy_core"),
    ),
    ("mod_proxy_backend_http", Part::OfModule("mod_proxy_core")),
    ("mod_proxy_backend_scgi", Part::OfModule("mod_proxy_core")),
    ("mod_mysql_vhost", Part::OfModule("mod_sql_vhost_core")),
    ("mod_postgresql_vhost", Part::OfModule("mod_sql_vhost_core")),
    ("mod_vhostdb_dbi", Part::OfModule("mod_vhostdb")),
    ("mod_vhostdb_ldap", Part::OfModule("mod_vhostdb")),
    ("mod_vhostdb_mysql", Part::OfModule("mod_vhostdb")),
    ("mod_vhostdb_pgsql", Part::OfModule("mod_vhostdb")),
];

/// What a name in `server.modules` without a table stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
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
