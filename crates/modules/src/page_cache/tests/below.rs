//! What is kept on disk, and over a restart.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use petrel_engine::blocking::{self, Origin};
use petrel_engine::testing::Site;

use super::super::PageCache;
use super::backend::{asked, say};
use super::{count, get, later, site, status, text};
use crate::testing::Tree;

const FRESH: &str = "Cache-Control: max-age=60\nETag: \"1\"";

fn on_disk(tree: &Tree, more: &str) -> Site {
    let path = tree.path("cache");
    site(&format!("page-cache.disk-path = \"{path}\"\n{more}"))
}

/// Waits until a counter has this value; background work goes on meanwhile.
async fn until(site: &Site, name: &str, expected: u64) {
    PageCache::of(site.worker());
    for _ in 0..60_000 {
        if count(site, name) == expected {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("{name} is {} and not {expected}", count(site, name));
}

#[tokio::test(flavor = "local")]
async fn what_is_on_disk_is_sent_after_a_restart() {
    let tree = Tree::new(&[]);
    {
        let site = on_disk(&tree, "");
        say(200, FRESH, "one");
        get(&site, "/a", "");
        say(200, &format!("{FRESH}\nVary: Accept-Language"), "de");
        get(&site, "/b", "Accept-Language: de\r\n");
        until(&site, "page-cache.disk.stores", 2).await;
        assert_eq!(
            count(&site, "page-cache.disk.entries"),
            3,
            "one of them names fields"
        );
    }
    let site = on_disk(&tree, "");
    until(&site, "page-cache.disk.entries", 3).await;
    say(200, FRESH, "new");
    let answer = get(&site, "/a", "");
    assert_eq!(
        (text(&answer), status(&answer)),
        ("one".into(), "petrel; hit".into())
    );
    assert_eq!(text(&get(&site, "/b", "Accept-Language: de\r\n")), "de");
    assert_eq!(text(&get(&site, "/b", "Accept-Language: en\r\n")), "new");
    assert_eq!(
        (asked().len(), count(&site, "page-cache.disk.hits")),
        (1, 2)
    );
    assert_eq!(text(&get(&site, "/a", "")), "one");
    assert_eq!(
        count(&site, "page-cache.disk.hits"),
        2,
        "it is in memory now"
    );
}

#[tokio::test(flavor = "local")]
async fn what_is_stale_on_disk_is_validated() {
    let tree = Tree::new(&[]);
    {
        let site = on_disk(&tree, "");
        say(200, FRESH, "one");
        get(&site, "/a", "");
        until(&site, "page-cache.disk.stores", 1).await;
    }
    let site = on_disk(&tree, "");
    until(&site, "page-cache.disk.entries", 1).await;
    later(&site, 100);
    say(304, "Cache-Control: max-age=60", "");
    let answer = get(&site, "/a", "");
    assert_eq!((answer.status(), text(&answer)), (200, "one".into()));
    assert_eq!(status(&answer), "petrel; fwd=stale; fwd-status=304; stored");
}

#[tokio::test(flavor = "local")]
async fn a_purge_reaches_the_disk() {
    let tree = Tree::new(&[]);
    let config = "page-cache.purge = (\"127.0.0.1\")\npage-cache.tags-header = \"Cache-Tag\"";
    {
        let site = on_disk(&tree, config);
        for (target, tag) in [("/a", "x"), ("/b", "y"), ("/c", "z")] {
            say(200, &format!("{FRESH}\nCache-Tag: {tag}"), "one");
            get(&site, target, "");
        }
        until(&site, "page-cache.disk.stores", 3).await;
        site.request("PURGE /a HTTP/1.1\r\nHost: a.example\r\n\r\n");
        assert_eq!(count(&site, "page-cache.disk.entries"), 2);
        site.request("PURGE / HTTP/1.1\r\nHost: a\r\nCache-Tag: y\r\n\r\n");
        let note = tree.path("cache/purged-tags");
        for _ in 0..60_000 {
            if std::path::Path::new(&note).exists() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let site = on_disk(&tree, config);
    until(&site, "page-cache.disk.entries", 2).await;
    say(200, FRESH, "new");
    for (target, expected) in [("/a", "new"), ("/b", "new"), ("/c", "one")] {
        assert_eq!(text(&get(&site, target, "")), expected, "{target}");
    }
}

#[tokio::test(flavor = "local")]
async fn an_answer_that_may_not_be_stored_any_more_is_removed_from_disk() {
    let tree = Tree::new(&[]);
    let site = on_disk(&tree, "");
    say(200, FRESH, "one");
    get(&site, "/a", "");
    until(&site, "page-cache.disk.entries", 1).await;
    later(&site, 60);
    say(200, "Cache-Control: private", "mine");
    get(&site, "/a", "");
    until(&site, "page-cache.disk.entries", 0).await;
}

#[tokio::test(flavor = "local")]
async fn what_is_removed_while_it_waits_to_be_written_does_not_stay() {
    let tree = Tree::new(&[]);
    let site = on_disk(&tree, "");
    // The threads have something else to do.
    let (open, is_open) = mpsc::channel::<()>();
    let is_open = Arc::new(Mutex::new(is_open));
    let busy: Vec<_> = (0..blocking::THREADS.write)
        .map(|_| {
            let is_open = Arc::clone(&is_open);
            blocking::run(Origin::default(), move || {
                let _ = is_open.lock().expect("nobody panics").recv();
            })
        })
        .collect();
    say(200, FRESH, "one");
    get(&site, "/a", "");
    later(&site, 60);
    say(200, "Cache-Control: private", "mine");
    get(&site, "/a", "");
    drop(open);
    for job in busy {
        job.await.expect("it is done");
    }
    // What was begun before this one has ended as well, or shows up while others are written.
    for number in 1..=20 {
        say(200, FRESH, "two");
        get(&site, &format!("/b{number}"), "");
        until(&site, "page-cache.disk.stores", number).await;
        assert_eq!(count(&site, "page-cache.disk.entries"), number);
    }
}

#[tokio::test(flavor = "local")]
async fn a_directory_that_cannot_be_used_is_told_and_done_without() {
    let site = site("page-cache.disk-path = \"/proc/none/cache\"");
    say(200, FRESH, "one");
    get(&site, "/a", "");
    assert_eq!(status(&get(&site, "/a", "")), "petrel; hit");
}
