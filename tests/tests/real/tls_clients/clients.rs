//! Programs that people use, each for a moment, without a single error.

use std::process::Command;
use std::time::Duration;

use petrel_tests::{Finished, Server, curl, is_installed, run, skip};

use super::{https, in_the_clear, over_tls, trusted};

const LIMIT: Duration = Duration::from_secs(30);

/// `None`, if it is not there.
fn client(test: &str, program: &str, arguments: &[&str]) -> Option<Finished> {
    if !is_installed(program) {
        skip(test, &format!("there is no {program}"));
        return None;
    }
    Some(run(Command::new(program).args(arguments), LIMIT))
}

/// curl, which says the version of HTTP, the status and the length of each reply.
fn fetch(server: &Server, arguments: &[&str], urls: &[String]) -> String {
    let trusted = trusted(server);
    let mut all = vec!["--noproxy", "*", "--cacert", &trusted];
    all.extend(arguments);
    for url in urls {
        all.extend([
            "-o",
            "/dev/null",
            "-w",
            "%{http_version} %{http_code} %{size_download}\n",
        ]);
        all.extend(["--url", url, "--next"]);
        all.extend(["--noproxy", "*", "--cacert", &trusted]);
        all.extend(arguments);
    }
    all.truncate(all.len() - arguments.len() - 5);
    let finished = curl(&all);
    assert_eq!(finished.code(), 0, "{}", finished.errors);
    finished.text()
}

#[test]
fn curl_speaks_each_version_of_tls_and_http() {
    let server = over_tls().start();
    let urls = [https(&server, "/"), https(&server, "/1m.bin")];
    for (arguments, version) in [
        (&["--http2", "--tlsv1.3"][..], "2"),
        (&["--http2", "--tls-max", "1.2"], "2"),
        (&["--http1.1", "--tlsv1.3"], "1.1"),
        (&["--http1.1", "--tls-max", "1.2"], "1.1"),
    ] {
        let lines = fetch(&server, arguments, &urls);
        let expected = format!("{version} 200 5\n{version} 200 1048576\n");
        assert_eq!(lines, expected, "{arguments:?}");
    }
}

#[test]
fn curl_speaks_http_2_in_the_clear() {
    let server = in_the_clear().start();
    // With --http2 it asks by Upgrade. curl 7.88 gives up when more than 32 KiB come at once behind the 101.
    for (way, path, bytes) in [
        ("--http2-prior-knowledge", "/1m.bin", 1_048_576),
        ("--http2", "/4k.bin", 4096),
    ] {
        let wanted = "%{http_version} %{http_code} %{size_download}";
        let url = server.url(path);
        let finished = curl(&["--noproxy", "*", way, "-o", "/dev/null", "-w", wanted, &url]);
        let expected = format!("2 200 {bytes}");
        assert_eq!(finished.text(), expected, "{way}: {}", finished.errors);
    }
}

#[test]
fn curl_has_many_streams_at_a_time() {
    let server = over_tls().start();
    let trusted = trusted(&server);
    let urls: Vec<String> = (0..60).map(|_| https(&server, "/4k.bin")).collect();
    let mut arguments = vec![
        "--noproxy",
        "*",
        "--cacert",
        &trusted,
        "--http2",
        "--parallel",
        "--parallel-max",
        "20",
        "-w",
        "%{http_version} %{http_code} %{size_download}\n",
    ];
    for url in &urls {
        arguments.extend(["-o", "/dev/null", url]);
    }
    let finished = curl(&arguments);
    assert_eq!(finished.code(), 0, "{}", finished.errors);
    let text = finished.text();
    assert_eq!(
        text.lines().filter(|line| *line == "2 200 4096").count(),
        60,
        "{text}"
    );
}

/// `finished in …, requests: N total, …`: each of them succeeded.
#[track_caller]
fn expect_all_succeeded(finished: &Finished, requests: u32) {
    let text = finished.text();
    for line in [
        format!("{requests} succeeded, 0 failed, 0 errored, 0 timeout"),
        format!("status codes: {requests} 2xx, 0 3xx, 0 4xx, 0 5xx"),
    ] {
        assert!(text.contains(&line), "{line} in {text}{}", finished.errors);
    }
}

/// It takes so long because 11,000 small and 200 large files pass through a program that is not optimised.
#[test]
fn h2load_over_tls_and_in_the_clear() {
    let test = "h2load_over_tls_and_in_the_clear";
    let (tls, clear) = (over_tls().start(), in_the_clear().start());
    for (url, requests) in [
        (https(&tls, "/4k.bin"), 5000),
        (clear.url("/4k.bin"), 5000),
        (https(&tls, "/1m.bin"), 100),
        (clear.url("/1m.bin"), 100),
    ] {
        let count = requests.to_string();
        let Some(finished) = client(test, "h2load", &["-n", &count, "-c", "8", "-m", "32", &url])
        else {
            return;
        };
        expect_all_succeeded(&finished, requests);
    }
    let url = https(&tls, "/4k.bin");
    let arguments = ["--h1", "-n", "1000", "-c", "8", url.as_str()];
    if let Some(finished) = client(test, "h2load", &arguments) {
        expect_all_succeeded(&finished, 1000);
    }
}

/// It asks for a page and all that the page names, each at the priority that browsers once gave to its kind.
#[test]
fn nghttp_gets_a_page_with_its_parts() {
    let test = "nghttp_gets_a_page_with_its_parts";
    let page: String = (0..20)
        .map(|n| format!("<img src=\"/4k.bin?{n}\">"))
        .collect();
    let server = over_tls()
        .file("www/page.html", format!("<html><body>{page}</body></html>"))
        .config("mimetype.assign = (\".html\" => \"text/html\")")
        .start();
    let url = https(&server, "/page.html");
    let Some(finished) = client(
        test,
        "nghttp",
        &["-n", "-a", "-s", "--no-verify-peer", &url],
    ) else {
        return;
    };
    let text = finished.text();
    let answered = text.lines().filter(|line| line.contains(" 200 ")).count();
    assert_eq!(answered, 21, "{text}{}", finished.errors);
}

/// What openssl s_client or gnutls-cli came to when it asked for `/`.
fn asked(test: &str, program: &str, arguments: &[&str]) -> Option<String> {
    if !is_installed(program) {
        skip(test, &format!("there is no {program}"));
        return None;
    }
    // The pause keeps its standard input open until the reply is there.
    let script = "(printf 'GET / HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n'; sleep 3) | \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", program]).args(arguments);
    let finished = run(&mut command, LIMIT);
    Some(finished.text() + &finished.errors)
}

#[test]
fn openssl_speaks_1_2_and_1_3_and_nothing_older() {
    let test = "openssl_speaks_1_2_and_1_3_and_nothing_older";
    let server = over_tls().start();
    let (address, trusted) = (format!("localhost:{}", server.port()), trusted(&server));
    let usual = [
        "s_client",
        "-connect",
        &address,
        "-CAfile",
        &trusted,
        "-verify_return_error",
    ];
    for (version, said) in [
        ("-tls1_2", "New, TLSv1.2, Cipher is ECDHE-ECDSA-"),
        ("-tls1_3", "New, TLSv1.3, Cipher is TLS_"),
    ] {
        let Some(text) = asked(test, "openssl", &[&usual[..], &[version]].concat()) else {
            return;
        };
        assert!(
            text.contains(said) && text.contains("HTTP/1.1 200 OK"),
            "{version}: {text}"
        );
        assert!(
            text.contains("Verify return code: 0 (ok)"),
            "{version}: {text}"
        );
    }
    // Security level 0 lets the client try.
    let old = [&usual[..], &["-tls1_1", "-cipher", "DEFAULT:@SECLEVEL=0"]].concat();
    if let Some(text) = asked(test, "openssl", &old) {
        assert!(
            !text.contains("HTTP/1.1 200 OK") && text.contains("Cipher is (NONE)"),
            "{text}"
        );
    }
}

#[test]
fn gnutls_speaks_1_2_and_1_3_and_resumes() {
    let test = "gnutls_speaks_1_2_and_1_3_and_resumes";
    let server = over_tls().start();
    let (port, trusted) = (server.port().to_string(), trusted(&server));
    for version in ["TLS1.2", "TLS1.3"] {
        let priority = format!("NORMAL:-VERS-ALL:+VERS-{version}");
        let arguments = [
            "--port",
            &port,
            "--x509cafile",
            &trusted,
            "--priority",
            &priority,
            "localhost",
        ];
        let Some(text) = asked(test, "gnutls-cli", &arguments) else {
            return;
        };
        assert!(text.contains("HTTP/1.1 200 OK"), "{version}: {text}");
        assert!(
            text.contains("Status: The certificate is trusted."),
            "{version}: {text}"
        );
    }
    let arguments = [
        "--port",
        &port,
        "--x509cafile",
        &trusted,
        "--resume",
        "localhost",
    ];
    if let Some(text) = asked(test, "gnutls-cli", &arguments) {
        assert!(text.contains("This is a resumed session"), "{text}");
    }
}
