//! h2o.

use super::{Bodies, Choice, Peer, Program, Site, Upstream, WORKERS};
use crate::backend::{Address, Route};
use crate::workload::Service;
use std::io;
use std::path::Path;
use std::process::Command;

/// Tuned as its manual advises. By default it keeps connections without limit, and files open.
pub const PEER: Peer = Peer {
    name: "h2o",
    program: Program::Packaged {
        program: "h2o",
        package: "h2o",
    },
    version: &["-v"],
    serves: &[
        Service::Files,
        Service::Gateway(Route::FastCgi),
        Service::Gateway(Route::Http),
        Service::Gateway(Route::Php),
        Service::LargeAnswers,
        Service::Tls,
        Service::Http2,
        Service::ClearHttp2,
        Service::Http2Gateway(Route::FastCgi),
        Service::Http2Gateway(Route::Http),
    ],
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
    let encryption = site.pem.map(encryption).unwrap_or_default();
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
{encryption}hosts:
  default:
    paths:
{paths}"
    )
}

/// HTTP/2 is on by default: by ALPN, and without TLS for clients that begin with it.
fn encryption(pem: &Path) -> String {
    let pem = pem.display();
    format!("  ssl:\n    certificate-file: {pem}\n    key-file: {pem}\nhttp2-idle-timeout: 3600\n")
}

/// Backend connections are persistent if a timeout is configured.
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
