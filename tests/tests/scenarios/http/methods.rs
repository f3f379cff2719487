//! Methods, forms of targets, and the fields every response has.

use petrel_tests::Server;

#[test]
fn head_is_get_without_the_body() {
    let server = Server::build().file("www/a.txt", "hello world").start();
    let mut client = server.client();
    let get = client.get("/a.txt");
    let head = client.request("HEAD", "/a.txt", &[]);
    assert_eq!(head.status, 200);
    let but_date = |fields: &[(String, String)]| -> Vec<(String, String)> {
        fields
            .iter()
            .filter(|(name, _)| name != "Date")
            .cloned()
            .collect()
    };
    assert_eq!(but_date(&head.fields), but_date(&get.fields));
    let missing = client.request("HEAD", "/missing", &[]);
    assert_eq!(missing.status, 404);
    assert_eq!(
        client.get("/a.txt").text(),
        "hello world",
        "nothing came behind the heads"
    );
}

#[test]
fn options() {
    let server = Server::start("");
    let mut client = server.client();
    for target in ["/", "/index.html", "*"] {
        let response = client.request("OPTIONS", target, &[]);
        assert_eq!(response.status, 200, "{target}");
        let allow = response.field("Allow").expect("Allow");
        assert!(allow.contains("GET") && allow.contains("HEAD"), "{allow}");
        assert_eq!(response.field("Content-Length"), Some("0"));
    }
    let response = client.request("GET", "*", &[]);
    assert_eq!(response.status, 400, "* is for OPTIONS");
}

#[test]
fn methods_that_nothing_answers() {
    let server = Server::start("");
    for method in ["PUT", "DELETE", "PROPFIND", "PATCH"] {
        let response = server
            .client()
            .request(method, "/", &[("Content-Length", "0")]);
        assert!(matches!(response.status, 405 | 501), "{method} {response}");
    }
    for method in ["TRACE", "CONNECT", "FOO", "get", "GET\tX"] {
        let response = server.client().request(method, "/", &[]);
        assert!(
            matches!(response.status, 400 | 405 | 501),
            "{method} {response}"
        );
    }
}

#[test]
fn absolute_targets() {
    let server = Server::build()
        .file("www/index.html", "main")
        .file("other/index.html", "other")
        .config("$HTTP[\"host\"] == \"other.test\" { server.document-root = var.dir + \"/other\" }")
        .start();
    let mut client = server.client();
    assert_eq!(client.get("http://petrel.test/").text(), "main");
    assert_eq!(client.get("http://petrel.test").text(), "main");
    assert_eq!(
        client.get("http://OTHER.test/index.html").text(),
        "other",
        "the target counts, not Host"
    );
    assert_eq!(client.get("http://petrel.test/?query=1").text(), "main");
}

#[test]
fn date_and_server() {
    let server = Server::start("");
    let response = server.get("/");
    let date = response.field("Date").expect("Date");
    assert!(date.len() == 29 && date.ends_with(" GMT"), "{date}");
    assert!(
        response
            .field("Server")
            .is_some_and(|tag| tag.starts_with("petrel/"))
    );

    let tagged = Server::start("server.tag = \"something else\"");
    assert_eq!(tagged.get("/").field("Server"), Some("something else"));
    let blank = Server::start("server.tag = \"\"");
    assert_eq!(blank.get("/").field("Server"), None);
    assert_eq!(blank.get("/missing").field("Server"), None);
}

#[test]
fn the_date_goes_on() {
    let server = Server::start("");
    let mut client = server.client();
    let first = client.get("/").field("Date").map(str::to_owned);
    assert!(petrel_tests::eventually(|| client
        .get("/")
        .field("Date")
        .map(str::to_owned)
        != first));
}

#[test]
fn queries_do_not_matter_to_files() {
    let server = Server::start("");
    for target in ["/?", "/?a=b", "/index.html?/../..", "/?%00", "/?a?b#"] {
        let response = server.get(target);
        assert!(matches!(response.status, 200 | 400), "{target} {response}");
    }
    assert_eq!(server.get("/?a=b&c=%20d").text(), "hello");
}
