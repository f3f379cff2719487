//! Lua scripts in a whole server: the responses and the log lines.

mod bad_input;
mod like_lighttpd;
mod requests;
mod sites;

use petrel_tests::{Builder, Server};

/// The hook in which a script runs.
const URL: &str = "raw-url";
const PATH: &str = "physical-path";
const ANSWER: &str = "response-start";

/// A server with the script `NAME.lua` for URLs that begin with `/NAME`. Scripts may use a second of
/// processor time: the default of ten milliseconds is too short for a slow machine.
fn with_scripts(scripts: &[(&str, &str, &str)]) -> Builder {
    with_hasty_scripts(scripts).config("lua.max-run-time = 1000")
}

/// The same with the default budget of scripts, for tests of it.
fn with_hasty_scripts(scripts: &[(&str, &str, &str)]) -> Builder {
    let mut builder = Server::build()
        .file("www/a.txt", "0123456789")
        .config("server.modules = (\"mod_indexfile\", \"mod_magnet\", \"mod_staticfile\")")
        .config("mimetype.assign = (\".txt\" => \"text/plain\")");
    for (name, hook, script) in scripts {
        builder = builder
            .file(&format!("{name}.lua"), script)
            .config(&directive(name, hook));
    }
    builder
}

/// The configuration of one script.
fn directive(name: &str, hook: &str) -> String {
    format!(
        "$HTTP[\"url\"] =^ \"/{name}\" {{ magnet.attract-{hook}-to = (var.dir + \"/{name}.lua\") }}"
    )
}
