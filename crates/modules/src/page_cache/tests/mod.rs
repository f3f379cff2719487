//! The whole cache in a site without sockets, with a backend that answers as a test tells it to.

mod backend;
mod below;
mod conditions;
mod fresh;
mod purges;
mod scripts;
mod stale;
mod unshared;

use petrel_engine::testing::{Answer, Site};

use super::{MODULE, PageCache};
use backend::BACKEND;

const ENABLED: &str = "server.document-root = \"/nonexistent\"\npage-cache.enable = \"enable\"\n";

/// A site whose backend answers as [`backend::say`] was told, and whose wall clock stands still.
fn site(config: &str) -> Site {
    backend::forget();
    let site = Site::new(&format!("{ENABLED}{config}"), &[&MODULE, &BACKEND]);
    later(&site, 0);
    site
}

fn get(site: &Site, target: &str, fields: &str) -> Answer {
    site.request(&format!(
        "GET {target} HTTP/1.1\r\nHost: a.example\r\n{fields}\r\n"
    ))
}

/// The Cache-Status of an answer, without the remaining time.
fn status(answer: &Answer) -> String {
    let status = answer.field("Cache-Status").unwrap_or_default();
    let parts = status.split("; ").filter(|part| !part.starts_with("ttl="));
    parts.collect::<Vec<_>>().join("; ")
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(answer.body()).into_owned()
}

/// Moves the wall clock forward.
fn later(site: &Site, seconds: u64) {
    let by = std::time::Duration::from_secs(seconds);
    site.worker().clock().skip(by);
}

fn count(site: &Site, name: &str) -> u64 {
    let mut counters = std::collections::BTreeMap::new();
    super::counters::read(site.worker().shared(), &mut counters);
    counters
        .get(name)
        .copied()
        .unwrap_or_else(|| panic!("no counter {name}"))
}
