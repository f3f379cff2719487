//! Well-known load generators: each runs for a while without an error.

use std::process::Command;
use std::time::Duration;

use petrel_tests::{Finished, Server, eventually, is_installed, run, skip};

/// How long each runs, in seconds, and how many connections it opens.
const SECONDS: u32 = 5;
const CONNECTIONS: u32 = 32;

/// A client keeps its own time no better than the machine allows.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `client` against a server, which must hold no connection and have logged nothing afterwards.
fn against_a_server(test: &str, arguments: &[&str], target: &str, is_clean: fn(&str) -> bool) {
    let [program, arguments @ ..] = arguments else {
        panic!("a client has a name");
    };
    if !is_installed(program) {
        return skip(test, &format!("{program} is not installed"));
    }
    let server = Server::build()
        .file("www/index.html", "a page of some length\n".repeat(200))
        .config("server.max-keep-alive-requests = 100000000")
        .start();
    assert_eq!(server.get("/").status, 200);
    // This line comes some time after the start.
    server.expect_log("files: ");
    // Each worker opens the file for itself, so only sockets and processes count that a client could leave
    // behind.
    let held = || {
        let holdings = server.holdings();
        (
            holdings.processes,
            holdings.descriptors.get("socket").copied(),
        )
    };
    let (before, log) = (held(), server.log());
    let finished: Finished = run(
        Command::new(program)
            .args(arguments)
            .arg(server.url(target)),
        PATIENCE,
    );
    let report = finished.text();
    assert_eq!(finished.code(), 0, "{report}{}", finished.errors);
    assert!(is_clean(&report), "{report}{}", finished.errors);
    assert!(eventually(|| held() == before), "{:?}", held());
    assert_eq!(server.log(), log);
}

/// It takes the five seconds for which the program runs.
#[test]
fn ab_runs_clean() {
    let (seconds, connections) = (SECONDS.to_string(), CONNECTIONS.to_string());
    // `-t` without `-n` ends after 50,000 requests.
    let arguments = [
        "ab",
        "-k",
        "-q",
        "-c",
        &connections,
        "-t",
        &seconds,
        "-n",
        "100000000",
    ];
    against_a_server("ab_runs_clean", &arguments, "/", |report| {
        let has_no_failure = report.contains("Failed requests:        0\n");
        has_no_failure && !report.contains("Non-2xx") && !report.contains("Write errors")
    });
}

/// It takes the five seconds for which the program runs.
#[test]
fn wrk_runs_clean() {
    let (seconds, connections) = (format!("-d{SECONDS}s"), format!("-c{CONNECTIONS}"));
    let arguments = ["wrk", "-t1", &connections, &seconds, "--latency"];
    against_a_server("wrk_runs_clean", &arguments, "/", |report| {
        let has_run = report.contains(" requests in ");
        has_run && !report.contains("Socket errors") && !report.contains("Non-2xx")
    });
}

/// It takes the five seconds for which the program runs.
#[test]
fn h2load_runs_clean_in_http1() {
    let (seconds, connections) = (format!("-D{SECONDS}"), format!("-c{CONNECTIONS}"));
    let arguments = ["h2load", "--h1", &connections, &seconds];
    against_a_server("h2load_runs_clean_in_http1", &arguments, "/", |report| {
        let has_no_failure = report.contains(" 0 failed, 0 errored, 0 timeout");
        has_no_failure && report.contains(" 2xx, 0 3xx, 0 4xx, 0 5xx")
    });
}

/// It takes so long because curl fetches 5000 pages.
#[test]
fn curl_runs_clean_in_parallel() {
    let quiet = [
        "--silent",
        "--show-error",
        "--fail",
        "--output",
        "/dev/null",
    ];
    let parallel = ["--parallel", "--parallel-max", "32"];
    let format = ["--write-out", "%{http_code} %{size_download}\n", "--url"];
    let arguments = [&["curl"], &quiet[..], &parallel, &format].concat();
    against_a_server(
        "curl_runs_clean_in_parallel",
        &arguments,
        "/?[1-5000]",
        |report| report.lines().filter(|line| *line == "200 4400").count() == 5000,
    );
}
