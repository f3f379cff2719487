//! Row 40: clients that are slow on purpose are left after a time, and nobody else notices them.

use std::time::{Duration, Instant};

use petrel_tests::{Client, SOON, Server};

fn server() -> Server {
    Server::build()
        .file("www/index.html", "hello")
        .file("www/big.bin", vec![b'x'; 32 << 20])
        .config(
            "server.max-read-idle = 2\nserver.max-write-idle = 2\nserver.max-keep-alive-idle = 2",
        )
        .start()
}

#[test]
fn row_40_a_slow_head_gets_408_while_others_are_served() {
    let server = server();
    let mut slow: Vec<Client> = (0..100).map(|_| server.client()).collect();
    for client in &mut slow {
        client.send("GET / HTTP/1.1\r\nHost: petrel.test\r\nX-Sl");
    }
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(1500) {
        assert_eq!(server.get("/").text(), "hello");
        std::thread::sleep(Duration::from_millis(20));
    }
    for client in &mut slow {
        let response = client.response();
        assert_eq!(response.status, 408);
        client.expect_close();
    }
    assert!(begin.elapsed() < SOON, "took {:?}", begin.elapsed());
}

#[test]
fn row_40_a_head_that_trickles_is_over_at_the_same_time() {
    let server = server();
    let mut client = server.client().with_patience(Duration::from_millis(100));
    client.send("GET / HTTP/1.1\r\nHost: petrel.test\r\nX-Slow: ");
    let answer = (0..300).find_map(|_| client.send("x").try_response().ok());
    let answer = answer.expect("the time begins anew with each byte");
    assert_eq!(answer.status, 408);
}

#[test]
fn row_40_a_slow_body_gets_408() {
    let server = server();
    let mut client = server.client();
    client.send("POST / HTTP/1.1\r\nHost: petrel.test\r\nContent-Length: 100\r\n\r\nhello");
    assert_eq!(client.response().status, 408);
    client.expect_close();

    let mut client = server.client();
    client
        .send("POST / HTTP/1.1\r\nHost: petrel.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe");
    assert_eq!(client.response().status, 408);
    client.expect_close();
}

#[test]
fn row_40_a_client_that_does_not_read_is_left() {
    let server = server();
    assert_eq!(server.get("/").text(), "hello");
    let before = server.holdings();
    let mut slow: Vec<Client> = (0..10)
        .map(|_| server.client().with_receive_buffer(16 * 1024))
        .collect();
    for client in &mut slow {
        client.send("GET /big.bin HTTP/1.1\r\nHost: petrel.test\r\n\r\n");
    }
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(1500) {
        assert_eq!(server.get("/").text(), "hello");
        std::thread::sleep(Duration::from_millis(20));
    }
    let sockets = |holdings: &petrel_tests::Holdings| holdings.descriptors["socket"];
    let left = petrel_tests::eventually(|| sockets(&server.holdings()) == sockets(&before));
    assert!(left, "connections of clients that do not read stay open");
    assert!(begin.elapsed() < SOON, "took {:?}", begin.elapsed());
}

#[test]
fn row_40_an_idle_connection_is_closed_without_a_word() {
    let server = server();
    let mut fresh = server.client();
    let mut kept = server.client();
    assert_eq!(kept.get("/").status, 200);
    let begin = Instant::now();
    kept.expect_close();
    let idle = begin.elapsed();
    assert!(idle > Duration::from_millis(900), "closed after {idle:?}");
    assert!(idle < SOON, "closed after {idle:?}");
    fresh.expect_close();
}
