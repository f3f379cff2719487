//! Row 40: deliberately slow clients are disconnected after a time, and other clients do not notice them.

use std::time::{Duration, Instant};

use petrel_tests::{Backend, Client, SOON, Server, Speaks};

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
fn row_40_a_slow_head_behind_a_request_gets_408() {
    let server = Server::build()
        .file("www/index.html", "hello")
        .config("server.max-read-idle = 1\nserver.max-keep-alive-idle = 600")
        .start();
    let (whole, half) = (
        "GET / HTTP/1.1\r\nHost: petrel.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: petrel.test\r\nX-Sl",
    );
    // In one piece with the request, and after its answer.
    let mut together = server.client();
    together.send(format!("{whole}{half}"));
    assert_eq!(together.response().text(), "hello");
    let mut later = server.client();
    later.send(whole);
    assert_eq!(later.response().text(), "hello");
    later.send(half);
    for client in [&mut together, &mut later] {
        assert_eq!(client.response().status, 408);
        client.expect_close();
    }
}

/// It takes so long because the server waits for the rest of a body twice, two to three seconds each.
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

/// The minimum rates are low and the time limits short here; see the directives.
const MIN_RATES: &str = "server.max-read-idle = 1\nserver.max-write-idle = 1\n\
    server.min-read-rate = 100000\nserver.min-write-rate = 1000000\n\
    server.modules = (\"mod_accesslog\")\n\
    accesslog.filename = var.dir + \"/access.log\"\naccesslog.format = \"%r %s\"\n";

#[track_caller]
fn expect_access(server: &Server, line: &str) {
    let log = || String::from_utf8_lossy(&server.tree().read("access.log")).into_owned();
    let is_there = petrel_tests::eventually(|| log().lines().any(|logged| logged == line));
    assert!(is_there, "{line:?} is not in\n{}", log());
}

#[test]
fn a_body_that_trickles_gets_408() {
    let server = Server::build()
        .file("www/index.html", "hello")
        .config(MIN_RATES)
        .start();
    for framing in ["Content-Length: 1000000", "Transfer-Encoding: chunked"] {
        let mut client = server.client().with_patience(Duration::from_millis(50));
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n"));
        let trickle = match framing {
            "Transfer-Encoding: chunked" => "1\r\nx\r\n",
            _ => "x",
        };
        // The other time limit starts again with each byte.
        let answer = (0..600).find_map(|_| {
            // The server may have answered and closed already.
            let _ = client.try_send(trickle);
            client.try_response().ok()
        });
        assert_eq!(answer.expect("it is not waited for").status, 408);
    }
    server.expect_log("bytes a second, below server.min-read-rate = 100000; client=");
    expect_access(&server, "POST / HTTP/1.1 408");
}

#[test]
fn a_client_that_takes_its_answer_slowly_is_left() {
    let server = Server::build()
        .file("www/big.bin", vec![b'x'; 32 << 20])
        .config(MIN_RATES)
        .start();
    let mut client = server.client().with_receive_buffer(16 * 1024);
    client.send("GET /big.bin HTTP/1.1\r\nHost: a\r\n\r\n");
    // The client takes some bytes each time, which satisfies the other time limit.
    let is_told = || server.log().contains("server.min-write-rate");
    for _ in 0..600 {
        if is_told() {
            break;
        }
        client.read_bytes(4096);
        std::thread::sleep(Duration::from_millis(20));
    }
    server.expect_log("bytes a second, below server.min-write-rate = 1000000; client=");
    expect_access(&server, "GET /big.bin HTTP/1.1 200");
}

/// How much slow readers take per second: eight times the minimum rate, and too little to free much of a
/// socket's queue within the idle time.
const SLOW_BYTES_PER_SECOND: usize = 16_000;

/// It takes so long because the time limits must have passed several times before the reader hurries.
#[test]
fn a_slow_reader_that_keeps_the_rate_gets_all_of_its_answers() {
    let server = Server::build()
        .file("www/small.bin", vec![b'x'; 100_000])
        .file("www/big.bin", vec![b'x'; 1 << 20])
        .config("server.max-write-idle = 2\nserver.min-write-rate = 2000\n")
        .start();
    let small = "GET /small.bin HTTP/1.1\r\nHost: a\r\n\r\n";
    let big = "GET /big.bin HTTP/1.1\r\nHost: a\r\n\r\n";
    // The earlier responses are in the kernel's queue while the server sends the large one.
    let requests = [big.to_owned(), format!("{small}{small}{big}")];
    let mut clients = requests.map(|requests| {
        let mut client = server.client().with_receive_buffer(16 * 1024);
        client.send(requests);
        client
    });
    let (begin, mut taken) = (Instant::now(), 0);
    while begin.elapsed() < Duration::from_secs(8) {
        let due = begin.elapsed().as_millis() as usize * SLOW_BYTES_PER_SECOND / 1000;
        for client in &mut clients {
            client.read_bytes(due - taken);
        }
        taken = due;
        std::thread::sleep(Duration::from_millis(20));
    }
    for (client, bytes) in clients.iter_mut().zip([1 << 20, 200_000 + (1 << 20)]) {
        client.read_bytes(bytes - taken);
    }
}

#[test]
fn no_client_is_blamed_for_a_slow_server_or_backend() {
    let backend = Backend::start(Speaks::Http, |exchange| match exchange.target() {
        // An event stream that is silent for longer than any time limit for clients.
        "/b/events" => {
            exchange.head(200, &[("Content-Type", "text/event-stream")]);
            exchange.body("data: 1\n\n");
            exchange.pause(Duration::from_millis(2500));
            exchange.body("data: 2\n\n");
            exchange.end();
        }
        // Reads the body late.
        _ => {
            exchange.pause(Duration::from_millis(2500));
            let pieces = std::iter::from_fn(|| exchange.read_some());
            let length: usize = pieces.map(|piece| piece.len()).sum();
            exchange.answer(200, &[], length.to_string());
        }
    });
    let server = Server::build()
        .file("www/paced.bin", vec![b'x'; 2500])
        .config(&format!(
            "{MIN_RATES}$HTTP[\"url\"] == \"/paced.bin\" {{ connection.kbytes-per-second = 1 }}\n\
             server.stream-request-body = 2\nserver.stream-response-body = 2\n{}",
            backend.directive("/b/", ""),
        ))
        .start();
    let mut clients: Vec<Client> = (0..3).map(|_| server.client()).collect();
    clients[0].send("GET /paced.bin HTTP/1.1\r\nHost: a\r\n\r\n");
    clients[1].send("GET /b/events HTTP/1.1\r\nHost: a\r\n\r\n");
    let upload = vec![b'x'; 4 << 20];
    let head = format!(
        "POST /b/upload HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
        upload.len()
    );
    clients[2].send([head.as_bytes(), &upload].concat());
    assert_eq!(clients[0].response().body.len(), 2500);
    assert!(clients[1].response().text().ends_with("data: 2\n\n"));
    assert_eq!(clients[2].response().text(), upload.len().to_string());
}
