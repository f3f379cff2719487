//! A php-fpm that is restarted or replaced while requests come.

use std::time::Instant;

use petrel_tests::{Component, Load, SOON, Tree, eventually};
use rustix::process::{Pid, Signal, kill_process};

use crate::real_backends::children::{FpmSocket, Site, can_run_fpm, site_with};

/// Requests wait for so long, also on a slow machine.
const PATIENT: &str = ", \"backlog-timeout\" => 60";

/// Clients that expect 200 each time.
fn load(site: &Site) -> Load {
    Load::start(site.server.address(), "/fast.php", 2, 2)
}

/// Ends them.
#[track_caller]
fn expect_no_failure(load: Load, site: &Site) {
    let result = load.stop();
    assert!(
        result.failures.is_empty(),
        "{:?}; {}",
        result.failures,
        site.server.log()
    );
}

/// Ends php-fpm as its service does.
fn stop(fpm: Component) {
    let pid = fpm.tree.text("fpm.pid").trim().parse().expect("a pid");
    let pid = Pid::from_raw(pid).expect("a pid");
    kill_process(pid, Signal::TERM).expect("it runs");
    // What is left of it is a zombie, which has no programs open.
    let path = format!("/proc/{}/cmdline", pid.as_raw_nonzero());
    assert!(eventually(
        || std::fs::read(&path).is_ok_and(|line| line.is_empty())
    ));
    drop(fpm);
}

#[test]
fn a_restart_of_php_fpm_is_no_error() {
    if !can_run_fpm("a_restart_of_php_fpm_is_no_error") {
        return;
    }
    let tree = Tree::new();
    let socket = FpmSocket::in_tree(&tree);
    let mut fpm = socket.start_static(2);
    let site = site_with(&socket, 2, PATIENT);
    let load = load(&site);
    for _ in 0..3 {
        load.wait_for(20);
        stop(fpm);
        site.expect_waiting(4);
        fpm = socket.start_static(2);
    }
    load.wait_for(20);
    expect_no_failure(load, &site);
    drop(fpm);
}

#[test]
fn a_socket_that_another_php_fpm_takes_over_is_no_error() {
    if !can_run_fpm("a_socket_that_another_php_fpm_takes_over_is_no_error") {
        return;
    }
    let tree = Tree::new();
    let socket = FpmSocket::in_tree(&tree);
    let old = socket.start_static(2);
    let site = site_with(&socket, 2, PATIENT);
    let new_tree = Tree::new();
    let new_socket = FpmSocket::in_tree(&new_tree);
    let new = new_socket.start_static(2);
    let load = load(&site);
    load.wait_for(20);
    let (from, to) = (new_tree.path("listen.sock"), tree.path("listen.sock"));
    std::fs::rename(from, to).expect("both are sockets");
    load.wait_for(20);
    drop(old);
    load.wait_for(20);
    expect_no_failure(load, &site);
    drop(new);
}

#[test]
fn a_php_fpm_that_was_never_there_is_503_at_once() {
    if !can_run_fpm("a_php_fpm_that_was_never_there_is_503_at_once") {
        return;
    }
    let tree = Tree::new();
    let site = site_with(&FpmSocket::in_tree(&tree), 2, PATIENT);
    let begin = Instant::now();
    for _ in 0..3 {
        assert_eq!(site.server.get("/fast.php").status, 503);
    }
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
}
