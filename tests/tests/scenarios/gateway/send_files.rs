//! Replies that name a file instead of having a body, including rows 17 and 18.

use std::time::Duration;

use petrel_tests::{Backend, Builder, Server, Speaks, Tree, eventually};

use crate::gateway::{OPTIONS, name};

/// A backend that replies with the field and value in the query: `?X-Sendfile=/path`.
fn offloading(speaks: Speaks) -> Backend {
    Backend::start(speaks, |exchange| {
        let target = exchange.target().to_owned();
        let (_, query) = target.split_once('?').unwrap_or_default();
        let (field, value) = query.split_once('=').unwrap_or_default();
        let value = value.replace("%20", " ");
        let kind = match name(exchange) {
            "" => "text/plain",
            _ => "text/html",
        };
        exchange.answer(200, &[(field, &value), ("Content-Type", kind)], "inline");
    })
}

fn server(backend: &Backend, options: &str) -> Server {
    tree()
        .config(&backend.directive("/app", &format!("{options}{OPTIONS}")))
        .start()
}

fn tree() -> Builder {
    Server::build()
        .file("www/index.html", "hello")
        .file("files/a.txt", "the file's content")
        .file("secret.txt", "secret")
        .tree(|tree| {
            tree.symlink(tree.path("secret.txt"), "files/way-out");
            tree.directory("temporary").directory("elsewhere");
        })
}

/// Files below `files` are allowed.
const ALLOWED: &str =
    "\"x-sendfile\" => \"enable\", \"x-sendfile-docroot\" => ( var.dir + \"/files\" ), ";

fn path(server: &Server, name: &str) -> String {
    server.tree().path(name).display().to_string()
}

#[test]
fn a_file_is_sent_in_the_place_of_the_body() {
    for speaks in [Speaks::FastCgi, Speaks::Scgi, Speaks::Uwsgi] {
        let backend = offloading(speaks);
        let server = server(&backend, ALLOWED);
        let file = path(&server, "files/a.txt");
        for field in ["X-Sendfile", "X-LIGHTTPD-send-file"] {
            let target = format!("/app/?{field}={file}");
            let response = server.get(&target);
            assert_eq!(response.status, 200, "{speaks:?}: {response}");
            assert_eq!(response.text(), "the file's content", "{field}");
            assert_eq!(response.field(field), None, "{response}");
            assert_eq!(response.field("Content-Type"), Some("text/plain"));
            let range = [("Range", "bytes=4-7")];
            let part = server.client().request("GET", &target, &range);
            assert_eq!((part.status, part.text().as_str()), (206, "file"), "{part}");
            let etag = response.field("ETag").expect("it is a file").to_owned();
            let same = [("If-None-Match", etag.as_str())];
            assert_eq!(server.client().request("GET", &target, &same).status, 304);
            let head = server.client().request("HEAD", &target, &[]);
            assert_eq!(head.field("Content-Length"), Some("18"), "{head}");
        }
    }
}

#[test]
fn where_it_is_not_allowed_the_field_is_dropped() {
    let backend = offloading(Speaks::FastCgi);
    let server = server(&backend, "");
    for field in [
        "X-Sendfile",
        "X-LIGHTTPD-send-file",
        "X-LIGHTTPD-send-tempfile",
        "X-Sendfile2",
    ] {
        let file = path(&server, "files/a.txt");
        let response = server.get(&format!("/app/?{field}={file}"));
        assert!(!response.text().contains("content"), "{field}: {response}");
        assert_eq!(response.field(field), None, "{response}");
    }
    assert!(server.tree().path("files/a.txt").exists());
}

#[test]
fn row_17_files_outside_the_allowed_directories_are_502() {
    for speaks in [Speaks::FastCgi, Speaks::Scgi, Speaks::Uwsgi] {
        let backend = offloading(speaks);
        let server = server(&backend, ALLOWED);
        let base = server.tree().root().display().to_string();
        for name in [
            format!("{base}/secret.txt"),
            format!("{base}/files/../secret.txt"),
            format!("{base}/files/%2e%2e/secret.txt"),
            format!("{base}/files/way-out"),
            format!("{base}/files2/a.txt"),
            "/etc/passwd".to_owned(),
            "secret.txt".to_owned(),
            format!("{base}/files/"),
        ] {
            for field in ["X-Sendfile", "X-LIGHTTPD-send-file"] {
                let response = server.get(&format!("/app/?{field}={name}"));
                assert!(
                    matches!(response.status, 403 | 404 | 502),
                    "{name}: {response}"
                );
                assert!(!response.text().contains("secret"), "{name}: {response}");
                assert!(!response.text().contains("root:"), "{name}: {response}");
                assert_eq!(response.field(field), None, "{response}");
            }
        }
        let outside = format!("/app/?X-Sendfile={base}/secret.txt");
        assert_eq!(server.get(&outside).status, 502);
        server.expect_log("secret.txt");
    }
}

#[test]
fn a_temporary_file_is_sent_and_removed() {
    let backend = offloading(Speaks::FastCgi);
    let server = tree()
        .config(&backend.directive("/app", &format!("{ALLOWED}{OPTIONS}")))
        .config("server.upload-dirs = ( var.dir + \"/temporary\" )")
        .start();
    let tree = server.tree();
    for size in [0, 5, 100_000, 2_000_000] {
        tree.write("temporary/t", vec![b't'; size]);
        let file = path(&server, "temporary/t");
        let response = server.get(&format!("/app/?X-LIGHTTPD-send-tempfile={file}"));
        assert_eq!(
            (response.status, response.body.len()),
            (200, size),
            "{response}"
        );
        assert!(eventually(|| tree.names("temporary").is_empty()), "{size}");
    }
    // Also if the client does not wait for the response, or requests only the head.
    for number in 0..20 {
        tree.write("temporary/t", vec![b't'; 3_000_000]);
        let file = path(&server, "temporary/t");
        let mut client = server.client().with_receive_buffer(4096);
        match number % 3 {
            0 => {
                let target = format!("/app/?X-LIGHTTPD-send-tempfile={file}");
                assert_eq!(client.request("HEAD", &target, &[]).status, 200);
            }
            kind => {
                client.send(format!(
                    "GET /app/?X-LIGHTTPD-send-tempfile={file} HTTP/1.1\r\nHost: a\r\n\r\n"
                ));
                if kind == 1 {
                    client.read_bytes(1000);
                } else {
                    backend.expect_requests(1);
                    std::thread::sleep(Duration::from_millis(5));
                }
                client.abort();
            }
        }
        assert!(
            eventually(|| tree.names("temporary").is_empty()),
            "{number}"
        );
    }
}

#[test]
fn row_18_a_temporary_file_elsewhere_is_refused_and_not_deleted() {
    let backend = offloading(Speaks::FastCgi);
    let server = tree()
        .config(&backend.directive("/app", &format!("{ALLOWED}{OPTIONS}")))
        .config("server.upload-dirs = ( var.dir + \"/temporary\" )")
        .start();
    let tree = server.tree();
    tree.write("elsewhere/t", "precious");
    let other = Tree::new();
    other.write("t", "precious");
    tree.symlink(tree.path("elsewhere/t"), "temporary/link");
    let base = tree.root().display().to_string();
    for name in [
        format!("{base}/elsewhere/t"),
        format!("{base}/temporary/../elsewhere/t"),
        format!("{base}/temporary/link"),
        format!("{base}/files/a.txt"),
        other.path("t").display().to_string(),
    ] {
        let response = server.get(&format!("/app/?X-LIGHTTPD-send-tempfile={name}"));
        assert!(
            matches!(response.status, 403 | 404 | 502),
            "{name}: {response}"
        );
        assert!(!response.text().contains("precious"), "{name}");
        assert_eq!(response.field("X-LIGHTTPD-send-tempfile"), None);
    }
    assert_eq!(tree.text("elsewhere/t"), "precious");
    assert_eq!(tree.text("files/a.txt"), "the file's content");
    assert_eq!(other.text("t"), "precious");
    server.expect_log("elsewhere/t");
}

#[test]
fn the_backend_is_free_before_the_file_is_sent() {
    let backend = Backend::start(Speaks::Scgi, |exchange| {
        let file = exchange
            .target()
            .split_once('=')
            .map(|(_, file)| file.to_owned());
        exchange.answer(200, &[("X-Sendfile", &file.unwrap_or_default())], "");
    });
    let server = tree()
        .file("files/big.bin", vec![b'b'; 30_000_000])
        .config(&backend.directive("/app", &format!("{ALLOWED}{OPTIONS}")))
        .start();
    let file = path(&server, "files/big.bin");
    let mut client = server.client().with_receive_buffer(4096);
    client.send(format!("GET /app/?f={file} HTTP/1.1\r\nHost: a\r\n\r\n"));
    client.read_bytes(100);
    backend.expect_open_connections(0);
}

#[test]
fn ranges_of_files_are_put_together() {
    let backend = offloading(Speaks::FastCgi);
    let server = server(&backend, ALLOWED);
    let file = path(&server, "files/a.txt");
    let response = server.get(&format!("/app/?X-Sendfile2={file}%200-3,{file}%2010-"));
    assert_eq!(
        (response.status, response.text().as_str()),
        (200, "the  content"),
        "{response}"
    );
    let secret = path(&server, "secret.txt");
    let response = server.get(&format!("/app/?X-Sendfile2={file}%200-3,{secret}%200-"));
    assert_eq!(response.status, 502, "{response}");
    assert!(!response.text().contains("secret"));
}

#[test]
fn a_file_is_compressed_like_any_other_answer() {
    let backend = offloading(Speaks::FastCgi);
    let text = "compress me ".repeat(5000);
    let server = tree()
        .file("files/long.txt", &text)
        .config(&backend.directive("/app", &format!("{ALLOWED}{OPTIONS}")))
        .config("server.modules += ( \"mod_deflate\" )")
        .config("deflate.mimetypes = ( \"text/\" )")
        .config("server.upload-dirs = ( var.dir + \"/temporary\" )")
        .start();
    server.tree().write("temporary/t", &text);
    for (field, name) in [
        ("X-Sendfile", "files/long.txt"),
        ("X-LIGHTTPD-send-tempfile", "temporary/t"),
    ] {
        let url = server.url(&format!("/app/?{field}={}", path(&server, name)));
        let finished = petrel_tests::curl(&["--compressed", "-w", "%{size_download}", &url]);
        let (unpacked, size) = finished.output.split_at(text.len());
        assert!(unpacked == text.as_bytes(), "{field}");
        let size: usize = String::from_utf8_lossy(size).parse().expect("a number");
        assert!(size < text.len() / 5, "{field}: {size} bytes");
    }
    assert!(eventually(|| server.tree().names("temporary").is_empty()));
}

#[test]
fn another_url_of_the_server_may_answer() {
    let backend = offloading(Speaks::FastCgi);
    let server = tree()
        .file("www/protected/a.txt", "for those who asked the application")
        .config(&backend.directive("/app", &format!("{ALLOWED}{OPTIONS}")))
        .start();
    let response = server.get("/app/?X-Accel-Redirect=/protected/a.txt");
    assert_eq!(
        response.text(),
        "for those who asked the application",
        "{response}"
    );
    assert_eq!(response.field("X-Accel-Redirect"), None);
    // An endless loop of redirects is ended.
    let response = server.get("/app/?X-Accel-Redirect=/app/?X-Accel-Redirect=/app/");
    assert!(response.status >= 200, "{response}");
    assert!(
        backend.requests().len() < 50,
        "{}",
        backend.requests().len()
    );
}
