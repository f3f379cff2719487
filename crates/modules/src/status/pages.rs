//! `status.status-url` and `status.config-url`: the status page with its style and script, the same as text
//! and as JSON, and the page about the configuration.
//!
//! All of them are made on a thread for computing and at most once a second each (`shared_page`), however many
//! clients ask. Only the beginning of the page is made for each client.

use std::sync::{Arc, LazyLock};

use bytes::Bytes;

use petrel_engine::Exchange;
use petrel_engine::cause::CauseCode;
use petrel_engine::module::{Hook, Outcome};
use petrel_engine::proto::request_head::KnownField;
use petrel_engine::proto::status::Status;
use petrel_engine::shared::Shared;

use super::guard::PageGuard;
use super::model::Status as Model;
use super::page::{self, PageOptions};
use super::shared_page::{self, MakePage, put};
use super::{config_page, is_for, json as status_json, lighttpd};

/// `status.status-url`.
pub(super) struct StatusPage {
    pub(super) path: Box<[u8]>,
    pub(super) guard: PageGuard,
    pub(super) can_sort: bool,
}

/// `status.config-url`.
pub(super) struct ConfigPage {
    pub(super) path: Box<[u8]>,
    pub(super) guard: PageGuard,
}

impl Hook for StatusPage {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        if !is_for(exchange, &self.path) {
            return Outcome::Next;
        }
        if !self.guard.admits(exchange) {
            return exchange.fail_by_page(CauseCode::StatusDenied, Status::FORBIDDEN);
        }
        let query = String::from_utf8_lossy(exchange.request.url.query());
        let words = || query.split('&');
        let has = |name: &str| words().any(|word| word.split('=').next() == Some(name));
        if let Some(asset) = ASSETS.iter().find(|asset| has(asset.name)) {
            return asset.answer(exchange);
        }
        // The order is lighttpd's.
        if has("auto") {
            return shared_page::answer(exchange, text, "text/plain", String::new());
        }
        if has("json") {
            let make = status_json::page_of_lighttpd;
            return shared_page::answer(exchange, make, "application/json", String::new());
        }
        let head = page::head(&PageOptions {
            host: &host_of(exchange),
            every_s: words().find_map(seconds_in).unwrap_or(1),
            version: ASSET_VERSION.as_str(),
        });
        let rest: MakePage = match self.can_sort {
            true => sortable,
            false => unsortable,
        };
        shared_page::answer(exchange, rest, HTML, head)
    }
}

impl Hook for ConfigPage {
    fn run(&self, exchange: &mut Exchange) -> Outcome {
        if !is_for(exchange, &self.path) {
            return Outcome::Next;
        }
        if !self.guard.admits(exchange) {
            return exchange.fail_by_page(CauseCode::StatusDenied, Status::FORBIDDEN);
        }
        let page = config_page::write(&exchange.worker);
        put(exchange, HTML, Bytes::from(page));
        Outcome::Answer
    }
}

/// The requested host, for the title.
fn host_of(exchange: &Exchange) -> String {
    let host = exchange.request.head.field(KnownField::Host);
    String::from_utf8_lossy(host.unwrap_or_default()).into_owned()
}

/// `refresh=N`, as in lighttpd.
fn seconds_in(word: &str) -> Option<u32> {
    let seconds = word.strip_prefix("refresh=")?.parse().ok()?;
    Some(u32::clamp(seconds, 1, REFRESH_S_MAX))
}

/// Style, script or icon of the page.
struct Asset {
    /// The query that asks for it.
    name: &'static str,
    content_type: &'static str,
    content: &'static str,
}

impl Asset {
    fn answer(&self, exchange: &mut Exchange) -> Outcome {
        put(
            exchange,
            self.content_type,
            Bytes::from_static(self.content.as_bytes()),
        );
        // The query has their version.
        exchange
            .response
            .set("Cache-Control", b"private, max-age=31536000, immutable");
        Outcome::Answer
    }
}

const ASSETS: [Asset; 3] = [
    Asset {
        name: "style",
        content_type: "text/css; charset=utf-8",
        content: include_str!("page/style.css"),
    },
    Asset {
        name: "script",
        content_type: "text/javascript; charset=utf-8",
        content: include_str!("page/script.js"),
    },
    Asset {
        name: "icon",
        content_type: "image/svg+xml",
        content: include_str!("page/icon.svg"),
    },
];

/// Changes with the contents of the assets, so that a browser may keep them for a year.
static ASSET_VERSION: LazyLock<String> = LazyLock::new(|| {
    let mut hash = crc32fast::Hasher::new();
    for asset in &ASSETS {
        hash.update(asset.content.as_bytes());
    }
    format!("{:08x}", hash.finalize())
});

/// See [`still`](super::still).
pub(super) fn still(json: &str) -> Result<Vec<(&'static str, String)>, String> {
    let status = Model::parse(json)?;
    let version = ASSET_VERSION.as_str();
    let head = page::head(&PageOptions {
        host: "www.example.org",
        every_s: 1,
        version,
    });
    let files = ASSETS.iter().filter(|asset| asset.name == "style");
    let mut written = Vec::new();
    let mut page = head + &page::rest(&status, true);
    page = page.replace(&format!("?script={version}"), "data:,");
    for asset in files {
        page = page.replace(&format!("?{}={version}", asset.name), "style.css");
        written.push(("style.css", asset.content.to_owned()));
    }
    written.push(("index.html", page));
    Ok(written)
}

fn text(shared: &Arc<Shared>) -> Result<Vec<u8>, String> {
    let metrics = shared.metrics();
    let totals = status_json::totals(shared, &metrics.workers(), &metrics.routes());
    Ok(lighttpd::text(&totals, shared.uptime().as_secs()).into_bytes())
}

fn sortable(shared: &Arc<Shared>) -> Result<Vec<u8>, String> {
    Ok(page::rest(&status_json::status(shared), true).into_bytes())
}

fn unsortable(shared: &Arc<Shared>) -> Result<Vec<u8>, String> {
    Ok(page::rest(&status_json::status(shared), false).into_bytes())
}

const HTML: &str = "text/html; charset=utf-8";
/// The longest time between two refreshes that `?refresh=N` can ask for, an hour.
const REFRESH_S_MAX: u32 = 3_600;

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use futures_util::future::join_all;
    use petrel_engine::exchange::Peer;
    use petrel_engine::testing::Site;

    use super::super::MODULE;

    const CONFIG: &str = "status.allow = ( \"127.0.0.1\" )\nstatus.status-url = \"/server-status\"\nstatus.config-url = \"/server-config\"\n";

    fn site(more: &str) -> Site {
        Site::new(&format!("{CONFIG}{more}"), &[&MODULE])
    }

    async fn text(site: &Site, url: &str) -> String {
        let answer = site.get_async(url).await;
        String::from_utf8(answer.body().to_vec()).expect("UTF-8")
    }

    #[tokio::test(flavor = "local")]
    async fn the_page_comes_with_its_style_and_script_and_nothing_else() {
        let site = site("");
        let answer = site.get_async("/server-status").await;
        assert_eq!(answer.status(), 200);
        let policy = answer.field("Content-Security-Policy").expect("a policy");
        assert!(policy.starts_with("default-src 'none';"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.field("Cache-Control").as_deref(), Some("no-store"));
        let page = String::from_utf8(answer.body().to_vec()).expect("UTF-8");
        for (name, content_type) in [
            ("style", "text/css; charset=utf-8"),
            ("script", "text/javascript; charset=utf-8"),
            ("icon", "image/svg+xml"),
        ] {
            let begin = format!("\"?{name}=");
            let (_, rest) = page.split_once(&begin).expect("it is linked");
            let (version, _) = rest.split_once('"').expect("a quoted URL");
            let asset = site
                .get_async(&format!("/server-status?{name}={version}"))
                .await;
            assert_eq!(asset.field("Content-Type").as_deref(), Some(content_type));
            let kept = asset.field("Cache-Control").expect("a rule");
            assert!(kept.contains("immutable"), "{kept}");
        }
    }

    #[tokio::test(flavor = "local")]
    async fn a_hundred_clients_at_once_get_each_form() {
        let site = site("status.metrics-url = \"/metrics\"");
        for form in [
            "/server-status",
            "/server-status?refresh=7",
            "/server-status?auto",
            "/server-status?json",
            "/metrics",
            "/metrics?json",
        ] {
            let requests = (0..100).map(|number| {
                let head = format!("GET {form} HTTP/1.1\r\nHost: host{number}.example\r\n\r\n");
                let site = &site;
                async move { site.request_async(&head).await }
            });
            for (number, answer) in join_all(requests).await.iter().enumerate() {
                assert_eq!(answer.status(), 200, "{form}");
                let body = String::from_utf8_lossy(answer.body());
                let title = format!("<title>host{number}.example – Petrel</title>");
                let is_page = answer.field("Content-Type").as_deref() == Some(super::HTML);
                assert!(!is_page || body.contains(&title), "{body}");
                for (name, value) in [
                    ("X-Content-Type-Options", "nosniff"),
                    ("Cross-Origin-Resource-Policy", "same-origin"),
                    ("X-Frame-Options", "DENY"),
                    ("Cache-Control", "no-store"),
                    ("Vary", "Accept"),
                ] {
                    assert_eq!(answer.field(name).as_deref(), Some(value), "{form}");
                }
                let policy = answer.field("Content-Security-Policy").expect("a policy");
                assert!(
                    policy.starts_with("default-src 'none';"),
                    "{form}: {policy}"
                );
            }
        }
    }

    #[tokio::test(flavor = "local")]
    async fn monitors_get_text_and_json() {
        let site = site("");
        let text = site.get_async("/server-status?auto").await;
        assert_eq!(text.field("Content-Type").as_deref(), Some("text/plain"));
        let text = String::from_utf8(text.body().to_vec()).expect("UTF-8");
        let names: Vec<_> = text
            .lines()
            .filter_map(|line| line.split_once(": "))
            .collect();
        let names: Vec<_> = names.into_iter().map(|(name, _)| name).collect();
        assert_eq!(
            names,
            [
                "Total Accesses",
                "Total kBytes",
                "Uptime",
                "BusyServers",
                "IdleServers",
                "Scoreboard"
            ]
        );
        let json = site.get_async("/server-status?json").await;
        let json: serde_json::Value = serde_json::from_slice(json.body()).expect("JSON");
        assert_eq!(json["RequestsTotal"], 1);
        assert_eq!(json["format"], 1);
    }

    #[tokio::test(flavor = "local")]
    async fn the_page_about_the_configuration_lists_the_modules() {
        let page = text(&site(""), "/server-config").await;
        assert!(
            page.contains("<td><b>Loaded Modules</b></td><td>status</td>"),
            "{page}"
        );
    }

    #[tokio::test(flavor = "local")]
    async fn strangers_and_forwarded_requests_get_403() {
        let config = CONFIG.replace("127.0.0.1", "192.0.2.0/24");
        let mut site = Site::new(&config, &[&MODULE]);
        let forwarded =
            "GET /server-status HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 127.0.0.1\r\n\r\n";
        assert_eq!(site.request_async(forwarded).await.status(), 403);
        for (address, status) in [("198.51.100.1:1", 403), ("192.0.2.1:1", 200)] {
            let address: SocketAddr = address.parse().expect("an address");
            let mut facts = site.connection();
            facts.peer = Peer::Ip(address);
            site.set_connection(facts);
            for url in [
                "/server-status",
                "/server-status?json",
                "/server-status?auto",
                "/server-status?script=1",
                "/server-config",
            ] {
                assert_eq!(
                    site.get_async(url).await.status(),
                    status,
                    "{address} {url}"
                );
            }
        }
    }

    #[tokio::test(flavor = "local")]
    async fn refresh_and_sorting_are_as_the_client_and_the_configuration_want() {
        let page = text(&site(""), "/server-status?refresh=30").await;
        assert!(
            page.contains("content=\"30\"") && page.contains("data-every=\"30\""),
            "{page}"
        );
        assert!(page.contains(" data-sort"));
        let still = site("status.enable-sort = \"disable\"");
        let page = text(&still, "/server-status?refresh=0").await;
        assert!(
            page.contains("data-every=\"1\"") && !page.contains(" data-sort"),
            "{page}"
        );
    }
}
