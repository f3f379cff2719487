//! How much memory a burst of requests leaves in use when it is over.

use petrel_tests::{Backend, Client, ProcessTree, Server, Speaks, eventually};

use crate::alone;

/// Clients in the burst.
const CLIENTS: usize = 150;
/// The size of a backend's reply: less than the server keeps in memory for one body.
const PAGE: usize = 900_000;

#[test]
fn an_idle_server_gives_back_what_a_burst_took() {
    let _alone = alone();
    let backend = Backend::start(Speaks::FastCgi, |request| {
        request.answer(200, &[], vec![b'x'; PAGE]);
    });
    let server = Server::build()
        .file("www/index.html", "hello")
        .file("www/big.bin", vec![b'x'; 50 << 20])
        .config(&backend.directive("/page", "\"check-local\" => \"disable\""))
        .start();
    for path in ["/", "/page", "/big.bin"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    let serving = ProcessTree {
        pids: vec![server.processes().busiest()],
    };
    let fresh = serving.resident_bytes();
    let mut most = 0;
    for path in ["/page", "/big.bin"] {
        let ask = || {
            let mut client = server.client().with_receive_buffer(4096);
            client.send(format!("GET {path} HTTP/1.1\r\nHost: petrel.test\r\n\r\n"));
            client
        };
        let mut clients: Vec<Client> = (0..CLIENTS).map(|_| ask()).collect();
        // The head of each response has arrived, and as much of its body as the buffers hold.
        for client in &mut clients {
            client.read_bytes(1);
        }
        most = most.max(serving.resident_bytes());
    }
    assert!(
        most > 2 * fresh,
        "the burst took nothing: {fresh} bytes, then {most}"
    );
    let is_back = || serving.resident_bytes() <= 2 * fresh;
    assert!(
        eventually(is_back),
        "{fresh} bytes, {most} in the burst, {} afterwards",
        serving.resident_bytes()
    );
}
