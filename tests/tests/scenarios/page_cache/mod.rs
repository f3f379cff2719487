//! The page cache in front of backends that count their requests, in a server with two workers.

mod crowds;
mod restarts;
mod second_tier;
mod stale;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use petrel_tests::{Backend, Builder, Exchange, Response, Server, Speaks};

/// A backend and how many requests it received.
struct Counted {
    backend: Backend,
    count: Arc<AtomicUsize>,
}

impl Counted {
    /// A backend that answers as `script` does.
    fn start(script: impl Fn(&mut Exchange<'_>, usize) + Send + Sync + 'static) -> Counted {
        let count = Arc::new(AtomicUsize::new(0));
        let counting = Arc::clone(&count);
        let backend = Backend::start(Speaks::FastCgi, move |exchange| {
            let number = counting.fetch_add(1, Ordering::SeqCst) + 1;
            script(exchange, number);
        });
        Counted { backend, count }
    }

    /// A backend whose pages are fresh for a minute and contain the number of the request.
    fn fresh(pause: Duration) -> Counted {
        Counted::start(move |exchange, number| {
            exchange.read_body();
            exchange.pause(pause);
            let body = format!("page {number}");
            exchange.answer(200, &[("Cache-Control", "max-age=60")], body);
        })
    }

    fn asked(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// A server with the cache in front of it.
    fn cached(&self) -> Builder {
        Server::build()
            .file("www/index.html", "hello")
            .config("server.modules = (\"mod_page_cache\", \"mod_fastcgi\", \"mod_status\")")
            .config("page-cache.enable = \"enable\"")
            .config("status.statistics-url = \"/counters\"")
            .config(
                &self
                    .backend
                    .directive("/app", "\"check-local\" => \"disable\""),
            )
    }
}

/// The response to a request for the same page, whichever server gets it.
fn ask(server: &Server, target: &str, more: &str) -> Response {
    let head = format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{more}\r\n");
    server.exchange(head)
}

/// A counter of the server; 0 if there is none.
fn counter(server: &Server, name: &str) -> u64 {
    let text = server.get("/counters").text();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name}: ")));
    line.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// What the cache reports that it did, without the remaining time.
fn status(response: &Response) -> String {
    let status = response.field("Cache-Status").unwrap_or_default();
    let parts = status.split("; ").filter(|part| !part.starts_with("ttl="));
    parts.collect::<Vec<_>>().join("; ")
}
