//! The Rust half of the functions that scripts call. The other half is `api.lua`, which also documents each
//! function.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use lua::library::dict::{self, Dicts};
use lua::library::protect;
use lua::mlua::{BorrowedBytes, Error, Function, Lua, MultiValue, Result, Table, Value};
use lua::{Lent, Machine};

use super::fields;
use super::request::{BodyState, Request};

/// The request whose script runs.
pub(crate) type Current = Rc<Lent<Request>>;

/// Adds the functions to `machine` and returns the function that makes a script's environment. While a script
/// runs, its request is lent to `current`. The caller polls the script whenever something in its request has
/// changed.
///
/// # Errors
/// Memory has run out.
pub(crate) fn add_to(machine: &Machine, current: &Current, dicts: &Arc<Dicts>) -> Result<Function> {
    let lua = machine.lua();
    let rust = lua.create_table()?;
    add_answer(lua, &rust, current)?;
    add_tables(lua, &rust, current)?;
    rust.set("drained", drained(machine, current)?)?;
    rust.set("rest_of_body", rest_of_body(machine, current)?)?;
    add_petrel(machine, dicts)?;
    let protect = lua.create_function(|lua, table: Table| protect(lua, &table))?;
    lua.load(include_str!("api.lua"))
        .set_name("=petrel/fcgi-magnet.lua")
        .call((lua.globals(), rust, protect))
}

fn add_answer(lua: &Lua, rust: &Table, current: &Current) -> Result<()> {
    let request = Rc::clone(current);
    let append = lua.create_function(move |_, text: BorrowedBytes| {
        with(&request, |request| request.answer.print(&text))?.map_err(Error::runtime)
    })?;
    rust.set("append", append)?;
    let request = Rc::clone(current);
    let flush =
        lua.create_function(move |_, ()| with(&request, |request| request.answer.flush()))?;
    rust.set("flush", flush)?;
    let request = Rc::clone(current);
    let status = lua.create_function(move |_, status: f64| {
        // A number that does not fit into u16 becomes one that `set_status` refuses with its usual error.
        with(&request, |request| {
            request.answer.set_status(status as u16).err()
        })
    })?;
    rust.set("status", status)?;
    let request = Rc::clone(current);
    let header = lua.create_function(
        move |_, (name, value): (BorrowedBytes, Option<BorrowedBytes>)| {
            with(&request, |request| {
                request.answer.set_field(&name, value.as_deref()).err()
            })
        },
    )?;
    rust.set("header", header)?;
    let request = Rc::clone(current);
    let log = lua.create_function(move |_, line: BorrowedBytes| {
        with(&request, |request| request.answer.log(&line))
    })?;
    rust.set("log", log)
}

fn add_tables(lua: &Lua, rust: &Table, current: &Current) -> Result<()> {
    let request = Rc::clone(current);
    let env = lua.create_function(move |lua, ()| {
        with(&request, |request| {
            let table = lua.create_table()?;
            for (name, value) in request.params() {
                table.raw_set(lua.create_string(name)?, lua.create_string(value)?)?;
            }
            Ok(table)
        })?
    })?;
    rust.set("env", env)?;
    let request = Rc::clone(current);
    let headers = lua.create_function(move |lua, ()| {
        with(&request, |request| {
            let table = lua.create_table()?;
            for (name, value) in request.params() {
                if let Some(name) = fields::header_name(name) {
                    table.raw_push(lua.create_string(name)?)?;
                    table.raw_push(lua.create_string(value)?)?;
                }
            }
            Ok(table)
        })?
    })?;
    rust.set("request", headers)?;
    let request = Rc::clone(current);
    let get = lua.create_function(move |lua, ()| {
        with(&request, |request| {
            let query = request.param(b"QUERY_STRING").unwrap_or_default();
            table_of(lua, fields::form(query))
        })?
    })?;
    rust.set("get", get)?;
    let request = Rc::clone(current);
    let cookie = lua.create_function(move |lua, ()| {
        with(&request, |request| {
            let cookies = request.param(b"HTTP_COOKIE").unwrap_or_default();
            table_of(lua, fields::cookies(cookies))
        })?
    })?;
    rust.set("cookie", cookie)?;
    let form =
        lua.create_function(|lua, body: BorrowedBytes| table_of(lua, fields::form(&body)))?;
    rust.set("form", form)?;
    let request = Rc::clone(current);
    let body = lua.create_function(move |lua, ()| {
        with(&request, |request| body_of(lua, request))?.map(Option::unwrap_or_default)
    })?;
    rust.set("body", body)
}

fn table_of<'f, N, V>(lua: &Lua, fields: impl Iterator<Item = (N, V)>) -> Result<Table>
where
    N: AsRef<[u8]> + 'f,
    V: AsRef<[u8]> + 'f,
{
    let table = lua.create_table()?;
    for (name, value) in fields {
        table.raw_set(lua.create_string(name)?, lua.create_string(value)?)?;
    }
    Ok(table)
}

/// The body as a string; nil and a reason if there is none to be had; `None` if it has not arrived yet.
fn body_of(lua: &Lua, request: &Request) -> Result<Option<MultiValue>> {
    let text = |text: &[u8]| -> Result<Value> { Ok(Value::String(lua.create_string(text)?)) };
    Ok(match request.body_state() {
        BodyState::Coming => None,
        BodyState::Complete => Some(MultiValue::from_vec(vec![text(request.body())?])),
        BodyState::TooLong => {
            let words = text(b"the body of the request is too long")?;
            Some(MultiValue::from_vec(vec![Value::Nil, words]))
        }
    })
}

/// A function that waits until everything printed was handed to the connection.
fn drained(machine: &Machine, current: &Current) -> Result<Function> {
    let current = Rc::clone(current);
    machine.waiting(move |_, ()| {
        let current = Rc::clone(&current);
        Ok(poll_fn(move |_| {
            match current.with(|request| request.answer.is_passed_on()) {
                Some(false) => Poll::Pending,
                Some(true) | None => Poll::Ready(Ok(())),
            }
        }))
    })
}

/// A function that waits until the body is complete.
fn rest_of_body(machine: &Machine, current: &Current) -> Result<Function> {
    let current = Rc::clone(current);
    machine.waiting(move |lua, ()| {
        let (current, lua) = (Rc::clone(&current), lua.clone());
        Ok(poll_fn(move |_| {
            match with(&current, |request| body_of(&lua, request)) {
                Ok(Ok(None)) => Poll::Pending,
                Ok(Ok(Some(values))) => Poll::Ready(Ok(values)),
                Ok(Err(error)) | Err(error) => Poll::Ready(Err(error)),
            }
        }))
    })
}

/// Adds the functions of `petrel.*` that also exist in scripts of the server itself.
fn add_petrel(machine: &Machine, dicts: &Arc<Dicts>) -> Result<()> {
    let (lua, petrel) = (machine.lua(), machine.petrel());
    petrel.set("sleep", sleep(machine)?)?;
    let now = lua.create_function(|_, ()| {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Ok(now.unwrap_or_default().as_secs_f64())
    })?;
    petrel.set("now", now)?;
    petrel.set("dict", dict::opener(lua, Arc::clone(dicts))?)
}

/// `petrel.sleep(seconds)`.
fn sleep(machine: &Machine) -> Result<Function> {
    machine.waiting(|_, seconds: f64| {
        let time = Duration::try_from_secs_f64(seconds)
            .ok()
            .filter(|time| *time <= SLEEP_MAX)
            .ok_or_else(|| Error::runtime("petrel.sleep takes a number from 0 to 86400"))?;
        Ok(async move {
            tokio::time::sleep(time).await;
            Ok(())
        })
    })
}

fn with<R>(current: &Current, run: impl FnOnce(&mut Request) -> R) -> Result<R> {
    let none = || Error::runtime("there is no request here");
    current.with(run).ok_or_else(none)
}

/// The longest sleep. It exceeds the time that any request may take.
const SLEEP_MAX: Duration = Duration::from_secs(86_400);
