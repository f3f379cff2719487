//! Warnings about options of backends that lighttpd accepts but that do not do what they seem to do.

use petrel_engine::config::schema::nearest;
use petrel_engine::config::{Config, Consequence, Diagnostic, Element, Entry, Span};
use petrel_engine::module::ModuleSpec;

use super::super::header_map;
use super::map::OptionMap;
use super::{FAMILIES, Family, host, proxy_core, server, spawn, table, tls};

/// Warnings about the gateways in `config`.
pub(crate) fn warnings(config: &Config, modules: &[&'static ModuleSpec]) -> Vec<Diagnostic> {
    let mut warnings = header_map::warnings(config);
    warnings.extend(spawn::warnings(config, modules));
    for entry in config.blocks.iter().flat_map(|block| &block.entries) {
        for family in FAMILIES {
            if entry.name == family.server {
                about_routes(family, entry, &mut warnings);
            } else if entry.name == family.balance {
                warnings.extend(about_balance(entry));
            }
        }
        if entry.name == proxy_core::TLS
            && let Some(map) = proxy_core::tls_map(entry)
        {
            warnings.extend(map.array.iter().filter_map(about_tls_option));
            warnings.extend(about_verification(&map));
        }
    }
    warnings
}

fn about_routes(family: &Family, entry: &Entry, warnings: &mut Vec<Diagnostic>) {
    for route in entry.value.as_array().into_iter().flatten() {
        // A map of the wrong shape is an error, which is reported elsewhere.
        let maps = server::option_maps(family.server, route).unwrap_or_default();
        if route.value.as_array().is_some_and(|array| array.is_empty()) {
            let key = route.key().unwrap_or_default();
            let message = format!(
                "{}: {key:?} has no backend, so the requests that it matches are answered 503",
                family.server
            );
            let warning = Diagnostic::warning(message, route.span);
            warnings.push(warning.with_consequence(Consequence::Answers503));
        }
        for (_, map) in maps {
            warnings.extend(map.array.iter().filter_map(about_option));
            warnings.extend(about_tempfiles(&map));
            warnings.extend(about_verification(&map));
        }
    }
}

fn about_option(element: &Element) -> Option<Diagnostic> {
    let Some(key) = &element.key else {
        let message = "a value without a name is no option of a backend";
        return Some(Diagnostic::warning(message, element.span));
    };
    match key.text.as_str() {
        "max-load-per-proc" => {
            let message = "max-load-per-proc has no effect: processes share one socket, and the kernel gives a connection to one that is free";
            Some(Diagnostic::warning(message, key.span))
        }
        "mode" if !host::is_mode(&element.value) => {
            let message = "unknown mode: the backend is a responder";
            let warning = Diagnostic::warning(message, element.span);
            Some(warning.with_hint("it is \"responder\" or \"authorizer\""))
        }
        known if table::find(known).is_some() => None,
        unknown => {
            let message = format!("there is no option {unknown:?} of a backend: it has no effect");
            let known = table::HOST_OPTIONS.iter().map(|option| option.name);
            Some(unknown_option(unknown, key.span, message, known))
        }
    }
}

fn unknown_option(
    name: &str,
    span: Span,
    message: String,
    known: impl Iterator<Item = &'static str>,
) -> Diagnostic {
    let warning = Diagnostic::warning(message, span).with_label("unknown");
    match nearest(name, known).as_slice() {
        [] => warning,
        near => warning.with_hint(format!("did you mean {}?", near.join(" or "))),
    }
}

fn about_tls_option(element: &Element) -> Option<Diagnostic> {
    let Some(key) = &element.key else {
        let message = format!("{}: a value without a name has no effect", proxy_core::TLS);
        return Some(Diagnostic::warning(message, element.span));
    };
    if tls::NAMES.contains(&key.text.as_str()) {
        return None;
    }
    let message = format!(
        "{}: there is no option {:?}: it has no effect",
        proxy_core::TLS,
        key.text
    );
    Some(unknown_option(
        &key.text,
        key.span,
        message,
        tls::NAMES.into_iter(),
    ))
}

fn about_verification(map: &OptionMap<'_>) -> Option<Diagnostic> {
    if map.switch(tls::VERIFY).ok().flatten().unwrap_or(true) {
        return None;
    }
    let message = format!(
        "{}: the backend is NOT VERIFIED: another server in its place can read and change all requests and replies",
        map.directive
    );
    let warning = Diagnostic::warning(message, map.array.get(tls::VERIFY)?.span);
    let hint = "trust its certificate, or the one that issued it, by \"tls-ca-file\" => \"/path/cert.pem\", and leave tls-verify out";
    Some(warning.with_hint(hint))
}

fn about_tempfiles(map: &OptionMap<'_>) -> Option<Diagnostic> {
    let is_on = |key: &str| map.switch(key).ok().flatten().unwrap_or(false);
    let set = ["tempfile-dirs", "x-sendfile-docroot"]
        .into_iter()
        .find(|key| map.array.get(key).is_some())?;
    if is_on("x-sendfile") || is_on("allow-x-send-file") {
        return None;
    }
    let message = format!("{set} has no effect without x-sendfile");
    let span = map.array.get(set)?.span;
    Some(Diagnostic::warning(message, span).with_hint("add \"x-sendfile\" => \"enable\""))
}

fn about_balance(entry: &Entry) -> Option<Diagnostic> {
    let name = entry.value.as_str().filter(|name| !name.is_empty())?;
    if server::balance(name).is_some() {
        return None;
    }
    let message = format!(
        "{}: there is no balancer {name:?}, so it is \"fair\"",
        entry.name
    );
    let warning = Diagnostic::warning(message, entry.value_span);
    let known = server::BALANCES.iter().map(|(known, _)| *known);
    Some(match nearest(name, known).first() {
        Some(near) => warning.with_hint(format!("did you mean \"{near}\"?")),
        None => warning.with_hint(
            "it is \"fair\", \"round-robin\", \"hash\", \"sticky\", \"static\" or \"cookie\"",
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::config;

    fn messages(text: &str) -> Vec<String> {
        let found = super::warnings(&config(text), crate::MODULES).into_iter();
        found
            .map(|warning| match warning.hint {
                Some(hint) => format!("{} ({hint})", warning.message),
                None => warning.message,
            })
            .collect()
    }

    fn of_options(options: &str) -> Vec<String> {
        messages(&format!(
            "fastcgi.server = ( \".php\" => (( \"socket\" => \"/s\", {options} )) )"
        ))
    }

    #[test]
    fn misspelt_options_are_told_with_the_nearest_name() {
        assert_eq!(
            of_options("\"check_local\" => \"disable\""),
            [
                "there is no option \"check_local\" of a backend: it has no effect (did you mean check-local?)"
            ]
        );
        assert_eq!(
            of_options("\"entirely\" => 1"),
            ["there is no option \"entirely\" of a backend: it has no effect"]
        );
        assert_eq!(
            of_options("\"x\""),
            ["a value without a name is no option of a backend"]
        );
        assert!(of_options("\"check-local\" => \"disable\", \"weight\" => 2").is_empty());
    }

    #[test]
    fn options_without_effect_are_told() {
        assert!(of_options("\"max-load-per-proc\" => 4")[0].contains("has no effect"));
        assert!(of_options("\"mode\" => \"filter\"")[0].contains("unknown mode"));
        assert!(
            of_options("\"x-sendfile-docroot\" => ( \"/a\" )")[0].contains("without x-sendfile")
        );
        let on = "\"x-sendfile\" => \"enable\", \"tempfile-dirs\" => ( \"/a\" )";
        assert!(of_options(on).is_empty());
    }

    #[test]
    fn a_backend_that_is_not_verified_is_told_loudly() {
        let told = of_options(
            "\"tls\" => \"enable\", \"tls-name\" => \"a\", \"tls-verify\" => \"disable\"",
        );
        assert!(told[0].contains("NOT VERIFIED"), "{told:?}");
        let told =
            messages("proxy-core.tls = ( \"tls\" => \"enable\", \"tls-verify\" => \"disable\" )");
        assert!(told[0].contains("NOT VERIFIED"), "{told:?}");
        assert!(of_options("\"tls\" => \"enable\", \"tls-verify\" => \"enable\"").is_empty());
    }

    #[test]
    fn misspelt_options_of_proxy_core_are_told() {
        let told = messages("proxy-core.tls = ( \"tls\" => \"enable\", \"tls-cafile\" => \"/a\" )");
        assert_eq!(
            told,
            [
                "proxy-core.tls: there is no option \"tls-cafile\": it has no effect (did you mean tls-ca-file?)"
            ]
        );
    }

    #[test]
    fn a_key_without_backends_is_told() {
        let told = messages("$HTTP[\"host\"] == \"a\" { scgi.server = ( \".py\" => () ) }");
        assert_eq!(
            told,
            [
                "scgi.server: \".py\" has no backend, so the requests that it matches are answered 503"
            ]
        );
    }

    #[test]
    fn unknown_balancers_are_told() {
        assert_eq!(
            messages("proxy.balance = \"roundrobin\""),
            [
                "proxy.balance: there is no balancer \"roundrobin\", so it is \"fair\" (did you mean \"round-robin\"?)"
            ]
        );
        assert!(messages("proxy.balance = \"sticky\"").is_empty());
    }
}
