//! Files that change or fail while they are sent: the client gets what there is, and then no connection.

use petrel_tests::{Client, Operation, Server, SlowFs};
use rustix::io::Errno;

use super::{BACKENDS, BYTES, CONTENT, evict, server};

/// A client that has received the beginning and takes no more for the time being.
fn begun(server: &Server, backend: &str) -> Client {
    let mut client = Client::connect(server.address()).with_receive_buffer(64 * 1024);
    client.send(format!("GET /{backend} HTTP/1.1\r\nHost: a\r\n\r\n"));
    client.read_bytes(1000);
    client
}

/// Reads what is left of the answer. Answers how much of the file came, all of which has to be right.
fn rest(mut client: Client, backend: &str) -> usize {
    let rest = client.read_to_end();
    // The first thousand bytes held the head; the end of what came is somewhere in the file.
    let tail = &rest[rest.len().saturating_sub(5000)..];
    let mut received = 0;
    for length in (rest.len()..rest.len() + 1000).rev() {
        let begin = length.saturating_sub(tail.len());
        if CONTENT.get(begin..length) == Some(tail) {
            received = length;
            break;
        }
    }
    assert!(received > 0, "{backend}: what came is not the file");
    let begin = received - rest.len().min(received);
    assert!(
        CONTENT[begin..received] == rest[rest.len() - (received - begin)..],
        "{backend}"
    );
    received
}

#[test]
fn truncation_ends_the_connection() {
    for backend in BACKENDS {
        let server = server().start();
        evict(server.tree(), "www/large.bin");
        let client = begun(&server, backend);
        server.tree().set_length("www/large.bin", 3_000_000);
        let received = rest(client, backend);
        assert!(received < BYTES, "{backend}");
        server.expect_log("the file became shorter while it was sent");
    }
}

#[test]
fn errors_of_the_disk_end_the_connection() {
    for backend in BACKENDS {
        let server = server().start();
        let www = server.tree().path("www");
        let Some(slow) = SlowFs::mount_or_skip("errors_of_the_disk_end_the_connection", &www)
        else {
            return;
        };
        let client = begun(&server, backend);
        slow.fail_on(&[Operation::Read], Errno::IO);
        let received = rest(client, backend);
        assert!(received < BYTES, "{backend}");
        slow.release();
        server.expect_log("(os error 5)");
    }
}

#[test]
fn a_download_may_take_longer_than_a_file_system_may() {
    let server = Server::build()
        .file("www/large.bin", vec![b'x'; 1_500_000])
        .config(
            "server.max-file-wait = 1\nserver.network-backend = \"gthread-sendfile\"\n\
             connection.kbytes-per-second = 300\n",
        )
        .start();
    let begin = std::time::Instant::now();
    let response = server.get("/large.bin");
    assert_eq!(response.body.len(), 1_500_000);
    assert!(
        begin.elapsed() > std::time::Duration::from_secs(3),
        "it was to take longer than the wait"
    );
}

#[test]
fn a_limit_below_the_head_ends_no_answer() {
    for backend in BACKENDS {
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
