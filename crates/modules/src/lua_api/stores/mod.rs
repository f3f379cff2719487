//! `petrel.redis` and `petrel.memcached`: objects whose methods wait for a store.
//!
//! If a store cannot be reached or answers with an error, the result is `nil` and a message, because a script
//! should do without its cache. A mistake of the script itself is a Lua error.

mod memcached;
mod redis;

use std::rc::Rc;

use petrel_lua::mlua::{self, Function, IntoLuaMulti, Lua, LuaString, MultiValue, Table, Value};

use super::asked::seconds;
use crate::lua::State;
use crate::remote_store::{StoreAddress, StoreError};

/// Adds both to `petrel`.
pub(super) fn open(state: &Rc<State>, petrel: &Table) -> mlua::Result<()> {
    let (connect_redis, command, pipeline) = redis::functions(state)?;
    let (connect_memcached, functions) = memcached::functions(state)?;
    let objects = state
        .machine()
        .lua()
        .load(include_str!("stores.lua"))
        .set_name("=petrel/stores.lua");
    let arguments = (
        connect_redis,
        command,
        pipeline,
        connect_memcached,
        functions,
    );
    let (redis, memcached): (Function, Function) = objects.call(arguments)?;
    petrel.set("redis", redis)?;
    petrel.set("memcached", memcached)
}

/// The result of a method: values, or `nil` and a message.
struct Outcome<T>(Result<T, StoreError>);

impl<T: IntoLuaMulti> IntoLuaMulti for Outcome<T> {
    fn into_lua_multi(self, lua: &Lua) -> mlua::Result<MultiValue> {
        match self.0 {
            Ok(value) => value.into_lua_multi(lua),
            Err(error) => (Value::Nil, error.to_string()).into_lua_multi(lua),
        }
    }
}

/// The address in the options of a store: the options themselves if they are a string, `address`, `socket`,
/// or `host` and `port`.
fn address(options: &Value, port_default: u16) -> mlua::Result<StoreAddress> {
    let text = match options {
        Value::Nil => format!("127.0.0.1:{port_default}"),
        Value::String(text) => text.to_string_lossy(),
        Value::Table(table) => {
            let named: Option<String> = table.raw_get("address")?;
            let socket: Option<String> = table.raw_get("socket")?;
            let host: Option<String> = table.raw_get("host")?;
            let port: Option<u16> = table.raw_get("port")?;
            let port = port.unwrap_or(port_default);
            match (named, socket, host) {
                (Some(address), _, _) => address,
                (None, Some(socket), _) => format!("unix:{socket}"),
                (None, None, Some(host)) if host.contains(':') => format!("[{host}]:{port}"),
                (None, None, Some(host)) => format!("{host}:{port}"),
                (None, None, None) => format!("127.0.0.1:{port}"),
            }
        }
        other => {
            return Err(mlua::Error::runtime(format_args!(
                "an address or a table was expected, not {}",
                other.type_name()
            )));
        }
    };
    StoreAddress::parse(&text, port_default).map_err(mlua::Error::runtime)
}

/// Reads a timeout from the options, in milliseconds.
fn milliseconds(options: &Value, name: &str, default: u64) -> mlua::Result<u64> {
    let Value::Table(options) = options else {
        return Ok(default);
    };
    match options.raw_get::<Value>(name)? {
        Value::Nil => Ok(default),
        value => {
            let time = seconds(name, &value)?;
            Ok(u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1))
        }
    }
}

/// Reads a number from the options.
fn number(options: &Value, name: &str) -> mlua::Result<Option<usize>> {
    match options {
        Value::Table(options) => options.raw_get(name),
        _ => Ok(None),
    }
}

/// Reads a text from the options; empty if it is missing.
fn text(options: &Value, name: &str) -> mlua::Result<Vec<u8>> {
    match options {
        Value::Table(options) => {
            let text: Option<LuaString> = options.raw_get(name)?;
            Ok(text
                .map(|text| text.as_bytes().to_vec())
                .unwrap_or_default())
        }
        _ => Ok(Vec::new()),
    }
}

/// An argument of a script as bytes: a string, number or boolean.
fn bytes(value: &Value) -> mlua::Result<Vec<u8>> {
    match value {
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        Value::Integer(_) | Value::Number(_) | Value::Boolean(_) => {
            Ok(value.to_string()?.into_bytes())
        }
        other => Err(mlua::Error::runtime(format_args!(
            "a string or a number was expected, not {}",
            other.type_name()
        ))),
    }
}
