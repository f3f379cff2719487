//! Caddy.

use super::{Bodies, Choice, Peer, Program, Site, WORKERS};
use crate::workload::Service;
use std::io;
use std::path::Path;
use std::process::Command;

/// As its manual tunes it. Its workers are what Go runs goroutines on.
pub const PEER: Peer = Peer {
    name: "caddy",
    program: Program::Packaged {
        program: "caddy",
        package: "caddy",
    },
    version: &["version"],
    serves: &[Service::Files],
    choice: Choice::Default,
    bodies: Bodies::AsAsked,
    prepare,
};

fn prepare(program: &Path, site: &Site<'_>) -> io::Result<Command> {
    let file = site.configure("Caddyfile", &configuration(site))?;
    let mut command = Command::new(program);
    command
        .args(["run", "--adapter", "caddyfile", "--config"])
        .arg(file);
    command.env("GOMAXPROCS", WORKERS.to_string());
    for home in ["HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"] {
        command.env(home, site.directory);
    }
    Ok(command)
}

fn configuration(site: &Site<'_>) -> String {
    let Site { root, port, .. } = site;
    let root = root.display();
    format!(
        "{{
	admin off
	auto_https off
	log {{
		output discard
	}}
	servers {{
		timeouts {{
			idle 1h
		}}
	}}
}}
http://127.0.0.1:{port} {{
	bind 127.0.0.1
	root * {root}
	file_server
}}
"
    )
}
