//! Scripts that work on after `fastcgi_finish_request()`: their process is not free, although the reply is complete.

use petrel_tests::{Tree, eventually};

use crate::real_backends::children::{FpmSocket, can_run_fpm, site};

#[test]
fn a_child_that_works_on_is_not_waited_for_while_others_are_free() {
    if !can_run_fpm("a_child_that_works_on_is_not_waited_for_while_others_are_free") {
        return;
    }
    let tree = Tree::new();
    let socket = FpmSocket::in_tree(&tree);
    let _fpm = socket.start_static(5);
    // Each worker asks behind its first replies, and goes on asking when it has found such a script.
    for (workers, scripts) in [(1, 4), (2, 1)] {
        let site = site(&socket, workers);
        for number in 1..=scripts {
            assert_eq!(site.server.get("/after.php").text(), "page");
            site.expect_count("after", number);
            for _ in 0..10 {
                assert_eq!(site.server.get("/fast.php").status, 200);
            }
        }
        assert_eq!(site.count("done"), 0);
        assert_eq!(site.pids("after"), scripts);
        site.end("end");
        site.expect_count("done", scripts);
    }
}

#[test]
fn an_only_child_that_works_on_is_waited_for() {
    if !can_run_fpm("an_only_child_that_works_on_is_waited_for") {
        return;
    }
    let tree = Tree::new();
    let socket = FpmSocket::in_tree(&tree);
    let _fpm = socket.start_static(1);
    let site = site(&socket, 2);
    assert_eq!(site.server.get("/after.php").text(), "page");
    site.expect_count("after", 1);
    let mut fast = site.ask("/fast.php");
    site.expect_waiting(1);
    site.end("end");
    assert_eq!(fast.response().status, 200);
    assert_eq!(site.state("steps"), "after\ndone\nfast\n");
    let logged = site.logged("/fast.php", 1);
    let stages = &logged[0].stages;
    assert!(stages.contains_key("backend-accept"), "{stages:?}");
}

#[test]
fn a_script_that_asks_its_own_site_behind_its_reply_is_answered() {
    if !can_run_fpm("a_script_that_asks_its_own_site_behind_its_reply_is_answered") {
        return;
    }
    for children in [2, 5] {
        let tree = Tree::new();
        let socket = FpmSocket::in_tree(&tree);
        let _fpm = socket.start_static(children);
        for workers in [1, 2] {
            let site = site(&socket, workers);
            assert_eq!(site.server.get("/own.php").text(), "page");
            assert!(
                eventually(|| site.state("own").contains(' ')),
                "{}",
                site.server.log()
            );
            let own = site.state("own");
            let (asked, answered) = own.split_once(' ').expect("two pids");
            assert!(!answered.is_empty() && asked != answered, "{own}");
        }
    }
}
