//! Suites that try what the standards demand, and what no server should offer any more.

use std::process::Command;
use std::time::Duration;

use petrel_tests::{Builder, Finished, Server, run, skip, tool};

use super::{in_the_clear, over_tls};

/// A script that answers when the request has ended.
///
/// Some of h2spec's tests send a head, leave the request open and break a rule in the next frame. A server that has
/// answered by then rightly closes the stream with NO_ERROR, which h2spec does not expect.
const ANSWERS_WHOLE_REQUESTS: &str = r#"
local r = lighty.r
if not r.req_body.collect then
    return 0
end
r.resp_body.set("hello")
return 200
"#;

/// A site whose answers wait for the end of their requests, of GET too.
fn patient(site: Builder) -> Server {
    site.file("answer.lua", ANSWERS_WHOLE_REQUESTS)
        .config("server.http-parseopts = (\"method-get-body\" => \"enable\")")
        .config("server.modules += (\"mod_magnet\")\nmagnet.attract-raw-url-to = (var.dir + \"/answer.lua\")")
        .start()
}

/// All of its tests, on one port.
fn h2spec(test: &str, server: &Server, arguments: &[&str]) -> Option<Finished> {
    let folder = tool("h2spec").map_err(|why| skip(test, &why)).ok()?;
    let mut command = Command::new(folder.join("h2spec"));
    command
        .args(["--host", "localhost", "--timeout", "3", "--port"])
        .arg(server.port().to_string())
        .args(arguments);
    Some(run(&mut command, Duration::from_secs(60)))
}

#[track_caller]
fn expect_all_passed(finished: &Finished) {
    let text = finished.text();
    let failures = text
        .split_once("Failures:")
        .map_or("", |(_, failures)| failures);
    assert!(
        text.contains("145 tests, 145 passed, 0 skipped, 0 failed"),
        "{failures}{}",
        finished.errors
    );
}

#[test]
fn h2spec_in_the_clear() {
    let server = patient(in_the_clear());
    if let Some(finished) = h2spec("h2spec_in_the_clear", &server, &[]) {
        expect_all_passed(&finished);
    }
}

/// As h2spec wants it of a connection's beginning. Later, a bad request line is one of HTTP/1.
#[test]
fn what_begins_like_neither_version_is_not_answered() {
    let server = in_the_clear().start();
    server
        .client()
        .send("INVALID CONNECTION PREFACE\r\n\r\n")
        .expect_close();
    server.expect_log("neither HTTP/1 nor HTTP/2 begins like this");
    let mut client = server.client();
    assert_eq!(client.get("/").status, 200);
    let response = client.send("INVALID CONNECTION PREFACE\r\n\r\n").response();
    assert_eq!(response.status, 400);
    let hello = b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00\r\n\r\n";
    assert_eq!(server.client().send(hello).response().status, 400);
}

#[test]
fn h2spec_over_tls() {
    let server = patient(over_tls());
    if let Some(finished) = h2spec("h2spec_over_tls", &server, &["--tls", "--insecure"]) {
        expect_all_passed(&finished);
    }
}

/// What Mozilla recommends for a public server that is to be reached by all clients of today. The certificate is signed by
/// itself here, which sslyze says, and nothing else.
#[test]
fn sslyze_finds_mozilla_s_intermediate_configuration() {
    let test = "sslyze_finds_mozilla_s_intermediate_configuration";
    let folder = match tool("sslyze") {
        Ok(folder) => folder,
        Err(why) => return skip(test, &why),
    };
    let server = over_tls().start();
    let mut command = Command::new("python3");
    command
        .args(["-m", "sslyze", "--mozilla_config=intermediate"])
        .arg(format!("localhost:{}", server.port()))
        .env("PYTHONPATH", folder);
    let finished = run(&mut command, Duration::from_secs(60));
    let text = finished.text();
    let (_, complaints) = text
        .split_once("Checking results against Mozilla's \"intermediate\" configuration")
        .unwrap_or_else(|| panic!("{text}{}", finished.errors));
    let complaints: Vec<_> = complaints
        .lines()
        .filter_map(|line| line.trim().strip_prefix("* "))
        .filter(|line| !line.starts_with("certificate_path_validation"))
        .collect();
    assert_eq!(complaints, [""; 0], "{text}");
    for harmless in [
        "Heartbleed",
        "OpenSSL CCS Injection",
        "Session Renegotiation",
    ] {
        assert!(text.contains(harmless), "{harmless} was tried: {text}");
    }
    assert!(!text.contains("VULNERABLE"), "{text}");
}
