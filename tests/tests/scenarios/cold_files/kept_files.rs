//! MIME types in extended attributes, and files that modules store.

use petrel_tests::{Operation, eventually};
use rustix::fs::XattrFlags;

use super::{asking, expect_others_served, forget_content, impatient, site};

#[test]
fn a_type_that_is_looked_up_delays_no_other_request() {
    let test = "a_type_that_is_looked_up_delays_no_other_request";
    let files: [(&str, &[u8]); 2] = [("one.txt", b"1"), ("two.txt", b"22")];
    let Some((server, slow)) = site(test, &files, "mimetype.use-xattr = \"enable\"") else {
        return;
    };
    let file = slow.beneath().join("one.txt");
    let set = rustix::fs::setxattr(
        &file,
        "user.Content-Type",
        b"text/x-own",
        XattrFlags::empty(),
    );
    if let Err(errno) = set {
        return petrel_tests::skip(test, &format!("no extended attributes here: {errno}"));
    }
    slow.hang_on(&[Operation::ReadAttribute]);
    let mut clients = Vec::new();
    for _ in 0..20 {
        clients.push(asking(&server, "/slow/one.txt"));
    }
    slow.expect_hanging(1);
    expect_others_served(&server);
    slow.release();
    for mut client in clients {
        let answer = client.response();
        assert_eq!(answer.field("Content-Type"), Some("text/x-own"));
        assert_eq!(answer.text(), "1");
    }
    let own_is_missing = server.get("/slow/two.txt");
    let by_name = own_is_missing.field("Content-Type");
    assert!(by_name.is_some_and(|name| name.starts_with("text/plain")));
}

#[test]
fn a_request_that_shares_a_lookup_closes_no_file_on_the_worker() {
    let test = "a_request_that_shares_a_lookup_closes_no_file_on_the_worker";
    let files: [(&str, &[u8]); 1] = [("one.txt", b"1")];
    let Some((server, slow)) = site(test, &files, "mimetype.use-xattr = \"enable\"") else {
        return;
    };
    slow.hang_on(&[Operation::ReadAttribute, Operation::Close]);
    // The third client shares the job that is queued after that of the first one.
    let clients: Vec<_> = (0..5).map(|_| asking(&server, "/slow/one.txt")).collect();
    slow.expect_hanging(1);
    expect_others_served(&server);
    assert_eq!(slow.hanging(), 1);
    // All clients leave, and the queued job is given up.
    drop(clients);
    expect_others_served(&server);
    slow.release();
    assert_eq!(server.get("/slow/one.txt").text(), "1");
}

/// Compressed files are stored on the file system that hangs.
const KEPT: &str = "server.modules = (\"mod_deflate\")
    deflate.mimetypes = (\"text/\")
    deflate.cache-dir = var.dir + \"/www/slow/cache\"\n";

const GZIP: &[(&str, &str)] = &[("Accept-Encoding", "gzip")];

/// It takes so long because the server waits for the disk twice, three to four seconds each.
#[test]
fn a_compressed_file_that_is_written_delays_no_other_request() {
    let test = "a_compressed_file_that_is_written_delays_no_other_request";
    let Some((server, slow)) = site(test, &[], &format!("{KEPT}{}", impatient(3))) else {
        return;
    };
    let text = "some text that is written again and again. ".repeat(2000);
    for name in ["create", "rename", "last"] {
        server.tree().write(&format!("www/{name}.txt"), &text);
    }
    // This opens the directory.
    assert_eq!(server.get("/hot.txt").status, 200);
    for (name, trouble) in [("create", Operation::Create), ("rename", Operation::Rename)] {
        slow.hang_on(&[trouble]);
        let mut client = server.client();
        client.send(format!(
            "GET /{name}.txt HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n"
        ));
        slow.expect_hanging(1);
        expect_others_served(&server);
        // A client that arrives meanwhile does not wait for the file.
        let mut other = server.client();
        let other = other.request("GET", &format!("/{name}.txt"), GZIP);
        assert_eq!(other.field("Content-Encoding"), Some("gzip"));
        assert_eq!(slow.hanging(), 1);
        // The client that waits for the disk gets the content without it.
        let answer = client.response();
        assert_eq!(
            (answer.status, answer.field("Content-Encoding")),
            (200, Some("gzip"))
        );
        server.expect_log("files are not kept");
        slow.release();
        assert!(eventually(|| slow.hanging() == 0));
    }
    let first = server.client().request("GET", "/last.txt", GZIP);
    let renamed = slow.count(Operation::Rename);
    assert!(renamed >= 2, "it is kept: {slow:?}");
    let second = server.client().request("GET", "/last.txt", GZIP);
    assert_eq!((second.status, &second.body), (200, &first.body));
    assert_eq!(slow.count(Operation::Rename), renamed);
}

#[test]
fn a_file_that_cannot_be_read_cannot_be_compressed() {
    let test = "a_file_that_cannot_be_read_cannot_be_compressed";
    let config = "server.modules = (\"mod_deflate\")
        deflate.mimetypes = (\"text/\")";
    let text = "some text that is written again and again. ".repeat(2000);
    let files: [(&str, &[u8]); 1] = [("text.txt", text.as_bytes())];
    let Some((server, slow)) = site(test, &files, config) else {
        return;
    };
    assert_eq!(server.get("/slow/text.txt").text(), text);
    forget_content(&server, "www/slow/text.txt");
    slow.fail_on(&[Operation::Read], rustix::io::Errno::IO);
    let get = || server.client().request("GET", "/slow/text.txt", GZIP);
    let failed = get();
    assert_eq!(failed.status, 500, "{failed}");
    assert!(failed.text().contains("500"), "it has a page: {failed}");
    expect_others_served(&server);
    slow.release();
    assert_eq!(get().field("Content-Encoding"), Some("gzip"));
}
