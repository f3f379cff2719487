//! Sends the same requests to lighttpd 1.4 and to Petrel with the same files. Where Petrel differs on
//! purpose, the test says so and why.

use petrel_tests::{Difference, Differential, Tree};

const TIME: u64 = 1_000_000_000;

fn site(tree: &Tree) {
    for (path, content) in [
        ("www/index.html", "<p>hello"),
        ("www/a.txt", "0123456789"),
        ("www/a b.txt", "space"),
        ("www/empty.txt", ""),
        ("www/dir/index.html", "index of dir"),
        ("www/dir/b.css", "body {}"),
        ("www/noindex/file", "x"),
        ("www/a.php", "source"),
        ("www/error.html", "an error"),
        ("www/UPPER.txt", "upper"),
    ] {
        tree.write(path, content).modified(path, TIME);
    }
}

const CONFIG: &str = "\
server.modules = (\"mod_indexfile\", \"mod_staticfile\")
static-file.exclude-extensions = (\".php\")
mimetype.assign = (\".html\" => \"text/html\", \".txt\" => \"text/plain\", \".css\" => \"text/css\")
";

fn start(config: &str) -> Option<Differential> {
    Differential::start(&format!("{CONFIG}{config}"), site)
}

#[test]
fn files_and_directories() {
    let Some(mut both) = start("") else { return };
    for target in [
        "/",
        "/index.html",
        "/a.txt",
        "/a%20b.txt",
        "/empty.txt",
        "/dir/",
        "/dir/b.css",
        "/a.txt?q=1",
        "/dir/../a.txt",
        "/dir/./b.css",
        "//a.txt",
        "/dir//b.css",
        "/%61.txt",
        "/dir%2fb.css",
        "/UPPER.txt",
    ] {
        both.get(target, Difference::None);
    }
    // With a file of unknown type lighttpd sends no Last-Modified, so that browsers ask again soon. Petrel
    // lets it be cached like any other file, and its type is the same.
    let untyped = both.petrel().get("/noindex/file");
    assert_eq!(
        untyped.field("Content-Type"),
        Some("application/octet-stream")
    );
    assert!(untyped.field("Last-Modified").is_some());
    // The pages of errors and redirects have different texts.
    for target in [
        "/missing",
        "/dir",
        "/dir?q=1",
        "/noindex",
        "/noindex/",
        "/a.php",
        "/dir/missing/",
        "/a.php/x",
        "/upper.txt",
        "/a.txt/info",
        "/%2e%2e/x",
        "/..%2fx",
        "/a%00b",
    ] {
        both.get(target, Difference::Page);
    }
    both.expect_no_difference();
}

#[test]
fn methods() {
    let Some(mut both) = start("") else { return };
    for target in ["/", "/a.txt", "/empty.txt"] {
        both.request("HEAD", target, &[], Difference::None);
        both.request("POST", target, &[("Content-Length", "0")], Difference::None);
    }
    both.request("HEAD", "/missing", &[], Difference::Page);
    both.request("OPTIONS", "/", &[], Difference::None);
    both.request("OPTIONS", "*", &[], Difference::None);
    // PUT and DELETE of a file get 405, while lighttpd answers 501: Petrel knows these methods.
    both.request(
        "FOO",
        "/a.txt",
        &[("Content-Length", "0")],
        Difference::Page,
    );
    both.expect_no_difference();
}

#[test]
fn conditions() {
    let Some(mut both) = start("") else { return };
    for fields in [
        [("If-Modified-Since", "Sun, 09 Sep 2001 01:46:40 GMT")],
        [("If-Modified-Since", "Sun, 09 Sep 2001 01:46:39 GMT")],
        [("If-None-Match", "\"x\"")],
        [("If-None-Match", "*")],
        [("If-Modified-Since", "nonsense")],
    ] {
        both.request("GET", "/a.txt", &fields, Difference::None);
    }
    both.expect_no_difference();
}

#[test]
fn ranges() {
    let Some(mut both) = start("") else { return };
    for range in [
        "bytes=0-0",
        "bytes=2-4",
        "bytes=5-",
        "bytes=-3",
        "bytes=-30",
        "bytes=9-20",
        "bytes=0-9",
        "lines=1-2",
        "bytes=1-2,2-3",
        "bytes=0-0,9-9",
        "bytes=x,2-3,5-4",
    ] {
        both.request("GET", "/a.txt", &[("Range", range)], Difference::None);
    }
    for range in [
        "bytes=10-",
        "bytes=20-30",
        "bytes=0--",
        "bytes=3-2",
        "bytes=",
    ] {
        both.request("GET", "/a.txt", &[("Range", range)], Difference::Page);
    }
    both.expect_no_difference();
}

#[test]
fn http_1_0_has_no_ranges_if_that_is_configured() {
    let config = "server.feature-flags = ( \"http10.range\" => \"disable\" )";
    let Some(mut both) = start(config) else {
        return;
    };
    both.send(
        "GET /a.txt HTTP/1.0\r\nRange: bytes=0-1\r\n\r\n",
        Difference::None,
    );
    both.expect_no_difference();
}

#[test]
fn bad_requests() {
    let Some(mut both) = start("") else { return };
    for head in [
        "GET / HTTP/1.1\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n",
        "GET / HTTP/1.1\r\nHost: a b\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nA b: c\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\n",
        "GET / HTTP/2.0\r\nHost: x\r\n",
        "GET  / HTTP/1.1\r\nHost: x\r\n",
        "GET x HTTP/1.1\r\nHost: x\r\n",
        "GET * HTTP/1.1\r\nHost: x\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        "POST / HTTP/1.0\r\nHost: x\r\n",
        "GET / HTTP/1.0\r\nA b: c\r\n",
    ] {
        both.send(&format!("{head}\r\n"), Difference::Page);
    }
    both.expect_no_difference();
}

#[test]
fn error_handlers() {
    for config in [
        "server.error-handler-404 = \"/error.html\"",
        "server.error-handler = \"/error.html\"",
        "server.error-handler-404 = \"/missing-too\"",
        "server.error-handler = \"/missing-too\"",
        "server.error-handler-404 = \"/a.txt\"\nserver.error-handler = \"/error.html\"",
    ] {
        let Some(mut both) = start(config) else {
            return;
        };
        for target in [
            "/missing",
            "/missing?q",
            "/a.php",
            "/noindex/",
            "/",
            "/dir/missing",
        ] {
            let body = match config.contains("missing-too") {
                true => Difference::Page,
                false => Difference::None,
            };
            both.get(target, body);
            both.request("HEAD", target, &[], body);
            // These fields are about the file that answers, if its status counts. A range beyond its end is left
            // out: lighttpd tells the time of the last change with such a 416, Petrel does not. And where the
            // status of the error counts, lighttpd sends a page of its own for a file that has not changed.
            both.request("GET", target, &[("Range", "bytes=1-2")], body);
            if !config.contains("server.error-handler =") {
                let since = ("If-Modified-Since", "Fri, 01 Jan 2100 00:00:00 GMT");
                both.request("GET", target, &[since], body);
            }
        }
        both.expect_no_difference();
    }
}

#[test]
fn error_files() {
    let Some(mut both) = Differential::start(
        &format!("{CONFIG}server.errorfile-prefix = var.dir + \"/errors/\""),
        |tree| {
            site(tree);
            tree.write("errors/404.html", "<p>missing")
                .write("errors/403.html", "<p>forbidden");
        },
    ) else {
        return;
    };
    for target in ["/missing", "/a.php", "/"] {
        // Last-Modified: lighttpd does not send it with an error page.
        both.get(target, Difference::None);
        both.request("HEAD", target, &[], Difference::None);
    }
    both.expect_no_difference();
}

#[test]
fn lower_case_names() {
    // With static-file.disable-pathinfo later versions of lighttpd answer 404, as Petrel does; 1.4.69 answers
    // 403.
    let Some(mut both) = start("server.force-lowercase-filenames = \"enable\"") else {
        return;
    };
    both.get("/A.TXT", Difference::None)
        .get("/DIR/B.CSS", Difference::None);
    both.get("/UPPER.txt", Difference::Page)
        .get("/A.PHP", Difference::Page);
    both.expect_no_difference();
}

#[test]
fn limits_and_switches() {
    let Some(mut both) = start(
        "server.max-request-size = 1\nserver.range-requests = \"disable\"\n\
         server.max-request-field-size = 500",
    ) else {
        return;
    };
    both.request("GET", "/a.txt", &[("Range", "bytes=0-1")], Difference::None);
    both.send(
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n",
        Difference::Page,
    );
    let long = "x".repeat(600);
    both.send(
        &format!("GET / HTTP/1.1\r\nHost: x\r\nX: {long}\r\n\r\n"),
        Difference::Page,
    );
    both.expect_no_difference();
}
