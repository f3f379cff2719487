//! Finds the program under test: the one that PETREL names, or the one that cargo builds for the tests.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The path of the `petrel` program. Unless the environment variable PETREL names one, cargo builds it once per test
/// program, with the same features of all crates as the tests.
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
    let built = Command::new(cargo)
        .args([
            "test",
            "--workspace",
            "--no-run",
            "--quiet",
            "--test",
            "program",
        ])
        // The program that runs the tests sets it for them.
        .env_remove("RUSTC_BOOTSTRAP")
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .status()
        .expect("cargo can be run");
    assert!(built.success(), "petrel does not build");
    // Test programs are in TARGET/PROFILE/deps.
    let program = std::env::current_exe().expect("a program knows where it is");
    let profile = program.ancestors().nth(2).expect("it is below the target");
    profile.join("petrel")
}
