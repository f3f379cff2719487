//! Tests of the modelled disk as a program. Where no disk is possible, they are skipped with a message.

use std::io::{self, BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Long enough for any machine.
const DEADLINE: Duration = Duration::from_secs(60);

fn disk(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_petrel-bench"));
    command.arg("disk").args(arguments);
    command
}

/// Prints that a test is skipped. It bypasses the test harness, which swallows the output of `println!`. The
/// summary of `cargo xtask test` repeats the line.
fn skip(test: &str, why: &str) {
    let _ = writeln!(io::stdout(), "SKIPPED {test}: {why}");
}

/// The beginning of the message with which the disk is skipped.
const SKIPPED: &str = "Skipped: ";

/// A probe that has built its disk and will run for a long time.
fn probe() -> (Child, Lines<BufReader<ChildStdout>>) {
    let small = ["--small-files", "400", "--large-files", "1", "--depth", "1"];
    let mut command = disk(&[&small[..], &["--seconds", "600"]].concat());
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let is_built = |line: io::Result<String>| line.is_ok_and(|line| line.starts_with("Built"));
    assert!(lines.any(is_built), "there is no disk");
    (child, lines)
}

/// The directories of disks, each with a mounted file.
fn directories() -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("the mounts");
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    let points = points
        .map(Path::new)
        .filter(|point| point.ends_with("fuse"));
    let directories = points.filter_map(Path::parent);
    let ours = |directory: &&Path| directory.to_string_lossy().contains("/petrel-bench-disk-");
    directories.filter(ours).map(Path::to_owned).collect()
}

fn wait_until_gone(directory: &Path) {
    let deadline = Instant::now() + DEADLINE;
    while directory.exists() {
        assert!(
            Instant::now() < deadline,
            "{} is still there",
            directory.display()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A single test, because one would see the other's disk.
#[test]
fn it_works_and_leaves_nothing_behind_however_it_ends() {
    let checked = disk(&["--check"]).output().expect("it runs");
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{said}");
    let printed = String::from_utf8_lossy(&checked.stdout);
    if let Some(why) = printed.lines().find_map(|line| line.strip_prefix(SKIPPED)) {
        let test = "it_works_and_leaves_nothing_behind_however_it_ends";
        return skip(test, why);
    }
    for signal in ["INT", "KILL"] {
        let before = directories();
        let (mut child, lines) = probe();
        let mut ours = directories();
        ours.retain(|directory| !before.contains(directory));
        let directory = ours.first().expect("it is mounted");
        let pid = child.id().to_string();
        let killed = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(killed.expect("kill").success());
        assert!(!child.wait().expect("our child").success());
        drop(lines);
        wait_until_gone(directory);
    }
}

/// In many containers even root may not mount.
#[test]
fn who_may_not_mount_gets_a_word_and_no_disk() {
    let test = "who_may_not_mount_gets_a_word_and_no_disk";
    let without = |program: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", "-sys_admin"]).args(program);
        command.output()
    };
    if !without(&["true"]).is_ok_and(|output| output.status.success()) {
        return skip(test, "setpriv takes root, and util-linux");
    }
    let program = env!("CARGO_BIN_EXE_petrel-bench");
    let tried = without(&[program, "disk", "--check"]).expect("setpriv");
    let printed = String::from_utf8_lossy(&tried.stdout);
    assert!(
        tried.status.success() && printed.starts_with(SKIPPED),
        "{tried:?}"
    );
}

#[test]
fn the_limit_is_printed_without_a_disk() {
    let printed = disk(&["--simulate", "--depth", "1,100", "--operations", "1"]).output();
    let printed = String::from_utf8(printed.expect("it runs").stdout).expect("text");
    let rates: Vec<f64> = printed
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2)?.parse().ok())
        .collect();
    let [one, hundred] = rates[..] else {
        panic!("{printed}");
    };
    assert!(
        one > 60.0 && hundred > 240.0 && hundred < 270.0,
        "{printed}"
    );
}
