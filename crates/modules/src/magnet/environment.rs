//! What scripts find, made once for each Lua state.

use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_lua::mlua::{self, Function, LuaString, Table, Value};
use petrel_lua::{Lent, Results, library};

use super::{attributes, bodies, fields, functions, items, server, stat};
use crate::lua::State;

/// The Lua function that makes the globals of a run.
pub(super) struct Environment {
    maker: Function,
}

/// What a run has come to, as `finish` in environment.lua hands it over.
pub(super) struct Finished<'r> {
    /// What its script has returned.
    pub(crate) value: Value,
    /// `lighty.content`, if there is anything in it.
    pub(crate) content: Content<'r>,
    /// `lighty.header`, if there is anything in it.
    pub(crate) header: Header<'r>,
}

/// What a script wants to have sent.
pub(super) enum Content<'r> {
    /// Nothing was said.
    Nothing,
    /// One string.
    Text(&'r [u8]),
    /// A list of strings and files.
    Parts(Table),
    /// Something else, of this type.
    Wrong(&'static str),
}

/// The fields a script gives to the answer.
pub(super) enum Header<'r> {
    /// Names and values, all of them strings, in turn from this number on.
    Few(&'r Results, usize),
    /// Any number of anything.
    Many(Table),
}

impl Environment {
    /// Adds everything to `state`.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn new(state: &Rc<State>) -> mlua::Result<Environment> {
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
        let globals = lua.globals();
        let (maker, lighty): (Function, Table) = lua
            .load(include_str!("environment.lua"))
            .set_name("=petrel/magnet.lua")
            .call((host, &globals))?;
        globals.raw_set("lighty", lighty)?;
        Ok(Environment { maker })
    }

    /// Makes the globals of a run.
    pub(crate) fn maker(&self) -> &Function {
        &self.maker
    }
}

impl<'r> Finished<'r> {
    /// From the values that the run has ended with.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn new(results: &'r Results) -> mlua::Result<Finished<'r>> {
        let value = match results.number(1) {
            Some(number) => Value::Number(number),
            None => results.value(1)?,
        };
        let content = match results.bytes(2) {
            Some(text) => Content::Text(text),
            None if results.is_nil(2) => Content::Nothing,
            None => match results.value(2)? {
                Value::Boolean(false) => Content::Nothing,
                Value::Table(parts) => Content::Parts(parts),
                other => Content::Wrong(other.type_name()),
            },
        };
        let header = match results.count() {
            3 => match results.value(3)? {
                Value::Table(header) => Header::Many(header),
                _ => Header::Few(results, 4),
            },
            _ => Header::Few(results, 3),
        };
        Ok(Finished {
            value,
            content,
            header,
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
