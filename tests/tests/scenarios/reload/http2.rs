//! HTTP/2 connections of a server process that is replaced.

use std::time::Duration;

use petrel_tests::{Server, curl, eventually};

use crate::reload::{reload, server_processes};

#[test]
fn a_transfer_goes_on_and_the_connection_ends_behind_it() {
    let server = Server::build()
        .file("www/index.html", "hello")
        .file("www/big.bin", vec![b'x'; 4 << 20])
        .config("server.h2c = \"enable\"")
        .start();
    let url = server.url("/big.bin");
    let transfer = std::thread::spawn(move || {
        curl(&[
            "--http2-prior-knowledge",
            "--limit-rate",
            "2M",
            "--output",
            "/dev/null",
            "--write-out",
            "%{http_version} %{http_code} %{size_download}",
            &url,
        ])
    });
    std::thread::sleep(Duration::from_millis(300));
    reload(&server, "second");
    assert_eq!(server_processes(&server), 2);
    let finished = curl(&["--http2-prior-knowledge", &server.url("/")]);
    assert_eq!(finished.text(), "hello", "{}", finished.errors);
    let finished = transfer.join().expect("curl ends");
    assert_eq!(finished.text(), "2 200 4194304", "{}", finished.errors);
    assert!(eventually(|| server_processes(&server) == 1));
}
