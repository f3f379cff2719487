//! Several backends for the same URLs, and limits on the load of each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use petrel_tests::{Backend, Client, Deaf, SOON, Server, Speaks, directive, eventually};

use crate::gateway::crowds::held;
use crate::gateway::{KEY, OPTIONS, in_front_of_all};

/// A backend that returns its name.
fn named(name: &'static str) -> Backend {
    Backend::start(Speaks::FastCgi, move |exchange| exchange.say(name))
}

/// How many of the targets each backend answered.
fn asked(server: &Server, targets: impl Iterator<Item = String>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for target in targets {
        let response = server.get(&target);
        assert_eq!(response.status, 200, "{response}");
        *counts.entry(response.text()).or_insert(0) += 1;
    }
    counts
}

#[test]
fn round_robin_takes_turns() {
    let (a, b, c) = (named("a"), named("b"), named("c"));
    let server = in_front_of_all(Speaks::FastCgi, &[&a, &b, &c], "")
        .config("fastcgi.balance = \"round-robin\"")
        .start();
    let counts = asked(&server, (0..30).map(|_| "/app/".to_owned()));
    // A request that waits for one of them that is slow goes to another one.
    assert!(
        counts.len() == 3 && counts.values().all(|count| (8..=12).contains(count)),
        "{counts:?}"
    );
}

#[test]
fn a_hash_keeps_a_url_where_it_is() {
    let (a, b) = (named("a"), named("b"));
    let server = in_front_of_all(Speaks::FastCgi, &[&a, &b], "")
        .config("fastcgi.balance = \"hash\"")
        .start();
    for number in 0..20 {
        let target = format!("/app/page-{number}");
        let counts = asked(&server, (0..4).map(|_| target.clone()));
        assert_eq!(counts.len(), 1, "{target}: {counts:?}");
    }
    let counts = asked(&server, (0..60).map(|number| format!("/app/page-{number}")));
    assert!(
        counts.len() == 2 && counts.values().all(|count| *count > 9),
        "{counts:?}"
    );
}

#[test]
fn a_hash_moves_few_urls_when_a_backend_is_added() {
    let (a, b, c) = (named("a"), named("b"), named("c"));
    let place = |backends: &[&Backend]| -> Vec<String> {
        let server = in_front_of_all(Speaks::FastCgi, backends, "")
            .config("fastcgi.balance = \"hash\"")
            .start();
        let pages = (0..90).map(|number| server.get(&format!("/app/{number}")).text());
        pages.collect()
    };
    let (two, three) = (place(&[&a, &b]), place(&[&a, &b, &c]));
    let moved = two.iter().zip(&three).filter(|(before, now)| before != now);
    for (before, now) in moved.clone() {
        assert_eq!(now, "c", "it moved from {before} for nothing");
    }
    assert!((10..60).contains(&moved.count()));
}

#[test]
fn sticky_keeps_a_client_where_it_is() {
    let (a, b) = (named("a"), named("b"));
    let server = in_front_of_all(Speaks::FastCgi, &[&a, &b], "")
        .config("fastcgi.balance = \"sticky\"")
        .start();
    let counts = asked(&server, (0..20).map(|number| format!("/app/{number}")));
    assert_eq!(counts.len(), 1, "{counts:?}");
}

#[test]
fn the_shortest_queue_gets_the_next_request() {
    let busy = Arc::new(AtomicBool::new(true));
    let still = Arc::clone(&busy);
    let script = move |name: &'static str| {
        let still = Arc::clone(&still);
        Backend::start(Speaks::FastCgi, move |exchange| {
            while exchange.target().ends_with("slow") && still.load(Ordering::SeqCst) {
                exchange.pause(Duration::from_millis(2));
            }
            exchange.say(name);
        })
    };
    let (a, b) = (script("a"), script("b"));
    let server = in_front_of_all(Speaks::FastCgi, &[&a, &b], "").start();
    let mut slow: Vec<Client> = (0..6).map(|_| server.client()).collect();
    for (number, client) in slow.iter_mut().enumerate() {
        client.send("GET /app/slow HTTP/1.1\r\nHost: a\r\n\r\n");
        // Two workers that choose at the same moment choose the same backend.
        let came = || a.requests().len() + b.requests().len() == number + 1;
        assert!(eventually(came), "{number}");
    }
    // A request that waits for one of them that is slow goes to the other one.
    let counts = [&a, &b].map(|backend| backend.requests().len());
    assert!(counts.iter().all(|count| *count >= 2), "{counts:?}");
    busy.store(false, Ordering::SeqCst);
    for mut client in slow {
        assert_eq!(client.response().status, 200);
    }
}

#[test]
fn a_dead_backend_is_left_out_for_disable_time() {
    for balance in ["fair", "round-robin", "hash"] {
        let (mut a, b) = (named("a"), named("b"));
        let server = in_front_of_all(Speaks::FastCgi, &[&a, &b], "\"disable-time\" => 1, ")
            .config(&format!("fastcgi.balance = \"{balance}\""))
            .start();
        asked(&server, (0..10).map(|number| format!("/app/{number}")));
        a.stop();
        let counts = asked(&server, (0..30).map(|number| format!("/app/{number}")));
        assert_eq!(counts.get("b"), Some(&30), "{balance}: {counts:?}");
        let complaints = server
            .log()
            .matches(a.name().trim_start_matches("unix:"))
            .count();
        assert!((1..20).contains(&complaints), "{balance}: {}", server.log());
        a.restart();
        let begin = Instant::now();
        let mut number = 0;
        let is_back = || {
            number += 1;
            server.get(&format!("/app/{number}")).text() == "a"
        };
        assert!(eventually(is_back), "{balance}: it does not come back");
        assert!(begin.elapsed() < SOON, "{balance}");
    }
}

#[test]
fn without_a_backend_that_lives_it_is_503_until_one_does() {
    let mut a = named("a");
    a.stop();
    let server = in_front_of_all(Speaks::FastCgi, &[&a], "\"disable-time\" => 1, ").start();
    for _ in 0..5 {
        let response = server.get("/app/");
        assert!(matches!(response.status, 502 | 503), "{response}");
        assert_eq!(server.get("/").text(), "hello");
    }
    a.restart();
    assert!(eventually(|| server.get("/app/").text() == "a"));
}

#[test]
fn a_backend_that_does_not_accept_is_a_504_or_another_backends_answer() {
    let deaf = Deaf::new();
    let living = Backend::start(Speaks::FastCgi, |exchange| exchange.say("living"));
    let hosts = format!("( {}, \"connect-timeout\" => 1, {OPTIONS} )", deaf.host());
    let build = |hosts: &str| {
        Server::build()
            .file("www/index.html", "hello")
            .config("server.max-worker = 1")
            .config("server.modules += ( \"mod_fastcgi\" )")
            .config("fastcgi.balance = \"round-robin\"")
            .config(&format!("fastcgi.server = ( \"{KEY}\" => ( {hosts} ) )"))
            .start()
    };
    let server = build(&hosts);
    let begin = Instant::now();
    let response = server.get("/app/");
    assert!(matches!(response.status, 503 | 504), "{response}");
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    let server = build(&format!("{hosts}, ( {}, {OPTIONS} )", living.host()));
    for _ in 0..6 {
        assert_eq!(server.get("/app/").text(), "living");
    }
}

/// A backend that counts its concurrent requests, and a server in front of it with 1.5's `proxy-core`
/// options.
fn crowded(options: &str) -> (Backend, Arc<AtomicUsize>, Server) {
    let most = Arc::new(AtomicUsize::new(0));
    let now = AtomicUsize::new(0);
    let seen = Arc::clone(&most);
    let backend = Backend::start(Speaks::FastCgi, move |exchange| {
        let present = now.fetch_add(1, Ordering::SeqCst) + 1;
        seen.fetch_max(present, Ordering::SeqCst);
        exchange.read_body();
        exchange.pause(Duration::from_millis(30));
        now.fetch_sub(1, Ordering::SeqCst);
        exchange.say("done");
    });
    let server = with_pool(&backend, 2, options);
    (backend, most, server)
}

fn with_pool(backend: &Backend, workers: u32, options: &str) -> Server {
    Server::build()
        .config(&format!("server.max-worker = {workers}"))
        .config("server.modules += ( \"mod_proxy_core\", \"mod_proxy_backend_fastcgi\" )")
        .config("proxy-core.protocol = \"fastcgi\"")
        .config(&format!("proxy-core.backends = ( \"{}\" )", backend.name()))
        .config(options)
        .start()
}

/// The statuses that many concurrent clients get.
fn crowd(server: &Server, count: usize) -> Vec<u16> {
    let mut clients: Vec<Client> = (0..count).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    let statuses = clients.iter_mut().map(|client| client.response().status);
    statuses.collect()
}

#[test]
fn max_pool_size_is_a_limit_of_all_workers_together() {
    let (backend, most, server) = crowded("proxy-core.max-pool-size = 3");
    let statuses = crowd(&server, 40);
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    assert!(most.load(Ordering::SeqCst) <= 3, "{most:?} at a time");
    assert!(backend.open_connections() <= 3);
}

#[test]
fn a_client_that_leaves_the_queue_costs_nothing() {
    let (backend, go_on) = held();
    // Each worker has a socket of its own to ask the kernel, from its first request to a backend on.
    let server = with_pool(&backend, 1, "proxy-core.max-pool-size = 1");
    let mut first = server.client();
    first.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    backend.expect_requests(1);
    let sockets = || server.holdings().descriptors["socket"];
    let before = sockets();
    for _ in 0..20 {
        let mut client = server.client();
        client.send("GET /left HTTP/1.1\r\nHost: a\r\n\r\n");
        std::thread::sleep(Duration::from_micros(500));
        client.abort();
    }
    assert!(eventually(|| sockets() == before), "{}", sockets());
    go_on.store(true, Ordering::SeqCst);
    assert_eq!(first.response().status, 200);
    assert_eq!(server.get("/").status, 200);
    assert_eq!(backend.requests().len(), 2);
}

#[test]
fn a_weight_is_a_share() {
    let (a, b) = (named("a"), named("b"));
    let server = Server::build()
        .config("server.max-worker = 1")
        .config("server.modules += ( \"mod_fastcgi\" )")
        .config("fastcgi.balance = \"round-robin\"")
        .config(&format!(
            "fastcgi.server = ( \"{KEY}\" => ( ( {}, \"weight\" => 3, {OPTIONS} ), \
             ( {}, {OPTIONS} ) ) )",
            a.host(),
            b.host()
        ))
        .start();
    let counts = asked(&server, (0..40).map(|_| "/app/".to_owned()));
    // A request that waits for the one of them that starts slowly goes to the other one.
    let of_a = counts.get("a").copied().unwrap_or_default();
    assert!((28..=32).contains(&of_a), "{counts:?}");
}

#[test]
fn a_health_check_brings_a_backend_back_before_a_request_needs_it() {
    let (mut a, b) = (named("a"), named("b"));
    let options = "\"disable-time\" => 600, \"health-check-path\" => \"/health\", \
        \"health-check-interval\" => 1, ";
    let server = in_front_of_all(Speaks::FastCgi, &[&a, &b], options)
        .config("fastcgi.balance = \"round-robin\"")
        .start();
    asked(&server, (0..4).map(|_| "/app/".to_owned()));
    a.stop();
    let counts = asked(&server, (0..10).map(|_| "/app/".to_owned()));
    assert_eq!(counts.get("b"), Some(&10), "{counts:?}");
    a.restart();
    assert!(
        eventually(|| server.get("/app/").text() == "a"),
        "it does not come back"
    );
}

#[test]
fn directives_of_several_protocols_stand_side_by_side() {
    let fastcgi = Backend::start(Speaks::FastCgi, |exchange| exchange.say("fastcgi"));
    let scgi = Backend::start(Speaks::Scgi, |exchange| exchange.say("scgi"));
    let http = Backend::start(Speaks::Http, |exchange| exchange.say("http"));
    let server = Server::build()
        .file("www/index.html", "hello")
        .config(&directive(
            Speaks::FastCgi,
            "/fastcgi",
            &[&fastcgi],
            OPTIONS,
        ))
        .config(&directive(Speaks::Scgi, ".scgi", &[&scgi], OPTIONS))
        .config(&format!(
            "$HTTP[\"host\"] == \"proxied\" {{ proxy.server = ( \"\" => (( {} )) ) }}",
            http.host()
        ))
        .config("server.modules += ( \"mod_proxy\" )")
        .start();
    assert_eq!(server.get("/fastcgi/x").text(), "fastcgi");
    assert_eq!(server.get("/a/b.scgi").text(), "scgi");
    assert_eq!(server.get("/").text(), "hello");
    let proxied = server.exchange("GET / HTTP/1.1\r\nHost: proxied\r\n\r\n");
    assert_eq!(proxied.text(), "http");
}
