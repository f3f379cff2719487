//! What a client that does not read costs: memory of the kernel, and system calls.

use petrel_tests::{Client, Server, Tracer, eventually};

use crate::alone;

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
    let _alone = alone();
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
