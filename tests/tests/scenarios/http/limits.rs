//! Limits on the size of requests.

use petrel_tests::{Server, curl};

fn post(length: usize) -> String {
    format!("POST / HTTP/1.1\r\nHost: petrel.test\r\nContent-Length: {length}\r\n\r\n")
}

#[test]
fn a_body_over_the_limit_is_413() {
    let server = Server::start("server.max-request-size = 1");
    let mut client = server.client();
    client.send(post(1024)).send(vec![b'x'; 1024]);
    assert_eq!(client.response().status, 200);
    client.send(post(1025)).send(vec![b'x'; 1025]);
    let response = client.response();
    assert_eq!(response.status, 413);
    assert!(response.closes());
    client.expect_close();
}

#[test]
fn chunks_over_the_limit_are_413() {
    let server = Server::start("server.max-request-size = 1");
    let mut client = server.client();
    client.send("POST / HTTP/1.1\r\nHost: petrel.test\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send("100\r\n").send(vec![b'x'; 256]).send("\r\n");
    client
        .send("400\r\n")
        .send(vec![b'x'; 1024])
        .send("\r\n0\r\n\r\n");
    assert_eq!(client.response().status, 413);
    client.expect_close();
}

#[test]
fn the_limit_can_differ_by_url() {
    let server = Server::build()
        .file("www/index.html", "hello")
        .file("www/upload", "uploaded")
        .config("server.max-request-size = 1\n$HTTP[\"url\"] == \"/upload\" { server.max-request-size = 100 }")
        .start();
    let mut client = server.client();
    client
        .send(post(50_000).replace("POST /", "POST /upload"))
        .send(vec![b'x'; 50_000]);
    assert_eq!(client.response().status, 200);
    assert_eq!(server.exchange(post(50_000)).status, 413);
}

#[test]
fn curl_sees_413_with_and_without_expect() {
    let server = Server::build()
        .file("www/index.html", "hello")
        .file("upload", vec![b'x'; 3_000_000])
        .config("server.max-request-size = 100")
        .start();
    let file = format!("@{}", server.tree().path("upload").display());
    for field in ["Expect: 100-continue", "Expect:"] {
        let url = server.url("/");
        let finished = curl(&[
            "--data-binary",
            &file,
            "-H",
            field,
            "-w",
            "%{http_code}",
            "-o",
            "/dev/null",
            &url,
        ]);
        assert_eq!(finished.text(), "413", "{field} {}", finished.errors);
    }
}

#[test]
fn a_head_over_the_limit_is_431() {
    let server = Server::start("server.max-request-field-size = 1000");
    let head = |length: usize| {
        let empty = "GET / HTTP/1.1\r\nHost: petrel.test\r\nX-Fill: \r\n\r\n";
        empty.replace(
            "X-Fill: ",
            &format!("X-Fill: {}", "x".repeat(length - empty.len())),
        )
    };
    assert_eq!(server.exchange(head(1000)).status, 200);
    assert_eq!(server.exchange(head(1001)).status, 431);
    let mut client = server.client();
    client.send_in_pieces(head(1200), &[300]);
    assert_eq!(client.response().status, 431);
}

#[test]
fn a_head_may_be_larger_when_allowed() {
    let server = Server::start("server.max-request-field-size = 65535");
    let head = format!(
        "GET / HTTP/1.1\r\nHost: petrel.test\r\nX-Fill: {}\r\n\r\n",
        "x".repeat(60_000)
    );
    assert_eq!(server.exchange(head).status, 200);
}
