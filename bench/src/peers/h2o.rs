//! h2o.

use super::{Bodies, Choice, Peer, Program, Site, WORKERS};
use crate::workload::Service;
use std::io;
use std::path::Path;
use std::process::Command;

/// As its manual tunes it. It keeps connections without limit and files open by itself.
pub const PEER: Peer = Peer {
    name: "h2o",
    program: Program::Packaged {
        program: "h2o",
        package: "h2o",
    },
    version: &["-v"],
    serves: &[Service::Files],
    choice: Choice::Default,
    bodies: Bodies::AsAsked,
    prepare,
};

fn prepare(program: &Path, site: &Site<'_>) -> io::Result<Command> {
    let file = site.configure("h2o.conf", &configuration(site))?;
    let mut command = Command::new(program);
    command.arg("-c").arg(file);
    Ok(command)
}

fn configuration(site: &Site<'_>) -> String {
    let Site {
        root,
        directory,
        port,
        ..
    } = site;
    let (root, directory) = (root.display(), directory.display());
    let user = if rustix::process::geteuid().is_root() {
        "user: root"
    } else {
        ""
    };
    format!(
        "{user}
num-threads: {WORKERS}
max-connections: 8192
http1-request-timeout: 3600
pid-file: {directory}/h2o.pid
error-log: {directory}/error.log
listen:
  host: 127.0.0.1
  port: {port}
hosts:
  default:
    paths:
      /:
        file.dir: {root}
"
    )
}
