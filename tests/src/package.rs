//! Files of Debian packages as the packages bring them, whatever this machine has made of them.

use std::path::PathBuf;

/// The folder into which `cargo xtask test` has unpacked the package `name`; why there is none, otherwise.
///
/// # Errors
/// The package is not unpacked.
pub fn package(name: &str) -> Result<PathBuf, String> {
    // Test programs are in TARGET/PROFILE/deps.
    let program = std::env::current_exe().expect("a program knows where it is");
    let target = program.ancestors().nth(3).expect("it is below the target");
    let folder = target.join("packages").join(name);
    match folder.is_dir() {
        true => Ok(folder),
        false => Err(format!(
            "the package {name} is not unpacked: `cargo xtask test` does that"
        )),
    }
}
