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
