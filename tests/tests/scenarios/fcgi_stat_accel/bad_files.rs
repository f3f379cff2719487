//! Files that are missing, unreadable or no regular files.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::process::Command;

use petrel_tests::{Tree, eventually, petrel, skip};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::fcgi_stat_accel::accelerator::Accelerator;

#[test]
fn what_is_no_file_is_refused_and_the_log_knows_why() {
    let accelerator = Accelerator::start(&[]);
    let tree = &accelerator.tree;
    tree.write("www/a", "text");
    tree.write("secret", "text");
    tree.directory("www/directory");
    let at = |name: &str| tree.path("www").join(name);
    mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RWXU, 0).expect("made");
    for (name, target) in [
        ("inside", "a"),
        ("out", "../secret"),
        ("loop", "loop"),
        ("dangling", "nowhere"),
        ("proc", "/proc/self/cwd/secret"),
    ] {
        symlink(target, at(name)).expect("made");
    }
    symlink(at("a"), at("absolute")).expect("made");
    for (name, status) in [
        ("a", 200),
        ("inside", 200),
        ("absolute", 200),
        ("missing", 404),
        ("dangling", 404),
        ("a/below", 404),
        ("", 403),
        ("directory", 403),
        ("directory/", 403),
        ("fifo", 403),
        ("loop", 403),
        ("out", 403),
        ("proc", 403),
        ("../secret", 403),
        ("directory/../../secret", 403),
    ] {
        let reply = accelerator.ask(name);
        assert_eq!(reply.status(), status, "{name}: {}", reply.text());
        if status == 200 {
            assert_eq!(reply.text(), accelerator.naming(name));
        }
        // The web server gets the line and, since the program has its own socket, standard error gets it,
        // too.
        for line in reply.log.lines() {
            let line = format!("petrel fcgi-stat-accel: {line}\n");
            assert!(
                eventually(|| accelerator.log().contains(&line)),
                "{}",
                accelerator.log()
            );
        }
    }
    let log = accelerator.log();
    let root = tree.path("www").display().to_string();
    for line in [
        format!("open: it leads out of the document root: \"{root}/out\"\n"),
        format!("refused: with `..` in it: \"{root}/../secret\"\n"),
    ] {
        assert!(log.contains(&line), "{log}");
    }
    // Usual mistakes of clients are not logged.
    assert!(
        !log.contains("missing") && !log.contains("directory\""),
        "{log}"
    );
}

#[test]
fn a_file_may_come_change_and_go() {
    let accelerator = Accelerator::start(&[]);
    for _ in 0..3 {
        assert_eq!(accelerator.ask("a").status(), 404);
        accelerator.tree.write("www/a", vec![b'x'; 1 << 20]);
        assert_eq!(accelerator.ask("a").status(), 200);
        accelerator.tree.write("www/a", "");
        assert_eq!(accelerator.ask("a").status(), 200);
        std::fs::remove_file(accelerator.tree.path("www/a")).expect("it is there");
    }
}

#[test]
fn what_may_not_be_read_is_refused() {
    let test = "what_may_not_be_read_is_refused";
    if !rustix::process::geteuid().is_root() {
        return skip(test, "only root can start it as another user");
    }
    let tree = Tree::new();
    tree.write("www/a", "text");
    tree.write("www/private", "text");
    tree.write("www/closed/a", "text");
    for name in ["www/private", "www/closed"] {
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(tree.path(name), mode).expect("set");
    }
    let socket = tree.path("s");
    let mut command = Command::new(petrel());
    command.args(["spawn", "-n", "-u", "nobody", "-M", "0666", "-s"]);
    command.arg(&socket).arg("--").arg(petrel());
    command.arg("fcgi-stat-accel");
    if run_as_nobody(&tree).is_none() {
        return skip(
            test,
            "the user nobody may not execute the program where it was built",
        );
    }
    let accelerator = Accelerator::run(command, tree);
    assert!(
        eventually(|| UnixStream::connect(&socket).is_ok()),
        "{}",
        accelerator.log()
    );
    assert_eq!(accelerator.ask("a").text(), accelerator.naming("a"));
    for name in ["private", "closed/a"] {
        let reply = accelerator.ask(name);
        assert_eq!(reply.status(), 403, "{name}");
        let path = accelerator
            .tree
            .path("www")
            .join(name)
            .display()
            .to_string();
        let line = format!("open: Permission denied (os error 13): \"{path}\"\n");
        assert_eq!(reply.log, line);
    }
    let mode = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(accelerator.tree.path("www/private"), mode).expect("set");
    assert_eq!(accelerator.ask("private").status(), 200);
}

/// Whether another user can execute the program at all.
fn run_as_nobody(tree: &Tree) -> Option<()> {
    let socket = tree.path("probe");
    let mut command = Command::new(petrel());
    command
        .args(["spawn", "-n", "-u", "nobody", "-s"])
        .arg(&socket);
    command.arg("--").arg(petrel()).arg("-v");
    let finished = petrel_tests::run(&mut command, petrel_tests::PATIENCE);
    (finished.code() == 0).then_some(())
}
