//! Rows 41 and 44: the server runs out of descriptors, clients disconnect.

use std::time::{Duration, Instant};

use petrel_tests::{Client, Server, eventually};

const BIG: usize = 1 << 20;

/// A server that has descriptors for only eight connections, although it is allowed more connections.
fn starved() -> Server {
    let build = |limit: usize| {
        Server::build()
            .file("www/index.html", "hello")
            .file("www/cold.txt", "cold")
            // The server looks again at a file that has just changed, and there is no descriptor to open it anew.
            .tree(|tree| {
                tree.modified("www/index.html", 1_000_000_000);
            })
            .config(&format!(
                "server.max-fds = {limit}\nserver.max-connections = 2000\nserver.max-worker = 1\n\
                 server.max-keep-alive-idle = 60\nserver.max-keep-alive-requests = 65535"
            ))
            .start()
    };
    let server = build(1000);
    assert_eq!(server.get("/").status, 200);
    server.holdings();
    let directory = format!("/proc/{}/fd", server.processes().busiest());
    let idle = std::fs::read_dir(directory).expect("it runs").count();
    build(idle + 8)
}

#[test]
fn row_41_without_descriptors_the_server_waits_and_recovers() {
    let server = starved();
    let mut first = server.client();
    assert_eq!(first.get("/").status, 200);
    let clients: Vec<Client> = (0..60).map(|_| server.client()).collect();
    server.expect_log("Too many open files");

    let (begin, used_before) = (Instant::now(), server.processes().cpu_time());
    while begin.elapsed() < Duration::from_secs(2) {
        assert_eq!(
            first.get("/").status,
            200,
            "clients that are connected are served"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let used = server.processes().cpu_time() - used_before;
    assert!(
        used < Duration::from_millis(600),
        "{used:?} of CPU in two seconds: it spins"
    );
    let complaints = server.log().matches("Too many open files").count();
    assert!(complaints < 60, "{complaints} lines about it");

    drop(clients);
    assert!(eventually(|| {
        let mut client = server.client().with_patience(Duration::from_secs(5));
        client.send("GET / HTTP/1.1\r\nHost: petrel.test\r\n\r\n");
        client
            .try_response()
            .is_ok_and(|response| response.status == 200)
    }));
}

#[test]
fn row_41_files_are_served_again_when_there_are_descriptors() {
    let server = starved();
    let mut first = server.client();
    assert_eq!(first.get("/").status, 200);
    let clients: Vec<Client> = (0..60).map(|_| server.client()).collect();
    server.expect_log("Too many open files");
    let starved = first.get("/cold.txt");
    assert!(matches!(starved.status, 200 | 500 | 503), "{starved}");
    drop(clients);
    assert!(
        eventually(|| first.get("/cold.txt").text() == "cold"),
        "the failure was remembered"
    );
}

#[test]
fn row_41_at_the_connection_limit_newcomers_wait() {
    let server = Server::start("server.max-connections = 4\nserver.max-keep-alive-idle = 60");
    let mut kept: Vec<Client> = (0..4).map(|_| server.client()).collect();
    for client in &mut kept {
        assert_eq!(client.get("/").status, 200);
    }
    let mut waiting = server.client();
    waiting.send("GET / HTTP/1.1\r\nHost: petrel.test\r\n\r\n");
    waiting.expect_silence(Duration::from_millis(200));
    server.expect_log(
        "4 connections are open, as many as server.max-connections and server.max-fds allow",
    );
    drop(kept);
    assert_eq!(waiting.response().status, 200);
}

/// It takes so long because a thousand clients come one after the other, and some read through a small buffer.
#[test]
fn row_44_a_thousand_aborts_leave_nothing_behind() {
    let server = Server::build()
        .file("www/index.html", "hello")
        .file("www/big.bin", vec![b'x'; BIG])
        .start();
    for _ in 0..4 {
        // Now both workers have every file open that will be requested.
        let mut client = server.client();
        assert_eq!(
            (client.get("/").status, client.get("/big.bin").body.len()),
            (200, BIG)
        );
    }
    let warm = || {
        for _ in 0..10 {
            server.get("/big.bin");
            server.get("/");
        }
        server.holdings()
    };
    let before = warm();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..1000 {
        abort_somewhere(&server, &mut random);
    }
    warm();
    server.expect_holdings(&before);
    assert_eq!(server.get("/").text(), "hello");
    let names = server.tree().names("www");
    assert_eq!(
        names,
        ["big.bin", "index.html"],
        "nothing was left in the tree"
    );
}

/// Sends a part of a request, reads a part of the response, and disconnects.
fn abort_somewhere(server: &Server, random: &mut Random) {
    let requests = [
        "GET /big.bin HTTP/1.1\r\nHost: petrel.test\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: petrel.test\r\n\r\n".repeat(20),
        "GET /big.bin HTTP/1.1\r\nHost: a\r\nRange: bytes=0-9,100-999999\r\n\r\n".to_owned(),
        format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 90000\r\n\r\n{}", "x".repeat(90_000)),
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n5\r\nworld\r\n"
            .to_owned(),
        "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n".to_owned(),
    ];
    let request = &requests[random.below(requests.len())];
    let sent = match random.below(3) {
        0 => request.len(),
        _ => random.below(request.len()),
    };
    let mut client = server.client().with_receive_buffer(4096);
    client.send(&request[..sent]);
    if sent == request.len() && request.starts_with("GET /big.bin") {
        client.read_bytes(1 + random.below(50_000));
    }
    match random.below(3) {
        0 => client.abort(),
        1 => {
            client.half_close();
        }
        _ => {}
    }
}

/// A small random generator with the same numbers in each run (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}
