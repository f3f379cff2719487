//! h2o.

use super::{ALL_SERVICES, Bodies, Choice, Peer, Program, Site, Upstream, WORKERS};
use crate::backend::{Address, Route};
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
    serves: ALL_SERVICES,
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
    let paths = match site.upstream {
        Some(upstream) => gateway(&root.to_string(), upstream),
        None => format!("      /:\n        file.dir: {root}\n"),
    };
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
{paths}"
    )
}

/// Backend connections are kept when told how long.
fn gateway(root: &str, upstream: Upstream<'_>) -> String {
    let Upstream { route, address, .. } = upstream;
    let fastcgi = |indent: &str| {
        let (port, family) = match address {
            Address::Unix(path) => (path.display().to_string(), "unix"),
            Address::Tcp(port) => (port.to_string(), "tcp"),
        };
        format!(
            "{indent}fastcgi.connect:
{indent}  port: {port}
{indent}  type: {family}
{indent}fastcgi.timeout.keepalive: 3600000
"
        )
    };
    match route {
        Route::FastCgi => format!("      /fcgi:\n{}", fastcgi("        ")),
        Route::Php | Route::Lua => format!(
            "      /:
        file.dir: {root}
        file.custom-handler:
          extension: [\".php\", \".lua\"]
{}",
            fastcgi("          ")
        ),
        Route::Http => format!(
            "      /http:
        proxy.reverse.url: http://{address}/http
        proxy.timeout.keepalive: 3600000
"
        ),
    }
}
