//! Pages on disk survive a restart of the server.

use std::time::Duration;

use petrel_tests::{Operation, SlowFs, Tree, eventually};

use crate::page_cache::{Counted, counter, status};

#[test]
fn pages_on_disk_are_sent_by_the_next_server() {
    let counted = Counted::fresh(Duration::ZERO);
    let tree = Tree::new();
    let path = tree.path("cache").display().to_string();
    let build = || {
        counted
            .cached()
            .config(&format!("page-cache.disk-path = \"{path}\""))
    };
    {
        let server = build().start();
        for name in ["a", "b", "c"] {
            server.get(&format!("/app/{name}"));
        }
        assert!(eventually(
            || counter(&server, "page-cache.disk.stores") == 3
        ));
    }
    let server = build().start();
    // The first request makes the server read what is stored.
    server.get("/app/other");
    assert!(eventually(
        || counter(&server, "page-cache.disk.entries") >= 3
    ));
    let before = counted.asked();
    for name in ["a", "b", "c"] {
        let response = server.get(&format!("/app/{name}"));
        assert_eq!(status(&response), "petrel; hit", "{response}");
    }
    assert_eq!(
        (counted.asked(), counter(&server, "page-cache.disk.hits")),
        (before, 3)
    );
}

#[test]
fn a_disk_that_hangs_has_no_pages() {
    let counted = Counted::fresh(Duration::ZERO);
    let tree = Tree::new();
    tree.directory("cache");
    let path = tree.path("cache");
    let Some(slow) = SlowFs::mount_or_skip("a_disk_that_hangs_has_no_pages", &path) else {
        return;
    };
    let build = || {
        counted.cached().config(&format!(
            "page-cache.disk-path = \"{}\"\nserver.max-file-wait = 1",
            path.display()
        ))
    };
    {
        let server = build().start();
        server.get("/app/a");
        assert!(eventually(
            || counter(&server, "page-cache.disk.stores") == 1
        ));
    }
    let server = build().start();
    server.get("/app/other");
    assert!(eventually(
        || counter(&server, "page-cache.disk.entries") >= 2
    ));
    let before = counted.asked();
    slow.hang_on(&[Operation::Lookup, Operation::Open, Operation::Read]);
    let response = server.get("/app/a");
    assert_eq!((response.status, counted.asked()), (200, before + 1));
    server.expect_log("(page-cache) the file system has not answered for 1 s");
    assert!(server.log().contains(&path.display().to_string()));
    slow.release();
}
