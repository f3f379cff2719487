//! Caddy.

use super::{ALL_SERVICES, Bodies, Choice, Peer, Program, Site, Upstream, WORKERS};
use crate::backend::{Address, Route};
use std::io;
use std::path::Path;
use std::process::Command;

/// Tuned as its manual advises. Its workers are the threads on which Go runs goroutines.
pub const PEER: Peer = Peer {
    name: "caddy",
    program: Program::Packaged {
        program: "caddy",
        package: "caddy",
    },
    version: &["version"],
    serves: ALL_SERVICES,
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
    let gateway = site.upstream.map(gateway).unwrap_or_default();
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
{gateway}	file_server
}}
"
    )
}

/// It keeps as many HTTP connections open as there are clients; it cannot keep those of FastCGI.
fn gateway(upstream: Upstream<'_>) -> String {
    let Upstream { route, address, .. } = upstream;
    let to = match address {
        Address::Unix(path) => format!("unix/{}", path.display()),
        Address::Tcp(_) => address.to_string(),
    };
    let (matcher, transport) = match route {
        Route::FastCgi => ("/fcgi*", "fastcgi"),
        Route::Php | Route::Lua => ("@php", "fastcgi {\n\t\t\tsplit .php .lua\n\t\t}"),
        Route::Http => (
            "/http*",
            "http {\n\t\t\tkeepalive 1h\n\t\t\tkeepalive_idle_conns_per_host 128\n\t\t}",
        ),
    };
    format!(
        "\t@php path *.php *.lua\n\treverse_proxy {matcher} {to} {{\n\t\ttransport {transport}\n\t}}\n"
    )
}
