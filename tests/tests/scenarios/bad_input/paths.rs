//! Rows 14 to 16, 21 and 22: paths that lead out of the document root, endless ranges, files that change.

use petrel_tests::{Server, Tree, eventually};

fn server(config: &str) -> Server {
    Server::build()
        .file("secret.txt", "outside the root")
        .file("www/index.html", "hello")
        .file("www/dir/file.txt", "inside")
        .file("www/a\\b.txt", "a backslash in a name")
        .config(config)
        .start()
}

#[test]
fn row_14_no_path_leads_out_of_the_root() {
    let server = server("");
    for target in [
        "/../secret.txt",
        "/dir/../../secret.txt",
        "/%2e%2e/secret.txt",
        "/%2e%2e%2fsecret.txt",
        "/..%2fsecret.txt",
        "/.%2e/secret.txt",
        "/%252e%252e/secret.txt",
        "/%252e%252e%252fsecret.txt",
        "/..\\secret.txt",
        "/..%5csecret.txt",
        "/%c0%ae%c0%ae/secret.txt",
        "/%c0%ae%c0%ae%c0%afsecret.txt",
        "/%e0%80%ae%e0%80%ae/secret.txt",
        "/..%c0%afsecret.txt",
        "/.../secret.txt",
        "/..;/secret.txt",
        "//../secret.txt",
        "/dir/..//..//secret.txt",
        "/./.././secret.txt",
        "http://petrel.test/../secret.txt",
        "/dir/%2e%2e%2f%2e%2e%2fsecret.txt",
        "/index.html/../../secret.txt",
    ] {
        let response = server.get(target);
        assert!(
            matches!(response.status, 400 | 403 | 404),
            "{target} got {response}"
        );
        assert!(!response.text().contains("outside"), "{target}");
    }
}

#[test]
fn row_14_a_nul_is_refused() {
    let server = server("");
    for target in [
        "/index.html%00",
        "/index.html%00.txt",
        "/%00",
        "/dir%00/../index.html",
    ] {
        assert_eq!(server.get(target).status, 400, "{target}");
    }
    let raw = "GET /index.html\0.txt HTTP/1.1\r\nHost: petrel.test\r\n\r\n";
    assert_eq!(server.exchange(raw).status, 400);
}

#[test]
fn row_14_dots_inside_the_root_are_resolved() {
    let server = server("");
    for target in [
        "/dir/../dir/file.txt",
        "/./dir/./file.txt",
        "/dir/%2e%2e/dir/file.txt",
    ] {
        assert_eq!(server.get(target).text(), "inside", "{target}");
    }
}

#[test]
fn row_15_encoding_is_no_way_around_a_rule() {
    let server = server(
        "$HTTP[\"url\"] =^ \"/dir/\" { static-file.exclude-extensions = (\".txt\") }\n\
         $HTTP[\"url\"] =~ \"^/admin($|/)\" { server.document-root = \"/nonexistent\" }",
    );
    for target in [
        "/dir/file.txt",
        "/dir%2ffile.txt",
        "/%64ir/file.txt",
        "/./dir/file.txt",
        "//dir/file.txt",
        "/x/../dir/file.txt",
        "/x/%2e%2e/dir/file.txt",
        "/dir/file%2etxt",
        "/dir/file.tx%74",
        "/dir//file.txt",
        "http://petrel.test/dir/file.txt",
        "/DIR/FILE.TXT",
    ] {
        let response = server.get(target);
        assert!(
            matches!(response.status, 400 | 403 | 404),
            "{target} got {response}"
        );
        assert!(!response.text().contains("inside"), "{target}");
    }
}

#[test]
fn row_15_letter_case_is_no_way_around_a_rule() {
    let server = server(
        "server.force-lowercase-filenames = \"enable\"\n\
         static-file.exclude-extensions = (\".txt\")",
    );
    for target in ["/dir/file.txt", "/DIR/file.TXT", "/dir/FILE.tXt"] {
        let response = server.get(target);
        assert_eq!(response.status, 403, "{target} got {response}");
    }
    assert_eq!(server.get("/INDEX.html").text(), "hello");
}

#[test]
fn row_16_symlinks_are_refused_when_not_followed() {
    let link = |tree: &Tree| {
        tree.symlink("../secret.txt", "www/escape.txt")
            .symlink("..", "www/up")
            .symlink("dir/file.txt", "www/inside.txt")
            .symlink("dir", "www/link");
    };
    let build = || {
        Server::build()
            .file("secret.txt", "outside")
            .file("www/dir/file.txt", "inside")
    };
    let server = build()
        .tree(link)
        .config("server.follow-symlink = \"disable\"")
        .start();
    for target in [
        "/escape.txt",
        "/up/secret.txt",
        "/inside.txt",
        "/link/file.txt",
        "/link/",
    ] {
        let status = server.get(target).status;
        assert!(matches!(status, 403 | 404), "{target} got {status}");
    }
    assert_eq!(server.get("/dir/file.txt").text(), "inside");

    let following = build().tree(link).start();
    assert_eq!(following.get("/inside.txt").text(), "inside");
    assert_eq!(following.get("/escape.txt").text(), "outside");
}

#[test]
fn row_16_a_symlink_swapped_in_under_load_is_never_followed() {
    let server = Server::build()
        .file("secret.txt", "outside")
        .file("www/file.txt", "inside")
        .config("server.follow-symlink = \"disable\"")
        .start();
    let mut client = server.client();
    for _ in 0..100 {
        server
            .tree()
            .symlink("../secret.txt", "www/new")
            .rename("www/new", "www/file.txt");
        let response = client.get("/file.txt");
        assert_ne!(response.text(), "outside");
        server.tree().replace("www/file.txt", "inside");
        let response = client.get("/file.txt");
        assert!(matches!(response.status, 200 | 403 | 404), "{response}");
        assert_ne!(response.text(), "outside");
    }
}

#[test]
fn row_21_a_thousand_overlapping_ranges() {
    let server = Server::build()
        .file("www/file.bin", vec![b'x'; 100_000])
        .config("server.max-request-field-size = 65535")
        .start();
    let mut client = server.client();
    for range in ["0-", "0-99999", "5-99"] {
        let ranges = vec![range; 1000].join(",");
        let response = client.request("GET", "/file.bin", &[("Range", &format!("bytes={ranges}"))]);
        assert!(
            matches!(response.status, 200 | 206 | 416),
            "{}",
            response.status
        );
        assert!(
            response.body.len() <= 100_000,
            "{} bytes",
            response.body.len()
        );
    }
    let ascending: Vec<String> = (0..1000).map(|at| format!("{at}-{}", at + 10)).collect();
    let value = format!("bytes={}", ascending.join(","));
    let response = client.request("GET", "/file.bin", &[("Range", &value)]);
    assert!(
        response.body.len() <= 100_000,
        "{} bytes",
        response.body.len()
    );
}

#[test]
fn row_22_a_file_truncated_while_it_is_sent_ends_the_connection() {
    const LENGTH: usize = 64 << 20;
    let server = Server::build()
        .file("www/big.bin", vec![b'x'; LENGTH])
        .file("www/small.txt", "hello")
        .start();
    let mut client = server.client().with_receive_buffer(64 * 1024);
    client.send("GET /big.bin HTTP/1.1\r\nHost: petrel.test\r\n\r\n");
    client.read_bytes(100_000);
    server.tree().set_length("www/big.bin", 0);
    let rest = client.read_to_end();
    assert!(rest.len() < LENGTH - 100_000, "the whole length was sent");
    assert!(
        !rest.contains(&0),
        "zeros were sent in place of the missing bytes"
    );
    server.expect_log("became shorter");
    assert_eq!(server.get("/small.txt").text(), "hello");
    // Without a watch for its directory, of which the machine may have too few, the server looks once a second.
    let length = || server.client().request("HEAD", "/big.bin", &[]);
    assert!(eventually(|| length().field("Content-Length") == Some("0")));
    assert_eq!(server.get("/big.bin").body.len(), 0);
}
