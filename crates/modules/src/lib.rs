//! The modules of the server: one folder or file per feature, and the table of them.
//!
//! A module is a [`ModuleSpec`]: its directives, and a function that turns settings into hooks. To add one,
//! write its file or folder, declare it here and add a line to [`MODULES`]. Modules work on the exchange and
//! its body, never on a socket; the engine calls their hooks without knowing the modules.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
#![cfg_attr(not(test), warn(unreachable_pub))]

pub mod access;
pub mod access_log;
pub(crate) mod alias;
pub mod auth;
mod byte_cache;
mod cache_dir;
pub(crate) mod cml;
mod content_types;
mod cookies;
pub(crate) mod deflate;
pub(crate) mod dir_listing;
pub(crate) mod evasive;
pub(crate) mod evhost;
pub mod expire;
pub(crate) mod extforward;
pub mod fragments;
pub mod gateway;
pub(crate) mod index_file;
mod kept_connections;
pub(crate) mod limit;
mod loading;
pub mod lua;
mod lua_api;
pub mod magnet;
pub(crate) mod mcpage;
mod not_built;
pub mod openssl;
pub mod opentelemetry;
pub mod page_cache;
pub mod pem;
pub(crate) mod redirect;
mod regular_file;
pub(crate) mod remote_store;
mod request_trace;
pub(crate) mod rewrite;
pub(crate) mod secdownload;
pub(crate) mod setenv;
pub(crate) mod simple_vhost;
pub(crate) mod static_file;
pub mod status;
mod substitutions;
mod tee;
#[cfg(test)]
mod testing;
mod url_rules;
pub(crate) mod userdir;
pub(crate) mod usertrack;
mod vhost;

use petrel_engine::config::Schema;
use petrel_engine::module::ModuleSpec;
use petrel_engine::settings::directives::{DIRECTIVES, DirectiveSpec};
use petrel_engine::shared::Shared;

pub use loading::{refusals, warnings};
pub use not_built::MODULES as NOT_BUILT_MODULES;

/// Every module. Modules that `server.modules` does not list are used in this order.
pub static MODULES: &[&ModuleSpec] = &[
    &extforward::MODULE,
    &openssl::MODULE,
    &opentelemetry::MODULE,
    &evasive::MODULE,
    &limit::MODULE,
    &index_file::MODULE,
    &access::MODULE,
    &auth::MODULE,
    &alias::MODULE,
    &rewrite::MODULE,
    &redirect::MODULE,
    &setenv::MODULE,
    &expire::MODULE,
    &usertrack::MODULE,
    &deflate::MODULE,
    &simple_vhost::MODULE,
    &evhost::MODULE,
    &userdir::MODULE,
    &secdownload::MODULE,
    &lua::MODULE,
    &magnet::MODULE,
    &cml::MODULE,
    &mcpage::MODULE,
    &page_cache::MODULE,
    &gateway::cgi::MODULE,
    &gateway::FASTCGI,
    &gateway::SCGI,
    &gateway::PROXY,
    &gateway::AJP13,
    &gateway::PROXY_CORE,
    &dir_listing::MODULE,
    &static_file::MODULE,
    &status::MODULE,
    &access_log::MODULE,
];

/// Every directive: those of the core, of the modules, and of lighttpd's modules that are not built.
pub fn schema() -> Schema {
    let tables: Vec<_> = tables().collect();
    Schema::new(&tables)
}

/// Called when the server process drains: modules release what they keep for later requests. Idle connections
/// to backends are closed, health checks and look-ups of names end, and stored pages leave the memory.
pub fn drain(shared: &Shared) {
    gateway::drain(shared);
    page_cache::drain(shared);
}

fn tables() -> impl Iterator<Item = &'static [DirectiveSpec]> {
    let modules = MODULES.iter().chain(not_built::MODULES);
    std::iter::once(DIRECTIVES).chain(modules.map(|module| module.directives))
}

fn spec_of(module: &ModuleSpec, directive: &str) -> Option<&'static DirectiveSpec> {
    module.directives.iter().find(|spec| spec.name == directive)
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use petrel_engine::cause::CauseCode;
    use petrel_engine::config::Effect;

    use super::*;

    /// All directives of lighttpd 1.4.85 and 1.5.
    const LIGHTTPD: &str = include_str!("../fixtures/lighttpd-directives.txt");

    #[test]
    fn every_directive_of_lighttpd_is_known_once() {
        let mut entries: HashMap<&str, usize> = HashMap::new();
        for spec in tables().flatten() {
            *entries.entry(spec.name).or_default() += 1;
        }
        assert_eq!(LIGHTTPD.lines().count(), 368);
        let missing: Vec<_> = LIGHTTPD
            .lines()
            .filter(|name| !entries.contains_key(name))
            .collect();
        assert!(missing.is_empty(), "not in a table: {missing:?}");
        let twice: Vec<_> = entries.iter().filter(|(_, count)| **count > 1).collect();
        assert!(twice.is_empty(), "in more than one table: {twice:?}");
    }

    #[test]
    fn every_directive_says_what_it_does() {
        for spec in tables().flatten() {
            assert!(spec.doc.ends_with('.'), "{}: {:?}", spec.name, spec.doc);
            assert!(!spec.default.is_empty(), "{} has no default", spec.name);
            if let Effect::Accepted(why) | Effect::NotYet(why) | Effect::Exposes(why) = spec.effect
            {
                assert!(
                    !why.is_empty() && !why.ends_with('.'),
                    "{}: {why:?}",
                    spec.name
                );
            }
        }
    }

    #[test]
    fn another_name_stands_for_a_directive_of_the_same_type() {
        let schema = schema();
        for spec in tables().flatten() {
            if let Effect::Renamed(name) = spec.effect {
                let target = schema
                    .get(name)
                    .unwrap_or_else(|| panic!("{name} is not known"));
                assert_eq!(target.effect, Effect::Works, "{name}");
                assert_eq!(
                    (target.kind, target.scope),
                    (spec.kind, spec.scope),
                    "{}",
                    spec.name
                );
            }
        }
    }

    #[test]
    fn causes_of_errors_name_directives_that_exist() {
        let schema = schema();
        for code in CauseCode::ALL {
            for text in [code.meaning(), code.remedy()] {
                let quoted = text.split('`').skip(1).step_by(2);
                for name in quoted.filter(|name| name.contains('.') && !name.contains('[')) {
                    let spec = schema.get(name);
                    let effect = spec.map(|spec| spec.effect);
                    assert_eq!(effect, Some(Effect::Works), "{name} in {:?}", code.name());
                }
            }
        }
    }

    #[test]
    fn modules_have_names_of_their_own() {
        let modules = MODULES
            .iter()
            .chain(not_built::MODULES)
            .map(|module| module.name);
        let parts = not_built::PARTS.iter().flat_map(|(_, parts)| *parts);
        let others = parts.chain(not_built::OF_THE_SERVER).copied();
        let mut names = HashSet::new();
        for name in modules.chain(others) {
            assert!(name.starts_with("mod_"), "{name}");
            assert!(names.insert(name), "{name} stands twice");
        }
    }

    #[test]
    fn parts_belong_to_modules_that_are_known() {
        for (whole, _) in not_built::PARTS {
            let mut known = MODULES.iter().chain(not_built::MODULES);
            assert!(known.any(|module| module.name == *whole), "{whole}");
        }
    }
}
