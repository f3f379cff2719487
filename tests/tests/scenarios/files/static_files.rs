//! Status, fields and body of static files.

use petrel_tests::Server;

#[test]
fn sizes_around_every_limit_of_the_server() {
    let sizes = [
        0,
        1,
        4095,
        4096,
        4097,
        32_767,
        32_768,
        32_769,
        65_536,
        131_073,
        1 << 20,
        (3 << 20) + 1,
    ];
    let content = |size: usize| -> Vec<u8> { (0..size).map(|at| (at % 251) as u8).collect() };
    let server = Server::build()
        .tree(|tree| {
            for size in sizes {
                tree.write(&format!("www/{size}.bin"), content(size));
            }
        })
        .start();
    let mut client = server.client();
    for _ in 0..3 {
        for size in sizes {
            let response = client.get(&format!("/{size}.bin"));
            assert_eq!(response.status, 200);
            assert_eq!(
                response.field("Content-Length"),
                Some(size.to_string().as_str())
            );
            assert!(response.body == content(size), "{size}");
        }
    }
}

#[test]
fn every_network_backend_sends_the_same() {
    let content: Vec<u8> = (0..3_000_000).map(|at| (at % 251) as u8).collect();
    for backend in [
        "linux-sendfile",
        "writev",
        "write",
        "gthread-aio",
        "posix-aio",
    ] {
        let server = Server::build()
            .file("www/a.bin", &content)
            .config(&format!("server.network-backend = \"{backend}\""))
            .start();
        let mut client = server.client().with_receive_buffer(100_000);
        assert!(client.get("/a.bin").body == content, "{backend}");
        let part = client.request("GET", "/a.bin", &[("Range", "bytes=1234567-2345678")]);
        assert!(part.body == content[1_234_567..=2_345_678], "{backend}");
    }
}

#[test]
fn directories_redirect_with_their_query() {
    let server = Server::build()
        .file("www/dir/sub dir/index.html", "index")
        .start();
    let response = server.get("/dir/sub%20dir?a=b&c=%20d");
    assert_eq!(response.status, 301);
    let location = response.field("Location").expect("Location");
    assert!(
        location.ends_with("/dir/sub%20dir/?a=b&c=%20d"),
        "{location}"
    );
    assert_eq!(server.get("/dir/sub%20dir/").text(), "index");
    let split = server.get("/dir/..%0d%0aX-Injected:%201/../dir");
    assert_eq!(split.field("X-Injected"), None);
}

#[test]
fn index_files_in_their_order() {
    let server = Server::build()
        .file("www/a/index.php", "php")
        .file("www/a/index.html", "html")
        .file("www/b/index.html", "html")
        .file("www/c/other", "other")
        .file("www/top.html", "top")
        .config("index-file.names = (\"index.php\", \"index.html\", \"/top.html\")\ndir-listing.activate = \"disable\"")
        .start();
    assert_eq!(server.get("/a/").text(), "php");
    assert_eq!(server.get("/b/").text(), "html");
    assert_eq!(
        server.get("/c/").text(),
        "top",
        "an absolute name starts at the root"
    );
    assert_eq!(server.get("/c").status, 301);
}

#[test]
fn without_an_index_a_directory_is_forbidden() {
    let server = Server::build().file("www/dir/other", "other").start();
    assert!(matches!(server.get("/dir/").status, 403 | 404));
}

#[test]
fn excluded_extensions() {
    let server = Server::build()
        .file("www/a.php", "<?php secret")
        .file("www/a.php.txt", "text")
        .config("static-file.exclude-extensions = (\".php\", \".fcgi\")")
        .start();
    let response = server.get("/a.php");
    assert_eq!(response.status, 403);
    assert!(!response.text().contains("secret"));
    assert_eq!(server.get("/a.php/info").status, 403);
    assert_eq!(server.get("/a.php.txt").text(), "text");
}

#[test]
fn path_info() {
    let build = || {
        Server::build()
            .file("www/a.txt", "a")
            .file("www/dir/b.txt", "b")
    };
    let server = build().start();
    assert_eq!(server.get("/a.txt/info/more").text(), "a");
    assert_eq!(server.get("/dir/b.txt/info").text(), "b");
    assert_eq!(server.get("/dir/missing/info").status, 404);
    let off = build()
        .config("static-file.disable-pathinfo = \"enable\"")
        .start();
    assert_eq!(off.get("/a.txt/info").status, 403);
    assert_eq!(off.get("/a.txt").text(), "a");
}

#[test]
fn lower_case_names() {
    let server = Server::build()
        .file("www/dir/file.txt", "lower")
        .file("www/dir/UPPER.txt", "upper")
        .config("server.force-lowercase-filenames = \"enable\"")
        .start();
    assert_eq!(server.get("/DIR/File.TXT").text(), "lower");
    assert_eq!(server.get("/dir/UPPER.txt").status, 404);
}

#[test]
fn content_types() {
    let server = Server::build()
        .tree(|tree| {
            for name in [
                "a.html",
                "a.css",
                "a.js",
                "a.png",
                "a.tar.gz",
                "a.unknown",
                "noext",
                "a.txt",
            ] {
                tree.write(&format!("www/{name}"), "x");
            }
        })
        .start();
    let kind = |path: &str| server.get(path).field("Content-Type").map(str::to_owned);
    assert!(kind("/a.html").is_some_and(|kind| kind.starts_with("text/html")));
    assert!(kind("/a.css").is_some_and(|kind| kind.starts_with("text/css")));
    assert!(kind("/a.js").is_some_and(|kind| kind.contains("javascript")));
    assert_eq!(kind("/a.png").as_deref(), Some("image/png"));
    assert!(kind("/a.txt").is_some_and(|kind| kind.starts_with("text/plain")));

    let own = Server::build()
        .file("www/a.tar.gz", "x")
        .file("www/a.gz", "x")
        .file("www/README", "x")
        .file("www/other", "x")
        .config(
            "mimetype.assign = (\".tar.gz\" => \"application/x-tgz\", \".gz\" => \"application/gzip\",\n\
             \"README\" => \"text/readme\", \"\" => \"text/default\")",
        )
        .start();
    let kind = |path: &str| {
        own.get(path)
            .field("Content-Type")
            .map(str::to_owned)
            .expect("a type")
    };
    assert_eq!(kind("/a.tar.gz"), "application/x-tgz");
    assert_eq!(kind("/a.gz"), "application/gzip");
    assert_eq!(kind("/README"), "text/readme");
    assert_eq!(kind("/other"), "text/default");
}

#[test]
fn etags_are_made_of_what_is_chosen() {
    let build = |config: &str| {
        Server::build()
            .file("www/a.txt", "same size")
            .file("www/b.txt", "same size")
            .tree(|tree| {
                tree.modified("www/a.txt", 1_000_000_000)
                    .modified("www/b.txt", 1_000_000_000);
            })
            .config(config)
            .start()
    };
    let etag = |server: &Server, path: &str| server.get(path).field("ETag").map(str::to_owned);
    let all = build("");
    assert_ne!(
        etag(&all, "/a.txt"),
        etag(&all, "/b.txt"),
        "inode numbers differ"
    );
    let portable = build("etag.use-inode = \"disable\"");
    assert!(etag(&portable, "/a.txt").is_some());
    assert_eq!(etag(&portable, "/a.txt"), etag(&portable, "/b.txt"));
    let size = build("etag.use-inode = \"disable\"\netag.use-mtime = \"disable\"");
    let before = etag(&size, "/a.txt");
    size.tree().modified("www/a.txt", 1_100_000_000);
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(etag(&size, "/a.txt"), before);
    let none = build("static-file.etags = \"disable\"");
    assert_eq!(etag(&none, "/a.txt"), None);
}

#[test]
fn precompressed_siblings() {
    let server = Server::build()
        .file("www/a.js", "plain text")
        .file("www/a.js.gz", "gzip bytes")
        .file("www/a.js.br", "brotli bytes")
        .file("www/b.js", "newer than its sibling")
        .file("www/b.js.gz", "old bytes")
        .tree(|tree| {
            tree.modified("www/a.js", 1_000_000_000)
                .modified("www/b.js.gz", 1_000_000_000);
        })
        .config("static-file.precompressed = (\"br\", \"gzip\")")
        .start();
    let mut client = server.client();
    let mut ask =
        |path: &str, accept: &str| client.request("GET", path, &[("Accept-Encoding", accept)]);
    let brotli = ask("/a.js", "gzip, br");
    assert_eq!(
        (brotli.text().as_str(), brotli.field("Content-Encoding")),
        ("brotli bytes", Some("br"))
    );
    assert!(
        brotli
            .field("Content-Type")
            .is_some_and(|kind| kind.contains("javascript")),
        "{brotli}"
    );
    assert!(
        brotli
            .field("Vary")
            .is_some_and(|vary| vary.contains("Accept-Encoding")),
        "{brotli}"
    );
    let gzip = ask("/a.js", "gzip");
    assert_eq!(
        (gzip.text().as_str(), gzip.field("Content-Encoding")),
        ("gzip bytes", Some("gzip"))
    );
    assert_ne!(gzip.field("ETag"), brotli.field("ETag"));
    let plain = ask("/a.js", "identity");
    assert_eq!(
        (plain.text().as_str(), plain.field("Content-Encoding")),
        ("plain text", None)
    );
    assert!(
        plain
            .field("Vary")
            .is_some_and(|vary| vary.contains("Accept-Encoding")),
        "{plain}"
    );
    assert_eq!(ask("/a.js", "gzip;q=0, br;q=0").text(), "plain text");
    assert_eq!(ask("/b.js", "gzip, br").text(), "newer than its sibling");
}

#[test]
fn things_that_are_no_files() {
    let server = Server::build()
        .tree(|tree| {
            tree.directory("www");
            let status = std::process::Command::new("mkfifo")
                .arg(tree.path("www/pipe"))
                .status();
            assert!(status.expect("mkfifo").success());
            std::mem::forget(
                std::os::unix::net::UnixListener::bind(tree.path("www/socket")).expect("a socket"),
            );
            tree.symlink("/dev/zero", "www/device");
            tree.symlink("loop", "www/loop");
        })
        .start();
    for path in ["/pipe", "/socket", "/device", "/loop"] {
        assert!(matches!(server.get(path).status, 403 | 404), "{path}");
    }
}

#[test]
fn names_that_need_encoding() {
    let server = Server::build()
        .file("www/a b+c%d&e.txt", "odd")
        .file("www/\u{fc}ml\u{e4}ut/\u{65e5}\u{672c}.txt", "utf-8")
        .start();
    assert_eq!(server.get("/a%20b+c%25d&e.txt").text(), "odd");
    assert_eq!(
        server
            .get("/%c3%bcml%C3%A4ut/%e6%97%a5%e6%9c%ac.txt")
            .text(),
        "utf-8"
    );
}

#[test]
fn very_long_names() {
    let server = Server::start("server.max-request-field-size = 65535");
    let long = "a".repeat(300);
    assert_eq!(server.get(&format!("/{long}")).status, 404);
    let begin = std::time::Instant::now();
    for depth in [20, 30, 40, 1000, 2000, 5000, 20_000] {
        let status = server.get(&"/a".repeat(depth)).status;
        assert!(matches!(status, 400 | 404 | 414), "{status}");
    }
    assert!(
        begin.elapsed() < petrel_tests::SOON,
        "{:?}",
        begin.elapsed()
    );
    assert_eq!(server.get("/").text(), "hello");
}
