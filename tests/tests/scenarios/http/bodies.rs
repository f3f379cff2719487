//! Request bodies: with a length, in chunks, announced by Expect.

use std::time::Duration;

use petrel_tests::{Server, curl};

fn chunked(body: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: petrel.test\r\nTransfer-Encoding: chunked\r\n\r\n{body}")
}

#[test]
fn a_body_is_read_past() {
    let server = Server::start("");
    let mut client = server.client();
    for length in [0, 1, 1000, 100_000] {
        let head =
            format!("POST / HTTP/1.1\r\nHost: petrel.test\r\nContent-Length: {length}\r\n\r\n");
        client.send(head).send(vec![b'x'; length]);
        assert_eq!(client.response().text(), "hello", "{length}");
    }
}

#[test]
fn chunks_wherever_they_are_split() {
    let server = Server::start("");
    let body = "5\r\nhello\r\n1;name=value\r\nx\r\n0005\r\nworld\r\nA\r\n0123456789\r\n0\r\n\r\n";
    for sizes in [&[1usize][..], &[2, 3], &[7], &[1000]] {
        let mut client = server.client();
        client.send_in_pieces(chunked(body), sizes);
        assert_eq!(client.response().text(), "hello", "{sizes:?}");
        assert_eq!(client.get("/").text(), "hello", "the connection goes on");
    }
}

#[test]
fn trailers_are_read_past() {
    let server = Server::start("");
    let mut client = server.client();
    let body = "5\r\nhello\r\n0\r\nX-Checksum: 1\r\nX-More: 2\r\n\r\n";
    client.send_in_pieces(chunked(body), &[3]);
    assert_eq!(client.response().text(), "hello");
    assert_eq!(client.get("/").text(), "hello");
}

#[test]
fn a_body_that_is_waited_for_is_asked_for() {
    let server = Server::start("");
    let mut client = server.client();
    client.send(
        "POST / HTTP/1.1\r\nHost: petrel.test\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
    );
    assert_eq!(client.read_bytes(25), b"HTTP/1.1 100 Continue\r\n\r\n");
    client.expect_silence(Duration::from_millis(50));
    client.send("hello");
    assert_eq!(client.response().status, 200);
    assert_eq!(client.get("/").status, 200);
}

#[test]
fn a_body_that_comes_unasked_needs_no_100() {
    let server = Server::start("");
    let mut client = server.client();
    client.send(
        "POST / HTTP/1.1\r\nHost: petrel.test\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
    );
    assert_eq!(client.response().status, 200);
    assert_eq!(client.get("/").status, 200);
}

#[test]
fn http_10_is_never_told_to_continue() {
    let server = Server::start("");
    let mut client = server.client();
    client.send("POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    std::thread::sleep(Duration::from_millis(50));
    let response = client.send("hello").response();
    assert_eq!(
        (response.status, response.interim.as_slice()),
        (200, &[][..])
    );
}

#[test]
fn an_unmet_expectation_is_told_to_a_client_that_waits_for_an_error() {
    let server = Server::start("");
    let mut client = server.client();
    client.send(
        "POST /missing HTTP/1.1\r\nHost: petrel.test\r\nExpect: 100-continue\r\n\
         Content-Length: 5\r\n\r\n",
    );
    let response = client.response();
    assert_eq!(
        (response.status, response.interim.as_slice()),
        (404, &[][..])
    );
}

#[test]
fn curl_uploads() {
    let server = Server::build()
        .file("www/index.html", "hello")
        .file("upload", vec![b'x'; 3_000_000])
        .config("server.max-request-size = 4000")
        .start();
    let file = format!("@{}", server.tree().path("upload").display());
    let format = "%{http_code}";
    for fields in [
        &["Expect: 100-continue"][..],
        &["Expect:"],
        &["Expect:", "Transfer-Encoding: chunked"],
    ] {
        let mut arguments = vec!["--data-binary", &file, "-w", format, "-o", "/dev/null"];
        for field in fields {
            arguments.extend(["-H", field]);
        }
        let url = server.url("/");
        arguments.push(&url);
        let finished = curl(&arguments);
        assert_eq!(finished.text(), "200", "{fields:?} {}", finished.errors);
    }
}

#[test]
fn a_get_with_a_body_is_refused_unless_allowed() {
    let request = "GET / HTTP/1.1\r\nHost: petrel.test\r\nContent-Length: 5\r\n\r\nhello";
    let strict = Server::start("");
    assert_eq!(strict.exchange(request).status, 400);
    let lax = Server::start("server.http-parseopts = (\"method-get-body\" => \"enable\")");
    let mut client = lax.client();
    assert_eq!(client.send(request).response().status, 200);
    assert_eq!(client.get("/").status, 200);
}

#[test]
fn a_post_needs_a_length() {
    let server = Server::start("");
    let response = server.exchange("POST / HTTP/1.1\r\nHost: petrel.test\r\n\r\n");
    assert_eq!(response.status, 411);
}

#[test]
fn a_check_tells_an_upload_directory_that_is_missing() {
    let config = "server.upload-dirs = ( var.dir + \"/none\" )";
    let checked = Server::build().config(config).check(&["-tt"]);
    assert!(checked.status.success(), "{checked:?}");
    let errors = &checked.errors;
    assert!(
        errors.contains("server.upload-dirs: directory ") && errors.contains("/none is missing"),
        "{errors}"
    );
    let config = "server.upload-dirs = ( var.dir + \"/www\" )";
    let checked = Server::build().config(config).check(&["-tt"]);
    assert!(!checked.errors.contains("upload-dirs"), "{checked:?}");
}
