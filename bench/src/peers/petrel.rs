//! Petrel, on lighttpd's configuration.

use super::{Bodies, Choice, Peer, Program, Site, TEMPORARY, lighttpd};
use crate::backend::Route;
use crate::workload::{Reuse, Service};
use std::io;
use std::path::Path;
use std::process::Command;

/// With its defaults: there is nothing to tune.
pub const PEER: Peer = Peer {
    name: "petrel",
    program: Program::Petrel,
    version: &["-v"],
    serves: &[
        Service::Files,
        Service::Gateway(Route::FastCgi),
        Service::Gateway(Route::Http),
        Service::Gateway(Route::Php),
        Service::LargeAnswers,
        Service::Reconnect,
        Service::KeepFastCgi,
        Service::SendTempfile,
    ],
    choice: Choice::Default,
    bodies: Bodies::AsAsked,
    prepare,
};

fn prepare(program: &Path, site: &Site<'_>) -> io::Result<Command> {
    let file = site.configure(
        "petrel.conf",
        &lighttpd::configuration(site, &options(site)),
    )?;
    let mut command = Command::new(program);
    command.arg("-D").arg("-f").arg(file);
    Ok(command)
}

/// Connections are kept unless told otherwise.
fn options(site: &Site<'_>) -> String {
    let mut options = String::new();
    let Some(upstream) = site.upstream else {
        return options;
    };
    if upstream.keep == Reuse::Close {
        options += ", \"max-keep-alive-requests\" => 1";
    }
    if upstream.sends_files {
        options += ", \"x-sendfile\" => \"enable\", \"tempfile-dirs\" => ( \"";
        options += TEMPORARY;
        options += "\" )";
    }
    options
}
