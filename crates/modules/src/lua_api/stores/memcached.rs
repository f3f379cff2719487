//! Operations of a script on memcached.

use std::rc::{Rc, Weak};

use bytes::Bytes;
use petrel_engine::proto::memcached::{Direction, Write};
use petrel_lua::mlua::{self, AnyUserData, Function, Lua, LuaString, Table, Value};

use super::{Outcome, address, bytes, milliseconds, number, text};
use crate::lua::State;
use crate::remote_store::{
    CasOutcome, KeyForm, Memcached, MemcachedOptions, StoreAddress, StoredValue, Stores,
};

/// The function `connect(options)`, and a table of the operations.
pub(super) fn functions(state: &Rc<State>) -> mlua::Result<(Function, Table)> {
    let worker = Weak::clone(state.worker());
    let lua = state.machine().lua();
    let connect = lua.create_function(move |lua, given: Value| {
        let worker = worker.upgrade().ok_or_else(super::super::no_request)?;
        let memcached = Stores::of(&worker).memcached(&options(&given)?);
        lua.create_any_userdata(memcached.map_err(mlua::Error::external)?)
    })?;
    let table = lua.create_table()?;
    add_reads(state, &table)?;
    add_writes(state, &table)?;
    add_others(state, &table)?;
    Ok((connect, table))
}

fn add_reads(state: &Rc<State>, table: &Table) -> mlua::Result<()> {
    let machine = state.machine();
    // Returns a value and its flags.
    let get = machine.waiting(|_, (handle, key): (AnyUserData, LuaString)| {
        let (store, key) = (store(&handle)?, key.as_bytes().to_vec());
        Ok(async move { Ok(Outcome(store.get(&key).await.map(FoundValue))) })
    })?;
    table.set("get", get)?;
    // As `get`, with the number for `cas`.
    let gets = machine.waiting(|_, (handle, key): (AnyUserData, LuaString)| {
        let (store, key) = (store(&handle)?, key.as_bytes().to_vec());
        Ok(async move { Ok(Outcome(store.gets(&key).await.map(FoundValue))) })
    })?;
    table.set("gets", gets)?;
    let get_many = machine.waiting(|_, (handle, keys): (AnyUserData, Vec<LuaString>)| {
        let store = store(&handle)?;
        let keys: Vec<Vec<u8>> = keys.iter().map(|key| key.as_bytes().to_vec()).collect();
        Ok(async move {
            let values = store.get_many(&keys).await;
            Ok(Outcome(values.map(|values| FoundMany(keys, values))))
        })
    })?;
    table.set("get_many", get_many)
}

fn add_writes(state: &Rc<State>, table: &Table) -> mlua::Result<()> {
    type Store = (AnyUserData, LuaString, Value, Option<u64>, Option<u32>);
    let machine = state.machine();
    let set = machine.waiting(|_, (handle, key, value, ttl, flags): Store| {
        let write = Written::new(&handle, &key, &value, ttl, flags)?;
        Ok(async move {
            let done = write
                .store
                .set(&write.key, &write.value, write.flags, write.ttl_s)
                .await;
            Ok(Outcome(done.map(|()| true)))
        })
    })?;
    table.set("set", set)?;
    for (name, how) in [("add", Write::Add), ("replace", Write::Replace)] {
        let store_if = machine.waiting(move |_, (handle, key, value, ttl, flags): Store| {
            let write = Written::new(&handle, &key, &value, ttl, flags)?;
            Ok(async move {
                let done = write
                    .store
                    .store_if(how, &write.key, &write.value, write.flags, write.ttl_s)
                    .await;
                Ok(Outcome(done))
            })
        })?;
        table.set(name, store_if)?;
    }
    type Cas = (AnyUserData, LuaString, Value, u64, Option<u64>, Option<u32>);
    let cas = machine.waiting(|_, (handle, key, value, number, ttl, flags): Cas| {
        let write = Written::new(&handle, &key, &value, ttl, flags)?;
        Ok(async move {
            let store = &write.store;
            let done = store
                .cas(&write.key, &write.value, write.flags, write.ttl_s, number)
                .await;
            Ok(Outcome(done.map(|outcome| match outcome {
                CasOutcome::Stored => (true, None),
                CasOutcome::Changed => (false, Some("changed")),
                CasOutcome::NotFound => (false, Some("gone")),
            })))
        })
    })?;
    table.set("cas", cas)?;
    type Join = (AnyUserData, LuaString, Value);
    for (name, how) in [("append", Write::Append), ("prepend", Write::Prepend)] {
        let join = machine.waiting(move |_, (handle, key, value): Join| {
            let write = Written::new(&handle, &key, &value, None, None)?;
            Ok(async move {
                let done = write.store.store_if(how, &write.key, &write.value, 0, 0);
                Ok(Outcome(done.await))
            })
        })?;
        table.set(name, join)?;
    }
    Ok(())
}

fn add_others(state: &Rc<State>, table: &Table) -> mlua::Result<()> {
    type Count = (AnyUserData, LuaString, Option<u64>);
    let machine = state.machine();
    let delete = machine.waiting(|_, (handle, key): (AnyUserData, LuaString)| {
        let (store, key) = (store(&handle)?, key.as_bytes().to_vec());
        Ok(async move { Ok(Outcome(store.delete(&key).await)) })
    })?;
    table.set("delete", delete)?;
    // Returns the new number; nil if there is no value.
    for (name, direction) in [("incr", Direction::Up), ("decr", Direction::Down)] {
        let count = machine.waiting(move |_, (handle, key, by): Count| {
            let (store, key) = (store(&handle)?, key.as_bytes().to_vec());
            Ok(async move { Ok(Outcome(store.count(direction, &key, by.unwrap_or(1)).await)) })
        })?;
        table.set(name, count)?;
    }
    let touch = machine.waiting(|_, (handle, key, ttl): (AnyUserData, LuaString, u64)| {
        let (store, key) = (store(&handle)?, key.as_bytes().to_vec());
        Ok(async move { Ok(Outcome(store.touch(&key, ttl).await)) })
    })?;
    table.set("touch", touch)?;
    let flush_all = machine.waiting(|_, (handle, delay): (AnyUserData, Option<u32>)| {
        let store = store(&handle)?;
        Ok(async move {
            let done = store.flush_all(delay.unwrap_or(0)).await;
            Ok(Outcome(done.map(|()| true)))
        })
    })?;
    table.set("flush_all", flush_all)?;
    let version = machine.waiting(|lua, handle: AnyUserData| {
        let (store, weak) = (store(&handle)?, lua.weak());
        Ok(async move {
            match store.version().await {
                Ok(version) => Ok(Outcome(Ok(weak.upgrade().create_string(version)?))),
                Err(error) => Ok(Outcome(Err(error))),
            }
        })
    })?;
    table.set("version", version)
}

/// The arguments of a write.
struct Written {
    store: Rc<Memcached>,
    key: Vec<u8>,
    value: Vec<u8>,
    flags: u32,
    ttl_s: u64,
}

impl Written {
    fn new(
        handle: &AnyUserData,
        key: &LuaString,
        value: &Value,
        ttl: Option<u64>,
        flags: Option<u32>,
    ) -> mlua::Result<Written> {
        Ok(Written {
            store: store(handle)?,
            key: key.as_bytes().to_vec(),
            value: bytes(value)?,
            flags: flags.unwrap_or(0),
            ttl_s: ttl.unwrap_or(0),
        })
    }
}

/// A value and its flags, with the number for `cas` if that was asked for.
struct FoundValue(Option<StoredValue>);

impl mlua::IntoLuaMulti for FoundValue {
    fn into_lua_multi(self, lua: &Lua) -> mlua::Result<mlua::MultiValue> {
        match self.0 {
            None => Value::Nil.into_lua_multi(lua),
            Some(stored) => {
                let data = lua.create_string(&stored.data)?;
                (data, stored.flags, stored.cas).into_lua_multi(lua)
            }
        }
    }
}

/// The values that were found, by key.
struct FoundMany(Vec<Vec<u8>>, Vec<Option<StoredValue>>);

impl mlua::IntoLua for FoundMany {
    fn into_lua(self, lua: &Lua) -> mlua::Result<Value> {
        let table = lua.create_table()?;
        for (key, stored) in self.0.iter().zip(self.1) {
            if let Some(data) = stored.map(|stored| stored.data) {
                let data: Bytes = data;
                table.raw_set(lua.create_string(key)?, lua.create_string(&data)?)?;
            }
        }
        Ok(Value::Table(table))
    }
}

fn store(handle: &AnyUserData) -> mlua::Result<Rc<Memcached>> {
    Ok(Rc::clone(&*handle.borrow::<Rc<Memcached>>()?))
}

fn options(given: &Value) -> mlua::Result<MemcachedOptions> {
    let mut options = MemcachedOptions::new(servers(given)?);
    options.timeout_ms = milliseconds(given, "timeout", options.timeout_ms)?;
    options.connect_timeout_ms =
        milliseconds(given, "connect_timeout", options.connect_timeout_ms)?;
    options.prefix = text(given, "prefix")?;
    options.namespace = text(given, "namespace")?;
    if let Value::Table(table) = given
        && table.raw_get::<Option<bool>>("hash_keys")?.unwrap_or(false)
    {
        options.key_form = KeyForm::HashedIfNeeded;
    }
    if let Some(most) = number(given, "connections")? {
        options.connections_max = most.clamp(1, 1024);
    }
    Ok(options)
}

/// Reads one server, or a list of servers in `servers`.
fn servers(given: &Value) -> mlua::Result<Vec<StoreAddress>> {
    if let Value::Table(table) = given
        && let Some(list) = table.raw_get::<Option<Vec<String>>>("servers")?
    {
        let parse = |text: &String| StoreAddress::parse(text, MemcachedOptions::PORT_DEFAULT);
        let servers: Result<Vec<StoreAddress>, String> = list.iter().map(parse).collect();
        return servers.map_err(mlua::Error::runtime);
    }
    Ok(vec![address(given, MemcachedOptions::PORT_DEFAULT)?])
}
