//! What is stored, what is found again, and which requests get different pages.

use petrel_engine::testing::Site;

use super::backend::{self, BACKEND, Way, asked, say, say_in_parts};
use super::{MODULE, count, get, later, site, status, text};
use crate::{deflate, setenv};

const FRESH: &str = "Cache-Control: max-age=60\nETag: \"1\"\nX-A: b";

#[test]
fn a_fresh_answer_is_sent_again_with_its_age() {
    let site = site("");
    say(200, FRESH, "one");
    let first = get(&site, "/a", "");
    assert_eq!(
        (text(&first), status(&first)),
        ("one".into(), "petrel; fwd=uri-miss; stored".into())
    );
    assert_eq!(first.field("Age"), None);
    say(200, FRESH, "two");
    later(&site, 7);
    let second = get(&site, "/a", "");
    assert_eq!((second.status(), text(&second)), (200, "one".into()));
    assert_eq!(
        second.field("Cache-Status").as_deref(),
        Some("petrel; hit; ttl=53")
    );
    assert_eq!(second.field("Age").as_deref(), Some("7"));
    assert_eq!(second.field("X-A").as_deref(), Some("b"));
    assert!(second.field("Date").is_some());
    assert_eq!(asked().len(), 1);
    later(&site, 53);
    assert_eq!(text(&get(&site, "/a", "")), "two");
    let counters = ["hits", "misses", "stores", "entries"];
    let counts = counters.map(|name| count(&site, &format!("page-cache.{name}")));
    assert_eq!(counts, [1, 2, 2, 1]);
}

#[test]
fn urls_hosts_and_queries_are_different_pages() {
    let site = site("page-cache.query-ignore = (\"utm_*\")");
    for target in ["/a", "/b", "/a?x", "/a?x=1"] {
        say(200, FRESH, target);
        assert_eq!(text(&get(&site, target, "")), target);
    }
    say(200, FRESH, "other host");
    let other = site.request("GET /a HTTP/1.1\r\nHost: b.example\r\n\r\n");
    assert_eq!(text(&other), "other host");
    for target in ["/a", "/b", "/a?x", "/a?x=1"] {
        assert_eq!(text(&get(&site, target, "")), target);
    }
    assert_eq!(text(&get(&site, "/a?utm_source=x", "")), "/a");
    assert_eq!(asked().len(), 5);
}

#[test]
fn answers_that_vary_are_kept_apart() {
    let site = site("");
    let fields = format!("{FRESH}\nVary: Accept-Language");
    for language in ["de", "en"] {
        say(200, &fields, language);
        let field = format!("Accept-Language: {language}\r\n");
        assert_eq!(text(&get(&site, "/", &field)), language);
    }
    assert_eq!(text(&get(&site, "/", "Accept-Language: DE\r\n")), "de");
    assert_eq!(text(&get(&site, "/", "Accept-Language: en\r\n")), "en");
    say(200, &fields, "none");
    let miss = get(&site, "/", "");
    assert_eq!(
        (text(&miss), status(&miss)),
        ("none".into(), "petrel; fwd=vary-miss; stored".into())
    );
    assert_eq!(asked().len(), 3);
}

#[test]
fn head_is_answered_by_what_get_has_stored() {
    let site = site("");
    say(200, FRESH, "one");
    let head = "HEAD / HTTP/1.1\r\nHost: a.example\r\n\r\n";
    site.request(head);
    assert_eq!(count(&site, "page-cache.stores"), 0);
    get(&site, "/", "");
    let answer = site.request(head);
    assert_eq!(status(&answer), "petrel; hit");
    assert_eq!(asked().len(), 2);
}

#[test]
fn what_comes_in_parts_is_stored_when_it_is_complete() {
    let site = site("page-cache.max-object-size = 1");
    say_in_parts(200, FRESH, &["on", "e"], Way::Streamed);
    assert_eq!(text(&get(&site, "/", "")), "one");
    say(200, FRESH, "two");
    assert_eq!(text(&get(&site, "/", "")), "one");
    let long = "x".repeat(1000);
    say_in_parts(200, FRESH, &[&long, &long], Way::Streamed);
    assert_eq!(text(&get(&site, "/long", "")).len(), 2000);
    assert_eq!(count(&site, "page-cache.entries"), 1);
    say(200, FRESH, &format!("{long}{long}"));
    let answer = get(&site, "/long", "");
    assert_eq!(status(&answer), "petrel; fwd=uri-miss; detail=too-large");
}

#[test]
fn an_answer_that_breaks_off_is_not_stored() {
    let site = site("");
    say_in_parts(200, FRESH, &["on"], Way::Broken);
    let broken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| get(&site, "/", "")));
    assert!(broken.is_err(), "its end is an error");
    say(200, FRESH, "whole");
    assert_eq!(text(&get(&site, "/", "")), "whole");
    assert_eq!(count(&site, "page-cache.stores"), 1);
}

#[test]
fn errors_that_say_how_long_they_count_are_kept() {
    let site = site("");
    say(404, "Cache-Control: max-age=60", "no such page");
    get(&site, "/", "");
    say(200, FRESH, "now there is");
    let answer = get(&site, "/", "");
    assert_eq!(
        (answer.status(), text(&answer)),
        (404, "no such page".into())
    );
    assert_eq!(asked().len(), 1);
}

#[test]
fn what_the_configuration_adds_is_added_to_every_answer_once() {
    backend::forget();
    let config = "server.document-root = \"/nonexistent\"\npage-cache.enable = \"enable\"\n\
        setenv.add-response-header = (\"X-Mine\" => \"1\")";
    let site = Site::new(config, &[&setenv::MODULE, &BACKEND, &MODULE]);
    say(200, FRESH, "one");
    for _ in 0..3 {
        let answer = get(&site, "/", "");
        assert_eq!(answer.fields().matches("X-Mine: 1\r\n").count(), 1);
    }
    assert_eq!(asked().len(), 1);
}

#[test]
fn a_hit_is_compressed_once() {
    backend::forget();
    let config = "server.document-root = \"/nonexistent\"\npage-cache.enable = \"enable\"\n\
        deflate.mimetypes = (\"text/\")\ndeflate.allowed-encodings = (\"gzip\")";
    let site = Site::new(config, &[&deflate::MODULE, &BACKEND, &MODULE]);
    say(
        200,
        "Cache-Control: max-age=60\nContent-Type: text/plain\nETag: \"1\"",
        &"compress me ".repeat(100),
    );
    let zipped = |site: &Site| {
        let answer = get(site, "/", "Accept-Encoding: gzip\r\n");
        assert_eq!(answer.field("Content-Encoding").as_deref(), Some("gzip"));
        assert_eq!(answer.field("ETag").as_deref(), Some("\"1-gzip\""));
        answer.body().to_vec()
    };
    let first = zipped(&site);
    for _ in 0..3 {
        assert_eq!(zipped(&site), first);
    }
    assert_eq!(deflate::kept_by(site.worker()), 1, "by the first hit");
    assert_eq!(text(&get(&site, "/", "")), "compress me ".repeat(100));
    assert_eq!(asked().len(), 1);
}

#[test]
fn fields_for_this_cache_alone_go_no_further() {
    let site = site("page-cache.tags-header = \"Surrogate-Key\"");
    let fields = "X-Accel-Expires: 60\nSurrogate-Key: a b";
    say(200, fields, "one");
    for _ in 0..2 {
        let answer = get(&site, "/", "");
        assert_eq!(answer.field("X-Accel-Expires"), None);
        assert_eq!(answer.field("Surrogate-Key"), None);
    }
    assert_eq!(asked().len(), 1);
    get(
        &site,
        "/",
        "Cookie: x\r\nUpgrade: a\r\nConnection: upgrade\r\n",
    );
    assert_eq!(asked().len(), 2);
}

#[test]
fn what_was_stale_before_it_came_is_not_fresh_here() {
    let site = site("");
    say(200, "Cache-Control: max-age=60\nAge: 55", "old");
    let first = get(&site, "/", "");
    assert_eq!(
        first.field("Age").as_deref(),
        Some("55"),
        "as the backend says"
    );
    later(&site, 4);
    let second = get(&site, "/", "");
    assert_eq!(second.fields().matches("Age:").count(), 1);
    assert_eq!(second.field("Age").as_deref(), Some("59"));
    later(&site, 1);
    get(&site, "/", "");
    assert_eq!(asked().len(), 2);
}

#[test]
fn conditions_of_the_configuration_keep_pages_apart() {
    backend::forget();
    let config = "server.document-root = \"/nonexistent\"\npage-cache.enable = \"enable\"\n\
        $HTTP[\"useragent\"] == \"robot\" { setenv.add-request-header = (\"X-Robot\" => \"1\") }";
    let site = Site::new(config, &[&MODULE, &setenv::MODULE, &BACKEND]);
    say(200, FRESH, "for people");
    get(&site, "/", "User-Agent: person\r\n");
    say(200, FRESH, "for robots");
    assert_eq!(
        text(&get(&site, "/", "User-Agent: robot\r\n")),
        "for robots"
    );
    assert_eq!(
        text(&get(&site, "/", "User-Agent: another\r\n")),
        "for people"
    );
}

#[test]
fn only_if_cached_is_never_forwarded() {
    let site = site("");
    say(200, FRESH, "one");
    let answer = get(&site, "/", "Cache-Control: only-if-cached\r\n");
    assert_eq!((answer.status(), asked().len()), (504, 0));
    get(&site, "/", "");
    assert_eq!(
        get(&site, "/", "Cache-Control: only-if-cached\r\n").status(),
        200
    );
}

#[test]
fn a_demand_for_something_fresh_counts_where_it_is_honoured() {
    for (config, expected) in [
        ("", 1),
        ("page-cache.honour-client-no-cache = \"enable\"", 2),
    ] {
        let site = site(config);
        say(200, FRESH, "one");
        get(&site, "/", "");
        let answer = get(&site, "/", "Cache-Control: no-cache\r\n");
        assert_eq!(asked().len(), expected, "{config}");
        if expected == 2 {
            assert_eq!(status(&answer), "petrel; fwd=request; stored");
        }
    }
}
