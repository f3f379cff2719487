//! Rows 1 to 13: requests whose framing cannot be trusted.

use std::time::Duration;

use petrel_tests::{Client, Response, Server};

/// Sends `bytes`, followed by a request that must not be executed. Expects one of `statuses` and the end of
/// the connection, and nothing else.
#[track_caller]
fn expect_refusal(server: &Server, bytes: impl AsRef<[u8]>, statuses: &[u16]) -> Response {
    let bytes = bytes.as_ref();
    let mut client = server.client();
    client.send([bytes, SMUGGLED.as_bytes()].concat());
    let response = client.response();
    let shown = String::from_utf8_lossy(bytes);
    assert!(
        statuses.contains(&response.status),
        "{shown:?} got {response}"
    );
    assert!(response.closes(), "{shown:?} did not close: {response}");
    client.expect_close();
    response
}

const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: petrel.test\r\n\r\n";

fn server() -> Server {
    Server::build()
        .file("www/index.html", "hello")
        .file("www/smuggled", "you should not see this")
        .start()
}

fn post(fields: &str, body: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: petrel.test\r\n{fields}\r\n\r\n{body}")
}

#[test]
fn row_01_content_length_with_transfer_encoding() {
    let server = server();
    let fields = "Content-Length: 5\r\nTransfer-Encoding: chunked";
    expect_refusal(&server, post(fields, "0\r\n\r\n"), &[400]);
    let fields = "Transfer-Encoding: chunked\r\nContent-Length: 5";
    expect_refusal(&server, post(fields, "0\r\n\r\n"), &[400]);
    let fields = "Content-Length: 0\r\nTransfer-Encoding: identity";
    expect_refusal(&server, post(fields, ""), &[400, 501]);
}

#[test]
fn row_02_content_length_that_is_no_number() {
    let server = server();
    let twice = "Content-Length: 5\r\nContent-Length: 6";
    expect_refusal(&server, post(twice, "hello"), &[400]);
    for value in [
        "5,6",
        "5, 5",
        "+5",
        "-1",
        "0x5",
        "5 5",
        "",
        "five",
        "9223372036854775808",
    ] {
        let fields = format!("Content-Length: {value}");
        expect_refusal(&server, post(&fields, "hello"), &[400]);
    }
    let overflow = format!("Content-Length: 1{}", "0".repeat(40));
    expect_refusal(&server, post(&overflow, "hello"), &[400]);
}

#[test]
fn row_03_transfer_encoding_that_is_not_chunked_last() {
    let server = server();
    for value in [
        "xchunked",
        "chunked,chunked",
        "chunked, gzip",
        "gzip",
        "chunked;q=1",
        "",
    ] {
        let fields = format!("Transfer-Encoding: {value}");
        expect_refusal(&server, post(&fields, "0\r\n\r\n"), &[400, 501]);
    }
    let twice = "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked";
    expect_refusal(&server, post(twice, "0\r\n\r\n"), &[400, 501]);
    let vertical_tab = "Transfer-Encoding: \x0bchunked";
    expect_refusal(&server, post(vertical_tab, "0\r\n\r\n"), &[400, 501]);
}

#[test]
fn row_04_transfer_encoding_in_http_10() {
    let server = server();
    let request = "POST / HTTP/1.0\r\nHost: petrel.test\r\nConnection: keep-alive\r\n\
                   Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    expect_refusal(&server, request, &[400]);
}

#[test]
fn row_05_field_names_that_are_no_tokens() {
    let server = server();
    for line in [
        "X-Space : 1",
        "X-Tab\t: 1",
        "Content-Length : 5",
        ": empty",
        "X(paren): 1",
        "X\u{e9}: 1",
        "X[0]: 1",
        "no colon",
    ] {
        let request = format!("GET / HTTP/1.1\r\nHost: petrel.test\r\n{line}\r\n\r\n");
        expect_refusal(&server, request, &[400]);
    }
}

#[test]
fn row_05_the_refusal_of_a_head_bears_our_own_version() {
    let server = server();
    let refusal = expect_refusal(
        &server,
        "GET / HTTP/1.1\r\nHost: petrel.test\r\nX y: 1\r\n\r\n",
        &[400],
    );
    assert_eq!(refusal.version, "HTTP/1.1");
}

#[test]
fn row_06_folded_lines() {
    let server = server();
    for fold in [" folded", "\tfolded", " "] {
        let request = format!("GET / HTTP/1.1\r\nHost: petrel.test\r\nX-A: 1\r\n{fold}\r\n\r\n");
        expect_refusal(&server, request, &[400]);
    }
    expect_refusal(
        &server,
        "GET / HTTP/1.1\r\n Host: petrel.test\r\n\r\n",
        &[400],
    );
}

#[test]
fn row_07_control_bytes_and_line_ends() {
    let server = server();
    for value in ["a\rb", "a\0b", "a\x01b", "a\x7fb", "a\x1bb", "\r"] {
        let request = format!("GET / HTTP/1.1\r\nHost: petrel.test\r\nX-A: {value}\r\n\r\n");
        expect_refusal(&server, request, &[400]);
    }
    expect_refusal(&server, "GET / HTTP/1.1\nHost: petrel.test\n\n", &[400]);
    expect_refusal(
        &server,
        "GET / HTTP/1.1\r\nHost: petrel.test\nX: 1\r\n\r\n",
        &[400],
    );
    expect_refusal(&server, "GET / HTTP/1.1\r\nHost: petrel.test\r\n\n", &[400]);
}

#[test]
fn row_07_bare_line_feeds_are_accepted_when_not_strict() {
    let server = Server::start("server.http-parseopts = (\"header-strict\" => \"disable\")");
    assert_eq!(
        server
            .exchange("GET / HTTP/1.1\nHost: petrel.test\n\n")
            .status,
        200
    );
}

#[test]
fn row_07_versions() {
    let server = server();
    let ask = |version: &str| {
        server.exchange(format!(
            "GET / {version}\r\nHost: petrel.test\r\nConnection: close\r\n\r\n"
        ))
    };
    let later = ask("HTTP/1.2");
    assert_eq!((later.status, later.version.as_str()), (200, "HTTP/1.1"));
    for version in ["HTTP/2.0", "HTTP/3.0", "HTTP/0.9"] {
        let line = format!("GET / {version}\r\nHost: petrel.test\r\n\r\n");
        expect_refusal(&server, line, &[505]);
    }
    for version in [
        "HTTP/1",
        "HTTP/11.1",
        "http/1.1",
        "HTTP/1.1 x",
        "HTTP/-1.1",
        "FTP/1.1",
    ] {
        let line = format!("GET / {version}\r\nHost: petrel.test\r\n\r\n");
        expect_refusal(&server, line, &[400, 505]);
    }
}

#[test]
fn row_07_bytes_that_are_no_text_in_the_target() {
    let server = server();
    let request =
        |target: &[u8]| [b"GET ", target, b" HTTP/1.1\r\nHost: petrel.test\r\n\r\n"].concat();
    for target in [&b"/\xff\xfe"[..], b"/a\x01b", b"/a\x7fb"] {
        expect_refusal(&server, request(target), &[400]);
    }
    // A name in an older encoding, which does not exist.
    assert_eq!(server.exchange(request(b"/M\xe4rz")).status, 404);
    assert_eq!(server.exchange(request(b"/?q=M\xe4rz")).status, 200);
    let request = b"GET / HTTP/1.1\r\nHost: petrel.test\r\nX-A: \xff\xfe\r\n\r\n";
    assert_eq!(
        server.exchange(request).status,
        200,
        "obs-text in a value is allowed"
    );
}

#[test]
fn row_08_host() {
    let server = server();
    expect_refusal(&server, "GET / HTTP/1.1\r\n\r\n", &[400]);
    expect_refusal(
        &server,
        "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
        &[400],
    );
    expect_refusal(
        &server,
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        &[400],
    );
    for host in [
        "a b",
        "a/b",
        "a@b",
        "a,b",
        "a:b",
        "a:99999999",
        "[::1",
        "..",
        "a\\b",
        "%41",
        "a?b",
    ] {
        expect_refusal(
            &server,
            format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"),
            &[400],
        );
    }
    for host in [
        "petrel.test",
        "PETREL.TEST:80",
        "[::1]",
        "[::1]:80",
        "127.0.0.1",
        "a-b.c.",
    ] {
        let response = server.exchange(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(response.status, 200, "{host}");
    }
    assert_eq!(
        server.exchange("GET / HTTP/1.0\r\n\r\n").status,
        200,
        "HTTP/1.0 needs no Host"
    );
}

#[test]
fn row_09_chunks() {
    let server = server();
    let chunked = |body: &str| post("Transfer-Encoding: chunked", body);
    for body in [
        "-1\r\n\r\n",
        "x\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "\r\nhello\r\n0\r\n\r\n",
        "ffffffffffffffff1\r\nhello\r\n",
        "10000000000000000\r\nhello\r\n",
        "5\r\nhelloX\n0\r\n\r\n",
        "5\r\nhello0\r\n\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "5\rhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
        "5;\r\nhello\r\n0\r\n\r\n",
        "5;a,b\r\nhello\r\n0\r\n\r\n",
        "5\r\nhello\r\n0 \r\n\r\n",
    ] {
        expect_refusal(&server, chunked(body), &[400]);
    }
    let valid = chunked("5 ;a=b\r\nhello\r\n0;c=\"d e\"\r\n\r\n");
    assert_ne!(server.exchange(valid).status, 400);
}

#[test]
fn row_10_chunk_extensions_and_trailers_are_bounded() {
    let server = server();
    let chunked = |body: String| post("Transfer-Encoding: chunked", &body);
    let extension = format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(1 << 20));
    expect_refusal(&server, chunked(extension), &[400, 413, 431]);
    let many_extensions = "1;abcdefghijklmnopqrstuvwxyz\r\nx\r\n".repeat(50_000);
    expect_refusal(&server, chunked(many_extensions), &[400, 413, 431]);
    let trailers = format!("0\r\n{}\r\n", "X-Trailer: value\r\n".repeat(50_000));
    expect_refusal(&server, chunked(trailers), &[400, 413, 431]);
    let trailer = format!("0\r\nX-Trailer: {}\r\n\r\n", "x".repeat(1 << 20));
    expect_refusal(&server, chunked(trailer), &[400, 413, 431]);
}

#[test]
fn row_11_heads_over_the_limit() {
    let server = server();
    let target = format!(
        "GET /{} HTTP/1.1\r\nHost: petrel.test\r\n\r\n",
        "a".repeat(100_000)
    );
    expect_refusal(&server, target, &[414]);
    let method = format!("{} / HTTP/1.1\r\nHost: a\r\n\r\n", "M".repeat(100_000));
    expect_refusal(&server, method, &[400]);
    let field = format!(
        "GET / HTTP/1.1\r\nHost: petrel.test\r\nX-Long: {}\r\n\r\n",
        "a".repeat(100_000)
    );
    expect_refusal(&server, field, &[431]);
    let fields = "X-Many: 1\r\n".repeat(10_000);
    expect_refusal(
        &server,
        format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n"),
        &[431],
    );
}

#[test]
fn row_11_a_head_without_an_end_takes_no_memory() {
    let server = server();
    let before = server.processes().private_dirty_bytes();
    let mut clients: Vec<Client> = (0..20).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send("GET / HTTP/1.1\r\nHost: petrel.test\r\nX-Long: ");
        client.send(vec![b'a'; 1 << 20]);
    }
    for client in &mut clients {
        assert_eq!(client.response().status, 431);
    }
    let grown = server
        .processes()
        .private_dirty_bytes()
        .saturating_sub(before);
    assert!(grown < 8 << 20, "20 heads of 1 MiB took {grown} bytes");
}

#[test]
fn row_12_a_request_behind_a_refused_one_is_not_executed() {
    let server = server();
    let good = "GET / HTTP/1.1\r\nHost: petrel.test\r\n\r\n";
    let mut client = server.client();
    client.send(format!(
        "{good}GET / HTTP/1.1\r\nbad line\r\n\r\n{SMUGGLED}"
    ));
    assert_eq!(client.response().status, 200);
    assert_eq!(client.response().status, 400);
    client.expect_close();
}

#[test]
fn row_12_a_body_is_not_a_request() {
    let server = server();
    let mut client = server.client();
    let length = SMUGGLED.len();
    client.send(post(&format!("Content-Length: {length}"), SMUGGLED));
    assert_eq!(client.response().text(), "hello");
    client.expect_silence(Duration::from_millis(50));
    assert_eq!(client.get("/").text(), "hello");
}

#[test]
fn row_13_a_body_over_the_limit_is_not_asked_for() {
    let server = Server::start("server.max-request-size = 1");
    let expect = "Expect: 100-continue\r\nContent-Length: 1025";
    let response = expect_refusal(&server, post(expect, ""), &[413]);
    assert_eq!(response.interim, [0u16; 0], "no 100 before a 413");

    let mut client = server.client();
    client.send(post("Expect: 100-continue\r\nContent-Length: 1024", ""));
    assert_eq!(client.read_bytes(25), b"HTTP/1.1 100 Continue\r\n\r\n");
    client.send(vec![b'a'; 1024]);
    assert_eq!(client.response().status, 200);
}

#[test]
fn refusals_name_their_cause_in_the_log() {
    let server = server();
    expect_refusal(
        &server,
        post("Content-Length: 5\r\nContent-Length: 6", ""),
        &[400],
    );
    server.expect_log("Content-Length stands there more than once");
    server.expect_log("127.0.0.1");
}

#[test]
fn other_clients_are_not_affected() {
    let server = server();
    let mut other = server.client();
    for _ in 0..50 {
        expect_refusal(&server, "GET / HTTP/1.1\r\nbad line\r\n\r\n", &[400]);
        assert_eq!(other.get("/").text(), "hello");
    }
}
