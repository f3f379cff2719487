//! `petrel.dict`: dictionaries that all workers share.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use petrel_engine::shared::Shared;
use petrel_engine::worker::Worker;
use petrel_lua::library::dict::{self, Dicts};
use petrel_lua::mlua::{self, Table};

use crate::lua::{LuaOptions, State};

/// Creates the dictionaries that have a size in the configuration, once per server.
pub(super) fn define(worker: &Worker, options: &LuaOptions) {
    let dicts = of(worker.shared());
    for (name, bytes) in &options.dictionaries {
        dicts.define(name, *bytes);
    }
}

/// Adds `petrel.dict`.
pub(super) fn open(state: &Rc<State>, petrel: &Table) -> mlua::Result<()> {
    let Some(worker) = state.worker().upgrade() else {
        return Ok(());
    };
    let dicts = of(worker.shared());
    petrel.set("dict", dict::opener(state.machine().lua(), dicts)?)
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

/// The size of a dictionary that has none in the configuration.
const BYTES_DEFAULT: usize = 1 << 20;
