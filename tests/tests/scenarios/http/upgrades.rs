//! Upgrades to protocols that are not supported: the connection continues in HTTP/1.1.

use petrel_tests::{Server, curl};

#[test]
fn an_upgrade_to_h2c_is_ignored() {
    let server = Server::start("");
    let mut client = server.client();
    let response = client.request(
        "GET",
        "/",
        &[
            ("Connection", "Upgrade, HTTP2-Settings"),
            ("Upgrade", "h2c"),
            ("HTTP2-Settings", "AAMAAABkAAQCAAAAAAIAAAAA"),
        ],
    );
    assert_eq!((response.status, response.text().as_str()), (200, "hello"));
    assert_eq!(response.field("Upgrade"), None);
    assert_eq!(client.get("/").text(), "hello");
    let finished = curl(&["--http2", "-w", " %{http_version}", &server.url("/")]);
    assert_eq!(finished.text(), "hello 1.1", "{}", finished.errors);
}

#[test]
fn the_http_2_preface_is_refused() {
    let server = Server::start("");
    let mut client = server.client();
    client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    let response = client.response();
    assert_eq!(response.status, 505);
    client.expect_close();
    let finished = curl(&["--http2-prior-knowledge", &server.url("/")]);
    assert_ne!(finished.code(), 0);
    server.expect_log("HTTP/2");
    assert_eq!(server.get("/").text(), "hello");
}

#[test]
fn a_websocket_is_not_opened() {
    let server = Server::start("");
    let response = server.client().request(
        "GET",
        "/",
        &[
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Version", "13"),
            ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ],
    );
    assert_eq!((response.status, response.text().as_str()), (200, "hello"));
}
