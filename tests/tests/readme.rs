//! What README.md promises.

use std::fs;
use std::path::Path;

use petrel_tests::Server;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

fn readme() -> String {
    fs::read_to_string(Path::new(ROOT).join("README.md")).expect("there is a README.md")
}

/// The texts between "```lighttpd" and "```".
fn configurations(readme: &str) -> Vec<&str> {
    let blocks = readme.split("```lighttpd\n").skip(1);
    blocks
        .map(|rest| rest.split("```").next().unwrap_or_default())
        .collect()
}

#[test]
fn its_configurations_are_accepted_without_a_warning() {
    let readme = readme();
    let configurations = configurations(&readme);
    assert!(configurations.len() >= 8, "{}", configurations.len());
    for configuration in configurations {
        let finished = Server::build().config(configuration).check(&["-t"]);
        assert_eq!(finished.code(), 0, "{configuration}{}", finished.errors);
        assert_eq!(finished.errors, "", "{configuration}");
    }
}

#[test]
fn its_links_lead_somewhere() {
    let readme = readme();
    let targets = readme.split("](").skip(1);
    let mut count = 0;
    for target in targets.filter_map(|rest| rest.split(')').next()) {
        assert!(Path::new(ROOT).join(target).exists(), "{target}");
        count += 1;
    }
    assert!(count >= 5, "{count}");
}
