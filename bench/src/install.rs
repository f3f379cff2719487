//! Installs what a comparison needs and the machine lacks, with apt-get.

use crate::backend::{self, Kind};
use crate::peers::{self, Peer, Program};
use std::process::Command;

/// A program and the Debian package that contains it.
pub type Package = (&'static str, &'static str);

/// Installs the missing packages of servers, backends and tools.
pub fn all(servers: &[&Peer], backends: &[Kind], tools: &[Package]) -> Result<(), String> {
    let programs = servers.iter().filter_map(|peer| match peer.program {
        Program::Packaged { program, package } => Some((program, package)),
        Program::Petrel | Program::Ourselves => None,
    });
    let of_backends = backends.iter().flat_map(|kind| kind.packages());
    packages(programs.chain(tools.iter().chain(of_backends).copied()))?;
    if backends.contains(&Kind::Python) {
        backend::install_flup()?;
    }
    Ok(())
}

/// Installs those packages that are missing.
fn packages(wanted: impl Iterator<Item = Package>) -> Result<(), String> {
    let mut packages: Vec<_> = wanted
        .filter(is_missing)
        .map(|(_, package)| package)
        .collect();
    packages.sort_unstable();
    packages.dedup();
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

/// Whether a package is missing. For libraries, which have no program of their own, dpkg is asked.
fn is_missing((program, package): &Package) -> bool {
    let known = || {
        let mut dpkg = Command::new("dpkg-query");
        dpkg.args(["--show", "--showformat", "${db:Status-Status}", package]);
        let output = dpkg.output();
        output.is_ok_and(|output| output.stdout == b"installed")
    };
    peers::in_path(program).is_none() || (LIBRARIES.contains(package) && !known())
}

/// RUNLEVEL=1 keeps packages from starting their servers.
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

/// Packages without a program of their own, so that the path does not tell whether they are installed.
const LIBRARIES: [&str; 8] = [
    "libfcgi-perl",
    "ruby-fcgi",
    "libnginx-mod-http-lua",
    "lighttpd-mod-openssl",
    "lighttpd-modules-lua",
    "libapache2-mod-perl2",
    "libapache2-mod-php",
    "lua-nginx-redis",
];
