//! Rows 31, 32, 33 and 44: backends that die or hang, and clients that disconnect.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use petrel_tests::{
    Backend, Client, ClientError, Exchange, SOON, Server, Speaks, eventually, fastcgi_record,
};

use crate::gateway::{in_front_of, in_front_of_with, name, post};

/// Expects that the client can see that a body was cut short.
#[track_caller]
fn expect_truncated(server: &Server, target: &str, what: &str) {
    let mut client = server.client();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
    match client.try_response() {
        Err(ClientError::Truncated(bytes)) => {
            assert!(bytes.starts_with(b"HTTP/1.1 200 "), "{what}");
        }
        // As long as nothing was sent to the client, it can get an error status.
        Ok(response) => assert_eq!(response.status, 502, "{what}: {response}"),
        other => panic!("{what}: {other:?}"),
    }
}

#[test]
fn row_31_death_before_the_head_is_502() {
    for speaks in Speaks::ALL {
        let backend = Backend::start(speaks, |exchange| {
            exchange.read_body();
            match name(exchange) {
                "reset" => exchange.reset(),
                "fine" => exchange.say("fine"),
                _ => exchange.close(),
            }
        });
        let server = in_front_of(&backend).start();
        for target in ["/app/close", "/app/reset"] {
            let before = backend.requests().len();
            let response = server.get(target);
            assert_eq!(response.status, 502, "{speaks:?}: {response}");
            let tries = backend.requests().len() - before;
            assert!(tries <= 6, "{speaks:?}: {tries} tries");
            let response = server.exchange(post(target, "once"));
            assert_eq!(response.status, 502, "{speaks:?}: {response}");
            assert_eq!(backend.requests().len(), before + tries + 1, "{speaks:?}");
        }
        let path = backend.name();
        server.expect_log(path.trim_start_matches("unix:"));
        // A backend that died over one request may still answer the next one.
        assert!(eventually(|| server.get("/app/fine").status == 200));
    }
}

#[test]
fn row_31_death_inside_the_head_is_502_at_once() {
    let heads = [
        (Speaks::Http, "HTTP/1.1 200 OK\r\nX-Be"),
        (Speaks::Http, "HT"),
        (Speaks::Scgi, "Status: 200\r\nX-Beg"),
        (Speaks::Uwsgi, "Status: 200\r\nX-Beg"),
    ];
    for (speaks, head) in heads {
        let backend = Backend::start(speaks, move |exchange| {
            exchange.read_body();
            exchange.raw(head);
            exchange.close();
        });
        let server = in_front_of(&backend).start();
        assert_eq!(server.get("/app/").status, 502, "{speaks:?} {head:?}");
        assert_eq!(backend.requests().len(), 1, "part of an answer came");
    }
    // The cut is between two records, or inside one.
    for cut in [0, 3] {
        let backend = Backend::start(Speaks::FastCgi, move |exchange| {
            exchange.read_body();
            let record = fastcgi_record(6, 1, b"Status: 200\r\nX-Beg");
            exchange.raw(&record[..record.len() - cut]);
            exchange.close();
        });
        let server = in_front_of(&backend).start();
        assert_eq!(server.get("/app/").status, 502);
        assert_eq!(backend.requests().len(), 1);
    }
}

#[test]
fn row_32_death_within_the_body_is_seen() {
    for speaks in Speaks::ALL {
        let backend = Backend::start(speaks, |exchange| {
            exchange.read_body();
            match name(exchange) {
                "length" => exchange.head(200, &[("Content-Length", "100000")]),
                _ => exchange.head(200, &[("Content-Type", "text/plain")]),
            }
            exchange.body("x".repeat(40_000));
            // The pause makes the server send what has arrived before it sees the end.
            exchange.pause(Duration::from_millis(50));
            exchange.close();
        });
        for mode in 0..3 {
            let server = in_front_of(&backend)
                .config(&format!("server.stream-response-body = {mode}"))
                .start();
            let what = format!("{speaks:?}, stream-response-body {mode}");
            expect_truncated(&server, "/app/length", &what);
            // With SCGI and uwsgi, such a response ends only with the connection.
            if !matches!(speaks, Speaks::Scgi | Speaks::Uwsgi) {
                expect_truncated(&server, "/app/chunks", &what);
            }
            assert_eq!(server.get("/").text(), "hello", "{what}");
        }
    }
}

/// A backend that answers at once, except for URLs that end in `hang`. Counts how many of those hang now.
fn hanging(speaks: Speaks) -> Backend {
    Backend::start(speaks, |exchange| match name(exchange) {
        "hang" => {
            exchange.read_body();
            assert!(exchange.hang(), "the server does not close");
        }
        "half" => {
            exchange.head(200, &[("Content-Type", "text/plain")]);
            exchange.body("begin");
            exchange.hang();
        }
        _ => exchange.say("fine"),
    })
}

/// It takes so long because the server waits one to two seconds for a backend of each protocol.
#[test]
fn row_33_a_hang_is_504_and_frees_the_slot() {
    for speaks in Speaks::ALL {
        let backend = hanging(speaks);
        let server = in_front_of_with(&backend, "\"read-timeout\" => 1, ").start();
        let begin = Instant::now();
        let response = server.get("/app/hang");
        assert_eq!(response.status, 504, "{speaks:?}: {response}");
        let took = begin.elapsed();
        assert!(took >= Duration::from_millis(900), "{speaks:?}: {took:?}");
        assert!(took < SOON, "{speaks:?}: {took:?}");
        backend.expect_open_connections(0);
        assert!(eventually(|| server.get("/app/fine").status == 200));
    }
}

#[test]
fn row_33_a_hang_within_the_body_cuts_it() {
    let backend = hanging(Speaks::FastCgi);
    let server = in_front_of_with(&backend, "\"read-timeout\" => 1, ")
        .config("server.stream-response-body = 1")
        .start();
    expect_truncated(&server, "/app/half", "a hang");
    backend.expect_open_connections(0);
}

/// It takes so long because FastCGI and AJP13 backends have a second to finish, three times each.
#[test]
fn row_33_a_client_that_leaves_frees_the_slot() {
    for speaks in Speaks::ALL {
        let backend = hanging(speaks);
        // FastCGI and AJP13 backends get this time to finish, so that their connections can be used again;
        // with other protocols the connection is closed at once.
        let server = in_front_of_with(&backend, "\"read-timeout\" => 1, ").start();
        for _ in 0..3 {
            let mut client = server.client();
            let before = backend.requests().len();
            client.send("GET /app/hang HTTP/1.1\r\nHost: a\r\n\r\n");
            backend.expect_requests(before + 1);
            client.abort();
            backend.expect_open_connections(0);
        }
        // The time is also short for this request.
        assert!(
            eventually(|| server.get("/app/fine").text() == "fine"),
            "{speaks:?}"
        );
    }
}

#[test]
fn a_client_that_has_only_finished_sending_gets_its_answer() {
    for speaks in Speaks::ALL {
        let backend = Backend::start(speaks, |exchange| {
            exchange.pause(Duration::from_millis(100));
            exchange.say("fine");
        });
        let server = in_front_of(&backend).start();
        let mut client = server.client();
        client
            .send("GET /app/ HTTP/1.1\r\nHost: a\r\n\r\n")
            .half_close();
        assert_eq!(client.response().text(), "fine", "{speaks:?}");
    }
}

#[test]
fn an_answer_before_the_request_is_read_is_passed_on() {
    for speaks in [Speaks::FastCgi, Speaks::Http, Speaks::Scgi] {
        let backend = Backend::start(speaks, |exchange| {
            exchange.head(413, &[("Content-Length", "3"), ("Connection", "close")]);
            exchange.body("big");
            exchange.half_close();
            // Everything is read, so that no reset discards the reply.
            while exchange.read_some().is_some() {}
        });
        for mode in [0, 2] {
            let server = in_front_of(&backend)
                .config(&format!("server.stream-request-body = {mode}"))
                .start();
            let response = server.exchange(post("/app/", &"x".repeat(3_000_000)));
            let what = format!("{speaks:?} {mode}: {response}");
            assert_eq!(
                (response.status, response.text().as_str()),
                (413, "big"),
                "{what}"
            );
        }
    }
}

/// The reset that follows discards nothing of the reply, because all of it has arrived by then.
#[test]
fn an_answer_of_a_backend_that_closes_with_the_body_unread_is_passed_on() {
    for speaks in Speaks::ALL {
        // Without a length the end of the connection is the end of the reply, in two protocols.
        for length in [&[("Content-Length", "3")][..], &[]] {
            if length.is_empty() && !matches!(speaks, Speaks::Scgi | Speaks::Uwsgi) {
                continue;
            }
            let refuse = move |exchange: &mut Exchange<'_>| {
                exchange.head(413, length);
                exchange.body("big");
                exchange.reset();
            };
            for backend in [
                Backend::start(speaks, refuse),
                Backend::start_on_tcp(speaks, refuse),
            ] {
                for mode in [0, 2] {
                    let server = in_front_of(&backend)
                        .config(&format!("server.stream-request-body = {mode}"))
                        .start();
                    let before = backend.requests().len();
                    let put = post("/app/", &"x".repeat(3_000_000)).replacen("POST", "PUT", 1);
                    for _ in 0..4 {
                        let response = server.exchange(&put);
                        let what = format!("{speaks:?} {mode} {length:?}: {response}");
                        assert_eq!(
                            (response.status, response.text().as_str()),
                            (413, "big"),
                            "{what}"
                        );
                    }
                    let times = backend.requests().len() - before;
                    assert_eq!(times, 4, "{speaks:?} {mode}: each was sent once");
                }
            }
        }
    }
}

/// It takes so long because thousands of clients come and go, and the server gets seconds to settle after each round.
#[test]
fn row_44_ten_thousand_aborts_leave_nothing_behind() {
    let backend = Backend::start(Speaks::FastCgi, |exchange| match name(exchange) {
        "big" => exchange.answer(200, &[], vec![b'x'; 500_000]),
        "slow" => {
            exchange.pause(Duration::from_millis(20));
            exchange.say("late");
        }
        "silent" => {
            exchange.head(200, &[]);
            exchange.body("begin");
            exchange.pause(Duration::from_millis(5));
            exchange.end();
        }
        _ => exchange.say("fine"),
    });
    let server = in_front_of(&backend)
        .tree(|tree| {
            tree.directory("upload");
        })
        .config("server.upload-dirs = ( var.dir + \"/upload\" )")
        .config("$HTTP[\"url\"] =~ \"silent\" { server.stream-response-body = 1 }")
        .start();
    abort_many(&server, 1000);
    // Requests whose clients have left may still be on their way to the backend.
    let settle = || {
        assert!(eventually(|| {
            backend.hang_up();
            std::thread::sleep(Duration::from_millis(300));
            backend.open_connections() == 0
        }));
        // Once a second the server checks whether idle connections were closed.
        std::thread::sleep(Duration::from_millis(1500));
        server.holdings()
    };
    // Waits until two rounds in a row find the same.
    let mut before = settle();
    assert!(eventually(
        || settle() == std::mem::replace(&mut before, settle())
    ));
    let mut memory = server.processes().private_dirty_bytes();
    let mut grown = u64::MAX;
    // The first rounds may still grow the allocator's heap; the test looks for a round that needs no more
    // memory.
    for _ in 0..8 {
        abort_many(&server, 3000);
        settle();
        let now = server.processes().private_dirty_bytes();
        grown = grown.min(now.saturating_sub(memory));
        memory = now;
        if grown < 1 << 20 {
            break;
        }
    }
    server.expect_holdings(&before);
    // A leak grows in each round; memory that is kept for reuse does not.
    assert!(
        grown < 1 << 20,
        "{grown} bytes more for 3,000 aborts, again and again"
    );
    assert_eq!(server.tree().names("upload"), Vec::<String>::new());
    assert_eq!(server.get("/app/fine").text(), "fine");
}

/// Clients that disconnect at a random point, on four threads.
fn abort_many(server: &Server, count: usize) {
    let address = server.address();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for number in 0..count / 4 {
                    abort_one(Client::connect(address), thread + 4 * number);
                }
            });
        }
    });
}

fn abort_one(mut client: Client, number: usize) {
    let get = |path: &str| format!("GET /app/{path} HTTP/1.1\r\nHost: a\r\n\r\n");
    match number % 7 {
        0 => client.send(get("slow")),
        1 => client.send(get("fine")),
        2 => client.send(get("silent")),
        3 => client.send(post("/app/fine", &"x".repeat(9000))),
        // A body that never ends, once in memory and once in a file.
        4 => client.send(&post("/app/fine", &"x".repeat(900))[..500]),
        5 => client.send(&post("/app/fine", &"x".repeat(200_000))[..150_000]),
        _ => {
            client.send(get("big"));
            client.read_bytes(1 + number % 50_000);
            &mut client
        }
    };
    if number.is_multiple_of(3) {
        client.abort();
    }
}

#[test]
fn a_slow_request_does_not_hold_up_others() {
    let release = Arc::new(AtomicBool::new(false));
    let released = Arc::clone(&release);
    let backend = Backend::start(Speaks::FastCgi, move |exchange| {
        if name(exchange) == "wait" {
            while !released.load(Ordering::SeqCst) {
                exchange.pause(Duration::from_millis(2));
            }
        }
        exchange.say("done");
    });
    let server = in_front_of_with(&backend, "\"max-connections\" => 30, ").start();
    let mut slow: Vec<Client> = (0..20).map(|_| server.client()).collect();
    for client in &mut slow {
        client.send("GET /app/wait HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    backend.expect_requests(20);
    for _ in 0..20 {
        assert_eq!(server.get("/app/now").text(), "done");
        assert_eq!(server.get("/").text(), "hello");
    }
    release.store(true, Ordering::SeqCst);
    for mut client in slow {
        assert_eq!(client.response().text(), "done");
    }
}

/// While its client reads nothing, a reply is not read either. That time does not count against the backend.
/// It takes so long because the client pauses twice, for two and a half seconds each.
#[test]
fn a_client_that_pauses_for_longer_than_read_timeout_gets_the_whole_reply() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        exchange.say(&"x".repeat(32 << 20));
    });
    let server = in_front_of_with(&backend, "\"read-timeout\" => 1, ")
        .config("server.stream-response-body = 2")
        .start();
    let mut client = server.client().with_receive_buffer(64 << 10);
    client.send("GET /app/ HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let mut received = 0;
    for _ in 0..2 {
        received += client.read_bytes(4 << 20).len();
        std::thread::sleep(Duration::from_millis(2500));
    }
    received += client.read_to_end().len();
    assert!(received > 32 << 20, "{received} bytes; {}", server.log());
}
