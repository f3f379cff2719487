//! Conditional requests and ranges, from clients and to backends.

use super::backend::{asked, say};
use super::{count, get, later, site, status, text};

const FRESH: &str = "Cache-Control: max-age=60\nETag: \"1\"\n\
    Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\nContent-Type: text/plain";

#[test]
fn conditions_are_judged_by_what_is_stored() {
    let site = site("");
    say(200, FRESH, "one");
    get(&site, "/", "");
    for (fields, expected) in [
        ("If-None-Match: \"1\"\r\n", 304),
        ("If-None-Match: \"2\"\r\n", 200),
        ("If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n", 304),
        ("If-Modified-Since: Sun, 06 Nov 1994 08:49:36 GMT\r\n", 200),
        ("If-Match: \"2\"\r\n", 412),
    ] {
        let answer = get(&site, "/", fields);
        assert_eq!(
            (answer.status(), status(&answer)),
            (expected, status_of(expected)),
            "{fields}"
        );
    }
    assert_eq!(asked().len(), 1);
}

fn status_of(code: u16) -> String {
    match code {
        // The error page is the server's own.
        412 => String::new(),
        _ => "petrel; hit".to_owned(),
    }
}

#[test]
fn ranges_are_cut_out_of_what_is_stored() {
    let site = site("");
    let page = "0123456789".repeat(20);
    say(200, FRESH, &page);
    get(&site, "/", "");
    let one = get(&site, "/", "Range: bytes=2-4\r\n");
    assert_eq!((one.status(), text(&one)), (206, "234".into()));
    assert_eq!(one.field("Content-Range").as_deref(), Some("bytes 2-4/200"));
    let several = get(&site, "/", "Range: bytes=0-0,-2\r\n");
    assert_eq!(several.status(), 206);
    let parts = text(&several);
    assert!(
        parts.contains("\r\n\r\n0\r\n") && parts.contains("\r\n\r\n89\r\n"),
        "{parts}"
    );
    assert_eq!(get(&site, "/", "Range: bytes=200-\r\n").status(), 416);
    let other = get(&site, "/", "Range: bytes=2-4\r\nIf-Range: \"2\"\r\n");
    assert_eq!((other.status(), text(&other)), (200, page));
    assert_eq!(asked().len(), 1);
}

#[test]
fn a_part_from_the_backend_is_passed_on_and_not_stored() {
    let site = site("");
    say(206, &format!("{FRESH}\nContent-Range: bytes 2-4/10"), "234");
    let answer = get(&site, "/", "Range: bytes=2-4\r\n");
    assert_eq!((answer.status(), text(&answer)), (206, "234".into()));
    assert_eq!(count(&site, "page-cache.entries"), 0);
    assert!(asked()[0].contains("range: bytes=2-4"));
}

#[test]
fn the_backend_is_asked_for_the_whole_and_the_client_gets_what_it_asked() {
    let site = site("");
    say(200, FRESH, "one");
    let answer = get(&site, "/", "If-None-Match: \"1\"\r\n");
    assert_eq!((answer.status(), text(&answer)), (304, String::new()));
    assert!(!asked()[0].contains("if-none-match"));
    assert_eq!(text(&get(&site, "/", "")), "one");
    assert_eq!(asked().len(), 1);
}

#[test]
fn rfc_9111_section_4_3_a_stale_answer_is_validated() {
    let site = site("");
    say(200, FRESH, "one");
    get(&site, "/", "");
    later(&site, 60);
    say(
        304,
        "Cache-Control: max-age=30\nX-New: 1\nContent-Type: wrong/type",
        "",
    );
    let answer = get(&site, "/", "If-None-Match: \"9\"\r\n");
    assert_eq!((answer.status(), text(&answer)), (200, "one".into()));
    assert_eq!(status(&answer), "petrel; fwd=stale; fwd-status=304; stored");
    let question = asked().pop().expect("it was asked");
    assert!(question.contains("if-none-match: \"1\""), "{question}");
    assert!(question.contains("if-modified-since: Sun, 06 Nov 1994 08:49:37 GMT"));
    assert!(!question.contains("\"9\""), "{question}");
    let hit = get(&site, "/", "");
    assert_eq!(
        hit.field("Cache-Status").as_deref(),
        Some("petrel; hit; ttl=30")
    );
    assert_eq!(hit.field("X-New").as_deref(), Some("1"));
    assert_eq!(hit.field("Content-Type").as_deref(), Some("text/plain"));
    assert_eq!((asked().len(), count(&site, "page-cache.entries")), (2, 1));
    assert_eq!(count(&site, "page-cache.revalidated"), 1);
}

#[test]
fn the_client_s_own_copy_counts_after_a_validation_as_well() {
    let site = site("");
    say(200, FRESH, "one");
    get(&site, "/", "");
    later(&site, 60);
    say(304, "Cache-Control: max-age=30", "");
    assert_eq!(get(&site, "/", "If-None-Match: \"1\"\r\n").status(), 304);
}

#[test]
fn a_new_answer_takes_the_place_of_the_stale_one() {
    let site = site("");
    say(200, FRESH, "one");
    get(&site, "/", "");
    later(&site, 60);
    say(200, "Cache-Control: max-age=30\nETag: \"2\"", "two");
    let answer = get(&site, "/", "");
    assert_eq!(status(&answer), "petrel; fwd=stale; stored");
    assert_eq!(text(&get(&site, "/", "")), "two");
    assert_eq!(count(&site, "page-cache.entries"), 1);
}

#[test]
fn a_new_answer_that_cannot_be_stored_ends_the_stale_one() {
    let site = site("");
    say(200, FRESH, "one");
    get(&site, "/", "");
    later(&site, 60);
    say(200, "Cache-Control: private", "mine");
    assert_eq!(text(&get(&site, "/", "")), "mine");
    assert_eq!(count(&site, "page-cache.entries"), 0);
}

#[test]
fn no_cache_means_asking_each_time() {
    let site = site("");
    say(200, "Cache-Control: no-cache\nETag: \"1\"", "one");
    get(&site, "/", "");
    say(304, "Cache-Control: no-cache", "");
    for _ in 0..2 {
        let answer = get(&site, "/", "");
        assert_eq!((answer.status(), text(&answer)), (200, "one".into()));
    }
    assert_eq!(asked().len(), 3);
}

#[test]
fn a_304_for_the_client_s_own_copy_is_passed_on() {
    let site = site("page-cache.lock-timeout = 0");
    say(304, "ETag: \"1\"", "");
    let answer = get(&site, "/", "If-None-Match: \"1\"\r\n");
    assert_eq!(answer.status(), 304);
    assert!(asked()[0].contains("if-none-match: \"1\""));
    assert_eq!(count(&site, "page-cache.entries"), 0);
}
