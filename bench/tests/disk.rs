//! The modelled disk as a program. Where there can be none, it says so, and there is nothing to test.

use std::io::{BufRead, BufReader, Lines};
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

/// A probe that has built its disk and will go on for long; `None` where there can be none.
fn probe() -> Option<(Child, Lines<BufReader<ChildStdout>>)> {
    let small = ["--small-files", "400", "--large-files", "1", "--depth", "1"];
    let mut command = disk(&[&small[..], &["--seconds", "600"]].concat());
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let first = |line: &Result<String, _>| {
        let line = line.as_deref().unwrap_or_default();
        line.starts_with("Built") || line.starts_with("Skipped")
    };
    let built = lines.find(first).expect("it says something").expect("text");
    if built.starts_with("Skipped") {
        child.wait().expect("our child");
        return None;
    }
    Some((child, lines))
}

/// Where disks are: each has a file mounted below its directory.
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

/// One test, as one would see the other's disk.
#[test]
fn it_works_and_leaves_nothing_behind_however_it_ends() {
    let checked = disk(&["--check"]).output().expect("it runs");
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{said}");
    for signal in ["INT", "KILL"] {
        let before = directories();
        let Some((mut child, lines)) = probe() else {
            return;
        };
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
