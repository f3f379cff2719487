//! Persistent connections, and when they end.

use std::time::{Duration, Instant};

use petrel_tests::{SOON, Server, eventually};

const GET: &str = "GET / HTTP/1.1\r\nHost: petrel.test\r\n\r\n";

#[test]
fn a_connection_is_kept() {
    let server = Server::start("");
    let mut client = server.client();
    for _ in 0..20 {
        let response = client.get("/");
        assert_eq!((response.status, response.text().as_str()), (200, "hello"));
        assert_eq!(response.field("Connection"), None);
    }
}

#[test]
fn a_connection_is_closed_when_the_client_wants_it() {
    let server = Server::start("");
    for wish in ["close", "Close", "keep-alive, close", "TE, close"] {
        let mut client = server.client();
        let response = client.request("GET", "/", &[("Connection", wish)]);
        assert_eq!(response.field("Connection"), Some("close"), "{wish}");
        client.expect_close();
    }
}

/// The kernel has the whole answer, and the client has not read it: a reset would destroy what it has not.
#[test]
fn bytes_that_come_behind_the_last_request_destroy_no_answer() {
    let answer = vec![b'x'; 400_000];
    let server = Server::build().file("www/large.bin", &answer).start();
    for (request, late) in [
        (
            "GET /large.bin HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
            "GET /large.bin HTTP/1.1\r\n",
        ),
        ("GET /large.bin HTTP/1.0\r\n\r\n", "\r\n"),
    ] {
        let mut client = server.client();
        client.send(request);
        assert_eq!(client.response_to_head().status, 200);
        // Most of the time the server has written all of it then, and would close.
        std::thread::sleep(Duration::from_millis(100));
        client.send(late);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(client.read_to_end().len(), answer.len(), "{request}");
    }
}

/// As in lighttpd, an idle time of 0 means no persistent connections.
#[test]
fn an_idle_time_of_0_closes_after_each_answer() {
    let server = Server::start("server.max-keep-alive-idle = 0");
    let mut client = server.client();
    assert_eq!(client.get("/").field("Connection"), Some("close"));
    client.expect_close();
}

/// As in lighttpd, it is a short time, not no limit.
#[test]
fn a_read_idle_time_of_0_is_the_shortest() {
    let server = Server::start("server.max-read-idle = 0");
    let mut client = server.client();
    let begin = Instant::now();
    client.send("GET / HTTP/1.1\r\n").read_to_end();
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    // A request that is sent at once is answered, unless the second ends before it is read.
    assert!(eventually(|| {
        let mut client = server.client();
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        client.try_response().is_ok_and(|it| it.status == 200)
    }));
}

#[test]
fn http_10_closes_unless_asked() {
    let server = Server::start("");
    let mut client = server.client();
    let response = client.send("GET / HTTP/1.0\r\n\r\n").response();
    assert_eq!(response.status, 200);
    assert_eq!(response.field("Transfer-Encoding"), None);
    assert!(response.closes());
    client.expect_close();

    let mut client = server.client();
    for _ in 0..3 {
        client.send("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n");
        let response = client.response();
        assert_eq!(response.text(), "hello");
        assert_eq!(
            response
                .field("Connection")
                .map(str::to_ascii_lowercase)
                .as_deref(),
            Some("keep-alive")
        );
    }
}

#[test]
fn a_hundred_pipelined_requests_split_at_odd_places() {
    let server = Server::build()
        .tree(|tree| {
            for number in 0..100 {
                tree.write(&format!("www/{number}"), format!("file {number}"));
            }
        })
        .start();
    let requests: String = (0..100)
        .map(|number| format!("GET /{number} HTTP/1.1\r\nHost: petrel.test\r\n\r\n"))
        .collect();
    for sizes in [
        &[1usize << 20][..],
        &[1, 2, 3, 5, 7, 11, 13],
        &[39, 41, 43],
        &[997],
    ] {
        let mut client = server.client();
        client.send_in_pieces(&requests, sizes);
        for number in 0..100 {
            assert_eq!(
                client.response().text(),
                format!("file {number}"),
                "{sizes:?}"
            );
        }
    }
}

#[test]
fn pipelined_requests_of_a_client_that_reads_late() {
    let server = Server::build().file("www/big", vec![b'x'; 300_000]).start();
    let mut client = server.client().with_receive_buffer(32 * 1024);
    client.send("GET /big HTTP/1.1\r\nHost: petrel.test\r\n\r\n".repeat(50));
    std::thread::sleep(Duration::from_millis(100));
    for _ in 0..50 {
        assert_eq!(client.response().body.len(), 300_000);
    }
}

#[test]
fn a_client_that_half_closes_gets_the_whole_answer() {
    let server = Server::build()
        .file("www/big", vec![b'x'; 8 << 20])
        .file("www/index.html", "hello")
        .start();
    let mut client = server.client();
    client.send(GET).half_close();
    assert_eq!(client.response().text(), "hello");
    client.expect_close();

    let mut client = server.client().with_receive_buffer(64 * 1024);
    client
        .send("GET /big HTTP/1.1\r\nHost: petrel.test\r\n\r\n")
        .half_close();
    assert_eq!(client.response().body.len(), 8 << 20);
    client.expect_close();

    let mut client = server.client();
    client.send(GET.repeat(3)).half_close();
    for _ in 0..3 {
        assert_eq!(client.response().text(), "hello");
    }
    client.expect_close();
}

#[test]
fn half_a_request_and_a_half_close_is_no_request() {
    let server = Server::start("");
    let mut client = server.client();
    client.send("GET / HTTP/1.1\r\nHo").half_close();
    client.expect_close();
}

#[test]
fn the_number_of_requests_on_a_connection_is_limited() {
    let server = Server::start("server.max-keep-alive-requests = 3");
    let mut client = server.client();
    client.send(GET.repeat(5));
    let closes: Vec<bool> = (0..3).map(|_| client.response().closes()).collect();
    assert_eq!(closes, [false, false, true]);
    client.expect_close();
}

#[test]
fn no_keep_alive_at_all() {
    let server = Server::start("server.max-keep-alive-requests = 0");
    let mut client = server.client();
    assert!(client.get("/").closes());
    client.expect_close();
}

#[test]
fn an_idle_connection_is_closed_after_its_time() {
    let server = Server::start("server.max-keep-alive-idle = 1");
    let mut client = server.client();
    let begin = Instant::now();
    assert_eq!(client.get("/").status, 200);
    client.expect_close();
    assert!(begin.elapsed() < SOON, "after {:?}", begin.elapsed());
}

/// It takes longer than the time after which an idle connection is closed.
#[test]
fn a_connection_that_is_used_is_not_idle() {
    let server = Server::start("server.max-keep-alive-idle = 4");
    let mut client = server.client();
    for _ in 0..6 {
        assert_eq!(client.get("/").status, 200);
        std::thread::sleep(Duration::from_secs(1));
    }
}

#[test]
fn empty_lines_before_a_request_are_skipped() {
    let server = Server::start("");
    let mut client = server.client();
    client.send(format!("\r\n{GET}\r\n\r\n{GET}"));
    assert_eq!(client.response().text(), "hello");
    assert_eq!(client.response().text(), "hello");
}

#[test]
fn http_11_can_be_switched_off() {
    let server = Server::start("server.protocol-http11 = \"disable\"");
    let response = server.get("/");
    assert_eq!(response.version, "HTTP/1.0");
    assert_eq!(response.text(), "hello");
}
