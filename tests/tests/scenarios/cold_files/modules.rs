//! Other modules that look at files for a request.

use petrel_tests::{Builder, Client, Operation, Server, SlowFs, eventually};

use super::expect_others_served;

/// A server in which `/` is on the file system that hangs when a test asks for it, and `/hot.txt` of the host
/// `petrel.test` is not. Requests to the host `slow` wait `file_wait_s` for it.
fn site(
    test: &str,
    file_wait_s: u32,
    make: impl FnOnce(Builder) -> Builder,
) -> Option<(Server, SlowFs)> {
    let hosts = format!(
        "$HTTP[\"host\"] == \"petrel.test\" {{ server.document-root = var.dir + \"/www\" }}
        $HTTP[\"host\"] == \"slow\" {{ server.max-file-wait = {file_wait_s} }}"
    );
    let server = Server::build()
        .file("www/hot.txt", "hot")
        .file("slow/x", "x");
    let server = make(server)
        .config(&format!("server.max-worker = 1\n{hosts}"))
        .start();
    let slow = SlowFs::mount_or_skip(test, &server.tree().path("slow"))?;
    Some((server, slow))
}

/// Sends a request that hangs, and expects that others are served.
#[track_caller]
fn hanging(server: &Server, slow: &SlowFs, operations: &[Operation], request: &str) -> Client {
    slow.hang_on(operations);
    let mut client = server.client();
    client.send(request);
    slow.expect_hanging(1);
    expect_others_served(server);
    client
}

/// The operations that a request needs before it is answered.
const OPERATIONS: [&[Operation]; 3] = [
    &[Operation::Lookup, Operation::Stat],
    &[Operation::Open],
    &[Operation::Read],
];

/// Expects that the request is served correctly when the file system is slow, gets 504 when it hangs, and is
/// served correctly again afterwards. The local host is served meanwhile.
#[track_caller]
fn expect_waits_and_is_served(
    test: &str,
    request: &str,
    expected: &str,
    make: impl Fn(Builder) -> Builder,
) {
    let request = format!("{request}\r\nHost: slow\r\n\r\n");
    for operations in OPERATIONS {
        let what = format!("{test}, {operations:?}");
        let Some((server, slow)) = site(test, 60, &make) else {
            return;
        };
        let mut client = hanging(&server, &slow, operations, &request);
        slow.release();
        let response = client.response();
        let is_right = response.text().contains(expected);
        assert!(is_right, "{what}, slow: {response}");
        drop((slow, server));

        let Some((server, slow)) = site(test, 1, &make) else {
            return;
        };
        let mut client = hanging(&server, &slow, operations, &request);
        let response = client.response();
        assert_eq!(response.status, 504, "{what}, hung: {response}");
        expect_others_served(&server);
        slow.release();
        let again = || server.exchange(&request).text();
        assert!(
            eventually(|| again().contains(expected)),
            "{what}, again: {}",
            again()
        );
    }
}

const ROOT: &str = "server.document-root = var.dir + \"/slow\"";

/// It takes so long because six servers start, and three of them wait one to two seconds for the disk.
#[test]
fn an_index_file() {
    expect_waits_and_is_served("an_index_file", "GET / HTTP/1.1", "the index", |server| {
        server.file("slow/index.html", "the index").config(ROOT)
    });
}

/// It takes so long because six servers start, and three of them wait one to two seconds for the disk.
#[test]
fn an_index_file_of_several() {
    expect_waits_and_is_served(
        "an_index_file_of_several",
        "GET /d/ HTTP/1.1",
        "the third",
        |server| {
            server.file("slow/d/c.html", "the third").config(&format!(
                "{ROOT}\nindex-file.names = (\"a.html\", \"b.html\", \"c.html\")"
            ))
        },
    );
}

/// It takes so long because six servers start, and three of them wait one to two seconds for the disk.
#[test]
fn a_precompressed_sibling() {
    let request = "GET /a.txt HTTP/1.1\r\nAccept-Encoding: gzip";
    expect_waits_and_is_served(
        "a_precompressed_sibling",
        request,
        "the sibling",
        |server| {
            server
                .file("slow/a.txt", "the file")
                .file("slow/a.txt.gz", "the sibling")
                .config(&format!("{ROOT}\nstatic-file.precompressed = (\"gzip\")"))
        },
    );
}

/// It takes so long because six servers start, and three of them wait one to two seconds for the disk.
#[test]
fn path_info() {
    let request = "GET /a.txt/more/of/it HTTP/1.1";
    expect_waits_and_is_served("path_info", request, "the file", |server| {
        server.file("slow/a.txt", "the file").config(ROOT)
    });
}

/// It takes so long because six servers start, and three of them wait one to two seconds for the disk.
#[test]
fn a_script() {
    expect_waits_and_is_served("a_script", "GET /x HTTP/1.1", "by the script", |server| {
        server
            .file(
                "slow/script.lua",
                "lighty.content = { \"by the script\" }\nreturn 200",
            )
            .config(&format!(
                "{ROOT}\nserver.modules += (\"mod_magnet\")\nlua.max-run-time = 1000\n\
                $HTTP[\"host\"] == \"slow\" {{ \
                magnet.attract-raw-url-to = (var.dir + \"/slow/script.lua\") }}"
            ))
    });
}

/// It takes so long because six servers start, and three of them wait one to two seconds for the disk.
#[test]
fn a_root_of_simple_vhost() {
    let test = "a_root_of_simple_vhost";
    expect_waits_and_is_served(test, "GET /a.txt HTTP/1.1", "of the host", |server| {
        server.file("slow/slow/pages/a.txt", "of the host").config(
            "server.modules += (\"mod_simple_vhost\")\n\
            $HTTP[\"host\"] == \"slow\" { simple-vhost.server-root = var.dir + \"/slow/\"\n\
            simple-vhost.document-root = \"pages\" }",
        )
    });
}

/// It takes so long because six servers start, and three of them wait one to two seconds for the disk.
#[test]
fn a_root_of_evhost() {
    let test = "a_root_of_evhost";
    expect_waits_and_is_served(test, "GET /a.txt HTTP/1.1", "of the host", |server| {
        server.file("slow/slow/a.txt", "of the host").config(
            "server.modules += (\"mod_evhost\")\n\
            $HTTP[\"host\"] == \"slow\" { evhost.path-pattern = var.dir + \"/slow/%_/\" }",
        )
    });
}

/// It takes so long because six servers start, and three of them wait one to two seconds for the disk.
#[test]
fn an_error_page() {
    let test = "an_error_page";
    let make = |server: Builder| {
        server
            .file("slow/status-404.html", "the error page")
            .config("server.errorfile-prefix = var.dir + \"/slow/status-\"")
    };
    let request = "GET /none HTTP/1.1\r\nHost: slow\r\n\r\n";
    for operations in OPERATIONS {
        let Some((server, slow)) = site(test, 60, make) else {
            return;
        };
        let mut client = hanging(&server, &slow, operations, request);
        slow.release();
        let response = client.response();
        assert_eq!(
            (response.status, &*response.text()),
            (404, "the error page"),
            "{operations:?}"
        );
        drop((slow, server));

        let Some((server, slow)) = site(test, 1, make) else {
            return;
        };
        // The error is known, but its page cannot be read.
        let response = hanging(&server, &slow, operations, request).response();
        assert!(matches!(response.status, 404 | 504), "{response}");
        assert!(!response.text().contains("the error page"), "{response}");
        expect_others_served(&server);
    }
}
