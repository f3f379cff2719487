//! mod_magnet: Lua scripts that decide about requests and answers, with lighttpd's functions.
//!
//! A request passes three points at which scripts can run, each a [`ScriptStage`]: before its path is looked
//! up, when the physical path is known, and when there is an answer. [`hook`] runs the scripts of a stage one
//! after the other and acts on what they return. [`environment`] makes the globals of a script: the table
//! `lighty` with `lighty.r` (the request with its attributes, fields and bodies), `lighty.c` (functions) and
//! `lighty.server`, under the names of all generations of lighttpd's module.
//!
//! Everything that does not depend on the request is made once for each Lua state. Functions reach the
//! request through [`State::lent`](crate::lua::State::lent), so that a request costs one or two Lua tables.
//! Lua states, script files, budgets and `petrel.*` are in [`crate::lua`] and [`crate::lua_api`].

mod answer;
mod attributes;
mod bodies;
mod codec;
mod content;
mod environment;
mod fields;
mod functions;
mod hook;
mod items;
mod others;
mod review;
mod server;
mod stat;
#[cfg(test)]
mod tests;

use petrel_engine::config::Diagnostic;
use petrel_engine::module::{Configure, Loaded, ModuleSpec, Phase};
use petrel_engine::settings::Values;
use petrel_engine::settings::directives::Effect::{Accepted, Works};

use crate::lua::LuaOptions;
use hook::{Magnet, ScriptStage};
pub use review::review;
pub(crate) use server::read_counters;

const NAME: &str = "mod_magnet";

/// mod_magnet.
pub static MODULE: ModuleSpec = ModuleSpec {
    name: NAME,
    doc: "Runs Lua scripts on requests and responses; see docs/lua.md.",
    loaded: Loaded::Listed,
    directives: petrel_engine::directives! {
        "magnet.attract-raw-url-to", StringOrList, Request, "()", Works,
            "Scripts that run one after the other before the path is looked up.";
        "magnet.attract-physical-path-to", StringOrList, Request, "()", Works,
            "Scripts that run when the physical path is known, before it is looked up.";
        "magnet.attract-response-start-to", StringOrList, Request, "()", Works,
            "Scripts that run when there is an answer. They may change its status, fields and body.";
        "magnet.attract-response-header-to", StringOrList, Request, "()", Works,
            "lighttpd 1.5's name for magnet.attract-response-start-to. Where both are given, these run first.";
        "magnet.attract-response-content-to", StringOrList, Request, "()", Accepted("lighttpd 1.5 never ran these scripts either"),
            "Scripts to run on the content of a response.";
    },
    configure,
};

fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    let options = LuaOptions::read(configure.values)?;
    for (phase, stage, names) in HOOKS {
        let mut scripts = Vec::new();
        for name in *names {
            for path in configure.values.strings(name) {
                scripts.push(absolute(configure.values, name, path)?);
            }
        }
        if scripts.is_empty() {
            continue;
        }
        configure.want_local_address();
        let magnet = Magnet::new(*stage, scripts, &options);
        match stage {
            // Before mod_deflate, wherever that is in the list of modules: scripts see and change the body
            // before it is compressed.
            ScriptStage::Answer => {
                configure.want_whole_replies();
                configure.add_first(*phase, magnet);
            }
            _ => configure.add(*phase, magnet),
        }
    }
    Ok(())
}

/// The phases in which scripts run, and the directives that name the scripts.
const HOOKS: &[(Phase, ScriptStage, &[&str])] = &[
    (
        Phase::Authorize,
        ScriptStage::Url,
        &["magnet.attract-raw-url-to"],
    ),
    (
        Phase::Map,
        ScriptStage::Path,
        &["magnet.attract-physical-path-to"],
    ),
    (
        Phase::Transform,
        ScriptStage::Answer,
        &[
            "magnet.attract-response-header-to",
            "magnet.attract-response-start-to",
        ],
    ),
];

fn absolute(values: &Values<'_>, name: &str, path: &str) -> Result<Box<[u8]>, Diagnostic> {
    if path.is_empty() || path.contains('\0') {
        return Err(values.error(name, format!("{path:?} is no path of a script")));
    }
    let path = std::path::absolute(path).map_err(|error| values.error(name, error.to_string()))?;
    Ok(path.into_os_string().into_encoded_bytes().into())
}
