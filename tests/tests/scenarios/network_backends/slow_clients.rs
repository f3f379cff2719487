//! Clients, and bandwidth limits, that are slower than any disk.

use petrel_tests::Server;

use super::backends;

/// It takes three times as long as the wait for a file system.
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

/// It takes so long because each of nine network backends sends 1500 bytes at a thousand bytes a second.
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
