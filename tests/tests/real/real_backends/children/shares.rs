//! Several front ends before one php-fpm: each gets its turn.

use petrel_tests::fastcgi::{Peer, begin, params_of, stdin};
use petrel_tests::{Load, Tree};

use crate::real_backends::children::{FpmSocket, can_run_fpm, site};

/// How many requests two busy front ends with two children may have answered until a third front end has its turn:
/// ten times what a connection has in its tenure of 100 ms, with requests of 5 ms.
const REQUESTS_MAX: u64 = 10 * 2 * 20;

#[test]
fn two_busy_servers_starve_no_third_front_end() {
    if !can_run_fpm("two_busy_servers_starve_no_third_front_end") {
        return;
    }
    let tree = Tree::new();
    let socket = FpmSocket::in_tree(&tree);
    let _fpm = socket.start_static(2);
    let sites = [site(&socket, 2), site(&socket, 1)];
    let loads =
        [&sites[0], &sites[1]].map(|site| Load::start(site.server.address(), "/short.php", 4, 2));
    let script = sites[0].server.tree().path("www/fast.php");
    let root = sites[0].server.tree().path("www");
    let params = [
        ("REQUEST_METHOD", "GET"),
        ("SCRIPT_FILENAME", script.to_str().expect("ASCII")),
        ("DOCUMENT_ROOT", root.to_str().expect("ASCII")),
    ];
    let answered = || loads.iter().map(Load::answered).sum::<u64>();
    for _ in 0..5 {
        loads.iter().for_each(|load| load.wait_for(20));
        let mut third = Peer::connect(&tree.path("listen.sock"));
        let before = answered();
        third.send(&[begin(1, 1, 0), params_of(1, &params), stdin(1, b"")].concat());
        assert_eq!(third.reply(1).end, Some((0, 0)));
        let meanwhile = answered() - before;
        assert!(meanwhile < REQUESTS_MAX, "{meanwhile} of others");
    }
    // Each server goes on beside the other one.
    loads.iter().for_each(|load| load.wait_for(100));
    for (load, site) in loads.into_iter().zip(&sites) {
        let failures = load.stop().failures;
        assert!(failures.is_empty(), "{failures:?}; {}", site.server.log());
    }
    assert_eq!(sites[0].count("fast"), 5);
}
