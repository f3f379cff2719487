//! `fastcgi.server` and its siblings: a map of URL prefixes or suffixes to backends.

use std::rc::Rc;

use petrel_engine::config::{Array, Config, Diagnostic, Element, Entry};
use petrel_engine::settings::Values;

use super::super::header_map::HeaderMap;
use super::super::upgrade::Upgrades;
use super::map::OptionMap;
use super::{
    BackendHost, Balance, Extras, Family, Gateway, Mode, Protocol, Route, RouteKey, host,
    route_name,
};

/// The gateway that the directives of one family in `values` describe.
pub(super) fn gateway(
    family: &'static Family,
    values: &Values<'_>,
) -> Result<Option<Gateway>, Diagnostic> {
    let protocol = protocol(family, values)?;
    let header_map = match protocol {
        Protocol::Http => HeaderMap::parse(values)?,
        _ => HeaderMap::default(),
    };
    let routes = routes(family, values, protocol, &header_map.upgrade)?;
    if routes.is_empty() {
        return Ok(None);
    }
    let text = |element: &Element| {
        let (key, value) = (element.key()?, element.value.as_str()?);
        Some((key.as_bytes().to_vec(), value.as_bytes().to_vec()))
    };
    let extensions = values.array(family.map_extensions).into_iter().flatten();
    Ok(Some(Gateway {
        directive: family.server,
        protocol,
        routes,
        extensions: extensions.filter_map(text).collect(),
        balance: values
            .string(family.balance)
            .and_then(balance)
            .unwrap_or(Balance::ShortestQueue),
        tries_max: TRIES_MAX,
        debug: values.unsigned(family.debug, 0).min(u8::MAX.into()) as u8,
        extras: Extras {
            header_map,
            underscores: values.bool("proxy.underscores-in-headers").unwrap_or(false),
            ..Extras::default()
        },
    }))
}

/// All backends of one entry, with the maps they are read from.
pub(super) fn hosts<'c>(
    config: &Config,
    family: &'static Family,
    entry: &'c Entry,
) -> Result<Vec<(OptionMap<'c>, BackendHost)>, Diagnostic> {
    let mut hosts = Vec::new();
    for route in entry.value.as_array().into_iter().flatten() {
        hosts.extend(hosts_of(config, family, route)?);
    }
    Ok(hosts)
}

/// The policy with this name.
pub(super) fn balance(name: &str) -> Option<Balance> {
    BALANCES
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, balance)| *balance)
}

/// The names of balancing policies: lighttpd 1.4's, 1.5's and Petrel's own.
pub(super) const BALANCES: &[(&str, Balance)] = &[
    ("fair", Balance::ShortestQueue),
    ("least-connection", Balance::ShortestQueue),
    ("sqf", Balance::ShortestQueue),
    ("round-robin", Balance::RoundRobin),
    ("hash", Balance::Hash),
    ("carp", Balance::Hash),
    ("sticky", Balance::Sticky),
    ("static", Balance::First),
    ("cookie", Balance::Cookie),
];

/// The maps of backends below one key, with their labels.
pub(super) fn option_maps<'c>(
    directive: &'static str,
    route: &'c Element,
) -> Result<Vec<(Option<&'c str>, OptionMap<'c>)>, Diagnostic> {
    let maps = route.value.as_array().into_iter().flatten().map(|element| {
        let array: Option<&Array> = element.value.as_array();
        let map = |array| OptionMap {
            directive,
            array,
            span: element.span,
        };
        array.map(|array| (element.key(), map(array)))
    });
    let maps: Option<Vec<_>> = maps.collect();
    maps.filter(|_| route.value.as_array().is_some()).ok_or_else(|| {
        let message = format!("{directive} takes a list of backends for each prefix or suffix");
        let hint = "write the options of a backend in two pairs of parentheses: ( \"/\" => (( \"host\" => \"127.0.0.1\", \"port\" => 8000 )) )";
        Diagnostic::error(message, route.span).with_hint(hint)
    })
}

fn protocol(family: &Family, values: &Values<'_>) -> Result<Protocol, Diagnostic> {
    const NAME: &str = "scgi.protocol";
    match values.string(NAME) {
        Some("uwsgi") if family.protocol == Protocol::Scgi => Ok(Protocol::Uwsgi),
        Some(other) if family.protocol == Protocol::Scgi && other != "scgi" => Err(values
            .error(NAME, format!("{NAME}: there is no protocol {other:?}"))
            .with_hint("it is \"scgi\" or \"uwsgi\"")),
        _ => Ok(family.protocol),
    }
}

fn routes(
    family: &'static Family,
    values: &Values<'_>,
    protocol: Protocol,
    upgrade: &Upgrades,
) -> Result<Vec<Route>, Diagnostic> {
    let mut routes = Vec::new();
    let block = values.block_of(family.server).map_or(0, |block| block.0);
    for element in values.array(family.server).into_iter().flatten() {
        let key = element.key().unwrap_or_default();
        let mut hosts = Vec::new();
        for (_, mut host) in hosts_of(values.config(), family, element)? {
            host.protocol = protocol;
            host.upgrade.extend(upgrade);
            hosts.push(Rc::new(host));
        }
        // An authorizer does not answer, so it cannot stand in for a responder. lighttpd keeps separate lists
        // as well.
        let is_authorizer = |host: &Rc<BackendHost>| host.mode == Mode::Authorizer;
        let (authorizers, responders): (Vec<_>, Vec<_>) =
            hosts.into_iter().partition(is_authorizer);
        for (mode, hosts) in [("authorizer", authorizers), ("responder", responders)] {
            if !hosts.is_empty() {
                routes.push(Route {
                    name: route_name(key, values.block_of(family.server), values),
                    key: route_key(key),
                    hosts,
                    id: format!("{block} {} {key:?} {mode} {protocol:?}", family.server),
                });
            }
        }
    }
    Ok(routes)
}

fn hosts_of<'c>(
    config: &Config,
    family: &'static Family,
    route: &'c Element,
) -> Result<Vec<(OptionMap<'c>, BackendHost)>, Diagnostic> {
    let maps = option_maps(family.server, route)?.into_iter();
    maps.map(|(label, map)| {
        let host = host::read(config, family, label, &map)?;
        Ok((map, host))
    })
    .collect()
}

fn route_key(key: &str) -> RouteKey {
    match key.as_bytes() {
        [] => RouteKey::All,
        [b'/', ..] => RouteKey::Prefix(key.as_bytes().to_vec()),
        _ => RouteKey::Suffix(key.as_bytes().to_vec()),
    }
}

/// The first attempt and five more, as in lighttpd 1.4.
const TRIES_MAX: u32 = 6;

#[cfg(test)]
mod tests {
    use super::super::testing::{self, gateway_of};
    use super::*;

    #[test]
    fn lists_and_labels_are_backends() {
        let gateway = gateway_of(
            "mod_fastcgi",
            r#"fastcgi.server = (
                ".php" => (( "host" => "10.0.0.1", "port" => 1 ), ( "host" => "10.0.0.2", "port" => 2 )),
                "/app" => ( "one" => ( "socket" => "/s" )),
                "" => (( "host" => "10.0.0.3", "port" => 3 )) )
            fastcgi.balance = "round-robin"
            fastcgi.debug = 300
            fastcgi.map-extensions = ( ".php5" => ".php" )"#,
        );
        let keys: Vec<_> = gateway.routes.iter().map(|route| &route.key).collect();
        let suffix = RouteKey::Suffix(b".php".to_vec());
        let prefix = RouteKey::Prefix(b"/app".to_vec());
        assert_eq!(keys, [&suffix, &prefix, &RouteKey::All]);
        let labels = |route: usize| -> Vec<&str> {
            let hosts = gateway.routes[route].hosts.iter();
            hosts.map(|host| host.label.as_str()).collect()
        };
        assert_eq!(labels(0), ["10.0.0.1:1", "10.0.0.2:2"]);
        assert_eq!(labels(1), ["one"]);
        assert_eq!((gateway.balance, gateway.debug), (Balance::RoundRobin, 255));
        assert_eq!(gateway.extensions, [(b".php5".to_vec(), b".php".to_vec())]);
        assert_eq!(gateway.protocol, Protocol::FastCgi);
    }

    #[test]
    fn every_balancer_has_a_name() {
        let one = "proxy.server = ( \"/\" => (( \"host\" => \"a\" )) )\n";
        for (name, balance) in BALANCES {
            let text = format!("{one}proxy.balance = \"{name}\"");
            assert_eq!(gateway_of("mod_proxy", &text).balance, *balance, "{name}");
        }
        // lighttpd 1.4.69 starts with it and logs a warning.
        let text = format!("{one}proxy.balance = \"nearest\"");
        assert_eq!(
            gateway_of("mod_proxy", &text).balance,
            Balance::ShortestQueue
        );
    }

    #[test]
    fn proxy_header_is_read_with_the_backends() {
        let server = "proxy.server = ( \"/\" => (( \"host\" => \"a\" )) )\n";
        let gateway = gateway_of(
            "mod_proxy",
            &format!("{server}proxy.replace-http-host = \"enable\""),
        );
        assert!(gateway.extras.header_map.replace_http_host);
        assert_eq!(gateway.routes[0].hosts[0].upgrade, Upgrades::default());
        let upgrade = format!("{server}proxy.header = ( \"upgrade\" => \"enable\" )");
        let gateway = gateway_of("mod_proxy", &upgrade);
        assert_eq!(gateway.routes[0].hosts[0].upgrade, Upgrades::websocket());
    }

    #[test]
    fn authorizers_are_routes_of_their_own() {
        let gateway = gateway_of(
            "mod_fastcgi",
            r#"fastcgi.server = ( "/" => (
                ( "socket" => "/a", "mode" => "authorizer" ),
                ( "socket" => "/r" ) ))"#,
        );
        let modes: Vec<_> = gateway
            .routes
            .iter()
            .map(|route| route.hosts[0].mode)
            .collect();
        assert_eq!(modes, [Mode::Authorizer, Mode::Responder]);
        assert_ne!(gateway.routes[0].id, gateway.routes[1].id);
    }

    #[test]
    fn scgi_may_be_uwsgi() {
        let server = "scgi.server = ( \"/\" => (( \"host\" => \"a\" )) )\n";
        let uwsgi = gateway_of("mod_scgi", &format!("{server}scgi.protocol = \"uwsgi\""));
        assert_eq!(uwsgi.protocol, Protocol::Uwsgi);
        assert_eq!(uwsgi.routes[0].hosts[0].protocol, Protocol::Uwsgi);
        assert_eq!(gateway_of("mod_scgi", server).protocol, Protocol::Scgi);
        let message = testing::refusal("mod_scgi", &format!("{server}scgi.protocol = \"http\""));
        assert!(message.contains("no protocol \"http\""), "{message}");
    }

    #[test]
    fn proxies_do_not_look_for_local_files() {
        for (module, name) in [("mod_proxy", "proxy.server"), ("mod_ajp13", "ajp13.server")] {
            let text = format!(
                "{name} = ( \"/\" => (( \"host\" => \"a\", \"check-local\" => \"enable\" )) )"
            );
            assert!(
                !gateway_of(module, &text).routes[0].hosts[0].check_local,
                "{name}"
            );
        }
    }

    #[test]
    fn a_group_of_backends_keeps_its_identity_in_other_scopes() {
        let text = r#"fastcgi.server = ( ".php" => (( "socket" => "/s" )) )
            $HTTP["host"] == "a" { fastcgi.debug = 1 }
            $HTTP["host"] == "b" { fastcgi.server = ( ".php" => (( "socket" => "/s" )) ) }"#;
        let id = |block| {
            let gateway = testing::gateway_in("mod_fastcgi", text, block).expect("valid");
            gateway.expect("it has backends").routes[0].id.clone()
        };
        assert_eq!(id(0), id(1));
        assert_ne!(id(0), id(2));
    }

    #[test]
    fn without_backends_there_is_no_gateway() {
        for text in [
            "",
            "fastcgi.server = ()",
            "fastcgi.server = ( \".php\" => () )",
        ] {
            assert!(
                testing::gateway_in("mod_fastcgi", text, 0)
                    .expect("valid")
                    .is_none()
            );
        }
    }

    // As in lighttpd 1.4.69.
    #[test]
    fn options_without_a_list_around_them_are_refused() {
        for value in ["( \"host\" => \"a\", \"port\" => 1 )", "\"a\"", "( \"a\" )"] {
            let text = format!("fastcgi.server = ( \".php\" => {value} )");
            let message = testing::refusal("mod_fastcgi", &text);
            assert!(message.contains("a list of backends"), "{value}: {message}");
        }
    }
}
