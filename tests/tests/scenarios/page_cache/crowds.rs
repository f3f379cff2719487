//! Many clients that request the same page at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use petrel_tests::{Client, Server, eventually};

use crate::page_cache::{Counted, ask, counter, status};

const SLOW: Duration = Duration::from_millis(300);

/// A backend that answers when the test says so, with pages that are fresh for a minute.
fn held() -> (Counted, Arc<AtomicBool>) {
    let go_on = Arc::new(AtomicBool::new(false));
    let may_go_on = Arc::clone(&go_on);
    let counted = Counted::start(move |exchange, number| {
        while !may_go_on.load(Ordering::SeqCst) {
            exchange.pause(Duration::from_millis(2));
        }
        let fields = [("Cache-Control", "max-age=60")];
        exchange.answer(200, &fields, format!("page {number}"));
    });
    (counted, go_on)
}

/// Waits until `count` requests wait for the response to another one.
#[track_caller]
fn expect_waiting(server: &Server, count: u64) {
    let waits = || counter(server, "page-cache.waits");
    assert!(eventually(|| waits() == count), "{} wait", waits());
}

/// Clients that have requested `target` at the same time.
fn crowd(server: &Server, target: &str, count: usize) -> Vec<Client> {
    let mut clients: Vec<Client> = (0..count).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
    }
    clients
}

#[test]
fn one_fetch_is_enough_for_all_who_wait() {
    let (counted, go_on) = held();
    let server = counted.cached().start();
    let mut clients = crowd(&server, "/app/x", 50);
    expect_waiting(&server, 49);
    std::thread::sleep(SLOW);
    go_on.store(true, Ordering::SeqCst);
    for client in &mut clients {
        let response = client.response();
        assert_eq!((response.status, response.text()), (200, "page 1".into()));
    }
    assert_eq!(counted.asked(), 1);
    assert_eq!(counter(&server, "page-cache.waits"), 49);
    assert_eq!(counter(&server, "page-cache.misses"), 1);
    assert!(counter(&server, "page-cache.backend-ms-saved") >= 49 * 250);
    let hit = ask(&server, "/app/x", "");
    assert_eq!(status(&hit), "petrel; hit");
}

#[test]
fn a_page_that_cannot_be_stored_makes_no_client_wait_twice() {
    let slow = 4 * SLOW;
    let counted = Counted::start(move |exchange, number| {
        exchange.pause(slow);
        let fields = [("Cache-Control", "max-age=60"), ("Set-Cookie", "a=b")];
        exchange.answer(200, &fields, format!("page {number}"));
    });
    let server = counted.cached().start();
    let begin = Instant::now();
    for _ in 0..2 {
        for client in &mut crowd(&server, "/app/x", 12) {
            assert_eq!(client.response().status, 200);
        }
    }
    assert_eq!(
        counted.asked(),
        24,
        "every client has got an answer of its own"
    );
    // One request waits for the first, then all go at once, twice: 5 s; one after another they would take 29
    // s.
    assert!(begin.elapsed() < 16 * slow, "{:?}", begin.elapsed());
}

#[test]
fn who_has_waited_for_too_long_goes_by_itself() {
    let go_on = Arc::new(AtomicBool::new(false));
    let may_go_on = Arc::clone(&go_on);
    let counted = Counted::start(move |exchange, number| {
        while number == 1 && !may_go_on.load(Ordering::SeqCst) {
            exchange.pause(Duration::from_millis(2));
        }
        let fields = [("Cache-Control", "max-age=60")];
        exchange.answer(200, &fields, format!("page {number}"));
    });
    let server = counted
        .cached()
        .config("page-cache.lock-timeout = 200")
        .start();
    let mut first = server.client();
    first.send("GET /app/x HTTP/1.1\r\nHost: a\r\n\r\n");
    counted.backend.expect_requests(1);
    let begin = Instant::now();
    assert_eq!(ask(&server, "/app/x", "").text(), "page 2");
    let waited = begin.elapsed();
    assert!(waited >= Duration::from_millis(200), "{waited:?}");
    go_on.store(true, Ordering::SeqCst);
    assert_eq!(first.response().text(), "page 1");
}

#[test]
fn when_the_first_one_leaves_another_fetches() {
    let (counted, go_on) = held();
    let server = counted.cached().start();
    let mut first = server.client();
    first.send("GET /app/x HTTP/1.1\r\nHost: a\r\n\r\n");
    counted.backend.expect_requests(1);
    let mut waiting = crowd(&server, "/app/x", 5);
    expect_waiting(&server, 5);
    first.abort();
    go_on.store(true, Ordering::SeqCst);
    for client in &mut waiting {
        assert_eq!(client.response().status, 200);
    }
    assert!(counted.asked() <= 2, "{}", counted.asked());
}

#[test]
fn a_page_that_is_sent_while_it_comes_is_stored_at_its_end() {
    let counted = Counted::start(|exchange, _| {
        exchange.head(200, &[("Cache-Control", "max-age=60")]);
        for _ in 0..3 {
            exchange.body(vec![b'x'; 1000]);
            exchange.pause(Duration::from_millis(50));
        }
        exchange.end();
    });
    let server = counted
        .cached()
        .config("server.stream-response-body = 2")
        .start();
    for client in &mut crowd(&server, "/app/x", 10) {
        assert_eq!(client.response().body, vec![b'x'; 3000]);
    }
    assert_eq!(counted.asked(), 1);
    assert_eq!(
        ask(&server, "/app/x", "").field("Content-Length"),
        Some("3000")
    );
}

/// The page is larger than what the kernel takes for a client that reads nothing.
#[test]
fn a_first_client_that_reads_nothing_does_not_hold_up_the_others() {
    const BYTES: usize = 16 << 20;
    for mode in [0, 1, 2] {
        let counted = Counted::start(|exchange, _| {
            exchange.answer(200, &[("Cache-Control", "max-age=60")], vec![b'x'; BYTES]);
        });
        let server = counted
            .cached()
            .config("page-cache.max-object-size = 32768")
            .config("page-cache.memory-size = 256")
            .config("page-cache.lock-timeout = 600000")
            .config(&format!("server.stream-response-body = {mode}"))
            .start();
        let mut first = server.client();
        first.send("GET /app/page HTTP/1.1\r\nHost: a\r\n\r\n");
        counted.backend.expect_requests(1);
        let second = ask(&server, "/app/page", "");
        assert_eq!((second.status, second.body.len()), (200, BYTES), "{mode}");
        assert_eq!(counted.asked(), 1, "{mode}");
        assert_eq!(first.response().body, second.body, "{mode}");
    }
}

#[test]
fn a_page_that_is_cut_short_is_not_stored() {
    let counted = Counted::start(|exchange, number| {
        if number > 1 {
            return exchange.answer(200, &[("Cache-Control", "max-age=60")], "whole");
        }
        exchange.head(
            200,
            &[("Cache-Control", "max-age=60"), ("Content-Length", "100")],
        );
        exchange.body("half");
        exchange.pause(Duration::from_millis(50));
        exchange.reset();
    });
    let server = counted
        .cached()
        .config("server.stream-response-body = 2")
        .start();
    let mut first = server.client();
    first.send("GET /app/x HTTP/1.1\r\nHost: a\r\n\r\n");
    first.read_to_end();
    assert_eq!(ask(&server, "/app/x", "").text(), "whole");
    assert_eq!(ask(&server, "/app/x", "").text(), "whole");
    assert_eq!(counted.asked(), 2);
    server.expect_log("cut short");
}

#[test]
fn variants_are_told_apart_also_by_those_who_wait() {
    let counted = Counted::start(|exchange, _| {
        exchange.pause(SLOW);
        let language = exchange.param("HTTP_ACCEPT_LANGUAGE").to_owned();
        let fields = [("Cache-Control", "max-age=60"), ("Vary", "Accept-Language")];
        exchange.answer(200, &fields, language);
    });
    let server = counted.cached().start();
    let mut clients: Vec<(Client, &str)> = ["de", "en", "de", "en", "de", "en"]
        .into_iter()
        .map(|language| (server.client(), language))
        .collect();
    for (client, language) in &mut clients {
        client.send(format!(
            "GET /app/x HTTP/1.1\r\nHost: a\r\nAccept-Language: {language}\r\n\r\n"
        ));
    }
    for (client, language) in &mut clients {
        assert_eq!(client.response().text(), *language);
    }
    assert!(counted.asked() <= 4, "{}", counted.asked());
}
