//! Error pages and error handlers.

use petrel_tests::{Server, eventually};

/// As in lighttpd, start-up does not complain.
#[test]
fn the_document_root_may_come_later() {
    let server = Server::start("server.document-root = var.dir + \"/later\"");
    assert_eq!(server.get("/").status, 404);
    server.tree().write("later/index.html", "here it is");
    assert!(eventually(|| server.get("/").text() == "here it is"));
}

#[test]
fn a_built_in_page() {
    let server = Server::start("");
    let response = server.get("/missing");
    assert_eq!(response.status, 404);
    assert!(
        response
            .field("Content-Type")
            .is_some_and(|kind| kind.starts_with("text/html"))
    );
    assert!(response.text().contains("404"));
    let forged = server.get("/%3Cscript%3E");
    assert!(
        !forged.text().contains("<script>"),
        "the page repeats the URL"
    );
}

#[test]
fn error_files() {
    let server = Server::build()
        .file("www/index.html", "hello")
        .file("errors/status-404.html", "<p>not here")
        .config("server.errorfile-prefix = var.dir + \"/errors/status-\"")
        .start();
    let mut client = server.client();
    let response = client.get("/missing");
    assert_eq!(
        (response.status, response.text().as_str()),
        (404, "<p>not here")
    );
    assert!(
        response
            .field("Content-Type")
            .is_some_and(|kind| kind.starts_with("text/html"))
    );
    let head = client.request("HEAD", "/missing", &[]);
    assert_eq!(
        (head.status, head.field("Content-Length")),
        (404, Some("11"))
    );
    let other = client.request("OPTIONS", "/missing", &[]);
    assert!(other.status < 500, "{other}");
    assert_eq!(client.get("/").text(), "hello");
}

#[test]
fn a_404_handler_that_is_a_file() {
    let server = Server::build()
        .file("www/index.html", "hello")
        .file("www/not-found.html", "sorry")
        .config("server.error-handler-404 = \"/not-found.html\"")
        .start();
    let response = server.get("/missing?a=b");
    assert_eq!(response.text(), "sorry");
    assert!(matches!(response.status, 200 | 404), "{response}");
    assert_eq!(server.get("/").text(), "hello");
}

#[test]
fn an_error_handler_keeps_the_status() {
    let server = Server::build()
        .file("www/index.html", "hello")
        .file("www/error.html", "sorry")
        .file("www/a.php", "secret")
        .config(
            "server.error-handler = \"/error.html\"\nstatic-file.exclude-extensions = (\".php\")",
        )
        .start();
    for (target, status) in [("/missing", 404), ("/a.php", 403)] {
        let response = server.get(target);
        assert_eq!(
            (response.status, response.text().as_str()),
            (status, "sorry"),
            "{target}"
        );
    }
}

#[test]
fn a_handler_that_is_missing_ends_in_the_error() {
    for directive in ["server.error-handler-404", "server.error-handler"] {
        let server = Server::start(&format!("{directive} = \"/also-missing.html\""));
        assert_eq!(server.get("/missing").status, 404, "{directive}");
        assert_eq!(server.get("/").text(), "hello");
    }
}

/// A file with a status of its own is what the client gets for this URL, so its conditions and ranges are
/// about that file.
#[test]
fn conditions_and_ranges_are_about_a_handler_whose_status_counts() {
    for (directive, expected) in [
        ("server.error-handler-404", [304, 206]),
        ("server.error-handler", [404, 404]),
    ] {
        let server = Server::build()
            .file("www/sorry.txt", "sorry")
            .config(&format!("{directive} = \"/sorry.txt\""))
            .start();
        let mut client = server.client();
        let fields = [("If-None-Match", "*"), ("Range", "bytes=1-2")];
        let statuses = fields.map(|field| client.request("GET", "/missing", &[field]).status);
        assert_eq!(statuses, expected, "{directive}");
        assert_eq!(client.get("/missing").text(), "sorry");
    }
}

#[test]
fn a_head_that_is_refused_is_answered_in_its_version() {
    let server = Server::build().start();
    for (line, version, status) in [
        ("GET / HTTP/1.0", "HTTP/1.0", 400),
        ("GET / HTTP/1.1", "HTTP/1.1", 400),
        ("GET / HTTP/2.0", "HTTP/1.1", 505),
        ("GET / HTTP/a.b", "HTTP/1.1", 400),
    ] {
        let response = server.exchange(format!("{line}\r\nA b: c\r\n\r\n"));
        let expected = (version, status);
        assert_eq!(
            (response.version.as_str(), response.status),
            expected,
            "{line}"
        );
    }
}
