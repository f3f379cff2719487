use std::thread;

use petrel_tests::{Backend, Speaks};

use super::{PAUSE, Told, site_with};

/// Nothing is late while the two ends of a WebSocket say nothing. (HTTP/1 only: curl opens none over HTTP/2.)
#[test]
fn a_tunnel_in_which_both_ends_are_silent() {
    let backend = Backend::start(Speaks::Http, |exchange| {
        exchange.raw(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        );
        exchange.receive(1);
        exchange.raw("x");
        exchange.close();
    });
    let server = site_with(&backend, "")
        .config("proxy.header = ( \"upgrade\" => \"enable\" )")
        .start();
    let mut client = server.client();
    client
        .send("GET /b/ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n");
    let head = client.read_bytes(12);
    assert_eq!(head, b"HTTP/1.1 101");
    thread::sleep(PAUSE);
    client.send("y");
    client.read_to_end();
    drop(client);
    let told = Told::about(&server, "/b/ws");
    assert!(!told.line.contains("no more bytes"), "{}", told.line);
    assert!(!told.line.contains("sent its reply"), "{}", told.line);
}
