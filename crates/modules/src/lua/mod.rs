//! What all modules that run Lua in the server share: one state per worker, the scripts in files, and the
//! request that is lent to functions.
//!
//! mod_magnet, mod_cml and others add environments and functions of their own; this module knows none of
//! them. The functions of `petrel.*` are in [`crate::lua_api`].

pub mod file_threads;
mod host;
mod load;
mod look_up;
mod options;
pub mod programs;
#[cfg(test)]
pub(crate) mod testing;

use petrel_engine::config::Diagnostic;
use petrel_engine::module::{Configure, Loaded, ModuleSpec};

pub use host::{LuaHost, State};
pub(crate) use load::LoadFailure;
pub(crate) use look_up::{FilePatience, of_file, waiting_for};
pub(crate) use options::{LuaOptions, is_allowed};

/// The settings of the Lua states. They are part of the core: mod_magnet and mod_cml read them.
pub static MODULE: ModuleSpec = ModuleSpec {
    name: "mod_lua",
    doc: "What Lua scripts may use, in all modules that run them.",
    loaded: Loaded::Always,
    directives: options::DIRECTIVES,
    configure,
};

/// Checks the values. The modules that run scripts read them again.
fn configure(configure: &mut Configure<'_>) -> Result<(), Diagnostic> {
    LuaOptions::read(configure.values).map(drop)
}
