//! Finds the program under test: the one that PETREL names, or one that is built now.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The path of the `petrel` program. Unless the environment variable PETREL names one, `cargo build -p petrel
/// --profile quick` builds it, once per test program.
///
/// # Panics
/// It cannot be built.
pub fn petrel() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| match std::env::var_os("PETREL") {
        Some(path) => PathBuf::from(path),
        None => build(),
    })
}

fn build() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "-p", "petrel", "--profile", "quick"])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .stderr(Stdio::inherit())
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "petrel does not build");
    let messages = String::from_utf8_lossy(&output.stdout);
    let key = "\"executable\":\"";
    let mut executables = messages.lines().filter_map(|line| line.split_once(key));
    let path = executables
        .next_back()
        .and_then(|(_, rest)| rest.split_once('"'));
    PathBuf::from(path.expect("cargo names what it built").0)
}
