//! RFC 5861: stale answers are sent while they are refreshed, and when that fails.

use super::backend::{asked, say};
use super::{count, get, later, site, status, text};

const BOTH: &str =
    "Cache-Control: max-age=10, stale-while-revalidate=10, stale-if-error=60\nETag: \"1\"";

/// Lets background work go on.
async fn turns() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "local")]
async fn a_stale_answer_is_sent_while_a_new_one_is_fetched_once() {
    let site = site("");
    say(200, BOTH, "one");
    get(&site, "/", "Accept-Encoding: gzip\r\n");
    later(&site, 12);
    say(200, BOTH, "two");
    for _ in 0..3 {
        let answer = get(&site, "/", "");
        assert_eq!(text(&answer), "one");
        assert_eq!(
            answer.field("Cache-Status").as_deref(),
            Some("petrel; hit; ttl=-2")
        );
    }
    assert_eq!(asked().len(), 1, "no client has waited for it");
    turns().await;
    assert_eq!(asked().len(), 2);
    assert_eq!(text(&get(&site, "/", "")), "two");
    assert_eq!(
        (
            count(&site, "page-cache.refreshes"),
            count(&site, "page-cache.stale")
        ),
        (1, 3)
    );
}

#[tokio::test(flavor = "local")]
async fn the_background_fetch_is_a_validation_of_the_same_variant() {
    let site = site("");
    say(200, &format!("{BOTH}\nVary: Accept-Encoding"), "one");
    let field = "Accept-Encoding: gzip\r\nIf-None-Match: \"7\"\r\n";
    get(&site, "/?q", field);
    later(&site, 12);
    say(304, &format!("{BOTH}\nVary: Accept-Encoding"), "");
    get(&site, "/?q", field);
    turns().await;
    let question = asked().pop().expect("it was asked");
    assert!(question.starts_with("/?q\n"), "{question}");
    assert!(question.contains("if-none-match: \"1\""), "{question}");
    assert!(question.contains("accept-encoding: gzip"), "{question}");
    let answer = get(&site, "/?q", "Accept-Encoding: gzip\r\n");
    assert_eq!(
        answer.field("Cache-Status").as_deref(),
        Some("petrel; hit; ttl=10")
    );
    assert_eq!((asked().len(), text(&answer)), (2, "one".into()));
}

#[tokio::test(flavor = "local")]
async fn a_background_fetch_that_fails_is_tried_again_later() {
    let site = site("");
    say(200, BOTH, "one");
    get(&site, "/", "");
    later(&site, 12);
    say(503, "", "");
    for _ in 0..3 {
        assert_eq!(text(&get(&site, "/", "")), "one");
        turns().await;
    }
    assert_eq!(asked().len(), 2);
}

#[test]
fn after_its_time_a_stale_answer_is_not_sent() {
    let site = site("");
    say(200, BOTH, "one");
    get(&site, "/", "");
    later(&site, 20);
    say(200, BOTH, "two");
    assert_eq!(text(&get(&site, "/", "")), "two");
}

#[test]
fn a_failing_backend_is_covered_by_what_is_stored() {
    for (code, words) in [(500, "sorry"), (502, ""), (503, ""), (504, "")] {
        let site = site("");
        say(200, BOTH, "one");
        get(&site, "/", "");
        later(&site, 25);
        say(code, "", words);
        let answer = get(&site, "/", "");
        assert_eq!(
            (answer.status(), text(&answer)),
            (200, "one".into()),
            "{code}"
        );
        let expected = format!("petrel; fwd=stale; fwd-status={code}; detail=stale-if-error");
        assert_eq!(status(&answer), expected);
        // The backend is not asked again for a moment.
        assert_eq!(text(&get(&site, "/", "")), "one");
        assert_eq!(asked().len(), 2);
        later(&site, 60);
        assert_eq!(get(&site, "/", "").status(), code);
    }
}

#[test]
fn other_errors_are_answers() {
    let site = site("");
    say(200, BOTH, "one");
    get(&site, "/", "");
    later(&site, 25);
    say(404, "", "gone");
    assert_eq!(get(&site, "/", "").status(), 404);
    assert_eq!(count(&site, "page-cache.entries"), 0);
}

#[test]
fn what_must_be_validated_is_never_sent_stale() {
    for control in ["must-revalidate", "proxy-revalidate", "s-maxage=10"] {
        let site = site("page-cache.stale-if-error = 60\npage-cache.stale-while-revalidate = 60");
        say(
            200,
            &format!("Cache-Control: max-age=10, {control}\nETag: \"1\""),
            "one",
        );
        get(&site, "/", "");
        later(&site, 11);
        say(503, "", "");
        assert_eq!(get(&site, "/", "").status(), 503, "{control}");
    }
}

#[test]
fn error_handlers_come_after_what_is_stored() {
    let site = site("server.error-handler = \"/sorry\"");
    say(200, BOTH, "one");
    get(&site, "/", "");
    later(&site, 25);
    say(503, "", "");
    let answer = get(&site, "/", "");
    assert_eq!((answer.status(), text(&answer)), (200, "one".into()));
    assert_eq!(asked().len(), 2, "the handler is not asked");
    let other = get(&site, "/other", "");
    assert_eq!(other.status(), 503);
    assert_eq!(count(&site, "page-cache.entries"), 1);
}

#[tokio::test(flavor = "local")]
async fn a_background_fetch_for_a_client_who_is_known_is_not_shared() {
    let authorized = "Authorization: Basic eDp5\r\n";
    let site = site("");
    say(200, &format!("{BOTH}\nCache-Control: public"), "shared");
    get(&site, "/", "");
    later(&site, 12);
    say(200, BOTH, "mine");
    assert_eq!(text(&get(&site, "/", authorized)), "shared");
    turns().await;
    assert_eq!(asked().len(), 2);
    say(200, BOTH, "shared");
    assert_ne!(text(&get(&site, "/", "")), "mine");
}
