//! Programs that are started per request: shell and Perl.

use petrel_tests::{Builder, Server, can_run, eventually};
use rustix::process::{Pid, test_kill_process};

use crate::real_backends::{numbers, post};

fn scripts() -> Builder {
    Server::build()
        .file(
            "www/hello.sh",
            "printf 'Content-Type: text/plain\\r\\n\\r\\nhello %s' \"$QUERY_STRING\"",
        )
        .file(
            "www/echo.pl",
            "local $/; my $body = <STDIN>; print \"Content-Type: text/plain\\n\\n$body\";",
        )
        .file("www/status.sh", "printf 'Status: 418 Teapot\\n\\nshort and stout'")
        .file("www/away.sh", "printf 'Location: /elsewhere\\n\\n'")
        .file("www/own.cgi", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nown %s %s' \"$SCRIPT_NAME\" \"$PATH_INFO\"")
        .file("www/not-executable.cgi", "#!/bin/sh\nprintf 'Content-Type: text/plain\\n\\nno'")
        .file("www/silent.sh", "exit 0")
        .file("www/dies.sh", "kill -9 $$")
        .file("www/complains.sh", "echo 'a complaint' >&2; printf 'Content-Type: text/plain\\n\\nfine'")
        .file("www/hangs.sh", "echo $$ > \"$DOCUMENT_ROOT/pid\"; exec sleep 100")
        .file("www/descriptors.sh", "printf 'Content-Type: text/plain\\n\\n'; ls /proc/self/fd")
        .file("www/environment.sh", "printf 'Content-Type: text/plain\\n\\n'; env")
        .file(
            "www/big.pl",
            "print \"Content-Type: text/plain\\n\\n\"; print 'z' x 65536 for 1..64;",
        )
        .tree(|tree| {
            tree.mode("www/own.cgi", 0o755);
        })
        .config("server.modules += ( \"mod_cgi\" )")
        .config(
            "cgi.assign = ( \".sh\" => \"/bin/sh\", \".pl\" => \"/usr/bin/perl\", \".cgi\" => \"\" )",
        )
}

#[test]
fn shell_and_perl_scripts_answer() {
    if !can_run("shell_and_perl_scripts_answer", &["perl"]) {
        return;
    }
    let server = scripts().start();
    let mut client = server.client();
    for number in 0..20 {
        let response = client.get(&format!("/hello.sh?{number}"));
        assert_eq!(response.text(), format!("hello {number}"), "{response}");
        assert_eq!(response.field("Content-Type"), Some("text/plain"));
    }
    for count in [1, 10_000, 200_000] {
        let body = numbers(count);
        assert!(
            post(&server, "/echo.pl", &body).text() == body,
            "{} bytes",
            body.len()
        );
    }
    let teapot = client.get("/status.sh");
    assert_eq!(
        (teapot.status, teapot.text().as_str()),
        (418, "short and stout")
    );
    let away = client.get("/away.sh");
    assert_eq!(away.status, 302, "{away}");
    assert!(
        away.field("Location")
            .is_some_and(|location| location.ends_with("/elsewhere"))
    );
    assert_eq!(client.get("/own.cgi/more").text(), "own /own.cgi /more");
    assert_eq!(client.get("/big.pl").body.len(), 4 << 20);
    assert_eq!(client.get("/complains.sh").text(), "fine");
    server.expect_log("a complaint");
}

#[test]
fn scripts_that_say_nothing_are_an_error() {
    let server = scripts().start();
    for target in ["/silent.sh", "/dies.sh", "/not-executable.cgi"] {
        let status = server.get(target).status;
        assert!(matches!(status, 403 | 500 | 502), "{target}: {status}");
        assert_eq!(server.get("/hello.sh?x").text(), "hello x");
    }
}

#[test]
fn scripts_inherit_nothing_and_are_reaped() {
    let server = scripts().environment("PRIVATE", "do not tell").start();
    let names = server.get("/descriptors.sh").text();
    let mut numbers: Vec<u32> = names.lines().filter_map(|name| name.parse().ok()).collect();
    numbers.sort_unstable();
    // The last descriptor is the directory that ls reads.
    assert_eq!(numbers, [0, 1, 2, 3], "{names}");
    let environment = server.get("/environment.sh").text();
    assert!(
        environment.contains("GATEWAY_INTERFACE=CGI/1.1\n"),
        "{environment}"
    );
    assert!(!environment.contains("LISTEN_FDS"), "{environment}");
    // Repeats until each worker has looked at the file.
    for _ in 0..40 {
        server.get("/hello.sh");
    }
    let before = server.holdings();
    for _ in 0..100 {
        assert_eq!(server.get("/hello.sh?x").text(), "hello x");
    }
    server.expect_holdings(&before);
}

#[test]
fn a_script_whose_client_leaves_is_ended() {
    let server = scripts().start();
    let mut client = server.client();
    client.send("GET /hangs.sh HTTP/1.1\r\nHost: a\r\n\r\n");
    let pid = || server.tree().text("www/pid").trim().parse::<i32>().ok();
    assert!(eventually(|| pid().is_some()));
    client.abort();
    let pid = pid().and_then(Pid::from_raw).expect("a number");
    assert!(
        eventually(|| test_kill_process(pid).is_err()),
        "it goes on although no client waits for it"
    );
}

#[test]
fn a_script_that_hangs_is_ended_in_time() {
    let server = scripts()
        .config("cgi.limits = ( \"read-timeout\" => 3 )")
        .start();
    let begin = std::time::Instant::now();
    assert_eq!(server.get("/hangs.sh").status, 504);
    assert!(begin.elapsed() < petrel_tests::SOON);
    let pid: i32 = server
        .tree()
        .text("www/pid")
        .trim()
        .parse()
        .expect("a number");
    let pid = Pid::from_raw(pid).expect("a number");
    assert!(eventually(|| test_kill_process(pid).is_err()));
}

#[test]
fn the_environment_is_that_of_lighttpd() {
    if !can_run("the_environment_is_that_of_lighttpd", &["lighttpd"]) {
        return;
    }
    let (ours, theirs) = (scripts().start(), scripts().start_lighttpd());
    let environment = |server: &Server, request: &str| -> Vec<String> {
        let text = server.exchange(request).text();
        let (root, port) = (server.tree().root().display().to_string(), server.port());
        let by_nature = ["SERVER_SOFTWARE=", "REMOTE_PORT=", "_=", "OLDPWD="];
        let mut lines: Vec<String> = text
            .lines()
            .filter(|line| !by_nature.iter().any(|name| line.starts_with(name)))
            .map(|line| {
                line.replace(&root, "TREE")
                    .replace(&port.to_string(), "PORT")
            })
            .collect();
        lines.sort();
        lines
    };
    for request in [
        "GET /environment.sh HTTP/1.1\r\nHost: a.test\r\n\r\n",
        "GET /environment.sh/path%20info?q=1&r HTTP/1.1\r\nHost: a.test:81\r\nX-Y: z\r\n\r\n",
        "POST /environment.sh HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Type: a/b\r\n\r\nhi",
        "GET /environment.sh HTTP/1.1\r\nHost: a\r\nProxy: evil\r\nCookie: c=d\r\n\r\n",
    ] {
        assert_eq!(
            environment(&ours, request),
            environment(&theirs, request),
            "{request:?}"
        );
    }
}

#[test]
fn a_local_redirect_stays_inside_where_that_is_wanted() {
    let server = scripts()
        .file("www/local.sh", "printf 'Location: /hello.sh?local\\n\\n'")
        .config("cgi.local-redir = \"enable\"")
        .start();
    let response = server.get("/local.sh");
    assert_eq!(
        (response.status, response.text().as_str()),
        (200, "hello local"),
        "{response}"
    );
}
