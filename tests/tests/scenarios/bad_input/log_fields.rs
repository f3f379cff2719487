//! Row 47: what a client sends cannot forge a line of a log.

use petrel_tests::{Server, eventually};

#[test]
fn row_47_the_access_log_escapes_what_it_quotes() {
    let server = Server::build()
        .file("www/index.html", "hello")
        .config(
            "server.modules = (\"mod_accesslog\")\n\
             accesslog.filename = var.dir + \"/access.log\"\n\
             accesslog.format = \"%r|%U|%q|%{User-Agent}i|%{Referer}i|end\"",
        )
        .start();
    let request = b"GET /%0d%0aFORGED%20line?q=%1b[31m\" HTTP/1.1\r\nHost: petrel.test\r\n\
                    User-Agent: a\"b\\c\x80\xff\r\nReferer: x\ty\r\n\r\n";
    let status = server.exchange(request).status;
    assert!(matches!(status, 400 | 404), "{status}");
    assert!(eventually(|| server
        .tree()
        .text("access.log")
        .contains("end")));
    let log = server.tree().read("access.log");
    assert_eq!(
        log.iter().filter(|byte| **byte == b'\n').count(),
        1,
        "one request, one line"
    );
    let text = String::from_utf8(log).expect("bytes that are no text are escaped");
    assert!(!text.contains('\x1b') && !text.contains('\r'), "{text:?}");
    assert!(
        text.contains("a\\\"b\\\\c\\x80\\xff") || text.contains("a\\\"b\\\\c\\x80\\xFF"),
        "{text:?}"
    );
}

#[test]
fn row_47_the_error_log_escapes_paths() {
    let server = Server::start(
        "debug.log-file-not-found = \"enable\"\n\
        server.http-parseopts = (\"url-ctrls-reject\" => \"disable\")",
    );
    let status = server.get("/%0d%0a2026-01-01%20FORGED%1b[31m").status;
    assert!(matches!(status, 400 | 404), "{status}");
    server.expect_log("FORGED");
    for line in server.log().lines() {
        assert!(!line.starts_with("2026-01-01 FORGED"), "a forged line");
        assert!(!line.contains(['\x1b', '\r']), "{line:?}");
    }
}
