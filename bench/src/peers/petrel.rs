//! Petrel, on lighttpd's configuration.

use super::{Bodies, Choice, Peer, Program, Site, lighttpd};
use crate::workload::Service;
use std::io;
use std::path::Path;
use std::process::Command;

/// With its defaults: there is nothing to tune.
pub const PEER: Peer = Peer {
    name: "petrel",
    program: Program::Petrel,
    version: &["-v"],
    serves: &[Service::Files],
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
