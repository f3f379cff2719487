//! The globals of a script. The functions in them are made once for each Lua state.

use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_lua::mlua::{self, Function, LuaString, Table, Value};
use petrel_lua::{GlobalsMaker, Lent, Results, library};

use super::answer::Texts;
use super::{attributes, bodies, fields, functions, items, server, stat};
use crate::lua::State;

/// The Lua function that makes the globals for a run.
pub(super) struct Environment {
    maker: GlobalsMaker,
}

/// The results of a run, as `finish` in environment.lua returns them.
pub(super) struct Finished<'r> {
    /// The script's return value.
    pub(crate) value: Value,
    /// `lighty.content`, unless it is empty.
    pub(crate) content: Content<'r>,
    /// `lighty.header`, if `finish` has left it to Rust: a name or value of it is neither text nor
    /// number.
    pub(crate) header: Option<Table>,
}

/// The content that a script wants to be sent.
pub(super) enum Content<'r> {
    /// None.
    Nothing,
    /// One string.
    Text(&'r [u8]),
    /// A list of strings and files.
    Parts(Table),
    /// A value of another type, which is not allowed.
    Wrong(&'static str),
}

impl Environment {
    /// Adds all functions to `state`.
    ///
    /// # Errors
    /// No memory is left.
    pub(crate) fn new(state: &Rc<State>) -> mlua::Result<Environment> {
        let lua = state.machine().lua();
        let host = lua.create_table()?;
        host.set("guard", library::guard(lua)?)?;
        host.set("rawget", library::rawget(lua)?)?;
        attributes::open(state, &host)?;
        fields::open(state, &host)?;
        items::open(state, &host)?;
        let texts = state.worker().upgrade().map(|worker| Texts::of(&worker));
        bodies::open(state, &host, &texts.unwrap_or_default())?;
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
        let maker = GlobalsMaker::from(maker);
        Ok(Environment { maker })
    }

    /// The function that makes the globals for a run.
    pub(crate) fn maker(&self) -> &GlobalsMaker {
        &self.maker
    }
}

impl<'r> Finished<'r> {
    /// Reads the values that the run has returned.
    ///
    /// # Errors
    /// No memory is left.
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
        let header = match results.is_nil(3) {
            true => None,
            false => results.value(3)?.as_table().cloned(),
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
/// The script runs on after its answer has begun, so it has no request any more.
pub(super) fn lend<R>(
    lent: &Lent<Exchange>,
    with: impl FnOnce(&mut Exchange) -> R,
) -> mlua::Result<R> {
    lent.with(with)
        .ok_or_else(|| mlua::Error::runtime("there is no request any more: its answer has begun"))
}

/// As [`lend`], for functions that can fail.
///
/// # Errors
/// The errors of `with`, and that of [`lend`].
pub(super) fn try_lend<R>(
    lent: &Lent<Exchange>,
    with: impl FnOnce(&mut Exchange) -> mlua::Result<R>,
) -> mlua::Result<R> {
    lend(lent, with)?
}
