//! Requests whose body, response or program does not end when expected.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use petrel_tests::{Backend, Builder, SOON, Server, Speaks, eventually};

use crate::gateway::{in_front_of, name, post};

fn streaming(backend: &Backend) -> Builder {
    in_front_of(backend)
        .config("server.stream-request-body = 2")
        .config("server.stream-response-body = 2")
}

/// A backend that answers before it has read the body.
fn eager(speaks: Speaks) -> Backend {
    Backend::start(speaks, |exchange| {
        exchange.head(200, &[("Content-Type", "text/plain")]);
        exchange.body("begun ");
        exchange.read_body();
        let bytes = exchange.request().body_bytes.to_string();
        exchange.body(&bytes);
        exchange.end();
    })
}

#[test]
fn a_body_goes_on_behind_an_answer_that_is_compressed() {
    for speaks in [Speaks::FastCgi, Speaks::Http] {
        let backend = eager(speaks);
        let server = streaming(&backend)
            .config("server.modules += ( \"mod_deflate\" )")
            .config("deflate.mimetypes = ( \"text/\" )")
            .start();
        let request = post("/app/", &"x".repeat(200_000)).replacen(
            "Content-Length",
            "Accept-Encoding: gzip\r\nContent-Length",
            1,
        );
        let mut client = server.client();
        client.send(&request[..1000]);
        backend.expect_requests(1);
        std::thread::sleep(Duration::from_millis(50));
        client.send(&request[1000..]);
        let response = client.response();
        assert_eq!(response.field("Content-Encoding"), Some("gzip"));
        assert_eq!(backend.last().body_bytes, 200_000, "{speaks:?}");
    }
}

#[test]
fn a_client_that_stops_sending_its_body_is_not_waited_for_behind_an_answer() {
    let backend = eager(Speaks::FastCgi);
    let server = streaming(&backend)
        .config("server.max-read-idle = 1")
        .start();
    let mut client = server.client();
    client.send(&post("/app/", &"x".repeat(1000))[..500]);
    let begin = Instant::now();
    let answer = client.read_to_end();
    assert!(begin.elapsed() < SOON);
    assert!(answer.ends_with(b"begun ") || answer.ends_with(b"begun \r\n"));
    backend.expect_open_connections(0);
}

#[test]
fn who_pauses_while_there_is_no_room_is_not_late() {
    let backend = Backend::start(Speaks::Scgi, |exchange| {
        exchange.pause(Duration::from_millis(2500));
        exchange.read_body();
        let bytes = exchange.request().body_bytes.to_string();
        exchange.say(&bytes);
    });
    let server = streaming(&backend)
        .config("server.max-read-idle = 1")
        .start();
    let size = 3 << 20;
    let request = post("/app/", &"x".repeat(size));
    let mut client = server.client();
    client.send(&request);
    assert_eq!(client.response().text(), size.to_string());
}

#[test]
fn a_body_that_is_not_needed_is_dropped_and_takes_no_room() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        exchange.raw("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly");
        exchange.close();
    });
    for mode in [1, 2] {
        let server = in_front_of(&backend)
            .tree(|tree| {
                tree.directory("upload");
            })
            .config("server.upload-dirs = ( var.dir + \"/upload\" )")
            .config(&format!("server.stream-request-body = {mode}"))
            .start();
        std::fs::remove_dir(server.tree().path("upload")).expect("it is empty");
        let mut client = server.client();
        client.send("POST /app/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        assert_eq!(client.response().text(), "early");
        let line = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
        let content = line.repeat(100_000);
        client.send(format!("{:x}\r\n{content}\r\n0\r\n\r\n", content.len()));
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(client.response().text(), "hello", "{mode}");
        assert!(!server.log().contains("/smuggled"));
    }
}

#[test]
fn another_url_is_asked_without_the_body() {
    for speaks in [Speaks::FastCgi, Speaks::Http] {
        let backend = Backend::start(speaks, |exchange| match exchange.param("REQUEST_METHOD") {
            "POST" => {
                exchange.read_some();
                exchange.answer(200, &[("X-Accel-Redirect", "/app/second")], "");
            }
            _ => {
                let count = exchange.read_body().len();
                exchange.say(&format!("{count}"));
            }
        });
        for mode in 0..3 {
            let server =
                crate::gateway::in_front_of_with(&backend, "\"x-sendfile\" => \"enable\",")
                    .config(&format!("server.stream-request-body = {mode}"))
                    .start();
            let request = post("/app/first", &"x".repeat(300_000));
            let response = server.exchange(&request);
            assert_eq!(
                (response.status, response.text().as_str()),
                (200, "0"),
                "{speaks:?}, {mode}: {response}"
            );
        }
    }
}

#[test]
fn the_site_s_script_for_what_is_missing_gets_the_request_as_it_came() {
    let backend = Backend::start(Speaks::FastCgi, |exchange| {
        let body = String::from_utf8_lossy(&exchange.read_body()).into_owned();
        let method = exchange.param("REQUEST_METHOD").to_owned();
        exchange.answer(200, &[], format!("{method} {body}"));
    });
    let missing = in_front_of(&backend)
        .config("server.error-handler-404 = \"/app/index\"")
        .start();
    let response = missing.exchange(post("/pretty/url", "a=b"));
    assert_eq!((response.status, response.text()), (200, "POST a=b".into()));
    let all = in_front_of(&backend)
        .config("server.error-handler = \"/app/index\"")
        .start();
    let response = all.exchange(post("/pretty/url", "a=b"));
    assert_eq!((response.status, response.text()), (200, "GET ".into()));
}

#[test]
fn a_program_need_not_read_its_input() {
    let server = Server::build()
        .file(
            "www/run.cgi",
            "exec 0<&-; sleep 0.3; printf 'A: b\\n\\n'; echo done",
        )
        .config("server.modules += ( \"mod_cgi\" )")
        .config("cgi.assign = ( \".cgi\" => \"/bin/sh\" )")
        .start();
    let response = server.exchange(post("/run.cgi", &"x".repeat(1 << 20)));
    assert_eq!((response.status, response.text()), (200, "done\n".into()));
}

#[test]
fn the_end_of_one_side_of_a_tunnel_is_passed_on_behind_all_of_its_bytes() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        exchange
            .raw("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: a\r\n\r\n");
        let mut count = 0;
        exchange.pause(Duration::from_millis(100));
        loop {
            let bytes = exchange.receive(16 << 10);
            if bytes.is_empty() {
                break;
            }
            count += bytes.len();
            if count % 5 == 0 {
                exchange.pause(Duration::from_millis(1));
            }
        }
        exchange.raw(count.to_string());
        exchange.close();
    });
    let server = in_front_of(&backend)
        .config("proxy.header = ( \"upgrade\" => ( \"a\" ) )")
        .start();
    // Some sizes are a little more than the backend's socket takes at first.
    let sizes = (180_000..320_000).step_by(10_000);
    for size in sizes.chain([0, 1, 3_000_001]) {
        let mut client = server.client();
        client.send("GET /app/ HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: a\r\n\r\n");
        assert_eq!(client.response().status, 101);
        client.send(vec![b'x'; size]);
        client.half_close();
        assert_eq!(client.read_to_end(), size.to_string().as_bytes());
    }
    assert!(eventually(|| backend.open_connections() == 0));
}

#[test]
fn fields_that_are_about_the_backend_s_connection_go_no_further() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        exchange.raw(
            "HTTP/1.1 200 OK\r\nConnection: X-Hop, keep-alive\r\nX-Hop: secret\r\n\
             X-End: kept\r\nContent-Length: 2\r\n\r\nok",
        );
    });
    let server = in_front_of(&backend).start();
    let response = server.get("/app/");
    assert_eq!(response.field("X-Hop"), None, "{response}");
    assert_eq!(response.field("X-End"), Some("kept"));
    assert_eq!(response.text(), "ok");
}

#[test]
fn a_client_that_takes_nothing_is_not_kept_by_a_backend_that_goes_on() {
    let backend = Backend::start(Speaks::Scgi, |exchange| {
        exchange.head(200, &[]);
        exchange.body(vec![b'x'; 16 << 20]);
        for _ in 0..900 {
            exchange.body("a little more");
            exchange.pause(Duration::from_millis(100));
            if exchange.is_alone() {
                return exchange.close();
            }
        }
        exchange.end();
    });
    let server = in_front_of(&backend)
        .config("server.stream-response-body = 1")
        .config("server.max-write-idle = 1")
        .start();
    let mut client = server.client().with_receive_buffer(4096);
    client.send("GET /app/ HTTP/1.1\r\nHost: a\r\n\r\n");
    backend.expect_requests(1);
    let begin = Instant::now();
    assert!(eventually(|| backend.open_connections() == 0));
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
}

#[test]
fn an_upgrade_over_http_1_0_is_not_asked_for() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        let asked = exchange.param("Upgrade").to_owned();
        exchange.say(&format!("[{asked}]"));
    });
    let server = in_front_of(&backend)
        .config("proxy.header = ( \"upgrade\" => ( \"a\" ) )")
        .start();
    for (version, asked) in [("1.0", "[]"), ("1.1", "[a]")] {
        let response = server.exchange(format!(
            "GET /app/ HTTP/{version}\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: a\r\n\r\n"
        ));
        assert_eq!(response.text(), asked);
    }
}

/// Waits until `count` requests are there at the same time, but for some seconds at most. Returns how many
/// there were.
fn together(there: &AtomicUsize, count: usize) -> usize {
    there.fetch_add(1, Ordering::SeqCst);
    eventually(|| there.load(Ordering::SeqCst) >= count);
    there.load(Ordering::SeqCst)
}

#[test]
fn no_connection_is_lost_to_clients_that_leave_at_any_point() {
    const CONNECTIONS: usize = 3;
    for speaks in [Speaks::FastCgi, Speaks::Http] {
        let there = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&there);
        let backend = Backend::start(speaks, move |exchange| match name(exchange) {
            "together" => {
                let there = together(&count, CONNECTIONS);
                exchange.say(&there.to_string());
            }
            number => {
                let number: u64 = number.parse().unwrap_or(0);
                exchange.pause(Duration::from_micros(number % 7 * 300));
                match number % 11 {
                    0 => exchange.close(),
                    1 => exchange.reset(),
                    _ => exchange.say(&"x".repeat(number as usize * 100)),
                }
            }
        });
        let options = format!("\"max-connections\" => {CONNECTIONS}, \"disable-time\" => 0, ");
        let server = Server::build()
            .config(&backend.directive(
                crate::gateway::KEY,
                &format!("{options}{}", crate::gateway::OPTIONS),
            ))
            .config("server.max-worker = 4")
            .config("server.stream-response-body = 2")
            .config("server.stream-request-body = 2")
            .start();
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let server = &server;
                scope.spawn(move || {
                    for number in (thread..800).step_by(8) {
                        let request = post(&format!("/app/{number}"), &"b".repeat(2000));
                        let mut client = server.client();
                        let sent = (number * 37 % request.len() as u64) as usize;
                        match number % 4 {
                            0 => client.send(&request[..sent]),
                            _ => client.send(&request),
                        };
                        std::thread::sleep(Duration::from_micros(number % 13 * 200));
                        match number % 3 {
                            0 => client.abort(),
                            1 => drop(client),
                            _ if number % 4 > 0 => drop(client.try_response()),
                            _ => {}
                        }
                    }
                });
            }
        });
        for _ in 0..3 {
            there.store(0, Ordering::SeqCst);
            std::thread::scope(|scope| {
                let ask = || server.get("/app/together").text();
                let asked: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(ask)).collect();
                for answer in asked {
                    let answer = answer.join().expect("no panic");
                    assert_eq!(answer, CONNECTIONS.to_string(), "{speaks:?}");
                }
            });
        }
        // The backend's threads notice an end later.
        let few = || backend.open_connections() <= CONNECTIONS;
        assert!(eventually(few), "{speaks:?}");
    }
}

#[test]
fn an_answer_ends_whatever_room_its_last_bytes_leave() {
    for speaks in Speaks::ALL {
        let backend = Backend::start(speaks, |exchange| {
            let length = name(exchange).parse().expect("a number");
            exchange.say(&"x".repeat(length));
        });
        for mode in 0..3 {
            let server = in_front_of(&backend)
                .config(&format!("server.stream-response-body = {mode}"))
                .start();
            let mut client = server.client();
            for length in [
                0, 1, 65_000, 65_300, 65_536, 65_537, 66_500, 131_072, 200_000,
            ] {
                let response = client.get(&format!("/app/{length}"));
                assert_eq!(response.text().len(), length, "{speaks:?}, {mode}");
            }
        }
    }
}
