//! Rules without end, expressions that explode, and URLs that try to get out.

use std::time::{Duration, Instant};

use petrel_tests::Server;

fn server(config: &str) -> Server {
    Server::build()
        .file("www/a.txt", "a")
        .file("www/page.secret", "secret")
        .file("outside.txt", "outside")
        .config(&format!(
            "server.modules = (\"mod_rewrite\", \"mod_redirect\", \"mod_access\")\n{config}"
        ))
        .start()
}

#[test]
fn rules_without_end_are_named_with_their_places() {
    let server = server(
        "url.rewrite-repeat = (\n\
         \"^/ping\" => \"/pong\",\n\
         \"^/other\" => \"/ping\",\n\
         \"^/pong\" => \"/ping\"\n)",
    );
    for target in ["/ping", "/other", "/pong?x"] {
        assert_eq!(server.get(target).status, 500, "{target}");
    }
    assert_eq!(server.get("/a.txt").text(), "a");
    server.expect_log("(translate) the URL was rewritten more than 100 times, by \"^/p");
    let log = server.tree().text("error.log");
    let line = log.lines().find(|line| line.contains("100 times"));
    let line = line.expect("it was just there");
    let place = |pattern: &str| {
        let behind = line.split(&format!("{pattern:?} (")).nth(1)?;
        let place = behind.split(')').next()?;
        place.rsplit(':').next()?.parse::<usize>().ok()
    };
    let (ping, pong) = (place("^/ping"), place("^/pong"));
    assert!(
        ping.is_some() && pong == ping.map(|line| line + 2),
        "{line}"
    );
    assert!(!line.contains("^/other"), "{line}");
}

#[test]
fn rules_without_end_where_no_file_is() {
    let server = server("url.rewrite-repeat-if-not-file = (\"^/(.*)\" => \"/x$1\")");
    assert_eq!(server.get("/a").status, 500);
    assert_eq!(server.get("/a.txt").text(), "a");
    server.expect_log("100 times, by \"^/(.*)\"");
}

#[test]
fn an_expression_that_explodes_is_given_up_and_named() {
    let server = server(
        "url.rewrite-once = (\"^/slow/(a+)+$\" => \"/a.txt\")\n\
         url.redirect = (\"^/move/(a+)+$\" => \"/a.txt\")",
    );
    for path in ["slow", "move"] {
        let begin = Instant::now();
        let target = format!("/{path}/{}!", "a".repeat(2000));
        assert_eq!(server.get(&target).status, 500, "{path}");
        assert!(begin.elapsed() < Duration::from_secs(20), "{path}");
        server.expect_log(&format!("the rule \"^/{path}/(a+)+$\" ("));
    }
    assert_eq!(server.get("/slow/aaa").text(), "a");
}

#[test]
fn no_rule_leads_out_or_around_access_rules() {
    let server = server(
        "url.access-deny = (\".secret\")\n\
         url.rewrite-once = (\"^/get\\?(.*)\" => \"/$1\", \"^/path/(.*)\" => \"/$1\", \"^/q/(.*)\" => \"/a.txt?$1\")",
    );
    for target in [
        "/get?../outside.txt",
        "/get?%2e%2e/outside.txt",
        "/get?..%2foutside.txt",
        "/get?%2e%2e%2foutside.txt",
        "/get?/..//../outside.txt",
        "/path/..%2f..%2foutside.txt",
        "/path/%252e%252e/outside.txt",
    ] {
        let status = server.get(target).status;
        assert!(matches!(status, 400 | 403 | 404), "{target}: {status}");
    }
    for target in [
        "/get?page.secret",
        "/get?page%2esecret",
        "/path/page.secret",
        "/get?./page.secret",
    ] {
        assert_eq!(server.get(target).status, 403, "{target}");
    }
    assert_eq!(server.get("/get?a%2etxt").text(), "a");
    assert_eq!(server.get("/q/%0d%0aX:y").status, 400);
    assert_eq!(server.get("/q/%250d%250a").text(), "a");
}
