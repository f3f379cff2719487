//! What README.md and the pages beside it promise.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use petrel_tests::{PATIENCE, Server, Tree, is_installed, petrel, run, skip};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The pages with examples, and how many configurations and links each has at least.
const PAGES: &[(&str, usize, usize)] = &[
    ("README.md", 17, 9),
    ("docs/rewriting.md", 4, 1),
    ("docs/gateways.md", 1, 2),
    ("docs/from-apache.md", 5, 2),
    ("docs/auth.md", 2, 2),
    ("docs/limits.md", 3, 0),
    ("docs/page-cache.md", 4, 2),
    ("docs/lua.md", 1, 2),
    ("docs/fcgi-stat-accel.md", 2, 1),
    ("docs/cold-files.md", 2, 2),
];

fn path(page: &str) -> PathBuf {
    Path::new(ROOT).join(page)
}

fn text(page: &str) -> String {
    fs::read_to_string(path(page)).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// The texts between "```lighttpd" and "```".
fn configurations(text: &str) -> Vec<&str> {
    let blocks = text.split("```lighttpd\n").skip(1);
    blocks
        .map(|rest| rest.split("```").next().unwrap_or_default())
        .collect()
}

#[test]
fn configurations_are_accepted_without_a_warning() {
    for (page, least, _) in PAGES {
        let text = text(page);
        let configurations = configurations(&text);
        let count = configurations.len();
        assert!(count >= *least, "{page}: {count}");
        for configuration in configurations {
            let finished = Server::build().config(configuration).check(&["-t"]);
            let errors = &finished.errors;
            assert_eq!(finished.code(), 0, "{page}: {configuration}{errors}");
            assert_eq!(errors, "", "{page}: {configuration}");
        }
    }
}

#[test]
fn systemd_accepts_the_unit() {
    if !is_installed("systemd-analyze") {
        return skip("systemd_accepts_the_unit", "systemd is not installed");
    }
    let text = text("README.md");
    let lines = text.lines().skip_while(|line| *line != "    [Unit]");
    let lines = lines.take_while(|line| line.is_empty() || line.starts_with("    "));
    let unit: Vec<&str> = lines.map(str::trim_start).collect();
    let binary = petrel();
    let unit = unit
        .join("\n")
        .replace("/usr/local/bin/petrel", &binary.to_string_lossy());
    let tree = Tree::new();
    tree.write("petrel.service", &unit);
    let mut verify = Command::new("systemd-analyze");
    verify
        .args(["verify", "--man=no"])
        .arg(tree.path("petrel.service"));
    let finished = run(&mut verify, PATIENCE);
    // It complains of other units of the machine as well, and then fails.
    let complaints = finished
        .errors
        .lines()
        .filter(|line| line.contains("petrel"));
    assert_eq!(complaints.collect::<Vec<_>>(), Vec::<&str>::new(), "{unit}");
}

#[test]
fn links_lead_somewhere() {
    for (page, _, least) in PAGES {
        let (text, file) = (text(page), path(page));
        let directory = file.parent().expect("a page is in a directory");
        let targets = text.split("](").skip(1);
        let targets: Vec<_> = targets.filter_map(|rest| rest.split(')').next()).collect();
        assert!(targets.len() >= *least, "{page}: {targets:?}");
        for target in targets {
            assert!(directory.join(target).exists(), "{page}: {target}");
        }
    }
}
