//! What scripts find, made once for each Lua state.

use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_lua::mlua::{self, Function, LuaString, Table, Value};
use petrel_lua::{Lent, library};

use super::{attributes, bodies, fields, functions, items, server, stat};
use crate::lua::State;

/// The Lua function that makes the globals of a run.
pub(super) struct Environment {
    maker: Function,
}

/// What a run has come to.
pub(super) struct Finished {
    /// What its script has returned.
    pub value: Value,
    /// `lighty.content`, if there is anything in it.
    pub content: Content,
    /// `lighty.header`, if there is anything in it.
    pub header: Option<Table>,
}

/// What a script wants to have sent.
pub(super) enum Content {
    /// Nothing was said.
    Nothing,
    /// One string.
    Text(LuaString),
    /// A list of strings and files.
    Parts(Table),
    /// Something else, of this type.
    Wrong(&'static str),
}

impl Environment {
    /// Adds everything to `state`.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new(state: &Rc<State>) -> mlua::Result<Environment> {
        let lua = state.machine().lua();
        let host = lua.create_table()?;
        host.set("guard", library::guard(lua)?)?;
        attributes::open(state, &host)?;
        fields::open(state, &host)?;
        items::open(state, &host)?;
        bodies::open(state, &host)?;
        stat::open(state, &host)?;
        server::open(state, &host)?;
        functions::open(state, &host)?;
        let lent = Rc::clone(state.lent());
        let print = lua.create_function(move |_, words: LuaString| {
            lend(&lent, |exchange| {
                exchange.log_error("lua-print", format_args!("{}", words.to_string_lossy()));
            })
        })?;
        host.set("print", print)?;
        let maker = lua
            .load(include_str!("environment.lua"))
            .set_name("=petrel/magnet.lua")
            .call((host, lua.globals()))?;
        Ok(Environment { maker })
    }

    /// Makes the globals of a run.
    pub fn maker(&self) -> &Function {
        &self.maker
    }
}

impl Finished {
    /// From what `finish` in environment.lua has made of it.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(value: Value) -> mlua::Result<Finished> {
        Ok(match value {
            Value::String(text) => Finished {
                value: Value::Integer(200),
                content: Content::Text(text),
                header: None,
            },
            Value::Table(parts) => Finished {
                value: parts.raw_get(1)?,
                content: match parts.raw_get(2)? {
                    Value::Nil | Value::Boolean(false) => Content::Nothing,
                    Value::String(text) => Content::Text(text),
                    Value::Table(parts) => Content::Parts(parts),
                    other => Content::Wrong(other.type_name()),
                },
                header: parts.raw_get(3)?,
            },
            value => Finished {
                value,
                content: Content::Nothing,
                header: None,
            },
        })
    }
}

/// Calls `with` with the request that the script runs for.
///
/// # Errors
/// There is none any more: the script goes on after its answer has begun.
pub(super) fn lend<R>(
    lent: &Lent<Exchange>,
    with: impl FnOnce(&mut Exchange) -> R,
) -> mlua::Result<R> {
    lent.with(with)
        .ok_or_else(|| mlua::Error::runtime("there is no request any more: its answer has begun"))
}

/// The same for functions that can fail.
///
/// # Errors
/// Those of `with`, and see [`lend`].
pub(super) fn try_lend<R>(
    lent: &Lent<Exchange>,
    with: impl FnOnce(&mut Exchange) -> mlua::Result<R>,
) -> mlua::Result<R> {
    lend(lent, with)?
}
