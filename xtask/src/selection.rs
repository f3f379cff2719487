//! `cargo xtask test --changed`: the tests of what changed.
//!
//! Test programs take words, and run the tests whose names contain one of them. The name of a test begins with its
//! module, so the words are the names of modules. A scenario has a module of its own; [`SCENARIOS`] says which
//! scenarios are about a source, where the names differ.

use std::collections::BTreeSet;

/// The words for these changed files, paths from the root. `None`: all tests.
pub fn words<'f>(files: impl IntoIterator<Item = &'f str>) -> Option<Vec<String>> {
    let mut words = BTreeSet::new();
    for file in files {
        match module(file)? {
            "" => {}
            module => {
                words.insert(format!("{module}::"));
            }
        }
        let about = SCENARIOS
            .iter()
            .filter(|(source, _)| file.starts_with(source));
        words.extend(about.flat_map(|(_, words)| words.iter().map(|word| (*word).to_owned())));
    }
    Some(words.into_iter().collect())
}

/// The outermost module of a file's tests. Empty: it has none. `None`: all tests may be about it.
fn module(file: &str) -> Option<&str> {
    let parts: Vec<&str> = file.split('/').collect();
    let inside = match parts.as_slice() {
        ["crates", _, "src", inside @ ..]
        | ["bench" | "xtask", "src", inside @ ..]
        | [
            "tests",
            "tests",
            "exact" | "real" | "scenarios",
            inside @ ..,
        ]
        | [
            "crates",
            "modules" | "petrel",
            "tests",
            "whole" | "program",
            inside @ ..,
        ] => inside,
        // The tests of `fuzz` have the modules `seeds` and `tests`.
        ["fuzz", "src" | "seeds", ..] => return Some("seeds"),
        ["docs" | "bench", page] | [page] if page.ends_with(".md") => return Some(""),
        ["docs", "images" | "completions", ..] | ["packaging", ..] => return Some(""),
        _ => return None,
    };
    match inside {
        [] | ["lib.rs" | "main.rs" | "mod.rs"] => None,
        [first, ..] => Some(first.strip_suffix(".rs").unwrap_or(first)),
    }
}

/// The words for the scenarios about a source.
const SCENARIOS: &[(&str, &[&str])] = &[
    ("README.md", &["readme::"]),
    ("crates/config/", &["explain::", "real_input::"]),
    (
        "crates/engine/src/beneath.rs",
        &["bad_input::paths", "gateway::send_files"],
    ),
    ("crates/engine/src/blocking/", &["cold_files::"]),
    (
        "crates/engine/src/body/",
        &["http::bodies", "gateway::bodies"],
    ),
    (
        "crates/engine/src/connection/",
        &["http::", "bad_input::", "http2::"],
    ),
    ("crates/engine/src/file_cache/", &["files::"]),
    ("crates/engine/src/ledger.rs", &["faults::", "http::stages"]),
    (
        "crates/engine/src/listener.rs",
        &["http::listeners", "reload::"],
    ),
    ("crates/engine/src/log/", &["http::logs", "rotation::"]),
    ("crates/engine/src/metrics/", &["metrics::"]),
    (
        "crates/engine/src/network_backend/",
        &["files::", "network_backends::"],
    ),
    ("crates/engine/src/recorder/", &["reload::why"]),
    ("crates/engine/src/server.rs", &["reload::", "lifecycle::"]),
    ("crates/engine/src/tls/", &["tls_config::", "tls_clients::"]),
    ("crates/engine/src/waits.rs", &["faults::"]),
    ("crates/lua/", &["magnet::", "lua_api::"]),
    ("crates/modules/src/evasive.rs", &["http::evasive"]),
    ("crates/modules/src/extforward/", &["http::proxied"]),
    ("crates/modules/src/fragments/", &["cml::"]),
    ("crates/modules/src/limit/", &["http::client_limits"]),
    (
        "crates/modules/src/openssl/",
        &["tls_config::", "tls_clients::"],
    ),
    (
        "crates/modules/src/remote_store/",
        &["lua_api::stores", "auth::ldap"],
    ),
    ("crates/modules/src/request_trace.rs", &["gateway::traces"]),
    ("crates/modules/src/rewrite.rs", &["rewriting::"]),
    (
        "crates/modules/src/static_file/",
        &["files::", "http::ranges", "http::conditional"],
    ),
    (
        "crates/modules/src/status/",
        &["metrics::", "status_page::"],
    ),
    ("crates/petrel/src/costs/", &["costs::"]),
    (
        "crates/petrel/src/keeper/",
        &["reload::", "lifecycle::", "rotation::"],
    ),
    ("crates/petrel/src/server/", &["reload::", "lifecycle::"]),
    ("crates/petrel/src/why/", &["reload::why"]),
    ("crates/proto/src/client_hello.rs", &["bad_input::tls"]),
    (
        "crates/proto/src/http1/",
        &["bad_input::", "http::", "gateway::"],
    ),
    ("crates/proto/src/request_head/", &["bad_input::", "http::"]),
    ("crates/proto/src/url/", &["bad_input::paths"]),
    ("crates/proto/src/cgi", &["gateway::"]),
    (
        "crates/proto/src/recording/",
        &["recorder::", "reload::why"],
    ),
    ("crates/proto/src/stored_page/", &["page_cache::"]),
    (
        "docs/",
        &["readme::", "stages::", "reference::", "rewriting::"],
    ),
    ("packaging/", &["installed", "upgrade", "another_server"]),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Workspace;

    #[test]
    fn the_words_are_the_modules_of_the_changed_files() {
        for (files, expected) in [
            (
                &["crates/modules/src/gateway/pool.rs"][..],
                &["gateway::"][..],
            ),
            (
                &["crates/modules/src/rewrite.rs", "README.md"],
                &["readme::", "rewrite::", "rewriting::"],
            ),
            (
                &["tests/tests/scenarios/cml/mod.rs", "xtask/src/limit.rs"],
                &["cml::", "limit::"],
            ),
            (&["tests/tests/scenarios/rotation.rs"], &["rotation::"]),
            (&["fuzz/seeds/url/1", "fuzz/src/url.rs"], &["seeds::"]),
            (&["bench/README.md"], &[]),
        ] {
            let words = words(files.iter().copied()).expect("not all");
            assert_eq!(words, expected);
        }
    }

    #[test]
    fn what_all_tests_use_needs_all_tests() {
        for file in [
            "Cargo.toml",
            "crates/engine/src/lib.rs",
            "tests/src/server.rs",
            ".ci/run",
            "docs/mod_hello.rs",
            "bench/Cargo.toml",
            "crates/engine/tests/turns.rs",
            "tests/tests/package/machine.rs",
        ] {
            assert_eq!(words([file]), None, "{file}");
        }
    }

    #[test]
    fn every_source_of_the_table_is_there() {
        let root = Workspace::here().root;
        for (source, _) in SCENARIOS {
            // A name without its end stands for a file and a folder.
            let found = ["", ".rs"].map(|end| root.join(format!("{source}{end}")).exists());
            assert!(found.contains(&true), "{source}");
        }
    }
}
