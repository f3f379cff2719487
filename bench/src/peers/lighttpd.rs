//! lighttpd.

use super::{Bodies, Choice, Peer, Program, Site, Upstream, WORKERS};
use crate::backend::{Address, Route};
use crate::workload::passwords::Login;
use crate::workload::scripts::InServer;
use crate::workload::stories::{FILES, NEWS, Way};
use crate::workload::{Service, Urls, rewriting};
use std::io;
use std::path::Path;
use std::process::Command;

/// Tuned as its manual advises.
pub const PEER: Peer = Peer {
    name: "lighttpd",
    program: Program::Packaged {
        program: "lighttpd",
        package: "lighttpd",
    },
    version: &["-v"],
    serves: &[
        Service::Files,
        Service::Rewriting,
        Service::Passwords,
        Service::Gateway(Route::FastCgi),
        Service::Gateway(Route::Http),
        Service::Gateway(Route::Php),
        Service::PhpInside,
        Service::Gateway(Route::Lua),
        Service::LargeAnswers,
        Service::Reconnect,
        Service::Scripts,
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
    // With inotify it need not stat files again.
    let text = configuration(site, "")? + "server.stat-cache-engine = \"inotify\"\n";
    let file = site.configure("lighttpd.conf", &text)?;
    let mut command = Command::new(program);
    command.arg("-D").arg("-f").arg(file);
    command.env("LUA_PATH", site.lua_path());
    Ok(command)
}

/// What lighttpd and Petrel both understand. `options` are those of the backend, beside its address. 65535 is
/// the most requests that a connection can carry; the client then reopens it.
pub fn configuration(site: &Site<'_>, options: &str) -> io::Result<String> {
    let Site {
        root,
        directory,
        port,
        ..
    } = site;
    let (root, directory) = (root.display(), directory.display());
    let (mut modules, mut directives) = site
        .upstream
        .map(|upstream| gateway(upstream, options))
        .unwrap_or_default();
    if let Some(pem) = site.pem {
        let separator = if modules.is_empty() { "" } else { ", " };
        modules = modules + separator + "\"mod_openssl\"";
        directives += &encryption(pem);
    }
    if let Some((urls, address)) = site.reading.stat_accelerator {
        modules += "\"mod_fastcgi\"";
        directives += &stat_accelerator(urls, address, &root.to_string());
    }
    let rules = rewriting::rules(site.workload, |pattern, target| {
        format!("    \"{pattern}\" => \"{target}\",\n")
    });
    if !rules.is_empty() {
        modules += "\"mod_rewrite\"";
        directives += &format!("url.rewrite-once = (\n{rules})\n");
    }
    if let Urls::Story(story) = site.workload.urls
        && story.way == Way::Alias
    {
        modules += "\"mod_alias\"";
        directives += &format!("alias.url = ( \"{NEWS}\" => \"{root}{FILES}\" )\n");
    }
    if let Some((login, users)) = site.login()? {
        modules += "\"mod_auth\", \"mod_authn_file\"";
        directives += &guard(login, &users);
    }
    if let Some(script) = site.script() {
        modules += "\"mod_magnet\"";
        directives += &magnet(site, script)?;
    }
    Ok(format!(
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
{directives}"
    ))
}

/// TLS with all defaults, which include HTTP/2.
fn encryption(pem: &Path) -> String {
    format!(
        "ssl.engine = \"enable\"\nssl.pemfile = \"{}\"\n",
        pem.display()
    )
}

/// Petrel and lighttpd remember hashed passwords if configured so.
fn guard(login: Login, users: &Path) -> String {
    let cache = match login {
        Login::Remembered => "auth.cache = ( \"max-age\" => 600 )\n",
        Login::First => "",
    };
    let users = users.display();
    format!(
        "{cache}auth.backend = \"htpasswd\"
auth.backend.htpasswd.userfile = \"{users}\"
auth.require = ( \"/\" => ( \"method\" => \"basic\", \"realm\" => \"R\", \"require\" => \"valid-user\" ) )
"
    )
}

/// A script runs either when the URL has been mapped to a file, or before anything else.
fn magnet(site: &Site<'_>, script: &InServer) -> io::Result<String> {
    let file = site.write_script(script, "lua", script.lighty)?;
    let file = file.display();
    Ok(match script.only_path() {
        Some(path) => format!(
            "$HTTP[\"url\"] == \"{path}\" {{ magnet.attract-physical-path-to = ( \"{file}\" ) }}\n"
        ),
        None => format!("magnet.attract-raw-url-to = ( \"{file}\" )\n"),
    })
}

/// As in the article: the program waits for the lookup and names the file to send.
fn stat_accelerator(urls: &str, address: &Address, root: &str) -> String {
    let host = host(address);
    format!(
        "fastcgi.server = ( \"{urls}\" => (( {host}, \"check-local\" => \"disable\", \
         \"x-sendfile\" => \"enable\", \"x-sendfile-docroot\" => ( \"{root}\" ) )) )\n"
    )
}

fn host(address: &Address) -> String {
    match address {
        Address::Unix(path) => format!("\"socket\" => \"{}\"", path.display()),
        Address::Tcp(port) => format!("\"host\" => \"127.0.0.1\", \"port\" => {port}"),
    }
}

/// The modules and their directives. Petrel's backend connections are persistent by default; lighttpd never
/// keeps them.
fn gateway(upstream: Upstream<'_>, options: &str) -> (String, String) {
    let Upstream { route, address, .. } = upstream;
    let host = host(address) + options;
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
        Route::Lua => (
            "mod_fastcgi",
            format!("fastcgi.server = ( \".lua\" => (( {host} )) )"),
        ),
        Route::Http => (
            "mod_proxy",
            format!("proxy.server = ( \"/http\" => (( {host} )) )"),
        ),
    };
    (format!("\"{module}\""), directive + "\n")
}
