//! `lighty.r.req_header`, `resp_header` and `req_env`: tables of names and values.

use std::rc::Rc;

use petrel_engine::Exchange;
use petrel_engine::proto::request_head::KnownField;
use petrel_lua::mlua::{self, IntoLua, Lua, LuaString, Table};
use petrel_lua::{DirectAnswer, DirectArguments, Reply};

use super::environment::{lend, try_lend};
use crate::lua::State;

/// Adds the functions that read, write and list them.
///
/// # Errors
/// No memory is left.
pub(super) fn open(state: &Rc<State>, host: &Table) -> mlua::Result<()> {
    add(state, host, "req_header", &REQUEST)?;
    add(state, host, "resp_header", &RESPONSE)?;
    add(state, host, "req_env", &ENVIRONMENT)
}

/// The functions of one of these tables.
struct ScriptFields {
    get: Get,
    /// `None` as value removes a field. Returns false if the value is invalid.
    set: fn(&mut Exchange, &str, Option<&[u8]>) -> bool,
    each: Each,
}

/// Calls the closure with the value, if there is one.
type Get = fn(&Exchange, &str, &mut dyn FnMut(&[u8]));

/// Calls the closure with each name and value.
type Each = fn(&Exchange, &mut dyn FnMut(&[u8], &[u8]));

static REQUEST: ScriptFields = ScriptFields {
    get: |exchange, name, found| {
        if let Some(value) = exchange.request.head.value_of(name) {
            found(value);
        }
    },
    set: set_request_field,
    each: |exchange, with| {
        for (name, value) in exchange.request.head.iter() {
            with(name, value);
        }
    },
};

static RESPONSE: ScriptFields = ScriptFields {
    get: |exchange, name, found| {
        if let Some(value) = exchange.response.get(name) {
            found(value);
        }
    },
    set: |exchange, name, value| {
        exchange.response.set(name, value.unwrap_or_default());
        true
    },
    each: |exchange, with| {
        for (name, value) in exchange.response.fields().iter() {
            with(name, value);
        }
    },
};

static ENVIRONMENT: ScriptFields = ScriptFields {
    // As in lighttpd, variable names match in any letter case.
    get: |exchange, name, found| {
        let mut variables = exchange.environment.iter();
        if let Some((_, value)) = variables.find(|(known, _)| known.eq_ignore_ascii_case(name)) {
            found(value);
        }
    },
    set: |exchange, name, value| {
        let environment = &mut exchange.environment;
        environment.retain(|known| !known.eq_ignore_ascii_case(name));
        if let Some(value) = value {
            environment.set(name, value);
        }
        true
    },
    each: |exchange, with| {
        for (name, value) in exchange.environment.iter() {
            with(name.as_bytes(), value);
        }
    },
};

/// Fields about framing and connection cannot be changed, because the server has already acted on them.
/// Writing them does nothing.
fn set_request_field(exchange: &mut Exchange, name: &str, value: Option<&[u8]>) -> bool {
    let known = KnownField::from_name(name.as_bytes());
    let is_refused = !exchange.set_request_field(name, value.unwrap_or_default());
    !is_refused || known.is_some_and(|known| known != KnownField::Host)
}

fn add(
    state: &Rc<State>,
    host: &Table,
    what: &str,
    fields: &'static ScriptFields,
) -> mlua::Result<()> {
    let lua = state.machine().lua();
    let lent = Rc::clone(state.lent());
    // Here and below: the direct function does the same, except for long values and wrong arguments.
    let get = lua.create_function(move |lua, name: LuaString| {
        let Ok(name) = name.to_str() else {
            return Ok(None);
        };
        try_lend(&lent, |exchange| {
            let mut found = None;
            (fields.get)(exchange, &name, &mut |value| {
                if !value.is_empty() {
                    found = Some(lua.create_string(value));
                }
            });
            found.transpose()
        })
    })?;
    let read = |exchange: &mut Exchange, arguments: DirectArguments<'_>, reply: &Reply| {
        let Some(name) = arguments.utf8() else {
            return DirectAnswer::UNABLE;
        };
        let mut answer = DirectAnswer::NIL;
        (fields.get)(exchange, name, &mut |value| {
            if !value.is_empty() {
                answer = reply.text(value);
            }
        });
        answer
    };
    let get = state.machine().direct(state.lent(), read, &get)?;
    host.set(format!("{what}_get"), get)?;
    let lent = Rc::clone(state.lent());
    let set = lua.create_function(move |_, (name, value): (LuaString, Option<LuaString>)| {
        let Ok(name) = name.to_str() else {
            return Ok(false);
        };
        let value = value.as_ref().map(LuaString::as_bytes);
        lend(&lent, |exchange| {
            (fields.set)(exchange, &name, value.as_deref())
        })
    })?;
    let write = |exchange: &mut Exchange, arguments: DirectArguments<'_>, _: &Reply| {
        let Some(name) = arguments.utf8() else {
            return DirectAnswer::UNABLE;
        };
        match (fields.set)(exchange, name, arguments.value) {
            true => DirectAnswer::TRUE,
            false => DirectAnswer::NIL,
        }
    };
    let set = state.machine().direct(state.lent(), write, &set)?;
    host.set(format!("{what}_set"), set)?;
    let lent = Rc::clone(state.lent());
    let list = lua.create_function(move |lua, ()| {
        try_lend(&lent, |exchange| listed(lua, exchange, fields))
    })?;
    host.set(format!("{what}_list"), list)
}

/// All names and values, alternating.
fn listed(lua: &Lua, exchange: &Exchange, fields: &ScriptFields) -> mlua::Result<Table> {
    let mut texts = Vec::new();
    (fields.each)(exchange, &mut |name, value| {
        texts.push(lua.create_string(name));
        texts.push(lua.create_string(value));
    });
    let list = lua.create_table_with_capacity(texts.len(), 0)?;
    for text in texts {
        list.raw_push(text?.into_lua(lua)?)?;
    }
    Ok(list)
}
