//! Byte ranges.

use petrel_tests::{Response, Server};

const DIGITS: &str = "0123456789abcdefghijklmnopqrstuvwxyz";

fn server(config: &str) -> Server {
    Server::build()
        .file("www/digits.txt", DIGITS)
        .file("www/empty.txt", "")
        .config(config)
        .start()
}

fn range(server: &Server, value: &str) -> Response {
    server
        .client()
        .request("GET", "/digits.txt", &[("Range", value)])
}

#[test]
fn single_ranges() {
    let server = server("");
    for (value, content_range, body) in [
        ("bytes=0-4", "bytes 0-4/36", "01234"),
        ("bytes=30-", "bytes 30-35/36", "uvwxyz"),
        ("bytes=-3", "bytes 33-35/36", "xyz"),
        ("bytes=-100", "bytes 0-35/36", DIGITS),
        ("bytes=35-100", "bytes 35-35/36", "z"),
        ("BYTES=1-1", "bytes 1-1/36", "1"),
    ] {
        let response = range(&server, value);
        assert_eq!(
            (response.status, response.text().as_str()),
            (206, body),
            "{value}"
        );
        assert_eq!(
            response.field("Content-Range"),
            Some(content_range),
            "{value}"
        );
        assert_eq!(response.field("Accept-Ranges"), Some("bytes"));
    }
}

#[test]
fn ranges_that_cannot_be_had() {
    let server = server("");
    for value in ["bytes=36-", "bytes=100-200", "bytes=-0"] {
        let response = range(&server, value);
        assert_eq!(response.status, 416, "{value}");
        assert_eq!(
            response.field("Content-Range"),
            Some("bytes */36"),
            "{value}"
        );
    }
}

#[test]
fn what_is_no_range_is_ignored() {
    let server = server("");
    for value in [
        "bytes=5-4",
        "bytes=a-b",
        "bytes=",
        "lines=0-4",
        "bytes 0-4",
        "bytes=--1",
        "0-4",
    ] {
        let response = range(&server, value);
        assert!(
            matches!(response.status, 200 | 416),
            "{value} {}",
            response.status
        );
        if response.status == 200 {
            assert_eq!(response.text(), DIGITS, "{value}");
        }
    }
}

#[test]
fn several_ranges_are_parts() {
    let server = Server::build()
        .file("www/long.txt", DIGITS.repeat(10))
        .start();
    let fields = [("Range", "bytes=0-1,110-111,-2")];
    let response = server.client().request("GET", "/long.txt", &fields);
    assert_eq!(response.status, 206);
    let content_type = response.field("Content-Type").expect("a type");
    let boundary = content_type
        .strip_prefix("multipart/byteranges; boundary=")
        .unwrap_or_else(|| panic!("{content_type}"))
        .trim_matches('"');
    let text = response.text();
    let parts: Vec<&str> = text.split(&format!("--{boundary}")).collect();
    assert_eq!(parts.len(), 5, "{text}");
    for (part, (content_range, body)) in parts[1..4].iter().zip([
        ("Content-Range: bytes 0-1/360", "01"),
        ("Content-Range: bytes 110-111/360", "23"),
        ("Content-Range: bytes 358-359/360", "yz"),
    ]) {
        let (head, content) = part.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains(content_range), "{head}");
        assert!(head.contains("Content-Type: text/plain"), "{head}");
        assert_eq!(content, format!("{body}\r\n"));
    }
    assert!(parts[4].starts_with("--"), "{text}");
}

#[test]
fn ranges_that_are_near_are_merged() {
    let server = server("");
    for (value, text) in [
        ("bytes=0-4,5-9", "0123456789"),
        ("bytes=0-1,8-9", "0123456789"),
    ] {
        let response = range(&server, value);
        assert_eq!((response.status, response.text()), (206, text.to_owned()));
    }
}

#[test]
fn if_range() {
    let server = server("");
    let mut client = server.client();
    let whole = client.get("/digits.txt");
    let etag = whole.field("ETag").expect("ETag").to_owned();
    let modified = whole
        .field("Last-Modified")
        .expect("Last-Modified")
        .to_owned();
    let mut ask = |value: &str| {
        client.request(
            "GET",
            "/digits.txt",
            &[("Range", "bytes=0-4"), ("If-Range", value)],
        )
    };
    assert_eq!(ask(&etag).status, 206);
    assert_eq!(ask("\"another\"").status, 200);
    assert_eq!(
        ask(&format!("W/{etag}")).status,
        200,
        "If-Range compares strongly"
    );
    assert_eq!(ask("Thu, 01 Jan 1970 00:00:00 GMT").status, 200);
    let by_date = ask(&modified).status;
    assert!(
        matches!(by_date, 200 | 206),
        "a date of this very second is weak"
    );
}

#[test]
fn ranges_can_be_switched_off() {
    let server = server("server.range-requests = \"disable\"");
    let response = range(&server, "bytes=0-4");
    assert_eq!((response.status, response.text().as_str()), (200, DIGITS));
    assert_ne!(response.field("Accept-Ranges"), Some("bytes"));
}

#[test]
fn ranges_of_large_files_come_from_the_right_place() {
    let content: Vec<u8> = (0..3_000_000u32)
        .flat_map(|number| [(number >> 8) as u8, number as u8])
        .collect();
    let server = Server::build().file("www/big.bin", &content).start();
    let mut client = server.client();
    for (first, last) in [(0, 99), (1_000_001, 4_999_999), (5_999_990, 5_999_999)] {
        let value = format!("bytes={first}-{last}");
        let response = client.request("GET", "/big.bin", &[("Range", &value)]);
        assert_eq!(response.status, 206);
        assert!(response.body == content[first..=last], "{value}");
    }
}

#[test]
fn head_ignores_a_range_and_an_empty_file_has_none() {
    let server = server("");
    let mut client = server.client();
    let head = client.request("HEAD", "/digits.txt", &[("Range", "bytes=0-4")]);
    assert_eq!(
        (head.status, head.field("Content-Range")),
        (200, None),
        "{head}"
    );
    let empty = client.request("GET", "/empty.txt", &[("Range", "bytes=0-4")]);
    assert_eq!((empty.status, empty.body.len()), (200, 0), "{empty}");
}
