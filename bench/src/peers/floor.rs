//! The floor server: this program, started by itself.

use super::{Bodies, Choice, Peer, Program, Site};
use crate::workload::Service;
use std::io;
use std::path::Path;
use std::process::Command;

/// Pretends to serve files: it sends one reply of the right size to whatever it is asked.
pub const PEER: Peer = Peer {
    name: "floor",
    program: Program::Ourselves,
    version: &["--version"],
    serves: &[Service::Files],
    choice: Choice::Default,
    bodies: Bodies::FirstOnly,
    prepare,
};

fn prepare(program: &Path, site: &Site<'_>) -> io::Result<Command> {
    let mut command = Command::new(program);
    command
        .arg("floor")
        .arg("--port")
        .arg(site.port.to_string());
    command
        .arg("--status")
        .arg(site.workload.status.to_string());
    // Where replies differ, any file of the right length does.
    if site.workload.body_bytes().is_some() {
        command
            .arg("--file")
            .arg(site.root.join(&site.workload.paths()[0][1..]));
    }
    Ok(command)
}
