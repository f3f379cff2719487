//! Clients receive what they requested.

use std::thread;

use petrel_tests::{Server, skip};

use super::{BYTES, CONTENT, backends, evict, server, told};

/// Network backends that a kernel may lack or forbid.
const KERNEL_S: [&str; 2] = ["linux-aio-sendfile", "io_uring"];

fn range(server: &Server, backend: &str, value: &str) -> Vec<u8> {
    let target = format!("/{backend}");
    let response = server.client().request("GET", &target, &[("Range", value)]);
    assert_eq!(response.status, 206, "{backend} {value}");
    response.body
}

#[test]
fn whole_files() {
    let server = server().start();
    for backend in backends() {
        // First cold, then warm.
        for _ in 0..2 {
            let mut client = server.client();
            let response = client.request("GET", &format!("/{backend}"), &[]);
            assert_eq!(response.status, 200, "{backend}");
            assert!(response.body == *CONTENT, "{backend}");
            // The connection stays usable.
            let head = client.request("HEAD", &format!("/{backend}"), &[]);
            assert_eq!(head.field("Content-Length"), Some("24000123"), "{backend}");
        }
        evict(server.tree(), "www/large.bin");
    }
}

#[test]
fn ranges_at_any_place() {
    let server = server().start();
    for backend in backends() {
        evict(server.tree(), "www/large.bin");
        for (first, last) in [
            (0, 0),
            (1, 200_000),
            (4095, 4096),
            (131_071, 131_073),
            (5_000_001, 9_000_000),
            (BYTES - 1, BYTES - 1),
            (BYTES - 70_000, BYTES - 2),
        ] {
            let body = range(&server, backend, &format!("bytes={first}-{last}"));
            assert!(body == CONTENT[first..=last], "{backend} {first}-{last}");
        }
        let parts = range(&server, backend, "bytes=1000000-1099999,-5");
        let contains = |wanted: &[u8]| {
            let mut windows = parts.windows(wanted.len());
            windows.any(|window| window == wanted)
        };
        assert!(contains(&CONTENT[BYTES - 5..]), "{backend}");
        let middle = parts.iter().len() / 2;
        assert!(
            (0..200_100).contains(&middle) && contains(&CONTENT[1_000_000..1_100_000]),
            "{backend}"
        );
    }
}

#[test]
fn many_clients_at_once() {
    let server = server().start();
    for backend in backends() {
        evict(server.tree(), "www/large.bin");
        thread::scope(|scope| {
            for client in 0..16 {
                let server = &server;
                scope.spawn(move || {
                    let first = client * 1_400_007;
                    let last = first + 1_300_000;
                    let body = range(server, backend, &format!("bytes={first}-{last}"));
                    assert!(body == CONTENT[first..=last], "{backend} {first}");
                });
            }
        });
    }
}

/// It takes so long because each of nine network backends sends 24 MB three times.
#[test]
fn clients_that_go_leave_no_descriptors_behind() {
    // With two workers it would be unknown which one has opened which file.
    let server = server().config("server.max-worker = 1").start();
    let fetch = |backend: &str| {
        let response = server.get(&format!("/{backend}"));
        assert_eq!(response.body.len(), BYTES);
    };
    for _ in 0..2 {
        backends().for_each(fetch);
    }
    let before = server.holdings();
    for backend in backends() {
        evict(server.tree(), "www/large.bin");
        for received in [0, 1, 300_000, 2_000_000] {
            let mut client = server.client();
            let request = format!("GET /{backend} HTTP/1.1\r\nHost: a\r\n\r\n");
            client.send(request).read_bytes(received);
            client.abort();
        }
    }
    server.expect_holdings(&before);
    backends().for_each(fetch);
}

#[test]
fn the_log_says_how() {
    let server = server().start();
    for backend in backends() {
        match told(&server, backend) {
            Ok(_) => {}
            // The other backends need nothing that a system could lack.
            Err(why) if KERNEL_S.contains(&backend) => skip(&format!("tests of {backend}"), &why),
            Err(why) => panic!("{backend}: {why}"),
        }
    }
}
