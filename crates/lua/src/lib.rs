//! LuaJIT for the server: states, compiled scripts, runs that may wait, and budgets.
//!
//! A [`Machine`] is a Lua state of one thread, with libraries that know nothing of HTTP. A [`Script`] is
//! source that was compiled in it. A [`Run`] executes a script in an environment of its own, and is polled
//! like a future, because a script may wait. The code that runs scripts (modules of the server, programs)
//! adds functions through [`Machine::lua`] and [`Machine::waiting`], and lends them what they work on through
//! [`Lent`].
//!
//! Knows nothing of requests, configuration or sockets.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
#![cfg_attr(not(test), warn(unreachable_pub))]

mod arena;
pub mod budget;
mod direct;
mod error;
mod lent;
pub mod library;
mod machine;
mod raw;
mod run;
#[cfg(test)]
#[path = "run_tests.rs"]
mod run_tests;
mod script;
pub(crate) mod syntax;

pub use direct::{DirectAnswer, DirectArguments, Reply};
pub use error::{Cause, ScriptError};
pub use lent::Lent;
pub use machine::{Machine, MachineOptions};
pub use mlua;
pub use run::{Progress, Results, Run};
pub use script::{GlobalsMaker, Script, Scripts, Stamp};
pub use syntax::{MissingPart, missing_parts};
