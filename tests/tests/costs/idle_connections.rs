//! What a connection costs that does nothing.

use std::time::Duration;

use petrel_tests::{Client, Server, raise_descriptor_limit};

const CONNECTIONS: u64 = 10_000;
const BYTES_MAX: u64 = 1024;

#[test]
fn ten_thousand_idle_connections_take_a_kibibyte_each() {
    let limit = raise_descriptor_limit();
    // The server takes half of its descriptors for connections.
    let connections = CONNECTIONS.min(limit / 2);
    let server = Server::start(&format!(
        "server.max-fds = {limit}\nserver.max-connections = {limit}\nserver.max-keep-alive-idle = 600"
    ));
    let mut first = server.client();
    assert!(first.get("/").status == 200);
    let sockets = || -> u64 {
        let holdings = server.processes().holdings();
        *holdings.descriptors.get("socket").expect("it listens") as u64
    };
    let (before, sockets_before) = (server.processes().private_dirty_bytes(), sockets());
    let mut clients = Vec::new();
    for _ in 1..connections {
        let mut client = server.client();
        assert_eq!(client.get("/").status, 200);
        clients.push(client);
    }
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(sockets() - sockets_before, connections - 1);
    let grown = server
        .processes()
        .private_dirty_bytes()
        .saturating_sub(before);
    let each = grown / connections;
    println!("{each} bytes of user memory an idle connection");
    assert!(each <= BYTES_MAX, "{each} bytes an idle connection");
    drop(clients.split_off(1000));
    let last: &mut Client = clients.last_mut().expect("a thousand are left");
    assert_eq!(last.get("/").text(), "hello");
}
