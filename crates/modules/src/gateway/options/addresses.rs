//! Lists all addresses of backends and all TLS files that a configuration names, for checks at the start.

use std::path::PathBuf;

use petrel_engine::config::{Config, Diagnostic, Entry, Span};
use petrel_engine::module::ModuleSpec;
use petrel_engine::settings::loaded_modules;

use super::map::OptionMap;
use super::tls::{self, TrustOptions};
use super::{FAMILIES, Family, HostAddress, host, proxy_core, server};

/// The entries of `config` that may be about backends of loaded modules among `modules`. Without a family they may be
/// mod_proxy_core's.
fn entries<'c>(
    config: &'c Config,
    modules: &[&'static ModuleSpec],
) -> impl Iterator<Item = (&'c Entry, Option<&'static Family>)> {
    let loaded = loaded_modules(config, modules);
    let entries = config.blocks.iter().flat_map(|block| &block.entries);
    entries.filter_map(move |entry| {
        let family = FAMILIES.iter().find(|family| family.server == entry.name);
        let module = family.map_or("mod_proxy_core", |family| family.module);
        let is_loaded = loaded.iter().any(|loaded| loaded.name == module);
        is_loaded.then_some((entry, family))
    })
}

/// The addresses of all backends of `config`, each with the first place in the text that names it. Only
/// directives of loaded modules among `modules` count. Invalid values are left out, because they are reported
/// elsewhere.
pub fn addresses(config: &Config, modules: &[&'static ModuleSpec]) -> Vec<(HostAddress, Span)> {
    let mut found: Vec<(HostAddress, Span)> = Vec::new();
    let mut add = |address, span| {
        if !found.iter().any(|(known, _)| *known == address) {
            found.push((address, span));
        }
    };
    for (entry, family) in entries(config, modules) {
        if let Some(family) = family {
            let hosts = server::hosts(config, family, entry).unwrap_or_default();
            for (map, host) in hosts {
                add(host.address, map.span);
            }
        } else if entry.name == proxy_core::BACKENDS {
            for text in entry.value.as_strings().unwrap_or_default() {
                if let Ok(address) = proxy_core::address(text, host::PORT) {
                    add(address, entry.value_span);
                }
            }
        }
    }
    found
}

/// php-fpm's slow logs that `config` names, each with its place in the text. Only directives of loaded modules among
/// `modules` count. Invalid values are left out, because they are reported elsewhere.
pub fn slow_logs(config: &Config, modules: &[&'static ModuleSpec]) -> Vec<(PathBuf, Span)> {
    let mut found = Vec::new();
    for (entry, family) in entries(config, modules) {
        if let Some(family) = family {
            let hosts = server::hosts(config, family, entry).unwrap_or_default();
            let with_log = hosts
                .into_iter()
                .filter_map(|(map, host)| Some((host.status_page?.slow_log?, map.span)));
            found.extend(with_log);
        } else if entry.name == proxy_core::SLOW_LOG
            && let Some(path) = entry.value.as_str().filter(|path| path.starts_with('/'))
        {
            found.push((PathBuf::from(path), entry.value_span));
        }
    }
    found
}

/// The TLS files that backends of `config` name, each with the map that names it. Only directives of loaded
/// modules among `modules` count.
///
/// # Errors
/// The first invalid value.
pub(in crate::gateway) fn trust_options<'c>(
    config: &'c Config,
    modules: &[&'static ModuleSpec],
) -> Result<Vec<(OptionMap<'c>, TrustOptions)>, Diagnostic> {
    let mut found = Vec::new();
    for (entry, family) in entries(config, modules) {
        if let Some(family) = family {
            for (map, host) in server::hosts(config, family, entry)? {
                found.extend(host.tls.map(|tls| (map, tls.trust)));
            }
        } else if entry.name == proxy_core::TLS
            && let Some(map) = proxy_core::tls_map(entry)
        {
            let trust = tls::trust(&map)?;
            found.extend(trust.map(|trust| (map, trust)));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::testing::config;
    use super::*;

    #[test]
    fn addresses_of_all_scopes_are_found_once() {
        let text = r#"server.modules = ( "mod_fastcgi", "mod_proxy_core" )
            fastcgi.server = ( ".php" => (( "host" => "a", "port" => 1 ), ( "socket" => "/s" )) )
            scgi.server = ( "/" => (( "host" => "unread" )) )
            $HTTP["host"] == "b" {
                fastcgi.server = ( ".php" => (( "host" => "a", "port" => 1 )) )
                proxy-core.protocol = "http"
                proxy-core.backends = ( "c:2" ) }"#;
        let tcp = |host: &str, port| HostAddress::Tcp(host.to_owned(), port);
        let found: Vec<_> = addresses(&config(text), crate::MODULES)
            .into_iter()
            .map(|(address, _)| address)
            .collect();
        let socket = HostAddress::Unix(b"/s".to_vec());
        assert_eq!(found, [tcp("a", 1), socket, tcp("c", 2)]);
    }
}
