use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::io::Errno;

use super::*;
use crate::Tree;

/// A tree with `a/b.txt`, and the file system on it.
fn mounted(test: &str) -> Option<(Tree, SlowFs)> {
    let tree = Tree::new();
    tree.write("a/b.txt", "content").write("c.txt", "other");
    let slow = SlowFs::mount_or_skip(test, tree.root())?;
    Some((tree, slow))
}

/// A program that prints a file. It is another process, because a thread of this one that hangs in the kernel
/// would keep the file system from ending together with this process.
fn reading(path: &Path) -> Child {
    Command::new("cat")
        .arg(path)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("there is cat")
}

fn text(reading: Child) -> String {
    let output = reading.wait_with_output().expect("it is our child");
    String::from_utf8(output.stdout).expect("text") + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn it_shows_the_directory_and_counts() {
    let Some((tree, slow)) = mounted("it_shows_the_directory_and_counts") else {
        return;
    };
    assert_eq!(tree.text("a/b.txt"), "content");
    assert_eq!(tree.names(""), ["a", "c.txt"]);
    tree.write("d/e.txt", "new").rename("d", "f");
    tree.replace("f/e.txt", "newer").set_length("f/e.txt", 3);
    tree.mode("c.txt", 0o600).modified("c.txt", 86400);
    assert_eq!(tree.text("f/e.txt"), "new");
    assert_eq!(
        fs::read(slow.beneath().join("f/e.txt")).expect("it is there"),
        b"new"
    );
    let changed = fs::metadata(slow.beneath().join("c.txt")).expect("it is there");
    use std::os::unix::fs::MetadataExt;
    assert_eq!((changed.mode() & 0o777, changed.mtime()), (0o600, 86400));
    tree.remove("c.txt");
    assert_eq!(tree.names(""), ["a", "f"]);
    assert_eq!(slow.count(Operation::Rename), 2);
    let looked_up = slow.count(Operation::Lookup);
    assert_eq!(tree.text("a/b.txt"), "content");
    assert_eq!(slow.count(Operation::Lookup), looked_up + 2);
    assert_eq!(slow.hanging(), 0);
}

#[test]
fn what_hangs_goes_on_when_released() {
    let Some((tree, slow)) = mounted("what_hangs_goes_on_when_released") else {
        return;
    };
    slow.hang_below("a");
    let hung = reading(&tree.path("a/b.txt"));
    slow.expect_hanging(1);
    assert_eq!(tree.text("c.txt"), "other");
    slow.hang_on(&[Operation::Read]);
    let other = reading(&tree.path("a/b.txt"));
    assert!(eventually(|| slow.count(Operation::Read) >= 2));
    slow.release();
    assert_eq!(
        (text(hung), text(other)),
        ("content".into(), "content".into())
    );
}

#[test]
fn failures_are_those_asked_for() {
    let Some((tree, slow)) = mounted("failures_are_those_asked_for") else {
        return;
    };
    slow.fail_on(&[Operation::Read], Errno::IO);
    let failed = fs::read(tree.path("c.txt")).expect_err("it fails");
    assert_eq!(failed.raw_os_error(), Some(Errno::IO.raw_os_error()));
    slow.hang();
    let hung = reading(&tree.path("c.txt"));
    slow.expect_hanging(1);
    slow.fail(Errno::STALE);
    assert!(text(hung).contains("Stale file handle"));
    slow.release();
    assert_eq!(tree.text("c.txt"), "other");
}

#[test]
fn a_mount_with_open_files_goes() {
    let Some((tree, slow)) = mounted("a_mount_with_open_files_goes") else {
        return;
    };
    let open = fs::File::open(tree.path("c.txt")).expect("it can be opened");
    slow.hang();
    let hung = reading(&tree.path("a/b.txt"));
    slow.expect_hanging(1);
    drop(slow);
    assert_eq!(text(hung), "content");
    assert_eq!(io::read_to_string(open).expect("still there"), "other");
    let mounts = fs::read_to_string("/proc/self/mounts").expect("there is /proc");
    assert!(!mounts.contains(&*tree.root().to_string_lossy()));
}

/// Runs this test again in a process of its own.
#[test]
fn the_mount_of_a_killed_process_goes_with_the_next() {
    const DIRECTORY: &str = "PETREL_TEST_LEAVE_MOUNTED";
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        let _slow = SlowFs::mount(Path::new(&directory)).expect("it can be mounted");
        println!("mounted");
        loop {
            thread::park();
        }
    }
    let Some((_tree, slow)) = mounted("the_mount_of_a_killed_process_goes_with_the_next") else {
        return;
    };
    let left = Tree::new();
    let name = "slow_fs::tests::the_mount_of_a_killed_process_goes_with_the_next";
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "--nocapture", name])
        .env(DIRECTORY, left.root())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program starts");
    let output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut lines = output.lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("mounted")));
    child.kill().expect("our child");
    child.wait().expect("our child");
    let is_mounted = |directory: &Path| {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("there is /proc");
        mounts.contains(&*directory.to_string_lossy())
    };
    let next = Tree::new();
    let after = SlowFs::mount(next.root()).expect("it could a moment ago");
    assert!(!is_mounted(left.root()));
    assert!(is_mounted(next.root()));
    drop((slow, after));
}
