//! Clients, and bandwidth limits, that are slower than any disk.

use petrel_tests::{Client, Server, Tracer, eventually};

use super::backends;

/// How much of a response the kernel holds for a client: bytes that the client has not acknowledged.
fn held_for(server: &Server, client: &Client) -> u64 {
    let port = client.local_address().expect("it is connected").port();
    let (ours, theirs) = (format!(":{:04X}", server.port()), format!(":{port:04X}"));
    let table = std::fs::read_to_string("/proc/net/tcp").expect("proc is mounted");
    let queues = table.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, remote) = (fields.next()?, fields.next()?);
        let is_it = local.ends_with(&ours) && remote.ends_with(&theirs);
        fields.nth(1).filter(|_| is_it)
    });
    let unacknowledged = queues.and_then(|queues| queues.split(':').next());
    let unacknowledged = unacknowledged.expect("the server has that connection");
    u64::from_str_radix(unacknowledged, 16).expect("the kernel writes hexadecimal numbers")
}

#[test]
fn the_kernel_is_given_little_for_a_client_that_does_not_read() {
    const BYTES: usize = 16 << 20;
    // What the client's side buffers, what the kernel may hold, and one more turn.
    const HELD_MAX: u64 = (64 + 128 + 128) * 1024;
    let server = Server::build()
        .file("www/large.bin", vec![b'x'; BYTES])
        .file("www/small.txt", "1")
        .config("server.max-worker = 1")
        .start();
    let mut other = server.client();
    // The first request looks at the page cache once.
    assert_eq!(other.get("/large.bin").body.len(), BYTES);
    assert_eq!(other.get("/small.txt").text(), "1");
    let tracer = Tracer::attach(&server);
    let mut client = server.client().with_receive_buffer(32 * 1024);
    client.send("GET /large.bin HTTP/1.1\r\nHost: a\r\n\r\n");
    let is_begun = || held_for(&server, &client) > 32 * 1024;
    assert!(eventually(is_begun), "{}", held_for(&server, &client));
    // The worker takes turns: it has continued with the large response for as long as it does in one turn.
    for _ in 0..200 {
        assert_eq!(other.get("/small.txt").text(), "1");
    }
    let held = held_for(&server, &client);
    assert!(held <= HELD_MAX, "{held} bytes");
    let calls = tracer.stop();
    let sends = calls.count("sendfile");
    assert!(sends <= 32, "{calls:?}");
    assert_eq!(calls.count("setsockopt"), 1, "{calls:?}");
    // When the client reads, it gets all of it.
    assert_eq!(client.response().body.len(), BYTES);
}

#[test]
fn a_download_may_take_longer_than_a_file_system_may() {
    let server = Server::build()
        .file("www/large.bin", vec![b'x'; 2_000_000])
        .config(
            "server.max-file-wait = 3\nserver.network-backend = \"gthread-sendfile\"\n\
             connection.kbytes-per-second = 200\n",
        )
        .start();
    let begin = std::time::Instant::now();
    let response = server.get("/large.bin");
    assert_eq!(response.body.len(), 2_000_000);
    assert!(
        begin.elapsed() > std::time::Duration::from_secs(6),
        "it was to take longer than the wait"
    );
}

#[test]
fn a_limit_below_the_head_ends_no_answer() {
    for backend in backends() {
        let server = Server::build()
            .file("www/large.bin", vec![b'x'; 40_000])
            .config(&format!(
                "server.network-backend = \"{backend}\"\nconnection.kbytes-per-second = 1\n"
            ))
            .start();
        let mut client = server.client();
        client.send("GET /large.bin HTTP/1.1\r\nHost: a\r\n\r\n");
        let begin = client.read_bytes(1500);
        assert!(begin.starts_with(b"HTTP/1.1 200 "), "{backend}");
        assert!(begin.ends_with(b"xxxx"), "{backend}");
    }
}
