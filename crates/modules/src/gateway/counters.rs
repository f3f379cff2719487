//! The counters of the gateways for the status page, under the names of lighttpd 1.4 and 1.5.
//!
//! They are read from the backends when the status module asks.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use petrel_engine::metrics::FineCounts;
use petrel_engine::shared::Shared;

use super::active_check::now_ms;
use super::backend::{SharedBackend, SharedBackends};
use super::cgi::RunningPrograms;
use super::fpm::FpmReport;
use super::holders::Held;
use super::options::Protocol;

/// Adds the gateways' counters to `counters`. Counters of the same name are added up: those of backends that
/// share a label, and of the addresses of one host name.
pub fn read(shared: &Shared, counters: &mut BTreeMap<String, u64>) {
    let backends = shared.belonging(SharedBackends::default).all();
    let mut add = |name: String, count: u64| *counters.entry(name).or_default() += count;
    add("gw.active-requests".to_owned(), 0);
    add("cgi.programs".to_owned(), programs(shared));
    for backend in &backends {
        of_lighttpd_14(backend, &mut add);
    }
    of_lighttpd_15(&backends, &mut add);
}

/// A backend, for the metrics and the status page.
pub(crate) struct BackendReport {
    /// Its name in the configuration.
    pub(crate) label: String,
    /// Its address.
    pub(crate) address: String,
    /// The directive and the key that lead to it.
    pub(crate) route: String,
    /// Its protocol.
    pub(crate) protocol: &'static str,
    /// `up`, `strained` or `down`.
    pub(crate) state: &'static str,
    /// Open connections to it.
    pub(crate) connections: u64,
    /// How many there may be, if that is configured.
    pub(crate) limit: Option<u64>,
    /// Requests under way, those that wait for a connection included.
    pub(crate) load: u64,
    /// Requests that wait for a connection.
    pub(crate) waiting: u64,
    /// Requests that had to wait.
    pub(crate) backlogged: u64,
    /// Requests that were sent.
    pub(crate) requests: u64,
    /// Connections that were made.
    pub(crate) connected: u64,
    /// Requests that it failed.
    pub(crate) died: u64,
    /// Requests that it had no room for.
    pub(crate) overloaded: u64,
    /// The times until the first byte of its replies.
    pub(crate) first_bytes: FineCounts,
    /// The requests that have its connections, the oldest first.
    pub(crate) holders: Vec<Held>,
    /// The php-fpm behind it, if that tells its status.
    pub(crate) fpm: Option<FpmReport>,
}

/// How many CGI programs run.
pub(crate) fn programs(shared: &Shared) -> u64 {
    RunningPrograms::of(shared).count() as u64
}

/// All backends, in the order of their routes. Backends of one label and address are one backend to the
/// reader, whichever block of the configuration they come from.
pub(crate) fn report(shared: &Shared) -> Vec<BackendReport> {
    let backends = shared.belonging(SharedBackends::default).all();
    let mut all: Vec<BackendReport> = Vec::new();
    let mut known: HashMap<(&str, &str), usize> = HashMap::new();
    for backend in &backends {
        let index = *known
            .entry((&backend.label, &backend.name))
            .or_insert_with(|| {
                all.push(BackendReport::named(backend));
                all.len() - 1
            });
        all[index].add(backend);
    }
    for report in &mut all {
        report.holders.sort_by_key(|held| held.since);
    }
    all
}

impl BackendReport {
    /// A report without counts. Its state is that of `backend`.
    fn named(backend: &SharedBackend) -> BackendReport {
        let health = backend.health.counters(now_ms());
        BackendReport {
            label: backend.label.clone(),
            address: backend.name.clone(),
            route: shown_route(&backend.id),
            protocol: backend.protocol.label(),
            state: match (health.is_down, health.is_strained) {
                (true, _) => "down",
                (false, true) => "strained",
                (false, false) => "up",
            },
            connections: 0,
            limit: Some(0),
            load: 0,
            waiting: 0,
            backlogged: 0,
            requests: 0,
            connected: 0,
            died: 0,
            overloaded: 0,
            first_bytes: FineCounts::default(),
            holders: Vec::new(),
            fpm: None,
        }
    }

    /// Adds the counts of `backend`.
    fn add(&mut self, backend: &SharedBackend) {
        let health = backend.health.counters(now_ms());
        let limit = backend.capacity.told().map(u64::from);
        let load = backend.load.load(Relaxed);
        self.connections += u64::from(backend.capacity.open());
        self.limit = self.limit.zip(limit).map(|(sum, limit)| sum + limit);
        self.load += u64::from(load);
        self.waiting += u64::from(backend.waiting.load(Relaxed));
        self.backlogged += backend.backlogged.load(Relaxed);
        self.requests += backend.requests.load(Relaxed);
        self.connected += backend.connected.load(Relaxed);
        self.died += health.died;
        self.overloaded += health.overloaded;
        self.first_bytes.add(&backend.first_bytes.read());
        if let (None, Some(fpm)) = (&self.fpm, &backend.fpm) {
            self.fpm = Some(fpm.report(now_ms()));
        }
        // A board has many slots, so the boards of idle backends are not read.
        if load > 0 {
            backend.holders.each(|held| self.holders.push(held));
        }
    }
}

/// The directive and the key of a backend's id: `fastcgi.server .php`. The id is the number of the block, the
/// directive, the key in quotes, and more.
fn shown_route(id: &str) -> String {
    let mut parts = id.splitn(3, ' ').skip(1);
    let directive = parts.next().unwrap_or_default();
    let quoted = parts.next().and_then(|rest| rest.strip_prefix('"'));
    match quoted.and_then(|rest| rest.split('"').next()) {
        Some(key) if !key.is_empty() => format!("{directive} {key}"),
        _ => directive.to_owned(),
    }
}

/// lighttpd has counters for each process. Here each host entry is one process, because all processes of a
/// program accept connections from one socket.
fn of_lighttpd_14(backend: &SharedBackend, add: &mut impl FnMut(String, u64)) {
    let load = backend.load.load(Relaxed).into();
    add("gw.active-requests".to_owned(), load);
    let family = match backend.protocol {
        Protocol::FastCgi => "fastcgi",
        Protocol::Scgi | Protocol::Uwsgi => "scgi",
        Protocol::Ajp13 => "ajp13",
        Protocol::Http => "proxy",
    };
    add(format!("{family}.requests"), backend.requests.load(Relaxed));
    let health = backend.health.counters(now_ms());
    let label = &backend.label;
    add(format!("gw.backend.{label}.load"), load);
    for (name, count) in [
        ("load", load),
        ("connected", backend.connected.load(Relaxed)),
        ("died", health.died),
        ("disabled", health.is_down.into()),
        ("overloaded", health.overloaded),
    ] {
        add(format!("gw.backend.{label}.0.{name}"), count);
        if name != "load" {
            add(format!("gw.backend.{label}.{name}"), count);
        }
    }
}

/// Each group of backends that `proxy-core.backends` names is a pool, numbered in the order of the
/// configuration.
fn of_lighttpd_15(backends: &[Arc<SharedBackend>], add: &mut impl FnMut(String, u64)) {
    let mut pools: Vec<&str> = Vec::new();
    for backend in backends {
        let name = &backend.name;
        let own = format!(" {} {name}", backend.label);
        let Some(route) = backend
            .id
            .strip_suffix(&own)
            .filter(|route| route.contains(POOL))
        else {
            continue;
        };
        if !pools.contains(&route) {
            pools.push(route);
        }
        let pool = pools.iter().position(|known| *known == route).unwrap_or(0);
        let requests = backend.requests.load(Relaxed);
        add("proxy-core.requests".to_owned(), requests);
        add(
            format!("proxy-core.{pool}.backlogged"),
            backend.backlogged.load(Relaxed),
        );
        for (counter, count) in [
            ("requests", requests),
            ("load", backend.load.load(Relaxed).into()),
            ("pool_size", backend.capacity.open().into()),
            ("requests_failed", backend.health.counters(now_ms()).died),
        ] {
            add(
                format!("proxy-core.{pool}.backends.\"{name}\".{counter}"),
                count,
            );
        }
    }
}

/// The middle of the id of a `proxy-core.backends` route; the number of its block comes before it.
const POOL: &str = " proxy-core.backends ";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::options::testing::gateway_of;
    use crate::gateway::resolve::FollowedNames;
    use crate::gateway::stream::SocketAddress;
    use crate::gateway::trust::LoadedTrusts;
    use petrel_engine::log::LogHandle;

    #[test]
    fn backends_at_one_address_with_other_rules_of_tls_are_others() {
        let config = |tls: &str| {
            let host = "\"host\" => \"127.0.0.1\", \"port\" => 9000";
            format!("proxy.server = ( \"\" => (( {host}, {tls} )) )")
        };
        let options = [
            "\"tls\" => \"disable\"",
            "\"tls\" => \"enable\"",
            "\"tls\" => \"enable\", \"tls-verify\" => \"disable\"",
            "\"tls\" => \"enable\", \"tls-name\" => \"a\"",
            "\"tls\" => \"enable\", \"tls-cert\" => \"/c\"",
        ];
        let shared = Shared::new(10, 10);
        let made = options.map(|tls| backend(&shared, "mod_proxy", &config(tls)));
        for (number, one) in made.iter().enumerate() {
            assert!(made[..number].iter().all(|other| !Arc::ptr_eq(one, other)));
            assert_eq!(one.tls.is_some(), number > 0);
            let again = backend(&shared, "mod_proxy", &config(options[number]));
            assert!(Arc::ptr_eq(one, &again));
        }
    }

    /// The backend that the gateway of `module` makes of this configuration.
    fn backend(shared: &Shared, module: &str, config: &str) -> Arc<SharedBackend> {
        let gateway = gateway_of(module, config);
        let route = gateway.routes.first().expect("it has a route");
        let host = route.hosts.first().expect("it has a host");
        let address = SocketAddress::Ip(([127, 0, 0, 1], 9000).into());
        let id = format!("{} {} {address}", route.id, host.label);
        let backends = shared.belonging(SharedBackends::default);
        backends.get(
            &id,
            host,
            &address,
            &LoadedTrusts::default(),
            &FollowedNames::default(),
            &LogHandle::default(),
        )
    }

    #[test]
    fn counters_have_the_names_of_both_lines() {
        let shared = Shared::new(1, 1);
        let old = "fastcgi.server = (\".php\" => (\"php\" => (\"host\" => \"127.0.0.1\", \"port\" => 9000)))";
        let old = backend(&shared, "mod_fastcgi", old);
        old.requests.store(7, Relaxed);
        old.load.store(2, Relaxed);
        let new = "proxy-core.protocol = \"http\"\nproxy-core.backends = (\"127.0.0.1:9000\")";
        let new = backend(&shared, "mod_proxy_core", new);
        new.requests.store(5, Relaxed);
        new.backlogged.store(3, Relaxed);
        let reports = report(&shared);
        let shown = reports
            .iter()
            .map(|report| (&*report.route, report.requests));
        let shown: Vec<_> = shown.collect();
        assert_eq!(
            shown,
            [("fastcgi.server .php", 7), ("proxy-core.backends", 5)]
        );
        let mut counters = BTreeMap::new();
        read(&shared, &mut counters);
        for (name, count) in [
            ("gw.active-requests", 2),
            ("fastcgi.requests", 7),
            ("gw.backend.php.load", 2),
            ("gw.backend.php.0.connected", 0),
            ("gw.backend.php.overloaded", 0),
            ("proxy-core.requests", 5),
            ("proxy-core.0.backlogged", 3),
            ("proxy-core.0.backends.\"127.0.0.1:9000\".requests", 5),
            ("proxy-core.0.backends.\"127.0.0.1:9000\".pool_size", 0),
        ] {
            assert_eq!(counters.get(name), Some(&count), "{name} in {counters:#?}");
        }
        assert!(!counters.contains_key("proxy-core.1.backlogged"));
    }
}
