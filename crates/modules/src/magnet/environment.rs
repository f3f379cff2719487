//! What scripts find, made once for each Lua state.

use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_lua::mlua::{self, Function, LuaString, Table, Value};
use petrel_lua::{Lent, library};

use super::{attributes, bodies, fields, functions, items, server, stat};
use crate::lua::State;

/// The functions by which runs begin and end.
pub(super) struct Environment {
    maker: Function,
    take_current: Function,
    finish: Function,
}

/// What a run has left in `lighty`.
pub(super) struct Finished {
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
        let (maker, take_current, finish) = lua
            .load(include_str!("environment.lua"))
            .set_name("=petrel/magnet.lua")
            .call((host, lua.globals()))?;
        Ok(Environment {
            maker,
            take_current,
            finish,
        })
    }

    /// Makes the globals of a run.
    pub fn maker(&self) -> &Function {
        &self.maker
    }

    /// The table `lighty` of the run that has just begun and waits.
    ///
    /// # Errors
    /// There is no memory.
    pub fn take_current(&self) -> mlua::Result<Table> {
        self.take_current.call(())
    }

    /// What a run has left in `lighty`; without one, the run that was made last.
    ///
    /// # Errors
    /// There is no memory.
    pub fn finish(&self, lighty: Option<&Table>) -> mlua::Result<Finished> {
        self.finish.call(lighty).map(Finished::new)
    }
}

impl Finished {
    fn new((content, header): (Value, Value)) -> Finished {
        let content = match content {
            Value::Nil => Content::Nothing,
            Value::String(text) => Content::Text(text),
            Value::Table(parts) => Content::Parts(parts),
            other => Content::Wrong(other.type_name()),
        };
        let header = match header {
            Value::Table(header) => Some(header),
            _ => None,
        };
        Finished { content, header }
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
