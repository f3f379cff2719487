//! Backends that refresh a page slowly, or do not answer any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use petrel_tests::eventually;

use crate::page_cache::{Counted, counter, status};

#[test]
fn a_stale_page_is_sent_at_once_and_fetched_in_the_background() {
    let go_on = Arc::new(AtomicBool::new(false));
    let may_go_on = Arc::clone(&go_on);
    let counted = Counted::start(move |exchange, number| {
        let age = match number {
            1 => 3,
            _ => 600,
        };
        while number > 1 && !may_go_on.load(Ordering::SeqCst) {
            exchange.pause(Duration::from_millis(2));
        }
        let control = format!("max-age={age}, stale-while-revalidate=600");
        exchange.answer(
            200,
            &[("Cache-Control", &control)],
            format!("page {number}"),
        );
    });
    let server = counted.cached().start();
    server.get("/app/x");
    std::thread::sleep(Duration::from_millis(4100));
    for _ in 0..5 {
        let stale = server.get("/app/x");
        assert_eq!(
            (stale.text(), status(&stale)),
            ("page 1".into(), "petrel; hit".into())
        );
    }
    go_on.store(true, Ordering::SeqCst);
    assert!(eventually(|| server.get("/app/x").text() == "page 2"));
    assert_eq!(counter(&server, "page-cache.refreshes"), 1);
    assert_eq!(counted.asked(), 2);
}

#[test]
fn when_the_backend_is_gone_its_pages_stay_for_a_while() {
    let mut counted = Counted::start(|exchange, number| {
        let fields = [("Cache-Control", "max-age=1, stale-if-error=60")];
        exchange.answer(200, &fields, format!("page {number}"));
    });
    let server = counted.cached().start();
    assert_eq!(server.get("/app/x").text(), "page 1");
    std::thread::sleep(Duration::from_millis(2100));
    counted.backend.stop();
    for _ in 0..3 {
        let stale = server.get("/app/x");
        assert_eq!(
            (stale.status, stale.text()),
            (200, "page 1".into()),
            "{stale}"
        );
    }
    assert_eq!(server.get("/app/y").status, 503);
    assert!(counter(&server, "page-cache.stale") >= 3);
    server.expect_log("backend.sock");
}

#[test]
fn a_page_is_validated_with_the_backend() {
    let counted = Counted::start(|exchange, _| {
        let fields = |control| [("Cache-Control", control), ("ETag", "\"7\"")];
        match exchange.param("HTTP_IF_NONE_MATCH") {
            "\"7\"" => exchange.answer(304, &fields("max-age=600"), ""),
            _ => exchange.answer(200, &fields("max-age=1"), "the page"),
        }
    });
    let server = counted.cached().start();
    server.get("/app/x");
    std::thread::sleep(Duration::from_millis(2100));
    let validated = server.get("/app/x");
    assert_eq!(
        (validated.status, validated.text()),
        (200, "the page".into())
    );
    assert_eq!(
        status(&validated),
        "petrel; fwd=stale; fwd-status=304; stored"
    );
    let mut client = server.client();
    let same = client.request("GET", "/app/x", &[("If-None-Match", "\"7\"")]);
    assert_eq!(same.status, 304);
    let part = client.request("GET", "/app/x", &[("Range", "bytes=4-")]);
    assert_eq!((part.status, part.text()), (206, "page".into()));
    assert_eq!(counted.asked(), 2);
}

#[test]
fn files_pass_the_cache_by() {
    let counted = Counted::fresh(Duration::ZERO);
    let server = counted.cached().start();
    for _ in 0..3 {
        let response = server.get("/index.html");
        assert_eq!(response.text(), "hello");
        assert_eq!(response.field("Cache-Status"), None);
    }
    assert_eq!(counter(&server, "page-cache.entries"), 0);
}
