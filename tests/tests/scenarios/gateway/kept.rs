//! Persistent connections to backends, and the rule for sending a request again: nothing of its response
//! arrived, its body is still there, and it is idempotent or not one byte of it was written.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use petrel_tests::{Backend, Exchange, Speaks, eventually};

use crate::gateway::{in_front_of, in_front_of_all, in_front_of_with, name, post};

/// The protocols with persistent connections.
const KEEPERS: [Speaks; 3] = [Speaks::FastCgi, Speaks::Http, Speaks::Ajp13];

#[test]
fn one_connection_does_for_a_hundred_requests() {
    for speaks in KEEPERS {
        for backend in [
            Backend::start(speaks, |exchange| exchange.say("again")),
            Backend::start_on_tcp(speaks, |exchange| exchange.say("again")),
        ] {
            let server = in_front_of(&backend).start();
            let mut client = server.client();
            for _ in 0..50 {
                assert_eq!(client.get("/app/").text(), "again", "{speaks:?}");
                // Connections to backends belong to the server, not to a client.
                assert_eq!(server.get("/app/").text(), "again", "{speaks:?}");
            }
            assert_eq!(backend.connections(), 1, "{speaks:?}");
            assert_eq!(backend.last().before, 99, "{speaks:?}");
        }
    }
}

#[test]
fn scgi_and_uwsgi_have_a_connection_for_each_request() {
    for speaks in [Speaks::Scgi, Speaks::Uwsgi] {
        let backend = Backend::start(speaks, |exchange| exchange.say("once"));
        let server = in_front_of(&backend).start();
        for _ in 0..5 {
            assert_eq!(server.get("/app/").text(), "once");
        }
        assert_eq!(backend.connections(), 5, "{speaks:?}");
        backend.expect_open_connections(0);
    }
}

#[test]
fn fastcgi_is_asked_to_keep_connections_and_gets_valid_ids() {
    let backend = Backend::start(Speaks::FastCgi, |exchange| exchange.say("yes"));
    let server = in_front_of(&backend).start();
    for _ in 0..3 {
        server.get("/app/");
    }
    for request in backend.requests() {
        assert_eq!(request.param("(keep)"), Some("true"));
        assert_eq!(request.param("(role)"), Some("1"));
        assert_ne!(request.param("(id)"), Some("0"));
    }
}

#[test]
fn a_connection_closed_between_requests_is_not_noticed() {
    for speaks in KEEPERS {
        for backend in [
            Backend::start(speaks, |exchange| exchange.say("fine")),
            Backend::start_on_tcp(speaks, |exchange| exchange.say("fine")),
        ] {
            let server = in_front_of(&backend).start();
            for round in 0..6 {
                let response = match round % 2 {
                    0 => server.get("/app/"),
                    // Even a request that must not be sent twice is retried, because nothing was written.
                    _ => server.exchange(post("/app/", "body")),
                };
                assert_eq!(response.status, 200, "{speaks:?}: {response}");
                backend.hang_up();
                // The server needs time to notice that the connection has ended.
                backend.expect_open_connections(0);
                std::thread::sleep(Duration::from_millis(20));
            }
            assert_eq!(backend.requests().len(), 6, "{speaks:?}");
        }
    }
}

/// A backend that answers the first request of each connection, and closes the connection on the second one.
fn dies_on_the_second(speaks: Speaks) -> Backend {
    Backend::start(speaks, |exchange| {
        let body = exchange.read_body();
        match exchange.request().before {
            0 => exchange.answer(200, &[], body),
            _ => exchange.close(),
        }
    })
}

#[test]
fn an_idempotent_request_that_a_kept_connection_lost_is_sent_again() {
    for speaks in KEEPERS {
        let backend = dies_on_the_second(speaks);
        let server = in_front_of(&backend).start();
        assert_eq!(server.get("/app/").status, 200);
        assert_eq!(server.get("/app/").status, 200, "{speaks:?}");
        for method in ["PUT", "DELETE", "OPTIONS"] {
            let request = post("/app/", "body").replacen("POST", method, 1);
            let response = server.exchange(request);
            assert_eq!(response.status, 200, "{speaks:?}: {method} {response}");
            assert_eq!(response.text(), "body", "the body is sent again as well");
        }
        // Each request but the first was received twice.
        assert_eq!(backend.requests().len(), 9, "{speaks:?}");
    }
}

/// A connection that stays open for 50 ms proves that the backend keeps connections open; from then on POSTs
/// use them.
fn prove_kept() {
    std::thread::sleep(Duration::from_millis(100));
}

#[test]
fn a_post_that_a_kept_connection_lost_is_not_sent_again() {
    for speaks in KEEPERS {
        let backend = dies_on_the_second(speaks);
        let server = in_front_of(&backend).start();
        assert_eq!(server.get("/app/").status, 200);
        prove_kept();
        let response = server.exchange(post("/app/", "an order"));
        assert_eq!(response.status, 502, "{speaks:?}: {response}");
        assert_eq!(backend.requests().len(), 2, "{speaks:?}: it came once");
        // The next request uses a new connection.
        assert_eq!(server.exchange(post("/app/", "x")).status, 200);
    }
}

/// Backends that read a whole request and then reset the connection without a response, as if they had died
/// while working on it. They answer everything but `/app/work`, and `/app/second` from the second time on.
fn resets_after_its_work(speaks: Speaks) -> [Backend; 2] {
    let script = || {
        let asked = AtomicUsize::new(0);
        move |exchange: &mut Exchange<'_>| {
            exchange.read_body();
            match name(exchange) {
                "work" => exchange.reset(),
                "second" if asked.fetch_add(1, Ordering::SeqCst) == 0 => exchange.reset(),
                _ => exchange.say("fine"),
            }
        }
    };
    [
        Backend::start(speaks, script()),
        Backend::start_on_tcp(speaks, script()),
    ]
}

#[test]
fn a_post_is_not_sent_again_when_the_backend_resets_the_connection_after_its_work() {
    for speaks in Speaks::ALL {
        for backend in resets_after_its_work(speaks) {
            let server = in_front_of(&backend).start();
            // Once on a new connection, and once on a persistent one if the protocol has any.
            for _ in 0..2 {
                let before = backend.requests().len();
                let response = server.exchange(post("/app/work", "an order"));
                assert_eq!(response.status, 502, "{speaks:?}: {response}");
                assert_eq!(
                    backend.requests().len(),
                    before + 1,
                    "{speaks:?}: it ran once"
                );
                assert!(eventually(|| server.get("/app/").status == 200));
                prove_kept();
            }
        }
    }
}

#[test]
fn a_get_is_sent_again_when_the_backend_resets_the_connection_after_its_work() {
    for speaks in Speaks::ALL {
        for backend in resets_after_its_work(speaks) {
            let server = in_front_of(&backend).start();
            assert_eq!(server.get("/app/second").text(), "fine", "{speaks:?}");
            assert_eq!(backend.requests().len(), 2, "{speaks:?}");
        }
    }
}

#[test]
fn a_post_of_which_a_part_was_written_is_not_sent_again() {
    for speaks in KEEPERS {
        let backend = Backend::start(speaks, |exchange| match name(exchange) {
            "large" => {
                exchange.read_some();
                exchange.reset();
            }
            _ => exchange.say("fine"),
        });
        let server = in_front_of(&backend).start();
        assert_eq!(server.get("/app/").status, 200);
        prove_kept();
        let response = server.exchange(post("/app/large", &"x".repeat(4 << 20)));
        assert_eq!(response.status, 502, "{speaks:?}: {response}");
        assert_eq!(backend.requests().len(), 2, "{speaks:?}: it came once");
    }
}

#[test]
fn a_request_waits_for_a_backend_that_is_started_anew() {
    for speaks in Speaks::ALL {
        let mut backend = Backend::start(speaks, |exchange| exchange.say("up"));
        let server = in_front_of(&backend).start();
        assert_eq!(server.get("/app/").status, 200);
        backend.stop();
        let mut client = server.client();
        client.send("GET /app/ HTTP/1.1\r\nHost: a\r\n\r\n");
        server.expect_log("cannot connect");
        backend.restart();
        assert_eq!(client.response().text(), "up", "{speaks:?}");
        assert_eq!(server.get("/app/").text(), "up", "{speaks:?}");
    }
}

/// It takes so long because a request waits for a second for a backend of each protocol.
#[test]
fn a_backend_that_does_not_come_back_is_an_error() {
    for speaks in Speaks::ALL {
        let mut backend = Backend::start(speaks, |exchange| exchange.say("up"));
        let options = "\"backlog-timeout\" => 1, \"disable-time\" => 1, ";
        let server = in_front_of_with(&backend, options).start();
        assert_eq!(server.get("/app/").status, 200);
        backend.stop();
        let down = server.get("/app/");
        assert!(matches!(down.status, 502 | 503), "{speaks:?}: {down}");
        backend.restart();
        assert!(
            eventually(|| server.get("/app/").text() == "up"),
            "{speaks:?} does not come back"
        );
    }
}

#[test]
fn a_backend_restarted_under_load_loses_no_idempotent_request() {
    let mut backend = Backend::start(Speaks::FastCgi, |exchange| exchange.say("up"));
    let server = in_front_of(&backend).start();
    let load = petrel_tests::Load::start(server.address(), "/app/", 4, 2);
    for _ in 0..10 {
        load.wait_for(50);
        backend.hang_up();
    }
    let result = load.stop();
    assert_eq!(result.failures, Vec::<String>::new());
    assert!(backend.connections() > 10);
    backend.stop();
}

#[test]
fn a_death_on_a_new_connection_is_not_the_end_of_a_get() {
    for speaks in Speaks::ALL {
        let deaths = AtomicUsize::new(0);
        // One process has died with its first request; others listen on the same socket.
        let backend = Backend::start(speaks, move |exchange| {
            exchange.read_body();
            match deaths.fetch_add(1, Ordering::SeqCst) {
                0 => exchange.close(),
                _ => exchange.say("alive"),
            }
        });
        let server = in_front_of(&backend).start();
        assert_eq!(server.get("/app/").text(), "alive", "{speaks:?}");
        assert_eq!(backend.requests().len(), 2);
    }
}

#[test]
fn a_get_that_ends_its_process_is_sent_twice_at_most() {
    for speaks in Speaks::ALL {
        let backends = [(); 3].map(|()| {
            Backend::start(speaks, |exchange| match name(exchange) {
                "deadly" => {
                    exchange.read_body();
                    exchange.close();
                }
                _ => exchange.say("fine"),
            })
        });
        let [one, two, three] = &backends;
        let server = in_front_of_all(speaks, &[one, two, three], "").start();
        let response = server.get("/app/deadly");
        assert_eq!(response.status, 502, "{speaks:?}: {response}");
        let times: usize = backends.iter().map(|it| it.requests().len()).sum();
        assert_eq!(times, 2, "{speaks:?}");
        // One that comes on a persistent connection.
        assert!(eventually(|| server.get("/app/").status == 200));
        let before: usize = backends.iter().map(|it| it.requests().len()).sum();
        assert_eq!(server.get("/app/deadly").status, 502, "{speaks:?}");
        let times: usize = backends.iter().map(|it| it.requests().len()).sum();
        assert_eq!(times, before + 2, "{speaks:?}");
    }
}

#[test]
fn requests_on_one_connection_are_counted() {
    let backend = Backend::start(Speaks::FastCgi, |exchange| exchange.say("counted"));
    let server = petrel_tests::Server::build()
        .config("server.max-worker = 1")
        .config("server.modules += ( \"mod_proxy_core\", \"mod_proxy_backend_fastcgi\" )")
        .config("proxy-core.protocol = \"fastcgi\"")
        .config(&format!("proxy-core.backends = ( \"{}\" )", backend.name()))
        .config("proxy-core.max-keep-alive-requests = 3")
        .start();
    for _ in 0..9 {
        assert_eq!(server.get("/").text(), "counted");
    }
    let requests = backend.requests();
    let numbers: Vec<usize> = requests.iter().map(|request| request.before).collect();
    // On a slow machine a request may get a new connection although an old one may carry more.
    assert!(
        numbers.iter().all(|number| *number < 3) && numbers.contains(&2),
        "{numbers:?}"
    );
    backend.expect_open_connections(0);
}

#[test]
fn http_backends_that_close_are_believed() {
    let backend = Backend::start(Speaks::Http, |exchange| match name(exchange) {
        "close" => exchange.answer(200, &[("Connection", "close")], "bye"),
        _ => exchange.say("kept"),
    });
    let server = in_front_of(&backend).start();
    for target in [
        "/app/close",
        "/app/kept",
        "/app/kept",
        "/app/close",
        "/app/kept",
    ] {
        assert_eq!(server.get(target).status, 200);
    }
    let connections: Vec<usize> = backend
        .requests()
        .iter()
        .map(|request| request.connection)
        .collect();
    assert_eq!(connections, [0, 1, 1, 1, 2]);
}
