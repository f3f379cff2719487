//! Petrel, on lighttpd's configuration.

use super::{ALL_SERVICES, Bodies, Choice, Peer, Program, Site, lighttpd};
use std::io;
use std::path::Path;
use std::process::Command;

/// With its defaults: there is nothing to tune.
pub const PEER: Peer = Peer {
    name: "petrel",
    program: Program::Petrel,
    version: &["-v"],
    serves: ALL_SERVICES,
    choice: Choice::Default,
    bodies: Bodies::AsAsked,
    prepare,
};

fn prepare(program: &Path, site: &Site<'_>) -> io::Result<Command> {
    let file = site.configure("petrel.conf", &lighttpd::configuration(site))?;
    let mut command = Command::new(program);
    command.arg("-D").arg("-f").arg(file);
    Ok(command)
}
