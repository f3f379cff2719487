//! Files of Debian packages as the packages bring them, whatever this machine has made of them, and programs that no
//! package has.

use std::path::PathBuf;

/// The folder into which `cargo xtask test` has unpacked the package `name`; why there is none, otherwise.
///
/// # Errors
/// The package is not unpacked.
pub fn package(name: &str) -> Result<PathBuf, String> {
    below_target("packages", name)
        .ok_or_else(|| format!("the package {name} is not unpacked: `cargo xtask test` does that"))
}

/// The folder into which `cargo xtask test` has put a program that no package has; why there is none, otherwise.
///
/// # Errors
/// It has not been made.
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
