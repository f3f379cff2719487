//! What everything that runs Lua in the server has in common: one state a worker, the scripts of its
//! files, and the request lent to what scripts call.
//!
//! mod_magnet, mod_cml and others bring environments and functions of their own; this knows none of them.
//! Functions of `petrel.*` are in [`crate::lua_api`].

pub mod file_threads;
mod host;
mod load;
mod look_up;
mod options;
#[cfg(test)]
pub(crate) mod testing;

use petrel_engine::config::Diagnostic;
use petrel_engine::module::{Configure, Loaded, ModuleSpec};

pub use host::{LuaHost, State};
pub(crate) use load::LoadFailure;
pub(crate) use look_up::{FilePatience, of_file, waiting_for};
pub(crate) use options::LuaOptions;

/// Settings of the Lua states. Part of the core: mod_magnet and mod_cml read them.
pub static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_lua",
    doc: "What Lua scripts may use, whichever module runs them.",
    loaded: Loaded::Always,
    directives: options::DIRECTIVES,
    configure,
};

/// Finds wrong values; who runs scripts reads them.
fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    LuaOptions::read(configure.values).map(drop)
}
