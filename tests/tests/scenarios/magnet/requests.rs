//! Scripts with bodies, interim responses and persistent connections.

use crate::magnet::{ANSWER, PATH, URL, with_scripts};

#[test]
fn a_script_answers_request_after_request() {
    let script = "lighty.content = { lighty.r.req_item.req_count } return 200";
    let server = with_scripts(&[("count", URL, script)]).start();
    let mut client = server.client();
    for number in 1..5 {
        assert_eq!(client.get("/count").text(), number.to_string());
    }
    let head = client.request("HEAD", "/count", &[]);
    assert_eq!(
        (head.status, head.field("Content-Length")),
        (200, Some("1"))
    );
}

#[test]
fn early_hints_come_before_the_answer() {
    let hints = "lighty.header['Link'] = '</a.css>; rel=preload' return 103";
    let server = with_scripts(&[("a.txt", URL, hints)]).start();
    let mut client = server.client();
    client.send("GET /a.txt HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    let bytes = String::from_utf8_lossy(&client.read_to_end()).into_owned();
    let expected =
        "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\nHTTP/1.1 200 OK\r\n";
    assert!(bytes.starts_with(expected), "{bytes}");
    assert_eq!(bytes.matches("Link:").count(), 1, "{bytes}");
    // HTTP/1.0 has no interim responses.
    let mut client = server.client();
    client.send("GET /a.txt HTTP/1.0\r\n\r\n");
    let bytes = String::from_utf8_lossy(&client.read_to_end()).into_owned();
    assert!(
        bytes.contains(" 200 OK\r\n") && !bytes.contains(" 103 "),
        "{bytes}"
    );
}

#[test]
fn a_body_that_comes_late_is_waited_for() {
    let script = "local b = lighty.r.req_body if not b.collect then return 400 end
        lighty.content = { #b.get, ' ', b.get:sub(1, 3) } return 200";
    let server = with_scripts(&[("post", URL, script)])
        .config("server.max-worker = 1")
        .start();
    let mut slow = server.client();
    slow.send("POST /post HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\nab");
    assert_eq!(server.get("/a.txt").status, 200);
    slow.send("cdef");
    assert_eq!(slow.response().text(), "6 abc");
    // Larger than what is kept in memory, and in chunks.
    let large = "x".repeat(3 << 20);
    let mut client = server.client();
    client.send(format!(
        "POST /post HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{large}\r\n0\r\n\r\n",
        large.len()
    ));
    assert_eq!(client.response().text(), format!("{} xxx", large.len()));
    assert_eq!(client.get("/a.txt").status, 200);
}

#[test]
fn files_are_sent_as_they_are() {
    let script = "local root = lighty.env['physical.doc-root']
        lighty.content = { '<', { filename = root .. '/big.bin' }, '>', { filename = root .. '/a.txt', offset = 3 } } return 200";
    let big = vec![b'y'; 300_000];
    let server = with_scripts(&[("files", PATH, script)])
        .file("www/big.bin", &big)
        .start();
    let response = server.get("/files");
    let expected = [b"<", &*big, b">3456789"].concat();
    assert_eq!(
        response.field("Content-Length"),
        Some(expected.len().to_string().as_str())
    );
    assert!(response.body == expected);
}

#[test]
fn three_hooks_of_one_request() {
    let server = with_scripts(&[])
        .file(
            "1.lua",
            "lighty.env['uri.path'] = '/a.txt' lighty.req_env['SEEN'] = 'url'",
        )
        .file(
            "2.lua",
            "lighty.req_env['SEEN'] = lighty.req_env['SEEN'] .. ' path'",
        )
        .file(
            "3.lua",
            "lighty.header['X-Seen'] = lighty.req_env['SEEN'] .. ' answer'",
        )
        .config(
            "magnet.attract-raw-url-to = (var.dir + \"/1.lua\")
             magnet.attract-physical-path-to = (var.dir + \"/2.lua\")
             magnet.attract-response-start-to = (var.dir + \"/3.lua\")",
        )
        .start();
    let response = server.get("/anything");
    assert_eq!(response.text(), "0123456789");
    assert_eq!(response.field("X-Seen"), Some("url path answer"));
}

#[test]
fn prints_go_to_the_log() {
    let script = "print('a word', 5, nil, true) print() return 204";
    let server = with_scripts(&[("print", URL, script)]).start();
    assert_eq!(server.get("/print").status, 204);
    server.expect_log("(lua-print) a word\\x095\\x09nil\\x09true");
}

#[test]
fn a_script_changes_when_its_file_does() {
    let server = with_scripts(&[("s", URL, "lighty.content = { 'one' } return 200")]).start();
    assert_eq!(server.get("/s").text(), "one");
    for text in ["two", "three"] {
        let script = format!("lighty.content = {{ '{text}' }} return 200");
        server.tree().replace("s.lua", script);
        assert!(petrel_tests::eventually(|| server.get("/s").text() == text));
    }
}

#[test]
fn answers_of_the_server_itself_are_changed_as_well() {
    let script = "lighty.header['X-Status'] = lighty.r.req_item.http_status";
    let server = with_scripts(&[("no", ANSWER, script)]).start();
    let response = server.get("/no/such/file");
    assert_eq!(
        (response.status, response.field("X-Status")),
        (404, Some("404"))
    );
}
