//! Measures what a request costs before the server acts on it: parsing its head and normalising its URL.
//!
//! `cargo run --release -p petrel-proto --example request_cost` prints nanoseconds for some requests, the
//! best of several rounds. It is meant for comparing two versions of the code on one machine.
#![expect(
    clippy::disallowed_types,
    reason = "the crate has no clock; this measures it from outside"
)]

use std::hint::black_box;
use std::time::Instant;

use petrel_proto::http1::{Parsed, write_content_length};
use petrel_proto::request_head::{HeadOptions, RequestHead};
use petrel_proto::url::{Url, UrlOptions};

const WRK: &str = "GET /index.html HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n";

const CURL: &str = "GET /index.html HTTP/1.1\r\nHost: localhost:8080\r\nUser-Agent: curl/8.5.0\r\n\
    Accept: */*\r\nConnection: keep-alive\r\n\r\n";

const BROWSER: &str = "GET /static/css/site.css?v=12 HTTP/1.1\r\nHost: www.example.org\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n\
    Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n\
    Accept-Language: en-US,en;q=0.5\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n\
    Connection: keep-alive\r\nReferer: https://www.example.org/index.html\r\n\
    If-None-Match: \"1234567890\"\r\n\r\n";

const ENCODED: &str = "GET /a%20directory/../b%c3%a4/file.html?q=%41 HTTP/1.1\r\n\
    Host: www.example.org\r\nAccept: */*\r\n\r\n";

fn main() {
    let long_url = format!(
        "GET /{}index.php HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "abcdef/".repeat(74)
    );
    println!(
        "{:<28} {:>9} {:>9} {:>9}",
        "request", "head ns", "url ns", "both ns"
    );
    let requests = [
        ("1 field, address as host", WRK),
        ("4 fields", CURL),
        ("8 fields", BROWSER),
        ("encoded URL", ENCODED),
        ("URL of 531 bytes", &long_url),
    ];
    for (name, request) in requests {
        measure(name, request.as_bytes());
    }
    let mut out = Vec::with_capacity(64);
    let ns = best_of_rounds(|| {
        out.clear();
        write_content_length(&mut out, black_box(123_456));
    });
    println!("{:<28} {ns:>9.1}", "write Content-Length");
}

fn measure(name: &str, request: &[u8]) {
    let (mut head, mut url) = (RequestHead::new(), Url::new());
    let head_options = HeadOptions::default();
    let url_options = UrlOptions::default();
    let head_ns = best_of_rounds(|| {
        head.clear();
        let parsed = head.parse(black_box(request), &head_options);
        assert_eq!(
            parsed,
            Ok(Parsed::Complete {
                length: request.len()
            })
        );
    });
    let url_ns = best_of_rounds(|| {
        let parsed = url.parse(black_box(head.target()), head.method(), &url_options);
        assert_eq!(parsed, Ok(()));
    });
    println!(
        "{name:<28} {head_ns:>9.1} {url_ns:>9.1} {:>9.1}",
        head_ns + url_ns
    );
}

/// Nanoseconds per call, in the fastest of twenty rounds.
fn best_of_rounds(mut call: impl FnMut()) -> f64 {
    const CALLS: u32 = 50_000;
    let round = |call: &mut dyn FnMut()| {
        let start = Instant::now();
        for _ in 0..CALLS {
            call();
        }
        start.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    (0..20)
        .map(|_| round(&mut call))
        .fold(f64::INFINITY, f64::min)
}
