//! nginx.

use super::{Bodies, Choice, Peer, Program, Site, WORKERS};
use crate::workload::Service;
use std::io;
use std::path::Path;
use std::process::Command;

/// As its manual tunes it.
pub const PEER: Peer = Peer {
    name: "nginx",
    program: Program::Packaged {
        program: "nginx",
        package: "nginx",
    },
    version: &["-v"],
    serves: &[Service::Files],
    choice: Choice::Default,
    bodies: Bodies::AsAsked,
    prepare: |program, site| prepare(program, site, "on"),
};

/// Reads files into memory: better for the smallest, worse for large ones.
pub const WITHOUT_SENDFILE: Peer = Peer {
    name: "nginx-nosendfile",
    choice: Choice::OnRequest,
    prepare: |program, site| prepare(program, site, "off"),
    ..PEER
};

fn prepare(program: &Path, site: &Site<'_>, sendfile: &str) -> io::Result<Command> {
    let file = site.configure("nginx.conf", &configuration(site, sendfile))?;
    let mut command = Command::new(program);
    command.arg("-p").arg(site.directory).arg("-c").arg(file);
    Ok(command)
}

/// `tcp_nopush off`: corking costs two calls and gains nothing where head and body are small.
/// `reuseport`: a queue for each worker, or one of them gets most of the connections.
/// `open_file_cache_errors on`: its negative cache, for the 404s.
fn configuration(site: &Site<'_>, sendfile: &str) -> String {
    let Site {
        root,
        directory,
        port,
        ..
    } = site;
    let (root, directory) = (root.display(), directory.display());
    let user = if rustix::process::geteuid().is_root() {
        "user root;"
    } else {
        ""
    };
    format!(
        "daemon off;
{user}
worker_processes {WORKERS};
worker_rlimit_nofile 65536;
pid {directory}/nginx.pid;
error_log {directory}/error.log crit;
events {{
    worker_connections 8192;
}}
http {{
    types {{ text/html html; image/jpeg jpg; }}
    client_body_temp_path {directory};
    proxy_temp_path {directory};
    fastcgi_temp_path {directory};
    uwsgi_temp_path {directory};
    scgi_temp_path {directory};
    access_log off;
    log_not_found off;
    sendfile {sendfile};
    tcp_nopush off;
    tcp_nodelay on;
    keepalive_timeout 3600s;
    keepalive_requests 1000000000;
    open_file_cache max=20000 inactive=60s;
    open_file_cache_valid 60s;
    open_file_cache_min_uses 1;
    open_file_cache_errors on;
    server {{
        listen 127.0.0.1:{port} reuseport backlog=4096;
        root {root};
    }}
}}
"
    )
}
