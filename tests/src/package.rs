//! Files of Debian packages as they were shipped, without local changes, and programs that no package has.

use std::path::PathBuf;

/// The directory into which `cargo xtask test` has unpacked the package `name`.
///
/// # Errors
/// The package is not unpacked; the message says why.
pub fn package(name: &str) -> Result<PathBuf, String> {
    below_target("packages", name)
        .ok_or_else(|| format!("the package {name} is not unpacked: `cargo xtask test` does that"))
}

/// The directory of a program that `cargo xtask test` has built or fetched.
///
/// # Errors
/// The program is missing; the message says why.
pub fn tool(name: &str) -> Result<PathBuf, String> {
    below_target("tools", name)
        .ok_or_else(|| format!("there is no {name}: `cargo xtask test` makes it"))
}

fn below_target(kind: &str, name: &str) -> Option<PathBuf> {
    // Test programs are in TARGET/PROFILE/deps.
    let program = std::env::current_exe().expect("a program knows where it is");
    let target = program.ancestors().nth(3).expect("it is below the target");
    Some(target.join(kind).join(name)).filter(|folder| folder.is_dir())
}
