//! Bandwidth limits: a transfer takes about as long as it should, and other clients do not wait for it.

use std::time::{Duration, Instant};

use petrel_tests::{SOON, Server};

const BYTES: usize = 600_000;

fn server(config: &str) -> Server {
    Server::build()
        .file("www/data.bin", vec![b'x'; BYTES])
        .file("www/index.html", "hello")
        .config(config)
        .start()
}

fn transfer(server: &Server) -> Duration {
    let begin = Instant::now();
    assert_eq!(server.get("/data.bin").body.len(), BYTES);
    begin.elapsed()
}

#[test]
fn without_a_limit_it_takes_no_time() {
    assert!(transfer(&server("")) < SOON);
}

#[test]
fn each_connection_has_its_limit() {
    let server = server("$HTTP[\"url\"] == \"/data.bin\" { connection.kbytes-per-second = 200 }");
    let took = std::thread::scope(|scope| {
        let transfers: Vec<_> = (0..2).map(|_| scope.spawn(|| transfer(&server))).collect();
        assert_eq!(server.get("/").text(), "hello");
        transfers
            .into_iter()
            .map(|one| one.join().expect("a transfer"))
            .max()
            .expect("two")
    });
    assert!(
        took > Duration::from_millis(1500),
        "600 kB at 200 kB/s took {took:?}"
    );
    assert!(took < SOON, "600 kB at 200 kB/s took {took:?}");
}

#[test]
fn all_connections_share_the_limit_of_their_scope() {
    let server = server("$HTTP[\"url\"] == \"/data.bin\" { server.kbytes-per-second = 400 }");
    let took = std::thread::scope(|scope| {
        let transfers: Vec<_> = (0..2).map(|_| scope.spawn(|| transfer(&server))).collect();
        transfers
            .into_iter()
            .map(|one| one.join().expect("a transfer"))
            .max()
            .expect("two")
    });
    assert!(
        took > Duration::from_millis(1500),
        "1.2 MB at 400 kB/s took {took:?}"
    );
    assert!(took < SOON, "1.2 MB at 400 kB/s took {took:?}");
    assert!(server.get("/").text() == "hello");
}
