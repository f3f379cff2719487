//! How it is started and ended.

use std::process::{Command, Stdio};

use petrel_tests::{PATIENCE, Tree, eventually, free_port, petrel, run};
use rustix::process::Signal;

use crate::fcgi_stat_accel::accelerator::Accelerator;

#[test]
fn mistakes_are_told() {
    let tree = Tree::new();
    tree.write("file", "");
    let file = tree.path("file").display().to_string();
    for (arguments, says) in [
        (&[][..], "name a place by --port or --socket"),
        (&["--port", "1029", "--socket", "s"], "cannot be used with"),
        (&["--address", "127.0.0.1"], "--port"),
        (&["--mode", "0660", "--port", "1029"], "--socket"),
        (&["--port", "0"], "0 is not in"),
        (&["--threads", "0"], "0 is not in"),
        (&["--timeout", "0"], "0 is not in"),
        (&["--read-ahead", "1k"], "invalid digit"),
        (&["--document-root", "/nonexistent"], "No such file"),
        (&["--document-root", &file], "not a directory"),
    ] {
        let mut command = Command::new(petrel());
        command.arg("fcgi-stat-accel").args(arguments);
        let finished = run(&mut command, PATIENCE);
        assert_eq!(finished.code(), 255, "{arguments:?}");
        assert!(
            finished.errors.contains(says),
            "{arguments:?}: {}",
            finished.errors
        );
    }
}

#[test]
fn a_place_that_is_taken_stays_who_has_it() {
    let mut first = Accelerator::start(&[]);
    let socket = first.tree.path("s").display().to_string();
    let mut command = Command::new(petrel());
    command.args(["fcgi-stat-accel", "--socket", &socket]);
    let second = run(&mut command, PATIENCE);
    assert_eq!(second.code(), 255);
    assert!(
        second.errors.contains("already in use"),
        "{}",
        second.errors
    );
    assert_eq!(first.ask("a").status(), 404);
    first.signal(Signal::TERM);
    assert_eq!(first.wait(), 0);
    assert!(!first.tree.path("s").exists());
    let port = free_port();
    let _first = Accelerator::start_on(port);
    let mut command = Command::new(petrel());
    command.args(["fcgi-stat-accel", "--port", &port.to_string()]);
    let second = run(&mut command, PATIENCE);
    assert!(second.errors.contains("in use"), "{}", second.errors);
}

#[test]
fn requests_are_finished_before_it_ends() {
    let mut accelerator = Accelerator::start(&[]);
    accelerator.tree.write("www/a", "text");
    let mut peer = accelerator.connect();
    let mut records = accelerator.request(1, "a");
    let end = records.split_off(records.len() - 8);
    peer.send(&records);
    // When the next request is answered, this one has arrived.
    peer.send(&accelerator.request(2, "a"));
    assert_eq!(peer.reply(2).status(), 200);
    accelerator.signal(Signal::USR1);
    let no_more = || std::os::unix::net::UnixStream::connect(accelerator.tree.path("s"));
    assert!(no_more().is_ok(), "the kernel still takes connections");
    peer.send(&end);
    assert_eq!(peer.reply(1).text(), accelerator.naming("a"));
    assert_eq!(accelerator.wait(), 0);
    assert!(peer.is_closed());
}

#[test]
fn only_directories_of_the_command_line_count() {
    let tree = Tree::new();
    tree.write("one/a", "text");
    tree.write("two/a", "text");
    tree.write("three/a", "text");
    tree.directory("www");
    std::os::unix::fs::symlink("two", tree.path("link")).expect("made");
    let mut command = Command::new(petrel());
    command
        .args(["fcgi-stat-accel", "--socket"])
        .arg(tree.path("s"));
    command.args([
        "--document-root",
        "one",
        "--document-root",
        "link",
        "--read-ahead",
        "0",
    ]);
    command.stdin(Stdio::null());
    let accelerator = Accelerator::run(command, tree);
    let socket = accelerator.tree.path("s");
    let listens = || std::os::unix::net::UnixStream::connect(&socket).is_ok();
    assert!(eventually(listens), "{}", accelerator.log());
    for (name, status) in [
        ("one/a", 200),
        ("link/a", 200),
        ("two/a", 200),
        ("three/a", 403),
        ("one/../three/a", 403),
        ("www/a", 403),
    ] {
        let file = accelerator.tree.path(name).display().to_string();
        let mut peer = accelerator.connect();
        peer.send(&accelerator.request_with(1, &[("SCRIPT_FILENAME", &file)]));
        assert_eq!(peer.reply(1).status(), status, "{name}");
    }
}
