//! `lighty.server` and `lighty.status`: the server as a whole.
//!
//! All workers share the counters. `counter = counter + 1` reads and then writes, and another worker may
//! count in between; the counters of a shared dictionary (`petrel.dict`) are atomic.
//!
//! Besides the counters of scripts there are counters of the server, whose names begin with `server.io.`.
//! Those can only be read.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use petrel_engine::io_counters;
use petrel_engine::settings::core::DEFAULT_TAG;
use petrel_engine::shared::Shared;
use petrel_lua::mlua::{self, Lua, LuaString, Table, Value};

use super::environment::try_lend;
use super::others::Others;
use crate::lua::State;

/// The largest number of counters that scripts may make, because names may come from requests.
const COUNTERS_MAX: usize = 10_000;

/// The counters of scripts, by name.
#[derive(Default)]
struct Counters {
    values: Mutex<BTreeMap<String, f64>>,
}

impl Counters {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, f64>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds the counters of scripts to those of the server.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the list has whole numbers; it saturates"
)]
pub(crate) fn read_counters(shared: &Shared, into: &mut BTreeMap<String, u64>) {
    let counters = shared.belonging(Counters::default);
    for (name, value) in counters.lock().iter() {
        into.insert(name.clone(), *value as u64);
    }
}

/// Adds the functions.
///
/// # Errors
/// No memory is left.
pub(super) fn open(state: &Rc<State>, host: &Table) -> mlua::Result<()> {
    let lua = state.machine().lua();
    let counters = counters(state);
    let of = Arc::clone(&counters);
    let worker = state.worker().clone();
    let get = lua.create_function(move |_, name: LuaString| {
        let name = name.to_string_lossy();
        if name.starts_with(io_counters::PREFIX) {
            let worker = worker.upgrade();
            let count = worker.and_then(|worker| io_counters::one(&worker, &name));
            // A file system without activity is not in the list.
            return Ok(to_number(count.unwrap_or(0)));
        }
        let mut values = of.lock();
        let is_full = values.len() >= COUNTERS_MAX;
        if let Some(value) = values.get(&name) {
            return Ok(*value);
        }
        // As in lighttpd, reading a counter creates it.
        if !is_full {
            values.insert(name, 0.0);
        }
        Ok(0.0)
    })?;
    host.set("statistic_get", get)?;
    let of = Arc::clone(&counters);
    let set = lua.create_function(move |_, (name, value): (LuaString, f64)| {
        let name = name.to_string_lossy();
        if name.starts_with(io_counters::PREFIX) {
            return Err(mlua::Error::runtime(format_args!(
                "{name} is counted by the server"
            )));
        }
        let mut values = of.lock();
        if values.len() >= COUNTERS_MAX && !values.contains_key(&name) {
            return Err(mlua::Error::runtime(format_args!(
                "there are {COUNTERS_MAX} counters already"
            )));
        }
        values.insert(name, value.trunc());
        Ok(())
    })?;
    host.set("statistic_set", set)?;
    let worker = state.worker().clone();
    let list = lua.create_function(move |lua, ()| {
        let list = listed(lua, &counters)?;
        if let Some(worker) = worker.upgrade() {
            for (name, count) in io_counters::read(&worker) {
                list.raw_push(name)?;
                list.raw_push(to_number(count))?;
            }
        }
        Ok(list)
    })?;
    host.set("statistic_list", list)?;
    let worker = state.worker().clone();
    let stat = lua.create_function(move |lua, name: LuaString| {
        let Some(worker) = worker.upgrade() else {
            return Ok(Value::Nil);
        };
        let shared = worker.shared();
        Ok(match &*name.as_bytes() {
            b"uptime" => Value::Number(shared.uptime().as_secs_f64().trunc()),
            b"version" => Value::String(lua.create_string(DEFAULT_TAG)?),
            b"clients_open" => {
                let open = u32::try_from(shared.connections()).unwrap_or(u32::MAX);
                Value::Number(open.into())
            }
            _ => Value::Nil,
        })
    })?;
    host.set("server_stat", stat)?;
    let lent = Rc::clone(state.lent());
    let requests = lua.create_function(move |lua, ()| {
        try_lend(&lent, |exchange| {
            Others::of(&exchange.worker).list(lua, exchange)
        })
    })?;
    host.set("other_requests", requests)
}

/// The counters of the server process. The state is being made for a request, so its worker still exists.
fn counters(state: &State) -> Arc<Counters> {
    let worker = state.worker().upgrade();
    worker.map_or_else(Arc::default, |worker| {
        worker.shared().belonging(Counters::default)
    })
}

/// Scripts only have this type of number; above 2^53 the last digits are lost.
#[expect(clippy::cast_precision_loss, reason = "said above")]
fn to_number(count: u64) -> f64 {
    count as f64
}

fn listed(lua: &Lua, counters: &Counters) -> mlua::Result<Table> {
    let list = lua.create_table()?;
    for (name, value) in counters.lock().iter() {
        list.raw_push(name.as_str())?;
        list.raw_push(*value)?;
    }
    Ok(list)
}
