//! mod_status: what the server is doing, as a page, as text, as metrics and as JSON.
//!
//! The text has one line `name: value` for each counter, sorted by name. Modules keep their own counters, which
//! are read when a client asks; [`COUNTERS`] lists them. Metrics, page and JSON have more, and other threads
//! make them. Page and JSON are made from one struct, which `petrel top` reads from the JSON ([`model`]).

mod config_page;
mod fpm;
mod guard;
mod json;
mod lighttpd;
pub mod metrics;
pub mod model;
mod page;
mod pages;
mod report;
mod shared_page;
pub mod text;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use petrel_engine::cause::CauseCode;
use petrel_engine::config::Diagnostic;
use petrel_engine::module::{Configure, Hook, Loaded, ModuleSpec, Outcome, Phase};
use petrel_engine::proto::method::Method;
use petrel_engine::proto::status::Status;
use petrel_engine::settings::Values;
use petrel_engine::settings::directives::Effect::Works;
use petrel_engine::shared::Shared;
use petrel_engine::worker::Worker;
use petrel_engine::{Exchange, io_counters};

use guard::PageGuard;
use pages::{ConfigPage, StatusPage};

use crate::{auth, gateway, limit, lua_api, magnet, opentelemetry, page_cache, remote_store};

/// mod_status.
pub static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_status",
    doc: "Shows what the server is doing.",
    loaded: Loaded::Listed,
    directives: petrel_engine::directives! {
        "status.statistics-url", String, Request, "unset", Works,
            "The URL path of the counters, which status.allow guards, and access rules of modules that are listed before: a sorted list of lines \"name: value\".";
        "status.metrics-url", String, Request, "unset", Works,
            "The URL path of the metrics for Prometheus, which status.allow guards, and access rules of modules that are listed before; with the query ?json, of the status as JSON.";
        "status.allow", List, Request, "()", Works,
            "The addresses and ranges (10.0.0.0/8) of clients that may see the pages of this module, besides those that connect from a loopback address and ask for an address, localhost, server.name or a host that a condition names; \"unix\" stands for clients of a unix socket. A request that a proxy has forwarded gets 403, also from this machine, unless mod_extforward or the PROXY protocol names its client and the list has that client.";
        "status.status-url", String, Request, "unset", Works,
            "The URL path of the status page, which status.allow guards, and access rules of modules that are listed before. With the query ?auto it is the text, with ?json the JSON that monitors of lighttpd read, with ?refresh=N the page is fetched every N seconds.";
        "status.config-url", String, Request, "unset", Works,
            "The URL path of the page about features, listeners and loaded modules, which status.allow guards, and access rules of modules that are listed before.";
        "status.enable-sort", Bool, Request, "enable", Works,
            "Tables of the status page can be sorted by a click on the head of a column.";
    },
    configure,
};

/// Adds the counters of one module to the map.
type ReadCounters = fn(&Shared, &mut BTreeMap<String, u64>);

/// The sources of counters, in addition to the gateways, to scripts, and to the workers' counters of file
/// operations. Metrics take those of the gateways from another place.
static COUNTERS: &[ReadCounters] = &[
    of_server,
    auth::read_counters,
    page_cache::counters::read,
    remote_store::counters::read,
    limit::read_counters,
    lua_api::read_counters,
    opentelemetry::read_counters,
];

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let guard = PageGuard::new(configure.values)?;
    if let Some(path) = url_path(configure.values, "status.statistics-url")? {
        let guard = guard.clone();
        configure.add(Phase::Authorize, Statistics { path, guard });
    }
    if let Some(path) = url_path(configure.values, "status.metrics-url")? {
        let guard = guard.clone();
        configure.add(Phase::Authorize, MetricsPage { path, guard });
    }
    if let Some(path) = url_path(configure.values, "status.status-url")? {
        let can_sort = configure.values.bool("status.enable-sort").unwrap_or(true);
        let guard = guard.clone();
        let page = StatusPage {
            path,
            guard,
            can_sort,
        };
        configure.add(Phase::Authorize, page);
    }
    if let Some(path) = url_path(configure.values, "status.config-url")? {
        configure.add(Phase::Authorize, ConfigPage { path, guard });
    }
    Ok(())
}

/// The status as JSON, for `petrel top`. Takes milliseconds.
///
/// # Errors
/// It cannot be written as JSON.
pub fn json(shared: &Arc<Shared>) -> Result<Vec<u8>, String> {
    json::page(shared)
}

/// The status page of `json` as files: a page that does not change, and its style. For pictures of it.
///
/// # Errors
/// It is not the JSON of a status.
pub fn still(json: &str) -> Result<Vec<(&'static str, String)>, String> {
    pages::still(json)
}

/// The URL path that is the value of `name`.
fn url_path(values: &Values<'_>, name: &str) -> Result<Option<Box<[u8]>>, Diagnostic> {
    match values.string(name) {
        Some(path) if !path.starts_with('/') => {
            let error = values.error(name, format!("{name} takes a URL path"));
            Err(error.with_hint("begin it with a slash, for example \"/counters\""))
        }
        path => Ok(path.map(|path| path.as_bytes().into())),
    }
}

/// Whether `exchange` asks for the page at `path`.
fn is_for(exchange: &Exchange, path: &[u8]) -> bool {
    let request = &exchange.request;
    request.url.path() == path
        && matches!(request.method, Method::Get | Method::Head)
        // Else a gateway that is listed before has claimed the request.
        && !exchange.physical.is_virtual
}

struct Statistics {
    path: Box<[u8]>,
    guard: PageGuard,
}

impl Hook for Statistics {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        if !is_for(exchange, &self.path) {
            return Outcome::Next;
        }
        if !self.guard.admits(exchange) {
            return exchange.fail_by_page(CauseCode::StatusDenied, Status::FORBIDDEN);
        }
        let text = text(&exchange.worker);
        exchange.response.answer(Status::OK);
        exchange.response.set("Content-Type", b"text/plain");
        exchange.response.set("Cache-Control", b"no-store");
        exchange.response.body = text.into_bytes().into();
        Outcome::Answer
    }
}

struct MetricsPage {
    path: Box<[u8]>,
    guard: PageGuard,
}

impl Hook for MetricsPage {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        if !is_for(exchange, &self.path) {
            return Outcome::Next;
        }
        if !self.guard.admits(exchange) {
            return exchange.fail_by_page(CauseCode::StatusDenied, Status::FORBIDDEN);
        }
        match exchange.request.url.query() {
            b"json" => json::answer(exchange),
            _ => metrics::answer(exchange),
        }
    }
}

fn text(worker: &Worker) -> String {
    let mut counters = BTreeMap::new();
    for read in COUNTERS {
        read(worker.shared(), &mut counters);
    }
    gateway::counters::read(worker.shared(), &mut counters);
    magnet::read_counters(worker.shared(), &mut counters);
    counters.extend(io_counters::read(worker));
    let mut text = String::new();
    for (name, count) in counters {
        // A label of the configuration may contain anything, but must not break the line.
        let name = name.replace(char::is_control, " ");
        writeln!(text, "{name}: {count}").expect("writing to a string");
    }
    text
}

/// The number of requests is that of the last full second.
fn of_server(shared: &Shared, counters: &mut BTreeMap<String, u64>) {
    for (name, count) in [
        ("server.connections", shared.connections() as u64),
        ("server.connections-max", shared.connections_max() as u64),
        ("server.requests", shared.requests()),
        ("server.uptime", shared.uptime().as_secs()),
    ] {
        counters.insert(name.to_owned(), count);
    }
    for (name, count) in shared.tls_counts().all() {
        counters.insert(name.to_owned(), count);
    }
    counters.extend(shared.http2().read());
    for (code, count) in shared.causes().read() {
        counters.insert(format!("cause.{}", code.name()), count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Tree, refusal};
    use crate::{access, gateway};

    const CONFIG: &str = "status.allow = ( \"127.0.0.1\" )\n\
        status.statistics-url = \"/counters\"\n\
        $HTTP[\"querystring\"] == \"secret\" { url.access-deny = ( \"\" ) }";

    #[test]
    fn counters_are_sorted_lines_of_text() {
        let tree = Tree::new(&[("counters", "a file")]);
        let site = tree.site(CONFIG, &[&MODULE]);
        let answer = site.get("/counters");
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.field("Content-Type").as_deref(), Some("text/plain"));
        let text = String::from_utf8(answer.body().to_vec()).expect("it is text");
        let names: Vec<&str> = text
            .lines()
            .map(|line| line.split_once(": ").expect("a name and a value").0)
            .collect();
        assert!(names.is_sorted(), "{text}");
        for name in [
            "server.requests",
            "server.uptime",
            "tls.handshakes-resumed",
            "gw.active-requests",
            "server.io.auto.async-read",
            "server.io.stat.queued",
        ] {
            assert!(names.contains(&name), "{text}");
        }
    }

    #[test]
    fn failed_requests_are_counted_by_their_causes() {
        let tree = Tree::new(&[("a.txt", "a file")]);
        let site = tree.site(CONFIG, &[&access::MODULE, &MODULE]);
        for target in ["/missing", "/missing", "/a.txt?secret"] {
            site.get(target);
        }
        let answer = site.get("/counters");
        let text = String::from_utf8(answer.body().to_vec()).expect("it is text");
        for line in ["cause.file-missing: 2\n", "cause.access-denied: 1\n"] {
            assert!(text.contains(line), "{text}");
        }
        assert_eq!(text.matches("cause.").count(), 2, "{text}");
    }

    #[test]
    fn only_its_url_is_taken_and_rules_count_that_are_listed_before() {
        let tree = Tree::new(&[("counters.txt", "a file")]);
        let site = tree.site(CONFIG, &[&access::MODULE, &MODULE]);
        assert_eq!(site.get("/counters/").status(), 404);
        assert_eq!(site.get("/counters?secret").status(), 403);
        let behind = tree.site(CONFIG, &[&MODULE, &access::MODULE]);
        assert_eq!(behind.get("/counters?secret").status(), 200);
        let post = "POST /counters HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
        assert_ne!(site.request(post).status(), 200);
    }

    #[tokio::test(flavor = "local")]
    async fn a_gateway_that_is_listed_before_has_its_urls() {
        let tree = Tree::new(&[]);
        let config = format!(
            "{CONFIG}\nscgi.server = ( \"/\" => (( \"socket\" => \"ROOT/none\", \"check-local\" => \"disable\" )) )"
        );
        for (modules, status) in [
            ([&gateway::SCGI, &MODULE], 503),
            ([&MODULE, &gateway::SCGI], 200),
        ] {
            let site = tree.site(&config, &modules);
            assert_eq!(site.get_async("/counters").await.status(), status);
        }
    }

    #[test]
    fn a_url_that_is_no_path_is_refused() {
        let message = refusal("status.statistics-url = \"counters\"", &[&MODULE]);
        assert!(message.contains("takes a URL path"), "{message}");
    }
}
