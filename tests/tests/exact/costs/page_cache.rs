//! The system calls of a hit in the page cache: one receive, one send.

use petrel_tests::{Backend, Server, Speaks, Tracer};

use crate::alone;

const REQUESTS: u64 = 100;

#[test]
fn a_hit_makes_one_receive_and_one_send() {
    let _alone = alone();
    let backend = Backend::start(Speaks::FastCgi, |exchange| {
        exchange.answer(200, &[("Cache-Control", "max-age=60")], "page");
    });
    let server = Server::build()
        .config("server.modules = (\"mod_page_cache\", \"mod_fastcgi\")")
        .config("page-cache.enable = \"enable\"")
        // While there is an idle connection, the worker looks now and then whether others wait for its process.
        .config(&backend.directive(
            "/app",
            "\"check-local\" => \"disable\", \"max-keep-alive-idle\" => 0",
        ))
        .start();
    let mut client = server.client();
    for _ in 0..3 {
        client.get("/app/x");
    }
    let tracer = Tracer::attach(&server);
    for _ in 0..REQUESTS {
        let response = client.get("/app/x");
        let status = response.field("Cache-Status").unwrap_or_default();
        assert!(status.starts_with("petrel; hit"), "{status}");
    }
    let calls = tracer.stop().without_waits();
    let sent = calls.count("sendto") + calls.count("writev") + calls.count("write");
    assert_eq!(sent, REQUESTS, "{calls:?}");
    // At most one more receive, which finds nothing more.
    let received = calls.count("recvfrom") + calls.count("read");
    assert!((REQUESTS..=2 * REQUESTS).contains(&received), "{calls:?}");
    let others: u64 = calls.0.values().sum::<u64>() - sent - received;
    assert!(others <= REQUESTS / 10, "{calls:?}");
    assert_eq!(backend.requests().len(), 1);
}
