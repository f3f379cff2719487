//! lighttpd.

use super::{Bodies, Choice, Peer, Program, Site, Upstream, WORKERS};
use crate::backend::{Address, Route};
use crate::workload::Service;
use std::io;
use std::path::Path;
use std::process::Command;

/// As its manual tunes it.
pub const PEER: Peer = Peer {
    name: "lighttpd",
    program: Program::Packaged {
        program: "lighttpd",
        package: "lighttpd",
    },
    version: &["-v"],
    serves: &[
        Service::Files,
        Service::Gateway(Route::FastCgi),
        Service::Gateway(Route::Http),
        Service::Gateway(Route::Php),
        Service::LargeAnswers,
        Service::Reconnect,
    ],
    choice: Choice::Default,
    bodies: Bodies::AsAsked,
    prepare,
};

fn prepare(program: &Path, site: &Site<'_>) -> io::Result<Command> {
    // What it finds out with inotify it need not stat again.
    let text = configuration(site, "") + "server.stat-cache-engine = \"inotify\"\n";
    let file = site.configure("lighttpd.conf", &text)?;
    let mut command = Command::new(program);
    command.arg("-D").arg("-f").arg(file);
    Ok(command)
}

/// What lighttpd and Petrel read alike; `options`: of the backend, beside its address. 65535 is the largest number of requests a connection can
/// have; the client then opens it again.
pub fn configuration(site: &Site<'_>, options: &str) -> String {
    let Site {
        root,
        directory,
        port,
        ..
    } = site;
    let (root, directory) = (root.display(), directory.display());
    let (modules, gateway) = site
        .upstream
        .map(|upstream| gateway(upstream, options))
        .unwrap_or_default();
    format!(
        "server.document-root = \"{root}\"
server.bind = \"127.0.0.1\"
server.port = {port}
server.max-worker = {WORKERS}
server.max-fds = 16384
server.max-connections = 8192
server.listen-backlog = 4096
server.max-keep-alive-requests = 65535
server.max-keep-alive-idle = 3600
server.errorlog = \"{directory}/error.log\"
server.modules = ( {modules} )
mimetype.assign = ( \".html\" => \"text/html\", \".jpg\" => \"image/jpeg\" )
{gateway}"
    )
}

/// The modules and their directives. Petrel keeps backend connections unasked; lighttpd never does.
fn gateway(upstream: Upstream<'_>, options: &str) -> (String, String) {
    let Upstream { route, address, .. } = upstream;
    let host = match address {
        Address::Unix(path) => format!("\"socket\" => \"{}\"", path.display()),
        Address::Tcp(port) => format!("\"host\" => \"127.0.0.1\", \"port\" => {port}"),
    };
    let host = host + options;
    let (module, directive) = match route {
        Route::FastCgi => (
            "mod_fastcgi",
            format!(
                "fastcgi.server = ( \"/fcgi\" => (( {host}, \"check-local\" => \"disable\" )) )"
            ),
        ),
        Route::Php => (
            "mod_fastcgi",
            format!("fastcgi.server = ( \".php\" => (( {host} )) )"),
        ),
        Route::Http => (
            "mod_proxy",
            format!("proxy.server = ( \"/http\" => (( {host} )) )"),
        ),
    };
    (format!("\"{module}\""), directive + "\n")
}
