//! Commands of a script to Redis.

use std::rc::{Rc, Weak};

use petrel_lua::mlua::{self, AnyUserData, Function, IntoLua, Lua, Table, Variadic};

use super::{Outcome, address, bytes, milliseconds, number, text};
use crate::lua::State;
use crate::remote_store::{Pipeline, Redis, RedisOptions, Stores, Value};

/// The functions `connect(options)`, `command(handle, name, …)` and `pipeline(handle, list)`.
pub(super) fn functions(state: &Rc<State>) -> mlua::Result<(Function, Function, Function)> {
    let machine = state.machine();
    let worker = Weak::clone(state.worker());
    let connect = machine
        .lua()
        .create_function(move |lua, given: mlua::Value| {
            let worker = worker.upgrade().ok_or_else(super::super::no_request)?;
            let redis = Stores::of(&worker).redis(&options(&given)?);
            lua.create_any_userdata(redis.map_err(mlua::Error::external)?)
        })?;
    let command = machine.waiting(
        |_, (handle, arguments): (AnyUserData, Variadic<mlua::Value>)| {
            let redis = Rc::clone(&*handle.borrow::<Rc<Redis>>()?);
            let arguments: mlua::Result<Vec<Vec<u8>>> = arguments.iter().map(bytes).collect();
            let arguments = arguments?;
            if arguments.first().is_none_or(Vec::is_empty) {
                return Err(mlua::Error::runtime("the command has no name"));
            }
            Ok(async move { Ok(Outcome(redis.command(&arguments).await.map(Answered))) })
        },
    )?;
    let pipeline = machine.waiting(|_, (handle, commands): (AnyUserData, Table)| {
        let redis = Rc::clone(&*handle.borrow::<Rc<Redis>>()?);
        let mut pipeline = Pipeline::new();
        for command in commands.sequence_values::<Table>() {
            let command = command?;
            let arguments = command.sequence_values::<mlua::Value>();
            let arguments: mlua::Result<Vec<Vec<u8>>> =
                arguments.map(|value| bytes(&value?)).collect();
            pipeline.add(&arguments?).map_err(mlua::Error::runtime)?;
        }
        Ok(async move {
            let answers = redis.pipeline(&pipeline).await;
            Ok(Outcome(
                answers.map(|answers| RedisAnswer(Value::Array(answers))),
            ))
        })
    })?;
    Ok((connect, command, pipeline))
}

fn options(given: &mlua::Value) -> mlua::Result<RedisOptions> {
    let mut options = RedisOptions::new(address(given, RedisOptions::PORT_DEFAULT)?);
    options.timeout_ms = milliseconds(given, "timeout", options.timeout_ms)?;
    options.connect_timeout_ms =
        milliseconds(given, "connect_timeout", options.connect_timeout_ms)?;
    options.user = text(given, "user")?;
    options.password = text(given, "password")?;
    if let Some(database) = number(given, "db")? {
        options.database = u32::try_from(database)
            .map_err(|_| mlua::Error::runtime("db: it is no number of a database"))?;
    }
    if let Some(most) = number(given, "connections")? {
        options.connections_max = most.clamp(1, options.connections_max);
    }
    Ok(options)
}

/// The result of a command; a missing value is `nil`.
struct Answered(Value);

impl mlua::IntoLuaMulti for Answered {
    fn into_lua_multi(self, lua: &Lua) -> mlua::Result<mlua::MultiValue> {
        match self.0 {
            Value::Nil => mlua::Value::Nil.into_lua_multi(lua),
            value => RedisAnswer(value).into_lua_multi(lua),
        }
    }
}

/// A reply in the form that Redis's own scripts use: inside a list a missing value is `false`, and an error
/// is a table.
struct RedisAnswer(Value);

impl IntoLua for RedisAnswer {
    fn into_lua(self, lua: &Lua) -> mlua::Result<mlua::Value> {
        let string = |bytes: Vec<u8>| lua.create_string(bytes).map(mlua::Value::String);
        match self.0 {
            Value::Nil => Ok(mlua::Value::Boolean(false)),
            Value::Boolean(is) => Ok(mlua::Value::Boolean(is)),
            Value::Integer(number) => number.into_lua(lua),
            Value::Double(number) => number.into_lua(lua),
            Value::Status(bytes) | Value::Bulk(bytes) | Value::BigNumber(bytes) => string(bytes),
            Value::Verbatim { text, .. } => string(text),
            Value::Error(text) => {
                let table = lua.create_table()?;
                table.set("err", lua.create_string(text)?)?;
                Ok(mlua::Value::Table(table))
            }
            Value::Array(values) | Value::Set(values) | Value::Push(values) => {
                let list = lua.create_table_with_capacity(values.len(), 0)?;
                for value in values {
                    list.raw_push(RedisAnswer(value))?;
                }
                Ok(mlua::Value::Table(list))
            }
            Value::Map(pairs) => {
                let map = lua.create_table_with_capacity(0, pairs.len())?;
                for (key, value) in pairs {
                    map.raw_set(RedisAnswer(key), RedisAnswer(value))?;
                }
                Ok(mlua::Value::Table(map))
            }
        }
    }
}
