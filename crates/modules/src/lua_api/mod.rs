//! The part of `petrel.*` that needs the server: what scripts find beyond lighttpd's functions, whichever module runs them.
//!
//! Functions that wait for something (a time, a backend, a store, a disk) suspend the script, not the
//! worker. Those that need the request work while the script runs for it; see [`State::lent`].

mod asked;
mod dict;
mod files;
mod http;

mod reply;
mod stores;
mod stream;
mod subrequest;
#[cfg(test)]
mod tests;
mod time;

pub(crate) use dict::read as read_counters;
pub(crate) use stream::take_body;

use std::rc::Rc;

use petrel_engine::worker::Worker;
use petrel_lua::mlua;

use crate::fragments;
use crate::lua::{LuaHost, LuaOptions, State};

/// The Lua of `worker`, in whose states scripts have all of `petrel.*`. The options are the same wherever they are read:
/// they are the server's.
pub(crate) fn host(worker: &Rc<Worker>, options: &LuaOptions) -> Rc<LuaHost> {
    worker.belonging(|| {
        dict::define(worker, options);
        LuaHost::new(options, open)
    })
}

/// Adds it to the table `petrel` of a new state.
fn open(state: &Rc<State>) -> mlua::Result<()> {
    let petrel = state.machine().petrel();
    time::open(state, petrel)?;
    subrequest::open(state, petrel)?;
    http::open(state, petrel)?;
    files::open(state, petrel)?;
    dict::open(state, petrel)?;
    stores::open(state, petrel)?;
    stream::open(state, petrel)?;
    fragments::open(state, petrel)
}

/// A function was called that needs a request, and there is none (any more).
fn no_request() -> mlua::Error {
    mlua::Error::runtime("there is no request any more: its answer has begun")
}
