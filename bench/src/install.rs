//! Installs what a comparison needs and the machine lacks, with apt-get.

use crate::peers::{self, Program};
use std::process::Command;

/// A program and the Debian package that has it.
pub type Package = (&'static str, &'static str);

/// Installs the packages of the named servers (or all), of the tracer and `others`, those that are
/// missing.
pub fn servers(names: &[String], others: Vec<Package>) -> Result<(), String> {
    let named = peers::named(names)?;
    let programs = named.iter().filter_map(|peer| match peer.program {
        Program::Packaged { program, package } => Some((program, package)),
        Program::Petrel | Program::Ourselves => None,
    });
    let wanted = programs.chain([("perf", "linux-perf")]).chain(others);
    packages(wanted.filter(|(program, _)| peers::in_path(program).is_none()))
}

/// Installs packages whose programs are missing.
pub fn packages(missing: impl Iterator<Item = Package>) -> Result<(), String> {
    let packages: Vec<_> = missing.map(|(_, package)| package).collect();
    if packages.is_empty() {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        return Err(format!(
            "root has to install: apt-get install {}",
            packages.join(" ")
        ));
    }
    apt_get(&["update", "-q"])?;
    apt_get(
        &[
            &["install", "-q", "-y", "--no-install-recommends"],
            &packages[..],
        ]
        .concat(),
    )
}

/// RUNLEVEL=1 keeps packages from starting the servers they bring.
fn apt_get(arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new("apt-get");
    command
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("RUNLEVEL", "1");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("apt-get {}: {status}", arguments.join(" "))),
        Err(error) => Err(format!("apt-get: {error}")),
    }
}
