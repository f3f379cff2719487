//! What README.md and the pages beside it promise.

use std::fs;
use std::path::{Path, PathBuf};

use petrel_tests::Server;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The pages with examples, and how many configurations and links each has at least.
const PAGES: &[(&str, usize, usize)] = &[
    ("README.md", 16, 8),
    ("docs/gateways.md", 1, 2),
    ("docs/from-apache.md", 5, 2),
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
