//! Digest authentication with curl, and across reloads.

use petrel_tests::{Client, Server, Tree, curl, eventually, is_installed, skip};
use rustix::process::Signal;

use crate::auth::{HASTY, status};

fn make(tree: &Tree) {
    tree.write("www/private/f.txt", "private")
        .write("www/strong/f.txt", "strong")
        .write("plain", "anna:pw\n");
}

const CONFIG: &str = "server.modules += ( \"mod_auth\", \"mod_authn_file\" )
auth.backend = \"plain\"
auth.backend.plain.userfile = var.dir + \"/plain\"
auth.require = (
  \"/private/\" => ( \"method\" => \"digest\", \"realm\" => \"R\", \"require\" => \"valid-user\" ),
  \"/strong/\" => ( \"method\" => \"digest\", \"realm\" => \"R\", \"require\" => \"user=anna\",
    \"algorithm\" => \"SHA-256\", \"nonce-secret\" => \"shared\" )
)";

/// The field that curl sends for `/private/f.txt`. The server accepts it once, from curl.
fn field(server: &Server) -> String {
    let url = server.url("/private/f.txt");
    let told = curl(&["-v", "-o", "/dev/null", "--digest", "-u", "anna:pw", &url]).errors;
    let mut lines = told
        .lines()
        .filter_map(|line| line.strip_prefix("> Authorization: "));
    lines
        .next_back()
        .expect("curl has sent it")
        .trim()
        .to_owned()
}

fn ask(client: &mut Client, field: &str) -> u16 {
    client
        .request("GET", "/private/f.txt", &[("Authorization", field)])
        .status
}

#[test]
fn curl_is_let_in() {
    let server = Server::build()
        .tree(make)
        .config(CONFIG)
        .config(HASTY)
        .start();
    for target in ["/private/f.txt", "/private/f.txt?a=b%20c", "/strong/f.txt"] {
        for options in [
            &["--digest"][..],
            &["--anyauth"],
            &["--digest", "--http1.0"],
        ] {
            assert_eq!(
                status(&server, "anna:pw", target, options),
                "200",
                "{target} {options:?}"
            );
            assert_eq!(
                status(&server, "anna:no", target, options),
                "401",
                "{target} {options:?}"
            );
        }
        assert_eq!(status(&server, "anna:pw", target, &["--basic"]), "401");
    }
    server.expect_log("(mod_auth.c.853) password doesn\'t match for /strong/f.txt ");
    server.expect_log(" username: anna IP: 127.0.0.1\n");
}

#[test]
fn a_reload_makes_no_nonce_stale() {
    let server = Server::build().tree(make).config(CONFIG).start();
    let before = field(&server);
    // Each worker knows that it was used.
    for _ in 0..8 {
        assert_eq!(ask(&mut server.client(), &before), 401);
    }
    let tagged = format!("server.tag = \"new\"\n{}", server.configuration());
    server.write_configuration(&tagged);
    server.signal(Signal::USR1);
    assert!(eventually(|| {
        server.get("/").field("Server") == Some("new")
    }));
    // The new process knows the nonce, and counts anew.
    assert_eq!(ask(&mut server.client(), &before), 200);
    assert_eq!(ask(&mut server.client(), &before), 401);
}

#[test]
fn answers_are_those_of_lighttpd() {
    if !is_installed("lighttpd") {
        return skip("a comparison with lighttpd", "lighttpd is not installed");
    }
    let shared = "\"valid-user\", \"nonce-secret\" => \"shared\" )";
    let config = CONFIG.replace("\"valid-user\" )", shared);
    let start = |config: &str| Server::build().tree(make).config(config).config(HASTY);
    let (ours, theirs) = (start(&config).start(), start(CONFIG).start_lighttpd());
    // Petrel accepts a field once. It takes nonces of another server with the same secret.
    let other = start(&config).start();
    for (from, to) in [
        ("", ""),
        ("username=\"anna\"", "username=\"bob\""),
        ("username=\"anna\", ", ""),
        ("realm=\"R\"", "realm=\"S\""),
        ("qop=auth", "qop=auth-int"),
        ("uri=\"/private/f.txt\"", "uri=\"/private/g.txt\""),
        ("uri=\"/private/f.txt\"", "uri=\"/strong/f.txt\""),
        ("Digest", "digest"),
        ("Digest", "Basic"),
        ("nc=00000001, ", ""),
    ] {
        let status_of = |server: &Server, asked: &Server| {
            let field = field(asked).replacen(from, to, 1);
            ask(&mut server.client(), &field)
        };
        let own = status_of(&ours, &other);
        // On a busy machine lighttpd has called a nonce stale that was a second old.
        let is_same = eventually(|| status_of(&theirs, &theirs) == own);
        assert!(is_same, "{from} -> {to}: {own}");
    }
}
