//! The floor server: this program, started a second time.

use super::{Bodies, Choice, Peer, Program, Site, Upstream};
use crate::backend::{Address, Route, fastcgi_request};
use crate::workload::Service;
use std::io;
use std::path::Path;
use std::process::Command;

/// Acts as if it served files, ran scripts and cached pages: it sends one reply of the right size to every
/// request.
pub const PEER: Peer = Peer {
    name: "floor",
    program: Program::Ourselves,
    version: &["--version"],
    serves: &[
        Service::Files,
        Service::Gateway(Route::FastCgi),
        Service::Gateway(Route::Http),
        Service::Gateway(Route::Php),
        Service::Scripts,
        Service::PageCache(Route::Http),
    ],
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
    let path = &site.workload.paths()[0];
    match site.upstream {
        Some(upstream) if !upstream.cached => relay(&mut command, site, upstream)?,
        _ => {
            // Where replies differ, any body of the right length will do.
            if let Some(body) = site.workload.body(path) {
                command.arg("--file").arg(site.write("body", &body)?);
            }
        }
    }
    Ok(command)
}

/// What it sends to the backend is as long as what nginx sends.
fn relay(command: &mut Command, site: &Site<'_>, upstream: Upstream<'_>) -> io::Result<()> {
    let Upstream { route, address, .. } = upstream;
    let path = &site.workload.paths()[0];
    let request = match route {
        Route::FastCgi | Route::Php | Route::Lua => {
            fastcgi_request(path, &site.root.to_string_lossy())
        }
        Route::Http => format!(
            "GET {path} HTTP/1.1\r\nHost: backend\r\nUser-Agent: petrel-bench\r\n\
             Accept: */*\r\n\r\n"
        )
        .into_bytes(),
    };
    let body = site.workload.body(path).unwrap_or_default();
    command
        .arg("--relay-request")
        .arg(site.write("request", &request)?);
    command.arg("--file").arg(site.write("body", &body)?);
    match address {
        Address::Unix(path) => command.arg("--relay-socket").arg(path),
        Address::Tcp(port) => command.arg("--relay-port").arg(port.to_string()),
    };
    Ok(())
}
