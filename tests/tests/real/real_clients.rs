//! Well-known client programs: each runs for a few seconds without a single error.

use std::process::Command;
use std::time::Duration;

use petrel_tests::{Finished, Server, curl, run};

const LIMIT: Duration = Duration::from_secs(30);

fn server() -> Server {
    Server::build()
        .file("www/index.html", "hello")
        .file("www/4k.bin", vec![b'x'; 4096])
        .file(
            "www/1m.bin",
            (0..1 << 20).map(|at| (at % 251) as u8).collect::<Vec<u8>>(),
        )
        .config("server.max-keep-alive-requests = 65535")
        .start()
}

fn tool(program: &str, arguments: &[&str]) -> Finished {
    run(Command::new(program).args(arguments), LIMIT)
}

/// The number after `label` in a program's output.
#[track_caller]
fn number(text: &str, label: &str) -> u64 {
    let (_, behind) = text
        .split_once(label)
        .unwrap_or_else(|| panic!("no {label:?} in {text}"));
    let digits: String = behind
        .trim_start()
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits
        .parse()
        .unwrap_or_else(|_| panic!("no number behind {label:?} in {text}"))
}

#[test]
fn curl_on_one_connection() {
    let server = server();
    let urls: Vec<String> = (0..50).map(|_| server.url("/4k.bin")).collect();
    let mut arguments = vec!["-w", "%{http_code} %{num_connects}\n"];
    for url in &urls {
        arguments.extend(["-o", "/dev/null", url]);
    }
    let finished = curl(&arguments);
    let lines = finished.text();
    assert_eq!(
        lines.lines().filter(|line| line.starts_with("200")).count(),
        50,
        "{lines}"
    );
    assert_eq!(
        lines.lines().filter(|line| line.ends_with(" 1")).count(),
        1,
        "one connection: {lines}"
    );
    let finished = curl(&["--fail", "--range", "1000-1999", &server.url("/1m.bin")]);
    assert!(
        finished
            .output
            .iter()
            .zip(1000..2000)
            .all(|(byte, at)| usize::from(*byte) == at % 251)
    );
    assert_eq!(finished.output.len(), 1000);
}

#[test]
fn curl_resumes_a_download() {
    let server = server();
    let whole = server.tree().read("www/1m.bin");
    server.tree().write("part", &whole[..500_000]);
    let path = server.tree().path("part").display().to_string();
    let finished = curl(&[
        "--fail",
        "--continue-at",
        "-",
        "--output",
        &path,
        &server.url("/1m.bin"),
    ]);
    assert_eq!(finished.code(), 0, "{}", finished.errors);
    assert!(server.tree().read("part") == whole);
}

#[test]
fn wget_mirrors_a_tree() {
    let server = Server::build()
        .tree(|tree| {
            for number in 0..40 {
                tree.write(
                    &format!("www/d{}/{number}.html", number % 4),
                    format!("<p>page {number}"),
                );
            }
            let links: String = (0..40)
                .map(|number| format!("<a href=\"d{}/{number}.html\">x</a>", number % 4))
                .collect();
            tree.write("www/index.html", links).directory("copy");
        })
        .start();
    let directory = server.tree().path("copy").display().to_string();
    let url = server.url("/");
    let finished = tool("wget", &["-q", "--mirror", "-nH", "-P", &directory, &url]);
    assert_eq!(finished.code(), 0, "{}", finished.errors);
    for number in 0..40 {
        let path = format!("d{}/{number}.html", number % 4);
        assert_eq!(
            server.tree().read(&format!("copy/{path}")),
            server.tree().read(&format!("www/{path}"))
        );
    }
}

/// It takes so long because h2load runs twice, for two seconds each.
#[test]
fn h2load_in_http_1_mode() {
    let server = server();
    for path in ["/4k.bin", "/1m.bin"] {
        let finished = tool(
            "h2load",
            &["--h1", "-D", "2", "-c", "32", "-m", "4", &server.url(path)],
        );
        let text = finished.text();
        assert_eq!(finished.code(), 0, "{text}{}", finished.errors);
        let (_, requests) = text.split_once("requests: ").expect("a summary");
        let count = |what: &str| -> u64 {
            let words: Vec<&str> = requests
                .lines()
                .next()
                .unwrap_or_default()
                .split([' ', ','])
                .collect();
            let at = words
                .iter()
                .position(|word| *word == what)
                .expect("a count");
            words[at - 1].parse().expect("a number")
        };
        assert!(count("succeeded") > 100, "{text}");
        assert_eq!(
            (count("failed"), count("errored"), count("timeout")),
            (0, 0, 0),
            "{text}"
        );
    }
}

/// It takes so long because ab asks 23,000 times.
#[test]
fn ab_with_and_without_keep_alive() {
    let server = server();
    for (keep, requests) in [(Some("-k"), "5000"), (None, "1000")] {
        let mut arguments: Vec<&str> = keep.into_iter().collect();
        let url = server.url("/4k.bin");
        arguments.extend(["-q", "-n", requests, "-c", "16", &url]);
        let text = tool("ab", &arguments).text();
        assert_eq!(
            number(&text, "Complete requests:").to_string(),
            requests,
            "{text}"
        );
        assert_eq!(number(&text, "Failed requests:"), 0, "{text}");
        assert!(!text.contains("Non-2xx"), "{text}");
    }
}

#[test]
fn wrk() {
    let server = server();
    for path in ["/", "/4k.bin"] {
        let finished = tool(
            "wrk",
            &["-t", "1", "-c", "32", "-d", "2s", &server.url(path)],
        );
        let text = finished.text();
        assert!(text.contains("requests in"), "{text}");
        assert!(
            !text.contains("Socket errors") && !text.contains("Non-2xx"),
            "{text}"
        );
    }
}
