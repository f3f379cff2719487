//! The counters after a known set of requests.

use petrel_tests::{Backend, Server, Speaks, eventually};

use crate::gateway::{OPTIONS, name};

/// The counters on the page, by name.
fn counters(server: &Server) -> std::collections::BTreeMap<String, u64> {
    let page = server.get("/counters").text();
    let lines = page.lines().filter_map(|line| line.split_once(": "));
    lines
        .filter_map(|(name, value)| Some((name.to_owned(), value.trim().parse().ok()?)))
        .collect()
}

#[test]
fn requests_and_deaths_are_counted() {
    let mut backend = Backend::start(Speaks::FastCgi, |exchange| match name(exchange) {
        "slow" => {
            exchange.hang();
        }
        _ => exchange.say("counted"),
    });
    let server = Server::build()
        .config("server.max-worker = 2")
        .config("server.modules += ( \"mod_status\" )")
        .config("status.statistics-url = \"/counters\"")
        .config(&backend.directive("/app", &format!("\"disable-time\" => 60, {OPTIONS}")))
        .start();
    assert_eq!(
        counters(&server)
            .get("fastcgi.requests")
            .copied()
            .unwrap_or(0),
        0
    );
    for _ in 0..7 {
        server.get("/app/");
    }
    let now = counters(&server);
    assert_eq!(now.get("fastcgi.requests"), Some(&7), "{now:?}");
    assert_eq!(now.get("gw.active-requests"), Some(&0), "{now:?}");
    assert!(
        now.keys()
            .any(|name| name.starts_with("gw.backend.") && name.ends_with(".load"))
    );

    let mut slow = server.client();
    slow.send("GET /app/slow HTTP/1.1\r\nHost: a\r\n\r\n");
    backend.expect_requests(8);
    assert!(eventually(
        || counters(&server).get("gw.active-requests") == Some(&1)
    ));
    slow.abort();
    assert!(eventually(
        || counters(&server).get("gw.active-requests") == Some(&0)
    ));

    backend.stop();
    server.get("/app/");
    let now = counters(&server);
    let disabled = now
        .iter()
        .find(|(name, _)| name.starts_with("gw.backend.") && name.ends_with(".disabled"));
    assert_eq!(disabled.map(|(_, value)| *value), Some(1), "{now:?}");
}
