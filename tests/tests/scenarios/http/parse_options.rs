//! The switches of server.http-parseopts, on and off, and their effect on requests.

use petrel_tests::Server;

fn server(options: &str) -> Server {
    Server::build()
        .file("www/index.html", "hello")
        .file("www/dir/a.txt", "a")
        .file("www/a b.txt", "space")
        .file("www/a\\b.txt", "backslash")
        .config(&format!("server.http-parseopts = ({options})"))
        .start()
}

fn host(server: &Server, host: &str) -> u16 {
    server
        .exchange(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"))
        .status
}

#[test]
fn control_characters_in_urls() {
    assert_eq!(server("").get("/a%01b").status, 400);
    assert_eq!(
        server("\"url-ctrls-reject\" => \"disable\"")
            .get("/a%01b")
            .status,
        404
    );
}

#[test]
fn encoded_slashes_in_paths() {
    assert_eq!(server("").get("/dir%2fa.txt").text(), "a");
    let refusing =
        server("\"url-path-2f-decode\" => \"disable\", \"url-path-2f-reject\" => \"enable\"");
    assert_eq!(refusing.get("/dir%2fa.txt").status, 400);
    assert_eq!(refusing.get("/dir/a.txt").text(), "a");
}

#[test]
fn dot_segments_in_paths() {
    assert_eq!(server("").get("/x/../dir/a.txt").text(), "a");
    let refusing = server(
        "\"url-path-dotseg-remove\" => \"disable\", \"url-path-dotseg-reject\" => \"enable\"",
    );
    assert_eq!(refusing.get("/x/../dir/a.txt").status, 400);
    assert_eq!(refusing.get("/dir/a.txt").text(), "a");
}

#[test]
fn backslashes_in_paths() {
    let translating = server("\"url-path-backslash-trans\" => \"enable\"");
    assert_eq!(translating.get("/dir\\a.txt").text(), "a");
    assert_eq!(translating.get("/dir%5ca.txt").text(), "a");
    assert_eq!(server("").get("/a%5cb.txt").text(), "backslash");
}

#[test]
fn invalid_utf8_in_urls() {
    let refusing = server("\"url-invalid-utf8-reject\" => \"enable\"");
    assert_eq!(refusing.get("/%ff").status, 400);
    assert_eq!(refusing.get("/%c3%a9").status, 404);
}

#[test]
fn hosts() {
    let strict = server("");
    assert_eq!(
        host(&strict, "a_b.test"),
        400,
        "an underscore is no letter of a host name"
    );
    let lax = server("\"host-strict\" => \"disable\"");
    assert_eq!(host(&lax, "a_b.test"), 200);
}

#[test]
fn nothing_is_normalised_when_that_is_off() {
    let server = server("\"url-normalize\" => \"disable\"");
    assert_eq!(server.get("/a%20b.txt").text(), "space");
    assert_eq!(server.get("/dir/a.txt").text(), "a");
    for target in [
        "/../petrel.conf",
        "/dir/../../petrel.conf",
        "/%2e%2e/petrel.conf",
    ] {
        let response = server.get(target);
        assert!(
            matches!(response.status, 400 | 403 | 404),
            "{target} {response}"
        );
    }
}

#[test]
fn an_unknown_switch_is_an_error() {
    let finished = Server::build()
        .config("server.http-parseopts = (\"url-normalise\" => \"enable\")")
        .check(&["-t"]);
    assert_ne!(finished.code(), 0);
    assert!(
        finished.errors.contains("url-normalize"),
        "{}",
        finished.errors
    );
}
