//! The functions of `petrel.*` that need the server. All scripts have them, whichever module runs the script.
//!
//! A function that waits (for a time, a backend, a store, a disk) suspends the script and not the worker.
//! Functions that need the request work as long as the script runs for it; see [`State::lent`].

mod asked;
mod dict;
mod files;
mod http;

mod reply;
mod stores;
mod stream;
mod subrequest;
/// Says what held up a request whose script has waited since `since`.
pub(crate) fn tell_holder_of_wait(exchange: &Exchange, since: Nanos, text: &mut HolderText<'_>) {
    let script = exchange.script.as_deref().unwrap_or_default();
    write!(text, "{} waited", String::from_utf8_lossy(script));
    waits::with_slow_peer(since, 2, |peer| {
        if let Some(peer) = peer {
            write!(text, ": {peer}");
        }
    });
}

#[cfg(test)]
mod tests;
mod time;

pub(crate) use dict::read as read_counters;
pub(crate) use stream::take_body;

use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::ledger::Nanos;
use petrel_engine::waits::{self, HolderText};
use petrel_engine::worker::Worker;
use petrel_lua::mlua;

use crate::fragments;
use crate::lua::{LuaHost, LuaOptions, State};

/// The Lua of `worker`, whose states have all of `petrel.*`. The options are those of the whole server, so
/// every caller passes the same.
pub(crate) fn host(worker: &Rc<Worker>, options: &LuaOptions) -> Rc<LuaHost> {
    worker.belonging(|| {
        dict::define(worker, options);
        LuaHost::new(options, open)
    })
}

/// Adds the functions to the table `petrel` of a new state.
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

/// The error of a function that needs a request when there is none any more.
fn no_request() -> mlua::Error {
    mlua::Error::runtime("there is no request any more: its answer has begun")
}
