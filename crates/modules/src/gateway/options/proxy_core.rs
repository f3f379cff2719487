//! `proxy-core.*`, the gateway of lighttpd 1.5: one list of backends for a scope, with any protocol.

use std::rc::Rc;
use std::time::Duration;

use petrel_engine::config::{Config, Diagnostic, Element, Entry};
use petrel_engine::settings::Values;

use super::super::header_map::Rewriting;
use super::map::OptionMap;
use super::{
    BackendHost, Balance, Extras, FpmStatusPage, Gateway, HostAddress, Protocol, Route, RouteKey,
    host, route_name, server, tls,
};

/// The gateway that `values` describe; `None` without backends.
pub(super) fn gateway(values: &Values<'_>) -> Result<Option<Gateway>, Diagnostic> {
    let protocol = protocol(values)?;
    let addresses = addresses(values)?;
    if addresses.is_empty() {
        return Ok(None);
    }
    let status_page = status_page(values, protocol, addresses.len())?;
    let hosts = addresses.into_iter().map(|(label, address)| {
        let host = host_of(values, protocol, label, address)?;
        Ok(Rc::new(BackendHost {
            status_page: status_page.clone(),
            ..host
        }))
    });
    let hosts: Vec<_> = hosts.collect::<Result<_, Diagnostic>>()?;
    let block = values.block_of(BACKENDS).map_or(0, |block| block.0);
    // One scope may name the backends and another the TLS options. So the id has both blocks: the same
    // backends with other TLS options are another group.
    let id = match values.block_of(TLS) {
        None => format!("{block} {BACKENDS} {protocol:?}"),
        Some(tls) => format!("{block} {BACKENDS} {protocol:?} {} {TLS}", tls.0),
    };
    let tries_again = values.unsigned("proxy-core.max-backlog-size", 4);
    Ok(Some(Gateway {
        directive: BACKENDS,
        protocol,
        routes: vec![Route {
            name: route_name("", values.block_of(BACKENDS), values),
            key: RouteKey::All,
            hosts,
            id,
        }],
        extensions: Vec::new(),
        balance: balance(values)?,
        tries_max: tries_again.saturating_add(1),
        debug: values.unsigned("proxy-core.debug", 0).min(u8::MAX.into()) as u8,
        extras: Extras {
            underscores: values
                .bool("proxy-core.underscores-in-headers")
                .unwrap_or(false),
            x_rewrite: values.bool("proxy-core.allow-x-rewrite").unwrap_or(false),
            rewriting: Rewriting::parse(values)?,
            ..Extras::default()
        },
    }))
}

/// Parses the address of a backend: `unix:/path`, `/path`, `[v6]:port`, `host:port`, `host`, or
/// `srv:_service._proto.name`. A host without a port gets `default_port`.
pub(super) fn address(text: &str, default_port: u16) -> Result<HostAddress, String> {
    let nothing = || format!("{text:?} is no address of a backend");
    if let Some(path) = text
        .strip_prefix("unix:")
        .or(Some(text).filter(|text| text.starts_with('/')))
    {
        return if path.starts_with('/') {
            host::unix(path)
        } else {
            Err(nothing())
        };
    }
    if let Some(name) = text.strip_prefix("srv:") {
        return if name.is_empty() {
            Err(nothing())
        } else {
            Ok(HostAddress::Srv(name.to_owned()))
        };
    }
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(nothing)?;
            let port = if rest.is_empty() {
                None
            } else {
                Some(rest.strip_prefix(':').ok_or_else(nothing)?)
            };
            (host, port)
        }
        None => match text.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') => (host, Some(port)),
            _ => (text, None),
        },
    };
    let port = match port {
        None => Some(default_port),
        Some(digits) => digits
            .parse()
            .ok()
            .filter(|port| *port > 0 && !digits.starts_with('+')),
    };
    match port {
        Some(port) if !host.is_empty() => Ok(HostAddress::Tcp(host.to_owned(), port)),
        _ => Err(nothing()),
    }
}

fn addresses(values: &Values<'_>) -> Result<Vec<(String, HostAddress)>, Diagnostic> {
    let written = values
        .strings(BACKENDS)
        .into_iter()
        .filter(|text| !text.is_empty());
    let speaks_tls = match values.entry(TLS).and_then(tls_map) {
        Some(map) => tls::is_wanted(&map)?,
        None => false,
    };
    let default_port = match speaks_tls {
        true => host::TLS_PORT,
        false => host::PORT,
    };
    written
        .map(|text| match address(text, default_port) {
            Ok(address) => Ok((text.to_owned(), address)),
            Err(message) => {
                let is_it = |element: &&Element| element.value.as_str() == Some(text);
                let place = values
                    .array(BACKENDS)
                    .and_then(|list| list.iter().find(is_it));
                let error = match place {
                    Some(element) => {
                        Diagnostic::error(format!("{BACKENDS}: {message}"), element.span)
                    }
                    None => values.error(BACKENDS, format!("{BACKENDS}: {message}")),
                };
                Err(error.with_hint("write \"host:port\", \"[v6]:port\" or \"unix:/path\""))
            }
        })
        .collect()
}

/// The protocol of the backends. One scope may name the protocol and another the backends. So if `values` has
/// none, that is an error only if no block of the configuration has one.
fn protocol(values: &Values<'_>) -> Result<Protocol, Diagnostic> {
    match values.string(PROTOCOL) {
        Some(name) => match PROTOCOLS.iter().find(|(known, _)| *known == name) {
            Some((_, protocol)) => Ok(*protocol),
            None => Err(values
                .error(
                    PROTOCOL,
                    format!("{PROTOCOL}: there is no protocol {name:?}"),
                )
                .with_hint("it is \"http\", \"fastcgi\", \"scgi\", \"uwsgi\" or \"ajp13\"")),
        },
        None if values.strings(BACKENDS).is_empty()
            || is_set_somewhere(values.config(), PROTOCOL) =>
        {
            Ok(Protocol::Http)
        }
        None => Err(values
            .error(BACKENDS, format!("{BACKENDS} needs {PROTOCOL} beside it"))
            .with_hint(format!("add {PROTOCOL} = \"http\", or another protocol"))),
    }
}

/// Where php-fpm tells its status. As long as no protocol is set, it is not known whether these are php-fpm.
fn status_page(
    values: &Values<'_>,
    protocol: Protocol,
    backends: usize,
) -> Result<Option<FpmStatusPage>, Diagnostic> {
    let text = |name| values.string(name).filter(|text| !text.is_empty());
    let (path, address) = (text(STATUS_PATH), text(STATUS_ADDRESS));
    if values.string(PROTOCOL).is_none() {
        return Ok(None);
    }
    let slow_log = text(SLOW_LOG);
    let page =
        FpmStatusPage::read(protocol, path, address, slow_log).map_err(|(option, why)| {
            let name = format!("proxy-core.{option}");
            values.error(&name, format!("proxy-core.{why}"))
        })?;
    if address.is_some() && backends > 1 {
        let why =
            format!("{STATUS_ADDRESS} is the address of one backend, and there are {backends}");
        let hint = "leave it out: each backend is then asked at its own address";
        return Err(values.error(STATUS_ADDRESS, why).with_hint(hint));
    }
    Ok(page)
}

fn is_set_somewhere(config: &Config, name: &str) -> bool {
    config
        .blocks
        .iter()
        .any(|block| block.entry(name).is_some())
}

fn balance(values: &Values<'_>) -> Result<Balance, Diagnostic> {
    const NAME: &str = "proxy-core.balancer";
    match values.string(NAME) {
        None => Ok(Balance::RoundRobin),
        Some(name) => server::balance(name).ok_or_else(|| {
            let error = values.error(NAME, format!("{NAME}: there is no balancer {name:?}"));
            error.with_hint(
                "it is \"sqf\", \"carp\", \"round-robin\", \"static\", \"sticky\" or \"cookie\"",
            )
        }),
    }
}

fn host_of(
    values: &Values<'_>,
    protocol: Protocol,
    label: String,
    address: HostAddress,
) -> Result<BackendHost, Diagnostic> {
    let number = |name: &str, default: u32| values.unsigned(name, default);
    let seconds = |number: u32| Duration::from_secs(number.into());
    let x_sendfile = values.bool("proxy-core.allow-x-sendfile").unwrap_or(false);
    let tls = match values.entry(TLS).and_then(tls_map) {
        Some(map) => tls::read(&map, &address)?,
        None => None,
    };
    Ok(BackendHost {
        tls,
        split_hostname: values.bool("proxy-core.split-hostnames").unwrap_or(true),
        connections_max: Some(number("proxy-core.max-pool-size", 0)).filter(|max| *max > 0),
        requests_per_connection_max: number("proxy-core.max-keep-alive-requests", 0),
        keep_alive_idle: seconds(host::keep_alive_idle_s(protocol)),
        backlog_max: host::BACKLOG_SIZE,
        backlog_timeout: seconds(host::BACKLOG_S),
        connect_timeout: seconds(host::CONNECT_S),
        disable_time: seconds(number("proxy-core.disable-time", host::DISABLE_S)),
        x_sendfile,
        tempfile_dirs: host::tempfile_dirs(values.config(), None, x_sendfile),
        ..BackendHost::plain(&label, address, protocol)
    })
}

/// The options in `entry`, which is a [`TLS`] directive.
pub(super) fn tls_map(entry: &Entry) -> Option<OptionMap<'_>> {
    Some(OptionMap {
        directive: TLS,
        array: entry.value.as_array()?,
        span: entry.value_span,
    })
}

/// The directive that names the backends.
pub(super) const BACKENDS: &str = "proxy-core.backends";

const PROTOCOL: &str = "proxy-core.protocol";
pub(super) const SLOW_LOG: &str = "proxy-core.slowlog";
const STATUS_PATH: &str = "proxy-core.status-path";
const STATUS_ADDRESS: &str = "proxy-core.status-address";

/// The directive with the TLS options.
pub(super) const TLS: &str = "proxy-core.tls";

const PROTOCOLS: &[(&str, Protocol)] = &[
    ("http", Protocol::Http),
    ("fastcgi", Protocol::FastCgi),
    ("scgi", Protocol::Scgi),
    ("uwsgi", Protocol::Uwsgi),
    ("ajp13", Protocol::Ajp13),
];

#[cfg(test)]
mod tests {
    use super::super::testing::{self, gateway_of};
    use super::*;

    /// The configuration from the article about fcgi-stat-accel.
    const ARTICLE: &str = r#"
        $SERVER["socket"] == ":1025" {
        $HTTP["url"] =~ "^/seek-bound/" {
        proxy-core.protocol = "fastcgi"
        proxy-core.backends = ( "127.0.0.1:1029" )
        proxy-core.allow-x-sendfile = "enable"
        proxy-core.max-pool-size = 20
        }
        }"#;

    #[test]
    fn the_article_is_understood_as_it_stands() {
        let gateway = testing::gateway_in("mod_proxy_core", ARTICLE, 2).expect("valid");
        let gateway = gateway.expect("it has a backend");
        assert_eq!(
            (gateway.protocol, gateway.balance),
            (Protocol::FastCgi, Balance::RoundRobin)
        );
        let [route] = &gateway.routes[..] else {
            panic!("one route")
        };
        let [host] = &route.hosts[..] else {
            panic!("one host")
        };
        assert_eq!(route.key, RouteKey::All);
        assert_eq!(host.address, HostAddress::Tcp("127.0.0.1".to_owned(), 1029));
        assert_eq!(host.connections_max, Some(20));
        assert!(host.x_sendfile && host.split_hostname && !host.check_local);
        assert_eq!(host.tempfile_dirs, [b"/dev/shm"]);
    }

    #[test]
    fn blocks_with_other_rules_of_tls_are_other_routes() {
        let config = "proxy-core.protocol = \"http\"\nproxy-core.backends = ( \"10.0.0.1:443\" )
            $HTTP[\"url\"] =^ \"/a\" { proxy-core.tls = ( \"tls\" => \"enable\" ) }
            $HTTP[\"url\"] =^ \"/b\" { proxy-core.tls = ( \"tls\" => \"enable\", \"tls-verify\" => \"disable\" ) }";
        let id = |block| {
            let gateway = testing::gateway_in("mod_proxy_core", config, block);
            let gateway = gateway.expect("valid").expect("it has a backend");
            gateway.routes[0].id.clone()
        };
        assert_ne!(id(1), id(2));
        assert_ne!(id(0), id(1));
        assert_eq!(id(1), id(1));
    }

    #[test]
    fn addresses_are_understood() {
        let tcp = |host: &str, port| Ok(HostAddress::Tcp(host.to_owned(), port));
        let unix = |path: &str| Ok(HostAddress::Unix(path.as_bytes().to_vec()));
        for (text, expected) in [
            ("127.0.0.1:1029", tcp("127.0.0.1", 1029)),
            ("[::1]:80", tcp("::1", 80)),
            ("[::1]", tcp("::1", 80)),
            ("::1", tcp("::1", 80)),
            ("app.example", tcp("app.example", 80)),
            ("app.example:8000", tcp("app.example", 8000)),
            ("unix:/run/s", unix("/run/s")),
            ("/run/s", unix("/run/s")),
            (
                "srv:_a._tcp.b",
                Ok(HostAddress::Srv("_a._tcp.b".to_owned())),
            ),
        ] {
            assert_eq!(address(text, 80), expected, "{text}");
        }
        for text in [
            "", "unix:", "unix:s", "a:", ":80", "a:0", "a:65536", "a:+1", "[::1", "[::1]80",
            "srv:", "[]:1",
        ] {
            assert!(address(text, 80).is_err(), "{text}");
        }
    }

    #[test]
    fn switches_of_1_5_are_read() {
        let gateway = gateway_of(
            "mod_proxy_core",
            r#"proxy-core.protocol = "http"
            proxy-core.backends = ( "a:1", "unix:/s" )
            proxy-core.balancer = "carp"
            proxy-core.debug = 2
            proxy-core.max-keep-alive-requests = 3
            proxy-core.max-backlog-size = 7
            proxy-core.disable-time = 5
            proxy-core.split-hostnames = "disable"
            proxy-core.allow-x-rewrite = "enable"
            proxy-core.rewrite-request = ( "Host" => ( ".*" => "b" ) )"#,
        );
        assert_eq!(
            (gateway.balance, gateway.debug, gateway.tries_max),
            (Balance::Hash, 2, 8)
        );
        assert!(gateway.extras.x_rewrite && !gateway.extras.rewriting.is_empty());
        let hosts = &gateway.routes[0].hosts;
        let labels: Vec<_> = hosts.iter().map(|host| host.label.as_str()).collect();
        assert_eq!(labels, ["a:1", "unix:/s"]);
        assert_eq!(hosts[0].requests_per_connection_max, 3);
        assert_eq!(hosts[0].disable_time, Duration::from_secs(5));
        assert_eq!(hosts[0].connections_max, None);
        assert!(!hosts[0].split_hostname && !hosts[0].x_sendfile);
    }

    #[test]
    fn what_is_wrong_is_refused() {
        for (text, message) in [
            (
                "proxy-core.backends = ( \"a:1\" )",
                "needs proxy-core.protocol",
            ),
            ("proxy-core.protocol = \"gopher\"", "no protocol \"gopher\""),
            (
                "proxy-core.protocol = \"http\"\nproxy-core.backends = ( \"a:b\" )",
                "\"a:b\" is no address",
            ),
            (
                "proxy-core.protocol = \"http\"\nproxy-core.backends = ( \"a\" )\nproxy-core.balancer = \"x\"",
                "no balancer \"x\"",
            ),
        ] {
            let found = testing::refusal("mod_proxy_core", text);
            assert!(found.contains(message), "{text}: {found}");
        }
    }

    #[test]
    fn protocol_and_backends_may_stand_in_different_scopes() {
        let text = r#"$HTTP["host"] == "a" { proxy-core.protocol = "scgi" }
            $HTTP["url"] =^ "/x" { proxy-core.backends = ( "a:1" ) }"#;
        assert!(
            testing::gateway_in("mod_proxy_core", text, 2)
                .expect("valid")
                .is_some()
        );
    }
}
