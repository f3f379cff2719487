//! Compares `server.modules` with the modules that exist.
//!
//! Checks the names in the list, and warns about directives whose module is built but not in the list.
//! lighttpd ignores both silently.

use petrel_engine::config::schema::nearest;
use petrel_engine::config::{Config, Consequence, Diagnostic, Effect, Element, Entry};
use petrel_engine::module::ModuleSpec;
use petrel_engine::settings::exposure::{Closes, closed_unread};
use petrel_engine::settings::loaded_modules;

use crate::not_built::{self, OF_THE_SERVER, PARTS};
use crate::{MODULES, alias, auth, deflate, extforward, gateway, openssl, spec_of};

/// Warnings about names in `server.modules` that have no effect, and about directives whose module is not in
/// the list.
pub fn warnings(config: &Config) -> Vec<Diagnostic> {
    let listed = config.global().entry("server.modules");
    let names = listed
        .and_then(|entry| entry.value.as_array())
        .into_iter()
        .flatten();
    let mut warnings: Vec<_> = names.filter_map(|name| about_name(config, name)).collect();
    let loaded = loaded_modules(config, MODULES);
    for entry in config.blocks.iter().flat_map(|block| &block.entries) {
        if let Some(module) = owner(&entry.name)
            && !loaded.iter().any(|there| there.name == module.name)
            // This is reported as an error elsewhere.
            && !openssl::refuses_unloaded(entry)
            && !is_not_built(module, entry)
        {
            let (name, module) = (&entry.name, module.name);
            let closed = closed_unread(entry, config).map(|closes| match closes {
                Closes::Requests => "the requests that it applies to are answered 503",
                Closes::Files => {
                    "the files that it applies to are answered 503 instead of being sent"
                }
            });
            let (consequence, message) = match closed {
                Some(closed) => (
                    Consequence::Answers503,
                    format!("{name}: {module} is not in server.modules, so {closed}"),
                ),
                None => (
                    Consequence::NoEffect,
                    format!("{name} has no effect: {module} is not in server.modules"),
                ),
            };
            let warning =
                Diagnostic::warning(message, entry.name_span).with_consequence(consequence);
            warnings.push(warning.with_hint(format!("add \"{module}\" to server.modules")));
        }
    }
    warnings.extend(alias::warnings(config));
    warnings.extend(auth::warnings(config));
    warnings.extend(deflate::warnings(config));
    warnings.extend(extforward::warnings(config));
    warnings.extend(gateway::options::warnings(config, MODULES));
    warnings.extend(gateway::cgi::warnings(config));
    warnings.extend(openssl::warnings(config));
    warnings
}

/// Errors that keep the server from starting, because it would leave unprotected what is to be protected.
pub fn refusals(config: &Config) -> Vec<Diagnostic> {
    let mut loaded = loaded_modules(config, MODULES).into_iter();
    let speaks_tls = loaded.any(|module| module.name == openssl::MODULE.name);
    openssl::refusals(config, speaks_tls)
}

/// The warning about one name in the list. Debian enables modules that a site may never use. So a module that
/// is not built is only reported where its directives are used.
fn about_name(config: &Config, element: &Element) -> Option<Diagnostic> {
    let name = element.value.as_str()?;
    let part_of = PARTS.iter().find(|(_, parts)| parts.contains(&name));
    let whole = part_of.map_or(name, |(whole, _)| whole);
    if OF_THE_SERVER.contains(&name) || MODULES.iter().any(|module| module.name == whole) {
        return None;
    }
    let mut not_built = not_built::MODULES.iter();
    let Some(module) = not_built.find(|module| module.name == whole) else {
        return Some(unknown(element, name));
    };
    let mut entries = config.blocks.iter().flat_map(|block| &block.entries);
    let is_set = entries.any(|entry| {
        let effect = spec_of(module, &entry.name).map(|spec| spec.effect);
        effect.is_some_and(|effect| !matches!(effect, Effect::Accepted(_)))
    });
    let message = format!("{name} has no effect yet");
    is_set.then(|| Diagnostic::warning(message, element.span))
}

fn unknown(element: &Element, name: &str) -> Diagnostic {
    let warning = Diagnostic::warning(format!("there is no module {name}"), element.span);
    let modules = MODULES
        .iter()
        .chain(not_built::MODULES)
        .map(|module| module.name);
    let parts = PARTS.iter().flat_map(|(_, parts)| *parts);
    let known = modules.chain(parts.chain(OF_THE_SERVER).copied());
    match nearest(name, known).first() {
        Some(near) => warning.with_hint(format!("did you mean {near}?")),
        None => warning,
    }
}

/// Whether adding `module` to the list would not make the directive work. The check of the configuration says
/// so.
fn is_not_built(module: &ModuleSpec, entry: &Entry) -> bool {
    let spec = spec_of(module, &entry.name);
    spec.is_some_and(|spec| matches!(spec.effect, Effect::NotYet(_)))
}

/// The module that has `directive`, if it is built.
fn owner(directive: &str) -> Option<&'static ModuleSpec> {
    MODULES
        .iter()
        .copied()
        .find(|module| spec_of(module, directive).is_some())
}

#[cfg(test)]
mod tests {
    use petrel_engine::config::{LoadOptions, Shell, parse_str};

    use super::*;

    fn messages(text: &str) -> Vec<String> {
        let options = LoadOptions {
            variables: Vec::new(),
            environment: &|_| None,
            shell: Shell::Refuse,
            directory: "/".into(),
        };
        let config = parse_str("test", text, &crate::schema(), &options).expect("valid");
        let found = warnings(&config).into_iter();
        found
            .map(|warning| match warning.hint {
                Some(hint) => format!("{} ({hint})", warning.message),
                None => warning.message,
            })
            .collect()
    }

    #[test]
    fn built_modules_and_parts_of_the_server_are_silent() {
        assert!(messages("server.modules = ( \"mod_staticfile\", \"mod_h2\" )").is_empty());
        assert!(messages("server.modules = ( \"mod_skeleton\" )").is_empty());
        assert!(messages("static-file.etags = \"disable\"").is_empty());
    }

    #[test]
    fn a_missing_module_that_refuses_the_start_is_told_once() {
        let text = "server.compat-module-load = \"disable\"\nssl.engine = ";
        assert!(messages(&format!("{text}\"enable\"")).is_empty());
        assert_eq!(messages(&format!("{text}\"disable\"")).len(), 1);
    }

    #[test]
    fn aliases_that_never_match_are_told() {
        let text = "server.modules = ( \"mod_alias\" )\n$HTTP[\"host\"] == \"a\" { alias.url = ( \"/a\" => \"/x\", \"/ab\" => \"/y\" ) }";
        assert_eq!(
            messages(text),
            [
                "the alias \"/ab\" never matches: \"/a\" is tried first (put the longer prefix before the shorter one)"
            ]
        );
        let text = "server.modules = ( \"mod_alias\" )\nalias.url = ( \"/ab\" => \"/y\", \"/a\" => \"/x\" )";
        assert!(messages(text).is_empty());
    }

    #[test]
    fn modules_that_are_not_built_are_told() {
        let modules = "server.modules = ( \"mod_rrdtool\", \"mod_trigger_b4_dl\" )\n";
        assert!(messages(modules).is_empty(), "they are not used");
        let text = "$HTTP[\"host\"] == \"a\" { rrdtool.binary = \"/r\" }";
        assert_eq!(
            messages(&format!("{modules}{text}")),
            ["mod_rrdtool has no effect yet"]
        );
    }

    #[test]
    fn a_misspelt_module_is_told_with_the_nearest_name() {
        assert_eq!(
            messages("server.modules = ( \"mod_statcfile\" )"),
            ["there is no module mod_statcfile (did you mean mod_staticfile?)"]
        );
    }

    #[test]
    fn a_directive_of_a_module_that_is_not_listed_is_told() {
        let text = "server.compat-module-load = \"disable\"\nstatic-file.etags = \"enable\"";
        assert_eq!(
            messages(text),
            [
                "static-file.etags has no effect: mod_staticfile is not in server.modules \
              (add \"mod_staticfile\" to server.modules)"
            ]
        );
    }

    #[test]
    fn listing_a_module_is_not_advised_for_a_directive_that_is_not_built() {
        let text = "server.compat-module-load = \"disable\"\nauth.backend.mysql.port = 3306";
        assert!(messages(text).is_empty());
    }

    #[test]
    fn a_gateway_whose_module_is_not_listed_is_told() {
        let text = "$HTTP[\"host\"] == \"a\" { cgi.assign = ( \".pl\" => \"/usr/bin/perl\" ) }";
        assert_eq!(
            messages(text),
            [
                "cgi.assign: mod_cgi is not in server.modules, so the files that it applies to are answered 503 instead of being sent \
              (add \"mod_cgi\" to server.modules)"
            ]
        );
    }

    #[test]
    fn source_is_never_sent_for_want_of_a_gateway() {
        let tree = crate::testing::Tree::new(&[("a.php", "<?php secret"), ("a.html", "page")]);
        for config in [
            "server.modules = ( \"mod_access\" )\nfastcgi.server = ( \".php\" => (( \"socket\" => \"/s\" )) )",
            "server.modules = ( \"mod_access\" )\ncgi.assign = ( \".php\" => \"/bin/false\" )",
            "server.modules = ( \"mod_fastcgi\" )\nfastcgi.server = ( \".php\" => () )",
            "server.modules = ( \"mod_access\" )\nfastcgi.map-extensions = ( \".php\" => \".x\" )",
        ] {
            let site = tree.site(config, MODULES);
            assert_eq!(site.get("/a.html").status(), 200, "{config}");
            for target in ["/a.php", "/a.php/x"] {
                assert_eq!(site.get(target).status(), 503, "{target}: {config}");
            }
            let has_backends = !config.contains("=> ()");
            let missing = if has_backends { 404 } else { 503 };
            assert_eq!(site.get("/b.php").status(), missing, "{config}");
        }
        let all = "server.modules = ()\nproxy-core.backends = ( \"a:1\" )\nproxy-core.protocol = \"http\"";
        assert_eq!(tree.site(all, MODULES).get("/a.html").status(), 503);
    }
}
