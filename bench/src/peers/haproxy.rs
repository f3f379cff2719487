//! HAProxy, which serves no files.

use super::{Bodies, Choice, Peer, Program, Site, Upstream, WORKERS};
use crate::backend::{Address, Route};
use crate::workload::Service;
use std::io;
use std::path::Path;
use std::process::Command;

/// Tuned as its manual advises. Its backend connections are persistent by default.
pub const PEER: Peer = Peer {
    name: "haproxy",
    program: Program::Packaged {
        program: "haproxy",
        package: "haproxy",
    },
    version: &["-v"],
    serves: &[
        Service::Gateway(Route::FastCgi),
        Service::Gateway(Route::Http),
        Service::Gateway(Route::Php),
        Service::LargeAnswers,
        Service::PageCache(Route::Http),
    ],
    choice: Choice::Default,
    bodies: Bodies::AsAsked,
    prepare,
};

fn prepare(program: &Path, site: &Site<'_>) -> io::Result<Command> {
    let file = site.configure("haproxy.cfg", &configuration(site))?;
    let mut command = Command::new(program);
    command.arg("-db").arg("-f").arg(file);
    Ok(command)
}

/// `http-reuse always`: a backend connection serves any client's next request, as with other servers.
fn configuration(site: &Site<'_>) -> String {
    let Site { root, port, .. } = site;
    let server = site.upstream.map(server).unwrap_or_default();
    let cached = site.upstream.is_some_and(|upstream| upstream.cached);
    let (cache, use_cache) = if cached { (CACHE, USE_CACHE) } else { ("", "") };
    let root = root.display();
    format!(
        "global
    nbthread {WORKERS}
    maxconn 8192
    log stdout format raw local0 emerg
defaults
    mode http
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    timeout http-keep-alive 1h
    maxconn 8192
{cache}fcgi-app application
    docroot {root}
    option keep-conn
frontend clients
    bind 127.0.0.1:{port} backlog 4096
    default_backend responders
backend responders
    http-reuse always
{use_cache}{server}
"
    )
}

const CACHE: &str = "cache pages
    total-max-size 64
    max-object-size 1000000
    max-age 3600
";
const USE_CACHE: &str = "    http-request cache-use pages
    http-response cache-store pages
";

/// By default it closes idle connections every few seconds.
fn server(upstream: Upstream<'_>) -> String {
    let Upstream { route, address, .. } = upstream;
    let address = match address {
        Address::Unix(path) => format!("unix@{}", path.display()),
        Address::Tcp(_) => address.to_string(),
    };
    let pool = "pool-max-conn 1000 pool-purge-delay 1h";
    match route {
        Route::FastCgi | Route::Php | Route::Lua => {
            format!("    use-fcgi-app application\n    server backend {address} proto fcgi {pool}")
        }
        Route::Http => format!("    server backend {address} {pool}"),
    }
}
