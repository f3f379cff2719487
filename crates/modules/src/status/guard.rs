//! Who may see the pages of mod_status: clients that connect from a loopback address, and those that
//! `status.allow` names.
//!
//! A page of another site in a browser of this machine connects from a loopback address, too: its name server
//! may say that its own name is 127.0.0.1 (DNS rebinding). Its requests have that name as Host. So clients that
//! no list names are admitted only for a Host that no other name server can point here: an address,
//! `localhost`, the `server.name` that the configuration sets, or a host that one of its conditions names.
//!
//! A request that a proxy has forwarded comes from another client, even if the proxy runs on this machine and
//! so connects from 127.0.0.1. Such a request is refused unless mod_extforward or the PROXY protocol tells
//! who the client is, and `status.allow` names that client. A proxy is known by the fields that it adds; one
//! that adds none looks like a program of this machine. Who connects to a unix socket is mostly a proxy, so
//! those are refused unless the list has "unix". A subrequest has no client of its own, and is refused: it
//! could put the page into the answer for any client.

use std::net::IpAddr;

use petrel_engine::Exchange;
use petrel_engine::config::{AddressRange, Diagnostic};
use petrel_engine::proto::request_head::KnownField;
use petrel_engine::settings::Values;

use crate::extforward::ACTUAL_FOR;

/// Decides who may see a page.
#[derive(Clone, Debug, Default)]
pub(super) struct PageGuard {
    allowed: Vec<AddressRange>,
    /// Clients that connect to a unix socket may see it.
    allows_unix: bool,
}

impl PageGuard {
    /// The guard that `status.allow` describes.
    ///
    /// # Errors
    /// An entry is no address and no range.
    pub(super) fn new(values: &Values<'_>) -> Result<PageGuard, Diagnostic> {
        let mut guard = PageGuard::default();
        for element in values.array(ALLOW).into_iter().flatten() {
            if element.value.as_str() == Some(UNIX) {
                guard.allows_unix = true;
                continue;
            }
            let range = element
                .value
                .as_str()
                .ok_or_else(|| "no address".to_owned());
            let range = range.and_then(AddressRange::parse).map_err(|why| {
                Diagnostic::error(format!("{ALLOW}: {why}"), element.span).with_hint(
                    "it takes addresses, ranges and \"unix\": ( \"192.0.2.1\", \"10.0.0.0/8\" )",
                )
            })?;
            guard.allowed.push(range);
        }
        Ok(guard)
    }

    /// Whether the client of `exchange` may see the page.
    pub(super) fn admits(&self, exchange: &Exchange) -> bool {
        if exchange.is_subrequest() {
            return false;
        }
        let client = exchange.connection.peer.ip().map(|ip| ip.to_canonical());
        let is_named = client.map_or(self.allows_unix, |ip| self.names(ip));
        match forwarding(exchange) {
            Forwarding::None => {
                let is_local = client.is_some_and(|ip| ip.is_loopback());
                is_named || is_local && has_own_name(exchange)
            }
            Forwarding::Believed => is_named,
            Forwarding::Unknown => false,
        }
    }

    fn names(&self, ip: IpAddr) -> bool {
        self.allowed.iter().any(|range| range.contains(ip))
    }
}

/// Whether the Host of the request is one that a browser sends only to a page of this server. A program that
/// sends none is no browser.
fn has_own_name(exchange: &Exchange) -> bool {
    let name = exchange.request.head.host_without_port();
    let is_address =
        name.starts_with(b"[") || name.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'.'));
    let own = exchange.settings.core.name.as_deref();
    is_address
        || name == b"localhost"
        || own.is_some_and(|own| own.eq_ignore_ascii_case(name))
        || exchange.is_for_named_host()
}

/// What is known of proxies that a request came through.
enum Forwarding {
    /// The client has connected to this server.
    None,
    /// A trusted proxy has told who the client is.
    Believed,
    /// There is a proxy, and it is not known for which client it asks.
    Unknown,
}

fn forwarding(exchange: &Exchange) -> Forwarding {
    if exchange.environment.get(ACTUAL_FOR).is_some() {
        return Forwarding::Believed;
    }
    let head = &exchange.request.head;
    let is_there = |name: &&str| head.value_of(name).is_some();
    match (FIELDS.iter().any(is_there), exchange.proxied()) {
        (true, _) => Forwarding::Unknown,
        (false, Some(_)) => Forwarding::Believed,
        (false, None) => Forwarding::None,
    }
}

/// Fields that proxies add to the requests that they forward.
const FIELDS: [&str; 17] = [
    KnownField::Forwarded.name(),
    KnownField::XForwardedFor.name(),
    KnownField::XForwardedHost.name(),
    KnownField::XForwardedProto.name(),
    "Forwarded-For",
    "X-Real-IP",
    "Via",
    "X-Client-IP",
    "X-Cluster-Client-IP",
    "X-Original-Forwarded-For",
    "X-Forwarded-Port",
    "X-Forwarded-Server",
    "X-Forwarded-Ssl",
    "True-Client-IP",
    "CF-Connecting-IP",
    "Fastly-Client-IP",
    "Forwarded-Proto",
];

/// The entry of `status.allow` for clients that connect to a unix socket.
const UNIX: &str = "unix";

const ALLOW: &str = "status.allow";

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use petrel_engine::exchange::{Peer, Proxied};
    use petrel_engine::proto::proxy_protocol::Extras;
    use petrel_engine::testing::Site;

    use super::super::MODULE;
    use super::*;
    use crate::extforward;
    use crate::testing::refusal;

    const PAGE: &str = "status.metrics-url = \"/metrics\"\n";

    /// The status for a request from `peer` with these header fields.
    async fn status_for(config: &str, peer: &str, fields: &str) -> u16 {
        let config = format!("{PAGE}{config}");
        status_of("/metrics", &config, peer, fields).await
    }

    async fn status_of(path: &str, config: &str, peer: &str, fields: &str) -> u16 {
        let mut site = Site::new(config, &[&extforward::MODULE, &MODULE]);
        let mut facts = site.connection();
        facts.peer = match peer {
            "unix" => Peer::Unix,
            address => {
                let ip: IpAddr = address.parse().expect("an address");
                Peer::Ip(SocketAddr::from((ip, 4000)))
            }
        };
        site.set_connection(facts);
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
        site.request_async(&head).await.status()
    }

    #[tokio::test(flavor = "local")]
    async fn only_clients_of_this_machine_are_admitted() {
        for (peer, status) in [
            ("127.0.0.1", 200),
            ("127.8.9.1", 200),
            ("::1", 200),
            ("::ffff:127.0.0.1", 200),
            ("unix", 403),
            ("192.0.2.1", 403),
            ("::ffff:192.0.2.1", 403),
            ("10.0.0.1", 403),
            ("fe80::1", 403),
        ] {
            assert_eq!(status_for("", peer, "").await, status, "{peer}");
        }
    }

    /// The page of another site whose name server says that the site is this machine.
    #[tokio::test(flavor = "local")]
    async fn a_browser_of_this_machine_is_admitted_by_names_of_this_server_alone() {
        let named = "$HTTP[\"host\"] == \"www.example\" { server.tag = \"\" }";
        for (config, host, status) in [
            ("", "localhost", 200),
            ("", "LocalHost:8080", 200),
            ("", "127.0.0.1:8080", 200),
            ("", "[::1]:8080", 200),
            ("", "evil.example", 403),
            ("", "localhost.evil.example", 403),
            ("", "127.0.0.1.evil.example", 403),
            ("server.name = \"www.example\"", "www.example:81", 200),
            ("server.name = \"www.example\"", "evil.example", 403),
            (named, "www.example:81", 200),
            (named, "evil.example", 403),
            ("status.allow = ( \"127.0.0.1\" )", "evil.example", 200),
        ] {
            let config = format!("{PAGE}{config}");
            let site = Site::new(&config, &[&MODULE]);
            let head = format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n");
            assert_eq!(
                site.request_async(&head).await.status(),
                status,
                "{config} {host}"
            );
        }
    }

    #[tokio::test(flavor = "local")]
    async fn every_page_is_guarded() {
        for page in ["status", "metrics", "config", "statistics"] {
            let config = format!("status.{page}-url = \"/page\"\n");
            for (peer, status) in [("127.0.0.1", 200), ("192.0.2.1", 403)] {
                assert_eq!(
                    status_of("/page", &config, peer, "").await,
                    status,
                    "{page} {peer}"
                );
            }
        }
    }

    #[tokio::test(flavor = "local")]
    async fn what_a_proxy_forwards_is_refused_even_from_this_machine() {
        for field in [
            "X-Forwarded-For: 192.0.2.1",
            "x-forwarded-for: 127.0.0.1",
            "X-Forwarded-For:",
            "Forwarded: for=127.0.0.1",
            "X-Real-IP: 127.0.0.1",
            "x-real-ip: ::1",
            "Via: 1.1 proxy",
            "X-Forwarded-Proto: https",
            "X-Forwarded-Host: a",
            "Forwarded-For: 127.0.0.1",
            "CF-Connecting-IP: 192.0.2.1",
            "X-Client-IP: 127.0.0.1",
        ] {
            let fields = format!("{field}\r\n");
            for (config, peer) in [
                ("", "127.0.0.1"),
                ("", "unix"),
                ("status.allow = ( \"192.0.2.0/24\" )", "192.0.2.1"),
            ] {
                assert_eq!(
                    status_for(config, peer, &fields).await,
                    403,
                    "{field} {peer}"
                );
            }
        }
    }

    #[tokio::test(flavor = "local")]
    async fn the_list_admits_clients_and_those_that_trusted_proxies_name() {
        let allow = "status.allow = ( \"192.0.2.0/24\", \"2001:db8::/32\" )";
        for (peer, status) in [
            ("192.0.2.200", 200),
            ("::ffff:192.0.2.1", 200),
            ("2001:db8::5", 200),
            ("127.0.0.1", 200),
            ("192.0.3.1", 403),
        ] {
            assert_eq!(status_for(allow, peer, "").await, status, "{peer}");
        }
        let unix = "status.allow = ( \"unix\" )";
        assert_eq!(status_for(unix, "unix", "").await, 200);
        assert_eq!(status_for(unix, "unix", "Via: 1.1 proxy\r\n").await, 403);
        let trust = "extforward.forwarder = ( \"127.0.0.1\" => \"trust\" )\n";
        let both = format!("{trust}{allow}");
        for (named, status) in [
            ("192.0.2.1", 200),
            ("203.0.113.1", 403),
            // A client can send any address of its own in front.
            ("192.0.2.1, 203.0.113.1", 403),
            ("127.0.0.1, 203.0.113.1", 403),
        ] {
            let fields = format!("X-Forwarded-For: {named}\r\nVia: 1.1 proxy\r\n");
            assert_eq!(
                status_for(&both, "127.0.0.1", &fields).await,
                status,
                "{named}"
            );
        }
        // Whom such a proxy names counts only if the list has it, even if it is an address of this machine.
        let all = "extforward.forwarder = ( \"all\" => \"trust\" )";
        let fields = "X-Forwarded-For: 127.0.0.1\r\n";
        assert_eq!(status_for(all, "192.0.2.1", fields).await, 403);
    }

    #[tokio::test(flavor = "local")]
    async fn the_proxy_protocol_names_a_client_as_well() {
        for (config, status) in [("", 403), ("status.allow = ( \"127.0.0.1\" )", 200)] {
            let mut site = Site::new(&format!("{PAGE}{config}"), &[&MODULE]);
            let mut facts = site.connection();
            facts.late().proxied = Some(Proxied {
                sender: Peer::Unix,
                extras: Extras::default(),
            });
            site.set_connection(facts);
            assert_eq!(
                site.get_async("/metrics").await.status(),
                status,
                "{config}"
            );
        }
    }

    #[test]
    fn an_entry_that_is_no_address_is_refused() {
        for wrong in ["\"localhost\"", "\"10.0.0.0/33\"", "7"] {
            let message = refusal(&format!("{PAGE}status.allow = ( {wrong} )"), &[&MODULE]);
            assert!(message.contains("status.allow"), "{message}");
        }
    }
}
