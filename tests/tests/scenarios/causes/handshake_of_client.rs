use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use petrel_tests::Authority;

use super::{PAUSE, Told};

/// The client is slow in the middle of its TLS handshake.
#[test]
fn a_client_that_is_slow_in_the_tls_handshake() {
    let authority = Authority::new();
    let identity = authority.identity("a.example");
    let server = petrel_tests::Server::build()
        .file("www/a.txt", "a")
        .config(super::CONFIG)
        .config(&format!(
            "server.modules += (\"mod_openssl\")\nssl.engine = \"enable\"\n{}",
            identity.directives()
        ))
        .start();
    let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("it listens");
    let config = authority.client_config(&["http/1.1"]);
    let name = "a.example".try_into().expect("a name");
    let mut tls = rustls::ClientConnection::new(config.into(), name).expect("a client");
    let mut stream = stream;
    tls.write_tls(&mut stream).expect("the server reads");
    while tls.is_handshaking() && tls.wants_read() {
        tls.read_tls(&mut stream).expect("the server answers");
        tls.process_new_packets().expect("the certificate is good");
    }
    thread::sleep(PAUSE);
    tls.writer()
        .write_all(b"GET /a.txt HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n")
        .expect("room");
    let mut answer = Vec::new();
    rustls::Stream::new(&mut tls, &mut stream)
        .read_to_end(&mut answer)
        .expect("an answer");
    Told::about(&server, "/a.txt").note("tls", "TLS handshake");
}
