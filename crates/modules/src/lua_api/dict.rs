//! `petrel.dict`: dictionaries that all workers share.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use petrel_engine::shared::Shared;
use petrel_engine::worker::Worker;
use petrel_lua::library::dict::{self, Dicts};
use petrel_lua::library::protect;
use petrel_lua::mlua::{self, Table};

use crate::lua::{Options, State};

/// Makes the dictionaries that have a size in the configuration, once a server.
pub(crate) fn define(worker: &Worker, options: &Options) {
    let dicts = of(worker.shared());
    for (name, bytes) in &options.dictionaries {
        dicts.define(name, *bytes);
    }
}

/// Adds it to `petrel`.
pub(super) fn open(state: &Rc<State>, petrel: &Table) -> mlua::Result<()> {
    let Some(worker) = state.worker().upgrade() else {
        return Ok(());
    };
    let dicts = of(worker.shared());
    let known: RefCell<HashMap<String, Table>> = RefCell::default();
    let lua = state.machine().lua();
    let open = lua.create_function(move |lua, name: String| {
        if let Some(table) = known.borrow().get(&name) {
            return Ok(table.clone());
        }
        let dict = dicts.open(&name).ok_or_else(|| {
            mlua::Error::runtime(format_args!(
                "petrel.dict: there are {} already",
                dict::DICTS_MAX
            ))
        })?;
        let table = protect(lua, &dict::table(lua, dict)?)?;
        known.borrow_mut().insert(name, table.clone());
        Ok(table)
    })?;
    petrel.set("dict", open)
}

/// Adds the counters of the dictionaries.
pub(crate) fn read(shared: &Shared, counters: &mut BTreeMap<String, u64>) {
    for (name, dict) in of(shared).all() {
        let of_dict = dict.counters();
        for (what, count) in [
            ("bytes", of_dict.bytes as u64),
            ("entries", of_dict.entries as u64),
            ("evicted", of_dict.evicted),
            ("expired", of_dict.expired),
            ("hits", of_dict.hits),
            ("misses", of_dict.misses),
            ("refused", of_dict.refused),
        ] {
            counters.insert(format!("lua.dict.{name}.{what}"), count);
        }
    }
}

fn of(shared: &Shared) -> Arc<Dicts> {
    shared.belonging(|| Dicts::new(BYTES_DEFAULT))
}

/// Bytes of a dictionary without a size in the configuration.
const BYTES_DEFAULT: usize = 1 << 20;
