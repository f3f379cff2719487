//! What the logs say about requests on real connections.

use petrel_tests::{Address, Client, Server, eventually};

const LOGS: &str = r#"
    server.modules = ("mod_accesslog")
    accesslog.filename = var.dir + "/access.log"
"#;

/// Waits until the access log has a line with this text.
#[track_caller]
fn expect_access(server: &Server, text: &str) {
    let log = || String::from_utf8_lossy(&server.tree().read("access.log")).into_owned();
    assert!(eventually(|| log().contains(text)), "{text:?} is not in\n{}", log());
}

#[test]
fn a_refused_head_is_told_by_its_first_line() {
    let server = Server::start(&format!("{LOGS}accesslog.format = \"[%r] %s\""));
    for (head, status, access, error) in [
        ("GE T / HTTP/1.1\r\n\r\n", 400, "[GE T / HTTP/1.1] 400", "request=\"GE T / HTTP/1.1\""),
        ("BREW /\" HTTP/1.1\r\n\r\n", 501, "[BREW /\\\" HTTP/1.1] 501", "request=\"BREW /\\\" HTTP/1.1\""),
        ("GET /\x01\x1b HTTP/1.1\r\n\r\n", 400, "[GET /\\x01\\x1B HTTP/1.1] 400", "request=\"GET /\\x01\\x1b HTTP/1.1\""),
        ("GET /h HTTP/1.1\r\nA b: c\r\n\r\n", 400, "[GET /h HTTP/1.1] 400", "request=\"GET /h HTTP/1.1\""),
    ] {
        assert_eq!(server.exchange(head).status, status, "{head:?}");
        expect_access(&server, access);
        server.expect_log(error);
    }
    server.expect_log("(receive) The request method is not known. client=127.0.0.1 host= request=\"BREW");
    // The next request has forgotten it.
    assert_eq!(server.get("/").status, 200);
    expect_access(&server, "[GET / HTTP/1.1] 200");
}

/// Many connections, one text: the error log counts them.
#[test]
fn a_flood_of_the_same_refused_head_is_a_few_lines() {
    let server = Server::start("");
    for _ in 0..200 {
        server.client().send("NONSENSE\r\n\r\n").read_to_end();
    }
    server.expect_log("message repeated");
    let lines = server.log().lines().filter(|line| line.contains("NONSENSE")).count();
    assert!(lines < 40, "{lines} lines\n{}", server.log());
}

/// On a wildcard listener only the connection knows it.
#[test]
fn the_local_address_is_the_one_connected_to() {
    let server = Server::start(&format!(
        "{LOGS}accesslog.format = \"%A|%U\"\nserver.bind = \"0.0.0.0\""
    ));
    for (address, path) in [([127, 0, 0, 1], "/one"), ([127, 0, 0, 2], "/two")] {
        let address = std::net::SocketAddr::from((address, server.port()));
        let mut client = Client::connect(&Address::Ip(address));
        for turn in 0..2 {
            assert_eq!(client.get(&format!("{path}{turn}")).status, 404);
            expect_access(&server, &format!("{}|{path}{turn}", address.ip()));
        }
    }
}
