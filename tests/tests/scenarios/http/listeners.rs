//! The addresses on which the server listens.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use petrel_tests::{Address, Client, Server, curl, free_port, skip};

#[test]
fn a_unix_socket() {
    let server = Server::build()
        .file("www/index.html", "hello")
        .config(
            "$SERVER[\"socket\"] == var.dir + \"/http.sock\" { server.socket-perms = \"0600\" }",
        )
        .start();
    let path = server.tree().path("http.sock");
    let mut client = Client::connect(&Address::Unix(path.clone()));
    assert_eq!(client.get("/").text(), "hello");
    assert_eq!(client.get("/").text(), "hello");
    let mode = std::fs::metadata(&path)
        .expect("the socket")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let path = path.display().to_string();
    let finished = curl(&["--unix-socket", &path, "http://petrel.test/"]);
    assert_eq!(finished.text(), "hello", "{}", finished.errors);
    assert_eq!(server.get("/").text(), "hello");
}

/// A proxy of another user connects to the socket only if its owner or mode allows that.
#[test]
fn a_unix_socket_for_another_user() {
    let socket = "$SERVER[\"socket\"] == var.dir + \"/http.sock\"";
    let checked = Server::build()
        .config(&format!("{socket} {{ }}"))
        .check(&["-tt"]);
    let words = "only the user who starts the server can connect to the socket ";
    assert!(checked.errors.contains(words), "{}", checked.errors);
    if !rustix::process::geteuid().is_root() {
        return skip(
            "a_unix_socket_for_another_user",
            "only root gives files away",
        );
    }
    let build = |line: &str| Server::build().config(&format!("{socket} {{ {line} }}"));
    for (line, user, group, mode) in [
        ("server.socket-group = \"daemon\"", 0, 1, 0o660),
        (
            "server.socket-user = \"daemon\"\nserver.socket-perms = \"0600\"",
            1,
            0,
            0o600,
        ),
    ] {
        assert!(!build(line).check(&["-tt"]).errors.contains(words));
        let server = build(line).start();
        let data = std::fs::metadata(server.tree().path("http.sock")).expect("the socket");
        assert_eq!(
            (data.uid(), data.gid(), data.mode() & 0o777),
            (user, group, mode),
            "{line}"
        );
    }
    let wrong = build("server.socket-user = \"no-such-user\"").check(&["-D"]);
    assert!(
        wrong.errors.contains("there is no user \"no-such-user\""),
        "{}",
        wrong.errors
    );
}

#[test]
fn ipv6() {
    let port = free_port();
    let server = Server::start(&format!("$SERVER[\"socket\"] == \"[::1]:{port}\" {{ }}"));
    let address = Address::Ip(([0, 0, 0, 0, 0, 0, 0, 1], port).into());
    assert_eq!(Client::connect(&address).get("/").text(), "hello");
    assert_eq!(server.get("/").text(), "hello");
}

#[test]
fn settings_of_a_socket() {
    let port = free_port();
    let server = Server::build()
        .file("www/index.html", "main")
        .file("other/index.html", "other")
        .config(&format!(
            "$SERVER[\"socket\"] == \"127.0.0.1:{port}\" {{ server.document-root = var.dir + \"/other\" }}"
        ))
        .start();
    let address = Address::Ip(([127, 0, 0, 1], port).into());
    assert_eq!(Client::connect(&address).get("/").text(), "other");
    assert_eq!(server.get("/").text(), "main");
}

#[test]
fn settings_by_the_client_address() {
    let server = Server::build()
        .file("www/index.html", "main")
        .file("local/index.html", "local")
        .config("$HTTP[\"remote-ip\"] == \"127.0.0.0/8\" { server.document-root = var.dir + \"/local\" }")
        .start();
    assert_eq!(server.get("/").text(), "local");
}

#[test]
fn both_workers_accept() {
    let server = Server::start("");
    let mut clients: Vec<Client> = (0..40).map(|_| server.client()).collect();
    for client in &mut clients {
        assert_eq!(client.get("/").text(), "hello");
    }
}
