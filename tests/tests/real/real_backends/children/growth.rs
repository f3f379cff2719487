//! Pools that start children when they are needed, and children that end after some requests.

use petrel_tests::Tree;

use crate::real_backends::children::{FpmSocket, can_run_fpm, site};

/// Eight slow requests get all children that the pool may have, and all are answered.
fn all_children_are_used(pool: &str, children: usize) {
    let tree = Tree::new();
    let socket = FpmSocket::in_tree(&tree);
    let _fpm = socket.start_fpm(pool);
    let site = site(&socket, 2);
    let mut clients: Vec<_> = (0..8).map(|_| site.ask("/slow.php?until=end")).collect();
    site.expect_count("slow", children);
    assert_eq!(site.pids("slow"), children);
    site.end("end");
    for client in &mut clients {
        assert_eq!(client.response().status, 200);
    }
    assert_eq!(site.count("slow"), 8, "each ran once");
}

#[test]
fn ondemand_starts_all_children_that_it_may() {
    if !can_run_fpm("ondemand_starts_all_children_that_it_may") {
        return;
    }
    all_children_are_used("pm = ondemand\npm.max_children = 4", 4);
}

#[test]
fn children_that_end_after_five_requests_lose_none() {
    if !can_run_fpm("children_that_end_after_five_requests_lose_none") {
        return;
    }
    let tree = Tree::new();
    let socket = FpmSocket::in_tree(&tree);
    let _fpm = socket.start_fpm(&format!("{}\npm.max_requests = 5", super::static_pool(2)));
    let site = site(&socket, 2);
    site.load("/fast.php", 4, 10);
    assert_eq!(site.count("fast"), 40, "each ran once");
    assert!(site.pids("fast") >= 8, "{}", site.state("fast"));
}
