//! HTTP/2 without TLS, as clients see it.

use std::process::Command;
use std::time::Duration;

use petrel_tests::{Finished, Server, curl, is_installed, run};

const H2C: &str = "server.h2c = \"enable\"\nserver.max-worker = 1";

fn server() -> Server {
    let numbers: String = (0..400_000)
        .map(|number| format!("{number:07}\n"))
        .collect();
    Server::build()
        .file("www/index.html", "hello")
        .file("www/large.txt", numbers)
        .file("www/empty.txt", "")
        .config(H2C)
        .config("server.modules += ( \"mod_status\", \"mod_accesslog\" )")
        .config("status.statistics-url = \"/counters\"")
        .start()
}

fn ran(program: &str, arguments: &[&str]) -> Finished {
    run(
        Command::new(program).args(arguments),
        Duration::from_secs(120),
    )
}

/// Version, status and length, as curl prints them.
const SEEN: &str = " %{http_version} %{http_code} %{size_download}";

#[test]
fn curl_begins_with_it_or_asks_for_it() {
    let server = server();
    for how in ["--http2-prior-knowledge", "--http2"] {
        for (arguments, path, expected) in [
            (&[][..], "/", "hello 2 200 5"),
            (&["--head", "--output", "/dev/null"], "/", " 2 200 0"),
            (&[], "/empty.txt", " 2 200 0"),
            (&["--range", "8-14"], "/large.txt", "0000001 2 206 7"),
            (&["--output", "/dev/null"], "/large.txt", " 2 200 3200000"),
            (&["--output", "/dev/null"], "/missing", " 2 404 "),
            (
                &["--output", "/dev/null", "--data", "a=b"],
                "/missing",
                " 404 ",
            ),
        ] {
            let url = server.url(path);
            let all = [&[how, "--write-out", SEEN][..], arguments, &[&url]].concat();
            let finished = curl(&all);
            let text = finished.text();
            assert!(
                text.contains(expected),
                "{all:?}: {text} {}",
                finished.errors
            );
        }
    }
    let counters = server.get("/counters").text();
    assert!(counters.contains("server.http2.ended.rapid-reset: 0"));
}

#[test]
fn an_upload_that_is_refused_early_gets_its_answer() {
    let server = server();
    let large = server.tree().path("www/large.txt");
    let url = server.url("/upload");
    for _ in 0..5 {
        let finished = curl(&[
            "--http2-prior-knowledge",
            "--upload-file",
            large.to_str().expect("a plain path"),
            "--output",
            "/dev/null",
            "--write-out",
            "%{http_code}",
            &url,
        ]);
        assert_eq!(finished.text(), "404", "{}", finished.errors);
    }
}

#[test]
fn a_load_of_streams_is_answered_by_few_connections() {
    let server = server();
    if !is_installed("h2load") {
        return;
    }
    let arguments = ["-n", "3000", "-c", "4", "-m", "16", &server.url("/")];
    let text = ran("h2load", &arguments).text();
    assert!(text.contains("3000 succeeded, 0 failed"), "{text}");
    let arguments = ["-n", "20", "-c", "2", "-m", "5", &server.url("/large.txt")];
    let text = ran("h2load", &arguments).text();
    assert!(text.contains("20 succeeded, 0 failed"), "{text}");
}
