//! Pages on disk outlive the server.

use std::time::Duration;

use petrel_tests::{Tree, eventually};

use crate::{Counted, counter, status};

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
    // The first request begins to read what is there.
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
