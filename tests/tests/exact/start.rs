//! No client is served before the process that supervises the server knows that it serves.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use petrel_tests::{PATIENCE, Tree};

use crate::alone;
use crate::in_process::start;

#[test]
fn no_client_is_served_before_the_order_to() {
    let _alone = alone();
    let tree = Tree::new();
    tree.write("index.html", "hello");
    let (server, address) = start(&format!(
        "server.document-root = \"{}\"\nserver.max-worker = 2\nindex-file.names = (\"index.html\")",
        tree.root().display()
    ));
    let mut early = TcpStream::connect(address).expect("it listens");
    let wait = |time| early.set_read_timeout(Some(time)).expect("a timeout");
    wait(Duration::from_millis(300));
    (&early)
        .write_all(b"GET / HTTP/1.1\r\nHost: petrel.test\r\nConnection: close\r\n\r\n")
        .expect("sent");
    let nothing = (&early).read(&mut [0; 1]).map_err(|error| error.kind());
    assert_eq!(nothing, Err(ErrorKind::WouldBlock));
    server.serve();
    wait(PATIENCE);
    let mut answer = String::new();
    early.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    server.cut_off(engine::worker::Cut::StopNow);
    assert!(server.join(), "a worker panicked");
}
