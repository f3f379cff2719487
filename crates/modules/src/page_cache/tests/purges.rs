//! Purges by URL and by tag, and what unsafe methods do.

use super::backend::{asked, say};
use super::{count, get, site, text};

const FRESH: &str = "Cache-Control: max-age=60\nVary: Accept-Language";
const OPEN: &str =
    "page-cache.purge = (\"127.0.0.0/8\")\npage-cache.tags-header = \"Surrogate-Key\"";

#[test]
fn a_purge_removes_all_variants_of_one_page() {
    let site = site(OPEN);
    say(200, FRESH, "x");
    for target in ["/a", "/a?b", "/c"] {
        get(&site, target, "");
        get(&site, target, "Accept-Language: de\r\n");
    }
    let purged = site.request("PURGE /a HTTP/1.1\r\nHost: A.example\r\n\r\n");
    assert_eq!(
        (purged.status(), text(&purged)),
        (200, "purged: 2\n".into())
    );
    assert_eq!(asked().len(), 6);
    get(&site, "/a?b", "");
    get(&site, "/c", "");
    assert_eq!(asked().len(), 6);
    get(&site, "/a", "");
    assert_eq!((asked().len(), count(&site, "page-cache.purged")), (7, 2));
}

#[test]
fn a_purge_by_tag_removes_all_pages_that_have_one() {
    let site = site(OPEN);
    for (target, tags) in [("/a", "news sport"), ("/b", "news,2"), ("/c", "sport")] {
        say(200, &format!("{FRESH}\nSurrogate-Key: {tags}"), "x");
        get(&site, target, "");
    }
    let request = "PURGE / HTTP/1.1\r\nHost: a\r\nSurrogate-Key: news nothing\r\n\r\n";
    assert_eq!(text(&site.request(request)), "purged: 2\n");
    get(&site, "/c", "");
    assert_eq!(asked().len(), 3);
    assert_eq!(count(&site, "page-cache.entries"), 1);
}

#[test]
fn only_those_may_purge_who_are_named() {
    let request = "PURGE /a HTTP/1.1\r\nHost: a.example\r\n\r\n";
    for (config, expected) in [
        ("page-cache.purge = (\"192.0.2.0/24\", \"unix\")", 403),
        ("page-cache.purge = (\"127.0.0.1\")", 200),
    ] {
        let site = site(config);
        say(200, FRESH, "x");
        get(&site, "/a", "");
        assert_eq!(site.request(request).status(), expected, "{config}");
        assert_eq!(
            count(&site, "page-cache.entries"),
            u64::from(expected == 403)
        );
    }
}

#[test]
fn rfc_9111_section_4_4_unsafe_methods_invalidate() {
    let post = "POST /a HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0\r\n\r\n";
    for (status, fields, left) in [
        (200, "", 3),
        (303, "Location: /b", 2),
        (201, "Content-Location: http://a.example/b\nLocation: /c", 1),
        (201, "Location: http://other.example/b", 3),
        (201, "Location: //a.example/b", 3),
        (403, "Location: /b", 4),
    ] {
        let site = site("");
        say(200, FRESH, "x");
        for target in ["/a", "/b", "/c", "/d"] {
            get(&site, target, "");
        }
        say(status, fields, "done");
        site.request(post);
        assert_eq!(
            count(&site, "page-cache.entries"),
            left,
            "{status} {fields}"
        );
    }
}

#[test]
fn what_was_fetched_before_a_purge_is_not_stored_after_it() {
    use super::super::entry::{CacheEntry, tests::page};
    use super::super::flight::Landing;
    use super::super::{PageCache, key};
    let site = site(OPEN);
    let cache = PageCache::of(site.worker());
    let since = cache.shared.purges.number();
    let key = key::testing::key_of("/a");
    cache.purge_base(site.worker(), &key);
    let entry = CacheEntry::new(page(&key, "old", 0, 60));
    assert_eq!(cache.store(&entry, since, 0), Landing::NotStored);
    let since = cache.shared.purges.number();
    assert_eq!(cache.store(&entry, since, 0), Landing::Stored);
}
