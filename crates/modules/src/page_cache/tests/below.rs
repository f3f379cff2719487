//! Tests of the cache on disk and after a restart.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

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

/// Waits until `is_so` is true; background work goes on meanwhile.
async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "it is not so that {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until a counter has this value.
async fn until(site: &Site, name: &str, expected: u64) {
    let what = format!("{name} is {expected}");
    eventually(&what, || count(site, name) == expected).await;
}

/// Waits until the files are indexed and nothing waits to be written.
async fn at_rest(site: &Site) {
    let cache = PageCache::of(site.worker());
    let disk = cache.shared.disk.as_ref().expect("there is one");
    eventually("the disk is at rest", || disk.is_at_rest()).await;
}

/// The number of files with answers. Some may be removed meanwhile.
fn files(tree: &Tree) -> usize {
    let directories = std::fs::read_dir(tree.path("cache")).expect("it is there");
    let directories = directories.map(|entry| entry.expect("it can be read").path());
    let of_directory = |path: PathBuf| std::fs::read_dir(path).map_or(0, Iterator::count);
    directories.map(of_directory).sum()
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
        at_rest(&site).await;
        assert_eq!(
            count(&site, "page-cache.disk.entries"),
            3,
            "one of them names fields"
        );
    }
    let site = on_disk(&tree, "");
    at_rest(&site).await;
    assert_eq!(count(&site, "page-cache.disk.entries"), 3);
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
    at_rest(&site).await;
    assert_eq!(count(&site, "page-cache.disk.entries"), 1);
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
        at_rest(&site).await;
        site.request("PURGE /a HTTP/1.1\r\nHost: a.example\r\n\r\n");
        assert_eq!(count(&site, "page-cache.disk.entries"), 2);
        site.request("PURGE / HTTP/1.1\r\nHost: a\r\nCache-Tag: y\r\n\r\n");
        let note = tree.path("cache/purged-tags");
        eventually("the tag is noted", || Path::new(&note).exists()).await;
        eventually("the file is gone", || files(&tree) == 2).await;
    }
    let site = on_disk(&tree, config);
    at_rest(&site).await;
    assert_eq!(count(&site, "page-cache.disk.entries"), 2);
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
    // The threads are busy. After a second other threads take their place. Then the page is written before it
    // is removed, and must not stay either.
    let (begun, has_begun) = mpsc::channel::<()>();
    let (open, is_open) = mpsc::channel::<()>();
    let is_open = Arc::new(Mutex::new(is_open));
    let busy: Vec<_> = (0..blocking::THREADS.write)
        .map(|_| {
            let (begun, is_open) = (begun.clone(), Arc::clone(&is_open));
            blocking::run(Origin::default(), move || {
                begun.send(()).expect("the test waits");
                let _ = is_open.lock().expect("no thread panics").recv();
            })
        })
        .collect();
    for _ in &busy {
        let in_time = has_begun.recv_timeout(Duration::from_secs(60));
        in_time.expect("a thread begins");
    }
    say(200, FRESH, "one");
    get(&site, "/a", "");
    later(&site, 60);
    say(200, "Cache-Control: private", "mine");
    get(&site, "/a", "");
    drop(open);
    for job in busy {
        job.await.expect("it is done");
    }
    at_rest(&site).await;
    assert_eq!(count(&site, "page-cache.disk.entries"), 0);
    eventually("no file is left", || files(&tree) == 0).await;
}

#[tokio::test(flavor = "local")]
async fn a_directory_that_cannot_be_used_is_told_and_done_without() {
    let site = site("page-cache.disk-path = \"/proc/none/cache\"");
    say(200, FRESH, "one");
    get(&site, "/a", "");
    assert_eq!(status(&get(&site, "/a", "")), "petrel; hit");
}
