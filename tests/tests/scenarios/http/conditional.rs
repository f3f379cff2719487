//! Conditional requests (RFC 9110 section 13).

use petrel_tests::Server;

fn server() -> Server {
    Server::build()
        .file("www/a.txt", "hello")
        .tree(|tree| {
            tree.modified("www/a.txt", MODIFIED_S);
        })
        .start()
}

const MODIFIED_S: u64 = 1_000_000_000;
const BEFORE: &str = "Sun, 09 Sep 2001 01:46:39 GMT";
const MODIFIED: &str = "Sun, 09 Sep 2001 01:46:40 GMT";
const AFTER: &str = "Sun, 09 Sep 2001 01:46:41 GMT";

#[test]
fn each_condition_by_itself() {
    let server = server();
    let mut client = server.client();
    let etag = client.get("/a.txt").field("ETag").expect("ETag").to_owned();
    let weak = format!("W/{etag}");
    let listed = format!("\"x\", {etag}, \"y\"");
    for (name, value, status) in [
        ("If-None-Match", etag.as_str(), 304),
        ("If-None-Match", &weak, 304),
        ("If-None-Match", &listed, 304),
        ("If-None-Match", "*", 304),
        ("If-None-Match", "\"x\"", 200),
        ("If-Match", &etag, 200),
        ("If-Match", &listed, 200),
        ("If-Match", "*", 200),
        ("If-Match", "\"x\"", 412),
        ("If-Match", &weak, 412),
        ("If-Modified-Since", BEFORE, 200),
        ("If-Modified-Since", MODIFIED, 304),
        ("If-Modified-Since", AFTER, 304),
        ("If-Modified-Since", "no date", 200),
        ("If-Modified-Since", "Sunday, 09-Sep-01 01:46:40 GMT", 304),
        ("If-Modified-Since", "Sun Sep  9 01:46:40 2001", 304),
        ("If-Unmodified-Since", BEFORE, 412),
        ("If-Unmodified-Since", MODIFIED, 200),
        ("If-Unmodified-Since", AFTER, 200),
        ("If-Unmodified-Since", "no date", 200),
    ] {
        let response = client.request("GET", "/a.txt", &[(name, value)]);
        assert_eq!(response.status, status, "{name}: {value}");
        let head = client.request("HEAD", "/a.txt", &[(name, value)]);
        assert_eq!(head.status, status, "HEAD {name}: {value}");
    }
}

#[test]
fn etags_count_more_than_dates() {
    let server = server();
    let mut client = server.client();
    let etag = client.get("/a.txt").field("ETag").expect("ETag").to_owned();
    let mut ask = |fields: &[(&str, &str)]| client.request("GET", "/a.txt", fields).status;
    assert_eq!(
        ask(&[("If-None-Match", "\"x\""), ("If-Modified-Since", MODIFIED)]),
        200
    );
    assert_eq!(
        ask(&[("If-None-Match", &etag), ("If-Modified-Since", BEFORE)]),
        304
    );
    assert_eq!(
        ask(&[("If-Match", &etag), ("If-Unmodified-Since", BEFORE)]),
        200
    );
    assert_eq!(
        ask(&[("If-Match", "\"x\""), ("If-Unmodified-Since", AFTER)]),
        412
    );
    assert_eq!(ask(&[("If-Match", "*"), ("If-None-Match", &etag)]), 304);
}

#[test]
fn a_304_says_what_a_cache_needs() {
    let server = server();
    let mut client = server.client();
    let whole = client.get("/a.txt");
    let etag = whole.field("ETag").expect("ETag").to_owned();
    let response = client.request("GET", "/a.txt", &[("If-None-Match", &etag)]);
    assert_eq!(response.status, 304);
    assert_eq!(response.field("ETag"), Some(etag.as_str()));
    assert!(response.field("Date").is_some());
    assert_eq!(response.body, b"");
    assert_eq!(
        client.get("/a.txt").text(),
        "hello",
        "nothing came behind it"
    );
}
