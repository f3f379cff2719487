//! Scripts as in lighttpd 1.4: they build a page from files, or pass the request to the application.

use std::time::Duration;

use petrel_tests::{Backend, Server, Speaks, eventually};

use crate::cml::{age, in_front_of};

/// The page if it is younger than a minute; else the application, which makes it.
const SCRIPT: &str = "output_contenttype = \"text/html\"\n\
    trigger_handler = \"index.php\"\n\
    local page = request[\"DOCUMENT_ROOT\"] .. \"/cache/page.html\"\n\
    local time = file_mtime(page)\n\
    if not time or os.time() - time > 60 then\n\
      return CACHE_MISS\n\
    end\n\
    output_include = { \"head.html\", page, \"foot.html\" }\n\
    return CACHE_HIT\n";

/// An application that stores its page in cache/page.html.
fn application() -> Backend {
    Backend::start(Speaks::FastCgi, |exchange| {
        let directory = format!("{}/cache", exchange.param("DOCUMENT_ROOT"));
        std::fs::create_dir_all(&directory).expect("a directory");
        std::fs::write(format!("{directory}/new"), "<p>made</p>").expect("a file");
        let page = format!("{directory}/page.html");
        std::fs::rename(format!("{directory}/new"), page).expect("rename");
        let said = format!(
            "made for {} by {}",
            exchange.param("REQUEST_URI"),
            exchange.param("SCRIPT_NAME")
        );
        exchange.say(&said);
    })
}

#[test]
fn a_page_is_made_once_and_again_when_it_is_old() {
    let backend = application();
    let server = in_front_of(&backend).file("www/index.cml", SCRIPT).start();
    let page = "<h1>head</h1><p>made</p><p>foot</p>";
    assert_eq!(server.get("/?a=1").text(), "made for /?a=1 by /index.php");
    for _ in 0..3 {
        let response = server.get("/");
        assert_eq!((response.status, response.text()), (200, page.to_owned()));
        assert_eq!(response.field("Content-Type"), Some("text/html"));
    }
    backend.expect_requests(1);
    age(
        server.tree(),
        "www/cache/page.html",
        Duration::from_secs(120),
    );
    let is_made = eventually(|| server.get("/").text().starts_with("made for /"));
    assert!(is_made, "an old page is still sent");
    backend.expect_requests(2);
    assert!(eventually(|| server.get("/").text() == page));
    server.tree().remove("www/foot.html");
    assert!(eventually(|| server.get("/").text().starts_with("made")));
}

#[test]
fn an_unchanged_page_is_304_and_head_has_its_length() {
    let backend = application();
    let script = "output_include = { 'head.html', 'foot.html' } return CACHE_HIT";
    let server = in_front_of(&backend).file("www/index.cml", script).start();
    let first = server.get("/");
    let etag = first.field("ETag").expect("it has one").to_owned();
    let modified = first.field("Last-Modified").expect("it has one").to_owned();
    let mut client = server.client();
    let again = client.request("GET", "/", &[("If-None-Match", &etag)]);
    assert_eq!((again.status, again.text()), (304, String::new()));
    let again = client.request("GET", "/", &[("If-Modified-Since", &modified)]);
    assert_eq!(again.status, 304);
    let head = client
        .send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")
        .response_to_head();
    assert_eq!(head.field("Content-Length"), Some("24"));
    assert_eq!(client.get("/").text(), "<h1>head</h1><p>foot</p>");
    server.tree().write("www/foot.html", "<p>new foot</p>");
    let changed = || {
        let again = server
            .client()
            .request("GET", "/", &[("If-None-Match", &etag)]);
        again.status == 200 && again.text().ends_with("new foot</p>")
    };
    assert!(eventually(changed), "the old page is still unchanged");
}

#[test]
fn a_power_magnet_leads_to_pages_that_are_kept() {
    let magnet = "local name = string.match(request['SCRIPT_NAME'], '^/articles/(%d+)$')\n\
        if not name then return CACHE_MISS end\n\
        output_contenttype = 'text/html'\n\
        trigger_handler = '/index.php?article=' .. name\n\
        output_include = { request['DOCUMENT_ROOT'] .. '/cache/article-' .. name .. '.html' }\n\
        return CACHE_HIT\n";
    let backend = Backend::start(Speaks::FastCgi, |exchange| {
        let said = format!("made {}", exchange.param("QUERY_STRING"));
        exchange.say(&said);
    });
    let server = in_front_of(&backend)
        .file("magnet.cml", magnet)
        .file("www/cache/article-7.html", "seven")
        .config("cml.power-magnet = var.dir + \"/magnet.cml\"")
        .start();
    for (target, status, text) in [
        ("/articles/7", 200, "seven"),
        ("/articles/8", 200, "made article=8"),
        ("/head.html", 200, "<h1>head</h1>"),
    ] {
        let response = server.get(target);
        assert_eq!(
            (response.status, &*response.text()),
            (status, text),
            "{target}"
        );
    }
    assert_eq!(server.get("/articles/x").status, 404);
}

#[test]
fn what_is_wrong_with_a_script_is_in_the_log_and_not_in_the_answer() {
    let backend = application();
    let server = in_front_of(&backend)
        .file("www/error.cml", "\n\nlocal x = nil + 1")
        .file("www/syntax.cml", "output_include = = secret")
        .file(
            "www/loop.cml",
            "pcall(function() while true do end end) return 0",
        )
        .file(
            "www/outside.cml",
            "output_include = { '../petrel.conf' } return 0",
        )
        .file("www/miss.cml", "return CACHE_MISS")
        .start();
    for (target, told) in [
        ("/error.cml", "error.cml:3:"),
        ("/syntax.cml", "syntax.cml:1:"),
        ("/loop.cml", "loop.cml: stopped"),
        ("/outside.cml", "outside the document root"),
        ("/miss.cml", "without a trigger_handler"),
    ] {
        let response = server.get(target);
        assert_eq!(response.status, 500, "{target}");
        let text = response.text();
        assert!(
            !text.contains("secret") && !text.contains("server."),
            "{text}"
        );
        server.expect_log(told);
    }
    assert_eq!(server.get("/head.html").status, 200);
}

#[test]
fn a_script_that_is_changed_counts_at_once() {
    let server = Server::build()
        .file("www/a.html", "a")
        .file("www/b.html", "b")
        .file(
            "www/page.cml",
            "output_include = { 'a.html' } return CACHE_HIT",
        )
        .config(
            "server.modules += ( \"mod_cml\" )\ncml.extension = \".cml\"\nlua.max-run-time = 1000",
        )
        .start();
    assert_eq!(server.get("/page.cml").text(), "a");
    let script = "output_include = { 'b.html' } return CACHE_HIT";
    server.tree().replace("www/page.cml", script);
    assert!(eventually(|| server.get("/page.cml").text() == "b"));
    server.tree().replace("www/page.cml", "output_incl");
    assert!(eventually(|| server.get("/page.cml").status == 500));
    server.tree().replace("www/page.cml", script);
    assert!(eventually(|| server.get("/page.cml").text() == "b"));
}

#[test]
fn a_page_with_a_large_part_is_whole() {
    let large = "0123456789abcdef".repeat(40_000);
    let server = Server::build()
        .file("www/head.html", "[")
        .file("www/large.html", &large)
        .file(
            "www/page.cml",
            "output_include = { 'head.html', 'large.html', { text = ']' }, 'head.html' } return 0",
        )
        .config(
            "server.modules += ( \"mod_cml\" )\ncml.extension = \".cml\"\nlua.max-run-time = 1000",
        )
        .start();
    let response = server.get("/page.cml");
    let length = (large.len() + 3).to_string();
    assert_eq!(response.field("Content-Length"), Some(&*length));
    assert!(
        response.text() == format!("[{large}]["),
        "it is another page"
    );
}

#[test]
fn without_the_module_no_source_is_sent() {
    let server = Server::build()
        .file("www/a.html", "a")
        .file("www/page.cml", "return 0 -- secret")
        .config("cml.extension = \".cml\"")
        .start();
    assert_eq!(server.get("/a.html").text(), "a");
    let response = server.get("/page.cml");
    assert_eq!(response.status, 503);
    assert!(!response.text().contains("secret"));
    server.expect_log("mod_cml is not in server.modules");
}
