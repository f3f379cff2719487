//! Petrel, with lighttpd's configuration.

use super::{Bodies, Choice, Logging, Peer, Program, STAGES_LOG, Site, TEMPORARY, lighttpd};
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
        Service::Rewriting,
        Service::Passwords,
        Service::Gateway(Route::FastCgi),
        Service::Gateway(Route::Http),
        Service::Gateway(Route::Php),
        Service::Gateway(Route::Lua),
        Service::LargeAnswers,
        Service::Reconnect,
        Service::KeepFastCgi,
        Service::SendTempfile,
        Service::Scripts,
        Service::WaitingScripts,
        Service::PageCache(Route::Http),
        Service::PageCache(Route::Php),
        Service::Cml,
        Service::Stories,
        Service::PhpInside,
        Service::PostQuantumTls,
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
    let text = lighttpd::configuration(site, &options(site))?
        + further(site)
        + &reading(site)
        + &logging(site);
    let file = site.configure("petrel.conf", &text)?;
    let mut command = Command::new(program);
    command.arg("-D").arg("-f").arg(file);
    command.env("LUA_PATH", site.lua_path());
    Ok(command)
}

/// Settings that only Petrel has.
fn further(site: &Site<'_>) -> &'static str {
    if site.is_http2() && site.pem.is_none() {
        "server.h2c = \"enable\"\n"
    } else if site.upstream.is_some_and(|upstream| upstream.cached) {
        "server.modules += ( \"mod_page_cache\" )\npage-cache.enable = \"enable\"\n"
    } else if site.workload.needs == Service::Cml {
        "server.modules += ( \"mod_cml\" )\ncml.extension = \".cml\"\n\
         index-file.names = ( \"index.cml\" )\n"
    } else {
        ""
    }
}

/// How files are read, if Petrel shall not decide that itself.
fn reading(site: &Site<'_>) -> String {
    let reading = site.reading;
    let mut text = String::new();
    if let Some(backend) = reading.backend {
        text += &format!("server.network-backend = \"{backend}\"\n");
    }
    if let Some(kib) = reading.chunk_kib {
        text += &format!("server.io-chunk-size = {kib}\n");
    }
    if let Some(threads) = reading.threads {
        text +=
            &format!("server.max-stat-threads = {threads}\nserver.max-read-threads = {threads}\n");
    }
    text
}

/// An access log with stage times, if there shall be one.
fn logging(site: &Site<'_>) -> String {
    if site.logging == Logging::Off {
        return String::new();
    }
    let log = site.directory.join(STAGES_LOG);
    let log = log.display();
    format!(
        "server.modules += ( \"mod_accesslog\" )\naccesslog.format = \"{STAGES_FORMAT}\"\n\
         accesslog.filename = \"{log}\"\n"
    )
}

/// The format of [`STAGES_LOG`].
pub const STAGES_FORMAT: &str = "%{usec}t %U %{stages}x";

/// Backend connections are persistent by default.
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
