//! The globals of a script of mod_cml, made anew for each run.
//!
//! `environment.lua` builds them from the functions in [`super::request`], [`super::files`] and
//! [`super::memcache`]. Everything else is the same for all scripts of the server.

use std::rc::Rc;

use petrel_lua::GlobalsMaker;
use petrel_lua::mlua::{self, Function, Table};

use super::{files, memcache, request};
use crate::lua::State;

/// What mod_cml keeps for each Lua state.
pub(super) struct Globals {
    make: GlobalsMaker,
    take: Function,
}

impl Globals {
    /// The functions of `state`.
    ///
    /// # Errors
    /// No memory is left.
    pub(crate) fn of(state: &Rc<State>) -> mlua::Result<Rc<Globals>> {
        state.extension(Globals::new)
    }

    fn new(state: &Rc<State>) -> mlua::Result<Globals> {
        let lua = state.machine().lua();
        let native = lua.create_table()?;
        let functions = lua.create_table()?;
        request::add(state, &native)?;
        files::add(state, &native, &functions)?;
        memcache::add(state, &functions)?;
        native.set("functions", functions)?;
        let (make, take): (Function, Function) = lua
            .load(include_str!("environment.lua"))
            .set_name("=petrel/cml.lua")
            .call((lua.globals(), native))?;
        let make = GlobalsMaker::from(make);
        Ok(Globals { make, take })
    }

    /// The Lua function that makes the globals for a run.
    pub(crate) fn make(&self) -> &GlobalsMaker {
        &self.make
    }

    /// The globals of the run that was started last. Can be taken once.
    ///
    /// # Errors
    /// No run was started.
    pub(crate) fn take(&self) -> mlua::Result<Table> {
        self.take.call(())
    }
}
